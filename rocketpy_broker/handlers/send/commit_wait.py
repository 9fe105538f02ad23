"""DLedger: whatever stores a message is answered once a majority has it. One commit answers all it covers.

Source: DLedgerCommitLog.putMessage of RocketMQ 4.6.0, with the codes and remarks that its statuses become in
SendMessageProcessor. Differs: who waits holds no thread, and not behind each other's time; batches are taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from rocketpy.errors import StoreError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from rocketpy_broker.handlers.send.response import ParkedResponse, ParkResponses, SendResponses

PC_BUSY: Final = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
"""OS_PAGECACHE_BUSY: what 4.6.0 answers when no majority has taken a message in time, or too many wait."""
_UNKNOWN: Final = "UNKNOWN_ERROR"

OnStored = Callable[[StoreError | None], None]
"""Told that a message is stored, or why it is not, or may not be."""


class _Group:
    """Sends and others of one socket buffer. until: log offset behind the last of them."""

    __slots__ = ("listeners", "sends", "timer", "until")

    def __init__(
        self,
        sends: list[ParkedResponse],
        listeners: Sequence[OnStored],
        until: int,
        timer: asyncio.TimerHandle,
    ) -> None:
        self.sends = sends
        self.listeners = listeners
        self.until = until
        self.timer = timer


class CommitWaiters:
    """Holds answers until the ledger is committed up to what they acknowledge.

    appended: the log offset behind what was appended last. push: lets it go to the others at once.
    timeout_ms: after so long the sender is told to try again; the message may be there all the same.
    """

    def __init__(
        self,
        answers: SendResponses,
        tasks: Tasks,
        *,
        appended: Callable[[], int],
        push: Callable[[], None],
        timeout_ms: int,
    ) -> None:
        self._answers = answers
        self._tasks = tasks
        self._appended = appended
        self._push = push
        self._timeout_s = timeout_ms / 1000
        self._groups: deque[_Group] = deque()
        self._listeners: Sequence[OnStored] = ()
        self._answered = asyncio.Event()
        self.park: ParkResponses = self._park
        """Who takes sends; may be wrapped."""

    def hold(self, sends: list[ParkedResponse], listeners: Sequence[OnStored]) -> None:
        """Answer these, and tell those, when all that is appended until now is committed."""
        self._listeners = listeners
        self.park(sends, self._appended())
        self._push()

    def _park(self, sends: list[ParkedResponse], until: int) -> None:
        listeners, self._listeners = self._listeners, ()
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._tasks.run, self._expire)
        self._groups.append(_Group(sends, listeners, until, timer))

    def committed(self, offset: int) -> None:
        """The log is committed up to this offset."""
        groups = self._groups
        answered: set[Channel] = set()
        while groups and groups[0].until <= offset:
            group = groups.popleft()
            group.timer.cancel()
            for parked in group.sends:
                parked.channel.reply(self._answers.stored(parked))
                answered.add(parked.channel)
            for tell in group.listeners:
                tell(None)
            self._answered.set()
        for channel in answered:  # now, not only when the loop's turn ends: they have waited for disks
            channel.flush()

    async def drain(self) -> None:
        """Wait until all are answered, which takes at most `timeout_ms`."""
        while self._groups:
            self._answered.clear()
            await self._answered.wait()

    def fail(self) -> None:
        """Another leader has come, or this broker stops: whether it has what waits here is open."""
        while self._groups:
            self._refuse(self._groups.popleft(), _UNKNOWN)

    def _expire(self) -> None:
        """The time of the first group is over; timers of all groups end in order."""
        now = asyncio.get_running_loop().time()
        while self._groups and self._groups[0].timer.when() <= now:
            self._refuse(self._groups.popleft(), PC_BUSY)

    def _refuse(self, group: _Group, remark: str) -> None:
        group.timer.cancel()
        for parked in group.sends:
            parked.channel.reply(self._answers.refused(parked.request, ResponseCode.SYSTEM_ERROR, remark))
        for tell in group.listeners:
            tell(StoreError(f"no majority has it: {remark}"))
        self._answered.set()
