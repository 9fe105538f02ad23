"""Tasks: owns the background tasks, periodic calls and event loop callbacks of a component.

A component (a client, a group member, a store, a broker) has one `Tasks`. Tasks and callbacks handle the
errors that they expect; an exception that leaves one is a bug, and fails the component. A periodic call is
repeated instead, since heartbeats, commits and clean-ups must not end with one failure (ADR 0028). No other
module calls `create_task` or `ensure_future`.

Differs from `asyncio.TaskGroup`, trio and anyio. They tie tasks to a block of code, cancel the siblings of a
failed task, and raise at the end of the block. A component lives between `start()` and `close()`, so there is
no such block. The siblings continue: a client whose heartbeat failed still delivers accepted messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple

from rocketpy.errors import InvariantError, RocketError, TaskFailed
from rocketpy.runtime.application import describe, shown
from rocketpy.runtime.rate_limited_log import RateLimitedLog

log: Final = logging.getLogger("rocketpy.tasks")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

OnFailure = Callable[[RocketError], object]
"""Called in the event loop with the first failure of a component."""
Step = Callable[[], Awaitable[object] | None]
"""One step of `close_all`."""
PeriodicFunction = Callable[[], Awaitable[float | None] | float | None]
"""A function or coroutine function for `Tasks.every`. It may return the pause before its next call, in s."""
Interval = float | Callable[[], float]
"""An interval in s, or a function that returns it, for a setting that may change while the component runs."""
_LOG_INTERVAL_S: Final = 60.0
"""A periodic call that fails again and again is logged once in this time."""


class Tasks:
    """The tasks and callbacks of one component.

    component: its name, for logs and errors. A failure is logged at ERROR with its traceback. The first one
    is stored in `failure`, for `health()` of the component, and passed to `on_failure`, for instance to
    `Tasks.fail_with` of the enclosing component.
    """

    def __init__(self, component: str, on_failure: OnFailure | None = None) -> None:
        self.component: Final = component
        self.failure: RocketError | None = None
        self.failing: Final[dict[PeriodicCall, str]] = {}
        """The periodic calls that failed last time, with a text for `health()`."""
        self.on_failure: list[OnFailure] = [] if on_failure is None else [on_failure]
        self._failed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cancelled: set[asyncio.Future[Any]] = set()
        """Tasks that this object has cancelled, until they end."""

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run `work` in a task. An exception that leaves it fails the component.

        The task has an empty context: the pulls of a consumer do not belong to the span in which it was
        started.
        """
        task = asyncio.get_running_loop().create_task(work, name=name, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended, context=contextvars.Context())
        return task

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts) -> asyncio.Handle:
        """Call a function in the next iteration of the event loop, with `run` and an empty context, as
        `spawn` does.
        """
        loop = asyncio.get_running_loop()
        return loop.call_soon(self.run, callback, *args, context=contextvars.Context())

    def call_later(
        self, delay_s: float, callback: Callable[[*Ts], object], *args: *Ts
    ) -> asyncio.TimerHandle:
        """Call a function after `delay_s`, as `call_soon` does."""
        loop = asyncio.get_running_loop()
        return loop.call_later(delay_s, self.run, callback, *args, context=contextvars.Context())

    def call_at(self, when_s: float, callback: Callable[[*Ts], object], *args: *Ts) -> asyncio.TimerHandle:
        """Call a function at a time of the event loop's clock, as `call_soon` does."""
        loop = asyncio.get_running_loop()
        return loop.call_at(when_s, self.run, callback, *args, context=contextvars.Context())

    def every(
        self, interval_s: Interval, function: PeriodicFunction, name: str, *, first_s: float | None = None
    ) -> PeriodicCall:
        """Call a function again and again, `interval_s` after the end of its last call.

        A changed interval applies after the next call.

        An exception does not end the calls: it is logged, at most once a minute, and is a problem of `health`
        until a call succeeds. Only an InvariantError fails the component. first_s: before the first call;
        None for `interval_s`.
        """
        return PeriodicCall(self, interval_s, function, name, first_s)

    def problems(self) -> list[str]:
        """Return the failure of the component, and a text for each periodic call that failed last time."""
        return [*([] if self.failure is None else [str(self.failure)]), *self.failing.values()]

    def run(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call a function now; an exception that leaves it fails the component.

        The event loop alone would only log it, and a timer that restarts itself would have stopped.
        """
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001 - `fail` reports it
            self.fail(getattr(callback, "__qualname__", repr(callback)), error)

    def fail(self, name: str, error: BaseException) -> None:
        """Fail the component because of an unexpected exception in the part with this name."""
        failure = TaskFailed(f"background task {name} of {self.component} failed: {shown(error)}")
        failure.__cause__ = error
        try:
            log.error("%s", failure, exc_info=error)
        finally:  # a log handler of the application may raise
            self.fail_with(failure)

    def fail_with(self, failure: RocketError) -> None:
        """Fail the component because an inner component failed, which has logged the failure."""
        if self.failure is not None:
            return
        self.failure = failure
        self._failed.set()
        for listener in self.on_failure.copy():
            listener(failure)

    def cancel_soon(self, *tasks: asyncio.Future[Any] | None) -> None:
        """Cancel tasks, ignoring None. A task that something else cancels fails the component."""
        for task in tasks:
            if task is not None and not task.done():
                if task in self._tasks:
                    self._cancelled.add(task)
                task.cancel()

    async def cancel(self, *tasks: asyncio.Task[Any] | None) -> None:
        """Cancel tasks, ignoring None, and wait until they have ended. Does not raise their exceptions."""
        running = {task for task in tasks if task is not None and not task.done()}
        self.cancel_soon(*running)
        if running:
            await asyncio.wait(running)

    async def wait_failed(self) -> RocketError:
        """Wait until the component fails; return its first failure."""
        while self.failure is None:
            await self._failed.wait()
        return self.failure

    async def wait(self) -> None:
        """Wait until all tasks have ended. Does not raise their exceptions."""
        while running := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(running)
            self._tasks -= running

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended. Does not raise their exceptions."""
        while running := self._tasks - {asyncio.current_task()}:
            await self.cancel(*running)
            self._tasks -= running

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        is_expected = task in self._cancelled
        self._cancelled.discard(task)
        error: BaseException | None
        try:
            error = task.exception()
        except asyncio.CancelledError as cancelled:
            error = cancelled
            if is_cancelled(task):  # else something that it awaited was cancelled
                if is_expected or self.failure is not None:
                    return
                error = asyncio.CancelledError("something outside of the component has cancelled it")
        if error is not None:
            self.fail(task.get_name(), error)


class PeriodicCall:
    """Calls a function periodically, see `Tasks.every`."""

    def __init__(
        self, tasks: Tasks, interval_s: Interval, function: PeriodicFunction, name: str, first_s: float | None
    ) -> None:
        self._tasks = tasks
        self._interval = interval_s
        self._function = function
        self._name = f"{name} of {tasks.component}"
        self._log = RateLimitedLog(log, _LOG_INTERVAL_S)
        self._failures = 0
        """Number of failed calls since the last one that succeeded."""
        self._wakes = asyncio.Event()
        self._is_stopped = False
        self.task: Final = tasks.spawn(self._run(self._interval_s if first_s is None else first_s), name)
        """Runs the calls; it may be cancelled."""

    @property
    def _interval_s(self) -> float:
        return self._interval() if callable(self._interval) else self._interval

    def wake(self) -> None:
        """Call the function in the next iteration of the event loop, or again after a call that runs now."""
        self._wakes.set()

    def stop(self) -> None:
        """End the calls. One that runs now is not cancelled."""
        self._is_stopped = True
        self._wakes.set()

    async def _run(self, pause_s: float) -> None:
        try:
            while not self._is_stopped:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wakes.wait()
                if self._is_stopped:
                    return
                self._wakes.clear()
                pause_s = await self._call()
        finally:
            self._tasks.failing.pop(self, None)

    async def _call(self) -> float:
        """Call the function, and return the pause before the next call."""
        try:
            result = self._function()
            if isinstance(result, Awaitable):
                result = await result
        except InvariantError:
            raise
        except asyncio.CancelledError as error:
            if is_cancelled(asyncio.current_task()):  # else something that it awaited was cancelled
                raise
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - `_failed` reports it
            self._failed(error)
        else:
            if self._failures:
                failures, self._failures = self._failures, 0
                del self._tasks.failing[self]
                with contextlib.suppress(Exception):  # as in `_failed`
                    log.info("%s has succeeded after %d failures", self._name, failures)
            return self._interval_s if result is None else result
        return self._interval_s

    def _failed(self, error: BaseException) -> None:
        self._failures += 1
        times = f" {self._failures} times" if self._failures > 1 else ""
        self._tasks.failing[self] = f"{self._name} has failed{times}: {describe(error)}"
        with contextlib.suppress(Exception):  # a log handler of the application may raise
            text = "%s failed, trying again in %g s: %s"
            self._log.exception("", text, self._name, self._interval_s, shown(error), error=error)


def subtask(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Create a task for a part of the caller's work. It runs in a copy of the caller's context.

    The caller awaits it, and so handles its exceptions; no component fails by them.
    """
    return asyncio.get_running_loop().create_task(work, name=name)


@types.coroutine
def run_in_context(context: contextvars.Context, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await `work` in the current task, with `context` instead of the context of the task.

    A task for each call of a handler would cost more than most calls (tools.bench.push).
    """
    step: Callable[[Any], Any] = work.send
    argument: Any = None
    while True:
        try:
            waits_for = context.run(step, argument)
        except StopIteration as end:
            returned: T = end.value
            return returned
        try:
            argument = yield waits_for
            step = work.send
        except BaseException as error:  # noqa: BLE001 - a cancellation, for example: `work` may handle it
            step, argument = work.throw, error


def is_cancelled(task: asyncio.Task[Any] | None) -> bool:
    """Whether the cancellation of this task was requested.

    Otherwise a CancelledError in it comes from a cancelled future that it awaited.
    """
    return task is not None and task.cancelling() > 0


class Closable(Protocol):
    """An object with a `close` method or coroutine."""

    @property
    def close(self) -> Step:
        """Close it."""


async def close_all(*steps: Closable | Step | None) -> None:
    """Run each step in order, even when earlier ones raise; then raise the first exception, and log the
    others.

    A step is a function or an object with `close`; None is skipped.
    """
    first: BaseException | None = None
    for step in steps:
        if step is None:
            continue
        try:
            waited = step() if callable(step) else step.close()
            if waited is not None:
                await waited
        except BaseException as error:  # raised below, after the other steps
            if first is None:
                first = error
            else:
                log.error("another error while closing", exc_info=error)
    if first is not None:
        raise first
