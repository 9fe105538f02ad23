"""What anyone may ask brokers about queues.

Names of topics are those on the wire, with their namespace. Every method raises RouteNotFound,
TransportError, BrokerError, and RemoteProtocolError for an offset below 0.

Source: RocketMQ 4.6 MQAdminImpl.
"""

from __future__ import annotations

from typing import Final, TypeVar

from rocketpy.client.instance import ClientInstance
from rocketpy.errors import BrokerError, Outcome, RemoteProtocolError, Retry
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    Header,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from rocketpy.protocol.remoting.command import Command

H = TypeVar("H", bound=Header)

_REFUSALS: Final[dict[int, Retry]] = {
    ResponseCode.SYSTEM_BUSY: Retry.SAME_BROKER,
    ResponseCode.SERVICE_NOT_AVAILABLE: Retry.OTHER_BROKER,
    ResponseCode.TOPIC_NOT_EXIST: Retry.REFRESH_ROUTE,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: Retry.SAME_BROKER,
}

_NO_SQL: Final = "does not support consumer to filter message by SQL92"
_NO_SQL_ADVICE: Final = "set enablePropertyFilter=true in its broker.conf"


class BrokerApi:
    """Asks by a client. timeout_ms: for an answer."""

    def __init__(self, client: ClientInstance, timeout_ms: float) -> None:
        self.client: Final = client
        self.timeout_ms: Final = timeout_ms

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest offset that can still be read."""
        header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        code = RequestCode.GET_MIN_OFFSET
        found = await self._of_queue(queue, code, header, GetMinOffsetResponseHeader)
        return checked_offset(found.offset, "min offset", queue)

    async def max_offset(self, queue: MessageQueue, *, of_master: bool = False) -> int:
        """The offset that the next message will get.

        of_master: never that of a slave, which may be behind. Raises RouteNotFound where there is no master.
        """
        header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        code = RequestCode.GET_MAX_OFFSET
        found = await self._of_queue(queue, code, header, GetMaxOffsetResponseHeader, only=of_master)
        return checked_offset(found.offset, "max offset", queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at or after a time, in ms since 1970."""
        header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        found = await self._of_queue(queue, code, header, SearchOffsetResponseHeader)
        return checked_offset(found.offset, f"offset at time {timestamp_ms}", queue)

    async def earliest_message_store_time(self, queue: MessageQueue) -> int:
        """When the oldest message of a queue was stored, in ms since 1970; -1 for an empty queue."""
        header = GetEarliestMsgStoretimeRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        code = RequestCode.GET_EARLIEST_MSG_STORETIME
        return (await self._of_queue(queue, code, header, GetEarliestMsgStoretimeResponseHeader)).timestamp

    async def request(
        self, address: str, broker: str, command: Command, timeout_ms: float | None = None
    ) -> Command:
        """A broker's answer, if it is a success. broker: its name, for the error."""
        answer = await self.client.request(address, command, timeout_ms or self.timeout_ms)
        return require_success(answer, broker)

    async def _of_queue(
        self,
        queue: MessageQueue,
        code: RequestCode,
        header: Header,
        answer_class: type[H],
        *,
        only: bool = False,
    ) -> H:
        address, _ = await self.client.find_broker(queue.topic, queue.broker_name, only=only)
        answer = await self.request(address, queue.broker_name, Command.request(code, header))
        return answer.header_as(answer_class)


def require_success(answer: Command, broker: str) -> Command:
    """The answer, if it is a success. Raises BrokerError."""
    if answer.code != ResponseCode.SUCCESS:
        raise broker_error(answer, broker)
    return answer


def checked_offset(offset: int, what: str, queue: MessageQueue) -> int:
    """The offset that a broker answered. Raises RemoteProtocolError for one below 0."""
    if offset < 0:
        raise RemoteProtocolError(f"broker {queue.broker_name} says that the {what} of {queue} is {offset}")
    return offset


def broker_error(answer: Command, broker: str) -> BrokerError:
    """The error for a response that is not a success."""
    retry = _REFUSALS.get(answer.code, Retry.NONE)
    advice = _NO_SQL_ADVICE if _NO_SQL in (answer.remark or "") else ""
    return BrokerError(
        answer.code, answer.remark, broker, outcome=Outcome.NOT_SENT, retry=retry, advice=advice
    )
