"""Chooses between the Python form and the native form of a function.

The optional distribution rocketpy-mq-native (import name `rocketpy_native`, source in native/) has faster
forms of some pure functions. `has_native_form` marks these functions. A native form returns None for input
that it does not handle: errors and rare forms. The Python form handles that input, so both have the same
results.

`ROCKETPY_NATIVE=0` in the environment turns native forms off.
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


def _load() -> tuple[ModuleType | None, str]:
    """Return the native package, if it is used, and what `native_form` says."""
    if os.environ.get("ROCKETPY_NATIVE") == "0":
        return None, "Python (ROCKETPY_NATIVE=0)"
    try:
        import rocketpy_native  # noqa: PLC0415 - an optional package
    except ImportError as error:
        if error.name == "rocketpy_native":
            return None, "Python (rocketpy-mq-native is not installed)"
        return None, f"Python (rocketpy-mq-native cannot be imported: {error})"
    if rocketpy_native.INTERFACE != _INTERFACE:
        return None, (
            f"Python (rocketpy-mq-native has interface {rocketpy_native.INTERFACE}, this rocketpy-mq needs "
            f"{_INTERFACE}; install both in the same version)"
        )
    return rocketpy_native, "native"


_native, _form = _load()


def native_form() -> str:
    """Return which forms run: "native", or "Python" and the reason in parentheses."""
    return _form


def has_native_form(function: F) -> F:
    """Mark a function that may have a native form, and return the form to call.

    The native form has the same name in `rocketpy_native`, and takes the same positional arguments.
    """
    name = function.__name__
    native = None if _native is None else getattr(_native, name)
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
