"""The servers of a test session, and the view of one test, which has its own namespace.

Servers take longer to start than most tests take to run. So all tests share them, and a namespace keeps each
from the others' messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from pytest_rocketpy.faults import BUSY, DISK_FULL, DelayingEndpoint, Faults, apply_rejections
from pytest_rocketpy.sent import StoredMessages
from rocketpy import ClientConfig, Message, MessageExt, Producer, SendResult
from rocketpy.errors import StoreError
from rocketpy.sync.loop_thread import LoopThread
from rocketpy_broker import EmbeddedCluster
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.store.busy import Reason

T = TypeVar("T")

_GROUP: Final = "pytest-producers"


class ClusterThread:
    """An embedded cluster on a separate thread, so that tests with any event loop, or none, can use it.

    Args:
        settings: Keys of broker.conf.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.faults = Faults()
        self.cluster = EmbeddedCluster(settings=settings, make_broker=self._make_broker)
        self._loop = LoopThread()

    def _make_broker(self, config: BrokerConfig) -> Broker:
        broker = Broker(config, intercept=lambda inner: DelayingEndpoint(inner, self.faults))
        apply_rejections(self.faults, broker.store)
        return broker

    def __enter__(self) -> Self:
        self.run(self.cluster.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.cluster.close())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the thread of the servers, and wait for its result."""
        return self._loop.run(work)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the thread of the servers; return the future of its result."""
        return self._loop.submit(work)

    async def stop_broker(self) -> BrokerConfig:
        """Stop the broker. Return the settings with which it can start again, at the same port."""
        broker = self.cluster.brokers.pop()
        listen = replace(broker.config.listen, address=broker.address)
        await broker.close()
        return replace(broker.config, listen=listen)

    async def start_broker(self, config: BrokerConfig) -> None:
        """Start the broker that was stopped, with its messages."""
        broker = self._make_broker(config)
        await broker.start()
        self.cluster.brokers.append(broker)

    async def set_delay(self, seconds: float) -> None:
        """Delay each request from now on; 0 ends the delay."""
        self.faults.delay_s = seconds

    async def set_rejection(self, reason: Reason, error: StoreError | None) -> None:
        """Reject messages with this error from now on; None accepts them again."""
        if error is not None:
            self.faults.rejections[reason] = error
        else:
            self.faults.rejections.pop(reason, None)
        for broker in self.cluster.brokers:
            broker.store.reject(reason, error)


class RocketMQ:
    """One test's view of the servers: its topics and groups have a separate namespace."""

    def __init__(self, servers: ClusterThread, namespace: str) -> None:
        self._servers = servers
        self.client: Final = ClientConfig(
            namesrv=servers.cluster.namesrv_address,
            namespace=namespace,
            route_refresh_ms=1000,
            trust_env=False,  # keys and TLS files of a developer's own cluster have no place in a test
        )
        """Settings for producers and consumers, ``Producer("orders", client=rocketmq.client)``."""
        self._stored = StoredMessages(servers.cluster, namespace)
        self._producer: Producer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._producer is not None:
            self._servers.run(self._producer.close())

    def producer(self, group: str = _GROUP) -> Producer:
        """Return a producer in the test's namespace. It is not started yet."""
        return Producer(group, client=self.client)

    def send(self, message: Message) -> SendResult:
        """Send a message, and block until it is stored. Tests that are not async can call it, too.

        Raises the errors of `rocketpy.Producer.send`.
        """
        return self._servers.run(self._send(message))

    async def _send(self, message: Message) -> SendResult:
        if self._producer is None:
            producer = self.producer("pytest-send")
            await producer.start()
            self._producer = producer
        return await self._producer.send(message)

    def sent(self, topic: str | None = None) -> list[MessageExt]:
        """Return the messages that are stored in this test's namespace, of one topic or of all topics.

        They are in the order in which the broker stored them. A delayed or transactional message is included
        once consumers can read it.
        """
        return [message for message in self._servers.run(self._read()) if topic in (None, message.topic)]

    async def _read(self) -> list[MessageExt]:
        return self._stored.read()

    def delayed(self, topic: str | None = None) -> list[MessageExt]:
        """Return the messages of this test that wait for their time, of one topic or of all topics.

        `MessageExt.deliver_at` or `MessageExt.delay_level` says for how long. A message that was taken back
        is not among them.
        """
        return [one for one in self._servers.run(self._read_delayed()) if topic in (None, one.topic)]

    async def _read_delayed(self) -> list[MessageExt]:
        return self._stored.read_delayed()

    def wait_stored(
        self, is_match: Callable[[MessageExt], bool], timeout_s: float
    ) -> Future[MessageExt | None]:
        """Return the future of the first stored message that matches; None if none matches in time."""
        return self._servers.submit(self._wait_stored(is_match, timeout_s))

    async def _wait_stored(
        self, is_match: Callable[[MessageExt], bool], timeout_s: float
    ) -> MessageExt | None:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while True:
            found = next(filter(is_match, self._stored.read()), None)
            if found is not None or loop.time() >= end:
                return found
            await asyncio.sleep(0.01)

    # -- faults -------------------------------------------------------------------------------

    @contextmanager
    def broker_down(self) -> Iterator[None]:
        """Stop the broker. At the end of the block it starts again, at the same port, with its messages."""
        self.sent()  # reads the messages now: the store is closed inside the block
        config = self._servers.run(self._servers.stop_broker())
        try:
            yield
        finally:
            self._servers.run(self._servers.start_broker(config))

    @contextmanager
    def slow_broker(self, seconds: float) -> Iterator[None]:
        """Delay each request to the broker by `seconds`."""
        self._servers.run(self._servers.set_delay(seconds))
        try:
            yield
        finally:
            self._servers.run(self._servers.set_delay(0))

    @contextmanager
    def busy_broker(self) -> Iterator[None]:
        """Let the broker reject messages with SYSTEM_BUSY, as an overloaded broker does."""
        with self._rejecting(Reason.BUSY, BUSY):
            yield

    @contextmanager
    def disk_full(self) -> Iterator[None]:
        """Let the broker reject messages as with a full disk; stored messages remain readable."""
        with self._rejecting(Reason.DISK_FULL, DISK_FULL):
            yield

    @contextmanager
    def _rejecting(self, reason: Reason, error: StoreError) -> Iterator[None]:
        self._servers.run(self._servers.set_rejection(reason, error))
        try:
            yield
        finally:
            self._servers.run(self._servers.set_rejection(reason, None))
