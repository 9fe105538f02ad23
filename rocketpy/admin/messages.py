"""Messages: finds stored messages, shows which groups have consumed them, and sends them again.

Source: RocketMQ 4.6 DefaultMQAdminExt messageTrackDetail and consumeMessageDirectly; mqadmin's commands
queryMsgById (-s resends), queryMsgByUniqueKey, queryMsgByKey, queryMsgByOffset, printMsg.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple, cast

from msgspec.structs import replace

from rocketpy.admin.reader import Reader
from rocketpy.admin.requests import AdminRequests
from rocketpy.admin.resend import send_to_retries, send_to_topic
from rocketpy.admin.traces import Traces, collect_traces
from rocketpy.client.broker_api import BrokerApi, require_success
from rocketpy.client.message_index import (
    FOREVER_MS,
    MessageIndex,
    QueryResult,
    check_times,
)
from rocketpy.client.routing.routes import member_to_read, publish_route, subscribe_queues, usable_queues
from rocketpy.consumer.fetch.consumer_api import ConsumerApi
from rocketpy.consumer.fetch.subscription import retry_topic
from rocketpy.errors import BrokerError, RouteNotFound, UsageError
from rocketpy.message.message import TRACE_TOPIC, MessageExt, check_group, check_received, check_topic
from rocketpy.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    GroupList,
    MessageQueue,
    SubscriptionGroupWrapper,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from rocketpy.protocol.message import properties as names
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import SendResult

_DELIVERY_MS: Final = 15_000
"""A broker waits 10 s for the consumer."""
_TIMEOUT_MS: Final = 6000
_GROUP: Final = "rocketpy-tools"
"""The producer group that sends copies of messages."""


class TrackState(Enum):
    """Whether a group has consumed a message."""

    CONSUMED = "consumed"
    """The group's committed offset is beyond the message: it was handled, or sent back for a retry."""
    FILTERED = "filtered"
    """As CONSUMED, but the group does not subscribe to the message's tag."""
    WAITING = "waiting"
    """The group's committed offset is not beyond the message."""
    UNKNOWN = "unknown"
    """The group keeps its offsets elsewhere: its consumers broadcast, or pull without commits."""


class MessageTrack(NamedTuple):
    """What a group did with a message."""

    group: str
    """The consumer group."""
    state: TrackState
    """Whether it has consumed the message."""
    is_online: bool
    """Whether consumers of the group are connected."""


class Delivery(NamedTuple):
    """The result of a consumer that handled one message on request."""

    status: str
    """RocketMQ's name of the result: CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or
    CR_RETURN_NULL."""
    remark: str | None
    """The consumer's text, such as an exception."""
    spent_ms: int
    """How long the handler took."""


class Messages:
    """Stored messages: ``admin.messages``.

    Every method raises ClientClosed, RouteNotFound, TransportError and BrokerError. If a broker fails, a
    method raises instead of returning some of the messages. A message that cannot be decoded has its raw body
    and `MessageExt.decode_error`.
    """

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests
        self._reader = Reader(requests.running)

    # -- find ---------------------------------------------------------------------------------

    async def by_id(self, message_id: str) -> MessageExt:
        """Return the message with a broker's id (`MessageExt.offset_message_id`).

        It is read from the broker in the id, or from a replica while that broker is unavailable.

        Args:
            message_id: The id, 32 hexadecimal digits; 56 with an IPv6 address.

        Raises:
            MessageInvalid: The id is malformed.
            BrokerError: There is no such message.
        """
        api = BrokerApi(self._requests.running(), _TIMEOUT_MS)
        return await api.view_message(message_id)

    async def by_unique_id(self, topic: str, unique_id: str) -> MessageExt:
        """Return the message of a topic with a unique id (`MessageExt.message_id`).

        If a repeated send stored several copies, the first one is returned.

        Raises:
            MessageInvalid: The id is malformed.
            BrokerError: No broker of the topic has it in its index, which lags behind the log by some ms.
        """
        found = await self._index().by_unique_id(topic, unique_id)
        if found is None:
            raise _not_found(f"no message of topic {topic} has unique id {unique_id}", "the topic's brokers")
        return found

    async def by_key(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> QueryResult:
        """Return the messages of a topic that have a key.

        As `AdminClient.query_message`, except that it raises when one of the topic's brokers fails.

        Args:
            topic: The topic.
            key: One of the keys of the messages.
            max_count: The maximum number of messages from each broker.
            begin_ms: The earliest store time, in ms since 1970.
            end_ms: The latest store time, in ms since 1970.
        """
        return await self._index().by_key(topic, key, max_count, begin_ms, end_ms)

    async def by_offset(self, queue: MessageQueue, offset: int) -> MessageExt:
        """Return the message at an offset of a queue.

        Raises:
            MessageInvalid: The offset is negative.
            BrokerError: The queue has no message at this offset, or no longer; the text has its range.
            RecordCorrupt: Its record has an invalid length.
        """
        pulled = await self._reader.pull(queue, offset, 1)
        if pulled.messages and pulled.messages[0].queue_offset == offset:
            return pulled.messages[0]
        is_empty = pulled.min_offset >= pulled.max_offset
        stored = "none" if is_empty else f"{pulled.min_offset} to {pulled.max_offset - 1}"
        text = f"{queue} has no message at offset {offset}; its offsets: {stored}"
        raise _not_found(text, queue.broker_name)

    async def by_time(
        self, topic: str, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> AsyncIterator[MessageExt]:
        """Yield the messages of a topic that were stored between two times.

        Queues are read one after the other, in the order of offsets, without messages that arrive later. An
        error ends the iteration. `of_queue` can then continue after the last message of a queue.

        With brokers of RocketMQ, the search assumes that store times increase within a queue. If the clock of
        such a broker was set back, messages may be left out.

        Args:
            topic: The topic. A group's retry or dead-letter topic is allowed, too.
            begin_ms: The earliest store time, in ms since 1970.
            end_ms: The latest store time, in ms since 1970.

        Raises:
            RouteNotFound: The topic does not exist, or has no readable queue.
            RecordCorrupt: A record has an invalid length.
        """
        begin_ms, end_ms = check_times(begin_ms, end_ms)
        route = await self._requests.running().routes.get(self._requests.wrap(topic), fresh=True)
        queues = subscribe_queues(topic, route)
        if not queues:
            raise RouteNotFound(f"topic {topic} has no readable queue")
        for found in await self._reader.ranges(queues, begin_ms=begin_ms, end_ms=end_ms):
            async for message in self._reader.messages(found, begin_ms, end_ms):
                yield message

    async def of_queue(
        self, queue: MessageQueue, begin: int = 0, end: int | None = None
    ) -> AsyncIterator[MessageExt]:
        """Yield the messages of a queue in the order of their offsets, without those that arrive later.

        Args:
            queue: The queue.
            begin: The lowest offset; messages that have expired are left out.
            end: The offset after the last message; None for all.

        Raises:
            RecordCorrupt: A record has an invalid length.
        """
        (found,) = await self._reader.ranges([queue], offsets={queue: begin})
        found = found._replace(end=found.end if end is None else min(end, found.end))
        async for message in self._reader.messages(found, 0, FOREVER_MS):
            yield message

    def _index(self) -> MessageIndex:
        return MessageIndex(self._requests.running(), partial=False)

    # -- traces -------------------------------------------------------------------------------

    async def traces(self, key: str, *, topic: str = TRACE_TOPIC, max_count: int = 64) -> Traces:
        """Return who sent the messages with a unique id or key, who consumed them, and with what result.

        Only clients with message trace report this. Reports arrive some seconds late, may be lost, and
        expire like other messages.

        Args:
            key: The unique id (`MessageExt.message_id`), or one of the keys of the messages.
            topic: The topic that clients report to, which never has the client's namespace.
            max_count: The maximum number of trace messages from each broker.

        Raises:
            RouteNotFound: There is no such topic: no client reports to it, or its broker may not create it.
        """
        index = MessageIndex(self._requests.running(), partial=False, namespace="")
        return collect_traces((await index.by_key(topic, key, max_count, 0, FOREVER_MS)).messages, key)

    # -- consumers ----------------------------------------------------------------------------

    async def consumers_of(self, message: MessageExt) -> tuple[MessageTrack, ...]:
        """Return what each group that consumes the topic of a message did with it, sorted by group.

        Only committed offsets are compared, so a message may have been handled some seconds before it counts
        as CONSUMED.

        Args:
            message: A message that was read earlier.

        Raises:
            RouteNotFound: No name server knows the broker of the message.
        """
        name, address = await self._broker_of(check_received(message))
        topic = self._requests.wrap(message.topic)
        header = QueryTopicConsumeByWhoRequestHeader(topic=topic)
        response = await self._requests.call(address, name, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        queue = MessageQueue(topic, name, message.queue.queue_id)
        groups = sorted(GroupList.decode(response.body).group_list)
        tracks = (self._track(message, group, queue, address) for group in groups)
        return tuple(await asyncio.gather(*tracks))

    async def _track(
        self, message: MessageExt, group: str, queue: MessageQueue, address: str
    ) -> MessageTrack:
        """Return what a group did with a message. group: with its namespace."""
        members = await self._requests.members_at(address, queue.broker_name, group)
        committed = await ConsumerApi(self._requests.running(), group, _TIMEOUT_MS).committed_offset(queue)
        state = _state(message, queue.topic, committed or 0, members)
        return MessageTrack(self._requests.unwrap(group), state, members is not None)

    async def deliver(self, message: MessageExt, group: str, client_id: str) -> Delivery:
        """Have one consumer handle a message now, independent of its offset, and wait for the result.

        Neither the group's offsets nor its retries change. It is sent once.

        Args:
            message: A message that a broker still holds.
            group: The consumer group.
            client_id: The consumer, which is online (`AdminClient.groups` lists the members).

        Raises:
            BrokerError: The consumer is not online, does not respond within 10 s, or the message has expired.
        """
        name, address = await self._broker_of(check_received(message))
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=self._requests.wrap(group),
            client_id=client_id,
            msg_id=message.offset_message_id,
            broker_name=name,
        )
        command = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        # Sent once: after a repeated request the message might be handled twice.
        connection = self._requests.running().connections.get(address)
        response = require_success(await connection.request(command, _DELIVERY_MS), name)
        result = ConsumeMessageDirectlyResult.decode(response.body)
        return Delivery(result.consume_result or "", result.remark, result.spent_time_mills)

    # -- send again ---------------------------------------------------------------------------

    async def resend(
        self, message: MessageExt, *, topic: str | None = None, group: str | None = None
    ) -> SendResult:
        """Send a copy of a message: to its topic, to another one, or to one group.

        The copy has the body, tags, keys, properties, flag, born time and unique id of the message, and no
        delay. Every group of the topic gets it. With `group`, only that group gets it, under the message's
        topic, as soon as it has members. It is sent once. The message itself stays where it is.

        Args:
            message: A message that was read earlier.
            topic: Send it to this topic, if possible to the same queue. None: to the message's own topic,
                which for a retry or a dead letter is the topic that it was sent to first.
            group: Send it to this consumer group instead. A group that broadcasts does not get it.

        Raises:
            UsageError: Both topic and group are given.
            MessageInvalid: The message is damaged.
            RouteNotFound: The topic does not exist or has no writable queue, or its broker is unknown.
            BrokerError: The message's broker does not know the group, or the broker rejects the message.
            RocketError: With the outcome STORED: the broker has made it a dead letter of the group, as those
                of RocketMQ 5.1.1 and later do while orderly consumers of the group run.
        """
        if topic is not None and group is not None:
            raise UsageError("topic and group were both given; give one of them")
        check_received(message)
        requests, client = self._requests, self._requests.running()
        own = message.properties.get(names.PROPERTY_RETRY_TOPIC) or requests.wrap(message.topic)
        if group is None:
            name = own if topic is None else requests.wrap(check_topic(topic))
            queue, address = await self._queue_to_send(name, message)
            result = await send_to_topic(client, message, address, queue, requests.wrap(_GROUP))
        else:
            name = requests.wrap(check_group(group))
            broker, _ = await self._broker_of(message)
            address = await self._master_that_knows(broker, name)
            queue = MessageQueue(retry_topic(name), broker, 0)
            result = await send_to_retries(client, message, address, queue, name, own)
        return replace(result, queue=requests.unwrap_queue(result.queue))

    async def _queue_to_send(self, topic: str, message: MessageExt) -> tuple[MessageQueue, str]:
        """Return a queue of a topic, and the address of its master.

        It is the queue with the broker and queue id of the message, or a random queue if that does not exist.
        If possible, consumers read it.
        """
        client = self._requests.running()
        route = await client.routes.get(topic, fresh=True)
        queues = usable_queues(topic, route) or publish_route(topic, route).queues
        if not queues:
            raise RouteNotFound(f"topic {self._requests.unwrap(topic)} has no writable queue")
        broker = message.queue.broker_name
        with suppress(RouteNotFound):  # the broker no longer exists; another one stores the message
            broker, _ = await self._broker_of(message)
        same = MessageQueue(topic, broker, message.queue.queue_id)
        queue = same if same in queues else random.choice(queues)
        address, _ = await client.routes.find_broker(topic, queue.broker_name, only=True)
        return queue, address

    async def _master_that_knows(self, broker: str, group: str) -> str:
        """Return the address of a broker's master. Raises BrokerError if the master does not know the group.

        A send to the retry topic would create the missing group.
        """
        address = (await self._requests.masters()).get(broker)
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        response = await self._requests.call(address, broker, code)
        if group not in SubscriptionGroupWrapper.decode(response.body).subscription_group_table:
            unknown = f"there is no group {self._requests.unwrap(group)}; create it, or correct its name"
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, unknown, broker)
        return cast(str, address)

    async def _broker_of(self, message: MessageExt) -> tuple[str, str]:
        """Return name and address of the broker that has a message.

        The queue of a message that was found by its id may have the broker's address instead of its name.
        """
        known = message.queue.broker_name
        brokers = (await self._requests.cluster()).broker_addr_table
        for name, data in brokers.items():
            if data.broker_addrs and (name == known or known in data.broker_addrs.values()):
                return name, data.broker_addrs[member_to_read(data.broker_addrs)]
        raise RouteNotFound(f"no name server knows the broker {known} of {message}")


def _state(message: MessageExt, topic: str, committed: int, members: ConsumerConnection | None) -> TrackState:
    if members is not None and members.message_model == "BROADCASTING":
        return TrackState.UNKNOWN
    if committed > message.queue_offset:
        subscription = members.subscription_table.get(topic) if members is not None else None
        tags = subscription.tags_set if subscription is not None else set()
        return TrackState.CONSUMED if not tags or message.tags in tags else TrackState.FILTERED
    if members is not None and members.consume_type == "CONSUME_ACTIVELY" and not committed:
        return TrackState.UNKNOWN
    return TrackState.WAITING


def _not_found(text: str, broker: str) -> BrokerError:
    return BrokerError(ResponseCode.QUERY_NOT_FOUND, text, broker)
