"""Functions of the application other than handlers: whatever they raise or return, the client goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    LitePullConsumer,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    sync,
)
from rocketpy.errors import ConfigInvalid, LocalProtocolError, MessageInvalid, SendForbidden
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_groups import FIRST, Seen
from tests.integration.sdk_peers import SENDS
from tests.mqproducer.place import BROKER_SETTINGS
from tests.waiting import until


class Unshowable(Exception):
    """An exception whose texts fail."""

    def __repr__(self) -> str:
        raise ValueError("no repr")

    __str__ = __repr__


class Own(BaseException):
    """As the exceptions of some frameworks: no Exception."""


FAULTS = [Unshowable, GeneratorExit, asyncio.CancelledError, StopIteration, Own]
faults = pytest.mark.parametrize("fault", FAULTS)


class Faulty:
    """Every hook and listener; each call raises."""

    def __init__(self, fault: type[BaseException], *, sends_only: bool = False) -> None:
        self.fault = fault
        self.calls = 0
        self.sends_only = sends_only

    def fail(self, *_: object) -> Any:
        self.calls += 1
        raise self.fault

    def is_beyond(self, calls: int) -> bool:
        return self.calls > calls

    def before_request(self, _: str, request: Command) -> None:
        if self.sends_only and request.code in SENDS:
            self.fail()

    def after_response(self, _: str, request: Command, __: Command) -> None:
        if not self.sends_only:
            self.fail()

    started = completed = failed = received = process_started = process_ended = settled = fail


async def works(producer: Producer) -> None:
    """The producer still sends."""
    await producer.send(Message("T", b"works"))
    assert producer.health().ok


@faults
async def test_hooks_of_requests(cluster: EmbeddedCluster, fault: type[BaseException]) -> None:
    """A hook would end a connection, or all requests after it would wait for their timeouts."""
    after = Faulty(fault)
    async with Producer("g", cluster.namesrv_address, client=ClientConfig(rpc_hooks=(after,))) as producer:
        await works(producer)
    assert after.calls
    before = Faulty(fault, sends_only=True)
    async with Producer("g", cluster.namesrv_address, client=ClientConfig(rpc_hooks=(before,))) as producer:
        with pytest.raises(LocalProtocolError, match=fault.__name__):
            await producer.send(Message("T", b"x"))
        assert before.calls == 1
        before.sends_only = False
        await works(producer)


@faults
async def test_listeners(cluster: EmbeddedCluster, fault: type[BaseException]) -> None:
    """Telemetry with a defect would lose messages."""
    faulty, seen = Faulty(fault), Seen()
    async with Producer("g", cluster.namesrv_address, listeners=[faulty]) as producer:
        await works(producer)
        producer.send_oneway(Message("T", b"oneway"))
        await producer.flush()
    assert faulty.calls == 4
    consumer = PushConsumer(
        "g", cluster.namesrv_address, seen, config=PushConfig(consume_from=FIRST), listeners=[faulty]
    )
    consumer.subscribe("T")
    async with consumer:
        await seen.until(2)
        await until(lambda: faulty.calls == 8)
        assert consumer.health().ok


@faults
async def test_checks_and_selectors(cluster: EmbeddedCluster, fault: type[BaseException]) -> None:
    """A send would never end: a future cannot raise StopIteration, and GeneratorExit ends what it passes."""
    faulty = Faulty(fault)
    async with Producer("g", cluster.namesrv_address, checks=[faulty.fail]) as producer:
        with pytest.raises(SendForbidden, match=fault.__name__):
            await producer.send(Message("T", b"x"))
    async with Producer("g", cluster.namesrv_address) as producer:
        for route_is_known in (False, True):
            async with asyncio.timeout(30):
                with pytest.raises((RuntimeError, Unshowable)):
                    await producer.send(Message("T", b"x"), selector=faulty.fail)
            if not route_is_known:
                await works(producer)
        with pytest.raises(MessageInvalid, match="must return a queue"):
            await producer.send(Message("T", b"x"), selector=lambda *_: Unshowable())  # type: ignore[arg-type]
        await works(producer)


@faults
async def test_transactions(fault: type[BaseException]) -> None:
    """The check of a transaction would end the client, and its message stay open."""
    faulty, asked = Faulty(fault), list[str]()

    async def check(message: MessageExt) -> LocalTransactionState:
        asked.append(message.message_id)
        if len(asked) == 1:
            faulty.fail()
        return LocalTransactionState.COMMIT

    async with (
        EmbeddedCluster(settings=BROKER_SETTINGS) as cluster,
        Producer("g", cluster.namesrv_address) as producer,
    ):
        await producer.create_topic("T", 1)
        result = await producer.send_in_transaction(
            Message("T", b"x"), local_transaction=faulty.fail, check=check
        )
        assert result.state is LocalTransactionState.UNKNOWN
        await until(lambda: cluster.brokers[0].store.max_offset_in_queue("T", 0) == 1)
        assert len(asked) >= 2
        await works(producer)


async def test_functions_that_cannot_be_called(cluster: EmbeddedCluster) -> None:
    """Each send, or each check of a transaction, would fail, and half messages stay open."""
    wrong: Any = lambda: None  # noqa: E731 - it takes no argument
    right: Any = lambda _: LocalTransactionState.COMMIT  # noqa: E731
    with pytest.raises(ConfigInvalid, match=r"a check of producer g .*lambda.*\(message, queue, group\)"):
        Producer("g", cluster.namesrv_address, checks=[wrong])
    async with Producer("g", cluster.namesrv_address) as producer:
        with pytest.raises(ConfigInvalid, match="the transaction check of group g"):
            await producer.send_in_transaction(Message("T", b"x"), local_transaction=right, check=wrong)
        with pytest.raises(ConfigInvalid, match="local_transaction"):
            await producer.send_in_transaction(Message("T", b"x"), local_transaction=wrong, check=right)
        await works(producer)


class Strategy:
    """An allocation strategy that raises, or returns a wrong value, until it is repaired."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer: Callable[[], Any] | None = answer

    @property
    def name(self) -> str:
        return "OWN"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        assert group
        assert client_id in members
        return list(queues) if self.answer is None else self.answer()


def raises(fault: type[BaseException]) -> Any:
    def answer() -> Any:
        raise fault

    return answer


@pytest.mark.parametrize(
    "answer", [*map(raises, FAULTS), lambda: None, lambda: ["queue"], lambda: 7], ids=range(len(FAULTS) + 3)
)
async def test_allocation_strategies(
    cluster: EmbeddedCluster, producer: Producer, answer: Callable[[], Any]
) -> None:
    """A consumer without queues would be healthy, or end."""
    strategy, seen = Strategy(answer), Seen()
    config = PushConfig(consume_from=FIRST, allocation=strategy, rebalance_interval_ms=20)
    consumer = PushConsumer("g", cluster.namesrv_address, seen, config=config)
    consumer.subscribe("T")
    await producer.send(Message("T", b"x"))
    async with consumer:
        await until(lambda: any("cannot be rebalanced" in text for text in consumer.health().problems))
        strategy.answer = None
        await seen.until(1)
        await until(lambda: consumer.health().ok)


@faults
async def test_listeners_for_queues(cluster: EmbeddedCluster, fault: type[BaseException]) -> None:
    """A change of a topic would end the client's refresh of routes."""
    faulty = Faulty(fault)
    client = ClientConfig(route_refresh_ms=50)
    async with (
        LitePullConsumer("g", cluster.namesrv_address, client=client) as consumer,
        AdminClient(cluster.namesrv_address) as admin,
    ):
        consumer.subscribe("T")
        consumer.when_queues_change("T", faulty.fail)
        for count in (5, 6):
            is_called = partial(faulty.is_beyond, faulty.calls)
            await admin.topics.alter("T", read_queues=count, write_queues=count)
            await until(is_called)
        assert consumer.health().ok


@faults
async def test_callbacks_of_blocking_sends(
    cluster: EmbeddedCluster, fault: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """A callback would end the thread of all blocking clients, or write a traceback for each message."""
    called = 0

    def callback(_: Future[Any]) -> None:
        nonlocal called
        called += 1
        raise fault

    def work() -> None:
        with sync.Producer("g", cluster.namesrv_address, config=ProducerConfig()) as producer:
            for _ in range(200):
                producer.send_async(Message("T", b"x"), callback)
            producer.flush()
            producer.send(Message("T", b"works"))

    await asyncio.to_thread(work)
    assert called == 200
    lines = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert 0 < len(lines) <= 10
    assert any("callback" in line.getMessage() for line in lines)


@faults
async def test_telemetry(cluster: EmbeddedCluster, fault: type[BaseException]) -> None:
    """An exporter with a defect would end every client of the process."""

    class Telemetry:
        """Fails when it is asked."""

        def is_active(self) -> bool:
            raise fault

    seen = Seen()
    telemetry: Any = Telemetry()
    async with Producer("g", cluster.namesrv_address, telemetry=telemetry) as producer:
        await works(producer)
        consumer = PushConsumer(
            "g", cluster.namesrv_address, seen, config=PushConfig(consume_from=FIRST), telemetry=telemetry
        )
        consumer.subscribe("T")
        async with consumer:
            await seen.until(1)
            assert consumer.health().ok
