"""AdminApi: queues and their offsets, messages by id and by key, and the creation of topics.

`Producer` and `AdminClient` have all of it.

Source: RocketMQ 4.6 MQAdmin, MQAdminImpl.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from rocketpy.client.broker_api import BrokerApi
from rocketpy.client.instance import ClientInstance
from rocketpy.client.lifecycle import Lifecycle
from rocketpy.client.message_index import (
    FOREVER_MS,
    MAX_BODY_BYTES,
    MessageIndex,
    QueryResult,
    gather_results,
)
from rocketpy.client.namespace import wrap, wrap_queue
from rocketpy.client.routing.routes import publish_route
from rocketpy.config import check_number
from rocketpy.errors import BrokerError, Outcome, RequestTimeout, RocketError, RouteNotFound
from rocketpy.message.message import DEFAULT_TOPIC, MessageExt, check_topic
from rocketpy.protocol.bodies import MASTER_ID, PERM_READ, PERM_WRITE, BrokerData, MessageQueue
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import CreateTopicRequestHeader
from rocketpy.protocol.remoting.command import Command

log: Final = logging.getLogger("rocketpy.client")

_TIMEOUT_MS: Final = 6000
"""RocketMQ: MQAdminImpl timeoutMillis."""
_CREATE_ATTEMPTS: Final = 5
_ROUTE_POLL_S: Final = 0.05


class AdminApi(Lifecycle):
    """Queries, and the creation of topics.

    Every method raises ClientClosed, RouteNotFound, TransportError and BrokerError.
    """

    # -- topics -------------------------------------------------------------------------------

    async def fetch_publish_message_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that messages of a topic may be sent to, from the name server's current route."""
        client = self._running_client()
        route = await client.route(wrap(client.config.namespace, topic), fresh=True)
        return publish_route(topic, route).queues

    async def create_topic(
        self, topic: str, queue_count: int = 4, *, key: str = DEFAULT_TOPIC, topic_sys_flag: int = 0
    ) -> None:
        """Create a topic, or change its number of queues; return when the name server knows the topic.

        When only some brokers succeed, the errors of the others are logged, as in RocketMQ.

        Args:
            topic: The name of the topic.
            queue_count: The number of read and write queues on each broker.
            key: An existing topic, on whose brokers the new topic is created. Each broker has a topic with
                the name of its cluster. It has the default topic unless autoCreateTopicEnable=false.
            topic_sys_flag: Bits of `TopicSysFlag`.

        Raises:
            ConfigInvalid: `queue_count` is below 1.
            TopicInvalid: The name of the topic is not valid.
            RequestTimeout: The topic was created, but the name server does not know it after 6 s.
        """
        client = self._running_client()
        check_number("queue_count", queue_count, 1)
        name = wrap(client.config.namespace, check_topic(topic))
        masters = [
            data
            for data in (await client.route(key, fresh=True)).broker_datas
            if MASTER_ID in data.broker_addrs
        ]
        if not masters:
            raise RouteNotFound(f"topic {topic} was not created: no broker with a master has topic {key}")
        header = CreateTopicRequestHeader(
            topic=name,
            default_topic=key,
            read_queue_nums=queue_count,
            write_queue_nums=queue_count,
            perm=PERM_READ | PERM_WRITE,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=topic_sys_flag,
        )
        requests = [self._create_at(data, header) for data in masters]
        created = await gather_results(masters, requests, partial=True)
        await wait_until_known(client, name, {data.broker_name for data in created})

    async def _create_at(self, data: BrokerData, header: CreateTopicRequestHeader) -> BrokerData:
        address = data.broker_addrs[MASTER_ID]
        for attempt in range(1, _CREATE_ATTEMPTS + 1):
            try:
                command = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
                await self._broker_api().request(address, data.broker_name, command)
            except RocketError:
                if attempt == _CREATE_ATTEMPTS:
                    raise
            else:
                break
        return data

    # -- offsets ------------------------------------------------------------------------------

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, in ms since 1970.

        It is the end of the queue if there is none. With a broker of RocketMQ before 5.1.1, it may be the
        offset of an earlier message, never of a later one.
        """
        return await self._broker_api().search_offset(self._wrapped(queue), timestamp_ms)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return await self._broker_api().max_offset(self._wrapped(queue))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the lowest offset that can still be read."""
        return await self._broker_api().min_offset(self._wrapped(queue))

    async def earliest_message_store_time(self, queue: MessageQueue) -> int:
        """Return when the oldest message was stored, in ms since 1970; -1 for an empty queue."""
        return await self._broker_api().earliest_message_store_time(self._wrapped(queue))

    # -- messages -----------------------------------------------------------------------------

    async def view_message(self, message_id: str, topic: str | None = None) -> MessageExt:
        """Return one message by its id.

        Without a topic, `message_id` is the broker's id (`SendResult.offset_message_id`). The message comes
        from the broker in the id, or from a replica while that broker is unavailable.

        With a topic, `message_id` is the unique id from the producer (`SendResult.message_id`). If no message
        of the topic has that unique id, it is looked up as a broker's id. When a repeated send stored several
        messages with one unique id, the first is returned.

        A message that cannot be decoded has its raw body and `MessageExt.decode_error`. Differs from
        RocketMQ, which reads a unique id as a broker's id first, and connects to the address in it.

        Args:
            message_id: The id.
            topic: The topic of the message, to find it by its unique id.

        Raises:
            MessageInvalid: The id is malformed.
            BrokerError: There is no such message.
        """
        if topic is None:
            return await self._view_by_offset(message_id)
        found = await MessageIndex(self._running_client(), partial=True).by_unique_id(topic, message_id)
        if found is not None:
            return found
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
        """Return the messages of a topic that have a key, from every broker of the topic.

        A broker that does not respond is logged and left out, as long as another one responds. A message that
        cannot be decoded has its raw body and `MessageExt.decode_error`.

        Args:
            topic: The name of the topic.
            key: One of the keys of the messages.
            max_count: The highest number of messages from one broker.
            begin_ms: The earliest store time, in ms since 1970.
            end_ms: The latest store time, in ms since 1970.
        """
        index = MessageIndex(self._running_client(), partial=True)
        return await index.by_key(topic, key, max_count, begin_ms, end_ms)

    async def _view_by_offset(self, message_id: str, *, only_known: bool = False) -> MessageExt:
        return await self._broker_api().view_message(
            message_id, max_body_bytes=MAX_BODY_BYTES, verify=True, only_known=only_known
        )

    # -- internals ----------------------------------------------------------------------------

    def _wrapped(self, queue: MessageQueue) -> MessageQueue:
        return wrap_queue(self._running_client().config.namespace, queue)

    def _broker_api(self) -> BrokerApi:
        return BrokerApi(self._running_client(), _TIMEOUT_MS)


async def wait_until_known(client: ClientInstance, topic: str, brokers: set[str]) -> None:
    """Wait until the name server's route of a topic has these brokers, which register it after its creation.

    brokers: broker names. Raises RequestTimeout after 6 s, with the outcome STORED.
    """
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
                f"brokers {sorted(brokers)} created topic {topic}, but the name server does not know it "
                f"after {_TIMEOUT_MS} ms",
                outcome=Outcome.STORED,
            )
        await asyncio.sleep(_ROUTE_POLL_S)
