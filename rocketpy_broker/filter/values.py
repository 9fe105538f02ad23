"""How values of an SQL92 expression compare.

A property is a text. Compared with a number it is read as one of the same kind, as Java does it: as a whole
number beside a whole number, so `5.5` beside `a > 5` compares with nothing and lets no message through.
Two texts are equal or not; for `<` and its like both are read as numbers.
Source: ComparisonExpression of RocketMQ 4.6.0.
"""

from __future__ import annotations

import math
import re
from typing import Final

Value = str | bool | int | float | None
"""What a part of an expression is for one message; None is SQL's NULL."""

_INTEGER: Final = re.compile(r"[+-]?\d+")
_FLOAT: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[fFdD]?)", re.ASCII
)
_SPACE: Final = "".join(map(chr, range(33)))
_INT32: Final = (-(2**31), 2**31 - 1)
_INT64: Final = (-(2**63), 2**63 - 1)
_DIGITS_MAX: Final = 40
_FLOAT_CHARACTERS_MAX: Final = 1100
"""The exact decimal notation of any double is shorter. One comparison must not read 32 KiB of digits."""


class NotComparable(Exception):
    """Two values that do not compare; a message that they come from does not match."""


def is_equal(left: Value, right: Value) -> bool | None:
    """SQL's ``=``, as 4.6.0 has it: NULL on the left is NULL, on the right False, on both True."""
    if left is None or right is None:
        return True if left is right else (None if left is None else False)
    if type(left) is type(right) and left == right:
        return True
    return compare(left, right) == 0


def compare_ordered(left: Value, right: Value) -> int | None:
    """Return a number below, at or above 0 for ``<``, ``>`` and their like; None beside NULL.

    Raises NotComparable.
    """
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return _compare_floats(_float(left), _float(right))
    return compare(left, right)


def compare(left: str | bool | float, right: str | bool | float) -> int:
    """Return a number below, at or above 0. Raises NotComparable."""
    if isinstance(left, bool) or isinstance(right, bool):
        return _compare_booleans(left, right)
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        return _compare_numbers(_like(right, left), right)
    if isinstance(right, str):
        return _compare_numbers(left, _like(left, right))
    return _compare_numbers(left, right)


def _compare_booleans(left: str | bool | float, right: str | bool | float) -> int:
    if isinstance(left, str):
        left = len(left) == 4 and left.lower() == "true"
    elif isinstance(left, bool) and isinstance(right, str):
        raise NotComparable(f"{left} and the text {right!r}")  # as in 4.6.0, the other way round is fine
    if isinstance(left, bool) and isinstance(right, bool):
        return left - right
    return -1


def _compare_numbers(left: float, right: float) -> int:
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    return _compare_floats(float(left), float(right))


def _compare_floats(left: float, right: float) -> int:
    """As Java's Double.compareTo: NaN is above all and equal to itself, -0.0 below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right)


def _rank(value: float) -> int:
    if math.isnan(value):
        return 2
    return 0 if math.copysign(1, value) < 0 and value == 0 else 1


def _like(number: float, text: str) -> float:
    """Read a text as the kind of number that it is compared with."""
    if isinstance(number, float):
        return _float(text)
    low, high = _INT32 if _INT32[0] <= number <= _INT32[1] else _INT64
    if len(text) <= _DIGITS_MAX and _INTEGER.fullmatch(text):
        value = int(text)
        if low <= value <= high:
            return value
    raise NotComparable(f"{text[:50]!r} is no whole number from {low} to {high}")


def _float(text: str) -> float:
    if len(text) > _FLOAT_CHARACTERS_MAX:
        raise NotComparable(f"a text of {len(text)} characters is no number")
    text = text.strip(_SPACE)
    if not _FLOAT.fullmatch(text):
        raise NotComparable(f"{text[:50]!r} is no number")
    return float(text.rstrip("fFdD") if text[-1] in "fFdD" else text)
