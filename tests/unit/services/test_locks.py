"""QueueLocks: which client holds a queue, and until when."""

from __future__ import annotations

import pytest

from rocketpy.protocol.bodies import MessageQueue
from rocketpy_broker.services.metadata import locks as module
from rocketpy_broker.services.metadata.locks import LOCK_MS, QueueLocks

ONE, TWO = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_a_queue_has_one_holder_until_its_lock_expires() -> None:
    """Two members of an orderly group would handle one queue, or none after the holder has died."""
    locks = QueueLocks()
    assert locks.lock("g", "a", [ONE, TWO], 0) == [ONE, TWO]
    assert locks.lock("g", "b", [ONE, TWO], LOCK_MS) == []
    assert locks.lock("other", "b", [ONE], 0) == [ONE]
    assert locks.lock("g", "a", [ONE], 1000) == [ONE]  # renewed
    assert locks.lock("g", "b", [ONE, TWO], LOCK_MS + 1) == [TWO]
    assert locks.lock("g", "a", [TWO], LOCK_MS + 1) == []
    assert locks.lock("g", "b", [ONE], 1000 + LOCK_MS + 1) == [ONE]
    assert len(locks) == 3


def test_only_the_holder_unlocks() -> None:
    """A member that lost a queue would unlock it under its new owner."""
    locks = QueueLocks()
    locks.lock("g", "a", [ONE], 0)
    locks.unlock("g", "b", [ONE, TWO])
    locks.unlock("unknown", "b", [ONE])
    assert locks.lock("g", "b", [ONE], 0) == []
    locks.unlock("g", "a", [ONE])
    assert len(locks) == 0
    assert locks.lock("g", "b", [ONE], 0) == [ONE]


def test_expired_locks_are_dropped() -> None:
    """Locks of members that are gone would count against the limit for ever."""
    locks = QueueLocks()
    locks.lock("g", "a", [ONE], 0)
    locks.lock("g", "a", [TWO], 10)
    locks.lock("other", "a", [ONE], 0)
    list(locks.drop_expired(LOCK_MS))
    assert len(locks) == 3
    list(locks.drop_expired(LOCK_MS + 1))
    assert len(locks) == 1
    assert locks.lock("g", "b", [TWO], LOCK_MS + 1) == []
    list(locks.drop_expired(LOCK_MS + 11))
    assert len(locks) == 0
    assert locks._groups == {}


def test_locks_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients could fill the broker's memory; or, at the limit, the holders would lose their queues."""
    monkeypatch.setattr(module, "LOCK_BYTES_MAX", 800)
    locks = QueueLocks()
    third = MessageQueue("T", "b", 2)
    assert locks.lock("g", "a", [ONE, TWO, third], 0) == [ONE, TWO]
    assert locks.lock("g", "a", [ONE, TWO], 1) == [ONE, TWO]
    assert locks.lock("g", "b", [ONE], LOCK_MS + 2) == [ONE]  # an expired lock is taken over
    locks.unlock("g", "b", [ONE])
    assert locks.lock("g", "a", [third], 1) == [third]
    assert locks.lock("g", "a", [ONE], 1) == []
    long = "x" * 1025
    fresh = QueueLocks()
    assert fresh.lock(long, "a", [ONE], 0) == fresh.lock("g", long, [ONE], 0) == []
    assert fresh.lock("g", "a", [MessageQueue(long, "b", 0), MessageQueue("T", long, 0)], 0) == []
    assert fresh.lock(long[1:], long[1:], [MessageQueue(long[1:], long[1:], 0)], 0) != []
