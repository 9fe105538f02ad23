"""Chooses between the Python form and the native form of a function.

The optional distribution rocketpy-mq-native (import name `rocketpy_native`, source in native/) has faster
forms of some pure functions. `has_native_form` marks these functions. A native form returns None for input
that it does not handle: errors and rare forms. The Python form handles that input, so both have the same
results.

The environment variable ROCKETPY_NATIVE decides: without it, native forms run if the package is installed and
fits; with 0, Python forms run; with 1, the import fails if native forms cannot run.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar, cast

__all__ = ["FORMS", "Forms", "has_native_form", "native_form"]

_INTERFACE: Final = 1
"""The constant INTERFACE of the package that fits. It changes with names, parameters and results there."""

F = TypeVar("F", bound=Callable[..., Any])


class Forms(NamedTuple):
    """Both forms of a function."""

    python: Callable[..., Any]
    native: Callable[..., Any] | None
    """None if Python forms run. It returns None for input that it leaves to the Python form."""


FORMS: Final[dict[str, Forms]] = {}
"""The functions that have a native form, by name. Only those of imported modules are here."""


def _load(wanted: str) -> tuple[ModuleType | None, str]:
    """Return the native package, if it is used, and what `native_form` says. wanted: of the environment."""
    if wanted not in {"", "0", "1"}:
        raise ImportError(
            f"ROCKETPY_NATIVE={wanted!r}; set it to 0 (Python forms) or 1 (native), or unset it"
        )
    if wanted == "0":
        return None, "pure Python: ROCKETPY_NATIVE=0"
    package, reason = _find()
    if package is None and wanted == "1":
        raise ImportError(
            f"ROCKETPY_NATIVE=1 requires native forms, but {reason}; unset the variable to use Python forms"
        )
    return package, f"pure Python: {reason}" if package is None else "native"


def _find() -> tuple[ModuleType | None, str]:
    """Return the native package, or None and why it cannot be used."""
    try:
        import rocketpy_native  # noqa: PLC0415 - an optional package
    except ImportError as error:
        is_missing = error.name == "rocketpy_native"
        return None, "rocketpy-mq-native is " + (
            "not installed" if is_missing else f"installed but cannot be imported ({error})"
        )
    if rocketpy_native.INTERFACE != _INTERFACE:
        return None, (
            f"rocketpy-mq-native has interface {rocketpy_native.INTERFACE} and this rocketpy-mq needs "
            f"{_INTERFACE}; install both in the same version"
        )
    return rocketpy_native, ""


_native, _form = _load(os.environ.get("ROCKETPY_NATIVE", ""))


_lacking: Final[list[str]] = []
"""Names of functions that the native package lacks, because it was built from other sources."""


def _missing(name: str) -> None:
    """Note a function that runs in its Python form. Raises ImportError if native forms are required."""
    _lacking.append(name)
    if os.environ.get("ROCKETPY_NATIVE") == "1":
        raise ImportError(f"ROCKETPY_NATIVE=1 requires native forms, but {native_form()}")


def native_form() -> str:
    """Return which forms run: "native", or "pure Python: " and the reason."""
    if _lacking:
        return (
            f"partly native: rocketpy-mq-native lacks {', '.join(_lacking)}; "
            "install it in the version of rocketpy-mq"
        )
    return _form


def has_native_form(function: F) -> F:
    """Mark a function that may have a native form, and return the form to call.

    The native form has the same name in `rocketpy_native`, and takes the same positional arguments.
    """
    name = function.__name__
    native = None if _native is None else getattr(_native, name, None)
    if _native is not None and native is None:
        _missing(name)
    if name in FORMS:
        raise ValueError(f"two functions named {name} have native forms")
    FORMS[name] = Forms(function, native)
    if native is None:
        return function

    @functools.wraps(function)
    def either(*arguments: Any) -> Any:
        result = native(*arguments)
        return function(*arguments) if result is None else result

    return cast("F", either)
