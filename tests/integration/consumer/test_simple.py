"""SimpleConsumer, over real sockets."""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from rocketpy import AdminClient, ClientConfig, Message, MessageExt, Producer, SimpleConsumer, sync
from rocketpy.consumer.pop.api import DEFAULT_RETRY_MAX
from rocketpy.errors import (
    AcksFailed,
    ClientClosed,
    MessageInvalid,
    ReceiptExpired,
    RouteNotFound,
    TransportError,
    UsageError,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import ANY_QUEUE, PollingInfoRequestHeader, PollingInfoResponseHeader
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.consumer.silent import silent_brokers
from tests.integration.pop_cases import CASES, FIRST, MINUTE, SECOND, ServersInThread, receive, send
from tests.integration.raw_client import RawClient
from tests.integration.sdk_groups import SETTINGS
from tests.mqconsumer.undecodable import raw_send
from tests.mqproducer.place import Place
from tests.waiting import LIMIT_S


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_simple_consumers(cluster: EmbeddedCluster, case: Callable[[str], Awaitable[None]]) -> None:
    """A job would be lost, done twice at the same time, or be delivered for ever."""
    await case(cluster.namesrv_address)


def make(cluster: EmbeddedCluster, *topics: str, name: str = "", namespace: str = "") -> SimpleConsumer:
    """A consumer of these topics."""
    client = ClientConfig(instance_name=name, namespace=namespace)
    consumer = SimpleConsumer("g", cluster.namesrv_address, config=FIRST, client=client)
    for topic in topics:
        consumer.subscribe(topic)
    return consumer


async def test_all_brokers_and_topics_have_their_turn() -> None:
    """Messages on a second broker, or of a second topic, would wait until the first has none."""
    async with EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster:
        async with AdminClient(cluster.namesrv_address) as admin:
            for topic in ("A", "B"):
                await admin.create_topic(topic, 1)
        for topic in ("A", "B"):
            await send(cluster.namesrv_address, topic, *map(str, range(20)))
        async with make(cluster, "A", "B") as consumer:
            found = [(await consumer.receive())[0] for _ in range(8)]
            assert len({(message.topic, message.queue.broker_name) for message in found[:4]}) == 4
            await consumer.ack_many(found)
            rest = await receive(consumer, 32)
            await consumer.ack_many(rest)
            assert await consumer.receive(1, MINUTE, 1 * SECOND) == []


async def test_a_broker_that_is_away_hides_no_other() -> None:
    """Workers would be idle while the messages of other brokers wait."""
    async with EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster:
        async with AdminClient(cluster.namesrv_address) as admin:
            await admin.create_topic("A", 1)
        async with make(cluster, "A") as consumer:
            await send(cluster.namesrv_address, "A", *map(str, range(20)))
            await cluster.brokers[0].close()
            found = await receive(consumer, 10)
            assert {message.queue.broker_name for message in found} == {"broker-b"}
            assert any("no messages of A from broker" in text for text in consumer.health().problems)


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_a_consumer_that_receives_is_healthy(
    cluster: EmbeddedCluster, later: Callable[[], None], namespace: str
) -> None:
    """An orchestrator would restart each worker after a minute, or would not see that a topic is missing."""
    client = ClientConfig(namespace=namespace)
    async with (
        AdminClient(cluster.namesrv_address, client=client) as admin,
        make(cluster, "A", "B", namespace=namespace) as consumer,
    ):
        await admin.create_topic("A", 1)
        async with asyncio.timeout(LIMIT_S):
            while consumer.health().problems != ("topic B has no route",):
                assert await consumer.receive(1, MINUTE, timedelta(0)) == []
        await admin.create_topic("B", 1)
        async with asyncio.timeout(LIMIT_S):
            while consumer.health().problems:
                assert await consumer.receive(1, MINUTE, timedelta(0)) == []
        later()
        await consumer.member.client.heartbeat()  # its interval is half a minute
        assert consumer.health().problems == ()
        assert await consumer.receive(1, MINUTE, timedelta(0)) == []
        assert consumer.health().problems == ()


async def test_a_topic_that_is_not_subscribed_any_more_is_no_problem(cluster: EmbeddedCluster) -> None:
    """It would be reported until the next call, which may be hours later."""
    async with make(cluster, "Missing") as consumer:
        with pytest.raises(RouteNotFound):
            await consumer.receive(1, MINUTE, timedelta(0))
        assert consumer.health().problems == ("topic Missing has no route",)
        consumer.unsubscribe("Missing")
        assert consumer.health().ok


async def test_all_messages_of_a_response_are_decompressed(cluster: EmbeddedCluster) -> None:
    """Intact messages would be reported as undecodable, and become dead letters by `async for`."""
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.create_topic("T", 1)
    for _ in range(6):
        await raw_send(Place(cluster.namesrv_address), "T", zlib.compress(bytes(4 << 20)), 0x1)
    config = replace(FIRST, max_body_bytes=8 << 20, queue_bytes_max=8 << 20)
    async with SimpleConsumer("g", cluster.namesrv_address, config=config) as consumer:
        consumer.subscribe("T")
        found = await receive(consumer, 6)
        assert [(len(message.body), message.decode_error) for message in found] == [(4 << 20, None)] * 6
        assert {message.delivery_attempt for message in found} == {1}


async def test_a_namespace_is_kept(cluster: EmbeddedCluster) -> None:
    """A worker would get jobs of another tenant, or could not acknowledge its own."""
    client = ClientConfig(namespace="tenant")
    async with Producer("p", cluster.namesrv_address, client=client) as producer:
        await producer.send(Message("T", b"own"))
    await send(cluster.namesrv_address, "T", "other")
    async with make(cluster, "T", namespace="tenant") as consumer:
        (message,) = await receive(consumer, 1)
        assert (message.topic, message.body) == ("T", b"own")
        await consumer.release(message)
        (message,) = await receive(consumer, 1)
        assert (message.topic, message.delivery_attempt) == ("T", 2)
        await consumer.ack(message)
        assert await consumer.receive(1, MINUTE, 3 * SECOND) == []


async def test_a_cancelled_call_gives_back_what_arrives(cluster: EmbeddedCluster) -> None:
    """A message would be hidden from everyone for its whole invisible time."""
    async with make(cluster, "T") as consumer:
        waiting = asyncio.ensure_future(consumer.receive(1, 10 * MINUTE))
        await until_held(cluster)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await send(cluster.namesrv_address, "T", "late")
        (message,) = await receive(consumer, 1)
        assert message.body == b"late"


class CancelsAt:
    """Cancels a task when a request with this code is sent."""

    def __init__(self, code: RequestCode) -> None:
        self.code = code
        self.task: asyncio.Task[object] | None = None
        self.is_sent = threading.Event()

    def before_request(self, _: str, request: Command) -> None:
        if request.code == self.code:
            self.is_sent.set()
            if self.task is not None:
                self.task.cancel()
                self.task = None

    def after_response(self, _address: str, _request: Command, _response: Command) -> None:
        """Nothing to do."""


async def test_a_call_that_is_cancelled_after_a_pop_gives_it_back(cluster: EmbeddedCluster) -> None:
    """A message would be hidden: the limit of deliveries is asked for when it has arrived."""
    await send(cluster.namesrv_address, "T", "x")
    hook = CancelsAt(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    client = ClientConfig(rpc_hooks=(hook,))
    async with SimpleConsumer("g", cluster.namesrv_address, config=FIRST, client=client) as consumer:
        consumer.subscribe("T")
        hook.task = asyncio.create_task(consumer.receive(1, 10 * MINUTE))
        with pytest.raises(asyncio.CancelledError):
            await hook.task
        assert hook.is_sent.is_set()
        (message,) = await receive(consumer, 1)
        assert message.body == b"x"


class HidesLimit(CancelsAt):
    """Fails all requests for the group's limit of deliveries."""

    def before_request(self, address: str, request: Command) -> None:
        super().before_request(address, request)
        if request.code == self.code:
            raise TransportError("the broker is away")


async def test_a_limit_that_cannot_be_read_gives_up_no_message(cluster: EmbeddedCluster) -> None:
    """A group that allows more deliveries than by default would find its messages among the dead letters."""
    await send(cluster.namesrv_address, "T", "x")
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.groups.create("g", max_retries=2 * DEFAULT_RETRY_MAX)
    hook = HidesLimit(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    client = ClientConfig(rpc_hooks=(hook,))
    async with SimpleConsumer("g", cluster.namesrv_address, config=FIRST, client=client) as consumer:
        consumer.subscribe("T")
        for _ in range(DEFAULT_RETRY_MAX + 1):
            (message,) = await receive(consumer, 1)
            await consumer.release(message)
        (message,) = await receive(consumer, 1)
        assert (message.delivery_attempt, hook.is_sent.is_set()) == (DEFAULT_RETRY_MAX + 2, True)


async def test_a_limit_that_may_not_be_read_gives_up_no_message() -> None:
    """A consumer without the right to read it would take the limit for the default."""
    async with silent_brokers() as (cluster, (endpoint,)):
        await send(cluster.namesrv_address, "T", "x")
        async with AdminClient(cluster.namesrv_address) as admin:
            await admin.groups.create("g", max_retries=2 * DEFAULT_RETRY_MAX)
        endpoint.rejections[RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG] = ResponseCode.NO_PERMISSION
        async with make(cluster, "T") as consumer:
            for _ in range(DEFAULT_RETRY_MAX + 1):
                (message,) = await receive(consumer, 1)
                await consumer.release(message)
            (message,) = await receive(consumer, 1)
            assert message.delivery_attempt == DEFAULT_RETRY_MAX + 2
        assert endpoint.counts[RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG] == 1, "it would ask at each message"


async def test_an_extension_tells_the_time_of_the_broker(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change of the broker's clock, a message would count as expired that is not."""
    await send(cluster.namesrv_address, "T", "x")
    async with make(cluster, "T") as consumer:
        (message,) = await receive(consumer, 1, 120 * MINUTE)
        monkeypatch.setattr("time.time_ns", partial(_an_hour_ago, time.time_ns))
        await consumer.extend(message, MINUTE)
        await consumer.extend(message, MINUTE)
        await consumer.ack(message)


def _an_hour_ago(clock_ns: Callable[[], int]) -> int:
    return clock_ns() - 3_600_000_000_000


class StallsExtensions(CancelsAt):
    """Holds the thread of extensions before each of its requests until `go_on`."""

    def __init__(self) -> None:
        super().__init__(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
        self.go_on = threading.Event()

    def before_request(self, address: str, request: Command) -> None:
        super().before_request(address, request)
        if request.code == self.code and threading.current_thread() is not threading.main_thread():
            self.go_on.wait(LIMIT_S)


async def test_a_cancelled_acknowledgement_can_be_repeated(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It would use the receipt from before a running extension, and that extension would fail."""
    await send(cluster.namesrv_address, "T", "x")
    hook = StallsExtensions()
    client = ClientConfig(rpc_hooks=(hook,))
    config = replace(FIRST, extend_ms=6_000)
    async with SimpleConsumer("g", cluster.namesrv_address, config=config, client=client) as consumer:
        consumer.subscribe("T")
        async for message in consumer:
            await asyncio.to_thread(hook.is_sent.wait, LIMIT_S)
            first = asyncio.create_task(consumer.ack(message))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            assert first.cancelled()
            again = asyncio.create_task(consumer.ack(message))
            await asyncio.sleep(0)
            hook.go_on.set()
            await again
            break
    assert "extension of messages failed" not in caplog.text


async def until_held(cluster: EmbeddedCluster) -> None:
    """Wait until the broker holds a pop of the group."""
    header = PollingInfoRequestHeader(consumer_group="g", topic="T", queue_id=ANY_QUEUE)
    async with await RawClient.open(cluster.brokers[0].address) as client, asyncio.timeout(LIMIT_S):
        while True:
            response = await client.call(RequestCode.POLLING_INFO, header)
            if response.header_as(PollingInfoResponseHeader).polling_num:
                return


async def test_arguments_are_checked(cluster: EmbeddedCluster) -> None:
    """The broker would reject them with another text, or hide a message for ever."""
    async with make(cluster) as consumer:
        with pytest.raises(UsageError, match=r"no subscription; call subscribe\(\)"):
            await consumer.receive()
        consumer.subscribe("T")
        for count in (0, 33):
            with pytest.raises(UsageError, match=f"max_messages is {count}; it must be from 1 to 32"):
                await consumer.receive(count)
        wrong: Any = 5
        with pytest.raises(UsageError, match="invisible is 5; it must be a timedelta"):
            await consumer.receive(1, wrong)
        with pytest.raises(UsageError, match="from 1 ms to 3 days"):
            await consumer.receive(1, timedelta(days=4))
        with pytest.raises(MessageInvalid, match="is not a received message"):
            await consumer.ack(wrong)


async def test_close_ends_waiting_calls_and_iterations(cluster: EmbeddedCluster) -> None:
    """The program could not end, or an iteration would raise at its end."""
    consumer = make(cluster, "T")
    await consumer.start()

    async def iterate() -> list[MessageExt]:
        return [message async for message in consumer]

    iterating = asyncio.ensure_future(iterate())
    waiting = asyncio.ensure_future(consumer.receive())
    await until_held(cluster)
    await consumer.close()
    assert await iterating == []
    with pytest.raises(ClientClosed):
        await waiting


def test_blocking_code_receives() -> None:
    """The blocking form would lack a method, or wait for itself."""
    servers = ServersInThread()
    try:
        with sync.Producer("p", servers.cluster.namesrv_address) as producer:
            for text in ("a", "b", "c"):
                producer.send(Message("T", text.encode()))
        with sync.SimpleConsumer("g", servers.cluster.namesrv_address, config=FIRST) as consumer:
            consumer.subscribe("T")
            seen: list[bytes] = []
            for message in consumer:
                seen.append(message.body)
                if len(seen) == 2:
                    consumer.ack(message)
                    break
            (last,) = consumer.receive(1, MINUTE)
            consumer.extend(last, 2 * MINUTE)
            consumer.ack_many([last])
            assert sorted([*seen, last.body]) == [b"a", b"b", b"c"]
            assert consumer.receive(1, MINUTE, 2 * SECOND) == []
    finally:
        servers.stop()


async def test_expired_messages_are_acknowledged_too_late(cluster: EmbeddedCluster) -> None:
    """A worker would repeat the acknowledgement for ever, or take its work for done once."""
    await send(cluster.namesrv_address, "T", *"abc")
    async with make(cluster, "T") as consumer:
        found = await receive(consumer, 3, 1 * SECOND)
        again = await receive(consumer, 3)
        with pytest.raises(AcksFailed, match="3 of 3 messages are not acknowledged") as failed:
            await consumer.ack_many(found)
        assert [type(error) for _, error in failed.value.failed] == [ReceiptExpired] * 3
        assert {message.receipt for message in found} == {None}
        await consumer.ack_many(again)
