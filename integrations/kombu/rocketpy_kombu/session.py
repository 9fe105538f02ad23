"""The rocketpy clients that all kombu connections of a process to one address share."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - its exit function must be registered before ours
import contextlib
import logging
import os
import threading
from collections.abc import Coroutine
from multiprocessing.util import Finalize
from typing import Any, Final, TypeVar

from rocketpy import (
    AdminClient,
    ConsumeFrom,
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    SimpleConfig,
    SimpleConsumer,
)
from rocketpy.client.embedded_lease import is_embedded
from rocketpy.config import ConsumerConfig
from rocketpy.errors import BrokerError, MessageInvalid, RocketError, RouteNotFound
from rocketpy.sync.loop_thread import LoopThread
from rocketpy_kombu.names import BROADCAST_TOPIC
from rocketpy_kombu.settings import Settings

log: Final = logging.getLogger("rocketpy.kombu")

T = TypeVar("T")


class Session:
    """A producer, an admin client, a reader and consumers, in the event loop of rocketpy's blocking clients.

    Get one with `open_session`.
    """

    def __init__(self, settings: Settings) -> None:
        self.background: Final = LoopThread.get()
        self.settings: Final = settings
        self.is_embedded: Final = is_embedded(settings.client.namesrv)
        self.durable: Final[set[str]] = set()
        """The queues that were declared in this process, and have a topic of their own."""
        self.users = 0
        """How many connections use it."""
        self.is_closing = False
        """Whether requests fail because the process ends."""
        config = ProducerConfig(require_send_ok=True)
        self._producer = Producer(settings.group, config=config, client=settings.client)
        self._admin = AdminClient(client=settings.client)
        reading = ConsumerConfig(suspend=True)
        self.reader: Final = PullConsumer(settings.group, config=reading, client=settings.client)
        """Reads broadcast messages, in the event loop."""
        self._topics: set[str] = set()
        self._consumers: dict[str, SimpleConsumer] = {}
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Connect. Raises what `rocketpy.Producer.start` raises."""
        async with contextlib.AsyncExitStack() as started:
            for client in (self._producer, self._admin, self.reader):
                await started.enter_async_context(client)
            started.pop_all()

    async def close(self) -> None:
        """Close the clients."""
        self.is_closing = True
        for client in (*self._consumers.values(), self.reader, self._admin, self._producer):
            await client.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop and wait for its result."""
        return self.background.run(work)

    # -- in the event loop ----------------------------------------------------------------------

    async def exists(self, topic: str) -> bool:
        """Return whether a name server knows a topic."""
        try:
            await self.reader.fetch_queues(topic)
        except RouteNotFound:
            return False
        self._topics.add(topic)
        return True

    async def ensure_topic(self, topic: str) -> None:
        """Create a topic unless it exists.

        Raises:
            TopicInvalid: Its name is not valid.
            BrokersFailed: A broker refused to create it, for example because of missing permissions.
        """
        if topic in self._topics or await self.exists(topic):
            return
        queues = 1 if topic.endswith(BROADCAST_TOPIC) else self.settings.topic_queues
        await self._admin.topics.create(topic, queues=queues)
        self._topics.add(topic)

    async def send(self, message: Message) -> None:
        """Send a message; create its topic if necessary.

        A broker that cannot delay a message until its time gets it at once: the worker then holds it.

        Raises what `rocketpy.Producer.send` raises.
        """
        await self.ensure_topic(message.topic)
        if message.deliver_at is None:
            await self._producer.send(message)
            return
        try:
            await self._producer.send(message)
        except (MessageInvalid, BrokerError) as error:
            undelayed = Message(message.topic, message.body, tags=message.tags, keys=message.keys)
            await self._producer.send(undelayed)
            log.info(
                "topic %s: the brokers cannot hold a message until %s, so a worker holds it: %s",
                message.topic,
                message.deliver_at,
                error,
            )

    async def consumer(self, queue: str) -> SimpleConsumer:
        """Return the consumer of a queue, which all connections share; create its topic if necessary.

        Raises:
            ConfigInvalid: The brokers are RocketMQ 4.x, which cannot share by message.
            RocketError: As for `ensure_topic`.
        """
        async with self._starting:
            if (consumer := self._consumers.get(queue)) is not None:
                return consumer
            topic = self.settings.topic(queue)
            await self.ensure_topic(topic)
            # Messages may have been sent before the first worker started.
            config = SimpleConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
            group = self.settings.group_of(queue)
            consumer = SimpleConsumer(group, config=config, client=self.settings.client)
            consumer.subscribe(topic)
            await consumer.start()
            self._consumers[queue] = consumer
            return consumer

    async def size(self, queue: str) -> int:
        """Return the number of messages of a queue that no worker has acknowledged, without delayed ones."""
        topic, group = self.settings.topic(queue), self.settings.group_of(queue)
        try:
            return (await self._admin.groups.lag(group, topic)).total
        except RouteNotFound:
            return 0
        except BrokerError:  # no worker has read from it yet
            described = await self._admin.topics.describe(topic)
            return sum(offsets.max_offset - offsets.min_offset for offsets in described.queues.values())


class _Sessions:
    """The open sessions of this process."""

    def __init__(self) -> None:
        self.open: list[Session] = []
        self.lock = threading.Lock()

    def forget(self) -> None:
        """Let a forked child open sessions of its own. Another thread may have held the lock."""
        self.open = []
        self.lock = threading.Lock()

    def close_all(self, *, only_embedded: bool = False) -> None:
        """Close what is still open when the process ends."""
        with self.lock:
            closed = [one for one in self.open if one.is_embedded or not only_embedded]
            self.open = [one for one in self.open if one not in closed]
        for session in closed:
            with contextlib.suppress(RocketError, TimeoutError):
                session.background.run(session.close(), _CLOSE_S)


_CLOSE_S: Final = 5.0
_sessions: Final = _Sessions()


def open_session(settings: Settings) -> Session:
    """Return a session for these settings, and start it if necessary; `release_session` ends its use.

    Raises what `rocketpy.Producer.start` raises.
    """
    with _sessions.lock:
        session = next((one for one in _sessions.open if one.settings.shares_clients(settings)), None)
        if session is None:
            session = Session(settings)
            session.background.run(session.start())
            _sessions.open.append(session)
        session.users += 1
        return session


def release_session(session: Session) -> None:
    """Close a session if no other connection uses it. Does nothing in a forked child.

    The servers of ``embedded:`` stay until the process ends, as queues of kombu's memory transport do.
    """
    if session.background.is_forked_copy:
        return
    with _sessions.lock:
        session.users -= 1
        if session.users or session.is_embedded or session not in _sessions.open:
            return
        _sessions.open.remove(session)
    session.background.run(session.close())


# After kombu's channels, which release their messages with priority 1.
Finalize(None, _sessions.close_all, exitpriority=0)
# The servers inside this process need its thread pools, which the interpreter closes before it calls atexit.
threading._register_atexit(_sessions.close_all, only_embedded=True)  # type: ignore[attr-defined] # noqa: SLF001
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_sessions.forget)
