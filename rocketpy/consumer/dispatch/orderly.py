"""Orderly consumption: one handler a queue at a time, in the queue's order, under a lock of the broker's.

The broker grants a queue to one member of the group for 60 s; the member renews it every 20 s, and relies on
it for 30 s after the last grant. While the broker's master is away nobody can renew: the queue is kept, but
its handlers stop until it is back. A handler that says LATER holds its queue up, so that order
is kept; after `max_reconsume_times` the message goes to the dead letters by way of the retry topic.

Source: RocketMQ 4.6 ConsumeMessageOrderlyService. Differs: no manual commits (ConsumeOrderlyContext
setAutoCommit, COMMIT, ROLLBACK), which RocketMQ has deprecated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rocketpy.consumer.config import MessageModel, PushConfig
from rocketpy.consumer.dispatch.concurrent import Callee
from rocketpy.consumer.dispatch.handler_threads import HandlerThreads
from rocketpy.consumer.dispatch.send_back import SendBack
from rocketpy.consumer.dispatch.thread_runner import verdict_on_thread
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.outcomes import Later, Verdict
from rocketpy.consumer.stats import ConsumerStats
from rocketpy.errors import RocketError
from rocketpy.message.message import MessageExt
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks

log = logging.getLogger("rocketpy.consumer")

_LOCK_AGAIN_S: Final = 0.1
_LOCK_FAILED_S: Final = 3.0
"""RocketMQ: 100 and 3000 ms, fixed."""
_FOREVER: Final = 2**31 - 1
_NOT_HANDLED: Final = Verdict(0, Later(), "UNDECODABLE")
_CHUNK: Final = 32
"""Batches that a thread handles in a row before the event loop hears of them."""

Lock = Callable[[Puller], Awaitable[bool]]


class OrderlyConsumption:
    """One lane a queue: a task that lives while the queue has messages.

    lock: asks the broker for a queue's lock, for one that ran out; None when broadcasting, where no other
    member takes anything away.
    """

    def __init__(
        self,
        callee: Callee,
        config: PushConfig,
        send_back: SendBack,
        stats: ConsumerStats,
        tasks: Tasks,
        clock: Callable[[], float],
        lock: Lock | None,
    ) -> None:
        self._callee = callee
        self._config = config
        self._send_back = send_back
        self._stats = stats
        self._tasks = tasks
        self._clock = clock
        self._lock = lock
        self._lanes: dict[Puller, asyncio.Task[None]] = {}
        self._closing = False
        self._limited_log = RateLimitedLog(log)
        self._times_max = _FOREVER if config.max_reconsume_times < 0 else config.max_reconsume_times
        on_threads = config.threads and not callee.is_async
        self._pool = HandlerThreads(config.concurrency) if on_threads else None

    def submit(self, puller: Puller, messages: list[MessageExt], failed: int = 0) -> None:
        """See `Consumption`. A message that cannot be decoded is sent to the dead letters in its turn."""
        puller.held.wait(messages)
        if puller not in self._lanes and not self._closing:
            lane = self._tasks.spawn(self._run(puller), f"handle {puller.held.queue}")
            self._lanes[puller] = lane

    async def released(self, puller: Puller) -> None:
        """See `Consumption`. The next owner must not begin before the handler that runs has ended."""
        lane = self._lanes.get(puller)
        if lane is not None:
            await asyncio.wait({lane})

    def in_hand(self) -> Sequence[object]:
        """See `Consumption`: queues that are worked on."""
        return [puller.held.queue for puller in self._lanes]

    async def close(self, timeout_s: float) -> Sequence[object]:
        """See `Consumption`."""
        self._closing = True
        lanes = set(self._lanes.values())
        late = (await asyncio.wait(lanes, timeout=timeout_s))[1] if lanes else set()
        left = self.in_hand() if late else ()
        for lane in late:
            lane.cancel()
        if self._pool is not None:
            self._pool.shutdown()
        return left

    # -- one lane -----------------------------------------------------------------------------

    async def _run(self, puller: Puller) -> None:
        try:
            await self._handle_all(puller)
        finally:
            # Here and not in a callback: what is submitted right after this begins a new lane.
            del self._lanes[puller]

    async def _handle_all(self, puller: Puller) -> None:
        held = puller.held
        while self._goes_on(puller):
            if not self._may_handle(puller):
                await self._lock_again(puller)
                continue
            batches = self._take(puller)
            if not batches:
                return
            started_ms = self._clock()
            verdicts = await self._handle(puller, batches)
            failed: list[MessageExt] = []
            wait_ms = 0
            for index, batch in enumerate(batches):
                if failed or index >= len(verdicts):
                    failed += batch  # not begun: behind one that failed, or the lock was lost
                    continue
                done = (
                    len(batch) if verdicts[index].done is None else min(verdicts[index].done or 0, len(batch))
                )
                held.finish(batch[:done], int(self._clock()))
                self._stats.handled(
                    held.queue.topic, done, len(batch) - done, (self._clock() - started_ms) / len(verdicts)
                )
                if done < len(batch) and (kept := await self._counted(puller, batch[done:])):
                    failed += kept
                    suspend_ms = verdicts[index].later.suspend_ms
                    wait_ms = self._config.suspend_ms if suspend_ms is None else suspend_ms
            held.put_back(failed)
            puller.wake()
            if wait_ms:
                await asyncio.sleep(min(max(wait_ms, 10), 30_000) / 1000)
            else:
                await asyncio.sleep(0)

    def _goes_on(self, puller: Puller) -> bool:
        return not puller.held.dropped and not self._closing

    def _may_handle(self, puller: Puller) -> bool:
        """Whether the lock can be relied on. Also asked on threads, between two batches."""
        return self._goes_on(puller) and (self._lock is None or puller.held.is_locked(int(self._clock())))

    def _take(self, puller: Puller) -> list[list[MessageExt]]:
        """The next batches; a message that cannot be decoded is one by itself."""
        size = self._config.batch_size
        messages = puller.held.take(size * _CHUNK if self._pool is not None else size)
        batches: list[list[MessageExt]] = []
        for message in messages:
            is_good = message.decode_error is None
            if is_good and batches and len(batches[-1]) < size and batches[-1][0].decode_error is None:
                batches[-1].append(message)
            else:
                batches.append([message])
        return batches

    async def _handle(self, puller: Puller, batches: list[list[MessageExt]]) -> list[Verdict]:
        """What the handler says to each batch, up to the first that is not done with."""
        if batches[0][0].decode_error is not None:
            return [_NOT_HANDLED]
        if self._pool is None:
            return [await self._callee.verdict(batches[0], threads=False)]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._handle_on_thread, puller, batches, loop)

    def _handle_on_thread(
        self, puller: Puller, batches: list[list[MessageExt]], loop: asyncio.AbstractEventLoop
    ) -> list[Verdict]:
        verdicts: list[Verdict] = []
        for batch in batches:
            if not self._may_handle(puller) or batch[0].decode_error is not None:
                break
            verdicts.append(verdict_on_thread(self._callee, batch, loop))
            if verdicts[-1].done is not None:
                break
        return verdicts

    async def _counted(self, puller: Puller, messages: list[MessageExt]) -> list[MessageExt]:
        """Those that come again here, having come once more.

        Sent away are those that came too often, and those that cannot be decoded: that would not change here.
        """
        kept: list[MessageExt] = []
        for message in messages:
            if message.decode_error is None and message.reconsume_times < self._times_max:
                kept.append(message.with_reconsume_times(message.reconsume_times + 1))
            elif self._config.model is MessageModel.BROADCASTING:
                log.warning("%s was not handled, and is left out: this group broadcasts", message)
                puller.held.finish([message], int(self._clock()))
            elif await self._sent_away(puller, message):
                puller.held.finish([message], int(self._clock()))
            else:
                kept.append(message)
        return kept

    async def _sent_away(self, puller: Puller, message: MessageExt) -> bool:
        try:
            if message.decode_error is not None:
                await self._send_back.send_back(message, puller.held.queue, -1, self._times_max)
            else:
                await self._send_back.send_to_dead_letters(message, self._times_max)
        except RocketError as error:
            self._limited_log.error(
                type(error).__name__,
                "%s could not be sent to the dead letters; its queue waits: %s",
                message,
                error,
            )
            return False
        return True

    async def _lock_again(self, puller: Puller) -> None:
        """The lock ran out, or was lost: ask for it, and wait before the next look."""
        await asyncio.sleep(_LOCK_AGAIN_S)
        if self._lock is not None and self._goes_on(puller) and not await self._lock(puller):
            await asyncio.sleep(_LOCK_FAILED_S)
