"""Remembers what texts of subscriptions were compiled to, and which are refused.

A pull carries its filter as a text, and a push consumer's is looked at for each pull, so the same few texts
come again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from rocketpy_broker.filter.tokens import ExpressionInvalid

T = TypeVar("T")

CHARACTERS_REMEMBERED_MAX: Final = 1 << 20
"""Of all texts of one kind together. What a text becomes takes up to 50 bytes a character."""

_ENTRY_CHARACTERS: Final = 200
"""What an entry counts besides its text, so that many short ones are bounded too."""


class CompileCache(Generic[T]):
    """Compiles texts by `compile_text`, each once; the oldest are forgotten first.

    A refusal is remembered like a result: asking again for what cannot be compiled costs nothing either.
    characters_max: of one text. May be used by several threads: each broker in a process has its own.
    """

    def __init__(self, compile_text: Callable[[str], T], characters_max: int) -> None:
        self._compile = compile_text
        self._characters_max = characters_max
        self._found: dict[str, T | ExpressionInvalid] = {}
        self._characters = 0
        self._lock = threading.Lock()

    def __call__(self, text: str) -> T:
        """Return what a text compiles to. Raises ExpressionInvalid."""
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
            self._remember(text, found)
        if isinstance(found, ExpressionInvalid):
            raise ExpressionInvalid(*found.args)
        return found

    def _remember(self, text: str, found: T | ExpressionInvalid) -> None:
        with self._lock:
            if text not in self._found:
                self._characters += len(text) + _ENTRY_CHARACTERS
            self._found[text] = found
            while self._characters > CHARACTERS_REMEMBERED_MAX:
                oldest = next(iter(self._found))
                del self._found[oldest]
                self._characters -= len(oldest) + _ENTRY_CHARACTERS
