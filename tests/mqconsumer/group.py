"""Shared parts of consumer cases: members of groups that no other case uses, and recording handlers."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rocketpy import (
    ClientConfig,
    ConsumeFrom,
    LitePullConfig,
    LitePullConsumer,
    MessageExt,
    MessageQueue,
    PushConfig,
    PushConsumer,
    Sql,
)
from rocketpy.protocol.bodies import ProcessQueueInfo
from rocketpy.protocol.remoting.command import Command
from tests.mqproducer.place import Place, eventually, message
from tests.waiting import LIMIT_S

BROKER_SETTINGS = {"messageDelayLevel": "1s 2s 0s", "enablePropertyFilter": "true"}
"""broker.conf keys of the cases' brokers. Levels above the last count as the last: 0 s."""

FIRST = ConsumeFrom.FIRST_OFFSET
_names = itertools.count(1)


class Seen:
    """A handler that records its messages. result_of: returns the handler's result for a message."""

    def __init__(self, result_of: Callable[[MessageExt], Any] | None = None) -> None:
        self.result_of = result_of
        self.messages: list[MessageExt] = []

    async def __call__(self, one: MessageExt) -> Any:
        self.messages.append(one)
        return self.result_of(one) if self.result_of is not None else None

    @property
    def bodies(self) -> list[bytes]:
        """Bodies of the messages, in the order in which they were received."""
        return [one.body for one in self.messages]

    async def until(self, *bodies: bytes) -> None:
        """Wait until each of these bodies was received."""
        await until(lambda: set(bodies) <= set(self.bodies))


@dataclass(eq=False)
class Requests:
    """An RPC hook that remembers requests of one code."""

    code: int
    seen: list[Command] = field(default_factory=list)

    def before_request(self, address: str, request: Command) -> None:
        if request.code == self.code:
            self.seen.append(request)

    def after_response(self, address: str, request: Command, response: Command) -> None:
        """Do nothing: only requests are recorded."""


async def until(condition: Callable[[], object]) -> None:
    """Wait up to a minute: a Java broker is slow to start with a new group."""

    async def look() -> bool | None:
        return True if condition() else None

    await eventually(look, 60)


def group(stem: str) -> str:
    """A group that no other case has used."""
    return f"mqc_{stem}_{next(_names)}"


async def filled(place: Place, stem: str, *bodies: bytes, queues: int = 4, **settings: Any) -> str:
    """A new topic with messages, all in queue 0."""
    topic = place.topic(stem)
    async with place.producer() as producer:
        first = (await place.made(producer, topic, queues))[0]
        for body in bodies:
            await producer.send(message(topic, body, **settings), queue=first)
    return topic


async def send(place: Place, topic: str, *bodies: bytes, **settings: Any) -> None:
    """Send to the queues in turn."""
    async with place.producer() as producer:
        for body in bodies:
            await producer.send(message(topic, body, **settings))


@asynccontextmanager
async def pushing(
    place: Place,
    topic: str,
    handler: Any = None,
    expression: str | Sql = "*",
    *,
    name: str = "",
    client: dict[str, Any] | None = None,
    batch_handler: Any = None,
    **config: Any,
) -> AsyncIterator[PushConsumer]:
    """A member of the group `name` (one of its own when empty), which begins at the first message."""
    name = name or group("push")
    consumer = PushConsumer(
        name,
        place.namesrv,
        handler,
        batch_handler=batch_handler,
        config=PushConfig(**{"consume_from": FIRST} | config),
        client=ClientConfig(**{"instance_name": f"{name}_{next(_names)}"} | (client or {})),
    )
    consumer.subscribe(topic, expression)
    async with consumer:
        yield consumer


def polling(place: Place, name: str = "", **config: Any) -> LitePullConsumer:
    """A polling member, which begins at the first message."""
    name = name or group("poll")
    return LitePullConsumer(
        name,
        place.namesrv,
        config=LitePullConfig(**{"consume_from": FIRST} | config),
        client=ClientConfig(instance_name=f"{name}_{next(_names)}"),
    )


async def polled(consumer: LitePullConsumer, *bodies: bytes) -> Counter[bytes]:
    """Poll until each of these was received; return the messages."""
    found: Counter[bytes] = Counter()
    async with asyncio.timeout(LIMIT_S):
        while not set(bodies) <= set(found):
            found += Counter(one.body for one in await consumer.poll())
    return found


def queues_of(consumer: PushConsumer | LitePullConsumer, topic: str) -> list[MessageQueue]:
    """A member's queues of a topic."""
    return [queue for queue in consumer.assignment if queue.topic == topic]


def held(consumer: PushConsumer | LitePullConsumer, topic: str) -> list[ProcessQueueInfo]:
    """A member's state of each queue of a topic, as operators get it."""
    table = consumer.running_info().mq_table
    return [info for queue, info in sorted(table.items()) if queue.topic == topic]


def numbered(stem: str, count: int) -> list[bytes]:
    """Return this many bodies: the stem, a space and a number."""
    return [f"{stem} {number}".encode() for number in range(count)]
