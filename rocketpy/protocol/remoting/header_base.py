"""What the three header codecs have in common: the parts of a header, in one order.

A plain tuple, since every command of every connection passes through here:
code, opaque, flag, language (by name), version, remark or None, ext fields. The ext fields are a map of
texts, or, from the JSON codec, still the JSON text of one; None when there are none.
"""

from __future__ import annotations

from typing import TypeAlias

from rocketpy.protocol.codes import LanguageCode

WireHeader: TypeAlias = tuple[int, int, int, str, int, str | None, bytes | dict[str, str] | None]
WrittenHeader: TypeAlias = tuple[int, int, int, str, int, str | None, dict[str, str] | None]

MAX_EXT_FIELDS = 256
"""More than this in one header is refused; RocketMQ's own have at most 14."""

_NAMES = {member.value: member.name for member in LanguageCode}
_NUMBERS = {name: number for number, name in _NAMES.items()}


def language_name(number: int) -> str:
    """Return the name of a language number; one that this version does not know is OTHER."""
    return _NAMES.get(number, LanguageCode.OTHER.name)


def language_number(name: str) -> int:
    """Return the number of a language name; one that this version does not know is OTHER's."""
    return _NUMBERS.get(name, LanguageCode.OTHER.value)
