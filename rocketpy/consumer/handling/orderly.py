"""Orderly consumption: one handler call per queue at a time, in order, while the broker locks the queue.

The broker locks a queue for one member of the group for 60 s. The member renews the lock every 20 s, and
relies on it for 30 s. While the broker's master is unavailable no lock is renewed: the queue stays assigned,
but no handler is called. LATER blocks the queue, so that the order is kept. After `max_reconsume_times` the
message is sent to the retry topic, and the broker moves it to the dead-letter topic.

Source: RocketMQ 4.6 ConsumeMessageOrderlyService. Differs: no manual commits (ConsumeOrderlyContext
setAutoCommit, COMMIT, ROLLBACK), which RocketMQ has deprecated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rocketpy.consumer.config import MessageModel
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.handling.handler import FOREIGN_RESULT_PAUSE_S
from rocketpy.consumer.handling.handler_threads import HandlerThreadPool
from rocketpy.consumer.handling.service import HandlerService
from rocketpy.consumer.outcomes import HandlingResult, Later
from rocketpy.message.message import MessageExt
from rocketpy.runtime.application import describe
from rocketpy.runtime.tasks import is_cancelled

_LOCK_AGAIN_S: Final = 0.1
_LOCK_FAILED_S: Final = 3.0
"""RocketMQ: 100 and 3000 ms, fixed."""
_UNLIMITED: Final = 2**31 - 1
_UNDECODABLE: Final = HandlingResult(0, Later(), "UNDECODABLE")
_CHUNK: Final = 32
"""Batches that a thread handles before it reports to the event loop."""

Lock = Callable[[Puller], Awaitable[bool]]


@dataclass(eq=False)
class OrderlyConsumeService(HandlerService):
    """Handles each queue in a task of its own, which runs while the queue has messages."""

    lock: Lock | None
    """Requests an expired lock of a queue again and returns whether it is granted; None when broadcasting,
    where members do not share queues."""

    def __post_init__(self) -> None:
        super().__post_init__()
        config = self.config
        self._queue_tasks: dict[Puller, asyncio.Task[None]] = {}
        self._pauses: dict[Puller, asyncio.Event] = {}
        self._began_ms: dict[Puller, float] = {}
        """When the running handler call of a queue began."""
        self._closing = False
        self._is_cancelling = False
        """Whether `close` has cancelled the unfinished calls."""
        self._max_reconsume_times = (
            _UNLIMITED if config.max_reconsume_times < 0 else config.max_reconsume_times
        )
        on_threads = config.threads and not self.adapter.is_async
        self._pool = HandlerThreadPool(config.concurrency) if on_threads else None

    def submit(self, puller: Puller, messages: list[MessageExt], failed: int = 0) -> None:
        """Enqueue messages. A message that cannot be decoded goes to the dead-letter topic in its turn."""
        puller.process_queue.enqueue(messages)
        if puller not in self._queue_tasks and not self._closing:
            self._start(puller)

    def _start(self, puller: Puller, pause_ms: float = 0.0) -> None:
        work = self._run(puller, pause_ms)
        self._queue_tasks[puller] = self.tasks.spawn(work, f"handle {puller.process_queue.queue}")

    async def wait_released(self, puller: Puller) -> None:
        """Wait for the running handler: the next owner must not begin before it has ended."""
        queue_task = self._queue_tasks.get(puller)
        if queue_task is not None:
            self._end_pause(puller)
            await asyncio.wait({queue_task})

    def in_progress(self) -> Sequence[object]:
        """Return the queues that handlers work on."""
        return [puller.process_queue.queue for puller in self._queue_tasks]

    def started(self) -> Sequence[object]:
        """Return the queues that handlers work on, or whose messages are sent back."""
        return self.in_progress()

    def _ages_ms(self) -> Iterable[float]:
        now_ms = self.clock()
        return [now_ms - began_ms for began_ms in list(self._began_ms.values())]

    async def close(self, timeout_s: float) -> Sequence[object]:
        """Begin no more calls and wait for running ones. Returns the queues of unfinished handlers."""
        self._closing = True
        for puller in self._pauses:
            self._end_pause(puller)
        queue_tasks = set(self._queue_tasks.values())
        late = (await asyncio.wait(queue_tasks, timeout=timeout_s))[1] if queue_tasks else set()
        left = self.in_progress() if late else ()
        self._is_cancelling = True
        self.tasks.cancel_soon(*late)
        if self._pool is not None:
            self._pool.shutdown()
        self._close_logs()
        return left

    # -- one queue ----------------------------------------------------------------------------

    async def _run(self, puller: Puller, pause_ms: float) -> None:
        left_ms: float | None = None
        try:
            if pause_ms:
                await self._pause(puller, pause_ms / 1000)
            left_ms = await self._handle_all(puller)
        finally:
            # Not in a done callback: messages that are submitted right after this start a new task.
            del self._queue_tasks[puller]
        if left_ms is not None and self._is_active(puller):
            self._start(puller, left_ms)

    async def _handle_all(self, puller: Puller) -> float | None:
        """Handle the waiting messages. None: all; else another task continues, after a pause in ms.

        The application may cancel this task in its handler. Then it ends, so that the event loop can close.
        """
        process_queue, task = puller.process_queue, asyncio.current_task()
        while self._is_active(puller):
            if not self._may_call(puller):
                await self._renew_lock(puller)
                continue
            batches = self._next_batches(puller)
            if not batches:
                return None
            started_ms = self.clock()
            try:
                results = await self._handle(puller, batches)
            finally:
                self._began_ms.pop(puller, None)
            took_ms = (self.clock() - started_ms) / len(results)
            failed: list[MessageExt] = []
            pause_ms: int | None = None
            for index, batch in enumerate(batches):
                if failed or index >= len(results):
                    failed += batch  # not begun: a batch before it failed, or the lock expired
                else:
                    failed, pause_ms = await self._settle(puller, batch, results[index], took_ms)
            process_queue.put_back(failed)
            puller.wake()
            if is_cancelled(task):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # a handler that ended before its cancellation arrived
                return pause_ms or 0.0
            if pause_ms is not None:
                await self._pause(puller, pause_ms / 1000)
            else:
                await asyncio.sleep(0)
        return None

    async def _settle(
        self, puller: Puller, batch: list[MessageExt], result: HandlingResult, took_ms: float
    ) -> tuple[list[MessageExt], int | None]:
        """Finish what is done of a batch; return the messages to handle again, and the pause before (ms)."""
        process_queue = puller.process_queue
        done = len(batch) if result.done is None else min(result.done, len(batch))
        process_queue.finish(batch[:done], int(self.clock()))
        self.stats.record_handled(process_queue.queue.topic, done, len(batch) - done, took_ms)
        if result.is_foreign:
            self.adapter.report_foreign(batch[0].topic, result)
            return batch, int(FOREIGN_RESULT_PAUSE_S * 1000)
        kept = await self._count_attempt(puller, batch[done:], result.remark) if done < len(batch) else []
        if not kept:
            return [], None
        suspend_ms = result.later.suspend_ms
        return kept, min(max(self.config.suspend_ms if suspend_ms is None else suspend_ms, 10), 30_000)

    def _is_active(self, puller: Puller) -> bool:
        return not puller.process_queue.dropped and not self._closing

    def _may_call(self, puller: Puller) -> bool:
        """Return whether a handler call may begin now. Threads check this, too, between two batches."""
        return self._is_active(puller) and (
            self.lock is None or puller.process_queue.is_locked(int(self.clock()))
        )

    def _next_batches(self, puller: Puller) -> list[list[MessageExt]]:
        """Return the next batches; a message that cannot be decoded is a batch of its own."""
        size = self.config.batch_size
        messages = puller.process_queue.take(size * _CHUNK if self._pool is not None else size)
        batches: list[list[MessageExt]] = []
        for message in messages:
            is_decoded = message.decode_error is None
            if is_decoded and batches and len(batches[-1]) < size and batches[-1][0].decode_error is None:
                batches[-1].append(message)
            else:
                batches.append([message])
        return batches

    async def _handle(self, puller: Puller, batches: list[list[MessageExt]]) -> list[HandlingResult]:
        """Handle batches and return their results, up to and including the first failure."""
        if batches[0][0].decode_error is not None:
            return [_UNDECODABLE]
        if self._pool is None:
            self._began_ms[puller] = self.clock()
            try:
                return [await self.adapter.handle(batches[0], threads=False)]
            except asyncio.CancelledError as error:
                if self._is_cancelling:
                    raise
                return [self.adapter.failed_on_thread(batches[0], error)]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._handle_on_thread, puller, batches, loop)

    def _handle_on_thread(
        self, puller: Puller, batches: list[list[MessageExt]], loop: asyncio.AbstractEventLoop
    ) -> list[HandlingResult]:
        results: list[HandlingResult] = []
        for batch in batches:
            if not self._may_call(puller) or batch[0].decode_error is not None:
                break
            self._began_ms[puller] = self.clock()
            results.append(self.adapter.handle_on_thread(batch, loop))
            if results[-1].done is not None:
                break
        return results

    async def _count_attempt(
        self, puller: Puller, messages: list[MessageExt], reason: str | None
    ) -> list[MessageExt]:
        """Return the messages that this member handles again, with one more delivery counted.

        Messages with too many deliveries, and those that cannot be decoded, go to the dead-letter topic.
        """
        kept: list[MessageExt] = []
        for message in messages:
            if message.decode_error is None and message.reconsume_times < self._max_reconsume_times:
                kept.append(message.with_reconsume_times(message.reconsume_times + 1))
            elif self.config.model is MessageModel.BROADCASTING:
                text = "%s was not handled and is skipped when broadcasting"
                self._limited_log.warning("skipped when broadcasting", text, message)
                puller.process_queue.finish([message], int(self.clock()))
            elif await self._send_to_dead_letters(puller, message, reason):
                puller.process_queue.finish([message], int(self.clock()))
            else:
                kept.append(message)
        return kept

    async def _send_to_dead_letters(self, puller: Puller, message: MessageExt, reason: str | None) -> bool:
        times_max = self._max_reconsume_times
        if message.decode_error is not None:
            reason = describe(message.decode_error)
            sending = self.send_back.send_back(message, puller.process_queue.queue, -1, times_max, reason)
        else:
            sending = self.send_back.send_to_dead_letters(message, times_max, reason)
        problem = "%s could not be sent to the dead-letter topic; its queue waits: %s"
        return await self._try_send(sending, problem, message)

    async def _renew_lock(self, puller: Puller) -> None:
        """Pause, and request the lock again after it expired or was lost."""
        await self._pause(puller, _LOCK_AGAIN_S)
        if self.lock is not None and self._is_active(puller) and not await self.lock(puller):
            await self._pause(puller, _LOCK_FAILED_S)

    async def _pause(self, puller: Puller, pause_s: float) -> None:
        """Pause a queue. `close` and the revocation of the queue end the pause."""
        if not self._is_active(puller):
            return
        ended = self._pauses[puller] = asyncio.Event()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), pause_s)
        finally:
            del self._pauses[puller]

    def _end_pause(self, puller: Puller) -> None:
        if puller in self._pauses:
            self._pauses[puller].set()
