"""Measures the longest single callback of an event loop, in processor time: other processes do not matter."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

TURNS: Final = "longest-turn.txt"


class LongestTurn:
    """Measures every callback of this process's event loops from now on. ms, what: of the longest."""

    def __init__(self) -> None:
        self.ms, self.what = 0.0, ""
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            begun = time.thread_time()
            run(handle)
            ms = (time.thread_time() - begun) * 1000
            if ms > self.ms:
                self.ms, self.what = ms, repr(handle)[:300]

        # The loop's own debug mode measures wall time.
        asyncio.Handle._run = timed  # type: ignore[method-assign,assignment] # typeshed gives it another self

    def write(self, file: Path) -> None:
        """Write it down."""
        file.write_text(f"{self.ms:.1f} {self.what}", encoding="utf-8")
