"""PopApi: the requests of message-level sharing (POP), one method each.

A popped message has a handle, `MessageExt.receipt`: the topic that was popped, and the broker's receipt.
Names of topics and groups include the namespace. Methods raise as those of `ConsumerApi`.

Source: RocketMQ 5.3.3 MQClientAPIImpl, ExtraInfoUtil.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from struct import Struct
from typing import Final, NamedTuple, Self

from rocketpy.client.broker_api import broker_error, require_success
from rocketpy.client.connections import PeerConnection
from rocketpy.client.instance import ClientInstance
from rocketpy.consumer.config import ConsumeFrom, MemberConfig
from rocketpy.consumer.fetch.consumer_api import ConsumerApi, is_lasting
from rocketpy.consumer.fetch.subscription import restore_topic, wanted_messages
from rocketpy.errors import ConfigInvalid, ReceiptExpired, RocketError
from rocketpy.message.decode import decode_messages
from rocketpy.message.message import MessageExt, receipt_from_broker
from rocketpy.protocol.bodies import (
    MASTER_ID,
    BatchAck,
    BatchAckMessageRequestBody,
    MessageQueue,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    RequestMode,
    SubscriptionData,
    SubscriptionGroupConfig,
    bit_set,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode, version_name
from rocketpy.protocol.headers import (
    ANY_QUEUE,
    INIT_AT_MAX,
    INIT_AT_MIN,
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    GetSubscriptionGroupConfigRequestHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rocketpy.protocol.message.receipt import (
    ORDER_REVIVE_QUEUE,
    Receipt,
    TopicKind,
    parse_order_counts,
    parse_start_offsets,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.rate_limited_log import RateLimitedLog

log: Final = logging.getLogger("rocketpy.consumer")

DEFAULT_RETRY_MAX: Final = 16
"""How often a message is delivered again, unless the group's configuration says otherwise."""
_NOT_FOUND: Final = frozenset(
    {ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND}
)
_SIZE_AND_QUEUE: Final = Struct(">i8xi")
"""The first fields of a record: its size, and after magic number and CRC the queue id."""


class Handle(NamedTuple):
    """What `MessageExt.receipt` says."""

    topic: str
    """The topic that was popped."""
    receipt: Receipt

    def encode(self) -> str:
        """Return the text."""
        return f"{self.topic} {self.receipt.encode()}"

    @classmethod
    def of(cls, message: MessageExt) -> Self:
        """Read the handle of a message. Raises UsageError, ReceiptExpired."""
        if message.receipt is None:
            raise ReceiptExpired(f"{message} was acknowledged or released already, or was not popped")
        topic, _, receipt = message.receipt.partition(" ")
        return cls(topic, Receipt.decode(receipt))

    def stored_topic(self, group: str) -> str:
        """Return the topic that holds the message."""
        return self.receipt.kind.topic(self.topic, group)


class PopSettings(NamedTuple):
    """What the pops of a consumer have in common."""

    subscription: SubscriptionData
    invisible_ms: int
    order: bool = False


class PopApi(ConsumerApi):
    """Makes POP requests for a group. config: how to decode messages, and where a new group begins."""

    def __init__(self, client: ClientInstance, group: str, timeout_ms: float, config: MemberConfig) -> None:
        super().__init__(client, group, timeout_ms)
        self._config = config
        self._clocks: dict[str, float] = {}
        """By broker name: its clock minus this client's monotonic clock in ms, or less."""
        self._limited_log = RateLimitedLog(log)

    def with_client(self, client: ClientInstance) -> PopApi:
        """Return the same requests through another client, such as that of another event loop."""
        other = PopApi(client, self.group, self.timeout_ms, self._config)
        other._clocks = self._clocks
        return other

    # -- pop ----------------------------------------------------------------------------------

    async def pop(
        self, topic: str, broker_name: str, settings: PopSettings, max_messages: int, poll_ms: int
    ) -> list[MessageExt]:
        """Pop messages of a topic from the master of a broker; return an empty list if there are none.

        poll_ms: how long the broker may hold the pop. If the caller is cancelled, the messages that arrive
        later are released. Raises ConfigInvalid for a broker without POP.
        """
        connection = await self.find_master(topic, broker_name)
        subscription = settings.subscription
        header = PopMessageRequestHeader(
            consumer_group=self.group,
            topic=topic,
            queue_id=ANY_QUEUE,
            max_msg_nums=max_messages,
            invisible_time=settings.invisible_ms,
            poll_time=poll_ms,
            born_time=0,  # the broker's clock, which may be ahead of this one
            init_mode=self._init_mode,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=settings.order,
        )
        command = Command.request(RequestCode.POP_MESSAGE, header)
        response = connection.put(command, self.timeout_ms + poll_ms)
        try:
            answer = await asyncio.shield(response)
        except asyncio.CancelledError:
            response.add_done_callback(self._give_back(topic, broker_name), context=Context())
            raise
        messages = self._popped(answer, topic, broker_name)
        wanted = wanted_messages(messages, subscription.tags_set)
        if len(wanted) < len(messages):
            others = {id(message) for message in messages} - {id(message) for message in wanted}
            skipped = [message for message in messages if id(message) in others]
            self.client.tasks.spawn(self.ack_many(skipped), "acknowledge messages with another tag")
        return wanted

    @property
    def _init_mode(self) -> int:
        is_first = self._config.consume_from is ConsumeFrom.FIRST_OFFSET
        return INIT_AT_MIN if is_first else INIT_AT_MAX

    async def wait_for_message(self, topic: str, broker_name: str, poll_ms: int) -> bool:
        """Wait until a broker has a message for the group; return False if it has none in time."""
        connection = await self.find_master(topic, broker_name)
        header = NotificationRequestHeader(
            consumer_group=self.group, topic=topic, queue_id=ANY_QUEUE, poll_time=poll_ms, born_time=0
        )
        command = Command.request(RequestCode.NOTIFICATION, header)
        response = require_success(await connection.put(command, self.timeout_ms + poll_ms), broker_name)
        return response.header_as(NotificationResponseHeader).has_msg

    async def find_master(self, topic: str, broker_name: str) -> PeerConnection:
        """Return the open connection to a broker's master.

        Raises ConfigInvalid if it has no POP; BrokerError if it rejects heartbeats: then this is not known.
        """
        address, _ = await self.client.routes.find_broker(topic, broker_name, only=True)
        connection = self.client.connections.get(address)
        if not connection.is_open or not connection.is_known:
            await self.client.know(connection)
        if not connection.has_pop:
            if connection.rejection is not None:
                raise broker_error(connection.rejection, broker_name)
            raise ConfigInvalid(
                f"broker {broker_name} at {address} shares queues only: it is RocketMQ "
                f"{version_name(connection.version or 0)}. Sharing by message (POP) needs RocketMQ 5 or "
                "rocketpy's broker; use a PushConsumer with Sharing.QUEUES, or a LitePullConsumer"
            )
        return connection

    async def check_brokers(self, queues_of: Mapping[str, Sequence[MessageQueue]]) -> None:
        """Raise ConfigInvalid if a broker of these topics has no POP, BrokerError if it rejects the member.

        One that is away is left out.
        """
        for topic, queues in queues_of.items():
            for name in dict.fromkeys(queue.broker_name for queue in queues):
                try:
                    await self.find_master(topic, name)
                except RocketError as error:
                    if is_lasting(error):
                        raise
                    log.info("broker %s was not asked whether it has POP: %s", name, error)

    async def is_popped(self, topic: str) -> bool | None:
        """Return whether brokers have set the group's mode of a topic to POP; None if that is not known."""
        try:
            route = await self.client.routes.get(topic)
            for data in route.broker_datas:
                address = data.broker_addrs.get(MASTER_ID)
                connection = self.client.connections.get(address) if address is not None else None
                if connection is None or not connection.has_pop:
                    continue
                body = QueryAssignmentRequestBody(
                    topic=topic,
                    consumer_group=self.group,
                    client_id=self.client.client_id,
                    strategy_name="AVG",
                    message_model="CLUSTERING",
                )
                command = Command.request(RequestCode.QUERY_ASSIGNMENT, body=body.encode())
                response = await connection.request(command, self.timeout_ms)
                if response.code != ResponseCode.SUCCESS:
                    return None  # of a version or configuration without assignments
                assignments = QueryAssignmentResponseBody.decode(response.body).message_queue_assignments
                if assignments is None:
                    return None
                if assignments:  # else another member has the queues
                    return any(each.mode is RequestMode.POP for each in assignments)
        except RocketError as error:
            log.debug("the mode of group %s for topic %s is not known: %s", self.group, topic, error)
        return None

    def _give_back(self, topic: str, broker_name: str) -> Callable[[asyncio.Future[Command]], None]:
        def release(response: asyncio.Future[Command]) -> None:
            if response.cancelled() or response.exception() is not None:
                return
            try:
                messages = self._popped(response.result(), topic, broker_name)
            except RocketError:  # without receipts; they are visible again after the invisible time
                return
            self.release_soon(messages)

        return release

    def release_soon(self, messages: Iterable[MessageExt]) -> None:
        """Let other consumers have messages whose caller was cancelled, unless they were settled."""
        for message in messages:
            if message.receipt is not None:
                self.client.tasks.spawn(self.try_to_release(message), "release a popped message")

    async def try_to_release(self, message: MessageExt, delay_ms: int = 0) -> None:
        """Make a message visible to others after a delay, and use up its receipt; log a failure."""
        try:
            await self.change_invisible(message, delay_ms)
            message.receipt = None
        except RocketError as error:
            text = "%s could not be released, and comes again after its invisible time: %s"
            self._limited_log.info(type(error).__name__, text, message, error)

    def _popped(self, response: Command, topic: str, broker_name: str) -> list[MessageExt]:
        """Return the messages of a response, each with its receipt."""
        if response.code in _NOT_FOUND:
            return []
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response, broker_name)
        header = response.header_as(PopMessageResponseHeader)
        self._clocks[broker_name] = header.pop_time - self.client.now_ms()
        starts = parse_start_offsets(header.start_offset_info)
        counts = parse_order_counts(header.order_count_info)
        namespace = self.client.config.namespace
        popped: list[MessageExt] = []
        for decoded in self._decoded(response.body, topic, broker_name):
            kind, queue_id, offset = TopicKind.of(decoded.topic), decoded.queue.queue_id, decoded.queue_offset
            text = receipt_from_broker(decoded)
            if text is not None:
                receipt = Receipt.decode(text)
            else:
                start = starts.setdefault((kind, queue_id), offset)
                own = (
                    TopicKind.NORMAL if decoded.topic == topic else kind
                )  # topic may be a retry topic itself
                receipt = Receipt(
                    start, header.pop_time, header.invisible_time, header.revive_qid, own, broker_name,
                    queue_id, offset,
                )  # fmt: skip
            message = restore_topic(decoded.with_topic(topic), self.group, namespace)
            count = counts.get((kind, queue_id, offset), counts.get((kind, queue_id, None), 0))
            if count > message.reconsume_times:
                message = message.with_reconsume_times(count)
            message.receipt = Handle(topic, receipt).encode()
            popped.append(message)
        return popped

    def _decoded(self, body: bytes, topic: str, broker_name: str) -> Iterator[MessageExt]:
        """Decode the records of a response; those of one queue follow each other.

        Each body has its own limit, and they have none together: a message that is not decompressed now would
        have to be released, which counts as a delivery. To hold less, pop fewer messages.
        """
        at, config = 0, self._config
        while at < len(body):
            begin, (size, queue_id) = at, _head(body, at)
            while at < len(body) and size > 0 and _head(body, at)[1] == queue_id:
                at += max(size, 1)
                size, _ = _head(body, at) if at < len(body) else (0, 0)
            if at == begin:
                at = len(body)
            decoded = decode_messages(
                body[begin:at],
                MessageQueue(topic, broker_name, queue_id),
                config.max_body_bytes,
                sys.maxsize,
                verify=config.verify_checksums,
            )
            if decoded.damage is not None:
                log.error("a pop of topic %s from broker %s: %s", topic, broker_name, decoded.damage)
            yield from decoded.messages

    # -- ends of a delivery -------------------------------------------------------------------

    async def ack(self, message: MessageExt) -> None:
        """Acknowledge a message; its receipt is used up.

        Raises ReceiptExpired if its invisible time is over. The broker is asked in this case, too: unless it
        has made the message visible again, it is not delivered again.
        """
        handle = Handle.of(message)
        topic, receipt = handle.stored_topic(self.group), handle.receipt
        header = AckMessageRequestHeader(
            consumer_group=self.group,
            topic=topic,
            queue_id=receipt.queue_id,
            extra_info=receipt.encode(),
            offset=message.queue_offset,
        )
        is_expired = self.is_expired(receipt)
        await self._settle(message, handle, RequestCode.ACK_MESSAGE, header)
        message.receipt = None
        if is_expired:
            raise _expired(message)

    async def ack_many(self, messages: Sequence[MessageExt]) -> dict[int, RocketError]:
        """Acknowledge messages, with one request for each broker; return the errors by index."""
        errors: dict[int, RocketError] = {}
        batches: dict[tuple[str, str], list[tuple[int, Handle]]] = {}
        for index, message in enumerate(messages):
            try:
                handle = Handle.of(message)
            except RocketError as error:
                errors[index] = error
                continue
            batches.setdefault((handle.topic, handle.receipt.broker_name), []).append((index, handle))
        await asyncio.gather(
            *(self._ack_batch(topic, name, each, messages, errors) for (topic, name), each in batches.items())
        )
        return errors

    async def _ack_batch(
        self,
        topic: str,
        broker_name: str,
        handles: Collection[tuple[int, Handle]],
        messages: Sequence[MessageExt],
        errors: dict[int, RocketError],
    ) -> None:
        if len(handles) == 1:
            [(index, _)] = handles
            try:
                await self.ack(messages[index])
            except RocketError as error:
                errors[index] = error
            return
        deliveries: dict[tuple[str, Receipt], list[int]] = {}
        for index, handle in handles:
            key = handle.stored_topic(self.group), handle.receipt._replace(queue_offset=None)
            deliveries.setdefault(key, []).append(messages[index].queue_offset)
        acks = [
            BatchAck(
                consumer_group=self.group,
                topic=stored,
                retry=TopicKind.NORMAL,  # the topic is the one that holds them
                start_offset=receipt.checkpoint_offset,
                queue_id=receipt.queue_id,
                revive_queue_id=receipt.revive_queue,
                pop_time=receipt.pop_time,
                invisible_time=receipt.invisible_time,
                bit_set=bit_set(offset - receipt.checkpoint_offset for offset in offsets),
            )
            for (stored, receipt), offsets in deliveries.items()
        ]
        body = BatchAckMessageRequestBody(broker_name=broker_name, acks=acks)
        command = Command.request(RequestCode.BATCH_ACK_MESSAGE, body=body.encode())
        expired = [index for index, handle in handles if self.is_expired(handle.receipt)]
        try:
            connection = await self.find_master(topic, broker_name)
            response = await connection.request(command, self.timeout_ms)
            if response.code == ResponseCode.NO_MESSAGE:  # rocketpy's broker: none is in flight any more
                expired = [index for index, _ in handles]
            else:
                require_success(response, broker_name)
        except RocketError as error:
            errors.update((index, error) for index, _ in handles)
            return
        for index, _ in handles:
            messages[index].receipt = None
        errors.update((index, _expired(messages[index])) for index in expired)

    async def change_invisible(self, message: MessageExt, invisible_ms: int) -> None:
        """Make a message visible to others after a time from now on; it gets a new receipt.

        Raises ReceiptExpired if its invisible time is over: another consumer may have it.
        """
        handle = Handle.of(message)
        topic, receipt = handle.stored_topic(self.group), handle.receipt
        if self.is_expired(receipt):
            raise _expired(message)
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=self.group,
            topic=topic,
            queue_id=receipt.queue_id,
            extra_info=receipt.encode(),
            offset=message.queue_offset,
            invisible_time=invisible_ms,
        )
        response = await self._settle(message, handle, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        changed = response.header_as(ChangeInvisibleTimeResponseHeader)
        if changed.revive_qid != ORDER_REVIVE_QUEUE:  # else it has the time of the pop
            self._clocks[receipt.broker_name] = changed.pop_time - self.client.now_ms()
        message.receipt = Handle(
            handle.topic,
            receipt._replace(
                checkpoint_offset=message.queue_offset,
                pop_time=changed.pop_time,
                invisible_time=changed.invisible_time,
                revive_queue=changed.revive_qid,
            ),
        ).encode()

    async def _settle(
        self, message: MessageExt, handle: Handle, code: int, header: AckMessageRequestHeader
    ) -> Command:
        name = handle.receipt.broker_name
        connection = await self.find_master(handle.topic, name)
        response = await connection.request(Command.request(code, header), self.timeout_ms)
        if response.code == ResponseCode.NO_MESSAGE:
            raise _expired(message)
        return require_success(response, name)

    def is_expired(self, receipt: Receipt) -> bool:
        """Return whether the invisible time of a delivery is certainly over, as far as this client knows."""
        clock = self._clocks.get(receipt.broker_name)
        if clock is None:
            return False
        return self.client.now_ms() + clock > receipt.pop_time + receipt.invisible_time

    async def retry_max(self, topic: str, broker_name: str) -> int:
        """Return how often the group's messages are delivered again, from its configuration.

        The default for a group that the broker does not know yet.
        """
        connection = await self.find_master(topic, broker_name)
        header = GetSubscriptionGroupConfigRequestHeader(group=self.group)
        command = Command.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        response = await connection.request(command, self.timeout_ms)
        if response.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return DEFAULT_RETRY_MAX
        body = require_success(response, broker_name).body
        return SubscriptionGroupConfig.decode(body).retry_max_times


def _head(body: bytes, at: int) -> tuple[int, int]:
    """Return size and queue id of the record at a position; 0 and 0 if it is too short."""
    if at + _SIZE_AND_QUEUE.size > len(body):
        return 0, 0
    size, queue_id = _SIZE_AND_QUEUE.unpack_from(body, at)
    return size, queue_id


def _expired(message: MessageExt) -> ReceiptExpired:
    return ReceiptExpired(
        f"the invisible time of {message} is over: another consumer may have it; extend() keeps it longer"
    )
