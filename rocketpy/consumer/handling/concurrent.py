"""ConcurrentConsumeService: handles messages in any order, several at a time.

Source: RocketMQ 4.6 ConsumeMessageConcurrentlyService.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rocketpy.consumer.config import MessageModel
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.handling.handler import FOREIGN_RESULT_PAUSE_S
from rocketpy.consumer.handling.runner import CompletedCalls, HandlerRunner, LoopRunner, ThreadRunner
from rocketpy.consumer.handling.service import HandlerService
from rocketpy.errors import RecordCorrupt
from rocketpy.message.decode import undecodable
from rocketpy.message.message import MessageExt
from rocketpy.runtime.application import describe

_DEFAULT_MAX_RECONSUME_TIMES: Final = 16
_EXPIRED_LEVEL: Final = 3
"""Delay level of messages whose handler exceeds the timeout. RocketMQ: 3, fixed."""
_DEAD_LETTER: Final = -1
"""The delay level for the dead-letter topic."""
_LOCAL_RETRY_S: Final = 5.0
"""Pause before this member handles a message again that it could not send back. RocketMQ: 5000 ms, fixed."""


class _SentBack(NamedTuple):
    """Messages that are being sent back."""

    puller: Puller
    messages: list[MessageExt]


@dataclass(eq=False)
class ConcurrentConsumeService(HandlerService):
    """Hands messages to a runner, and sends failed ones back."""

    def __post_init__(self) -> None:
        super().__post_init__()
        config = self.config
        self._sending_back: dict[asyncio.Task[None], _SentBack] = {}
        self._max_reconsume_times = (
            _DEFAULT_MAX_RECONSUME_TIMES if config.max_reconsume_times < 0 else config.max_reconsume_times
        )
        kind = LoopRunner if self.adapter.is_async or not config.threads else ThreadRunner
        self._runner: HandlerRunner = kind(self.adapter, config, self._completed, self.tasks)

    def submit(self, puller: Puller, messages: list[MessageExt], failed: int = 0) -> None:
        """Handle messages, and send back those that cannot be decoded."""
        if failed:
            self._reject(puller, undecodable(messages))
            messages = [message for message in messages if message.decode_error is None]
        if messages:
            self._runner.submit(puller, messages)

    async def wait_released(self, puller: Puller) -> None:
        """Wait for the running calls of a queue, and for its messages that are sent back."""
        await self._runner.wait_ended(puller)
        while tasks := {task for task, each in self._sending_back.items() if each.puller is puller}:
            await asyncio.wait(tasks)

    def in_progress(self) -> Sequence[object]:
        """Return the messages that handlers work on."""
        return self._runner.in_progress()

    def started(self) -> Sequence[object]:
        """Return the messages that handlers work on, and those that are sent back; see `ConsumeService`."""
        running = self._runner.in_progress()  # first: a thread may end its call now
        self._runner.report()
        return [*running, *(message for each in self._sending_back.values() for message in each.messages)]

    async def close(self, timeout_s: float) -> Sequence[object]:
        """Close the runner, and wait for messages that are sent back."""
        until = self.clock() + timeout_s * 1000
        left = await self._runner.close(timeout_s)
        left_s = max(0.1, (until - self.clock()) / 1000)
        if self._sending_back:
            await asyncio.wait(set(self._sending_back), timeout=left_s)
        self.tasks.cancel_soon(*self._sending_back)
        self._close_logs()
        return left

    def _ages_ms(self) -> Iterable[float]:
        now_s = time.monotonic()
        return [(now_s - running.started_s) * 1000 for running in self._runner.running()]

    def expire(self) -> None:
        """Redeliver messages whose handler exceeds `PushConfig.consume_timeout_ms`."""
        now_s, timeout_ms = time.monotonic(), self.config.consume_timeout_ms
        for running in self._runner.running():
            age_ms = (now_s - running.started_s) * 1000
            messages = list(running.abandon()) if age_ms > timeout_ms else ()
            if messages:
                text = "a handler has worked on %s for %d ms, longer than %d ms; its result is ignored"
                self._limited_log.warning("handler calls expired", text, messages, age_ms, timeout_ms)
                reason = f"the handler worked longer than {timeout_ms} ms"
                self._redeliver(running.puller, messages, _EXPIRED_LEVEL, reason)
                running.puller.wake()

    def _completed(self, completed: list[CompletedCalls]) -> None:
        """Finish processed messages, send the others back, and wake each puller once."""
        now_ms = int(self.clock())
        touched: dict[Puller, None] = {}
        for calls in completed:
            puller, messages, result = calls.puller, calls.messages, calls.result
            done = len(messages) if result.done is None else min(result.done, len(messages))
            topic = puller.process_queue.queue.topic
            self.stats.record_handled(topic, done, len(messages) - done, calls.took_ms, calls.calls)
            if result.is_foreign:
                self.adapter.report_foreign(messages[0].topic, result)
                again = self._handle_again(puller, list(messages), FOREIGN_RESULT_PAUSE_S)
                self.tasks.spawn(again, "handle again")
            elif done < len(messages):
                self._redeliver(puller, messages[done:], result.later.delay_level, result.remark)
            if done < len(messages):
                messages = messages[:done]
            puller.process_queue.finish(messages, now_ms)
            touched[puller] = None
        for puller in touched:
            puller.wake()

    def _redeliver(
        self, puller: Puller, messages: Sequence[MessageExt], delay_level: int, reason: str | None
    ) -> None:
        """Send back messages of a failed handler call. When broadcasting, skip them."""
        if self.config.model is MessageModel.BROADCASTING:
            text = "handlers failed on %s, which are not redelivered when broadcasting"
            self._limited_log.warning("skipped when broadcasting", text, messages)
            puller.process_queue.finish(messages, int(self.clock()))
        else:
            self._send_back_soon(puller, list(messages), delay_level, reason)

    def _reject(self, puller: Puller, messages: list[MessageExt]) -> None:
        """Send back messages that cannot be decoded, without a handler call."""
        self.stats.record_handled(puller.process_queue.queue.topic, 0, len(messages), 0.0, calls=0)
        if self.config.model is MessageModel.BROADCASTING:
            puller.process_queue.finish(messages, int(self.clock()))
            return
        levels = {level: [m for m in messages if _reject_level(m) == level] for level in (0, _DEAD_LETTER)}
        for level, some in levels.items():
            if some:
                self._send_back_soon(puller, some, level, None)

    def _send_back_soon(
        self, puller: Puller, messages: list[MessageExt], delay_level: int, reason: str | None
    ) -> None:
        task = self.tasks.spawn(self._send_all_back(puller, messages, delay_level, reason), "send back")
        self._sending_back[task] = _SentBack(puller, messages)
        task.add_done_callback(self._sending_back.pop)

    async def _send_all_back(
        self, puller: Puller, messages: list[MessageExt], delay_level: int, reason: str | None
    ) -> None:
        process_queue = puller.process_queue
        results = await asyncio.gather(
            *(self._send_one_back(message, puller, delay_level, reason) for message in messages)
        )
        outcome = list(zip(messages, results, strict=True))
        process_queue.finish([message for message, ok in outcome if ok], int(self.clock()))
        puller.wake()
        kept = [
            message.with_reconsume_times(message.reconsume_times + 1) for message, ok in outcome if not ok
        ]
        if kept:
            self.tasks.spawn(self._handle_again(puller, kept, _LOCAL_RETRY_S), "handle again")

    async def _handle_again(self, puller: Puller, messages: list[MessageExt], pause_s: float) -> None:
        """Handle messages again after a pause. `close` does not wait for it."""
        await asyncio.sleep(pause_s)
        if not puller.process_queue.dropped:
            self.submit(puller, messages, len(undecodable(messages)))

    async def _send_one_back(
        self, message: MessageExt, puller: Puller, delay_level: int, reason: str | None
    ) -> bool:
        queue, times_max = puller.process_queue.queue, self._max_reconsume_times
        if message.decode_error is not None:
            reason = describe(message.decode_error)
        problem = f"%s could not be sent back; this member handles it again in {_LOCAL_RETRY_S:.0f} s: %s"
        return await self._try_send(
            self.send_back.send_back(message, queue, delay_level, times_max, reason), problem, message
        )


def _reject_level(message: MessageExt) -> int:
    """Return the delay level for a message that cannot be decoded.

    A corrupt message goes to the dead-letter topic immediately. For a redelivery the broker would store it
    with a CRC of the damaged body, and a handler would receive it as valid.
    """
    return _DEAD_LETTER if isinstance(message.decode_error, RecordCorrupt) else 0
