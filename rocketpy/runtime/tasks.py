"""Owns the background work of a component: its tasks, and its callbacks in the event loop.

A component (a client, a group member, a store, a broker) has one `Tasks`. Whatever leaves a task or callback
as an exception is unexpected there, and fails the component. A loop that expects errors handles them itself,
and work for one request or peer ends with it, so only bugs get this far. Nothing outside of this module calls
`create_task` or `ensure_future`.

How others do it: `asyncio.TaskGroup`, trio and anyio tie tasks to a block of code, cancel the siblings of a
task that failed, and raise at the end of the block. The components here live between `start()` and `close()`,
so there is no block to raise from. Siblings go on: a client whose heartbeat failed still delivers what it
accepted.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple

from rocketpy.errors import RocketError, TaskFailed

log = logging.getLogger("rocketpy.tasks")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

OnFailure = Callable[[RocketError], object]
"""Called in the event loop with the first failure of a component."""
Step = Callable[[], Awaitable[object] | None]
"""A part of a close."""


class Tasks:
    """The tasks and callbacks of one component.

    component: its name, for logs and errors. A failure is logged at ERROR with its traceback. The first one
    is kept in `failure`, which `health()` of the component shows, and passed to `on_failure`. A part of a
    component passes it on that way (`Tasks.fail_with`).
    """

    def __init__(self, component: str, on_failure: OnFailure | None = None) -> None:
        self.component: Final = component
        self.failure: RocketError | None = None
        self.on_failure: list[OnFailure] = [] if on_failure is None else [on_failure]
        self._failed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run `work` until it ends or is cancelled. An exception that leaves it fails the component.

        It sees no context variables of its caller: a consumer's pulls and handlers are not part of the
        request, or of the span, in which the consumer was started.
        """
        task = asyncio.get_running_loop().create_task(work, name=name, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def run(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call a callback of the event loop; an exception fails the component: ``call_soon(tasks.run, f)``.

        The event loop itself would only log it, and a timer that sets itself again would have stopped.
        """
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001 - `fail` shows it
            self.fail(getattr(callback, "__qualname__", repr(callback)), error)

    def fail(self, name: str, error: BaseException) -> None:
        """Fail the component because of an unexpected exception in the part with this name."""
        failure = TaskFailed(f"background task {name} of {self.component} failed: {error!r}")
        failure.__cause__ = error
        log.error("%s", failure, exc_info=error)
        self.fail_with(failure)

    def fail_with(self, failure: RocketError) -> None:
        """Fail the component because a part of it failed, which has logged that."""
        if self.failure is not None:
            return
        self.failure = failure
        self._failed.set()
        for tell in self.on_failure.copy():
            tell(failure)

    async def cancel(self, *tasks: asyncio.Task[Any] | None) -> None:
        """Cancel tasks and wait until they have ended. Raises nothing of theirs; None stands for no task."""
        running = {task for task in tasks if task is not None and not task.done()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def wait_failed(self) -> RocketError:
        """Wait until the component fails; return its first failure."""
        while self.failure is None:
            await self._failed.wait()
        return self.failure

    async def wait(self) -> None:
        """Wait until all tasks have ended by themselves. Raises nothing of theirs."""
        while running := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(running)
            self._tasks -= running

    async def close(self) -> None:
        """Cancel what runs and wait until it has ended. Raises nothing of theirs."""
        while running := self._tasks - {asyncio.current_task()}:
            await self.cancel(*running)
            self._tasks -= running

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error: BaseException | None
        try:
            error = task.exception()
        except asyncio.CancelledError as cancelled:
            error = None if is_cancelled(task) else cancelled
        if error is not None:
            self.fail(task.get_name(), error)


def joined(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """A task whose caller waits for it and takes what it returns or raises. It is in the caller's context."""
    return asyncio.get_running_loop().create_task(work, name=name)


def is_cancelled(task: asyncio.Task[Any] | None) -> bool:
    """Whether somebody requested that this task ends.

    Where it has a CancelledError without that, it waited for something else that was cancelled.
    """
    return task is not None and task.cancelling() > 0


class Closable(Protocol):
    """Something with a `close`, plain or to be awaited."""

    @property
    def close(self) -> Step:
        """Close it."""


async def close_all(*steps: Closable | Step | None) -> None:
    """Do each step of a close, in order, whatever the ones before it raise.

    A step is a function or something to close; None is skipped. Raises at the end what came first; the others
    are logged.
    """
    first: BaseException | None = None
    for step in steps:
        if step is None:
            continue
        try:
            waited = step() if callable(step) else step.close()
            if waited is not None:
                await waited
        except BaseException as error:
            if first is None:
                first = error
            else:
                log.error("another step of a close failed", exc_info=error)
    if first is not None:
        raise first
