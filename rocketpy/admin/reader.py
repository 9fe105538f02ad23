"""Reader: reads queues for the admin client. It joins no group and commits no offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final, NamedTuple

from rocketpy.client.instance import ClientInstance
from rocketpy.config import ClientConfig, ConsumerConfig
from rocketpy.consumer.pull import PullConsumer
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue

_TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""A consumer group for tools, which exists in every broker. Source: RocketMQ MixAll TOOLS_CONSUMER_GROUP."""
_PULL_COUNT: Final = 32


class Range(NamedTuple):
    """Messages of a queue: from offset `begin` to before `end`."""

    queue: MessageQueue
    begin: int
    end: int


class ToolsConsumer(PullConsumer):
    """A pull consumer for tools: its group is outside of all namespaces."""

    def __init__(self, *, config: ConsumerConfig | None = None, client: ClientConfig | None = None) -> None:
        super().__init__(_TOOLS_GROUP, config=config, client=client, telemetry=False)

    def _wrapped(self, name: str) -> str:
        return name if name == _TOOLS_GROUP else super()._wrapped(name)


class Reader(ToolsConsumer):
    """A consumer that shares the client instance of an admin client; it is not started or closed.

    running: returns the client instance, or raises ClientClosed.
    """

    def __init__(self, running: Callable[[], ClientInstance]) -> None:
        super().__init__()
        self._instance = running

    def _running(self) -> ClientInstance:
        return self._instance()

    async def ranges(
        self,
        queues: Iterable[MessageQueue],
        *,
        begin_ms: int = 0,
        offsets: Mapping[MessageQueue, int] | None = None,
        of_master: bool = False,
    ) -> list[Range]:
        """Return the range of offsets that each queue has now.

        Args:
            queues: The queues.
            begin_ms: Leave out messages stored before this time.
            offsets: The first offset by queue; raised to the queue's minimum when older messages have
                expired.
            of_master: Raise RouteNotFound while the master is unavailable.
        """

        async def find(queue: MessageQueue) -> Range:
            begin = await self.min_offset(queue)
            end = await self.max_offset(queue, of_master=of_master)
            if begin_ms > 0:
                # If several messages have the same store time, 4.6.0 returns any of them.
                begin = max(begin, await self.search_offset(queue, begin_ms - 1))
            return Range(queue, max(begin, (offsets or {}).get(queue, 0)), end)

        return await asyncio.gather(*map(find, queues))

    async def read(self, queue: MessageQueue, offset: int, end: int, max_count: int = _PULL_COUNT) -> Part:
        """Read some messages before `end`. Without messages and with the same offset, the queue ends here."""
        pulled = await self.pull(queue, offset, min(max_count, _PULL_COUNT))
        if pulled.next_offset <= offset:
            return Part([], offset)
        found = [message for message in pulled.messages if message.queue_offset < end]
        return Part(found, min(pulled.next_offset, end))

    async def messages(self, found: Range, begin_ms: int, end_ms: int) -> AsyncIterator[MessageExt]:
        """Yield the messages of a range that were stored between two times, up to the first later one."""
        offset, before = found.begin, -1
        while before < offset < found.end:
            before = offset
            part, offset = await self.read(found.queue, offset, found.end)
            for message in part:
                if message.store_timestamp > end_ms:
                    return
                if message.store_timestamp >= begin_ms:
                    yield message


class Part(NamedTuple):
    """Messages of a queue, and the offset after them."""

    messages: list[MessageExt]
    next_offset: int
