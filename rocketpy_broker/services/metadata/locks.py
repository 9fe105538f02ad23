"""Queue locks of orderly consumers. They are in memory, and a lock expires 60 s after its renewal.

No I/O or clock: `now_ms` is an argument. Source: RebalanceLockManager of RocketMQ 4.6.0. Differs: expired
locks are removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rocketpy.protocol.bodies import MessageQueue

LOCK_MS: Final = 60_000
LOCKS_MAX: Final = 1_000_000
"""Limit of all locks. At the limit, no further queue is locked until a lock ends. Not in RocketMQ."""
_NAME_CHARACTERS_MAX: Final = 1024
"""Limit of group, client id, topic and broker name: longer names get no lock. Not in RocketMQ."""


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int

    def is_available_to(self, client_id: str, now_ms: int) -> bool:
        return self.client_id == client_id or now_ms - self.renewed_ms > LOCK_MS


class QueueLocks:
    """The locks of all groups."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Lock queues for a client, or renew its locks; return those queues that the client now holds."""
        locked: list[MessageQueue] = []
        if max(len(group), len(client_id)) > _NAME_CHARACTERS_MAX:
            return locked
        locks = self._groups.setdefault(group, {})
        for queue in queues:
            held = locks.get(queue)
            is_full = self._count >= LOCKS_MAX
            if held is None and (
                is_full or max(len(queue.topic), len(queue.broker_name)) > _NAME_CHARACTERS_MAX
            ):
                continue
            if held is None or held.is_available_to(client_id, now_ms):
                self._count += held is None
                locks[queue] = _Lock(client_id, now_ms)
                locked.append(queue)
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Remove a client's locks of these queues."""
        locks = self._groups.get(group, {})
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._groups.pop(group, None)

    def drop_expired(self, now_ms: int) -> None:
        """Remove expired locks."""
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, held in locks.items() if now_ms - held.renewed_ms > LOCK_MS]:
                del locks[queue]
                self._count -= 1
            if not locks:
                del self._groups[group]

    def __len__(self) -> int:
        return self._count
