"""Shared parts of exports and imports: they save their state regularly, and work on queues concurrently."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final

from rocketpy.runtime.tasks import subtask

_SAVE_EVERY_S: Final = 1.0


@contextlib.asynccontextmanager
async def saved_regularly(save: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Call `save` every second while the block runs, and at its end.

    If `save` raises, the block is cancelled and the error is raised.
    """
    owner = asyncio.current_task()

    ending = asyncio.Event()

    async def repeat() -> None:
        is_last = False
        while not is_last:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SAVE_EVERY_S):
                    await ending.wait()
            is_last = ending.is_set()
            await save()

    def stop(ended: asyncio.Task[None]) -> None:
        if owner is not None and not ended.cancelled():
            owner.cancel()

    task = subtask(repeat(), "save state")
    task.add_done_callback(stop)
    try:
        yield
    finally:
        task.remove_done_callback(stop)
        ending.set()  # not cancelled: a save in a thread would go on beside the last one
        await task  # raises what a save raised


async def run_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently. The first error cancels the others, and is raised when they have ended."""
    tasks = [subtask(work, "queue") for work in works]
    try:
        for ended in asyncio.as_completed(tasks):
            await ended
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
