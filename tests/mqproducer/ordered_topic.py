"""A topic with an order configuration, two brokers, and the loss of one master: the expected results.

`tests/integration/replication/test_master_gone.py` runs it with our brokers, `tests/interop/cases/test_ha.py`
with processes of both implementations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rocketpy import (
    ClientConfig,
    ConsumeFrom,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    RetryConfig,
    SendStatus,
)
from rocketpy.errors import Outcome, RocketError
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import PutKVConfigRequestHeader
from tests.integration.raw_client import RawClient
from tests.waiting import LIMIT_S

QUEUES = [MessageQueue("Ordered", name, number) for name in ("pair", "other") for number in range(2)]
QUICK = ClientConfig(route_refresh_ms=200, heartbeat_ms=200)
Step = Callable[[], Awaitable[None]]


async def ordered_topic_while_a_master_is_away(
    namesrv: str, *, copied: Step, kill: Step, start: Step
) -> None:
    """`pair` has a slave, `other` has none; the name server puts order configurations into routes.

    copied: waits until the slave has all that its master has, the topic, too. kill, start: what happens to
    `pair`'s master, which comes back where it was. Raises AssertionError.
    """
    async with await RawClient.open(namesrv) as client:
        put = PutKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key="Ordered", value="pair:2;other:2")
        assert (await client.call(RequestCode.PUT_KV_CONFIG, put)).code == 0
    config = ProducerConfig(retry=RetryConfig(pause_ms=1), send_timeout_ms=10_000)
    read: list[bytes] = []
    async with Producer("ordered", namesrv, config=config, client=QUICK) as producer:
        await producer.create_topic("Ordered", 2)
        assert list(await producer.fetch_publish_message_queues("Ordered")) == QUEUES
        sent = await send_to_each(producer, b"before")
        assert sent == dict.fromkeys(QUEUES, True)
        await copied()
        await kill()
        await until(lambda: gone(producer))
        assert list(await producer.fetch_publish_message_queues("Ordered")) == QUEUES, (
            "keys would change their queues"
        )
        assert await send_to_each(producer, b"away") == {queue: queue in QUEUES[2:] for queue in QUEUES}
        results = [await producer.send(Message("Ordered", b"anywhere %d" % n)) for n in range(8)]
        assert {result.queue.broker_name for result in results} == {"other"}
        push = PushConsumer(
            "readers",
            namesrv,
            lambda message: read.append(message.body),
            config=PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET),
            client=QUICK,
        )
        push.subscribe("Ordered")
        async with push:
            await until(lambda: held(read, before=4, away=2, anywhere=8))
            await start()
            await until(lambda: back(producer))
            assert await send_to_each(producer, b"after") == dict.fromkeys(QUEUES, True)
            await until(lambda: held(read, before=4, away=2, anywhere=8, after=4))


async def held(read: list[bytes], **counts: int) -> bool:
    return all(
        sum(body.startswith(key.encode()) for body in set(read)) >= count for key, count in counts.items()
    )


async def send_to_each(producer: Producer, body: bytes) -> dict[MessageQueue, bool]:
    """By key to each queue: whether it took the message. Not, if it surely has not."""
    took = {}
    for number, queue in enumerate(QUEUES):
        message = Message("Ordered", b"%b %d" % (body, number))
        try:
            result = await producer.send(message, selector=lambda queues, _message, n: queues[n], arg=number)
        except RocketError as error:
            took[queue] = error.outcome is not Outcome.NOT_SENT
        else:
            assert (result.status, result.queue) == (SendStatus.SEND_OK, queue)
            took[queue] = True
    return took


async def gone(producer: Producer) -> bool:
    return not await takes(producer, QUEUES[0])


async def back(producer: Producer) -> bool:
    return await takes(producer, QUEUES[0])


async def takes(producer: Producer, queue: MessageQueue) -> bool:
    try:
        await producer.send(Message("Ordered", b"probe"), queue=queue)
    except RocketError:
        return False
    return True


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await condition():  # noqa: ASYNC110 - what it waits for has no event of its own
            await asyncio.sleep(0.05)
