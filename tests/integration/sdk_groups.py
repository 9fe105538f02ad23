"""Groups of consumers over real sockets: shared parts of their tests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from rocketpy import (
    ClientConfig,
    ConsumeFrom,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConfig,
    PushConsumer,
    Sql,
)
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.small import SMALL
from tests.waiting import until

# A delay level that is not there counts as the last one, so retries come at once.
SETTINGS = SMALL | {"messageDelayLevel": "1s 0s", "enablePropertyFilter": "true"}
FIRST = ConsumeFrom.FIRST_OFFSET


class Seen:
    """A handler that records its messages. says: its result, by message."""

    def __init__(self, says: Callable[[MessageExt], Any] | None = None) -> None:
        self.says = says
        self.messages: list[MessageExt] = []

    async def __call__(self, message: MessageExt) -> Any:
        self.messages.append(message)
        return self.says(message) if self.says is not None else None

    @property
    def bodies(self) -> Counter[bytes]:
        """How often each body was received."""
        return Counter(message.body for message in self.messages)

    async def until(self, count: int) -> None:
        """Wait for this many different messages."""
        await until(lambda: len(self.bodies) >= count)


@asynccontextmanager
async def consuming(
    cluster: EmbeddedCluster,
    handler: Any,
    expression: str | Sql = "*",
    *,
    group: str = "g",
    topic: str = "T",
    name: str = "",
    namespace: str = "",
    route_refresh_ms: int = 30_000,
    **config: Any,
) -> AsyncIterator[PushConsumer]:
    """One running member of a group, which has its queues."""
    consumer = PushConsumer(
        group,
        cluster.namesrv_address,
        handler,
        config=PushConfig(**{"consume_from": FIRST} | config),
        client=ClientConfig(instance_name=name, namespace=namespace, route_refresh_ms=route_refresh_ms),
    )
    consumer.subscribe(topic, expression)
    async with consumer:
        yield consumer


async def send(producer: Producer, *texts: str, **settings: Any) -> list[bytes]:
    """Send a message a text; return their bodies."""
    await asyncio.gather(
        *(producer.send(Message(settings.get("topic", "T"), text.encode(), **_without_topic(settings)))
          for text in texts)
    )  # fmt: skip
    return [text.encode() for text in texts]


def _without_topic(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "topic"}


def texts(name: str, count: int) -> list[str]:
    return [f"{name} {number}" for number in range(count)]


def committed(cluster: EmbeddedCluster, group: str = "g", topic: str = "T") -> int:
    """The sum of a group's offsets in the broker."""
    offsets = cluster.brokers[0].consumers.offsets
    return sum(offsets.queues(group, topic).values())


def of_topic(consumer: PushConsumer | LitePullConsumer, topic: str = "T") -> list[MessageQueue]:
    return [queue for queue in consumer.assignment if queue.topic == topic]
