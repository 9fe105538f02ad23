"""What SimpleConsumers promise; run with our broker, and with brokers of RocketMQ 5."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, Final

import pytest

from rocketpy import ConsumeFrom, Message, MessageExt, Producer, SimpleConfig, SimpleConsumer, Sql
from rocketpy.admin.admin_client import AdminClient
from rocketpy.config import ProducerConfig
from rocketpy.errors import AcksFailed, ReceiptExpired
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_groups import SETTINGS
from tests.waiting import LIMIT_S

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
FIRST: Final = SimpleConfig(consume_from=ConsumeFrom.FIRST_OFFSET)


def bodies(messages: list[MessageExt]) -> list[bytes]:
    """The bodies, sorted."""
    return sorted(message.body for message in messages)


async def send(namesrv: str, topic: str, *texts: str, tags: str | None = None, number: int = 0) -> None:
    """Send one message for each text."""
    async with Producer("senders", namesrv, config=ProducerConfig(batching=False)) as producer:
        for text in texts:
            await producer.send(Message(topic, text.encode(), tags=tags, properties={"number": str(number)}))


async def receive(consumer: SimpleConsumer, count: int, invisible: timedelta = MINUTE) -> list[MessageExt]:
    """Receive this number of messages, in as many calls as that takes."""
    found: list[MessageExt] = []
    async with asyncio.timeout(LIMIT_S):
        while len(found) < count:
            found += await consumer.receive(min(count - len(found), 32), invisible)
    return found


class ServersInThread:
    """A cluster in an event loop of another thread, which a blocked one does not stop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.cluster = EmbeddedCluster(settings=SETTINGS)
        self.run(self._start())

    async def _start(self) -> None:
        await self.cluster.start()
        async with AdminClient(self.cluster.namesrv_address) as admin:
            await admin.create_topic("T", 4)

    def run(self, work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(LIMIT_S)

    def stop(self) -> None:
        self.run(self.cluster.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


async def acknowledged_messages_do_not_come_again(namesrv: str) -> None:
    """A worker would get no job, or get it again after its acknowledgement."""
    await send(namesrv, "Jobs", *"abcdef")
    async with SimpleConsumer("workers", namesrv, config=FIRST) as consumer:
        consumer.subscribe("Jobs")
        found = await receive(consumer, 6, 5 * SECOND)
        assert bodies(found) == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert {message.delivery_attempt for message in found} == {1}
        await consumer.ack(found[0])
        with pytest.raises(ReceiptExpired, match="acknowledged or released already"):
            await consumer.ack(found[0])
        with pytest.raises(AcksFailed, match="1 of 6") as failed:
            await consumer.ack_many(found)
        assert [message for message, _ in failed.value.failed] == found[:1]
        assert await consumer.receive(1, 5 * SECOND, 8 * SECOND) == []


async def what_is_not_acknowledged_comes_again(namesrv: str) -> None:
    """The job of a worker that died would be lost, or be done twice at the same time."""
    await send(namesrv, "Again", *"abc")
    async with SimpleConsumer("again", namesrv, config=FIRST) as consumer:
        consumer.subscribe("Again")
        expired, extended, released = await receive(consumer, 3, 2 * SECOND)
        await consumer.extend(extended, MINUTE)
        await consumer.release(released)
        again = await receive(consumer, 2)
        assert bodies(again) == bodies([expired, released])
        assert {message.topic for message in again} == {"Again"}
        assert {message.delivery_attempt for message in again} == {2}
        await consumer.ack(extended)
        with pytest.raises(ReceiptExpired, match="the invisible time of"):
            await consumer.ack(expired)
        await consumer.release(again[0])
        (third,) = await receive(consumer, 1)
        assert third.delivery_attempt == 3
        await consumer.ack_many([third, again[1]])


async def subscriptions_select_messages(namesrv: str) -> None:
    """A worker would get jobs of others, or none of a second topic."""
    await send(namesrv, "Tagged", "red", tags="red")
    await send(namesrv, "Tagged", "blue", tags="blue")
    await send(namesrv, "Counted", "few", number=1)
    await send(namesrv, "Counted", "many", number=9)
    async with SimpleConsumer("selective", namesrv, config=FIRST) as consumer:
        consumer.subscribe("Tagged", "red || green")
        consumer.subscribe("Counted", Sql("number > 5"))
        found = await receive(consumer, 2)
        assert bodies(found) == [b"many", b"red"]
        assert {message.topic for message in found} == {"Tagged", "Counted"}
        await consumer.ack_many(found)
        consumer.subscribe("Later")
        waiting = asyncio.ensure_future(receive(consumer, 1))
        await send(namesrv, "Later", "later")
        await consumer.ack((await waiting)[0])


async def dead_letters_follow_the_limit(namesrv: str) -> None:
    """A job that always fails would be delivered for ever, or be lost."""
    await send(namesrv, "Poison", "poison")
    config = SimpleConfig(consume_from=ConsumeFrom.FIRST_OFFSET, max_reconsume_times=1)
    async with SimpleConsumer("sick", namesrv, config=config) as consumer:
        consumer.subscribe("Poison")
        for attempt in (1, 2):
            (message,) = await receive(consumer, 1)
            assert (message.body, message.delivery_attempt) == (b"poison", attempt)
            await consumer.release(message)
        await consumer.receive(1, MINUTE, 6 * SECOND)
        async with AdminClient(namesrv) as admin, asyncio.timeout(LIMIT_S):
            letters: list[MessageExt] = []
            while not letters:
                letters = list((await admin.dead_letters.fetch("sick")).messages)
        assert [(one.body, one.properties.get("RETRY_TOPIC")) for one in letters] == [(b"poison", "Poison")]
        assert await consumer.receive(1, MINUTE, 3 * SECOND) == []


async def iteration_extends_and_acknowledges(namesrv: str) -> None:
    """A long job would come to a second worker while the first still works; a finished one again."""
    await send(namesrv, "Iterated", *"abc")
    config = SimpleConfig(consume_from=ConsumeFrom.FIRST_OFFSET, extend_ms=2000)
    async with SimpleConsumer("iterating", namesrv, config=config) as consumer:
        consumer.subscribe("Iterated")
        seen: list[bytes] = []
        async for message in consumer:
            seen.append(message.body)
            if len(seen) == 1:
                await asyncio.sleep(6)  # the job: its length is what is tested
            if len(seen) == 3:
                break
        (last,) = await receive(consumer, 1)
        assert (last.body, last.delivery_attempt) == (seen[2], 2)
        assert sorted(seen) == [b"a", b"b", b"c"]
        await consumer.ack(last)
        assert await consumer.receive(1, MINUTE, 3 * SECOND) == []


CASES: Final[tuple[Callable[[str], Awaitable[None]], ...]] = (
    acknowledged_messages_do_not_come_again,
    what_is_not_acknowledged_comes_again,
    subscriptions_select_messages,
    dead_letters_follow_the_limit,
    iteration_extends_and_acknowledges,
)
