"""Pickles of settings and results that versions with other fields can load.

Python pickles a dataclass with slots as a list, without names. A field that a later version inserts would
shift all values after it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

ADDED: Final = {"added": True}
"""Metadata of a field that pickles without names do not have, unless it is the last one of its class."""


def get_fields(value: Any) -> dict[str, object]:
    """Return the fields of a dataclass with slots by name; use it as `__getstate__`."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def set_fields(value: Any, state: Mapping[str, object] | Iterable[object]) -> None:
    """Set the fields of a frozen dataclass with slots from its pickled state; use it as `__setstate__`.

    Missing fields get their defaults. Earlier versions wrote a list in the order of the fields at that time.
    """
    if not isinstance(state, Mapping):
        names = [field.name for field in fields(value) if not field.metadata.get("added")]
        state = dict(zip(names, state, strict=False))
    for field in fields(value):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        object.__setattr__(value, field.name, state.get(field.name, default))
