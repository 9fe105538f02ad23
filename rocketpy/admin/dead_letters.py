"""DeadLetterQueues: reads the dead letters of consumer groups, and sends them to the groups again.

Source: RocketMQ 4.6 SendMessageProcessor consumerSendMsgBack and handleRetryAndDLQ (QUIRKS 37).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from rocketpy.admin.reader import OffsetRange, Reader
from rocketpy.admin.requests import AdminRequests
from rocketpy.admin.resend import send_to_retries
from rocketpy.client.instance import ClientInstance
from rocketpy.client.message_index import FOREVER_MS
from rocketpy.client.topic_configs import TopicConfigs
from rocketpy.config import check_number
from rocketpy.consumer.fetch.subscription import retry_topic
from rocketpy.errors import MessageInvalid, RouteNotFound
from rocketpy.message.message import MessageExt, check_group, check_received
from rocketpy.protocol.bodies import (
    PERM_READ,
    MessageQueue,
)
from rocketpy.protocol.message import properties as names
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX
from rocketpy.results import SendResult

_TIMEOUT_MS: Final = 6000


class DeadLetters(NamedTuple):
    """Dead letters of a group."""

    messages: list[MessageExt]
    """The dead letters."""
    next_offsets: dict[MessageQueue, int]
    """The offset after them, for each queue that was read."""


class ResendProgress(NamedTuple):
    """The progress of `DeadLetterQueues.resend_all`."""

    resent: int
    """The number of dead letters that were sent again."""
    skipped: int
    """The number of dead letters that `wanted` left out."""
    damaged: tuple[MessageExt, ...]
    """The messages that cannot be sent: their records are damaged, or lack the original topic."""
    next_offsets: dict[MessageQueue, int]
    """The next offset to read, for each queue that was begun."""


class DeadLetterQueues:
    """Dead letters of consumer groups: ``admin.dead_letters``.

    Dead letters stay until they expire: reading or re-sending does not remove them. Brokers before RocketMQ
    4.9 create the topic of dead letters for writing only. Methods that read it first add the read permission,
    permanently. Under access control, that needs the keys of an administrator.

    Every method raises ClientClosed, RouteNotFound, TransportError and BrokerError.
    """

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests
        self._reader = Reader(requests.running)

    async def groups(self) -> tuple[str, ...]:
        """Return the groups with a dead-letter topic, sorted. With a client namespace, only groups in it."""
        topics = await self._requests.topics(include_system=True)
        return tuple(
            topic.removeprefix(DLQ_TOPIC_PREFIX) for topic in topics if topic.startswith(DLQ_TOPIC_PREFIX)
        )

    async def count(self, group: str) -> int:
        """Return the number of dead letters of a group. It changes nothing.

        Args:
            group: The consumer group. A group without dead letters has 0.

        Raises:
            GroupInvalid: The name of the group is invalid.
        """
        ranges = await self._ranges(group, make_readable=False)
        return sum(max(0, found.end - found.begin) for found in ranges)

    async def fetch(
        self,
        group: str,
        max_count: int = 1000,
        *,
        offsets: Mapping[MessageQueue, int] | None = None,
        make_readable: bool = True,
    ) -> DeadLetters:
        """Read the dead letters of a group: the messages in its topic ``%DLQ%group``.

        Each queue is read up to its end at the time of the call, oldest messages first, one queue after the
        other. Reading removes nothing. Returns no messages if the group has no dead-letter topic.

        Brokers before RocketMQ 4.9 create that topic for writing only. This method first adds the read
        permission, permanently. Under access control, that needs the keys of an administrator.

        Args:
            group: The consumer group.
            max_count: The maximum number of messages.
            offsets: The offset at which to begin in each queue: `DeadLetters.next_offsets` of an earlier
                call. Other queues are read from their oldest message on.
            make_readable: Whether to add the read permission that old brokers leave out. Without it, their
                dead letters raise BrokerError with the code NO_PERMISSION, and nothing changes.

        Raises:
            GroupInvalid: The name of the group is invalid.
            ConfigInvalid: `max_count` is below 1.
            RouteNotFound: A broker has no master.
        """
        check_number("max_count", max_count, 1)
        found = DeadLetters([], {})
        for queue, begin, end, _ in await self._ranges(group, offsets=offsets, make_readable=make_readable):
            offset, before = begin, -1
            while before < offset < end and (room := max_count - len(found.messages)):
                before = offset
                part, offset = await self._reader.read(queue, offset, end, room)
                found.messages.extend(part)
            found.next_offsets[queue] = offset
        return found

    async def read(
        self, group: str, *, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> AsyncIterator[MessageExt]:
        """Yield the dead letters of a group that exist now, one queue after the other.

        Args:
            group: The consumer group. A group without dead letters yields nothing.
            begin_ms: The earliest time at which a message became a dead letter, in ms since 1970.
            end_ms: The latest such time, in ms since 1970.

        Raises:
            GroupInvalid: The name of the group is invalid.
        """
        for found in await self._ranges(group, begin_ms=begin_ms, end_ms=end_ms):
            async for message in self._reader.messages(found, begin_ms, end_ms):
                yield message

    async def resend(self, message: MessageExt) -> SendResult:
        """Send a dead letter to its group again, and to no other group, as if it had never failed.

        Consumers of the group get it under its original topic, with its body, keys, tags, properties and
        unique id. Its retry count starts at 0. It is sent once, to the broker of the dead letter, which
        keeps the dead letter until it expires. A message that could not be decompressed is sent with its
        raw body.

        Args:
            message: A message from `fetch` or `read`.

        Raises:
            MessageInvalid: The message is not a dead letter, or is damaged.
            TransportError: No response arrived; see `outcome` for whether it may be stored.
            BrokerError: The broker rejected it, for instance because the group does not exist any more.
            RocketError: With the outcome STORED: the broker has made it a dead letter again, as those of
                RocketMQ 5.1.1 and later do while orderly consumers of the group run.
        """
        check_received(message)
        client = self._requests.running()
        dead_topic = self._requests.wrap(message.topic)
        group = dead_topic.removeprefix(DLQ_TOPIC_PREFIX)
        if group == dead_topic or names.PROPERTY_RETRY_TOPIC not in message.properties:
            raise MessageInvalid(f"{message} is not a dead letter: pass a message from dead_letters.fetch")
        address, _ = await client.routes.find_broker(dead_topic, message.queue.broker_name, only=True)
        queue = MessageQueue(retry_topic(group), message.queue.broker_name, 0)
        topic = message.properties[names.PROPERTY_RETRY_TOPIC]
        return await send_to_retries(client, message, address, queue, group, topic)

    async def resend_all(
        self,
        group: str,
        *,
        wanted: Callable[[MessageExt], bool] | None = None,
        offsets: Mapping[MessageQueue, int] | None = None,
        on_progress: Callable[[ResendProgress], object] | None = None,
    ) -> ResendProgress:
        """Send the dead letters of a group that exist now to it again.

        Messages that fail again become new dead letters, which this call does not send. An error ends the
        call; then the last progress shows what was sent, and its `next_offsets` continue with the message
        that failed. That message may be stored twice if the outcome of the error is UNKNOWN.

        Args:
            group: The consumer group.
            wanted: Returns whether to send a dead letter; None sends all.
            offsets: The offset at which to begin in each queue: `ResendProgress.next_offsets` of an earlier
                call. Other queues begin with their oldest message.
            on_progress: Called after each dead letter.

        Returns:
            The final progress.

        Raises:
            GroupInvalid: The name of the group is invalid.
        """
        progress = ResendProgress(0, 0, (), {})
        for queue, begin, end, _ in await self._ranges(group, offsets=offsets):
            progress = progress._replace(next_offsets=progress.next_offsets | {queue: begin})
            offset, before = begin, -1
            while before < offset < end:
                before = offset
                part, offset = await self._reader.read(queue, offset, end)
                for message in part:
                    progress = await self._resend_one(message, progress, wanted)
                    if on_progress is not None:
                        on_progress(progress)
            progress = progress._replace(next_offsets=progress.next_offsets | {queue: offset})
        return progress

    async def _resend_one(
        self, message: MessageExt, progress: ResendProgress, wanted: Callable[[MessageExt], bool] | None
    ) -> ResendProgress:
        resent, skipped, damaged, offsets = progress
        if wanted is not None and not wanted(message):
            skipped += 1
        else:
            try:
                await self.resend(message)
                resent += 1
            except MessageInvalid:
                damaged += (message,)
        return ResendProgress(resent, skipped, damaged, offsets | {message.queue: message.queue_offset + 1})

    # -- internals ----------------------------------------------------------------------------

    async def _ranges(
        self,
        group: str,
        *,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        offsets: Mapping[MessageQueue, int] | None = None,
        make_readable: bool = True,
    ) -> list[OffsetRange]:
        """Return the ranges of a group's dead letters; an empty list if their topic does not exist."""
        client = self._requests.running()
        topic = DLQ_TOPIC_PREFIX + check_group(group)
        wrapped = self._requests.wrap(topic)
        try:
            route = await client.routes.get(wrapped, fresh=True)
        except RouteNotFound:
            return []
        queues: list[MessageQueue] = []
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name):
            if make_readable and not data.perm & PERM_READ:
                await self._make_readable(client, wrapped, data.broker_name)
            queues += (
                MessageQueue(topic, data.broker_name, number) for number in range(data.read_queue_nums)
            )
        return await self._reader.ranges(
            queues, begin_ms=begin_ms, end_ms=end_ms, offsets=offsets, of_master=True
        )

    async def _make_readable(self, client: ClientInstance, topic: str, broker: str) -> None:
        """Add the read permission to a topic, at the master of a broker. Other settings stay unchanged."""
        address, _ = await client.routes.find_broker(topic, broker, only=True)
        configs = TopicConfigs(self._requests.call)
        config = await configs.find(address, broker, topic)
        if config is not None and not config.perm & PERM_READ:
            await configs.put(address, broker, replace(config, perm=config.perm | PERM_READ))
