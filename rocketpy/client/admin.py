"""AdminApi: queues and their offsets, messages by id and by key, and the creation of topics.

`Producer` and `AdminClient` have all of it.

Source: RocketMQ 4.6 MQAdmin, MQAdminImpl.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from rocketpy.client.broker_api import BrokerApi, create_missing, log_failed
from rocketpy.client.instance import ClientInstance
from rocketpy.client.lifecycle import Client
from rocketpy.client.message_index import FOREVER_MS, MAX_BODY_BYTES, MessageIndex, QueryResult
from rocketpy.client.namespace import wrap, wrap_queue
from rocketpy.client.routing.routes import publish_route
from rocketpy.client.topic_configs import TopicConfigs, TopicSettings, check_existing, unchanged_topics
from rocketpy.config import check_number
from rocketpy.errors import BrokerError, Outcome, RequestTimeout, RocketError, RouteNotFound
from rocketpy.message.message import DEFAULT_TOPIC, MessageExt, check_topic
from rocketpy.protocol.bodies import MASTER_ID, MessageQueue, TopicConfig
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.headers import Header
from rocketpy.protocol.remoting.command import Command

log: Final = logging.getLogger("rocketpy.client")

_TIMEOUT_MS: Final = 6000
"""RocketMQ: MQAdminImpl timeoutMillis."""
_CREATE_ATTEMPTS: Final = 5
_ROUTE_POLL_S: Final = 0.05


class AdminApi(Client):
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
    ) -> dict[str, TopicSettings]:
        """Create a topic on the brokers that lack it; return when the name server knows it.

        Where it exists, it stays unchanged. `AdminClient.topics.alter` changes its number of queues. When
        only some brokers succeed, the errors of the others are logged, as in RocketMQ.

        Args:
            topic: The name of the topic.
            queue_count: The number of read and write queues on each broker.
            key: An existing topic, on whose brokers the new topic is created. Each broker has a topic with
                the name of its cluster. It has the default topic unless autoCreateTopicEnable=false.
            topic_sys_flag: Bits of `TopicSysFlag`.

        Returns:
            The settings of the topic where it existed and was left unchanged, by broker name.

        Raises:
            ConfigInvalid: `queue_count` is below 1, or the topic exists with fewer queues; then no broker was
                changed.
            TopicInvalid: The name of the topic is not valid.
            RequestTimeout: The topic was created, but the name server does not know it after 6 s.
        """
        client = self._running_client()
        check_number("queue_count", queue_count, 1)
        name = wrap(client.config.namespace, check_topic(topic))
        brokers = (await client.route(key, fresh=True)).broker_datas
        masters = {data.broker_name: data.broker_addrs.get(MASTER_ID) for data in brokers}
        if not any(masters.values()):
            raise RouteNotFound(f"topic {topic} was not created: no broker with a master has topic {key}")
        wanted = TopicConfig(
            topic_name=name,
            read_queue_nums=queue_count,
            write_queue_nums=queue_count,
            topic_sys_flag=topic_sys_flag,
        )
        configs = TopicConfigs(self._call_master)

        async def check(existing: Mapping[str, TopicConfig], _: object) -> None:
            check_existing(topic, wanted, existing)

        found, errors = await create_missing(
            masters,
            find=lambda address, broker: configs.find(address, broker, name),
            check=check,
            create=lambda address, broker: configs.create(address, broker, wanted, key),
        )
        known = log_failed(found, errors)
        await register_existing(client, configs, masters, known)
        await wait_until_known(client, name, set(known))
        return unchanged_topics(known)

    async def _call_master(
        self, address: str | None, broker: str, code: int, header: Header | None
    ) -> Command:
        """Send a request to a master, up to five times."""
        if address is None:
            raise RouteNotFound(f"broker {broker} has no master now")
        for _ in range(_CREATE_ATTEMPTS - 1):
            with suppress(RocketError):
                return await self._broker_api().request(address, broker, Command.request(code, header))
        return await self._broker_api().request(address, broker, Command.request(code, header))

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


async def register_existing(
    client: ClientInstance,
    configs: TopicConfigs,
    masters: Mapping[str, str | None],
    found: Mapping[str, TopicConfig | None],
) -> None:
    """Let brokers register an existing topic that the name server does not know on them.

    It forgets a topic on all brokers when that is deleted in one cluster, and brokers register only topics
    that change. found: the settings by broker, which stay the same. Raises the error of a broker.
    """
    for broker, config in found.items():
        if config is not None and broker not in await _brokers_of(client, config.topic_name):
            await configs.put(masters[broker], broker, config)


async def _brokers_of(client: ClientInstance, topic: str) -> set[str]:
    """Return the brokers of a topic that the name server knows."""
    try:
        return {data.broker_name for data in (await client.route(topic, fresh=True)).queue_datas}
    except RouteNotFound:
        return set()


async def wait_until_known(client: ClientInstance, topic: str, brokers: set[str]) -> None:
    """Wait until the name server's route of a topic has these brokers, which register it after its creation.

    brokers: broker names. Raises RequestTimeout after 6 s, with the outcome STORED.
    """
    until = time.monotonic() + _TIMEOUT_MS / 1000
    while True:
        if brokers <= await _brokers_of(client, topic):
            return
        if time.monotonic() > until:
            raise RequestTimeout(
                f"brokers {sorted(brokers)} created topic {topic}, but the name server does not know it "
                f"after {_TIMEOUT_MS} ms",
                outcome=Outcome.STORED,
            )
        await asyncio.sleep(_ROUTE_POLL_S)
