"""QueueLocks: the locks of a member's queues at their brokers, for orderly consumption.

Source: RocketMQ 4.6 RebalanceImpl lock, lockAll, unlock, unlockAll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final

from rocketpy.consumer.fetch.consumer_api import ConsumerApi, by_broker
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.group.progress_watch import ProgressWatch
from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.runtime.rate_limited_log import RateLimitedLog

log: Final = logging.getLogger("rocketpy.consumer")


class QueueLocks:
    """Renews and releases locks. pullers: of the member's queues."""

    def __init__(
        self, api: ConsumerApi, pullers: Mapping[MessageQueue, Puller], watch: ProgressWatch
    ) -> None:
        self._api = api
        self._pullers = pullers
        self._watch = watch
        self._is_closed = False
        self._limited_log = RateLimitedLog(log)

    async def renew_all(self) -> None:
        """Renew the locks of all queues. Locks of an unreachable broker are kept until they expire."""
        if self._is_closed:
            return
        await asyncio.gather(*(self._renew(queues) for queues in by_broker(self._pullers).values()))

    async def renew(self, puller: Puller) -> bool:
        """Request the lock of one queue again. Returns whether it is locked."""
        queue = puller.process_queue.queue
        if self._pullers.get(queue) is puller:
            await self._renew([queue])
        return puller.process_queue.is_locked(int(self._api.client.now_ms()))

    async def _renew(self, queues: Collection[MessageQueue]) -> None:
        now_ms = int(self._api.client.now_ms())
        try:
            locked = await self._api.lock(queues)
        except RocketError as error:
            text = "locks of %d queues were not renewed: %s"
            self._limited_log.warning(f"locks {type(error).__name__}", text, len(queues), error)
            for queue in queues:
                self._watch.lock_failed(queue, error)
            return
        for queue in queues:
            puller = self._pullers.get(queue)
            if puller is not None:
                puller.process_queue.locked_ms = now_ms if queue in locked else None
            if queue not in locked:
                self._watch.lock_failed(queue, "another member of the group has locked it")

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Release locks, so that another member can lock the queues at once. Failures are logged."""
        for some in by_broker(queues).values():
            try:
                await self._api.unlock(some)
            except RocketError as error:
                log.info("%d queues were not unlocked; their locks expire: %s", len(some), error)

    async def close(self, acquiring: Mapping[MessageQueue, asyncio.Future[None]]) -> None:
        """Release all locks, also of queues that are being acquired, and renew none any more."""
        self._is_closed = True
        if acquiring:
            await asyncio.wait(set(acquiring.values()), timeout=1)
        await self.unlock([*self._pullers, *acquiring])
