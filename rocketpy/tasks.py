"""The background work of a client: owned in one place, ended in one place, and never stopped in silence."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine
from typing import Any

__all__ = ["Tasks"]

log = logging.getLogger("rocketpy.client")


class Tasks:
    """The tasks of one owner.

    failure: what ended a task that should not have ended; the owner shows it in its `health` and to callers.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failure: BaseException | None = None

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` until it ends or `close` ends it.

        It sees no context variables of whoever began it: a consumer's pulls and handlers are not part of the
        request, or of the span, in which the consumer was started.
        """
        task = asyncio.get_running_loop().create_task(work, name=name, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel what runs and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failure = error
            log.error("background work %s failed", task.get_name(), exc_info=error)
