"""MessageIndex: finds messages by key or unique id, at every broker of a topic.

Source: RocketMQ 4.6 MQAdminImpl queryMessage.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from rocketpy.client.broker_api import MAX_BODY_BYTES, gather_by_broker, log_failed, require_success
from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import wrap
from rocketpy.client.routing.routes import member_to_read
from rocketpy.config import check_number
from rocketpy.errors import BrokersFailed, MessageInvalid, RemoteProtocolError
from rocketpy.message.decode import decode_messages, log_undecodable
from rocketpy.message.message import MessageExt, check_value
from rocketpy.protocol.bodies import BrokerData, MessageQueue
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import UNIQUE_INDEX, QueryMessageRequestHeader, QueryMessageResponseHeader
from rocketpy.protocol.message.message_id import check_unique_id
from rocketpy.protocol.message.properties import KEY_SEPARATOR
from rocketpy.protocol.remoting.command import Command

log: Final = logging.getLogger("rocketpy.client")

FOREVER_MS: Final = 2**63 - 1
"""Later than the store time of any message."""
_MAX_TOTAL_BYTES: Final = 64 << 20
"""Limit of the inflated bodies of one response; messages beyond it have a `decode_error`."""
_TIMEOUT_MS: Final = 18_000
_PAGE_MIN: Final = 32
"""A response with fewer messages has all; brokers return at most 64 by default (maxMsgsNumBatch)."""
_UNIQUE_MAX: Final = 32
"""Maximum number of messages that each broker returns for a unique id."""

R = TypeVar("R")


class QueryResult(NamedTuple):
    """The messages that a query by key found."""

    messages: list[MessageExt]
    index_updated_ms: int
    """When a broker last added to its index, in ms since 1970."""


class MessageIndex:
    """Queries the brokers of a topic.

    partial: failed brokers are logged and ignored while at least one broker responds. namespace: the
    namespace of the topic; None for that of the client. max_body_bytes, verify: see `decode_messages`.
    """

    def __init__(
        self,
        client: ClientInstance,
        *,
        partial: bool,
        namespace: str | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        verify: bool = True,
    ) -> None:
        self._client = client
        self._max_body_bytes = max_body_bytes
        self._verify = verify
        self._partial = partial
        self._namespace = client.config.namespace if namespace is None else namespace

    async def by_unique_id(self, topic: str, unique_id: str) -> MessageExt | None:
        """Return the message with a unique id that was stored first; None if no broker has one.

        Raises MessageInvalid for a malformed id, and what `by_key` raises.
        """
        try:
            check_unique_id(unique_id)
        except RemoteProtocolError as error:
            raise MessageInvalid(str(error)) from None
        # The time in the id depends on the sender's time zone and clock: search messages of all times.
        found = await self._query(topic, unique_id, _UNIQUE_MAX, 0, FOREVER_MS, unique=True)
        return min(found.messages, key=lambda message: message.store_timestamp, default=None)

    async def by_key(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Return the messages that have a key, at most `max_count` of each broker.

        begin_ms, end_ms: range of the store times, in ms since 1970. Raises RouteNotFound, TransportError and
        BrokerError; unless `partial`, also BrokersFailed, and RecordCorrupt for an unreadable response.
        Raises UsageError for a key that no message can have, and for other invalid arguments.
        """
        if KEY_SEPARATOR in check_value("the key", key):
            raise MessageInvalid(f"the key {key!r} contains a space, which separates keys; give one of them")
        check_number("max_count", max_count, 1)
        begin_ms, end_ms = check_times(begin_ms, end_ms)
        return await self._query(topic, key, max_count, begin_ms, end_ms, unique=False)

    async def _query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, *, unique: bool
    ) -> QueryResult:
        client = self._client
        header = QueryMessageRequestHeader(
            topic=wrap(self._namespace, topic),
            key=key,
            max_num=max_count,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            index_type=UNIQUE_INDEX if unique else None,
        )
        brokers = [data for data in (await client.routes.get(header.topic)).broker_datas if data.broker_addrs]
        requests = [self._query_all_at(data, header) for data in brokers]
        parts = await gather_results(brokers, requests, partial=self._partial)
        messages = [
            message.with_topic(topic)
            for part in parts
            for message in part.messages
            # The index holds only hashes of keys, so a broker may also return messages with other keys.
            if (message.message_id == key if unique else key in message.keys)
        ]
        return QueryResult(messages, max((part.index_updated_ms for part in parts), default=0))

    async def _query_all_at(self, data: BrokerData, header: QueryMessageRequestHeader) -> QueryResult:
        """Query a broker again for older messages while it returns fewer than `max_num`, but many.

        Brokers limit the number themselves, and return the newest messages first.
        """
        found: dict[str, MessageExt] = {}
        updated_ms, count = 0, header.max_num
        while True:
            part = await self._query_at(data, header)
            found.update((message.offset_message_id, message) for message in part.messages)
            updated_ms = max(updated_ms, part.index_updated_ms)
            if len(found) >= count or len(part.messages) < min(_PAGE_MIN, count):
                break
            # The oldest ms may have more messages than one response. The next response has it again.
            oldest_ms = min(message.store_timestamp for message in part.messages)
            end_ms = oldest_ms if oldest_ms < header.end_timestamp else oldest_ms - 1
            if end_ms < header.begin_timestamp:
                break
            header = msgspec.structs.replace(header, end_timestamp=end_ms)
        return QueryResult(list(found.values())[:count], updated_ms)

    async def _query_at(self, data: BrokerData, header: QueryMessageRequestHeader) -> QueryResult:
        address = data.broker_addrs[member_to_read(data.broker_addrs)]
        command = Command.request(RequestCode.QUERY_MESSAGE, header)
        response = await self._client.request(address, command, _TIMEOUT_MS)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return QueryResult([], 0)
        found = require_success(response, data.broker_name).header_as(QueryMessageResponseHeader)
        queue = MessageQueue(header.topic, data.broker_name, 0)
        limit = self._max_body_bytes
        decoded = decode_messages(
            response.body, queue, limit, max(limit, _MAX_TOTAL_BYTES), verify=self._verify
        )
        if decoded.damage is not None:
            if not self._partial:
                raise decoded.damage
            text = "broker %s: the rest of its response is unreadable; messages with key %s are missing: %s"
            log.error(text, data.broker_name, header.key, decoded.damage)
        messages = [
            message.with_queue(MessageQueue(header.topic, data.broker_name, message.queue_id))
            for message in decoded.messages
        ]
        log_undecodable(messages, log)
        return QueryResult(messages, found.index_last_update_timestamp)


def check_times(begin_ms: float, end_ms: float) -> tuple[int, int]:
    """Return a range of store times in whole ms since 1970. Raises ConfigInvalid."""
    check_number("begin_ms", begin_ms, 0)
    check_number("end_ms", end_ms, 0, FOREVER_MS)
    return math.ceil(begin_ms), math.floor(end_ms)


async def gather_results(
    brokers: Sequence[BrokerData], requests: Sequence[Awaitable[R]], *, partial: bool
) -> list[R]:
    """Await one request per broker concurrently; return the results of the brokers that succeeded.

    Raises the first error when every broker failed, and BrokersFailed when only some did. partial: log the
    errors of these instead.
    """
    found, errors = await gather_by_broker([data.broker_name for data in brokers], requests)
    if errors and found and not partial:
        raise BrokersFailed(errors, found)
    return list(log_failed(found, errors).values())
