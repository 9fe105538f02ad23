"""HandlerAdapter: calls the handler of the application, async or plain, with one message or a batch."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

from rocketpy.consumer.listeners import ProcessListeners
from rocketpy.consumer.outcomes import (
    BatchHandler,
    Handler,
    HandlerResult,
    HandlingResult,
    failure_result,
    to_handling_result,
)
from rocketpy.message.message import MessageExt
from rocketpy.runtime.application import ends_task, name_of
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import run_in_context

log: Final = logging.getLogger("rocketpy.consumer")

_LOG_INTERVAL_S: Final = 1.0
_FOREIGN_LOG_INTERVAL_S: Final = 60.0
FOREIGN_RESULT_PAUSE_S: Final = 60.0
"""Pause before messages are handled again whose handler returned something else than a result."""
_SHOWN_MAX: Final = 3
_calling: Final[contextvars.ContextVar[HandlerAdapter]] = contextvars.ContextVar("rocketpy handler")
"""The adapter whose call the current code belongs to."""


class HandlerAdapter:
    """Calls a handler with a batch of messages, and the listeners before and after each call.

    handler, batch_handler: exactly one is given; a `handler` gets batches of one message.
    """

    def __init__(
        self, handler: Handler | None, batch_handler: BatchHandler | None, listeners: ProcessListeners
    ) -> None:
        self._listeners = listeners
        self.context: contextvars.Context = contextvars.Context()
        """Each call gets a copy of it, so no call sees context variables that another has set. See
        `use_context`. Nothing runs in it, so threads may copy it at any time.
        """
        chosen = handler if handler is not None else batch_handler
        self._handler = cast(Callable[[Any], HandlerResult | Awaitable[HandlerResult]], chosen)
        self.name: Final = name_of(chosen)
        self.takes_one: bool = handler is not None
        self.is_async: bool = is_async(self._handler)
        self._failure_log = RateLimitedLog(log, _LOG_INTERVAL_S)
        self._foreign_log = RateLimitedLog(log, _FOREIGN_LOG_INTERVAL_S)
        self._foreign: dict[str, tuple[str, float]] = {}

    def use_context(self) -> None:
        """Copy the current context for later calls; the consumer starts in it."""
        self.context = contextvars.copy_context()
        self.context.run(_calling.set, self)

    def is_calling(self) -> bool:
        """Return whether the current code runs in a call of the handler, or in a task that a call started."""
        return _calling.get(None) is self

    def function(self) -> Callable[[Any], HandlerResult | Awaitable[HandlerResult]]:
        """Return the function to call with a message (if `takes_one`) or a batch.

        If `takes_one` and there are no listeners, it is the handler itself. This saves two calls a message
        (tools.bench.push).
        """
        if not self.takes_one:
            return self
        return self._call_with_one if self._listeners.all else self._handler

    def __call__(self, messages: Sequence[MessageExt]) -> HandlerResult | Awaitable[HandlerResult]:
        """Call the handler; return its result, or an awaitable of it."""
        if self._listeners.all:
            return self._listeners.call(self._call, messages)
        return self._call(messages)

    def _call(self, messages: Sequence[MessageExt]) -> HandlerResult | Awaitable[HandlerResult]:
        # A list of its own: changes by the application must not change the messages that are committed.
        return self._handler(messages[0] if self.takes_one else list(messages))

    def _call_with_one(self, message: MessageExt) -> HandlerResult | Awaitable[HandlerResult]:
        return self((message,))

    async def handle(self, messages: Sequence[MessageExt], *, threads: bool) -> HandlingResult:
        """Call the handler and return its validated result. An exception becomes a result, too.

        threads: whether a plain function runs on a thread.
        """
        if threads and not self.is_async:
            return await asyncio.to_thread(self.handle_on_thread, messages, asyncio.get_running_loop())
        return await run_in_context(self.context.copy(), self._handle(messages))

    async def _handle(self, messages: Sequence[MessageExt]) -> HandlingResult:
        task = asyncio.current_task()
        try:
            returned: Any = self(messages)
            if inspect.isawaitable(returned):
                returned = await returned
            return to_handling_result(returned)
        except BaseException as error:  # noqa: BLE001 - the application's code may raise anything
            return self.failed(messages, error, task)

    def handle_on_thread(
        self, messages: Sequence[MessageExt], loop: asyncio.AbstractEventLoop
    ) -> HandlingResult:
        """Call the handler on the current thread, as `handle` does. An awaitable is awaited in `loop`."""
        context = self.context.copy()
        try:
            return to_handling_result(wait_in_loop(context.run(self, messages), loop, context))
        except BaseException as error:  # noqa: BLE001 - sys.exit() as well: here it would only end this thread
            return self.failed_on_thread(messages, error)

    def failed(
        self, messages: Sequence[MessageExt], error: BaseException, task: asyncio.Task[Any] | None
    ) -> HandlingResult:
        """Log the exception of a handler that `task` awaits, and return the result of its call.

        Raises the exception again if it ends the task.
        """
        if ends_task(error, task):
            raise error
        return self.failed_on_thread(messages, error)

    def failed_on_thread(self, messages: Sequence[MessageExt], error: BaseException) -> HandlingResult:
        """Log the exception of a handler on a thread, and return the result of its call."""
        which, more = ", ".join(map(str, messages[:_SHOWN_MAX])), len(messages) - _SHOWN_MAX
        if more > 0:
            which += f" and {more} more"
        key = f"handler {self.name} failed"
        self._failure_log.exception(key, "handler %s failed for %s", self.name, which, error=error)
        return failure_result(error)

    def report_foreign(self, topic: str, result: HandlingResult) -> None:
        """Log that the handler returned something else than a result, for a message of this topic."""
        problem = f"handler {self.name} for topic {topic}: {result.remark}"
        self._foreign[topic] = problem, time.monotonic()
        text = "%s. Its messages are neither done nor sent back; they are handled again in %d s"
        self._foreign_log.error(problem, text, problem, FOREIGN_RESULT_PAUSE_S)

    def problems(self) -> list[str]:
        """Return a text for each topic for which the handler returns something else than a result."""
        since_s = time.monotonic() - 2 * FOREIGN_RESULT_PAUSE_S
        return [problem for problem, at_s in self._foreign.values() if at_s >= since_s]

    def close(self) -> None:
        """Log how many failures were not logged."""
        self._failure_log.close()
        self._foreign_log.close()


def wait_in_loop(returned: Any, loop: asyncio.AbstractEventLoop, context: contextvars.Context) -> Any:
    """Return a handler's result. The caller is a thread; an awaitable result is awaited in the event loop.

    context: of the handler call.
    """
    if returned is not None and inspect.isawaitable(returned):
        work = _await_in_context(context, returned)
        return asyncio.run_coroutine_threadsafe(work, loop).result()
    return returned


async def _await_in_context(context: contextvars.Context, awaitable: Awaitable[object]) -> object:
    return await run_in_context(context, _as_coroutine(awaitable))


async def _as_coroutine(awaitable: Awaitable[object]) -> object:
    return await awaitable


def is_async(handler: object) -> bool:
    """Return whether a handler is an ``async def``, or an object whose call is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - the method's kind matters, not its existence
    )
