"""A client process of `running_peers`. It uses only names that the earlier version has, too.

    python peer_client.py produce NAMESRV TOPIC NAME plain,special,transactions,requests,pending
    python peer_client.py consume NAMESRV TOPIC GROUP push|orderly|lite|reply

It prints JSON, a line for each event. A consumer runs until its standard input ends.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import sys
import zlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from rocketpy import (
    ClientConfig,
    ConsumeFrom,
    ConsumeResult,
    LitePullConfig,
    LitePullConsumer,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    by_hash,
    create_reply_message,
)

CODECS = ("json", "rocketmq", "msgpack")
ROLLED_BACK, RETRIED, DEAD, PENDING = "rolled-back", "retried", "dead", "pending"
REQUESTS = ("old", "new")  # suffixes of the topics of request-reply
_WAIT_S = 60


def label(body: bytes) -> str:
    """The label of a body: its beginning and its checksum."""
    return f"{body[:40].partition(b'|')[0].decode()}|{zlib.crc32(body):08x}"


def report(**event: Any) -> None:
    """Print one event as a line; `print` could mix lines of several threads."""
    os.write(1, json.dumps(event).encode() + b"\n")


class Sends:
    """Sends the messages of a producer, one kind of send after the other."""

    def __init__(self, namesrv: str, topic: str, name: str) -> None:
        self.namesrv, self.topic, self.name = namesrv, topic, name
        self.group = f"producers-{name.partition('.')[0]}"
        self.bodies: list[bytes] = []
        self.checked: list[bytes] = []

    def message(self, kind: str, *, size: int = 100, **fields: Any) -> Message:
        """A message whose body begins with its name."""
        name = f"{self.name} {kind} {len(self.bodies)}"
        body = f"{name}|".encode().ljust(size, b"x")
        self.bodies.append(body)
        return Message(
            self.topic,
            body,
            tags=kind.partition(" ")[0],
            keys=[name.replace(" ", "-")],
            properties={"n": name},
            **fields,
        )

    def producer(self, codec: str = "json", **settings: Any) -> Producer:
        """A producer with long timeouts, since the machine may be slow."""
        return Producer(
            self.group,
            self.namesrv,
            config=ProducerConfig(send_timeout_ms=20_000, **settings),
            client=ClientConfig(codec=codec),  # type: ignore[arg-type]  # one of CODECS
        )

    async def plain(self) -> None:
        """Single sends by each codec, futures with and without batching, lists, compressed bodies."""
        for codec, batching in itertools.product(CODECS, (True, False)):
            async with self.producer(codec, batching=batching) as producer:
                for _ in range(3):
                    await producer.send(self.message("sync"))
                await asyncio.gather(*[producer.send_nowait(self.message("async")) for _ in range(20)])
                await producer.send_batch([self.message("batch") for _ in range(10)])
                await producer.send(self.message("compressed", size=20_000))

    async def special(self) -> None:
        """Oneway, delayed and ordered sends, and messages that consumers reject."""
        async with self.producer() as producer:
            for _ in range(5):
                producer.send_oneway(self.message("oneway"))
            for level in (1, 2):
                await producer.send(self.message("delayed", delay_level=level))
            for number in range(12):
                key = number % 3
                await producer.send(self.message(f"ordered {key}"), selector=by_hash, arg=key)
            for kind in (RETRIED, RETRIED, DEAD):
                await producer.send(self.message(kind))

    async def transactions(self) -> None:
        """Transactions that end at once, and that end after a check of the broker."""
        async with self.producer() as producer:
            producer.check_transactions(self.check)
            for kind in ("committed", ROLLED_BACK):
                await producer.send_in_transaction(self.message(kind), local_transaction=state_of)
            asked = [await self.half(producer, kind) for kind in ("committed", ROLLED_BACK)]
            async with asyncio.timeout(_WAIT_S):
                while not set(asked) <= set(self.checked):  # noqa: ASYNC110 - the checks have no event of their own
                    await asyncio.sleep(0.05)

    async def pending(self) -> None:
        """Sends that the broker completes later: a delayed message, and an open transaction."""
        async with self.producer() as producer:
            producer.check_transactions(lambda _: LocalTransactionState.UNKNOWN)
            await producer.send(self.message(PENDING, delay_level=3))
            await self.half(producer, f"{PENDING} committed")

    async def half(self, producer: Producer, kind: str) -> bytes:
        """Send a message whose transaction stays open; return its body."""
        message = self.message(kind)
        await producer.send_in_transaction(message, local_transaction=lambda _: LocalTransactionState.UNKNOWN)
        return message.body

    def check(self, message: MessageExt) -> LocalTransactionState:
        """How an open transaction ended."""
        self.checked.append(message.body)
        return state_of(message)

    async def requests(self) -> None:
        """Requests that a consumer of each version responds to; a look-up by key."""
        async with self.producer() as producer:
            # With the earlier version this takes seconds.
            has_ms = "timeout_ms" in inspect.signature(producer.request).parameters
            timeout: Any = {"timeout_ms": 20_000} if has_ms else {"timeout": 20}
            request: Callable[[Message], Awaitable[MessageExt]] = partial(producer.request, **timeout)
            for suffix in REQUESTS:
                body = f"{self.name} request|".encode()
                reply = await request(Message(f"{self.topic}-{suffix}", body))
                assert reply.body == b"re: " + body, reply
            name = self.bodies[0].partition(b"|")[0].decode()
            found = await producer.query_message(self.topic, name.replace(" ", "-"))
            assert [message.body for message in found.messages] == self.bodies[:1], found


def state_of(message: Message | MessageExt) -> LocalTransactionState:
    """How a transaction ends, by its message."""
    rolled_back = ROLLED_BACK.encode() in message.body
    return LocalTransactionState.ROLLBACK if rolled_back else LocalTransactionState.COMMIT


async def produce(namesrv: str, topic: str, name: str, kinds: str) -> None:
    """Send, and print the messages that consumers of the topic must get."""
    sends = Sends(namesrv, topic, name)
    for kind in kinds.split(","):
        await getattr(sends, kind)()
    report(sent=[label(body) for body in sends.bodies if ROLLED_BACK.encode() not in body])


async def consume(namesrv: str, topic: str, group: str, kind: str) -> None:
    """Print each received message, and this member's queues when they change."""
    lite = LitePullConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET, rebalance_interval_ms=1000, persist_interval_ms=200
    )
    push = PushConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET,
        rebalance_interval_ms=1000,
        persist_interval_ms=200,
        orderly=kind == "orderly",
        suspend_ms=50,
        max_reconsume_times=1,
    )
    producer = Producer("repliers", namesrv, config=ProducerConfig(send_timeout_ms=20_000))
    loop = asyncio.get_running_loop()

    def handle(message: MessageExt) -> ConsumeResult:
        if kind == "reply":
            reply = create_reply_message(message, b"re: " + message.body)
            asyncio.run_coroutine_threadsafe(producer.send(reply), loop).result()
            return ConsumeResult.SUCCESS
        seen(message)
        is_dead = DEAD.encode() in message.body
        is_retried = RETRIED.encode() in message.body and not message.reconsume_times
        return ConsumeResult.LATER if is_dead or is_retried else ConsumeResult.SUCCESS

    consumer: Any
    if kind == "lite":
        consumer = LitePullConsumer(group, namesrv, config=lite)
    else:
        consumer = PushConsumer(group, namesrv, handle, config=push)
    consumer.subscribe(topic)
    async with producer, consumer:
        tasks = [asyncio.create_task(report_queues(consumer, topic))]
        if kind == "lite":
            tasks.append(asyncio.create_task(poll(consumer)))
        await loop.run_in_executor(None, sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def poll(consumer: LitePullConsumer) -> None:
    """Print the messages of a lite-pull consumer."""
    while True:
        for message in await consumer.poll(100):
            seen(message)


async def report_queues(consumer: Any, topic: str) -> None:
    """Print the member's queues at each change."""
    last: list[int] | None = None
    while True:
        held = sorted(queue.queue_id for queue in consumer.assignment if queue.topic == topic)
        if held != last:
            last = held
            report(held=held)
        await asyncio.sleep(0.05)


def seen(message: MessageExt) -> None:
    """Print a message, and whether its fields are those of `Sends.message`."""
    name = label(message.body).partition("|")[0]
    intact = (message.tags, tuple(message.keys), message.properties.get("n")) == (
        name.split(" ")[1],
        (name.replace(" ", "-"),),
        name,
    )
    report(label=label(message.body), queue=message.queue_id, attempt=message.reconsume_times, intact=intact)


if __name__ == "__main__":
    asyncio.run({"produce": produce, "consume": consume}[sys.argv[1]](*sys.argv[2:]))
