"""Fields of configuration classes that mirror a key of RocketMQ's configuration files.

`setting` puts everything about a key next to its field: name, default, limits, and when a change applies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple, TypeVar, cast, get_args, get_type_hints

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.java import trim

T = TypeVar("T")

_SETTING: Final = "setting"


class Change(Enum):
    """When a running server applies a change that an administrator requests."""

    NEVER = "the change is rejected"
    NEXT_START = "the change is written to the file and applies at the next start"
    LIVE = "the change applies immediately: the field is read each time it matters"


NEXT_START: Final = Change.NEXT_START
LIVE: Final = Change.LIVE


def _same(value: Any) -> Any:
    return value


class Setting(NamedTuple):
    """The key that a field mirrors."""

    name: str | None
    """None for a field that only has limits."""
    read: Callable[[str], Any] | None = None
    """Parses the text of the key, raises ValueError or ConfigInvalid. None: the field's type decides."""
    show: Callable[[Any], Any] = _same
    """Converts the field's value to the unit of the key."""
    limits: tuple[int, int] | None = None
    """The lowest and the highest value."""
    change: Change = Change.NEVER
    is_private: bool = False
    """Whether the value is left out of `repr` and of the listing for administrators."""


def setting(
    name: str | None,
    default: T,
    *,
    read: Callable[[str], Any] | None = None,
    show: Callable[[Any], Any] = _same,
    limits: tuple[int, int] | None = None,
    change: Change = Change.NEVER,
    is_private: bool = False,
) -> T:
    """Return a dataclass field that mirrors the key `name`; see `Setting`."""
    metadata = {_SETTING: Setting(name, read, show, limits, change, is_private)}
    if isinstance(default, dict):
        return cast(T, field(default_factory=default.copy, metadata=metadata))
    return field(default=default, metadata=metadata, repr=not is_private)


def mirrors(name: str) -> dict[str, Setting]:
    """Return the metadata of a dataclass field without a default that mirrors the key `name`."""
    return {_SETTING: Setting(name)}


class Key(NamedTuple):
    """A key: the field of the configuration group that holds it, and how its text is read and shown."""

    group: str
    field: str
    read: Callable[[str], Any]
    show: Callable[[Any], Any] = _same
    change: Change = Change.NEVER
    is_private: bool = False


def keys_of(config: type, group: str) -> dict[str, Key]:
    """Return the keys that the fields of a configuration class mirror, by name."""
    hints = get_type_hints(config)
    found = {}
    for attribute in fields(config):
        declared: Setting | None = attribute.metadata.get(_SETTING)
        if declared is not None and declared.name is not None:
            read = declared.read or _reader(hints[attribute.name])
            found[declared.name] = Key(
                group, attribute.name, read, declared.show, declared.change, declared.is_private
            )
    return found


def groups_of(config: type) -> dict[str, type]:
    """Return the groups of settings in a configuration class: the fields that are dataclasses themselves."""
    hints = get_type_hints(config)
    return {
        attribute.name: hints[attribute.name]
        for attribute in fields(config)
        if is_dataclass(hints[attribute.name])
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedSettings:
    """Base class of groups of settings: checks that each value is within its limits."""

    def __post_init__(self) -> None:
        self._check_limits()

    def _check_limits(self) -> None:
        """Raise ConfigInvalid for a field outside of its limits."""
        for attribute in fields(self):
            declared: Setting | None = attribute.metadata.get(_SETTING)
            value = getattr(self, attribute.name)
            if declared is not None and declared.limits is not None and value is not None:
                has_other_unit = declared.show is not _same
                name = attribute.name if declared.name is None or has_other_unit else declared.name
                check_range(name, value, *declared.limits)


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise ConfigInvalid for a value outside of low to high."""
    if not low <= value <= high:
        raise ConfigInvalid(f"{name} is {value}; it must be from {low} to {high}")


# -- texts of keys ----------------------------------------------------------------------------


def read_text(value: str) -> str:
    """Return a text without the whitespace around it. Raises ValueError if nothing is left."""
    text = trim(value)
    if not text:
        raise ValueError("a value is missing")
    return text


def read_integer(value: str) -> int:
    """Return the integer that a text contains. Raises ValueError."""
    try:
        return int(value.strip())
    except ValueError:
        raise ValueError("a whole number is expected") from None


def read_boolean(value: str) -> bool:
    """Return the bool for "true" or "false", in any case. Raises ValueError for other texts."""
    word = value.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false is expected")
    return word == "true"


def read_path(value: str) -> Path:
    """Return a path; ~ is the home directory. Raises ValueError for an empty text."""
    return Path(read_text(value)).expanduser()


def read_percent(value: str) -> int:
    """Return a ratio from 0 to 1, as in RocketMQ's system properties, in percent. Raises ValueError."""
    try:
        return round(100 * float(value))
    except ValueError:
        raise ValueError("a number from 0 to 1 is expected") from None


_READERS: Final[dict[type, Callable[[str], Any]]] = {
    bool: read_boolean,
    int: read_integer,
    str: read_text,
    Path: read_path,
}


def _reader(hint: Any) -> Callable[[str], Any]:
    """Return the reader for the type of a field."""
    kind: type = next((argument for argument in get_args(hint) if argument is not NoneType), hint)
    return _member_reader(kind) if issubclass(kind, Enum) else _READERS[kind]


def _member_reader(kind: type[Enum]) -> Callable[[str], Enum]:
    def read(value: str) -> Enum:
        try:
            return kind[value.strip()]
        except KeyError:
            raise ValueError(f"one of {', '.join(kind.__members__)} is expected") from None

    return read
