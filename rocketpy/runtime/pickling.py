"""Loads pickles of earlier versions, whose classes had fewer fields."""

from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any


def set_fields(value: Any, state: Iterable[object]) -> None:
    """Set the fields of a frozen dataclass with slots from its pickled state; use it as `__setstate__`.

    The state is a list in the order of the fields, so new fields come last and have defaults.
    """
    given = iter(state)
    for field in fields(value):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        object.__setattr__(value, field.name, next(given, default))
