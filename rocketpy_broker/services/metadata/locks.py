"""Queue locks of orderly consumers. They are in memory, and a lock expires 60 s after its renewal.

No I/O or clock: `now_ms` is an argument. Source: RebalanceLockManager of RocketMQ 4.6.0. Differs: expired
locks are removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from sys import getsizeof
from typing import Final

from rocketpy.protocol.bodies import MessageQueue

LOCK_MS: Final = 60_000
LOCK_BYTES_MAX: Final = 128 << 20
"""Limit of the memory of all locks, about 300,000. At the limit, no queue is locked until a lock ends. Not in
RocketMQ."""
_LOCK_BYTES: Final = 300
"""Memory of a lock without its names."""
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
        self._bytes = 0

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Lock queues for a client, or renew its locks; return those queues that the client now holds."""
        locked: list[MessageQueue] = []
        if max(len(group), len(client_id)) > _NAME_CHARACTERS_MAX:
            return locked
        locks = self._groups.get(group, {})
        for queue in queues:
            held = locks.get(queue)
            is_full = self._bytes >= LOCK_BYTES_MAX
            if held is None and (
                is_full or max(len(queue.topic), len(queue.broker_name)) > _NAME_CHARACTERS_MAX
            ):
                continue
            if held is None or held.is_available_to(client_id, now_ms):
                if held is not None:
                    self._remove(locks, queue, held)
                self._count += 1
                self._bytes += _size(queue, client_id)
                locks[queue] = _Lock(client_id, now_ms)
                locked.append(queue)
        if locked:
            self._groups[group] = locks
        return locked

    def _remove(self, locks: dict[MessageQueue, _Lock], queue: MessageQueue, held: _Lock) -> None:
        del locks[queue]
        self._count -= 1
        self._bytes -= _size(queue, held.client_id)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Remove a client's locks of these queues."""
        locks = self._groups.get(group, {})
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                self._remove(locks, queue, held)
        if not locks:
            self._groups.pop(group, None)

    def drop_expired(self, now_ms: int) -> Iterator[None]:
        """Remove expired locks; yield after each lock, since there may be many."""
        for group in list(self._groups):
            locks = self._groups.get(group, {})
            for queue, held in list(locks.items()):
                if now_ms - held.renewed_ms > LOCK_MS and locks.get(queue) is held:
                    self._remove(locks, queue, held)
                yield
            if not locks and self._groups.get(group) is locks:
                del self._groups[group]

    def __len__(self) -> int:
        return self._count


def _size(queue: MessageQueue, client_id: str) -> int:
    return _LOCK_BYTES + getsizeof(queue.topic) + getsizeof(queue.broker_name) + getsizeof(client_id)
