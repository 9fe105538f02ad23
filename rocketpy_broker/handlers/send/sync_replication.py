"""SYNC_MASTER: sends are acknowledged once a slave has them. One report of a slave answers all it covers.

What waits, and for how long, is `ha.waiting`'s matter; this gives it the loop's time, and sends answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.handlers.send.response import ParkedResponse, SendResponses
from rocketpy_broker.replication.ha.sync_waiters import Answer, Replicas, WaitingSends


class ReplicaWaiters:
    """Holds answers until a slave has what they acknowledge.

    timeout_ms, are_before: see `WaitingSends`. poke: sends slaves what was written.
    on_visible: called when more may be shown to consumers; see `limit`.
    """

    def __init__(
        self,
        replicas: Replicas,
        answers: SendResponses,
        tasks: Tasks,
        *,
        timeout_ms: int,
        are_before: Callable[[], bool],
        poke: Callable[[], None],
        on_visible: Callable[[], None],
    ) -> None:
        self._waiting = WaitingSends[ParkedResponse](replicas, timeout_ms=timeout_ms, are_before=are_before)
        self._answers = answers
        self._tasks = tasks
        self._poke = poke
        self._on_visible = on_visible
        self._timer: asyncio.TimerHandle | None = None
        self._answered = asyncio.Event()
        self.limit = self._waiting.limit
        """Returns the log offset below which consumers may read."""

    def park(self, sends: list[ParkedResponse], until: int) -> None:
        """Answer these when a slave has everything below `until`; without sends, show that then."""
        self._poke()
        loop = asyncio.get_running_loop()
        self._answer(self._waiting.park(sends, until, loop.time() * 1000))
        if self._timer is None:
            self._expire_later(loop)

    def acked(self) -> None:
        """A slave has more than before."""
        self._answer(self._waiting.acked())

    async def drain(self) -> None:
        """Wait until all are answered, which takes at most `timeout_ms`."""
        while self._waiting.ends_ms is not None:
            self._answered.clear()
            await self._answered.wait()

    def fail(self) -> None:
        """Answer all that wait: this broker stops, or is no master any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._answer(self._waiting.fail())

    def _expire_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for all: they end in order, and nearly all are answered before."""
        ends_ms = self._waiting.ends_ms
        self._timer = None if ends_ms is None else loop.call_at(ends_ms / 1000, self._tasks.run, self._expire)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        # A timer may fire a little early, by the clock's resolution.
        now_ms = max(loop.time() * 1000, self._timer.when() * 1000 if self._timer is not None else 0)
        self._answer(self._waiting.expire(now_ms))
        self._expire_later(loop)

    def _answer(self, answers: list[Answer[ParkedResponse]]) -> None:
        for sends, code in answers:
            for parked in sends:
                parked.channel.reply(self._answers.stored(parked, code))
        if answers:
            self._answered.set()
            self._on_visible()
