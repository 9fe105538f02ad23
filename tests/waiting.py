"""Waiting for conditions, with one limit for all tests."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any, Final

LIMIT_S: Final = 60
"""Seconds after which a waiting test fails: enough for a machine that pauses for seconds."""


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true. Raises TimeoutError after `LIMIT_S`."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - conditions have no event
            await asyncio.sleep(0.01)


async def until_collected(ref: weakref.ref[Any]) -> None:
    """Wait until an object is gone. Callbacks in the next event loop iterations may still refer to it."""

    def is_gone() -> bool:
        gc.collect()
        return ref() is None

    await until(is_gone)
