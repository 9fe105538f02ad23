"""AdminClient: queries, topics and dead letters, for programs without a producer or consumer.

Source: RocketMQ 4.6 DefaultMQAdminExt; SendMessageProcessor consumerSendMsgBack and handleRetryAndDLQ for
dead letters (QUIRKS 37).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rocketpy.client.admin import AdminApi
from rocketpy.client.broker_api import BrokerApi
from rocketpy.client.instance import ClientInstance
from rocketpy.client.lifecycle import BoundToClient
from rocketpy.client.namespace import wrap
from rocketpy.config import ClientConfig, check_number
from rocketpy.consumer.dispatch.send_back import retry_topic
from rocketpy.consumer.pull import PullConsumer
from rocketpy.errors import MessageInvalid, RecordCorrupt, RouteNotFound
from rocketpy.message.message import DEFAULT_TOPIC, MessageExt, check_group
from rocketpy.producer.send.response import parse_response
from rocketpy.protocol.bodies import DLQ_TOPIC_PREFIX, PERM_READ, MessageQueue, QueueData
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import CreateTopicRequestHeader, SendMessageRequestHeaderV2
from rocketpy.protocol.message import properties as names
from rocketpy.protocol.message.compression import compress_if_worth
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import SendResult

_TIMEOUT_MS: Final = 6000
_TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""A consumer group for tools, which exists in every broker. Source: RocketMQ MixAll TOOLS_CONSUMER_GROUP."""
_RETRIES_MAX: Final = 16
"""Must exceed the 0 retries of a re-sent message; consumers send their own limit."""
_DROPPED_PROPERTIES: Final = (
    names.PROPERTY_DELAY_TIME_LEVEL,
    names.PROPERTY_REAL_TOPIC,
    names.PROPERTY_REAL_QUEUE_ID,
    names.PROPERTY_TRANSACTION_PREPARED,
    names.PROPERTY_WAIT_STORE_MSG_OK,
)
"""Properties from before the dead letter: they would delay the message, or make it a half message."""


class DeadLetters(NamedTuple):
    """Dead letters of a group.

    Attributes:
        messages: The dead letters.
        next_offsets: The offset after them, for each queue that was read.
    """

    messages: list[MessageExt]
    next_offsets: dict[MessageQueue, int]


class AdminClient(AdminApi, BoundToClient):
    """Queries name servers and brokers, creates topics, and reads and re-sends dead letters.

        async with AdminClient("127.0.0.1:9876") as admin:
            await admin.create_topic("Orders", 8)

    Args:
        namesrv: As for `Producer`.
        client: As for `Producer`.
    """

    def __init__(self, namesrv: str | None = None, *, client: ClientConfig | None = None) -> None:
        super().__init__("the admin client", namesrv, client)

    async def fetch_dead_letters(
        self, group: str, max_count: int = 1000, *, offsets: Mapping[MessageQueue, int] | None = None
    ) -> DeadLetters:
        """Read the dead letters of a group: the messages in its topic ``%DLQ%group``.

        Each queue is read up to its end at the time of the call, oldest messages first, one queue after the
        other. Reading removes nothing. Returns no messages if the group has no dead-letter topic.

        Brokers before RocketMQ 4.9 create that topic for writing only. It is made readable first,
        permanently, which needs the keys of an administrator under access control.

        Args:
            group: The consumer group.
            max_count: The maximum number of messages.
            offsets: Where to begin in each queue: `DeadLetters.next_offsets` of an earlier call. Other queues
                are read from their oldest message on.

        Raises:
            GroupInvalid: The name of the group is invalid.
            ConfigInvalid: `max_count` is below 1.
            RouteNotFound: A broker has no master.
        """
        check_number("max_count", max_count, 1)
        client = self._running()
        topic = DLQ_TOPIC_PREFIX + check_group(group)
        found = DeadLetters([], {})
        try:
            route = await client.route(wrap(client.config.namespace, topic), fresh=True)
        except RouteNotFound:
            return found
        async with _Reader(_TOOLS_GROUP, client=self._client_config, telemetry=False) as reader:
            for data in sorted(route.queue_datas, key=lambda data: data.broker_name):
                if not data.perm & PERM_READ:
                    await self._make_readable(client, wrap(client.config.namespace, topic), data)
                for queue_id in range(data.read_queue_nums):
                    queue = MessageQueue(topic, data.broker_name, queue_id)
                    await _read_queue(reader, queue, found, (offsets or {}).get(queue), max_count)
        return found

    async def resend_dead_letter(self, message: MessageExt) -> SendResult:
        """Send a dead letter to its group again, and to no other group, as if it had never failed.

        Consumers of the group get it under its original topic, with its body, keys, tags, properties and
        unique id, and with no retries. It is sent once, to the broker of the dead letter. The dead letter
        stays until it expires. A message that could not be decompressed is sent with its raw body.

        Args:
            message: A message from `fetch_dead_letters`.

        Raises:
            MessageInvalid: The message is not a dead letter, or is damaged.
            TransportError: No response arrived; see `outcome` for whether it may be stored.
            BrokerError: The broker rejected it, for instance because the group does not exist any more.
        """
        client = self._running()
        namespace = client.config.namespace
        dead_topic = wrap(namespace, message.topic)
        group = dead_topic.removeprefix(DLQ_TOPIC_PREFIX)
        if group == dead_topic or names.PROPERTY_RETRY_TOPIC not in message.properties:
            raise MessageInvalid(f"{message} is not a dead letter: pass a message from fetch_dead_letters")
        body, flags = _body_to_resend(message)
        address, _ = await client.find_broker(dead_topic, message.queue.broker_name, only=True)
        queue = MessageQueue(retry_topic(group), message.queue.broker_name, 0)
        header = SendMessageRequestHeaderV2(
            producer_group=group,
            topic=queue.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1,
            queue_id=queue.queue_id,
            sys_flag=flags,
            born_timestamp=message.born_timestamp,
            flag=message.flag,
            properties=_properties_to_resend(message),
            reconsume_times=0,
            max_reconsume_times=_RETRIES_MAX,
        )
        command = Command.request(RequestCode.SEND_MESSAGE_V2, header, body)
        # Sent once: a repeated request might store it twice.
        answer = await client.connections.get(address).request(command, _TIMEOUT_MS)
        return parse_response(answer, queue, message.message_id)

    async def _make_readable(self, client: ClientInstance, topic: str, data: QueueData) -> None:
        """Add the read permission to a topic, at the master of a broker."""
        address, _ = await client.find_broker(topic, data.broker_name, only=True)
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=data.read_queue_nums,
            write_queue_nums=data.write_queue_nums,
            perm=data.perm | PERM_READ,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=data.topic_syn_flag,
        )
        command = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        await BrokerApi(client, _TIMEOUT_MS).request(address, data.broker_name, command)


class _Reader(PullConsumer):
    """A pull consumer whose group is outside of all namespaces."""

    def _wrapped(self, name: str) -> str:
        return name if name == _TOOLS_GROUP else super()._wrapped(name)


async def _read_queue(
    reader: PullConsumer, queue: MessageQueue, found: DeadLetters, offset: int | None, max_count: int
) -> None:
    """Add the messages of a queue to `found`."""
    end = await reader.max_offset(queue, of_master=True)
    offset = max(await reader.min_offset(queue), offset or 0)
    while offset < end and len(found.messages) < max_count:
        pulled = await reader.pull(queue, offset, min(32, max_count - len(found.messages)))
        if pulled.next_offset <= offset:
            break
        found.messages.extend(message for message in pulled.messages if message.queue_offset < end)
        offset = min(pulled.next_offset, end)
    found.next_offsets[queue] = offset


def _body_to_resend(message: MessageExt) -> tuple[bytes, int]:
    """Return the body to send for a dead letter, and the compression bits of its sysFlag."""
    if isinstance(message.decode_error, RecordCorrupt):
        raise MessageInvalid(f"{message} is damaged and cannot be sent again: {message.decode_error}")
    compression = message.sys_flag & MessageSysFlag.COMPRESSION_TYPE_MASK
    compressed = message.sys_flag & MessageSysFlag.COMPRESSED
    if compressed and message.decode_error is None:
        return compress_if_worth(message.body, compression)
    return message.body, compressed | compression


def _properties_to_resend(message: MessageExt) -> str:
    """Return the properties to send for a dead letter."""
    properties: dict[str, str | None] = dict(message.properties)
    for name in _DROPPED_PROPERTIES:
        properties.pop(name, None)
    properties.setdefault(names.PROPERTY_ORIGIN_MESSAGE_ID, message.offset_message_id)
    return names.encode(properties)
