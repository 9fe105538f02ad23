"""Sends that a SYNC_MASTER answers once a slave has them, and what consumers may read meanwhile. Pure.

Source: CommitLog.handleHA, GroupTransferService of RocketMQ 4.6.0. Differs: messages are shown to consumers
once they are answered, and not before (#8239); sends that wait do not queue up behind each other's time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from rocketpy.protocol.codes import ResponseCode

T = TypeVar("T")

_ALL: Final = 1 << 62


class SlaveAcks(Protocol):
    """How far slaves are."""

    @property
    def acked(self) -> int:
        """One of them has the log up to there, at least; -1 without one."""

    def is_slave_ok(self, offset: int) -> bool:
        """Whether it makes sense to wait for one."""


class ReplicationResult(NamedTuple, Generic[T]):
    """Sends that wait no longer. code: SUCCESS, SLAVE_NOT_AVAILABLE or FLUSH_SLAVE_TIMEOUT."""

    sends: list[T]
    code: int


class _Group(Generic[T]):
    """Sends that came together. until: log offset behind the last of them."""

    __slots__ = ("ends_ms", "sends", "until")

    def __init__(self, sends: list[T], until: int, ends_ms: float) -> None:
        self.sends = sends
        self.until = until
        self.ends_ms = ends_ms


class SyncWaiters(Generic[T]):
    """Sends in the order of the log, each answered exactly once.

    timeout_ms: after so long a send is answered FLUSH_SLAVE_TIMEOUT. are_before: whether sends wait for
    something else first, such as the disk, and are not here yet: nobody may read those either.
    """

    def __init__(self, replicas: SlaveAcks, *, timeout_ms: float, are_before: Callable[[], bool]) -> None:
        self._replicas = replicas
        self._timeout_ms = timeout_ms
        self._are_before = are_before
        self._groups: deque[_Group[T]] = deque()
        self._visible = 0

    @property
    def ends_ms(self) -> float | None:
        """When `expire` has something to do; None while nobody waits."""
        return self._groups[0].ends_ms if self._groups else None

    def limit(self) -> int:
        """The log offset below which consumers may read; all of it while nobody waits."""
        return self._visible if self._groups or self._are_before() else _ALL

    def park(self, sends: list[T], until: int, now_ms: float) -> list[ReplicationResult[T]]:
        """Take sends that are answered when a slave has everything below `until`; return what is answered.

        Without sends, what was written may be read then.
        """
        if self._replicas.is_slave_ok(until):
            self._groups.append(_Group(sends, until, now_ms + self._timeout_ms))
            return self.acked()
        if self._groups:  # in order: nobody may read them before those that wait
            self._groups[-1].until = max(self._groups[-1].until, until)
        else:
            self._visible = max(self._visible, until)
        return [ReplicationResult(sends, ResponseCode.SLAVE_NOT_AVAILABLE)]

    def acked(self) -> list[ReplicationResult[T]]:
        """A slave may have more than before."""
        acked = self._replicas.acked
        return self._release(lambda group: group.until <= acked, ResponseCode.SUCCESS)

    def expire(self, now_ms: float) -> list[ReplicationResult[T]]:
        """Time has passed."""
        return self._release(lambda group: group.ends_ms <= now_ms, ResponseCode.FLUSH_SLAVE_TIMEOUT)

    def fail(self) -> list[ReplicationResult[T]]:
        """This broker stops, or is no master any more."""
        return self._release(lambda _: True, ResponseCode.FLUSH_SLAVE_TIMEOUT)

    def _release(self, is_over: Callable[[_Group[T]], bool], code: int) -> list[ReplicationResult[T]]:
        groups, answers = self._groups, list[ReplicationResult[T]]()
        while groups and is_over(groups[0]):
            group = groups.popleft()
            self._visible = max(self._visible, group.until)
            answers.append(ReplicationResult(group.sends, code))
        return answers
