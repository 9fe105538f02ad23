"""HandlerAdapter: calls the handler of the application, async or plain, with one message or a batch."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
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
from rocketpy.runtime.tasks import is_cancelled, run_in_context

log: Final = logging.getLogger("rocketpy.consumer")


class HandlerAdapter:
    """Calls a handler with a batch of messages, and the listeners before and after each call.

    handler, batch_handler: exactly one is given; a `handler` gets batches of one message. context: each call
    gets a copy of it, so no call sees context variables that another has set. The consumer sets it when it
    starts. Nothing runs in it, so threads may copy it at any time.
    """

    def __init__(
        self, handler: Handler | None, batch_handler: BatchHandler | None, listeners: ProcessListeners
    ) -> None:
        self._listeners = listeners
        self.context: contextvars.Context = contextvars.Context()
        chosen = handler if handler is not None else batch_handler
        self._handler = cast(Callable[[Any], HandlerResult | Awaitable[HandlerResult]], chosen)
        self.takes_one: bool = handler is not None
        self.is_async: bool = is_async(self._handler)

    def function(self) -> Callable[[Any], HandlerResult | Awaitable[HandlerResult]]:
        """Return the function to call with a message (if `takes_one`) or a batch.

        If `takes_one` and there are no listeners, it is the handler itself. This saves two calls a message
        (tests.bench.push).
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
        try:
            returned: Any = self(messages)
            if inspect.isawaitable(returned):
                returned = await returned
        except BaseException as error:  # noqa: BLE001 - the application's code may raise anything
            return self.failed(messages, error)
        return to_handling_result(returned)

    def handle_on_thread(
        self, messages: Sequence[MessageExt], loop: asyncio.AbstractEventLoop
    ) -> HandlingResult:
        """Call the handler on the current thread, as `handle` does. An awaitable is awaited in `loop`."""
        context = self.context.copy()
        try:
            return to_handling_result(wait_in_loop(context.run(self, messages), loop, context))
        except BaseException as error:  # noqa: BLE001 - sys.exit() as well: here it would only end this thread
            return self.failed_on_thread(messages, error)

    def failed(self, messages: Sequence[MessageExt], error: BaseException) -> HandlingResult:
        """Log the exception of a handler in the event loop, and return the result of its call.

        Raises the exception again if it ends the current task.
        """
        if is_end_of_task(error):
            raise error
        return self.failed_on_thread(messages, error)

    def failed_on_thread(self, messages: Sequence[MessageExt], error: BaseException) -> HandlingResult:
        """Log the exception of a handler on a thread, and return the result of its call."""
        log.error("a handler failed; redelivering %s", messages, exc_info=error)
        return failure_result(error)


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


def is_end_of_task(error: BaseException) -> bool:
    """Return whether an error ends the current task; every other error is a failure of the handler.

    A cancellation that was not requested of this task comes from something that the handler awaited.
    sys.exit() and Ctrl-C end the program from the main thread; on another thread they would end its event
    loop silently.
    """
    if isinstance(error, asyncio.CancelledError):
        return is_cancelled(asyncio.current_task())
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, GeneratorExit)
