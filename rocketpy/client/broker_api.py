"""BrokerApi: requests that any client may send to a broker.

Topic names include the namespace, as on the wire. Every method raises RouteNotFound, TransportError,
BrokerError, and RemoteProtocolError for an offset that no queue can have.

Source: RocketMQ 4.6 MQAdminImpl, MQClientAPIImpl.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import unwrap
from rocketpy.errors import (
    BrokerError,
    MessageInvalid,
    Outcome,
    RemoteProtocolError,
    Retry,
    RocketError,
    RouteNotFound,
    TransportError,
)
from rocketpy.message.decode import decode_message, log_undecodable
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import VERSION_5_1_1, RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    LOWER_BOUNDARY,
    UPPER_BOUNDARY,
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    Header,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    ViewMessageRequestHeader,
)
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.protocol.message.record import host_text
from rocketpy.protocol.remoting.command import Command

log: Final = logging.getLogger("rocketpy.client")

MAX_BODY_BYTES: Final = 16 << 20
"""Limit of one inflated body; a message with a larger one has a `decode_error`."""

OFFSET_MAX: Final = (2**63 - 1) // 20
"""Highest offset of a queue, whose units of 20 bytes have positions in 64 bits."""

H = TypeVar("H", bound=Header)
R = TypeVar("R")

_RETRY_BY_CODE: Final[dict[int, Retry]] = {
    ResponseCode.SYSTEM_BUSY: Retry.SAME_BROKER,
    ResponseCode.SERVICE_NOT_AVAILABLE: Retry.OTHER_BROKER,
    ResponseCode.TOPIC_NOT_EXIST: Retry.REFRESH_ROUTE,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: Retry.SAME_BROKER,
}

_NO_SQL: Final = "does not support consumer to filter message by SQL92"
_NO_SQL_ADVICE: Final = "set enablePropertyFilter=true in its broker.conf"


class BrokerApi:
    """Sends requests to brokers through a client instance. timeout_ms: for each response."""

    def __init__(self, client: ClientInstance, timeout_ms: float) -> None:
        self.client: Final = client
        self.timeout_ms: Final = timeout_ms

    # -- offsets ------------------------------------------------------------------------------

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the lowest offset that can still be read."""
        header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        code = RequestCode.GET_MIN_OFFSET
        found = await self._query_queue(queue, code, header, GetMinOffsetResponseHeader)
        return checked_offset(found.offset, "min offset", queue)

    async def max_offset(self, queue: MessageQueue, *, of_master: bool = False) -> int:
        """Return the offset that the next message will get. of_master: see `Queries.max_offset`."""
        header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        code = RequestCode.GET_MAX_OFFSET
        found = await self._query_queue(
            queue, code, header, GetMaxOffsetResponseHeader, master_only=of_master
        )
        return checked_offset(found.offset, "max offset", queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """See `Queries.search_offset`, and `first_since` for brokers before 5.1.1."""
        address, _ = await self.client.routes.find_broker(queue.topic, queue.broker_name, only=False)

        async def search(timestamp: int) -> Command:
            header = SearchOffsetRequestHeader(
                topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp
            )
            command = Command.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
            return await self.request(address, queue.broker_name, command)

        offset, _ = await first_since(search, timestamp_ms)
        return checked_offset(offset, f"offset at time {timestamp_ms}", queue)

    async def search_end(self, queue: MessageQueue, timestamp_ms: int) -> int | None:
        """Return the offset after the last message stored at or before a time, in ms since 1970.

        There may be later messages before it, if the clock of the broker was set back. None if the broker
        cannot tell it: only rocketpy's broker searches where the clock was set back.
        """
        header = SearchOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, boundary_type=UPPER_BOUNDARY
        )
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        found = await self._query_queue(queue, code, header, SearchOffsetResponseHeader)
        return found.offset + 1 if found.boundary_type == UPPER_BOUNDARY else None

    async def earliest_message_store_time(self, queue: MessageQueue) -> int:
        """Return when the oldest message was stored, in ms since 1970; -1 for an empty queue."""
        header = GetEarliestMsgStoretimeRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        code = RequestCode.GET_EARLIEST_MSG_STORETIME
        return (await self._query_queue(queue, code, header, GetEarliestMsgStoretimeResponseHeader)).timestamp

    # -- messages -----------------------------------------------------------------------------

    async def view_message(
        self,
        message_id: str,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        verify: bool = True,
        only_known: bool = False,
    ) -> MessageExt:
        """Return the message with this offset message id (host and log offset).

        Differs from RocketMQ: when that host does not respond, the request goes to its replicas. Their logs
        are equal, and each record names the host that wrote it, so a wrong message is recognized.

        only_known: connect only to addresses in a cached route, for an argument that may be a unique id.
        max_body_bytes, verify: see `decode_messages`. A message that cannot be decoded has a `decode_error`.
        Raises MessageInvalid for a malformed id, BrokerError if the message does not exist, TransportError if
        no broker that may have it responds. Raises RecordCorrupt if the response is not a record.
        """
        client = self.client
        try:
            store_host, offset = decode_message_id(message_id)
        except RemoteProtocolError as error:  # the id comes from the caller, not from a peer
            raise MessageInvalid(str(error)) from None
        address = client.routes.address_of(*host_text(store_host))
        name = client.routes.broker_name(address)

        async def view(broker_address: str, broker_name: str) -> MessageExt:
            command = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset))
            response = await self.request(broker_address, broker_name, command)
            found = decode_message(response.body, broker_name, max_body_bytes, verify=verify)
            log_undecodable([found], log)
            return found.with_topic(unwrap(client.config.namespace, found.topic))

        failure: RocketError = RouteNotFound(f"no cached route has a broker at {address}")
        if name is not None or not only_known:
            try:
                return await view(address, name or address)
            except TransportError as error:
                failure = error
        async for replica, broker_name in self._other_brokers(address, name):
            try:
                found = await view(replica, broker_name)
            except RocketError as error:
                log.debug("%s does not have %s: %s", replica, message_id, error)
                continue
            if decode_message_id(found.offset_message_id) == (store_host, offset):
                return found
        raise failure

    async def _other_brokers(self, address: str, name: str | None) -> AsyncIterator[tuple[str, str]]:
        """Yield address and name of every other broker, members of its own broker group first.

        Yields nothing when no name server responds.
        """
        try:
            brokers = await self.client.brokers()
        except RocketError as error:
            log.debug("cannot list the other brokers: %s", error)
            return
        for data in sorted(
            brokers, key=lambda data: data.broker_name != name and address not in data.broker_addrs.values()
        ):
            for _, other in sorted(data.broker_addrs.items(), reverse=True):  # slaves first
                if other != address:
                    yield other, data.broker_name

    # -- requests -----------------------------------------------------------------------------

    async def request(
        self, address: str, broker: str, command: Command, timeout_ms: float | None = None
    ) -> Command:
        """Send an idempotent request; return its response. Raises BrokerError for any code but SUCCESS.

        broker: the name of the broker, for errors. timeout_ms: None for that of the object.
        """
        response = await self.client.request(address, command, timeout_ms or self.timeout_ms)
        return require_success(response, broker)

    async def _query_queue(
        self,
        queue: MessageQueue,
        code: RequestCode,
        header: Header,
        response_class: type[H],
        *,
        master_only: bool = False,
    ) -> H:
        address, _ = await self.client.routes.find_broker(queue.topic, queue.broker_name, only=master_only)
        response = await self.request(address, queue.broker_name, Command.request(code, header))
        return response.header_as(response_class)


async def first_since(search: Callable[[int], Awaitable[Command]], timestamp_ms: int) -> tuple[int, int]:
    """Return an offset that skips no message stored at or after a time, and the time to send for it.

    search: sends SEARCH_OFFSET_BY_TIMESTAMP with this timestamp, and returns the response.

    RocketMQ before 5.1.1 returns the message with the nearest store time, and of several with an equal one,
    any. So it is asked again for the ms before: that message is the first wanted one, or an earlier one.
    """
    response = await search(timestamp_ms)
    found = response.header_as(SearchOffsetResponseHeader)
    finds_first = response.version >= VERSION_5_1_1 or found.boundary_type == LOWER_BOUNDARY
    if finds_first or timestamp_ms <= 0:
        return found.offset, timestamp_ms
    before = await search(timestamp_ms - 1)
    return before.header_as(SearchOffsetResponseHeader).offset, timestamp_ms - 1


async def gather_by_broker(
    brokers: Sequence[str], calls: Sequence[Awaitable[R]]
) -> tuple[dict[str, R], dict[str, RocketError]]:
    """Await one call per broker concurrently; return the results and the errors, by broker name.

    brokers: the broker names, in the order of `calls`. Raises exceptions other than RocketError.
    """
    results: dict[str, R] = {}
    errors: dict[str, RocketError] = {}
    for name, end in zip(brokers, await asyncio.gather(*calls, return_exceptions=True), strict=True):
        if isinstance(end, RocketError):
            errors[name] = end
        elif isinstance(end, BaseException):
            raise end
        else:
            results[name] = end
    return results, errors


def log_failed(results: dict[str, R], errors: Mapping[str, RocketError]) -> dict[str, R]:
    """Log the errors of brokers, and return the results. Raises the first error when every broker failed."""
    if errors and not results:
        raise next(iter(errors.values()))
    for name, error in errors.items():
        log.warning("broker %s: %s", name, error)
    return results


async def create_missing(
    masters: Mapping[str, str | None],
    *,
    find: Callable[[str | None, str], Awaitable[R | None]],
    check: Callable[[Mapping[str, R], Sequence[str]], Awaitable[None]],
    create: Callable[[str | None, str], Awaitable[R | None]],
) -> tuple[dict[str, R | None], dict[str, RocketError]]:
    """Create something on the brokers that lack it; leave it unchanged on those that have it.

    masters: addresses by broker name. find: returns what a broker has, or None. check: called with what was
    found, by broker, and with the brokers that lack it, before `create` is called for these. It may raise.
    create: returns what a broker has if another client was faster; then `check` is called again.
    Returns what each broker had, None where it was created; and the errors of brokers that failed.
    """
    found, errors = await gather_by_broker(
        list(masters), [find(address, broker) for broker, address in masters.items()]
    )
    missing = [broker for broker, known in found.items() if known is None]
    await check({broker: known for broker, known in found.items() if known is not None}, missing)
    ends, failed = await gather_by_broker(missing, [create(masters[broker], broker) for broker in missing])
    if late := {broker: known for broker, known in ends.items() if known is not None}:
        await check(late, [])
    found.update(ends)
    return {broker: known for broker, known in found.items() if broker not in failed}, {**errors, **failed}


def require_success(response: Command, broker: str, advice: str = "") -> Command:
    """Return the response. Raises BrokerError unless its code is SUCCESS. advice: what helps then."""
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response, broker, advice)
    return response


def checked_offset(offset: int, what: str, queue: MessageQueue) -> int:
    """Return the offset. Raises RemoteProtocolError if no queue can have it. what: its name, for errors."""
    if not 0 <= offset <= OFFSET_MAX:
        raise RemoteProtocolError(f"broker {queue.broker_name} sent {offset} as the {what} of {queue}")
    return offset


def broker_error(response: Command, broker: str, advice: str = "") -> BrokerError:
    """Return the error for a response with a code other than SUCCESS."""
    retry = _RETRY_BY_CODE.get(response.code, Retry.NONE)
    if _NO_SQL in (response.remark or ""):
        advice = _NO_SQL_ADVICE
    return BrokerError(
        response.code, response.remark, broker, outcome=Outcome.NOT_SENT, retry=retry, advice=advice
    )
