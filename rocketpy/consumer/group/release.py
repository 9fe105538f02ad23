"""Releases: hands revoked queues over to their next owners.

A revoked queue is not pulled any more, and no handler call for it begins. Once its running handlers have
ended, its offset is committed and its lock ends; the next owner waits for that (`Handover`).

Source: RocketMQ 4.6 RebalancePushImpl removeUnnecessaryMessageQueue. Differs: RocketMQ's concurrent members
commit immediately, while their handlers still run.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rocketpy.client.instance import ClientInstance
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.group.offset_stores import OffsetStore
from rocketpy.consumer.group.queue_locks import QueueLocks
from rocketpy.consumer.handling.service import ConsumeService
from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.headers import ANY_QUEUE
from rocketpy.runtime.tasks import Tasks

log: Final = logging.getLogger("rocketpy.consumer")

_COMMIT_AGAIN_S: Final = 0.25
_COMMIT_AGAIN_MAX_S: Final = 3.0
"""Pause before the offset of a revoked queue is committed again; it doubles."""
_COMMIT_TIME_MS: Final = 60_000
"""How long that is repeated."""


class _Release(NamedTuple):
    """A queue that is being released."""

    puller: Puller
    offset: int | None
    """To commit; None for the offset after the handled messages."""
    task: asyncio.Task[None]


@dataclass(eq=False)
class Releases:
    """The queues that a member is releasing."""

    client: ClientInstance
    tasks: Tasks
    offsets: OffsetStore
    wait_ms: int | None
    """Limit of the wait for running handlers; None for orderly members, whose handlers must have ended."""
    stores_offsets: bool
    """Whether the member commits the offset after the handled messages."""
    locks: QueueLocks
    committing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during commits of the application; a queue is unlocked only after them."""

    def __post_init__(self) -> None:
        self._running: dict[MessageQueue, _Release] = {}

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._running

    def begin(
        self, puller: Puller, service: ConsumeService | None, offset: int | None, *, waits: bool
    ) -> None:
        """Begin to release a queue whose puller was stopped.

        offset: to commit, as after a reset; None for the offset after the handled messages. waits: whether to
        wait for running handlers.
        """
        queue = puller.process_queue.queue
        waits = waits and offset is None  # after a reset, results are ignored
        task = self.tasks.spawn(self._release(puller, service, offset, waits), f"release {queue}")
        self._running[queue] = _Release(puller, offset, task)

    def pullers(self) -> dict[MessageQueue, Puller]:
        """Return the pullers of the queues."""
        return {queue: one.puller for queue, one in self._running.items()}

    def progress(self) -> dict[MessageQueue, int]:
        """Return the offsets to commit."""
        return {
            queue: one.puller.process_queue.commit_offset
            for queue, one in self._running.items()
            if one.offset is None and queue.queue_id != ANY_QUEUE
        }

    async def wait(self, *queues: MessageQueue, timeout_s: float | None = None) -> None:
        """Wait until these queues are released; without arguments, all."""
        tasks = {one.task for queue, one in self._running.items() if not queues or queue in queues}
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def _release(
        self, puller: Puller, service: ConsumeService | None, offset: int | None, waits: bool
    ) -> None:
        queue = puller.process_queue.queue
        try:
            if service is not None:
                await self._wait_for_handlers(puller, service, waits)
            if offset is not None:
                await self.offsets.write({queue: offset}, again=True)
            elif self.stores_offsets and queue.queue_id != ANY_QUEUE:
                await self._commit(puller)
            async with self.committing:
                pass
            if puller.process_queue.locked_ms is not None:
                await self.locks.unlock([queue])
        finally:
            del self._running[queue]

    async def _wait_for_handlers(self, puller: Puller, service: ConsumeService, waits: bool) -> None:
        if self.wait_ms is None:
            await service.wait_released(puller)
            return
        try:
            async with asyncio.timeout(self.wait_ms / 1000 if waits else 0):
                await service.wait_released(puller)
        except TimeoutError:
            if waits:
                text = (
                    "%s goes to another member; handlers still run after %d ms, so it repeats their messages"
                )
                log.warning(text, puller.process_queue.queue, self.wait_ms)

    async def _commit(self, puller: Puller) -> None:
        """Commit the offset after the handled messages, unless the next owner has committed a later one.

        A failure is repeated, since the next owner would begin at an earlier offset.
        """
        queue, again_s = puller.process_queue.queue, _COMMIT_AGAIN_S
        until_ms = self.client.now_ms() + _COMMIT_TIME_MS
        while True:
            offset = puller.process_queue.commit_offset
            try:
                stored = await self.offsets.read(queue)
            except RocketError as error:
                log.info("the committed offset of %s is not known: %s", queue, error)
            else:
                is_later = stored is not None and stored >= offset
                if is_later or await self.offsets.write({queue: offset}, again=True) is None:
                    return
            if self.client.now_ms() > until_ms:
                return
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, _COMMIT_AGAIN_MAX_S)
