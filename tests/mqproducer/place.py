"""The environment of the cases, and their requirements."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from rocketpy import Message, MessageExt, MessageQueue, Producer, ProducerConfig, PullConsumer
from rocketpy.errors import RouteNotFound
from rocketpy.producer.request_reply import create_reply_message

BROKER_SETTINGS = {"transactionTimeOut": "300", "transactionCheckInterval": "300"}
"""broker.conf keys of the cases' brokers: transactions are checked soon."""

_names = itertools.count(1)
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """A running name server with a broker."""

    namesrv: str

    def topic(self, stem: str) -> str:
        """A topic that no other case has used."""
        return f"mq_{stem}_{next(_names)}"

    def producer(self, group: str = "mqproducer_cases", **settings: Any) -> Producer:
        """A producer for these servers, which may be slow to send their first responses."""
        settings.setdefault("config", ProducerConfig(send_timeout_ms=15_000))
        return Producer(group, settings.pop("namesrv", self.namesrv), **settings)

    async def read(self, topic: str, count: int, timeout_s: float = 20) -> list[MessageExt]:
        """All messages of a topic, by queue, once there are `count` different ones: it may be filled late.

        One may be there twice: a broker that asks twice about a transaction commits it twice.
        """
        async with PullConsumer("mqproducer_readers", self.namesrv) as consumer:

            async def enough() -> list[MessageExt] | None:
                found = [
                    one for queue in await _queues(consumer, topic) for one in await _pull(consumer, queue)
                ]
                return found if len({one.message_id for one in found}) >= count else None

            return await eventually(enough, timeout_s)

    async def made(self, producer: Producer, topic: str, queues: int = 4) -> tuple[MessageQueue, ...]:
        """Make a topic; return its queues."""
        await producer.create_topic(topic, queues)
        return await producer.fetch_publish_message_queues(topic)

    @asynccontextmanager
    async def replier(self, topic: str) -> AsyncIterator[None]:
        """While entered, each request of a topic (which must exist) gets the reply ``re: `` and its body."""
        async with (
            PullConsumer("mqproducer_repliers", self.namesrv) as consumer,
            self.producer("replies") as sender,
        ):
            task = asyncio.create_task(_reply_to_all(consumer, sender, topic))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error


async def eventually(look: Callable[[], Awaitable[T | None]], timeout_s: float = 20) -> T:
    """The result of `look` as soon as it is not None; it is called repeatedly.

    Raises TypeError for False, which would end the wait at once.
    """
    async with asyncio.timeout(timeout_s):
        while True:
            found = await look()
            if found is False:
                raise TypeError(f"{look} returned False; return None to go on waiting")
            if found is not None:
                return found
            await asyncio.sleep(0.02)


async def _queues(consumer: PullConsumer, topic: str) -> tuple[MessageQueue, ...]:
    try:
        return await consumer.fetch_queues(topic)
    except RouteNotFound:
        return ()


async def _pull(consumer: PullConsumer, queue: MessageQueue, offset: int = 0) -> list[MessageExt]:
    found: list[MessageExt] = []
    while True:
        result = await consumer.pull(queue, offset)
        if not result.messages:
            return found
        found += result.messages
        offset = result.next_offset


async def _reply_to_all(consumer: PullConsumer, sender: Producer, topic: str) -> None:
    offsets = dict.fromkeys(await consumer.fetch_queues(topic), 0)
    while True:
        for queue, offset in offsets.items():
            for message in await _pull(consumer, queue, offset):
                offsets[queue] = message.queue_offset + 1
                if message.correlation_id is None:
                    continue
                reply = create_reply_message(message, b"re: " + message.body, tags="reply")
                await sender.send(reply)
        await asyncio.sleep(0.01)


def message(topic: str, body: bytes = b"body", **rest: Any) -> Message:
    """A message with some body."""
    return Message(topic, body, **rest)
