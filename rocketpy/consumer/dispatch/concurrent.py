"""What every way of consuming has in common, and the concurrent one: any message of any queue at any time.

Source: RocketMQ 4.6 ConsumeMessageService, ConsumeMessageConcurrentlyService.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, cast

from rocketpy.consumer.config import MessageModel, PushConfig
from rocketpy.consumer.dispatch.loop_runner import LoopRunner
from rocketpy.consumer.dispatch.runner import (
    CompletedCalls,
    HandlerRunner,
    in_progress,
    is_async,
    is_end_of_task,
)
from rocketpy.consumer.dispatch.send_back import SendBack
from rocketpy.consumer.dispatch.thread_runner import ThreadRunner, call_on_thread
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.listeners import ProcessListeners
from rocketpy.consumer.outcomes import (
    BatchHandler,
    Handler,
    HandlerResult,
    HandlingResult,
    failure_result,
    to_handling_result,
)
from rocketpy.consumer.stats import ConsumerStats
from rocketpy.errors import RecordCorrupt, RocketError
from rocketpy.message.decode import undecodable
from rocketpy.message.message import MessageExt
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks

log = logging.getLogger("rocketpy.consumer")

_DEFAULT_MAX_RECONSUME_TIMES: Final = 16
_EXPIRED_LEVEL: Final = 3
"""Delay level of what a handler held too long. RocketMQ: 3, fixed."""
_DEAD_LETTER: Final = -1
"""The delay level that means the dead letters."""
_LOCAL_RETRY_S: Final = 5.0
"""After a message could not be sent back it is handled here again. RocketMQ: 5000 ms, fixed."""


class ConsumeService(Protocol):
    """What becomes of pulled messages."""

    def submit(self, puller: Puller, messages: list[MessageExt], failed: int = 0) -> None:
        """Handle these; they are held in `puller.process_queue` until they are done with.

        failed: how many have a `decode_error`. No handler is called with them.
        """

    async def wait_released(self, puller: Puller) -> None:
        """A queue was dropped: return when no handler works on it that its next owner must not overlap."""

    def in_progress(self) -> Sequence[object]:
        """What handlers are at: messages, or queues."""

    async def close(self, timeout_s: float) -> Sequence[object]:
        """Begin no more; wait for handlers. Returns what those are at that did not end in time."""


class HandlerAdapter:
    """The application's handler, whichever of the two kinds it is; a call always takes a batch.

    handler, batch_handler: exactly one is given, and batches have one message for the first kind. listeners:
    are told of each call. The rest: see `Called`.
    """

    def __init__(
        self, handler: Handler | None, batch_handler: BatchHandler | None, listeners: ProcessListeners
    ) -> None:
        self._listeners = listeners
        chosen = handler if handler is not None else batch_handler
        self._handler = cast(Callable[[Any], HandlerResult | Awaitable[HandlerResult]], chosen)
        self.takes_one = handler is not None
        self.is_async = is_async(self._handler)

    def current(self) -> Callable[[Any], HandlerResult | Awaitable[HandlerResult]]:
        """What to call now: the handler itself, with a message or a batch, or what tells listeners too."""
        if self._listeners.all:
            return self._told_one if self.takes_one else self
        return self._handler if self.takes_one else self._call

    def __call__(self, messages: Sequence[MessageExt]) -> HandlerResult | Awaitable[HandlerResult]:
        """What the handler returns: a word, or something to wait for."""
        if self._listeners.all:
            return self._listeners.call(self._call, messages, is_async=self.is_async)
        return self._call(messages)

    def _call(self, messages: Sequence[MessageExt]) -> HandlerResult | Awaitable[HandlerResult]:
        # What the application does with its list must not change what is known of the messages here.
        return self._handler(messages[0] if self.takes_one else list(messages))

    def _told_one(self, message: MessageExt) -> HandlerResult | Awaitable[HandlerResult]:
        return self((message,))

    async def result(self, messages: Sequence[MessageExt], *, threads: bool) -> HandlingResult:
        """Call it here and now, on a thread if need be, whatever else is going on."""
        try:
            if threads and not self.is_async:
                loop = asyncio.get_running_loop()
                return await asyncio.to_thread(call_on_thread, self, messages, loop)
            returned: Any = self(messages)
            if inspect.isawaitable(returned):
                returned = await returned
        except BaseException as error:  # the application's code
            if is_end_of_task(error):
                raise
            log.exception("a handler failed on %s", messages)
            return failure_result(error)
        return to_handling_result(returned)


class ConcurrentConsumeService:
    """Hands messages to a runner, and sees to those that are to come again."""

    def __init__(
        self,
        adapter: HandlerAdapter,
        config: PushConfig,
        send_back: SendBack,
        stats: ConsumerStats,
        tasks: Tasks,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._send_back = send_back
        self._stats = stats
        self._tasks = tasks
        self._clock = clock
        self._limited_log = RateLimitedLog(log)
        self._sending_back: set[asyncio.Task[None]] = set()
        self._max_reconsume_times = (
            _DEFAULT_MAX_RECONSUME_TIMES if config.max_reconsume_times < 0 else config.max_reconsume_times
        )
        self._runner: HandlerRunner
        if adapter.is_async or not config.threads:
            self._runner = LoopRunner(
                adapter, config.batch_size, config.concurrency, self._finished, clock, tasks
            )
        else:
            self._runner = ThreadRunner(
                adapter, config.batch_size, config.concurrency, self._finished, clock, tasks
            )

    def submit(self, puller: Puller, messages: list[MessageExt], failed: int = 0) -> None:
        """See `ConsumeService`."""
        if failed:
            self._reject(puller, undecodable(messages))
            messages = [message for message in messages if message.decode_error is None]
        if messages:
            self._runner.submit(puller, messages)

    async def wait_released(self, puller: Puller) -> None:
        """See `ConsumeService`. Another member may begin at once: what is handled here comes to it too."""

    def in_progress(self) -> Sequence[object]:
        """See `ConsumeService`."""
        return in_progress(self._runner)

    async def close(self, timeout_s: float) -> Sequence[object]:
        """See `ConsumeService`. What is being sent back then is waited for as well."""
        until = self._clock() + timeout_s * 1000
        left = await self._runner.close(timeout_s)
        left_s = max(0.1, (until - self._clock()) / 1000)
        if self._sending_back:
            await asyncio.wait(set(self._sending_back), timeout=left_s)
        for task in self._sending_back:
            task.cancel()
        return left

    def expire(self) -> None:
        """Send back what handlers have held for too long; called every `PushConfig.consume_timeout_ms`."""
        before = self._clock() - self._config.consume_timeout_ms
        for work in self._runner.running():
            since_ms, puller = work.started_ms, work.puller
            messages = list(work.abandon()) if since_ms < before else ()
            if messages:
                log.warning(
                    "a handler holds %s since %d ms; they are sent back", messages, self._clock() - since_ms
                )
                self._send_back_soon(puller, messages, _EXPIRED_LEVEL)

    def _finished(self, finished: list[CompletedCalls]) -> None:
        """Handlers ended; several at once, so that what follows is done once."""
        now_ms = int(self._clock())
        touched: dict[Puller, None] = {}
        for ended in finished:
            puller, messages, result = ended.puller, ended.messages, ended.result
            done = len(messages) if result.done is None else min(result.done, len(messages))
            topic = puller.process_queue.queue.topic
            self._stats.record_handled(topic, done, len(messages) - done, ended.took_ms, ended.calls)
            if done < len(messages):
                self._failed(puller, messages[done:], result)
                messages = messages[:done]
            puller.process_queue.finish(messages, now_ms)
            touched[puller] = None
        for puller in touched:
            puller.wake()

    def _failed(self, puller: Puller, messages: Sequence[MessageExt], result: HandlingResult) -> None:
        if self._config.model is MessageModel.BROADCASTING:
            log.warning("%s were not handled, and nobody gets them again: this group broadcasts", messages)
            puller.process_queue.finish(messages, int(self._clock()))
        else:
            self._send_back_soon(puller, list(messages), result.later.delay_level)

    def _reject(self, puller: Puller, messages: list[MessageExt]) -> None:
        """Send messages back that cannot be decoded, without a call of the handler."""
        self._stats.record_handled(puller.process_queue.queue.topic, 0, len(messages), 0.0, calls=0)
        if self._config.model is MessageModel.BROADCASTING:
            puller.process_queue.finish(messages, int(self._clock()))
            return
        levels = {level: [m for m in messages if _reject_level(m) == level] for level in (0, _DEAD_LETTER)}
        for level, some in levels.items():
            if some:
                self._send_back_soon(puller, some, level)

    def _send_back_soon(self, puller: Puller, messages: list[MessageExt], delay_level: int) -> None:
        task = self._tasks.spawn(self._send_all_back(puller, messages, delay_level), "send back")
        self._sending_back.add(task)
        task.add_done_callback(self._sending_back.discard)

    async def _send_all_back(self, puller: Puller, messages: list[MessageExt], delay_level: int) -> None:
        process_queue = puller.process_queue
        results = await asyncio.gather(
            *(self._send_one_back(message, puller, delay_level) for message in messages)
        )
        outcome = list(zip(messages, results, strict=True))
        process_queue.finish([message for message, ok in outcome if ok], int(self._clock()))
        puller.wake()
        kept = [
            message.with_reconsume_times(message.reconsume_times + 1) for message, ok in outcome if not ok
        ]
        if kept:
            await asyncio.sleep(_LOCAL_RETRY_S)
            if not process_queue.dropped:
                self.submit(puller, kept, len(undecodable(kept)))

    async def _send_one_back(self, message: MessageExt, puller: Puller, delay_level: int) -> bool:
        try:
            await self._send_back.send_back(
                message, puller.process_queue.queue, delay_level, self._max_reconsume_times
            )
        except RocketError as error:
            self._limited_log.error(
                type(error).__name__,
                "%s could not be sent back, and is processed again in %d s: %s",
                message,
                _LOCAL_RETRY_S,
                error,
            )
            return False
        return True


def _reject_level(message: MessageExt) -> int:
    """With which delay level a message is sent back that cannot be decoded.

    A corrupt one goes to the dead letters at once: it would be stored again with a CRC of the damaged body,
    so that a handler would get it as a good one.
    """
    return _DEAD_LETTER if isinstance(message.decode_error, RecordCorrupt) else 0
