"""Language codes: in a JSON header a name, in the other codecs a number.

Source: LanguageCode of RocketMQ 4.6.0, and what later versions added.
"""

from __future__ import annotations

__all__ = ["language_name", "language_number"]

_NAMES = ("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST")
_NUMBERS = {name: number for number, name in enumerate(_NAMES)}
_OTHER = _NUMBERS["OTHER"]


def language_name(number: int) -> str:
    """Return the name of a language number; one that this version does not know is OTHER."""
    return _NAMES[number] if 0 <= number < len(_NAMES) else "OTHER"


def language_number(name: str) -> int:
    """Return the number of a language name; one that this version does not know is OTHER's."""
    return _NUMBERS.get(name, _OTHER)
