"""A cluster with traffic, for pictures of the console."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, NamedTuple

from rocketpy import (
    AdminClient,
    ConsumeFrom,
    Later,
    Message,
    MessageExt,
    MessageTraceConfig,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    SendResult,
)
from rocketpy.admin import TracedMessage
from rocketpy_broker.embedded import EmbeddedCluster
from tests.mqproducer.place import eventually
from tests.waiting import until

SETTINGS: Final = {"traceTopicEnable": "true", "messageDelayLevel": "1s 0s"}
CITIES: Final = ("Lyon", "Porto", "Graz", "Turku")
PAUSES_S: Final = (0.005, 0.02, 0.06)
TRACE: Final = MessageTraceConfig()


class Shop(NamedTuple):
    """The cluster. traced: a message that the group "billing" handled at the second attempt."""

    cluster: EmbeddedCluster
    traced: SendResult


@asynccontextmanager
async def shop() -> AsyncIterator[Shop]:
    """Two brokers with a slave each, a group with dead letters, and a slow group; orders keep arriving."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(EmbeddedCluster(brokers=2, slaves=1, settings=SETTINGS))
        admin = await stack.enter_async_context(AdminClient(cluster.namesrv_address))
        for topic in ("Orders", "Payments", "Refunds"):
            await admin.topics.create(topic, 4)
        config = ProducerConfig(message_trace=TRACE)
        producer = await stack.enter_async_context(Producer("shop", cluster.namesrv_address, config=config))
        shipping = Shipping()
        await stack.enter_async_context(member(cluster, "shipping", shipping, 20))
        await stack.enter_async_context(member(cluster, "billing", bill, 1))
        sent = [await order(producer, number) for number in range(60)]
        traffic = asyncio.create_task(keep_ordering(producer))
        try:
            await until(lambda: len(shipping.given_up) >= 6)

            async def retried() -> TracedMessage | None:
                found = (await admin.messages.traces(sent[7].message_id)).messages
                ended = [call for message in found for call in message.deliveries if call.outcome is not None]
                return found[0] if len(ended) >= 3 else None

            await eventually(retried)
            yield Shop(cluster, sent[7])
        finally:
            traffic.cancel()
            await asyncio.gather(traffic, return_exceptions=True)


class Shipping:
    """A handler that gives some orders up."""

    def __init__(self) -> None:
        self.given_up: list[str] = []

    async def __call__(self, message: MessageExt) -> Later | None:
        """Give up every ninth of the first orders."""
        number = int(message.keys[0].removeprefix("order-"))
        if number >= 1000 or number % 9 != 5:
            return None
        self.given_up.append(message.message_id)
        return Later(delay_level=-1)


async def bill(message: MessageExt) -> Later | None:
    """Take a while, and fail once for one order."""
    await asyncio.sleep(0.05)
    return Later() if message.keys[0] == "order-7" and not message.reconsume_times else None


def member(
    cluster: EmbeddedCluster,
    group: str,
    handler: Callable[[MessageExt], Awaitable[Later | None]],
    concurrency: int,
) -> PushConsumer:
    """A member of a group, not started."""
    config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET, message_trace=TRACE, concurrency=concurrency)
    consumer = PushConsumer(group, cluster.namesrv_address, handler, config=config)
    consumer.subscribe("Orders")
    return consumer


async def order(producer: Producer, number: int) -> SendResult:
    """Send an order."""
    body = b'{"order": %d, "to": "%s"}' % (number, CITIES[number % len(CITIES)].encode())
    return await producer.send(Message("Orders", body, keys=[f"order-{number}"], tags="new"))


async def keep_ordering(producer: Producer) -> None:
    """Send orders until cancelled."""
    rng = random.Random(1)
    for number in range(1000, 1_000_000):
        await order(producer, number)
        await asyncio.sleep(rng.choice(PAUSES_S))
