"""RateLimitedLog: limits how often repeated errors are logged. `abbreviate` shortens lists in log lines.

A peer or a failing disk can cause the same error thousands of times a second. Its lines would hide all
others, and fill the disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

_KEYS_MAX: Final = 256
_LINES_MAX: Final = 64
"""Lines of all keys in one interval. Peers choose parts of keys, such as names of groups."""
_VALUE_CHARACTERS_MAX: Final = 2000
"""Longer texts in a line are cut; a client id may have 16 MB."""
_KEY_CHARACTERS_MAX: Final = 200
"""Longer keys are cut, because they may contain text from a peer."""
_SHOWN_MAX: Final = 3


def abbreviate(items: Sequence[object]) -> str:
    """Return the first few items and the number of the others, for a log line."""
    shown = ", ".join(str(item)[:_KEY_CHARACTERS_MAX] for item in items[:_SHOWN_MAX])
    return f"{shown} and {len(items) - _SHOWN_MAX} more" if len(items) > _SHOWN_MAX else shown


class RateLimitedLog:
    """Logs at most one line for a key in `interval_s` seconds; the next line counts the suppressed ones.

    All keys together get at most 64 lines in an interval. At most 256 keys are kept; the one logged longest
    ago is dropped first. Keys are compared by their first 200 characters. Any thread may log.
    """

    __slots__ = ("_dropped", "_interval_s", "_lines", "_lock", "_log", "_seen", "_since")

    def __init__(self, log: logging.Logger, interval_s: float = 10.0) -> None:
        self._log = log
        self._interval_s = interval_s
        self._seen: dict[str, tuple[float, int]] = {}
        self._since = 0.0
        """When the current interval of the limit for all keys began."""
        self._lines = 0
        self._dropped = 0
        """Lines in the current interval, and those that the limit for all keys suppressed."""
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
            if self._dropped:
                left.append(("other suppressed lines", self._dropped))
            self._seen.clear()
            self._lines = self._dropped = 0
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
            dropped = self._next_interval(now)
            if self._lines >= _LINES_MAX:
                self._dropped += 1
                return
            self._lines += 1
            self._seen.pop(key, None)
            if len(self._seen) >= _KEYS_MAX:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = (now, 0)
        if dropped:
            self._log.warning("%d lines were suppressed: more than %d in a short time", dropped, _LINES_MAX)
        values = tuple(value[:_VALUE_CHARACTERS_MAX] if isinstance(value, str) else value for value in values)
        if skipped:
            text, values = f"{text} (and %d more like it)", (*values, skipped)
        self._log.log(level, text, *values, exc_info=exc_info)

    def _next_interval(self, now: float) -> int:
        """Begin an interval of the limit for all keys if the last one has ended; return its dropped lines."""
        if now - self._since < self._interval_s and self._lines:
            return 0
        dropped, self._dropped, self._lines, self._since = self._dropped, 0, 0, now
        return dropped
