"""SYNC_MASTER: sends are acknowledged once a slave has them. One report of a slave answers all it covers.

Source: CommitLog.handleHA, GroupTransferService of RocketMQ 4.6.0. Differs: messages are shown to consumers
once they are answered, and not before (#8239); sends that wait do not queue up behind each other's time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from rocketpy.protocol.codes import ResponseCode
from rocketpy_broker.handlers.answers import Parked, SendAnswers

__all__ = ["ReplicaWaiters", "Replicas"]


class Replicas(Protocol):
    """How far slaves are."""

    @property
    def acked(self) -> int:
        """One of them has the log up to there, at least; -1 without one."""

    def is_slave_ok(self, offset: int) -> bool:
        """Whether it makes sense to wait for one."""


class _Group:
    """Sends of one socket buffer. until: log offset behind the last of them."""

    __slots__ = ("sends", "timer", "until")

    def __init__(self, sends: list[Parked], until: int, timer: asyncio.TimerHandle) -> None:
        self.sends = sends
        self.until = until
        self.timer = timer


class ReplicaWaiters:
    """Holds answers until a slave has what they acknowledge.

    timeout_ms: after so long an answer's code is FLUSH_SLAVE_TIMEOUT. poke: sends slaves what was written.
    on_visible: called when more may be shown to consumers; see `limit`.
    """

    def __init__(
        self,
        replicas: Replicas,
        answers: SendAnswers,
        *,
        timeout_ms: int,
        poke: Callable[[], None],
        on_visible: Callable[[], None],
    ) -> None:
        self._replicas = replicas
        self._answers = answers
        self._timeout_s = timeout_ms / 1000
        self._poke = poke
        self._on_visible = on_visible
        self._groups: deque[_Group] = deque()
        self._visible = 0

    def park(self, sends: list[Parked], until: int) -> None:
        """Answer these when a slave has everything below `until`; without sends, show that then."""
        self._poke()
        if not self._replicas.is_slave_ok(until):
            self._answer(sends, ResponseCode.SLAVE_NOT_AVAILABLE)
            if not self._groups:
                self._show(until)
            else:  # in order: nobody may read them before those that wait
                self._groups[-1].until = max(self._groups[-1].until, until)
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._timeout_s, self._expire)
        self._groups.append(_Group(sends, until, timer))
        self.acked()

    def acked(self) -> None:
        """A slave has more than before."""
        acked = self._replicas.acked
        self._release(lambda group: group.until <= acked, ResponseCode.SUCCESS)

    def limit(self) -> int:
        """The log offset below which consumers may read; all of it while nobody waits."""
        return self._visible if self._groups else 1 << 62

    def fail(self) -> None:
        """Answer all that wait: this broker stops, or is no master any more."""
        self._release(lambda _: True, ResponseCode.FLUSH_SLAVE_TIMEOUT)

    def _expire(self) -> None:
        """The time of the first group is over; timers of all groups end in order."""
        now = asyncio.get_running_loop().time()
        self._release(lambda group: group.timer.when() <= now, ResponseCode.FLUSH_SLAVE_TIMEOUT)

    def _release(self, is_over: Callable[[_Group], bool], code: int) -> None:
        groups = self._groups
        until = 0
        while groups and is_over(groups[0]):
            group = groups.popleft()
            group.timer.cancel()
            until = group.until
            self._answer(group.sends, code)
        if until:
            self._show(until)

    def _answer(self, sends: list[Parked], code: int) -> None:
        for parked in sends:
            parked.channel.reply(self._answers.stored(parked, code))

    def _show(self, until: int) -> None:
        self._visible = max(self._visible, until)
        self._on_visible()
