"""AdminApi: what `Producer` and `AdminClient` have besides queries.

Source: RocketMQ 4.6 MQAdmin, MQAdminImpl.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from rocketpy.client.broker_api import create_missing, log_failed
from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import wrap
from rocketpy.client.queries import QUERY_TIMEOUT_MS, Queries
from rocketpy.client.routing.routes import publish_route
from rocketpy.client.topic_configs import TopicConfigs, TopicSettings, check_existing, unchanged_topics
from rocketpy.config import check_number
from rocketpy.errors import Outcome, RequestTimeout, RocketError, RouteNotFound
from rocketpy.message.message import DEFAULT_TOPIC, check_topic
from rocketpy.protocol.bodies import MASTER_ID, MessageQueue, TopicConfig
from rocketpy.protocol.headers import Header
from rocketpy.protocol.remoting.command import Command

_CREATE_ATTEMPTS: Final = 5
_ROUTE_POLL_S: Final = 0.05


class AdminApi(Queries):
    """The queues of a topic to send to, and the creation of topics.

    Every method raises ClientClosed, RouteNotFound, TransportError and BrokerError.
    """

    async def fetch_publish_message_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that messages of a topic may be sent to, from the name server's current route."""
        client = self._running_client()
        route = await client.routes.get(wrap(client.config.namespace, topic), fresh=True)
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
        brokers = (await client.routes.get(key, fresh=True)).broker_datas
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
        return {data.broker_name for data in (await client.routes.get(topic, fresh=True)).queue_datas}
    except RouteNotFound:
        return set()


async def wait_until_known(client: ClientInstance, topic: str, brokers: set[str]) -> None:
    """Wait until the name server's route of a topic has these brokers, which register it after its creation.

    brokers: broker names. Raises RequestTimeout after 6 s, with the outcome STORED.
    """
    until = time.monotonic() + QUERY_TIMEOUT_MS / 1000
    while True:
        if brokers <= await _brokers_of(client, topic):
            return
        if time.monotonic() > until:
            raise RequestTimeout(
                f"brokers {sorted(brokers)} created topic {topic}, but the name server does not know it "
                f"after {QUERY_TIMEOUT_MS} ms",
                outcome=Outcome.STORED,
            )
        await asyncio.sleep(_ROUTE_POLL_S)
