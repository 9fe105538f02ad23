"""Caches compiled subscriptions, and errors of invalid ones.

Each pull needs its filter, a text in the request or in the last heartbeat. Without a cache, the same few
texts would be compiled again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from rocketpy_broker.filter.tokens import ExpressionInvalid

T = TypeVar("T")

CACHED_CHARACTERS_MAX: Final = 1 << 20
"""Maximum characters of all texts of one kind. A compiled text takes up to 50 bytes for each character."""

_ENTRY_CHARACTERS: Final = 200
"""Added to the length of each text, so that the number of short texts is limited, too."""


class CompileCache(Generic[T]):
    """Compiles each text once with `compile_text`; the oldest entries are evicted first.

    An error is cached like a result. characters_max: limit of one text. Thread-safe, because
    event loops in several threads may each run a broker.
    """

    def __init__(self, compile_text: Callable[[str], T], characters_max: int) -> None:
        self._compile = compile_text
        self._characters_max = characters_max
        self._found: dict[str, T | ExpressionInvalid] = {}
        self._characters = 0
        self._lock = threading.Lock()

    def __contains__(self, text: str) -> bool:
        """Whether a text is compiled, or known to be invalid."""
        return text in self._found or len(text) > self._characters_max

    def __call__(self, text: str) -> T:
        """Return the compiled text. Raises ExpressionInvalid."""
        if len(text) > self._characters_max:
            raise ExpressionInvalid(
                f"expression of {len(text)} characters, the limit is {self._characters_max}"
            )
        found = self._found.get(text)
        if found is None:
            try:
                found = self._compile(text)
            except ExpressionInvalid as error:
                found = error.with_traceback(None)
            self._add(text, found)
        if isinstance(found, ExpressionInvalid):
            raise ExpressionInvalid(*found.args)
        return found

    def _add(self, text: str, found: T | ExpressionInvalid) -> None:
        with self._lock:
            if text not in self._found:
                self._characters += len(text) + _ENTRY_CHARACTERS
            self._found[text] = found
            while self._characters > CACHED_CHARACTERS_MAX:
                oldest = next(iter(self._found))
                del self._found[oldest]
                self._characters -= len(oldest) + _ENTRY_CHARACTERS
