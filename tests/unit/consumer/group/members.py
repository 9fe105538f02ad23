"""Members of a group on a cluster in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from rocketpy import (
    ClientConfig,
    ConsumeFrom,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConfig,
    PushConsumer,
)
from rocketpy_broker import EmbeddedCluster

CONFIG = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET, rebalance_interval_ms=50, persist_interval_ms=20)


@asynccontextmanager
async def member(
    cluster: EmbeddedCluster,
    name: str,
    bodies: list[bytes],
    config: PushConfig = CONFIG,
    result: Callable[[MessageExt], Any] = lambda _: None,
) -> AsyncIterator[PushConsumer]:
    """A member that collects the bodies of its messages. result: what its handler returns."""

    async def handle(message: MessageExt) -> Any:
        bodies.append(message.body)
        return result(message)

    client = ClientConfig(instance_name=name)
    async with PushConsumer("g", cluster.namesrv_address, handle, config=config, client=client) as consumer:
        consumer.subscribe("T")
        yield consumer


def queues_of(consumer: PushConsumer) -> set[MessageQueue]:
    """The queues of the topic that are assigned to a member."""
    return {queue for queue in consumer.assignment if queue.topic == "T"}


async def send(cluster: EmbeddedCluster, *bodies: bytes) -> None:
    """Send messages, which go to the queues in turn."""
    async with Producer("p", cluster.namesrv_address) as producer:
        for body in bodies:
            await producer.send(Message("T", body))
