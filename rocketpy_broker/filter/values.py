"""Comparison of values in SQL92 expressions.

A property is a text. For a comparison with a number it is parsed as a number of the same type, as in Java. So
with `a > 5`, the text `5.5` is not comparable, and the message does not pass. Texts are compared for
equality; for `<` and similar operators both are parsed as numbers.

Source: ComparisonExpression of RocketMQ 4.6.0.
"""

from __future__ import annotations

import math
import re
from typing import Final

from rocketpy.protocol.java import trim

Value = str | bool | int | float | None
"""Value of a part of an expression for one message; None is SQL's NULL."""

_INTEGER: Final = re.compile(r"[+-]?\d+")
_FLOAT: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[fFdD]?)", re.ASCII
)
_INT32: Final = (-(2**31), 2**31 - 1)
_INT64: Final = (-(2**63), 2**63 - 1)
_DIGITS_MAX: Final = 40
_FLOAT_CHARACTERS_MAX: Final = 1100
"""The exact decimal notation of any double is shorter. A comparison must not parse 32 KiB of digits."""


class NotComparable(Exception):
    """Two values are not comparable; the message does not pass."""


def is_equal(left: Value, right: Value) -> bool | None:
    """Evaluate ``=`` as 4.6.0 does: NULL on the left gives NULL, on the right False, on both sides True."""
    if left is None or right is None:
        return True if left is right else (None if left is None else False)
    if type(left) is type(right) and left == right:
        return True
    return compare(left, right) == 0


def compare_ordered(left: Value, right: Value) -> int | None:
    """Compare two values for ``<``, ``>`` and similar; see `compare`. None for NULL. Raises NotComparable."""
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return _compare_floats(_float(left), _float(right))
    return compare(left, right)


def compare(left: str | bool | float, right: str | bool | float) -> int:
    """Return a negative number, 0 or a positive number, as Java's compareTo. Raises NotComparable."""
    if isinstance(left, bool) or isinstance(right, bool):
        return _compare_booleans(left, right)
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        return _compare_numbers(_parse_like(right, left), right)
    if isinstance(right, str):
        return _compare_numbers(left, _parse_like(left, right))
    return _compare_numbers(left, right)


def _compare_booleans(left: str | bool | float, right: str | bool | float) -> int:
    if isinstance(left, str):
        left = len(left) == 4 and left.lower() == "true"
    elif isinstance(left, bool) and isinstance(right, str):
        raise NotComparable(f"{left} and the text {right!r}")  # as in 4.6.0; the opposite order is valid
    if isinstance(left, bool) and isinstance(right, bool):
        return left - right
    return -1


def _compare_numbers(left: float, right: float) -> int:
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    return _compare_floats(float(left), float(right))


def _compare_floats(left: float, right: float) -> int:
    """Compare as Java's Double.compareTo: NaN is the largest and equal to itself, -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right)


def _rank(value: float) -> int:
    if math.isnan(value):
        return 2
    return 0 if math.copysign(1, value) < 0 and value == 0 else 1


def _parse_like(number: float, text: str) -> float:
    """Parse a text as the type of the number that it is compared with."""
    if isinstance(number, float):
        return _float(text)
    low, high = _INT32 if _INT32[0] <= number <= _INT32[1] else _INT64
    if len(text) <= _DIGITS_MAX and _INTEGER.fullmatch(text):
        value = int(text)
        if low <= value <= high:
            return value
    raise NotComparable(f"{text[:50]!r} is not a whole number from {low} to {high}")


def _float(text: str) -> float:
    if len(text) > _FLOAT_CHARACTERS_MAX:
        raise NotComparable(f"a text of {len(text)} characters is not a number")
    text = trim(text)
    if not _FLOAT.fullmatch(text):
        raise NotComparable(f"{text[:50]!r} is not a number")
    return float(text.rstrip("fFdD") if text[-1] in "fFdD" else text)
