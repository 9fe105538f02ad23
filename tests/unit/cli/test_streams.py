"""Standard output of the command rocketpy: whole, in order, and without blocking the event loop."""

from __future__ import annotations

import asyncio
import os

from rocketpy.cli.streams import Output
from tests.waiting import LIMIT_S


async def test_what_a_cancelled_task_gave_is_written() -> None:
    """`consume --count` would print less than it counted, when several queues end at the same time."""
    end, pipe = os.pipe()
    output = Output(pipe)
    large = b"x" * (1 << 20)  # more than a pipe holds, so the thread waits
    try:
        tasks = [asyncio.ensure_future(output.write(data)) for data in (large, b"second", b"third")]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        flushed = asyncio.ensure_future(output.write(b""))
        async with asyncio.timeout(LIMIT_S):
            found = b""
            while not found.endswith(b"third"):
                found += await asyncio.to_thread(os.read, end, 1 << 16)
            await flushed
    finally:
        os.close(pipe)
        os.close(end)
    assert found == large + b"secondthird"
