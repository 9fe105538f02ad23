"""Resets the offsets of a consumer group. Its members may be online for most positions.

Brokers store the offsets of a group, but online members overwrite them with their own. So the broker must
notify the members. It can do so for a time, and for the start and end of queues, but not for other offsets.

Source: RocketMQ 4.6 ResetOffsetByTimeCommand, AdminBrokerProcessor resetOffset, Broker2Client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, Self

from rocketpy.admin.requests import AdminRequests, if_found
from rocketpy.client.broker_api import first_since
from rocketpy.config import check_number
from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import MessageQueue, QueueData, ResetOffsetBody
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    ResetOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketpy.protocol.remoting.command import Command

_TO_END: Final = -1
"""In a reset request, this timestamp means the end of each queue."""
_RESET_PENDING: Final = "previously reset"
"""Part of the remark of a 5.x broker that ignores a commit, because no member has pulled since a reset.

Only another reset can replace the offset then.
"""


class _Position(Enum):
    BEGINNING = "beginning"
    END = "end"
    TIME = "time"
    OFFSET = "offset"


@dataclass(frozen=True, slots=True)
class ResetTo:
    """The position from which a consumer group continues. Create it with one of the class methods."""

    place: _Position
    value: int = 0
    offsets: Mapping[MessageQueue, int] | None = None

    @classmethod
    def beginning(cls) -> Self:
        """The oldest message of each queue."""
        return cls(_Position.BEGINNING)

    @classmethod
    def end(cls) -> Self:
        """The end of each queue: only later messages."""
        return cls(_Position.END)

    @classmethod
    def time(cls, time: datetime | int) -> Self:
        """The first message of each queue that was stored at or after a time.

        With a broker of RocketMQ before 5.1.1, it may be an earlier message, never a later one.

        Args:
            time: A datetime with a time zone, or ms since 1970.

        Raises:
            ConfigInvalid: The datetime has no time zone, or the number is below 0.
        """
        if isinstance(time, datetime):
            if time.tzinfo is None:
                raise ConfigInvalid(f"the time {time} has no time zone; write datetime(..., tzinfo=UTC)")
            time = int(time.timestamp() * 1000)
        check_number("time", time, 0)
        return cls(_Position.TIME, time)

    @classmethod
    def offset(cls, offset: int | Mapping[MessageQueue, int]) -> Self:
        """An offset. All members must be stopped.

        An offset outside a queue is replaced by the nearest offset in it.

        Args:
            offset: One offset for all queues, or an offset for each of some queues, by queue. The other
                queues keep their offsets.

        Raises:
            ConfigInvalid: An offset is below 0.
        """
        given = offset if isinstance(offset, Mapping) else {None: offset}
        for number in given.values():
            check_number("offset", number, 0)
        if isinstance(offset, Mapping):
            return cls(_Position.OFFSET, offsets=dict(offset))
        return cls(_Position.OFFSET, offset)

    @property
    def needs_stopped_members(self) -> bool:
        """Whether the members must be stopped, because brokers cannot notify them of this position."""
        return self.place is _Position.OFFSET


class OffsetChange(NamedTuple):
    """The offset of a group in one queue."""

    old: int | None
    """The offset before; None if the group had none."""
    new: int
    """The offset after."""


class OffsetReset:
    """A reset of the offsets of one group in one topic. group, topic: with the namespace."""

    def __init__(self, requests: AdminRequests, group: str, topic: str, to: ResetTo) -> None:
        self._requests = requests
        self._group = group
        self._topic = topic
        self._to = to
        self._times_ms: dict[str, int] = {}
        """The time to send to each broker, so that it skips no message; see `first_since`."""

    async def run_at(
        self, address: str | None, data: QueueData, *, dry_run: bool
    ) -> dict[MessageQueue, OffsetChange]:
        """Reset the offsets of the queues of one broker; return the changes. dry_run: change nothing."""
        broker = data.broker_name
        changes = await self._changes(address, data)
        if dry_run:
            return changes
        # Commit first, also with online members: a broker notifies them only if each queue has an offset.
        # The first one alone, as in `ConsumerApi.commit`.
        commits = [(address, queue, change.new) for queue, change in changes.items()]
        for commit in commits[:1]:
            await self._commit(*commit)
        await asyncio.gather(*(self._commit(*commit) for commit in commits[1:]))
        if not self._to.needs_stopped_members:
            notified = await self._notify_members(address, broker)
            for queue, offset in notified.items():
                if queue in changes:
                    changes[queue] = changes[queue]._replace(new=offset)
        return changes

    async def _changes(self, address: str | None, data: QueueData) -> dict[MessageQueue, OffsetChange]:
        queues = [
            queue
            for queue_id in range(max(data.read_queue_nums, data.write_queue_nums))
            if self._is_wanted(queue := MessageQueue(self._topic, data.broker_name, queue_id))
        ]
        changes = await asyncio.gather(*(self._change(address, queue) for queue in queues))
        return dict(zip(queues, changes, strict=True))

    def _is_wanted(self, queue: MessageQueue) -> bool:
        return self._to.offsets is None or self._requests.unwrap_queue(queue) in self._to.offsets

    async def _change(self, address: str | None, queue: MessageQueue) -> OffsetChange:
        committed = await find_committed(self._requests, address, self._group, queue)
        return OffsetChange(committed, await self._target(address, queue))

    async def _target(self, address: str | None, queue: MessageQueue) -> int:
        to = self._to
        if to.place is _Position.TIME:
            offset, time_ms = await first_since(partial(self._search, address, queue), to.value)
            self._times_ms[queue.broker_name] = time_ms
            return max(offset, 0)
        if to.place is _Position.BEGINNING:
            return await find_bound(self._requests, address, queue, RequestCode.GET_MIN_OFFSET)
        end = await find_bound(self._requests, address, queue, RequestCode.GET_MAX_OFFSET)
        if to.place is _Position.END:
            return end
        wanted = to.value if to.offsets is None else to.offsets[self._requests.unwrap_queue(queue)]
        begin = await find_bound(self._requests, address, queue, RequestCode.GET_MIN_OFFSET)
        return min(max(wanted, begin), end)

    async def _search(self, address: str | None, queue: MessageQueue, timestamp: int) -> Command:
        header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return await self._requests.call(address, queue.broker_name, code, header)

    async def _commit(self, address: str | None, queue: MessageQueue, offset: int) -> None:
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        response = await self._requests.call(address, queue.broker_name, code, header)
        if _RESET_PENDING in (response.remark or "") and self._to.needs_stopped_members:
            reset = self._reset_header(0)
            reset.queue_id, reset.offset = queue.queue_id, offset
            code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            await self._requests.call(address, queue.broker_name, code, reset)

    def _reset_header(self, timestamp: int) -> ResetOffsetRequestHeader:
        return ResetOffsetRequestHeader(
            topic=self._topic, group=self._group, timestamp=timestamp, is_force=True
        )

    async def _notify_members(self, address: str | None, broker: str) -> dict[MessageQueue, int]:
        """Request that a broker notifies the online members; return the offsets from which they continue."""
        times = {
            _Position.BEGINNING: 0,
            _Position.END: _TO_END,
            _Position.TIME: self._times_ms.get(broker, self._to.value),
        }
        header = self._reset_header(times[self._to.place])
        call = self._requests.call(address, broker, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        response = await if_found(call, ResponseCode.CONSUMER_NOT_ONLINE)
        return {} if response is None else ResetOffsetBody.decode(response.body).offset_table


async def find_committed(
    requests: AdminRequests, address: str | None, group: str, queue: MessageQueue
) -> int | None:
    """Return the offset of a group in a queue, which a master has; None if it has none.

    group, queue: their names with the namespace.
    """
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id
    )
    call = requests.call(address, queue.broker_name, RequestCode.QUERY_CONSUMER_OFFSET, header)
    response = await if_found(call, ResponseCode.QUERY_NOT_FOUND)
    return None if response is None else _offset(response)


async def find_bound(
    requests: AdminRequests, address: str | None, queue: MessageQueue, code: RequestCode
) -> int:
    """Return the first offset of a queue, or its end. code: GET_MIN_OFFSET or GET_MAX_OFFSET."""
    header = QueueRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
    return _offset(await requests.call(address, queue.broker_name, code, header))


def _offset(response: Command) -> int:
    return max(response.header_as(OffsetResponseHeader).offset, 0)
