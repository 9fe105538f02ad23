"""Look-ups: queues and their offsets, messages by id and by key; and making topics.

`Producer` and `AdminClient` have all of this.

Source: RocketMQ 4.6 MQAdmin, MQAdminImpl.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple, TypeVar

from rocketpy.client.broker_api import BrokerApi, require_success
from rocketpy.client.instance import ClientInstance
from rocketpy.client.lookup import view_by_offset
from rocketpy.client.namespace import wrap, wrap_queue
from rocketpy.client.routing.routes import MASTER_ID, member_to_read, publish_route
from rocketpy.config import check_number
from rocketpy.errors import (
    BrokerError,
    MessageInvalid,
    Outcome,
    RemoteProtocolError,
    RequestTimeout,
    RocketError,
    RouteNotFound,
)
from rocketpy.message.decode import decode_messages, undecodable
from rocketpy.message.message import DEFAULT_TOPIC, MessageExt, check_topic
from rocketpy.protocol.bodies import BrokerData, MessageQueue
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    CreateTopicRequestHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
)
from rocketpy.protocol.message.message_id import unique_id_time_ms
from rocketpy.protocol.remoting.command import Command

log = logging.getLogger("rocketpy.client")

_TIMEOUT_MS: Final = 6000
"""RocketMQ: MQAdminImpl timeoutMillis."""
_QUERY_TIMEOUT_MS: Final = 18_000
FOREVER_MS: Final = 2**63 - 1
"""Later than any message."""
_MAX_BODY_BYTES: Final = 16 << 20
_MAX_TOTAL_BYTES: Final = 64 << 20
"""What the bodies of one broker's answer may inflate to; the messages behind have a `decode_error`."""
_CREATE_ATTEMPTS: Final = 5
_READ_WRITE: Final = 6
_ROUTE_POLL_S: Final = 0.05


class QueryResult(NamedTuple):
    """What a look-up by key found. index_updated_ms: when a broker last added to its index."""

    messages: list[MessageExt]
    index_updated_ms: int


class AdminApi:
    """What any client may ask. Every method raises RouteNotFound, TransportError and BrokerError."""

    def _asking(self) -> ClientInstance:
        """The running client. Raises ClientClosed."""
        raise NotImplementedError

    # -- topics -------------------------------------------------------------------------------

    async def fetch_publish_message_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that messages of a topic may be sent to, as the name server tells now."""
        client = self._asking()
        route = await client.route(wrap(client.config.namespace, topic), fresh=True)
        return publish_route(topic, route).queues

    async def create_topic(
        self, topic: str, queue_count: int = 4, *, key: str = DEFAULT_TOPIC, topic_sys_flag: int = 0
    ) -> None:
        """Make a topic with so many queues on each broker, or change their number.

        key: a topic that these brokers have; each has the template topic, and one named like its cluster,
        which is the one to take where brokers make no topics by themselves. Returns when the name server
        knows the topic. When only some brokers could make it, the rest is logged, as in RocketMQ.
        Raises ConfigInvalid for a `queue_count` below 1.
        """
        client = self._asking()
        check_number("queue_count", queue_count, 1)
        name = wrap(client.config.namespace, check_topic(topic))
        masters = [
            data
            for data in (await client.route(key, fresh=True)).broker_datas
            if MASTER_ID in data.broker_addrs
        ]
        if not masters:
            raise RouteNotFound(f"no broker with a master has topic {key}, so {topic} cannot be made there")
        header = CreateTopicRequestHeader(
            topic=name,
            default_topic=key,
            read_queue_nums=queue_count,
            write_queue_nums=queue_count,
            perm=_READ_WRITE,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=topic_sys_flag,
        )
        made = await _of_each(masters, [self._create_at(client, data, header) for data in masters])
        await self._until_known(client, name, {data.broker_name for data in made})

    async def _create_at(
        self, client: ClientInstance, data: BrokerData, header: CreateTopicRequestHeader
    ) -> BrokerData:
        error: RocketError | None = None
        for _ in range(_CREATE_ATTEMPTS):
            try:
                command = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
                await BrokerApi(client, _TIMEOUT_MS).request(
                    data.broker_addrs[MASTER_ID], data.broker_name, command
                )
            except RocketError as failed:
                error = failed
            else:
                return data
        raise error or RouteNotFound(data.broker_name)

    async def _until_known(self, client: ClientInstance, topic: str, brokers: set[str]) -> None:
        """Wait for brokers to register a topic, which they do right after making it."""
        until = time.monotonic() + _TIMEOUT_MS / 1000
        while True:
            try:
                route = await client.route(topic, fresh=True)
                if brokers <= {data.broker_name for data in route.queue_datas}:
                    return
            except RouteNotFound:
                pass
            if time.monotonic() > until:
                raise RequestTimeout(
                    f"brokers {sorted(brokers)} made topic {topic}, but the name server does not know it "
                    f"after {_TIMEOUT_MS} ms",
                    outcome=Outcome.STORED,
                )
            await asyncio.sleep(_ROUTE_POLL_S)

    # -- offsets ------------------------------------------------------------------------------

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at or after a time, in ms since 1970."""
        return await self._questions().search_offset(self._wrapped(queue), timestamp_ms)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return await self._questions().max_offset(self._wrapped(queue))

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest offset that can still be read."""
        return await self._questions().min_offset(self._wrapped(queue))

    async def earliest_message_store_time(self, queue: MessageQueue) -> int:
        """When the oldest message of a queue was stored, in ms since 1970; -1 for an empty queue."""
        return await self._questions().earliest_message_store_time(self._wrapped(queue))

    # -- messages -----------------------------------------------------------------------------

    async def view_message(self, message_id: str, topic: str | None = None) -> MessageExt:
        """One message by its id.

        Without a topic: by the broker's id (`SendResult.offset_message_id`), from the broker that the id
        names, or from a replica when that is gone. With one: by the unique id that its producer gave it
        (`SendResult.message_id`); when no broker of the topic has it, as a broker's id. Of several messages
        with one unique id (a send that was repeated) the first.

        A message that cannot be decoded comes with its raw body and `MessageExt.decode_error`.

        Raises MessageInvalid when the text is no id, BrokerError when there is no such message.
        Differs from RocketMQ, which tries a unique id as a broker's id first, and connects to what it reads
        there.
        """
        if topic is None:
            return await self._view_by_offset(message_id)
        try:
            begin_ms = unique_id_time_ms(message_id, time.time_ns() // 1_000_000) - 1000
        except RemoteProtocolError as error:
            raise MessageInvalid(str(error)) from None
        found = await self._query(topic, message_id, 32, begin_ms, FOREVER_MS, unique=True)
        if found.messages:
            return min(found.messages, key=lambda message: message.store_timestamp)
        try:
            return await self._view_by_offset(message_id, only_known=True)
        except RocketError as error:
            raise BrokerError(
                ResponseCode.QUERY_NOT_FOUND,
                f"no message of topic {topic} has id {message_id}",
                "the topic's brokers",
            ) from error

    async def query_message(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> QueryResult:
        """Messages of a topic that have a key, from every broker of the topic.

        max_count: at most so many a broker. begin_ms, end_ms: when they were stored, in ms since 1970.
        A broker that does not answer is logged and left out, as long as another one answers. A message that
        cannot be decoded comes with its raw body and `MessageExt.decode_error`.
        """
        return await self._query(topic, key, max_count, begin_ms, end_ms, unique=False)

    async def _view_by_offset(self, message_id: str, *, only_known: bool = False) -> MessageExt:
        return await view_by_offset(
            self._asking(),
            message_id,
            timeout_ms=_TIMEOUT_MS,
            max_body_bytes=_MAX_BODY_BYTES,
            verify=True,
            only_known=only_known,
        )

    async def _query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, *, unique: bool
    ) -> QueryResult:
        client = self._asking()
        header = QueryMessageRequestHeader(
            topic=wrap(client.config.namespace, topic),
            key=key,
            max_num=max_count,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query=unique,
        )
        brokers = [data for data in (await client.route(header.topic)).broker_datas if data.broker_addrs]
        parts = await _of_each(brokers, [self._query_at(client, data, header) for data in brokers])
        messages = [
            message.with_topic(topic)
            for part in parts
            for message in part.messages
            # The index goes by a hash, so strangers may be among them.
            if (message.message_id == key if unique else key in message.keys)
        ]
        return QueryResult(messages, max((part.index_updated_ms for part in parts), default=0))

    async def _query_at(
        self, client: ClientInstance, data: BrokerData, header: QueryMessageRequestHeader
    ) -> QueryResult:
        address = data.broker_addrs[member_to_read(data.broker_addrs)]
        answer = await client.request(
            address, Command.request(RequestCode.QUERY_MESSAGE, header), _QUERY_TIMEOUT_MS
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return QueryResult([], 0)
        found = require_success(answer, data.broker_name).header_as(QueryMessageResponseHeader)
        queue = MessageQueue(header.topic, data.broker_name, 0)
        decoded = decode_messages(answer.body, queue, _MAX_BODY_BYTES, _MAX_TOTAL_BYTES, verify=True)
        if decoded.damage is not None:
            text = "broker %s: messages with key %s are missing, since the answer cannot be read further: %s"
            log.error(text, data.broker_name, header.key, decoded.damage)
        messages = [
            message.with_queue(MessageQueue(header.topic, data.broker_name, message.queue_id))
            for message in decoded.messages
        ]
        undecodable(messages, log)
        return QueryResult(messages, found.index_last_update_timestamp)

    # -- inside -------------------------------------------------------------------------------

    def _wrapped(self, queue: MessageQueue) -> MessageQueue:
        return wrap_queue(self._asking().config.namespace, queue)

    def _questions(self) -> BrokerApi:
        return BrokerApi(self._asking(), _TIMEOUT_MS)


R = TypeVar("R")


async def _of_each(brokers: Sequence[BrokerData], questions: Sequence[Awaitable[R]]) -> list[R]:
    """The answers of those that gave one; raises the first error when nobody did."""
    answers = await asyncio.gather(*questions, return_exceptions=True)
    found: list[R] = []
    errors: list[RocketError] = []
    for data, answer in zip(brokers, answers, strict=True):
        if isinstance(answer, RocketError):
            log.warning("broker %s: %s", data.broker_name, answer)
            errors.append(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found.append(answer)
    if errors and not found:
        raise errors[0]
    return found
