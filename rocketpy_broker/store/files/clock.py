"""What time it is, for those who must be told."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Milliseconds since 1970. It may jump; nothing but timestamps and file names depends on it."""


def system_clock() -> int:
    """The machine's clock in ms since 1970."""
    return time.time_ns() // 1_000_000
