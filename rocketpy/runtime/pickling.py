"""Loads pickles of an earlier version, whose classes had fewer fields."""

from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any


def set_fields(value: Any, state: Iterable[object]) -> None:
    """Set the fields of a frozen dataclass with slots from the state in its pickle.

    Use it as `__setstate__` of a class that got fields since. New fields stand behind the others and have
    defaults, since the state is a list in the order of fields.
    """
    given = iter(state)
    for one in fields(value):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        object.__setattr__(value, one.name, next(given, default))
