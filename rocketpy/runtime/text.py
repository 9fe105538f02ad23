"""Texts for people: escapes the control characters that another program chose, and suggests similar names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, line and paragraph separators, and marks that change the direction of text."""

_NEAR_MAX: Final = 3
_SIMILARITY_MIN: Final = 0.6
_BLOCKED_S: Final = 0.1
"""A timer that is later than this by far exceeds the usual delays of an event loop."""


def printable(text: str) -> str:
    r"""Return the text with an escape of Python, such as ``\n``, in place of each control character."""
    return _UNSAFE.sub(_escape, text)


def escape_json(text: str) -> str:
    """Return JSON text with those control characters escaped that JSON itself allows in strings."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def blocked_text(late_s: float) -> str:
    """Return the end of an error about a timeout whose timer was this late; empty if it was in time.

    Code that blocks the event loop, such as a long computation or a blocking call in a coroutine, keeps
    responses from being read. So does a machine that does not run the process.
    """
    if late_s <= _BLOCKED_S:
        return ""
    return f"; the event loop was blocked for at least {late_s:.1f} s, by other code or an overloaded machine"


def did_you_mean(
    name: str, known: Iterable[str], *, most: int = _NEAR_MAX, similarity: float = _SIMILARITY_MIN
) -> str:
    """Return the end of an error about an unknown name, such as ``; did you mean Orders?``; empty if no known
    name is similar.

    most: how many names are suggested at most. similarity: the lowest one of a suggested name, from 0 to 1.
    """
    by_lower: dict[str, list[str]] = {}
    for one in known:
        by_lower.setdefault(one.lower(), []).append(one)
    found = get_close_matches(name.lower(), by_lower, n=most, cutoff=similarity)
    near = [one for lower in found for one in by_lower[lower]]
    return f"; did you mean {' or '.join(map(printable, near[:most]))}?" if near else ""


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
