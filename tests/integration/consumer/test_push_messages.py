"""PushConsumer with Sharing.MESSAGES, over real sockets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    ConsumeFrom,
    ConsumeResult,
    Later,
    MessageExt,
    PushConfig,
    PushConsumer,
    QueueState,
    Sharing,
    SimpleConsumer,
)
from rocketpy.consumer.outcomes import Handler
from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import RequestMode, SetMessageRequestModeRequestBody
from rocketpy.protocol.codes import RequestCode
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.consumer.silent import silent_brokers
from tests.integration.pop_cases import FIRST, SECOND, ServersInThread, receive, send
from tests.integration.raw_client import RawClient
from tests.integration.sdk_groups import SETTINGS
from tests.waiting import LIMIT_S, until


def make(cluster: EmbeddedCluster, handler: Handler | None, *, name: str = "", **config: Any) -> PushConsumer:
    """A consumer of topic T that shares messages."""
    settings: dict[str, Any] = {
        "sharing": Sharing.MESSAGES,
        "consume_from": ConsumeFrom.FIRST_OFFSET,
        "invisible_ms": 2000,
    }
    consumer = PushConsumer(
        "g",
        cluster.namesrv_address,
        handler,
        config=PushConfig(**settings | config),
        client=ClientConfig(instance_name=name),
    )
    consumer.subscribe("T")
    return consumer


async def rest(cluster: EmbeddedCluster, wait_s: int = 4) -> list[MessageExt]:
    """The messages that the group does not have yet, or gets again."""
    async with SimpleConsumer("g", cluster.namesrv_address, config=FIRST) as consumer:
        consumer.subscribe("T")
        return await consumer.receive(32, 60 * SECOND, wait_s * SECOND)


async def set_mode(cluster: EmbeddedCluster, topic: str, group: str) -> None:
    """As `mqadmin setConsumeMode` does."""
    body = SetMessageRequestModeRequestBody(topic=topic, consumer_group=group, mode=RequestMode.POP)
    async with await RawClient.open(cluster.brokers[0].address) as client:
        response = await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body.encode())
    assert response.code == 0, response.remark


async def test_a_member_whose_handlers_are_busy_is_healthy(
    cluster: EmbeddedCluster, later: Callable[[], None]
) -> None:
    """A worker with jobs of minutes would be restarted in the middle of each."""
    began, go = asyncio.Event(), asyncio.Event()

    async def handle(_: MessageExt) -> None:
        began.set()
        await go.wait()

    await send(cluster.namesrv_address, "T", "long")
    swift: dict[str, Any] = {"rebalance_interval_ms": 20, "persist_interval_ms": 20}
    async with make(cluster, handle, concurrency=1, **swift) as consumer:
        await began.wait()
        await until(lambda: set(consumer.health().queues.values()) == {QueueState.FULL})
        later()
        await consumer.member.client.heartbeat()  # its interval is half a minute
        await until(lambda: consumer.health().ok)
        assert set(consumer.health().queues.values()) == {QueueState.FULL}
        go.set()
        await until(lambda: set(consumer.health().queues.values()) == {QueueState.READING})
        assert consumer.health().ok


async def test_more_members_than_queues_are_busy(cluster: EmbeddedCluster) -> None:
    """Members without a queue would be idle while the messages of others wait."""
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.create_topic("Single", 1)
    busy: Counter[int] = Counter()
    everyone = asyncio.Event()

    def work(member: int) -> Handler:
        async def handle(_: MessageExt) -> None:
            busy[member] += 1
            await everyone.wait()

        return handle

    consumers = [make(cluster, work(member), name=f"m{member}", concurrency=1) for member in range(6)]
    try:
        for consumer in consumers:
            consumer.unsubscribe("T")
            consumer.subscribe("Single")
            await consumer.start()
        await send(cluster.namesrv_address, "Single", *map(str, range(6)))
        await until(lambda: len(busy) == 6)
        assert set(busy.values()) == {1}
    finally:
        everyone.set()
        for consumer in consumers:
            await consumer.close()


@pytest.mark.parametrize("kind", ["async", "blocking the loop", "thread"])
async def test_a_long_job_keeps_its_message(kind: str) -> None:
    """A second worker would begin a job that the first one still does."""
    calls: list[bytes] = []
    done = threading.Event()

    async def wait(message: MessageExt) -> None:
        calls.append(message.body)
        await asyncio.sleep(5)  # the job
        done.set()

    async def block(message: MessageExt) -> None:
        calls.append(message.body)
        until_s = time.monotonic() + 5
        while time.monotonic() < until_s:
            sum(range(1000))
        done.set()

    def compute(message: MessageExt) -> None:
        calls.append(message.body)
        time.sleep(5)
        done.set()

    handlers: dict[str, Any] = {"async": wait, "blocking the loop": block, "thread": compute}
    servers = ServersInThread()
    try:
        async with make(servers.cluster, handlers[kind]):
            await send(servers.cluster.namesrv_address, "T", "long")
            await until(done.is_set)
            assert calls == [b"long"]
        assert await rest(servers.cluster) == []
    finally:
        servers.stop()


async def test_failures_and_later_come_again_after_their_delay(cluster: EmbeddedCluster) -> None:
    """A failed message would be lost, or be retried at once and for ever."""
    attempts: Counter[bytes] = Counter()

    async def handle(message: MessageExt) -> Any:
        attempts[message.body] += 1
        assert message.delivery_attempt == attempts[message.body]
        if attempts[message.body] > 1:
            return None
        if message.body == b"later":
            return Later(delay_level=1)
        if message.body == b"result":
            return Later(delay_level=1)
        return ConsumeResult.SUCCESS

    async with make(cluster, handle):
        await send(cluster.namesrv_address, "T", "good", "later", "result")
        await until(lambda: attempts == {b"good": 1, b"later": 2, b"result": 2})
    assert await rest(cluster) == []


async def test_a_message_that_always_fails_becomes_a_dead_letter(cluster: EmbeddedCluster) -> None:
    """It would come again for ever, or vanish."""

    async def fail(_: MessageExt) -> None:
        raise ZeroDivisionError

    async with make(cluster, fail, max_reconsume_times=0), AdminClient(cluster.namesrv_address) as admin:
        await send(cluster.namesrv_address, "T", "poison")
        letters: list[MessageExt] = []
        while not letters:
            letters = (await admin.dead_letters.fetch("g")).messages
            await asyncio.sleep(0.05)
        assert [letter.body for letter in letters] == [b"poison"]
        assert "ZeroDivisionError" in (letters[0].dead_letter_reason or "")
    assert await rest(cluster) == []


async def test_batch_handlers_get_batches(cluster: EmbeddedCluster) -> None:
    """A batch handler would get single messages, or more than it asked for."""
    sizes: list[int] = []

    async def handle(messages: list[MessageExt]) -> None:
        sizes.append(len(messages))

    await send(cluster.namesrv_address, "T", *map(str, range(40)))
    config = PushConfig(
        sharing=Sharing.MESSAGES, consume_from=ConsumeFrom.FIRST_OFFSET, batch_size=5, concurrency=2
    )
    consumer = PushConsumer("g", cluster.namesrv_address, batch_handler=handle, config=config)
    consumer.subscribe("T")
    async with consumer:
        await until(lambda: sum(sizes) == 40)
    assert max(sizes) == 5
    assert await rest(cluster) == []


def held_in_handler(cluster: EmbeddedCluster, started: list[bytes], may_end: asyncio.Event) -> PushConsumer:
    """A consumer that takes four messages, and whose handler notes its own and waits."""

    async def handle(messages: list[MessageExt]) -> None:
        started.extend(message.body for message in messages)
        await may_end.wait()

    settings = PushConfig(
        sharing=Sharing.MESSAGES, consume_from=ConsumeFrom.FIRST_OFFSET, concurrency=1, batch_size=4
    )
    consumer = PushConsumer("g", cluster.namesrv_address, batch_handler=handle, config=settings)
    consumer.subscribe("T")
    return consumer


async def test_close_gives_back_what_has_not_started(cluster: EmbeddedCluster) -> None:
    """The messages of a worker that stops would wait for the end of their invisible time."""
    started: list[bytes] = []
    may_end = asyncio.Event()
    consumer = held_in_handler(cluster, started, may_end)
    await consumer.start()
    await send(cluster.namesrv_address, "T", "first")
    await until(lambda: started)
    await send(cluster.namesrv_address, "T", *"abc")
    await until(lambda: sum(puller.process_queue.count for puller in consumer.member.pullers.values()) == 4)
    closing = asyncio.ensure_future(consumer.close())
    config = ClientConfig(instance_name="other")
    async with SimpleConsumer("g", cluster.namesrv_address, config=FIRST, client=config) as other:
        other.subscribe("T")
        found = await receive(other, 3)
        assert sorted(message.body for message in found) == [b"a", b"b", b"c"]
        assert not closing.done()
        may_end.set()
        assert await closing
        assert await other.receive(1, 60 * SECOND, 3 * SECOND) == []
    assert started == [b"first"]


async def test_an_unsubscribed_topic_gives_its_messages_back(cluster: EmbeddedCluster) -> None:
    """They would be kept from other members, and take the places of other topics, as long as it runs."""
    started: list[bytes] = []
    may_end = asyncio.Event()
    consumer = held_in_handler(cluster, started, may_end)
    config = ClientConfig(instance_name="other")
    async with (
        consumer,
        SimpleConsumer("g", cluster.namesrv_address, config=FIRST, client=config) as other,
    ):
        await send(cluster.namesrv_address, "T", "first")
        await until(lambda: started)
        await send(cluster.namesrv_address, "T", *"abc")
        pullers = consumer.member.pullers
        await until(lambda: sum(puller.process_queue.count for puller in pullers.values()) == 4)
        consumer.unsubscribe("T")
        other.subscribe("T")
        found = await receive(other, 3)
        assert sorted(message.body for message in found) == [b"a", b"b", b"c"]
        await other.ack_many(found)
        consumer.subscribe("U")
        await send(cluster.namesrv_address, "U", *"xyz")
        may_end.set()
        await until(lambda: len(started) == 4)
        assert await other.receive(1, 60 * SECOND, 3 * SECOND) == []


async def test_quick_handlers_get_full_pops() -> None:
    """After one small pop, pops would stay split in small ones: twice as many requests."""
    seen: list[MessageExt] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message)

    async with silent_brokers() as (cluster, (endpoint,)):
        await send(cluster.namesrv_address, "T", *map(str, range(400)))
        async with make(cluster, handle, concurrency=20):
            await until(lambda: len(seen) == 400)
            assert endpoint.counts[RequestCode.POP_MESSAGE] < 30, "400 messages, and 20 places"


async def popped_together(consumer: PushConsumer, cluster: EmbeddedCluster, *texts: str) -> None:
    """Send messages to a consumer that has had some, and is idle; it pops them at once."""
    consumer.pause()
    await until(lambda: all(one.is_waiting for one in consumer.member.pullers.values()))
    await send(cluster.namesrv_address, "T", *texts)
    consumer.resume()


@pytest.mark.parametrize("ends_by", ["close", "unsubscribe"])
async def test_what_was_handled_is_not_given_back(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    """A call that has just ended would count as not begun: its message came again, after a clean close."""
    for name in ("_CHECK_S", "_COLLECT_S", "_TIME_SLICE_S"):  # nothing reports calls before the end
        monkeypatch.setattr(f"rocketpy.consumer.handling.runner.{name}", LIMIT_S)
    monkeypatch.setattr("rocketpy.consumer.pop.sharing._WAIT_MS", 200)
    loop, may_end = asyncio.get_running_loop(), threading.Event()
    handled: list[bytes] = []
    is_blocked = asyncio.Event()

    def handle(message: MessageExt) -> None:
        handled.append(message.body)
        if len(handled) == 3:
            loop.call_soon_threadsafe(is_blocked.set)
            may_end.wait(LIMIT_S)

    consumer = make(cluster, handle, concurrency=3, invisible_ms=600_000)
    await consumer.start()
    try:
        await send(cluster.namesrv_address, "T", "first")
        await until(lambda: handled)
        await popped_together(consumer, cluster, *"abc")
        await is_blocked.wait()
        if ends_by == "unsubscribe":
            consumer.unsubscribe("T")
        closing = asyncio.ensure_future(consumer.close() if ends_by == "close" else asyncio.sleep(0))
        config = ClientConfig(instance_name="other")
        async with SimpleConsumer("g", cluster.namesrv_address, config=FIRST, client=config) as other:
            other.subscribe("T")
            given_back = [message.body for message in await receive(other, 1)]
            may_end.set()
            await closing
            given_back += [one.body for one in await other.receive(32, 60 * SECOND, 3 * SECOND)]
        assert sorted([*handled, *given_back]) == [b"a", b"b", b"c", b"first"]
    finally:
        may_end.set()
        await consumer.close()


async def test_what_becomes_a_dead_letter_is_not_given_back() -> None:
    """A message whose topic is revoked meanwhile would come again, and be a dead letter as well."""
    started: list[bytes] = []
    may_fail, may_end = asyncio.Event(), asyncio.Event()

    async def handle(messages: list[MessageExt]) -> None:
        started.extend(message.body for message in messages)
        if messages[0].body == b"poison":
            await may_fail.wait()
            raise ZeroDivisionError
        await may_end.wait()

    settings = PushConfig(
        sharing=Sharing.MESSAGES,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        concurrency=1,
        batch_size=3,
        max_reconsume_times=0,
    )
    async with silent_brokers() as (cluster, (silent,)):
        consumer = PushConsumer("g", cluster.namesrv_address, batch_handler=handle, config=settings)
        consumer.subscribe("T")
        config = ClientConfig(instance_name="other")
        async with (
            SimpleConsumer("g", cluster.namesrv_address, config=FIRST, client=config) as other,
            consumer,
        ):
            pullers = consumer.member.pullers
            for count, text in enumerate(("poison", "job", "waits"), 1):
                await send(cluster.namesrv_address, "T", text)
                await until(lambda: sum(one.process_queue.count for one in pullers.values()) == count)  # noqa: B023
            silent.codes = {RequestCode.SEND_MESSAGE_V2}
            before = silent.counts[RequestCode.SEND_MESSAGE_V2]
            may_fail.set()
            await until(lambda: silent.counts[RequestCode.SEND_MESSAGE_V2] > before)
            await until(lambda: b"job" in started)
            consumer.unsubscribe("T")
            other.subscribe("T")
            assert [message.body for message in await receive(other, 1)] == [b"waits"]
            assert await other.receive(1, 60 * SECOND, 2 * SECOND) == []
            may_end.set()


async def test_what_a_handler_leaves_after_a_revoke_is_given_back(cluster: EmbeddedCluster) -> None:
    """A result that says nothing is handled again later: after a revoke that was never, nor elsewhere."""
    started, may_end = asyncio.Event(), asyncio.Event()

    async def handle(_: MessageExt) -> Any:
        started.set()
        await may_end.wait()
        return "nonsense"

    config = ClientConfig(instance_name="other")
    async with (
        make(cluster, handle, invisible_ms=600_000) as consumer,
        SimpleConsumer("g", cluster.namesrv_address, config=FIRST, client=config) as other,
    ):
        await send(cluster.namesrv_address, "T", "x")
        await started.wait()
        consumer.unsubscribe("T")
        await until(lambda: "T" not in {queue.topic for queue in consumer.assignment})
        may_end.set()
        other.subscribe("T")
        assert [message.body for message in await receive(other, 1)] == [b"x"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_queue_in_order_goes_on_at_another_member(cluster: EmbeddedCluster, fails: bool) -> None:
    """Messages behind a running handler were kept after the revoke: the queue was blocked for the group."""
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.create_topic("Ordered", 1)
    started: list[bytes] = []
    may_end = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        started.append(message.body)
        await may_end.wait()
        if fails:
            raise ZeroDivisionError

    await send(cluster.namesrv_address, "Ordered", *"abc")
    consumer = make(cluster, handle, orderly=True, invisible_ms=600_000)
    async with consumer:
        sharing = consumer.member.sharing
        assert sharing is not None
        await until(lambda: sharing.answering)  # the next pop gets all messages
        consumer.subscribe("Ordered")
        await until(lambda: started)
        assert len(sharing.extender.held()) == 3
        consumer.unsubscribe("Ordered")
        await until(lambda: "Ordered" not in {queue.topic for queue in consumer.assignment})
        may_end.set()
        handled: list[bytes] = []

        async def take_over(message: MessageExt) -> None:
            handled.append(message.body)

        other = make(cluster, take_over, name="other", orderly=True)
        other.unsubscribe("T")
        other.subscribe("Ordered")
        async with other:
            await until(lambda: len(handled) == 2 + fails)
        assert (started, handled) == ([b"a"], [b"a", b"b", b"c"] if fails else [b"b", b"c"])


async def test_messages_are_popped_in_order(cluster: EmbeddedCluster) -> None:
    """A later message of a queue would be handled before an earlier one has succeeded."""
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.create_topic("Ordered", 1)
    handled: list[bytes] = []
    attempts: Counter[bytes] = Counter()

    async def handle(message: MessageExt) -> Any:
        attempts[message.body] += 1
        if message.body == b"3" and attempts[b"3"] < 3:
            return Later(suspend_ms=10)
        handled.append(message.body)
        return None

    await send(cluster.namesrv_address, "Ordered", *map(str, range(9)))
    consumer = make(cluster, handle, orderly=True)
    consumer.unsubscribe("T")
    consumer.subscribe("Ordered")
    async with consumer:
        await until(lambda: len(handled) == 9)
        assert handled == [str(number).encode() for number in range(9)]
        assert set(attempts.values()) == {1, 3}


async def test_a_group_in_pop_mode_shares_messages(cluster: EmbeddedCluster) -> None:
    """After `mqadmin setConsumeMode` members would pull beside others that pop: messages come twice."""
    seen: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.body)

    await set_mode(cluster, "T", "g")
    consumer = make(cluster, handle, sharing=Sharing.QUEUES)
    async with consumer:
        await send(cluster.namesrv_address, "T", *"abc")
        await until(lambda: len(seen) == 3)
        assert {queue.queue_id for queue in consumer.assignment if queue.topic == "T"} == {-1}
    assert await rest(cluster) == []
    assert sorted(seen) == [b"a", b"b", b"c"]


async def test_a_broker_without_pop_is_an_error_at_the_start() -> None:
    """The consumer would wait for messages for ever."""
    settings = SETTINGS | {"timerWheelEnable": "false"}
    async with EmbeddedCluster(settings=settings) as old:
        async with AdminClient(old.namesrv_address) as admin:
            await admin.create_topic("T", 4)
        with pytest.raises(ConfigInvalid, match=r"shares queues only: it is RocketMQ 4\.6\.0"):
            await make(old, lambda _: None).start()
        simple = SimpleConsumer("g", old.namesrv_address)
        simple.subscribe("T")
        with pytest.raises(ConfigInvalid, match="shares queues only"):
            await simple.start()
