"""What tests wait for, and how long at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LIMIT_S: Final = 60
"""Ends a test that would hang; nothing else takes as long, even where a machine stands still for seconds."""


async def until(condition: Callable[[], object]) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event of its own
            await asyncio.sleep(0.01)
