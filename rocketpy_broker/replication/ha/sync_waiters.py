"""Sends of a SYNC_MASTER that wait for a slave, and the offset up to which consumers may read. No I/O.

Source: CommitLog.handleHA, GroupTransferService of RocketMQ 4.6.0. Differs: consumers get a message only
after its sender has the response (#8239), and the timeouts of waiting sends do not add up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from rocketpy.protocol.codes import ResponseCode

T = TypeVar("T")

_ALL: Final = 1 << 62


class SlaveAcks(Protocol):
    """The offsets that the slaves have acknowledged; see `ConnectedSlaves`."""

    @property
    def acked(self) -> int:
        """The highest offset up to which a slave has the log; -1 without a slave."""

    def is_slave_ok(self, offset: int) -> bool:
        """Whether a send may wait for a slave."""


class ReplicationResult(NamedTuple, Generic[T]):
    """Sends that are done."""

    sends: list[T]
    code: int
    """SUCCESS, SLAVE_NOT_AVAILABLE or FLUSH_SLAVE_TIMEOUT."""


class _Group(Generic[T]):
    """Sends that were parked together. until: log offset at which the last message ends."""

    __slots__ = ("deadline_ms", "sends", "until")

    def __init__(self, sends: list[T], until: int, deadline_ms: float) -> None:
        self.sends = sends
        self.until = until
        self.deadline_ms = deadline_ms


class SyncWaiters(Generic[T]):
    """Waiting sends in the order of the log; each gets exactly one result.

    timeout_ms: time after which a send gets FLUSH_SLAVE_TIMEOUT. has_unflushed: whether sends still wait for
    their flush, after which they are parked here. Consumers must not read their messages until then.
    """

    def __init__(self, slaves: SlaveAcks, *, timeout_ms: float, has_unflushed: Callable[[], bool]) -> None:
        self._slaves = slaves
        self._timeout_ms = timeout_ms
        self._has_unflushed = has_unflushed
        self._groups: deque[_Group[T]] = deque()
        self._visible = 0

    @property
    def deadline_ms(self) -> float | None:
        """Time of the next timeout; None while no send waits."""
        return self._groups[0].deadline_ms if self._groups else None

    def limit(self) -> int:
        """Return the log offset up to which consumers may read; everything while no send waits."""
        return self._visible if self._groups or self._has_unflushed() else _ALL

    def park(self, sends: list[T], until: int, now_ms: float) -> list[ReplicationResult[T]]:
        """Park sends until a slave has everything up to `until`; return the results that are known now.

        `sends` may be empty, for messages without a waiting sender: consumers do not read these either until
        a slave has them.
        """
        if self._slaves.is_slave_ok(until):
            self._groups.append(_Group(sends, until, now_ms + self._timeout_ms))
            return self.release_acked()
        if self._groups:  # consumers must not read these messages before those of the waiting sends
            self._groups[-1].until = max(self._groups[-1].until, until)
        else:
            self._visible = max(self._visible, until)
        return [ReplicationResult(sends, ResponseCode.SLAVE_NOT_AVAILABLE)]

    def release_acked(self) -> list[ReplicationResult[T]]:
        """Remove the sends that a slave has acknowledged; return their results."""
        acked = self._slaves.acked
        return self._release(lambda group: group.until <= acked, ResponseCode.SUCCESS)

    def expire(self, now_ms: float) -> list[ReplicationResult[T]]:
        """Remove the sends that have timed out; return their results."""
        return self._release(lambda group: group.deadline_ms <= now_ms, ResponseCode.FLUSH_SLAVE_TIMEOUT)

    def fail(self) -> list[ReplicationResult[T]]:
        """Remove all sends and return their results: this broker stops, or is no longer the master."""
        return self._release(lambda _: True, ResponseCode.FLUSH_SLAVE_TIMEOUT)

    def _release(self, is_done: Callable[[_Group[T]], bool], code: int) -> list[ReplicationResult[T]]:
        groups, results = self._groups, list[ReplicationResult[T]]()
        while groups and is_done(groups[0]):
            group = groups.popleft()
            self._visible = max(self._visible, group.until)
            results.append(ReplicationResult(group.sends, code))
        return results
