"""QueueLocks: the locks that one member has on its queues, at the queues' brokers.

Orderly members need them: no handler is called without a lock. For the others a lock shows the next owner of
a queue whether the former one has released it; see `Handover`. A broker that cannot lock does not stop them.

From 5.1.1 RocketMQ's brokers take every group with locks for an orderly one, and store copies for its retry
topic as dead letters. So locks of the others are kept under the name of that topic, not of the group. Access
control treats both names alike.

Source: RocketMQ 4.6 RebalanceImpl lock, lockAll, unlock, unlockAll; 5.1.1 SendMessageProcessor
handleRetryAndDLQ. Differs: RocketMQ's concurrent members lock nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from rocketpy.consumer.fetch.consumer_api import ConsumerApi, by_broker
from rocketpy.consumer.fetch.process_queue import LOCK_INTERVAL_MS
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.group.progress_watch import ProgressWatch
from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX
from rocketpy.runtime.rate_limited_log import RateLimitedLog

log: Final = logging.getLogger("rocketpy.consumer")

LOCK_CHECK_MS: Final = 5000
"""How often locks that are due, and those that are missing, are requested."""


class QueueLocks:
    """Requests, renews and releases locks.

    held: returns the pullers of the queues that the rebalance has assigned to the member, also of those that
    are being released. needed: whether the queues are consumed only with a lock.
    """

    def __init__(
        self,
        api: ConsumerApi,
        held: Callable[[], Mapping[MessageQueue, Puller]],
        watch: ProgressWatch,
        *,
        needed: bool,
    ) -> None:
        self._api = api
        self._held = held
        self._watch = watch
        self._needed = needed
        self._owner = api.group if needed else RETRY_TOPIC_PREFIX + api.group
        self._is_closed = False
        self._limited_log = RateLimitedLog(log)

    async def lock(self, queue: MessageQueue) -> bool | None:
        """Lock a queue. Returns False if another member has locked it.

        Returns None if the broker cannot lock it; if locks are needed, raises RocketError instead.
        """
        try:
            return queue in await self._api.lock([queue], self._owner)
        except RocketError as error:
            if self._needed:
                raise
            log.debug("%s is not locked: %s", queue, error)
            return None

    async def take_over(self, queue: MessageQueue, gone: Collection[str]) -> bool | None:
        """Lock a queue after members that have left the group without unlocking it; as `lock`."""
        with contextlib.suppress(RocketError):
            for client_id in gone:
                await self._api.unlock([queue], self._owner, client_id)
        return await self.lock(queue)

    async def renew_due(self) -> None:
        """Renew the locks that are due, and request missing ones."""
        now_ms = int(self._api.client.now_ms())
        due = []
        for queue, puller in self._held().items():
            locked_ms = puller.process_queue.locked_ms
            if locked_ms is None or now_ms - locked_ms >= LOCK_INTERVAL_MS:
                due.append(queue)
        await self._renew(due)

    async def renew(self, puller: Puller) -> bool:
        """Request the lock of one queue again. Returns whether it is locked."""
        queue = puller.process_queue.queue
        if self._held().get(queue) is puller:
            await self._renew([queue])
        return puller.process_queue.is_locked(int(self._api.client.now_ms()))

    async def _renew(self, queues: Collection[MessageQueue]) -> None:
        """Renew locks. Those of an unreachable broker are kept until they expire."""
        if not self._is_closed:
            await asyncio.gather(*(self._renew_some(some) for some in by_broker(queues).values()))

    async def _renew_some(self, queues: Collection[MessageQueue]) -> None:
        now_ms = int(self._api.client.now_ms())
        try:
            locked = await self._api.lock(queues, self._owner)
        except RocketError as error:
            if self._needed:
                text = "locks of %d queues were not renewed: %s"
                self._limited_log.warning(f"locks {type(error).__name__}", text, len(queues), error)
                for queue in queues:
                    self._watch.lock_failed(queue, error)
            return
        held = self._held()
        for queue in queues:
            if (puller := held.get(queue)) is not None:
                puller.process_queue.locked_ms = now_ms if queue in locked else None
            if self._needed and queue not in locked:
                self._watch.lock_failed(queue, "another member of the group has locked it")

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Release locks, so that another member can lock the queues at once. Failures are logged."""
        await asyncio.gather(*(self._unlock_some(some) for some in by_broker(queues).values()))

    async def _unlock_some(self, queues: Collection[MessageQueue]) -> None:
        try:
            await self._api.unlock(queues, self._owner)
        except RocketError as error:
            log.info("%d queues were not unlocked; their locks expire: %s", len(queues), error)

    async def close(self, acquiring: Mapping[MessageQueue, asyncio.Future[None]]) -> None:
        """Release all locks, also of queues that are being acquired, and renew none any more."""
        self._is_closed = True
        if acquiring:
            await asyncio.wait(set(acquiring.values()), timeout=1)
        await self.unlock({*self._held(), *acquiring})
