"""TargetTopic: the topic to which an import copies stored messages.

A producer would give the copies new ids and times, and compress them again. So their requests are made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rocketpy.admin.reader import ToolsConsumer
from rocketpy.client.namespace import wrap_queue
from rocketpy.client.routing.routes import publish_route
from rocketpy.config import ClientConfig, ConsumerConfig
from rocketpy.errors import BrokerError, MessageInvalid, RouteNotFound
from rocketpy.message.message import DEFAULT_TOPIC, check_topic
from rocketpy.producer.send.response import parse_response
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import SendMessageRequestHeaderV2
from rocketpy.protocol.message import properties as names
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import SendStatus
from rocketpy_cli.archives.files import StoredMessage

_GROUP: Final = "rocketpy-cli"
_TIMEOUT_MS: Final = 15_000
_BATCH_BYTES_MAX: Final = 1 << 19
"""A message with a larger body is sent alone: brokers limit a batch to the size of one body."""
_KEPT_FLAGS: Final = (
    MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_TYPE_MASK | MessageSysFlag.MULTI_TAGS
)
_BATCH_REJECTED: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})
"""Response codes of brokers that reject batches, such as 4.6 with DLedger."""
_SEND_PROPERTIES: Final = (
    names.PROPERTY_DELAY_TIME_LEVEL,
    names.PROPERTY_TRANSACTION_PREPARED,
    *names.TIMER_PROPERTIES,
)
"""Properties of the original send: with them, brokers would delay the message, make it a half message, or
reject it."""


class Receipt(NamedTuple):
    """The result of a send."""

    stored: int
    """The number of messages that the broker has stored."""
    next_offset: int
    """The queue offset after them."""
    is_durable: bool
    """Whether they are flushed and replicated as the broker is configured to."""


class TargetTopic(ToolsConsumer):
    """Sends copies of stored messages to the queues of a topic, and reads these queues."""

    def __init__(
        self, topic: str, *, client: ClientConfig | None = None, config: ConsumerConfig | None = None
    ) -> None:
        super().__init__(client=client, config=config)
        self.topic: Final = check_topic(topic)
        self._without_batches: set[str] = set()
        # Brokers accept what consumers have added only in retry topics.
        added = () if topic.startswith(RETRY_TOPIC_PREFIX) else names.RETRY_PROPERTIES
        self._dropped = tuple(f"{name}\x01".encode() for name in (*_SEND_PROPERTIES, *added))

    async def queues(self) -> tuple[MessageQueue, ...]:
        """Return the writable queues of the topic. Raises RouteNotFound when there are none."""
        try:
            route = await self._running_client().routes.get(self._wrap(self.topic), fresh=True)
        except RouteNotFound as error:
            raise RouteNotFound(f"{error}; create it: rocketpy topic create {self.topic}") from None
        found = publish_route(self.topic, route).queues
        if not found:
            raise RouteNotFound(f"topic {self.topic} has no writable queue")
        return found

    async def send(self, queue: MessageQueue, messages: Sequence[StoredMessage]) -> Receipt:
        """Send messages with the same born time and sysFlag to a queue, once; they are stored together.

        To a broker that rejects batches, only the first message is sent; see `Receipt.stored`.

        Raises:
            RocketError: The messages were not stored, or this is unknown; see `outcome`.
        """
        is_alone = len(messages) == 1 and len(messages[0].body) > _BATCH_BYTES_MAX
        if is_alone or queue.broker_name in self._without_batches:
            return await self._send_one(queue, messages[0])
        properties = [message.properties for message in messages]
        all_properties = b"\x02".join(properties)
        if any(start in all_properties for start in self._dropped):
            properties = list(map(self._without_dropped, properties))
        elements = zip(messages, properties, strict=True)
        body = encode_batch([(message.flag, message.body, text) for message, text in elements])
        header = self._header(queue, messages[0])
        header.batch, header.properties = True, "WAIT\x01true\x02"
        command = Command.request(RequestCode.SEND_BATCH_MESSAGE, header, body)
        try:
            return await self._request(queue, command, len(messages))
        except BrokerError as error:
            if error.code not in _BATCH_REJECTED:
                raise
        receipt = await self._send_one(queue, messages[0])
        self._without_batches.add(queue.broker_name)
        return receipt

    async def _send_one(self, queue: MessageQueue, message: StoredMessage) -> Receipt:
        header = self._header(queue, message)
        header.flag = message.flag
        try:
            header.properties = self._without_dropped(message.properties).decode()
        except UnicodeDecodeError as error:
            raise MessageInvalid(f"the properties of a message for {queue} are not UTF-8: {error}") from None
        command = Command.request(RequestCode.SEND_MESSAGE_V2, header, message.body)
        return await self._request(queue, command, 1)

    def _header(self, queue: MessageQueue, message: StoredMessage) -> SendMessageRequestHeaderV2:
        return SendMessageRequestHeaderV2(
            producer_group=self._wrap(_GROUP),
            topic=self._wrap(queue.topic),
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag & _KEPT_FLAGS,
            born_timestamp=message.born_timestamp,
            flag=0,
            reconsume_times=0,
        )

    async def _request(self, queue: MessageQueue, command: Command, count: int) -> Receipt:
        client = self._running_client()
        name = wrap_queue(self._namespace, queue)
        address, _ = await client.routes.find_broker(name.topic, name.broker_name, only=True)
        # Sent once: a repeated request might store the messages twice.
        response = await client.connections.get(address).request(command, _TIMEOUT_MS)
        result = parse_response(response, queue, "")
        return Receipt(count, result.queue_offset + count, result.status is SendStatus.SEND_OK)

    def _without_dropped(self, properties: bytes) -> bytes:
        """Return encoded properties without those that the copy must not have."""
        pieces = properties.split(b"\x02")
        return b"\x02".join([piece for piece in pieces if not piece.startswith(self._dropped)])
