"""RateLimitedLog: limits how often repeated errors are logged. `abbreviate` shortens lists in log lines."""

from __future__ import annotations

import logging
import threading
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
    200 characters. Any thread may log.
    """

    __slots__ = ("_interval_s", "_lock", "_log", "_seen")

    def __init__(self, log: logging.Logger, interval_s: float = 10.0) -> None:
        self._log = log
        self._interval_s = interval_s
        self._seen: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def warning(self, key: str, text: str, *values: Any) -> None:
        """Log a warning, unless one with this key was logged recently."""
        self._write(logging.WARNING, key, text, values)

    def info(self, key: str, text: str, *values: Any) -> None:
        """Log at INFO, with the same limit."""
        self._write(logging.INFO, key, text, values)

    def error(self, key: str, text: str, *values: Any) -> None:
        """Log an error, with the same limit."""
        self._write(logging.ERROR, key, text, values)

    def exception(self, key: str, text: str, *values: Any, error: BaseException | None = None) -> None:
        """Log an exception with its traceback, with the same limit. error: None for the current exception."""
        self._write(logging.ERROR, key, text, values, exc_info=True if error is None else error)

    def close(self) -> None:
        """Log how many lines were suppressed since the last one of each key."""
        with self._lock:
            left = [(key, skipped) for key, (_, skipped) in self._seen.items() if skipped]
            self._seen.clear()
        for key, skipped in left:
            self._log.warning("%s: %d more times", key, skipped)

    def _write(
        self,
        level: int,
        key: str,
        text: str,
        values: tuple[Any, ...],
        *,
        exc_info: bool | BaseException = False,
    ) -> None:
        now = time.monotonic()
        key = key[:_KEY_CHARACTERS_MAX]
        with self._lock:
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
