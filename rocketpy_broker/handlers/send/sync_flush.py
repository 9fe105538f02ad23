"""SYNC_FLUSH: sends are acknowledged once a flush covers them. One flush serves all that wait for it.

Source: GroupCommitService of RocketMQ 4.6.0. Differs: a flush that fails is final (#2706); who
waited is told that the broker failed, and not that it was slow.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from rocketpy.errors import StoreError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.handlers.send.response import ParkedResponse, ParkResponses, SendResponses
from rocketpy_broker.store.upkeep.driver import StoreDriver

log = logging.getLogger("rocketpy.broker.flush")


class _Group:
    """Sends of one socket buffer. until: log offset behind the last of them."""

    __slots__ = ("is_answered", "sends", "until")

    def __init__(self, sends: list[ParkedResponse], until: int) -> None:
        self.sends = sends
        self.until = until
        self.is_answered = False


class FlushWaiters:
    """Holds answers until the disk has what they acknowledge.

    timeout_ms: after so long an answer's code is FLUSH_DISK_TIMEOUT. then: who takes those that are flushed,
    instead of answering them.
    """

    def __init__(
        self,
        driver: StoreDriver,
        answers: SendResponses,
        tasks: Tasks,
        *,
        timeout_ms: int,
        then: ParkResponses | None = None,
    ) -> None:
        self._driver = driver
        self._tasks = tasks
        self._then = then
        self._answers = answers
        self._timeout_s = timeout_ms / 1000
        self._groups: deque[_Group] = deque()
        self._flushing: asyncio.Task[None] | None = None

    @property
    def are_waiting(self) -> bool:
        """Whether there is something that is not flushed yet, or not handed on."""
        return bool(self._groups)

    def park(self, sends: list[ParkedResponse], until: int) -> None:
        """Answer these when everything below `until` is flushed."""
        group = _Group(sends, until)
        self._groups.append(group)
        loop = asyncio.get_running_loop()
        loop.call_later(
            self._timeout_s, self._tasks.run, self._release, group, ResponseCode.FLUSH_DISK_TIMEOUT
        )
        if self._flushing is None:
            self._flushing = self._tasks.spawn(self._flush(), "flush for sends")

    async def _flush(self) -> None:
        try:
            while self._groups:
                flushed = await self._driver.flush()
                while self._groups and self._groups[0].until <= flushed:
                    self._release(self._groups.popleft(), ResponseCode.SUCCESS)
        except StoreError as error:
            log.critical("sends that wait for a flush fail: %s", error)
        finally:
            self._flushing = None
            while self._groups:  # not flushed, whatever the reason
                self._release(self._groups.popleft(), ResponseCode.SYSTEM_ERROR)

    def _release(self, group: _Group, code: int) -> None:
        if group.is_answered:
            return
        group.is_answered = True
        sends, group.sends = group.sends, []
        if self._then is not None and code == ResponseCode.SUCCESS:
            self._then(sends, group.until)
            return
        for parked in sends:
            parked.channel.reply(self._answers.stored(parked, code))

    async def close(self) -> None:
        """Wait until nobody waits any more."""
        if self._flushing is not None:
            await asyncio.wait({self._flushing})
