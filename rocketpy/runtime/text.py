"""Escapes control characters in texts that another program chose, for terminals and log files."""

from __future__ import annotations

import re
from typing import Final

_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, line and paragraph separators, and marks that change the direction of text."""


def printable(text: str) -> str:
    r"""Return the text with an escape of Python, such as ``\n``, in place of each control character."""
    return _UNSAFE.sub(_escape, text)


def escape_json(text: str) -> str:
    """Return JSON text with those control characters escaped that JSON itself allows in strings."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
