"""Reader: reads queues for the admin client. It joins no group and commits no offsets.

A tool that joined a group would take queues from its members, and an offset that it committed would be the
group's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final, NamedTuple

from rocketpy.client.instance import ClientInstance
from rocketpy.client.message_index import FOREVER_MS
from rocketpy.config import ClientConfig, ConsumerConfig
from rocketpy.consumer.pull import PullConsumer
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue

_TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""A consumer group for tools, which exists in every broker. Source: RocketMQ MixAll TOOLS_CONSUMER_GROUP."""
_PULL_COUNT: Final = 32


class OffsetRange(NamedTuple):
    """A range of offsets of a queue: `begin` is included, `end` is not."""

    queue: MessageQueue
    begin: int
    end: int
    ends_exactly: bool = False
    """Whether `end` is after the last message of the range of times, and not only after that of the queue."""


class ToolsConsumer(PullConsumer):
    """A pull consumer for tools. The namespace is not added to its group, which exists in every broker."""

    def __init__(self, *, config: ConsumerConfig | None = None, client: ClientConfig | None = None) -> None:
        super().__init__(_TOOLS_GROUP, config=config, client=client, telemetry=False)

    def _wrap(self, name: str) -> str:
        return name if name == _TOOLS_GROUP else super()._wrap(name)


class Reader(ToolsConsumer):
    """A consumer that shares the client instance of an admin client, and so needs no start or close.

    get_instance: returns the client instance, or raises ClientClosed.
    """

    def __init__(self, get_instance: Callable[[], ClientInstance]) -> None:
        super().__init__()
        self._get_instance = get_instance

    def _running_client(self) -> ClientInstance:
        return self._get_instance()

    async def ranges(
        self,
        queues: Iterable[MessageQueue],
        *,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        offsets: Mapping[MessageQueue, int] | None = None,
        of_master: bool = False,
    ) -> list[OffsetRange]:
        """Return the range of offsets that can be read from each queue now.

        Args:
            queues: The queues to look up.
            begin_ms: Include all messages stored at or after this time (ms since 1970). The range may begin
                with earlier messages.
            end_ms: Include all messages stored at or before this time. The range may end with later messages.
            offsets: Begin at these offsets, or at a queue's minimum if that is higher.
            of_master: Ask only the master for the end of a queue. Otherwise a slave may answer.

        Raises:
            RouteNotFound: The master is unavailable, with `of_master`.
        """

        async def range_of(queue: MessageQueue) -> OffsetRange:
            begin = await self.min_offset(queue)
            end = await self.max_offset(queue, of_master=of_master)
            if begin_ms > 0:
                begin = max(begin, await self.search_offset(queue, begin_ms))
            found = None
            if end_ms < FOREVER_MS:
                found = await self._broker_api().search_end(self._wrap_queue(queue), end_ms)
                end = end if found is None else min(end, found)
            return OffsetRange(queue, max(begin, (offsets or {}).get(queue, 0)), end, found is not None)

        return await asyncio.gather(*map(range_of, queues))

    async def read(
        self, queue: MessageQueue, offset: int, end: int, max_count: int = _PULL_COUNT
    ) -> ReadResult:
        """Read messages from `offset` to before `end`. At the end of the queue, `next_offset` is `offset`."""
        pulled = await self.pull(queue, offset, min(max_count, _PULL_COUNT))
        if pulled.next_offset <= offset:
            return ReadResult([], offset)
        messages = [message for message in pulled.messages if message.queue_offset < end]
        return ReadResult(messages, min(pulled.next_offset, end))

    async def messages(self, range_: OffsetRange, begin_ms: int, end_ms: int) -> AsyncIterator[MessageExt]:
        """Yield the messages of a range that were stored between two times.

        Stop at the first later message, unless the range ends exactly. begin_ms, end_ms: ms since 1970; both
        are included.
        """
        offset, previous = range_.begin, -1
        while previous < offset < range_.end:
            previous = offset
            messages, offset = await self.read(range_.queue, offset, range_.end)
            for message in messages:
                if begin_ms <= message.store_timestamp <= end_ms:
                    yield message
                elif message.store_timestamp > end_ms and not range_.ends_exactly:
                    return


class ReadResult(NamedTuple):
    """Messages of a queue, and the offset of the next read."""

    messages: list[MessageExt]
    next_offset: int
