"""What exports and imports share: a progress bar, and a state that is saved while they run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rocketpy.runtime.tasks import joined

_SAVE_EVERY_S: Final = 1.0

OnProgress = Callable[[int], None]
"""Called with the number of messages since the last call."""


@contextlib.contextmanager
def progress_bar(total: int, done: int, *, hidden: bool) -> Iterator[OnProgress]:
    """Show on a terminal how many messages are done.

    Args:
        total: All messages.
        done: Those of earlier runs.
        hidden: Whether to show nothing.
    """
    if hidden or not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (
        SpinnerColumn(),
        MofNCompleteColumn(),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda count: bar.update(task, advance=count)


@contextlib.asynccontextmanager
async def saved_regularly(save: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Call `save` every second, and at the end. An error of it ends the block."""
    owner = asyncio.current_task()

    async def repeat() -> None:
        while True:
            await asyncio.sleep(_SAVE_EVERY_S)
            await save()

    def stop(ended: asyncio.Task[None]) -> None:
        if owner is not None and not ended.cancelled():
            owner.cancel()

    task = joined(repeat(), "save state")
    task.add_done_callback(stop)
    try:
        yield
    finally:
        task.remove_done_callback(stop)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task  # raises what a save raised
        await save()


async def run_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines together. The first error cancels the others, and is raised once they have ended."""
    tasks = [joined(work, "queue") for work in works]
    try:
        for ended in asyncio.as_completed(tasks):
            await ended
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
