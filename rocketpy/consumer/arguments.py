"""Checks of what applications give to consumers' methods, where a wrong type would go far before it fails."""

from __future__ import annotations

from numbers import Integral, Real

from rocketpy.errors import UsageError


def check_integer(name: str, value: object) -> None:
    """Raise UsageError for what is no whole number."""
    if not isinstance(value, Integral):
        raise UsageError(f"{name} is {value!r}; it must be a whole number")


def check_timeout(name: str, value: object) -> None:
    """Raise UsageError for what is neither a number nor None."""
    if value is not None and not isinstance(value, Real):
        raise UsageError(f"{name} is {value!r}; it must be a number of milliseconds, or None")
