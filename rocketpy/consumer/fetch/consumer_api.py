"""ConsumerApi: requests of consumers to brokers, one method each.

Names of topics and groups include the namespace. Methods raise RouteNotFound, TransportError, BrokerError and
RemoteProtocolError. `begin_pull` and `begin_pulls` return None instead for a pull that cannot be sent.

Source: RocketMQ 4.6 MQClientAPIImpl, PullAPIWrapper.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

from rocketpy.client.broker_api import OFFSET_MAX, BrokerApi, broker_error, checked_offset, require_success
from rocketpy.client.instance import ClientInstance
from rocketpy.errors import (
    BrokerError,
    RemoteProtocolError,
    Retry,
    RocketError,
    RouteNotFound,
    TransportError,
)
from rocketpy.protocol.bodies import (
    MASTER_ID,
    CheckClientRequestBody,
    ConsumerConnection,
    ConsumerRunningInfo,
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    SubscriptionData,
    UnlockBatchRequestBody,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    Header,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.protocol.remoting.connection import Waiter
from rocketpy.protocol.remoting.frame import CODEC_JSON
from rocketpy.protocol.remoting.template import DIGITS, HeaderTemplate, fields_template
from rocketpy.results import PullStatus
from rocketpy.transport import Channel

STATUSES: Final[dict[int, PullStatus]] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}
"""The meaning of a pull's response codes. Source: RocketMQ MQClientAPIImpl processPullResponse."""

UNKNOWN_SUBSCRIPTION: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)
"""Response codes of a broker that does not know this consumer, or its latest filter (QUIRKS 35)."""

_UNKNOWN_GROUP: Final = "no consumer for this group"
"""The remark with which a broker that does not know this consumer rejects a request for the members."""
_FILE_UNITS_MAX: Final = (1 << 31) // 20
"""Maximum number of units in a file of a consume queue."""
_LOCK_TIMEOUT_MS: Final = 1000
"""RocketMQ: 1000, fixed."""
_OFFSET_TIMEOUT_MS: Final = 5000
"""RocketMQ: 5000, fixed."""


class PullResponse(NamedTuple):
    """The response to a pull, whose records are not decoded yet."""

    status: PullStatus
    header: PullMessageResponseHeader
    body: bytes


class MemberList(NamedTuple):
    """A broker's list of a group's members."""

    client_ids: list[str]
    """In the broker's order."""
    address: str
    """Of the broker."""
    opened_ms: float
    """When the connection to it was opened, on the clock of `ClientInstance.now_ms`."""


@dataclass(slots=True)
class _FirstCommit:
    """The first commit to a broker for a topic over one connection."""

    channel: Channel | None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class ConsumerApi(BrokerApi):
    """Makes requests for a group. timeout_ms: the default timeout of a request."""

    def __init__(self, client: ClientInstance, group: str, timeout_ms: float) -> None:
        super().__init__(client, timeout_ms)
        self.group: Final = group
        self._first_commits: dict[tuple[str, str], _FirstCommit] = {}
        """By topic and broker address."""

    async def pull(
        self,
        queue: MessageQueue,
        header: PullMessageRequestHeader,
        timeout_ms: float,
        broker_id: int = MASTER_ID,
    ) -> PullResponse:
        """Pull from the master or slave `broker_id` of the queue's broker.

        If it is unavailable, another one responds. Only a master receives the offset to commit; slaves copy
        it from there.
        """
        address, found_id = await self.client.routes.find_broker(queue.topic, queue.broker_name, broker_id)
        if found_id != MASTER_ID:
            header.sys_flag &= ~PullSysFlag.COMMIT_OFFSET
        response = await self.client.request(
            address, Command.request(RequestCode.PULL_MESSAGE, header), timeout_ms
        )
        return to_pull_response(response, queue, header.queue_offset)

    def begin_pull(
        self, queue: MessageQueue, fields: dict[str, str], timeout_ms: float, broker_id: int
    ) -> asyncio.Future[Command] | None:
        """Send a pull without waiting; `to_pull_response` reads the future's result.

        fields: an encoded PullMessageRequestHeader. Returns None if the broker is unknown or not connected;
        `pull` then looks it up and connects.
        """
        address = self.client.routes.cached_address(queue.topic, queue.broker_name, broker_id)
        connection = self.client.connections.get(address) if address is not None else None
        if connection is None or not connection.is_open:
            return None
        try:
            return connection.put(Command(RequestCode.PULL_MESSAGE, ext=fields), timeout_ms)
        except RocketError:  # `pull` reports it
            return None

    def begin_pulls(
        self,
        queue: MessageQueue,
        header: PullMessageRequestHeader,
        ranges: Sequence[tuple[int, int]],
        timeout_ms: float,
    ) -> list[asyncio.Future[Command] | None]:
        """Send several pulls of one queue as `begin_pull` does; the requests differ in their ranges only.

        ranges: offset and maximum number of messages of each pull.
        """
        fields, pool = header.ext_fields(), self.client.connections
        address = self.client.routes.cached_address(queue.topic, queue.broker_name)
        channel = pool.get(address).channel if address is not None else None
        if (
            channel is None
            or channel.is_closed
            or pool.options.codec != CODEC_JSON
            or pool.hooks
            or pool.signer
        ):
            return [
                self.begin_pull(
                    queue,
                    {**fields, "queueOffset": str(offset), "maxMsgNums": str(count)},
                    timeout_ms,
                    MASTER_ID,
                )
                for offset, count in ranges
            ]
        template = _pull_template(fields)
        deadline_ms = self.client.now_ms() + timeout_ms
        loop = asyncio.get_running_loop()
        begun: list[asyncio.Future[Command] | None] = []
        for offset, count in ranges:
            future: asyncio.Future[Command] = loop.create_future()
            opaque = channel.expect(cast(Waiter, future), deadline_ms)
            channel.write(template.frame((count, offset, opaque)))
            begun.append(future)
        return begun

    # -- the group ----------------------------------------------------------------------------

    async def members(self, topic: str) -> MemberList:
        """Return the group's members from one of the topic's brokers.

        A broker that knows no member of the group raises BrokerError.
        """
        route = await self.client.routes.get(topic)
        names = [data.broker_name for data in route.broker_datas if data.broker_addrs]
        if not names:
            raise RouteNotFound(f"the route of topic {topic} has no broker")
        name = random.choice(names)
        address, _ = await self.client.routes.find_broker(topic, name)
        header = GetConsumerListByGroupRequestHeader(consumer_group=self.group)
        response = await self.request(
            address, name, Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        )
        found = GetConsumerListByGroupResponseBody.decode(response.body).consumer_id_list
        return MemberList(found, address, self.client.connections.get(address).opened_ms)

    async def connections(self, topic: str, broker_name: str) -> ConsumerConnection:
        """Return the connections of the group's members to a broker that has the topic."""
        header = GetConsumerConnectionListRequestHeader(consumer_group=self.group)
        response = await self._ask(topic, broker_name, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        return ConsumerConnection.decode(response.body)

    async def running_info(self, topic: str, broker_name: str, client_id: str) -> ConsumerRunningInfo:
        """Return what another member of the group tells about itself, through a broker that has the topic."""
        header = GetConsumerRunningInfoRequestHeader(consumer_group=self.group, client_id=client_id)
        response = await self._ask(topic, broker_name, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        return ConsumerRunningInfo.decode(response.body)

    async def _ask(self, topic: str, broker_name: str, code: int, header: Header) -> Command:
        address, _ = await self.client.routes.find_broker(topic, broker_name)
        return await self.request(address, broker_name, Command.request(code, header))

    async def check_subscription(self, subscription: SubscriptionData) -> None:
        """Let the topic's brokers compile a filter. Raises BrokerError with the reason of a rejection."""
        route = await self.client.routes.get(subscription.topic)
        for data in route.broker_datas:
            address, _ = await self.client.routes.find_broker(subscription.topic, data.broker_name)
            body = CheckClientRequestBody(
                client_id=self.client.client_id, group=self.group, subscription_data=subscription
            )
            command = Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())
            await self.request(address, data.broker_name, command)

    async def committed_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue; None when the broker has none.

        Every other failure raises, so that it cannot be mistaken for a missing offset.
        """
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=self.group, topic=queue.topic, queue_id=queue.queue_id
        )
        address, _ = await self.client.routes.find_broker(queue.topic, queue.broker_name)
        command = Command.request(RequestCode.QUERY_CONSUMER_OFFSET, header)
        response = await self.client.request(address, command, _OFFSET_TIMEOUT_MS)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        found = require_success(response, queue.broker_name).header_as(QueryConsumerOffsetResponseHeader)
        return checked_offset(found.offset, "committed offset", queue)

    async def commit(self, queue: MessageQueue, offset: int) -> Channel | None:
        """Commit the group's offset of a queue to the master, or to a slave while it is unavailable.

        Returns the open channel to the broker, if any. RocketMQ's periodic commits are oneway requests; here
        a rejection is noticed.

        The first commit of a topic is sent alone: RocketMQ's broker creates such a table without a lock.
        Of first commits that it handles at the same time, it may keep one and respond to all.
        """
        address, _ = await self.client.routes.find_broker(queue.topic, queue.broker_name)
        channel = self.client.connections.get(address).channel
        first = self._first_commits.get((queue.topic, address))
        if first is not None and (first.channel is channel or not first.ended.is_set()):
            await first.ended.wait()  # it may connect meanwhile, so that the channel differs
            return await self._commit(address, queue, offset)
        self._first_commits[queue.topic, address] = first = _FirstCommit(channel)
        try:
            first.channel = await self._commit(address, queue, offset)
        except BaseException:  # raised again: the next commit is the first one
            if self._first_commits.get((queue.topic, address)) is first:
                del self._first_commits[queue.topic, address]
            raise
        finally:
            first.ended.set()
        return first.channel

    async def _commit(self, address: str, queue: MessageQueue, offset: int) -> Channel | None:
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self.group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        command = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        await self.request(address, queue.broker_name, command, _OFFSET_TIMEOUT_MS)
        return self.client.connections.get(address).channel

    async def lock(self, queues: Collection[MessageQueue], owner: str) -> set[MessageQueue]:
        """Lock queues of one broker for this member at its master; return those that are locked.

        owner: the name of the group for which brokers keep the locks.
        """
        body = LockBatchRequestBody(
            consumer_group=owner, client_id=self.client.client_id, mq_set=sorted(queues)
        )
        response = await self._lock_request(queues, RequestCode.LOCK_BATCH_MQ, body.encode())
        require_success(response, next(iter(queues)).broker_name)
        return set(LockBatchResponseBody.decode(response.body).lock_ok_mq_set)

    async def unlock(
        self, queues: Collection[MessageQueue], owner: str, client_id: str | None = None
    ) -> None:
        """Unlock queues of one broker, for the next member that locks them.

        owner: as for `lock`. client_id: of another member.
        """
        body = UnlockBatchRequestBody(
            consumer_group=owner, client_id=client_id or self.client.client_id, mq_set=sorted(queues)
        )
        await self._lock_request(queues, RequestCode.UNLOCK_BATCH_MQ, body.encode())

    async def _lock_request(self, queues: Collection[MessageQueue], code: int, body: bytes) -> Command:
        first = next(iter(queues))
        address, _ = await self.client.routes.find_broker(first.topic, first.broker_name, only=True)
        return await self.client.request(address, Command.request(code, body=body), _LOCK_TIMEOUT_MS)


def _pull_template(fields: Mapping[str, str]) -> HeaderTemplate:
    """Return the frames of a pull that differ in maxMsgNums, queueOffset and opaque."""
    varying = {"maxMsgNums": DIGITS, "queueOffset": DIGITS}
    return HeaderTemplate(RequestCode.PULL_MESSAGE, fields_template({**fields, **varying}))


def to_pull_response(response: Command, queue: MessageQueue, requested_offset: int) -> PullResponse:
    """Read a broker's response to a pull of a queue from `requested_offset`.

    Raises BrokerError, and RemoteProtocolError for an inconsistent response, which would lose messages or
    repeat them forever.
    """
    status = STATUSES.get(response.code)
    if status is None:
        raise broker_error(response, queue.broker_name)
    header = response.header_as(PullMessageResponseHeader)
    problem = _contradiction(status, header, response.body, requested_offset)
    if problem is not None:
        raise RemoteProtocolError(
            f"broker {queue.broker_name} responded to a pull of {queue} from offset {requested_offset} "
            f"with {status.value}, next offset {header.next_begin_offset} and a queue from "
            f"{header.min_offset} to {header.max_offset}: {problem}"
        )
    return PullResponse(status, header, response.body)


def _contradiction(
    status: PullStatus, header: PullMessageResponseHeader, body: bytes, requested_offset: int
) -> str | None:
    """Return how the response to a pull contradicts itself; None if it is consistent."""
    next_offset = header.next_begin_offset
    if not 0 <= header.min_offset <= header.max_offset <= OFFSET_MAX or next_offset < 0:
        return "the offsets are invalid"
    if status is PullStatus.OFFSET_ILLEGAL:
        is_inside = header.min_offset <= next_offset <= header.max_offset
        return None if is_inside else "the next offset is outside of the queue"
    # Beyond the end only by new messages, or by the rest of an unreadable file of the queue.
    if next_offset > max(header.max_offset, requested_offset) + _FILE_UNITS_MAX:
        return "the next offset is far beyond the end of the queue"
    if status is PullStatus.FOUND and next_offset <= requested_offset:
        return "the next offset does not follow the messages"
    if status is PullStatus.FOUND and not body:
        return "the body is empty"
    return "the next offset is lower than the requested one" if next_offset < requested_offset else None


def is_rejection(error: RocketError) -> bool:
    """Return whether a broker will reject the request until an operator changes keys or permissions."""
    return (
        isinstance(error, BrokerError)
        and error.retry is Retry.NONE
        and error.code not in UNKNOWN_SUBSCRIPTION
        and not (error.remark or "").startswith(_UNKNOWN_GROUP)
    )


def is_lasting(error: RocketError) -> bool:
    """Return whether repeating the request cannot help until an operator acts.

    So it is with a rejection, a response or file that cannot be decoded, and an invalid setting.
    """
    return is_rejection(error) or not isinstance(error, BrokerError | TransportError | RouteNotFound)


def by_broker(queues: Collection[MessageQueue]) -> dict[str, list[MessageQueue]]:
    """Group queues by the name of their broker."""
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found
