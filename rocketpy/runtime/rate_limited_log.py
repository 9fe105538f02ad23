"""RateLimitedLog: limits how often repeated errors are logged. `abbreviate` shortens lists in log lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

_KEYS_MAX: Final = 256
_KEY_CHARACTERS_MAX: Final = 200
"""Longer keys are cut, because they may contain text from a peer."""
_SHOWN_MAX: Final = 3


def abbreviate(items: Sequence[object]) -> str:
    """Return the first few items and the number of the others, for a log line."""
    shown = ", ".join(str(item)[:_KEY_CHARACTERS_MAX] for item in items[:_SHOWN_MAX])
    return f"{shown} and {len(items) - _SHOWN_MAX} more" if len(items) > _SHOWN_MAX else shown


class RateLimitedLog:
    """Logs at most one line for a key in `interval_s` seconds; the next line counts the suppressed ones.

    At most 256 keys are kept; the one logged longest ago is dropped first. Keys are compared by their first
    200 characters.
    """

    __slots__ = ("_interval_s", "_log", "_seen")

    def __init__(self, log: logging.Logger, interval_s: float = 10.0) -> None:
        self._log = log
        self._interval_s = interval_s
        self._seen: dict[str, tuple[float, int]] = {}

    def warning(self, key: str, text: str, *values: Any) -> None:
        """Log a warning, unless one with this key was logged recently."""
        self._write(logging.WARNING, key, text, values)

    def info(self, key: str, text: str, *values: Any) -> None:
        """Log at INFO, with the same limit."""
        self._write(logging.INFO, key, text, values)

    def error(self, key: str, text: str, *values: Any) -> None:
        """Log an error, with the same limit."""
        self._write(logging.ERROR, key, text, values)

    def exception(self, key: str, text: str, *values: Any) -> None:
        """Log the current exception with its traceback, with the same limit."""
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
        if len(self._seen) >= _KEYS_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = (now, 0)
        if skipped:
            text, values = f"{text} (and %d more like it)", (*values, skipped)
        self._log.log(level, text, *values, exc_info=exc_info)
