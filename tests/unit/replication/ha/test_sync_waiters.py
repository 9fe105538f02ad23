"""Sends that wait for a slave, and the messages that readers get meanwhile."""

from rocketpy.protocol.codes import ResponseCode
from rocketpy_broker.replication.ha.sync_waiters import ReplicationResult, SyncWaiters


class Slaves:
    """Offsets of slaves, as a test sets them."""

    acked = 0
    is_there = True

    def is_slave_ok(self, offset: int) -> bool:
        return self.is_there


def test_readers_stop_at_the_first_waiting_send() -> None:
    """A reader would get a message whose send may still fail, or never get the messages after it."""
    slaves = Slaves()
    waiting = SyncWaiters[str](slaves, timeout_ms=100, has_unflushed=lambda: True)
    assert waiting.park(["a"], 10, 0) == []
    assert waiting.park(["b"], 20, 1) == []
    assert waiting.deadline_ms == 100
    slaves.is_there = False
    assert waiting.park(["c"], 30, 2) == [ReplicationResult(["c"], ResponseCode.SLAVE_NOT_AVAILABLE)]
    assert waiting.limit() == 0
    slaves.acked = 10
    assert waiting.release_acked() == [ReplicationResult(["a"], ResponseCode.SUCCESS)]
    assert waiting.limit() == 10
    assert waiting.deadline_ms == 101
    assert waiting.expire(101) == [ReplicationResult(["b"], ResponseCode.FLUSH_SLAVE_TIMEOUT)]
    assert waiting.limit() == 30
    assert waiting.park(["d"], 40, 200) == [ReplicationResult(["d"], ResponseCode.SLAVE_NOT_AVAILABLE)]
    assert waiting.limit() == 40


def test_a_single_send_that_waits_holds_back_later_ones() -> None:
    """With one sender in flight when the last slave goes, the next send would be shown before it, or fail."""
    slaves = Slaves()
    waiting = SyncWaiters[str](slaves, timeout_ms=100, has_unflushed=lambda: True)
    waiting.park(["a"], 10, 0)
    slaves.is_there = False
    waiting.park(["b"], 20, 1)
    assert waiting.limit() == 0
    assert waiting.expire(100) == [ReplicationResult(["a"], ResponseCode.FLUSH_SLAVE_TIMEOUT)]
    assert waiting.limit() == 20
