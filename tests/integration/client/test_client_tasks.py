"""A bug ends each background task of a client in turn: the client must report it, and can be closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rocketpy import (
    ClientConfig,
    ConsumeFrom,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
)
from rocketpy.consumer.group.member import GroupMember
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.embedded import EmbeddedCluster
from tests.background import Bug, assert_logged, fails, kill, running
from tests.waiting import LIMIT_S, until

LOOPS = [
    "route refresh",
    "heartbeat",
    "rebalance",
    "commit of offsets",
    "sampling of rates",
    "pull .*'T'.*queue_id=0.",
    "handlers",
    "check subscriptions",
]


@asynccontextmanager
async def consuming(cluster: EmbeddedCluster, **config: Any) -> AsyncIterator[PushConsumer]:
    """A consumer with the queues of T; it is closed at the end in any case."""

    async def handle(message: MessageExt) -> None:
        if message.body == b"late":
            raise ValueError

    consumer = PushConsumer(
        "g",
        cluster.namesrv_address,
        handle,
        config=PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET, **config),
        client=ClientConfig(instance_name="its own"),
    )
    consumer.subscribe("T")
    await consumer.start()
    owners = owners_of(consumer)
    try:
        await until(lambda: len(running("pull .*", *owners)) == 5)  # with its retry topic
        yield consumer
    finally:
        async with asyncio.timeout(LIMIT_S):
            await consumer.close()
    assert running(".*", *owners) == []


def owners_of(consumer: PushConsumer) -> tuple[Tasks, Tasks]:
    """The task groups of a consumer and of its client instance."""
    return consumer.member.tasks, consumer.member.client.tasks


async def fails_visibly(consumer: PushConsumer, caplog: pytest.LogCaptureFixture) -> None:
    """Wait until the consumer reports a failed task; the log reports it, too."""
    await until(lambda: not consumer.health().ok)
    failure = consumer.member.tasks.failure or consumer.member.client.tasks.failure
    assert str(failure) in consumer.health().problems
    assert_logged(failure, caplog)


@pytest.mark.parametrize("name", LOOPS)
async def test_a_loop_that_ends(
    name: str, cluster: EmbeddedCluster, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer would be without heartbeats, offsets or messages, and report no problem."""
    async with consuming(cluster) as consumer:
        await producer.send(Message("T", b"wakes a handler"))
        await until(lambda: bool(running("handlers", *owners_of(consumer))))
        await kill(name, *owners_of(consumer))
        await fails_visibly(consumer, caplog)


@pytest.mark.parametrize("name", ["renewal of locks", "expiry of handler calls"])
async def test_a_loop_of_some_consumers_that_ends(
    name: str, cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Locks would run out, and queues go to members that handle messages at the same time."""
    async with consuming(cluster, orderly=name == "renewal of locks", consume_timeout_ms=60_000) as consumer:
        await kill(name, *owners_of(consumer))
        await fails_visibly(consumer, caplog)


async def _hand(_consumer: PushConsumer, producer: Producer) -> None:
    await producer.send(Message("T", b"m"))


async def _hand_late(_consumer: PushConsumer, producer: Producer) -> None:
    await producer.send(Message("T", b"late"))


async def _revoke(consumer: PushConsumer, _producer: Producer) -> None:
    member = consumer.member
    member.revoke(next(iter(member.pullers)))


async def _leave_range(consumer: PushConsumer, _producer: Producer) -> None:
    puller = next(iter(consumer.member.pullers.values()))
    consumer.member.context.on_offset_illegal(puller, 0)


async def _subscribe(consumer: PushConsumer, _producer: Producer) -> None:
    consumer.subscribe("T")


async def _connect(consumer: PushConsumer, _producer: Producer) -> None:
    consumer.member.client.connections.get("127.0.0.1:1").when_open(lambda _: None)


async def _ask(consumer: PushConsumer, _producer: Producer) -> None:
    client = consumer.member.client
    client.routes.request(client.routes.entry("Other"), lambda _: None)


Do = Callable[[PushConsumer, Producer], Awaitable[None]]
Part = Callable[[GroupMember], Any]
ONCE: list[tuple[str, Part, str, Do]] = [
    ("send back", lambda member: member.consume_service.send_back, "send_back", _hand_late),  # type: ignore[union-attr]
    ("release", lambda member: member.consume_service, "wait_released", _revoke),
    ("reset", lambda member: member, "revoke", _leave_range),
    ("announce subscription", lambda member: member.client, "heartbeat", _subscribe),
    ("connect", lambda member: member.client.connections, "with_scheme", _connect),
    ("route of", lambda member: member.client._name_servers, "route", _ask),
]


@pytest.mark.parametrize(("name", "part", "method", "act"), ONCE, ids=[row[0] for row in ONCE])
async def test_a_short_task_that_fails(
    name: str,
    part: Part,
    method: str,
    act: Do,
    cluster: EmbeddedCluster,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message would not be retried, or a queue would stay locked, without a report."""
    async with consuming(cluster) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(part(consumer.member), method, fails)
            await act(consumer, producer)
            await fails_visibly(consumer, caplog)
        failure = consumer.member.tasks.failure or consumer.member.client.tasks.failure
        assert f"background task {name}" in str(failure)


async def test_an_orderly_lane_that_ends(
    cluster: EmbeddedCluster,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue would be held and locked, but its messages not be handled."""
    async with consuming(cluster, orderly=True) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(consumer.member.consume_service, "_may_call", fails)
            await _hand(consumer, producer)
            await fails_visibly(consumer, caplog)


@pytest.mark.parametrize("name", ["pull ", "rebalance", "sampling of rates", "heartbeat", "route refresh"])
async def test_a_task_that_something_else_cancels(name: str, cluster: EmbeddedCluster) -> None:
    """Application code that cancels all tasks but its own would stop a consumer without a report."""
    async with consuming(cluster) as consumer:
        await until(lambda: consumer.health().ok and consumer.assignment)
        named = {
            task.get_name().removesuffix(str(consumer.assignment[0])): task for task in asyncio.all_tasks()
        }
        task = named[name]
        task.cancel()
        await until(lambda: not consumer.health().ok)
        assert any("something outside of the component" in text for text in consumer.health().problems)


@pytest.mark.parametrize("method", ["_end_iteration", "report"])
async def test_a_callback_of_handlers_that_fails(
    method: str,
    cluster: EmbeddedCluster,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages would be handled and their offsets never stored."""
    async with consuming(cluster) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(consumer.member.consume_service._runner, method, fails)  # type: ignore[union-attr]
            await _hand(consumer, producer)
            await fails_visibly(consumer, caplog)


async def test_a_first_heartbeat_that_fails(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transaction checks would reach no producer, while health() reports no problem."""
    producer = Producer("g", cluster.namesrv_address)
    async with producer:

        async def fail(*_args: object) -> Any:
            raise Bug

        client = producer.transactions.client
        monkeypatch.setattr(client, "ensure_registered", fail)
        producer.check_transactions(lambda _: LocalTransactionState.COMMIT)
        await until(lambda: not producer.health().ok)
        assert_logged(client.tasks.failure, caplog)


async def test_a_send_that_breaks_an_invariant(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the callers would get an internal error; neither the log nor health() would report it."""
    async with Producer("g", cluster.namesrv_address) as producer:
        await producer.send(Message("T", b"finds the route"))
        monkeypatch.setattr(producer._submitter.encoder, "seal", fails)  # type: ignore[union-attr]
        with pytest.raises(Bug):
            await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(3)))
        assert not producer.health().ok
        assert_logged(producer._client.tasks.failure, caplog)  # type: ignore[union-attr]
