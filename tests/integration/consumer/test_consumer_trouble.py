"""Consumers with wrong settings report it once, and do not affect others."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Collection
from typing import Any, cast
from warnings import catch_warnings, simplefilter

import pytest

from rocketpy import (
    AdminClient,
    AllocateAveragely,
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    Sql,
)
from rocketpy.consumer import group_consumer as base
from rocketpy.consumer.fetch.consumer_api import ConsumerApi
from rocketpy.consumer.group import member
from rocketpy.errors import BrokerError, ConfigInvalid, GroupInvalid, TopicInvalid, UsageError
from rocketpy.protocol.bodies import GetConsumerListByGroupResponseBody, MessageQueue
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import QueryConsumerOffsetResponseHeader
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_groups import FIRST, Seen, consuming, of_topic, send, texts
from tests.integration.sdk_peers import Names, Peer, stored
from tests.integration.small import SMALL
from tests.waiting import LIMIT_S, until

REFUSAL = "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=me"
SWIFT = PushConfig(rebalance_interval_ms=10)


def warnings(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    """The log lines of level WARNING and above that contain these words."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and words in record.getMessage()
    ]


async def test_a_topic_without_a_broker_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log would be full of one line while brokers are offline."""
    async with Names() as names:
        consumer = PushConsumer("g", names.address, Seen(), config=SWIFT)
        consumer.subscribe("T")
        async with consumer:
            await names.until(lambda: len(names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC)) > 10)
            assert consumer.health().problems == ("topic T has no route",)
    assert len(warnings(caplog, "group g cannot look up topic T")) == 1


class Strict(Peer):
    """A broker that rejects requests because of a wrong secret, except those with the codes `accepted`."""

    def __init__(self, *accepted: int) -> None:
        super().__init__(self.respond)
        self.accepted = accepted
        self.client_id = ""

    def respond(self, _channel: Channel, request: Command) -> Command:
        if request.code not in self.accepted:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=REFUSAL)
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            members = GetConsumerListByGroupResponseBody(consumer_id_list=[self.client_id])
            return request.reply(body=members.encode())
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return request.reply(header=QueryConsumerOffsetResponseHeader(offset=0))
        return stored(request)


MEMBERS = (RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP)


@pytest.mark.parametrize(
    ("accepted", "refused"),
    [
        ((), RequestCode.GET_CONSUMER_LIST_BY_GROUP),
        (MEMBERS, RequestCode.QUERY_CONSUMER_OFFSET),
        ((*MEMBERS, RequestCode.QUERY_CONSUMER_OFFSET), RequestCode.PULL_MESSAGE),
    ],
)
async def test_a_rejection_is_reported(
    caplog: pytest.LogCaptureFixture, accepted: tuple[int, ...], refused: int
) -> None:
    """A consumer with a wrong secret would get nothing, without a report."""
    async with Strict(*accepted) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        consumer = PushConsumer("g", names.address, Seen(), config=SWIFT)
        consumer.subscribe("T")
        async with consumer:
            broker.client_id = consumer.health().client_id
            await broker.until(lambda: len(broker.requests(refused)) > 4)
            await until(lambda: any(REFUSAL in problem for problem in consumer.health().problems))
            assert not consumer.health().ok
            logged = [line for line in warnings(caplog, REFUSAL) if "rejected a heartbeat" not in line]
            assert len(logged) == 1


async def test_a_rejected_heartbeat_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """An account without the right to read a topic would join no group, and the log would say "unknown"."""
    async with Strict() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        client = ClientConfig(heartbeat_ms=10)
        async with consuming_at(names.address, client) as consumer:
            await broker.until(lambda: len(broker.requests(RequestCode.HEART_BEAT)) > 4)
            words = f"a broker rejected a heartbeat: broker {broker.address} responded with code 1: {REFUSAL}"
            (problem,) = (one for one in consumer.health().problems if one.startswith(words))
            broker.accepted = (RequestCode.HEART_BEAT,)
            await until(lambda: problem not in consumer.health().problems)
    assert warnings(caplog, "rejected a heartbeat") == [problem]


def consuming_at(namesrv: str, client: ClientConfig) -> PushConsumer:
    consumer = PushConsumer("g", namesrv, Seen(), client=client)
    consumer.subscribe("T")
    return consumer


async def test_a_consumer_without_subscriptions_reports_it(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forgotten `subscribe` would look like a topic without messages."""
    monkeypatch.setattr(base, "_SUBSCRIBE_GRACE_S", 0.0)
    words = "consumer g has no subscription and receives no messages"
    for consumer in (
        PushConsumer("g", cluster.namesrv_address, Seen()),
        LitePullConsumer("g", cluster.namesrv_address),
    ):
        async with consumer:
            await until(lambda: warnings(caplog, words) != [])
        caplog.clear()
    assigned = LitePullConsumer("g", cluster.namesrv_address)
    await assigned.assign([MessageQueue("T", "broker-a", 0)])
    async with consuming(cluster, Seen(), group="other"), assigned:
        await assigned.poll(20)
    assert not warnings(caplog, words)


def test_invalid_subscriptions() -> None:
    """A consumer with a misspelt topic would start, and log a warning about its route some time later."""
    for consumer in (PushConsumer("g", "127.0.0.1:1", Seen()), LitePullConsumer("g", "127.0.0.1:1")):
        for topic in ("a b", "", "T" * 300, 5):
            with pytest.raises(TopicInvalid):
                consumer.subscribe(topic)  # type: ignore[arg-type]
        for expression in (5, None, ["a"]):
            with pytest.raises(ConfigInvalid, match="must be a string"):
                consumer.subscribe("T", expression)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"consume_from": "first"},
        {"consume_from": MessageModel.BROADCASTING},
        {"model": "BROADCASTING"},
        {"allocation": "AVG"},
        {"allocation": AllocateAveragely},
        {"offset_directory": "/tmp/offsets"},  # noqa: S108 - not made
        {"consume_timestamp_ms": -1},
    ],
    ids=str,
)
def test_settings_of_a_wrong_type(settings: dict[str, Any]) -> None:
    """The start would fail with an AttributeError inside the client, or the consumer ignore the setting."""
    for config in (PushConfig, LitePullConfig):
        with pytest.raises(ConfigInvalid, match=f"{next(iter(settings))} is "):
            config(**settings)
    with pytest.raises(ConfigInvalid, match=r"choose one of ConsumeFrom\.LAST_OFFSET, ConsumeFrom\.FIRST"):
        PushConfig(consume_from="first")  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalid, match="message_trace is True"):
        PushConfig(message_trace=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("orderly", [False, True])
async def test_a_batch_is_its_handlers_own_list(
    cluster: EmbeddedCluster,
    producer: Producer,
    is_async: bool,
    orderly: bool,
) -> None:
    """Messages that a handler removes from its list would stay in progress forever."""
    seen: list[MessageExt] = []

    def handle(messages: list[MessageExt]) -> None:
        while messages:
            seen.append(messages.pop())

    async def handle_async(messages: list[MessageExt]) -> None:
        handle(messages)

    consumer = PushConsumer(
        "g",
        cluster.namesrv_address,
        batch_handler=handle_async if is_async else handle,
        config=PushConfig(consume_from=FIRST, batch_size=8, orderly=orderly),
    )
    consumer.subscribe("T")
    await send(producer, *texts("batch", 40))
    async with consumer:
        await until(lambda: len(seen) == 40)
        await until(lambda: sum(of for q, of in consumer.progress().items() if q.topic == "T") == 40)


async def test_arguments_of_a_wrong_type(cluster: EmbeddedCluster) -> None:
    """The application would get an AttributeError or a TypeError from inside the client."""
    queue, wrong = MessageQueue("T", "broker-a", 0), cast(Any, "T")
    lite = LitePullConsumer("lite", cluster.namesrv_address)
    for given in (queue, ["T"]):
        with pytest.raises(UsageError, match=r"assign takes a collection|not a MessageQueue|no MessageQueue"):
            await lite.assign(cast(Any, given))
    await lite.assign([queue])
    async with PullConsumer("g", cluster.namesrv_address) as pull, lite, consuming(cluster, Seen()) as push:
        for call in (
            lambda: pull.pull(wrong, 0),
            lambda: pull.pull(queue, wrong),
            lambda: pull.pull(queue, 0, wrong),
            lambda: pull.pull(queue, 0, timeout_ms=wrong),
            lambda: pull.pull(queue, 0, expression=cast(Any, 5)),
            lambda: pull.min_offset(wrong),
            lambda: pull.commit(queue, wrong),
            lambda: lite.poll(wrong),
            lambda: lite.seek(queue, wrong),
            lambda: lite.seek_to_end(wrong),
            lambda: lite.commit({queue: wrong}),
            lambda: lite.committed(wrong),
            lambda: push.seek(queue, wrong),
            lambda: push.search_offset(wrong, 0),
        ):
            with pytest.raises(UsageError):
                await call()


async def test_a_broker_without_sql_is_reported_with_the_remedy() -> None:
    """The broker's error does not name the setting that an operator must change."""
    async with EmbeddedCluster(settings=SMALL) as running:
        async with AdminClient(running.namesrv_address) as admin:
            await admin.create_topic("T", 1)
        consumer = PushConsumer("g", running.namesrv_address, Seen())
        consumer.subscribe("T", Sql("a = 1"))
        with pytest.raises(BrokerError, match=r"SQL92; set enablePropertyFilter=true in its broker\.conf"):
            await consumer.start()
        async with PullConsumer("g", running.namesrv_address) as pull:
            with pytest.raises(BrokerError, match="enablePropertyFilter=true") as refused:
                await pull.pull(MessageQueue("T", "broker-a", 0), 0, expression=Sql("a = 1"))
    assert refused.value.remark == "The broker does not support consumer to filter message by SQL92"


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_close_reports_what_it_waits_for(
    cluster: EmbeddedCluster,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    orderly: bool,
) -> None:
    """A program that does not end after Ctrl-C would not show which handler is stuck."""
    monkeypatch.setattr(member, "_CLOSE_WARNING_S", 0.01)
    began, go = threading.Event(), threading.Event()

    def handle(_: MessageExt) -> None:
        began.set()
        go.wait(30)

    try:
        async with consuming(cluster, handle, orderly=orderly, close_timeout_ms=100) as consumer:
            result = await producer.send(Message("T", b"stuck"))
            await until(began.is_set)
            assert not await consumer.close()
    finally:
        go.set()
    at = str(result.queue) if orderly else f"{result.queue}, offset=0"
    assert any(at in line for line in warnings(caplog, "group g: close waits up to 0.1 s for handlers"))
    assert any(at in line for line in warnings(caplog, "consumer g closed while handlers were running"))


STUCK = """
import asyncio, threading
from rocketpy import Message, Producer, PushConfig, PushConsumer

began = threading.Event()

def handle(message):
    began.set()
    threading.Event().wait()

async def main():
    config = PushConfig(orderly={orderly}, close_timeout_ms=50)
    consumer = PushConsumer("g", "embedded:", handle, config=config)
    consumer.subscribe("T")
    async with Producer("p", "embedded:") as producer, consumer:
        await producer.send(Message("T", b"x"))
        while not began.is_set():
            await asyncio.sleep(0.01)

asyncio.run(main())
print("the end")
"""


@pytest.mark.parametrize("orderly", [False, True])
def test_a_program_ends_despite_a_handler_that_never_ends(orderly: bool) -> None:
    """A deployment would wait until the process is killed."""
    program = STUCK.format(orderly=orderly)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=LIMIT_S, check=True)
    assert done.stdout == b"the end\n"


async def test_a_lock_granted_while_the_consumer_closes_is_released(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other member could have the queue for a minute, until the broker's lock expires."""
    granted, closing = asyncio.Event(), asyncio.Event()
    lock = ConsumerApi.lock

    async def lock_slowly(
        self: ConsumerApi, queues: Collection[MessageQueue], owner: str
    ) -> set[MessageQueue]:
        locked = await lock(self, queues, owner)
        granted.set()
        await closing.wait()
        return locked

    with monkeypatch.context() as patch:
        patch.setattr(ConsumerApi, "lock", lock_slowly)
        async with consuming(cluster, Seen(), orderly=True, name="one") as first:
            await granted.wait()
            one = first.member
            close = asyncio.create_task(first.close())
            await until(lambda: one.closing)
            closing.set()
            await close
    async with consuming(cluster, Seen(), orderly=True, name="two") as second:
        async with asyncio.timeout(LIMIT_S):
            await until(lambda: len(of_topic(second)) == 4)


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer, PullConsumer])
async def test_a_consumer_that_was_not_closed_is_reported(cluster: EmbeddedCluster, kind: Any) -> None:
    """The consumer would keep its queues from other members, and no log line name it."""
    handler = {"handler": Seen()} if kind is PushConsumer else {}
    consumers = [kind("g", cluster.namesrv_address, **handler)]
    if kind is not PullConsumer:
        consumers[0].subscribe("T")
    await consumers[0].start()
    client, member = consumers[0]._client, getattr(consumers[0], "_member", None)

    def is_reported() -> bool:
        gc.collect()
        return bool(found)

    with catch_warnings(record=True) as found:
        simplefilter("always", ResourceWarning)
        consumers.clear()
        await until(is_reported)  # since Python 3.13, a traceback may refer to it for some iterations
    assert "consumer g was not closed" in str(found[0].message)
    found.clear()  # these warnings refer to the consumer
    if member is not None:
        await member.close()
    await client.release()


async def test_a_consumer_that_was_closed_or_never_started_is_not() -> None:
    """A warning that is logged each time would be ignored."""
    with pytest.raises(GroupInvalid):
        PushConsumer("no group", "127.0.0.1:1", Seen())
    with pytest.raises(GroupInvalid):
        PullConsumer("no group", "127.0.0.1:1")
    async with Names() as names:
        names.routes["T"] = {}
        consumer = PushConsumer("g", names.address, Seen())
        consumer.subscribe("T")
        assert repr(consumer) == "PushConsumer('g')"
        async with consumer, PullConsumer("g", names.address):
            pass
        PullConsumer("g", names.address)
        del consumer
        gc.collect()
