"""Errors that repeat themselves: the first is logged, then at most one line of a kind in a while."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

_KINDS_MAX: Final = 256
_KEY_CHARACTERS_MAX: Final = 200
"""Of a key, which may have a peer's text in it."""


class RateLimitedLog:
    """Logs at most one line a key in `interval_s`; the next one says how many were left out.

    Bounded: of more than 256 keys the oldest is forgotten. Keys with the same first 200 characters are one.
    """

    __slots__ = ("_interval_s", "_log", "_seen")

    def __init__(self, log: logging.Logger, interval_s: float = 10.0) -> None:
        self._log = log
        self._interval_s = interval_s
        self._seen: dict[str, tuple[float, int]] = {}

    def warning(self, key: str, text: str, *values: Any) -> None:
        """Log a warning unless one of that key was logged just now."""
        self._write(logging.WARNING, key, text, values)

    def info(self, key: str, text: str, *values: Any) -> None:
        """The same for information."""
        self._write(logging.INFO, key, text, values)

    def error(self, key: str, text: str, *values: Any) -> None:
        """The same for an error."""
        self._write(logging.ERROR, key, text, values)

    def exception(self, key: str, text: str, *values: Any) -> None:
        """The same for the exception that is being handled, with its traceback."""
        self._write(logging.ERROR, key, text, values, exc_info=True)

    def _write(
        self,
        level: int,
        key: str,
        text: str,
        values: tuple[Any, ...],
        *,
        exc_info: bool = False,
    ) -> None:
        now = time.monotonic()
        key = key[:_KEY_CHARACTERS_MAX]
        since, skipped = self._seen.get(key, (None, 0))
        if since is not None and now - since < self._interval_s:
            self._seen[key] = (since, skipped + 1)
            return
        self._seen.pop(key, None)
        if len(self._seen) >= _KINDS_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = (now, 0)
        if skipped:
            text, values = f"{text} (and %d more of the kind)", (*values, skipped)
        self._log.log(level, text, *values, exc_info=exc_info)
