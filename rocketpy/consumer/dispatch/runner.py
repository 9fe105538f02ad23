"""Runners: where handlers run. In the event loop for ``async def``, on threads for plain functions.

What both have in common is here. Both start workers as they are needed. One worker goes through everything
that waits as long as handlers end at once; when one is held up, by an await or by a blocking call, another
worker joins, up to a bound. So quick handlers cost no task, thread or wake-up a message, and slow ones run
side by side.

Differs from RocketMQ, which hands every batch to a pool of threads.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.outcomes import ACKNOWLEDGED, HandlerResult, HandlingResult
from rocketpy.message.message import MessageExt
from rocketpy.runtime.tasks import is_cancelled


class Called(Protocol):
    """The application's handler, as runners call it."""

    @property
    def is_async(self) -> bool:
        """Whether each call makes a coroutine."""

    @property
    def takes_one(self) -> bool:
        """Whether a call takes one message, not a batch."""

    def current(self) -> Callable[[Any], HandlerResult | Awaitable[HandlerResult]]:
        """What to call for now, with a message or with a batch."""


class RunningCall(Protocol):
    """A call of the handler that has begun. started_ms: when."""

    started_ms: float

    @property
    def puller(self) -> Puller:
        """Of its queue."""

    def in_progress(self) -> Sequence[MessageExt]:
        """Its messages."""

    def abandon(self) -> Sequence[MessageExt]:
        """Take its messages away from it: what it says in the end does not count. None of them twice."""


class CompletedCalls:
    """Calls that ended, for messages of one queue: one, or several in a row that are done with all of them.

    took_ms: of all together.
    """

    __slots__ = ("_joined", "calls", "messages", "puller", "result", "took_ms")

    def __init__(
        self,
        puller: Puller,
        messages: Sequence[MessageExt],
        result: HandlingResult,
        took_ms: float,
        calls: int,
    ) -> None:
        self.puller = puller
        self.messages = messages
        self.result = result
        self.took_ms = took_ms
        self.calls = calls
        self._joined: list[MessageExt] | None = None

    def join(self, messages: Sequence[MessageExt], took_ms: float) -> bool:
        """Take one more call in. Not where several came at once: they go as they came, in one piece."""
        if self._joined is None:
            if self.calls > 1:
                return False
            self.messages = self._joined = list(self.messages)
        self._joined += messages
        self.took_ms += took_ms
        self.calls += 1
        return True


OnCompleted = Callable[[list[CompletedCalls]], None]


def arguments_of(called: Called, messages: Sequence[MessageExt], batch: int) -> Sequence[Any]:
    """What to call a handler with, one after the other, for these messages. batch: messages a call."""
    if called.takes_one:
        return messages
    return [messages[at : at + batch] for at in range(0, len(messages), batch)]


def note(
    finished: list[CompletedCalls],
    puller: Puller,
    messages: Sequence[MessageExt],
    result: HandlingResult,
    took_ms: float,
    calls: int = 1,
) -> None:
    """Enter calls that ended; a single one together with those before it if they go the same way."""
    if finished and calls == 1 and result is ACKNOWLEDGED:
        last = finished[-1]
        if last.result is result and last.puller is puller and last.join(messages, took_ms):
            return
    finished.append(CompletedCalls(puller, messages, result, took_ms, calls))


class HandlerRunner(Protocol):
    """Runs handlers. What they said is told to `finished`, in the event loop, several at once."""

    def submit(self, puller: Puller, messages: list[MessageExt]) -> None:
        """Have these handled when there is a free worker, in about this order. The list must not change."""

    def running(self) -> Sequence[RunningCall]:
        """The calls that have begun and not ended."""

    async def close(self, timeout_s: float) -> Sequence[MessageExt]:
        """Begin no more; wait for those that run. Returns the messages of those that did not end in time."""


def in_progress(runner: HandlerRunner) -> Sequence[MessageExt]:
    """The messages that handlers are at."""
    return [message for work in runner.running() for message in work.in_progress()]


def is_async(handler: object) -> bool:
    """Whether a handler is an ``async def``, or an object whose call is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - its kind is asked, not whether it is there
    )


def is_end_of_task(error: BaseException) -> bool:
    """Whether an error ends the task it comes up in; any other one is a handler's failure.

    A cancellation that nobody asked this task for is the handler's, which waited for something that was
    cancelled. sys.exit() and Ctrl-C end the program from its main thread, as everywhere in Python; the event
    loop of another thread they would end in silence.
    """
    if isinstance(error, asyncio.CancelledError):
        return is_cancelled(asyncio.current_task())
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, GeneratorExit)
