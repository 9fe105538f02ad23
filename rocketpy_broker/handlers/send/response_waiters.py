"""Park responses until the messages that they acknowledge are flushed, replicated or committed.

Responses leave in the order of the log. One flush, one report of a slave or one commit releases all that it
covers, and no thread waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rocketpy.errors import StoreError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from rocketpy_broker.handlers.send.response import OnStored, ParkedResponse, ParkResponses, SendResponses
from rocketpy_broker.replication.ha.sync_waiters import ReplicationResult, SlaveAcks, SyncWaiters
from rocketpy_broker.store.upkeep.driver import StoreDriver

log = logging.getLogger("rocketpy.broker.flush")

PC_BUSY: Final = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
"""OS_PAGECACHE_BUSY: RocketMQ's remark when no majority has a message in time, or too many messages wait."""
_UNKNOWN: Final = "UNKNOWN_ERROR"


@dataclass(slots=True)
class _ParkedGroup:
    """Responses of one socket buffer: to sends, and those that callbacks send."""

    sends: list[ParkedResponse]
    until: int
    """Log offset after their messages."""
    on_stored: Sequence[OnStored]
    end_s: float
    """When they time out."""


class ResponseWaiters:
    """Parked responses in the order of the log. They time out in this order too, so one timer serves all.

    timeout_ms: time after which a response is sent anyway, with an error code. The message may still be
    stored.
    """

    def __init__(self, responses: SendResponses, tasks: Tasks, *, timeout_ms: int) -> None:
        self._responses = responses
        self._tasks = tasks
        self._timeout_s = timeout_ms / 1000
        self._groups: deque[_ParkedGroup] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._released = asyncio.Event()

    async def drain(self) -> None:
        """Wait until no response is parked, which takes at most `timeout_ms`."""
        while self._next_end_s() is not None:
            self._released.clear()
            await self._released.wait()

    def _add(self, sends: list[ParkedResponse], until: int, on_stored: Sequence[OnStored] = ()) -> None:
        self._groups.append(self._group(sends, until, on_stored))
        self._start_timer()

    def _group(self, sends: list[ParkedResponse], until: int, on_stored: Sequence[OnStored]) -> _ParkedGroup:
        return _ParkedGroup(sends, until, on_stored, asyncio.get_running_loop().time() + self._timeout_s)

    def _next_end_s(self) -> float | None:
        return self._groups[0].end_s if self._groups else None

    def _start_timer(self) -> None:
        end_s = self._next_end_s()
        if self._timer is None and end_s is not None:
            self._timer = self._tasks.call_at(end_s, self._on_timer, end_s)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self, end_s: float) -> None:
        self._timer = None
        # A timer may fire a little early, by the clock's resolution.
        self._expire(max(asyncio.get_running_loop().time(), end_s))
        self._start_timer()

    def _expire(self, now_s: float) -> None:
        while self._groups and self._groups[0].end_s <= now_s:
            self._time_out(self._groups.popleft())

    def _time_out(self, group: _ParkedGroup) -> None:
        raise NotImplementedError

    def _take_until(self, offset: int) -> list[_ParkedGroup]:
        """Remove and return the groups whose messages are below an offset of the log."""
        taken: list[_ParkedGroup] = []
        while self._groups and self._groups[0].until <= offset:
            taken.append(self._groups.popleft())
        return taken

    def _respond(self, groups: Sequence[_ParkedGroup], code: int, error: StoreError | None = None) -> None:
        """Send responses with this code now, not at the end of the loop's turn: their clients wait.

        error: for callbacks, if the messages may not be stored. Their responses have no code for a message
        that is stored, but not flushed or replicated.
        """
        ready: dict[Channel, list[bytes]] = {}
        for group in groups:
            if code in self._responses.less_durable:
                self._responses.less_durable[code] += sum(len(parked.positions) for parked in group.sends)
            for parked in group.sends:
                ready.setdefault(parked.channel, []).append(self._responses.stored(parked, code))
        for channel, responses in ready.items():
            channel.reply_now(responses)
        for group in groups:
            for listener in group.on_stored:
                listener(error)
        self._released.set()


class FlushWaiters(ResponseWaiters):
    """SYNC_FLUSH: parks responses until the disk has their messages. A timeout has code FLUSH_DISK_TIMEOUT.

    then: parks flushed responses for the next condition, instead of sending them.
    Source: GroupCommitService of RocketMQ 4.6.0. Differs: a flush that fails is final (#2706), and its
    responses say that the broker failed, not that it was slow.
    """

    def __init__(
        self,
        driver: StoreDriver,
        responses: SendResponses,
        tasks: Tasks,
        *,
        timeout_ms: int,
        then: ParkResponses | None = None,
    ) -> None:
        super().__init__(responses, tasks, timeout_ms=timeout_ms)
        self._driver = driver
        self._then = then
        self._until = 0
        self._limited_log = RateLimitedLog(log)
        self._flushing: asyncio.Task[None] | None = None

    @property
    def are_waiting(self) -> bool:
        """Whether some parked messages are not flushed yet, or not handed to `then`."""
        return self._flushing is not None

    def park(self, sends: list[ParkedResponse], until: int, on_stored: Sequence[OnStored] = ()) -> None:
        """Respond when everything below `until` is flushed."""
        self._add(sends, until, on_stored)
        self._until = until
        if self._flushing is None:
            self._flushing = self._tasks.spawn(self._flush(), "flush for sends")

    async def _flush(self) -> None:
        groups, flushed = self._groups, -1
        try:
            while flushed < self._until:
                flushed = await self._driver.flush()
                done = self._take_until(flushed)
                if self._then is None:
                    self._respond(done, ResponseCode.SUCCESS)
                else:
                    for group in done:
                        self._then(group.sends, group.until, group.on_stored)
        except StoreError as error:
            count = sum(len(group.sends) for group in groups)
            log.critical("%d sends fail, because the store cannot be flushed: %s", count, error)
        finally:
            self._flushing = None
            if groups:  # not flushed: the flush has failed or was cancelled
                failed = list(groups)
                groups.clear()
                failure = StoreError("the message is written, but the store cannot be flushed")
                self._respond(failed, ResponseCode.SYSTEM_ERROR, failure)

    def _time_out(self, group: _ParkedGroup) -> None:
        text = "%d sends get FLUSH_DISK_TIMEOUT: the flush takes longer than syncFlushTimeout"
        self._limited_log.warning("timeout", text, len(group.sends))
        self._respond([group], ResponseCode.FLUSH_DISK_TIMEOUT)

    async def close(self) -> None:
        """Wait until no response is parked."""
        if self._flushing is not None:
            await asyncio.wait({self._flushing})


class ReplicaWaiters(ResponseWaiters):
    """SYNC_MASTER: parks responses until a slave has their messages; `SyncWaiters` decides.

    has_unflushed: see `SyncWaiters`. poke: sends new messages to the slaves.
    on_visible: called when consumers may read more; see `limit`.
    """

    def __init__(
        self,
        slaves: SlaveAcks,
        responses: SendResponses,
        tasks: Tasks,
        *,
        timeout_ms: int,
        has_unflushed: Callable[[], bool],
        poke: Callable[[], None],
        on_visible: Callable[[], None],
    ) -> None:
        super().__init__(responses, tasks, timeout_ms=timeout_ms)
        self._waiting = SyncWaiters[_ParkedGroup](slaves, timeout_ms=timeout_ms, has_unflushed=has_unflushed)
        self._limited_log = RateLimitedLog(logging.getLogger("rocketpy.broker.ha"))
        self._poke = poke
        self._on_visible = on_visible
        self.limit = self._waiting.limit
        """Returns the log offset below which consumers may read."""

    def park(self, sends: list[ParkedResponse], until: int, on_stored: Sequence[OnStored] = ()) -> None:
        """Respond when a slave has everything below `until`. Consumers may read it only then."""
        self._poke()
        group = self._group(sends, until, on_stored)
        self._release(self._waiting.park([group], until, asyncio.get_running_loop().time() * 1000))
        self._start_timer()

    def acked(self) -> None:
        """Send the responses that wait for what a slave has acknowledged by now."""
        self._release(self._waiting.release_acked())

    def fail(self) -> None:
        """Respond FLUSH_SLAVE_TIMEOUT to all parked sends, as the broker stops."""
        self._stop_timer()
        self._release(self._waiting.fail())

    def _next_end_s(self) -> float | None:
        deadline_ms = self._waiting.deadline_ms
        return None if deadline_ms is None else deadline_ms / 1000

    def _expire(self, now_s: float) -> None:
        self._release(self._waiting.expire(now_s * 1000))

    def _release(self, results: list[ReplicationResult[_ParkedGroup]]) -> None:
        """Respond to the sends of results, which have one code."""
        if not results:
            return
        groups, code = [group for parked, _ in results for group in parked], results[0].code
        count = sum(len(group.sends) for group in groups)
        if code and count:
            name = ResponseCode(code).name
            self._limited_log.warning(
                name, "%d sends get %s: their messages are only on this broker", count, name
            )
        self._respond(groups, code)
        self._on_visible()


class CommitWaiters(ResponseWaiters):
    """DLedger: parks responses until the log is committed up to their messages.

    A timeout asks the producer to send again, though the message may be committed later.
    appended: returns the log's end. push: sends new entries to the peers immediately.
    Source: DLedgerCommitLog.putMessage of RocketMQ 4.6.0, with the response codes of SendMessageProcessor.
    Differs: batches are accepted.
    """

    def __init__(
        self,
        responses: SendResponses,
        tasks: Tasks,
        *,
        appended: Callable[[], int],
        push: Callable[[], None],
        timeout_ms: int,
    ) -> None:
        super().__init__(responses, tasks, timeout_ms=timeout_ms)
        self._appended = appended
        self._push = push
        self.park: ParkResponses = self._add
        """Parks sends; tracing wraps it."""

    def park_until_commit(self, sends: list[ParkedResponse], listeners: Sequence[OnStored]) -> None:
        """Respond to `sends` and call `listeners` when everything appended until now is committed."""
        self.park(sends, self._appended(), listeners)
        self._push()

    def committed(self, offset: int) -> None:
        """Respond to the sends below an offset up to which the log is committed."""
        self._respond(self._take_until(offset), ResponseCode.SUCCESS)

    def fail(self) -> None:
        """Reject all parked sends: another peer leads, or the broker stops. They may still be committed."""
        self._stop_timer()
        while self._groups:
            self._reject(self._groups.popleft(), _UNKNOWN)

    def _time_out(self, group: _ParkedGroup) -> None:
        self._reject(group, PC_BUSY)

    def _reject(self, group: _ParkedGroup, remark: str) -> None:
        for parked in group.sends:
            parked.channel.reply(self._responses.rejected(parked.request, ResponseCode.SYSTEM_ERROR, remark))
        for listener in group.on_stored:
            listener(StoreError(f"the message is not committed by a majority: {remark}"))
        self._released.set()
