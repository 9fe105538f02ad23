"""LitePullConsumer, and the blocking consumers, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    ConsumeFrom,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    sync,
)
from rocketpy.consumer.config import PushConfig
from rocketpy.errors import ClientClosed, ConfigInvalid, RouteNotFound, UsageError
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_groups import committed, of_topic, send, texts
from tests.waiting import LIMIT_S, until

QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]


def make(cluster: EmbeddedCluster, *, name: str = "", **config: Any) -> LitePullConsumer:
    """A consumer that begins at the first message."""
    return LitePullConsumer(
        "g",
        cluster.namesrv_address,
        config=LitePullConfig(**{"consume_from": ConsumeFrom.FIRST_OFFSET} | config),
        client=ClientConfig(instance_name=name),
    )


async def poll_until(consumer: LitePullConsumer, count: int) -> list[MessageExt]:
    """Poll this many messages."""
    found: list[MessageExt] = []
    async with asyncio.timeout(LIMIT_S):
        while len(found) < count:
            found += await consumer.poll()
    return found


async def test_a_queue_listener_that_raises_affects_no_other(cluster: EmbeddedCluster) -> None:
    """A bug in one listener would fail the client, and other listeners would miss changes of a route."""
    consumer = make(cluster)
    calls: list[str] = []

    def fail() -> None:
        calls.append("failed")
        raise ValueError("the application's")

    async with consumer, AdminClient(cluster.namesrv_address) as admin:
        consumer.when_queues_change("T", fail)
        consumer.when_queues_change("T", lambda: calls.append("news"))
        await consumer.fetch_queues("T")
        del calls[:]
        await admin.topics.alter("T", read_queues=6, write_queues=6)
        assert len(await consumer.fetch_queues("T")) == 6
        assert calls == ["failed", "news"]
        assert consumer.health().ok


async def test_a_queue_listener_ends_with_its_consumer(cluster: EmbeddedCluster) -> None:
    """While another client shares the routes, a listener would be called for a closed consumer."""
    calls: list[str] = []
    client = ClientConfig(instance_name="shared")
    consumer = LitePullConsumer("g", cluster.namesrv_address, client=client)
    async with PullConsumer("other", cluster.namesrv_address, client=client) as other:
        async with consumer:
            consumer.when_queues_change("T", lambda: calls.append("news"))
            await consumer.fetch_queues("T")
        calls.clear()
        async with AdminClient(cluster.namesrv_address) as admin:
            await admin.topics.alter("T", read_queues=6, write_queues=6)
        assert len(await other.fetch_queues("T")) == 6
    assert calls == []


async def test_a_listener_for_queues_is_checked_when_it_is_given(cluster: EmbeddedCluster) -> None:
    """Its mistake would show only at the next change of a route, in a log."""
    async with make(cluster) as consumer:
        with pytest.raises(ConfigInvalid, match="the listener for queues is None"):
            consumer.when_queues_change("T", None)  # type: ignore[arg-type] # the mistake


async def test_another_task_may_poll_after_the_end_of_a_poll(cluster: EmbeddedCluster) -> None:
    """Only one task could ever poll a consumer, for instance never the one that takes over its work."""
    ended, close = asyncio.Event(), asyncio.Event()
    async with make(cluster) as consumer:
        consumer.subscribe("T")

        async def poll_and_stay() -> None:
            assert await consumer.poll(1) == []
            ended.set()
            await close.wait()

        other = asyncio.create_task(poll_and_stay())
        await ended.wait()
        assert await consumer.poll(1) == []
        close.set()
        await other


async def test_iteration_needs_a_start(cluster: EmbeddedCluster) -> None:
    """A program that forgot the start would end at once, as if all had been consumed."""
    with pytest.raises(ClientClosed, match="not started"):
        await anext(aiter(make(cluster)))


async def test_a_consumer_is_bound_to_its_event_loop(cluster: EmbeddedCluster) -> None:
    """A poll in another loop would hang or end in an error of asyncio's, an iteration end silently."""
    consumer = make(cluster)
    consumer.subscribe("T")

    async def use() -> None:
        for work in (consumer.poll(), anext(aiter(consumer)), consumer.close()):
            with pytest.raises(ClientClosed, match="another one"):
                await work

    async with consumer:
        await asyncio.to_thread(asyncio.run, use())
        assert await consumer.poll(timeout_ms=1) == []


@pytest.mark.usefixtures("producer")  # keeps the shared connections open
async def test_a_failed_start_can_be_repeated(cluster: EmbeddedCluster) -> None:
    """A broker that was offline for a moment would make every later start in this process fail."""
    for _ in range(2):
        consumer = make(cluster)
        await consumer.assign([MessageQueue("T", "broker-z", 0)])
        with pytest.raises(RouteNotFound, match="broker-z"):
            await consumer.start()
        assert cluster.brokers[0].consumers.clients.consumer_group("g") is None
    with pytest.raises(ClientClosed):
        await consumer.poll()


@pytest.mark.parametrize("by_operator", [False, True])
async def test_an_assigned_queue_is_kept_when_its_offset_is_reset(
    cluster: EmbeddedCluster, producer: Producer, by_operator: bool
) -> None:
    """A consumer that was offline for longer than the retention would never get a message."""
    queue = QUEUES[1]
    for _ in range(3):
        await producer.send(Message("T", b"old"), queue=queue)
    async with PullConsumer("g", cluster.namesrv_address) as other:
        await other.commit(queue, 3 if by_operator else 100)  # 100 is beyond the end of the queue
    consumer = make(cluster)
    await consumer.assign([queue])
    async with consumer:
        if by_operator:
            await consumer.member.reset("T", {queue: 2})
            assert committed(cluster) == 2
            assert [message.queue_offset for message in await poll_until(consumer, 1)] == [2]
        await until(lambda: consumer.position(queue) == 3)
        await producer.send(Message("T", b"new"), queue=queue)
        assert [message.body for message in await poll_until(consumer, 1)] == [b"new"]


async def test_a_queue_that_is_assigned_twice_at_once_is_pulled_once(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """Of two quick assignments, one would fail, and messages would be delivered twice."""
    queue = QUEUES[1]
    consumer = make(cluster)
    await consumer.assign([])
    async with consumer:
        acquired = await asyncio.gather(*(consumer.member.acquire(queue) for _ in range(2)))
        assert acquired == [True, True]
        for text in texts("once", 3):
            await producer.send(Message("T", text.encode()), queue=queue)
        assert [message.queue_offset for message in await poll_until(consumer, 3)] == [0, 1, 2]
        assert await consumer.poll(timeout_ms=100) == []


async def test_pollers_share_a_topic(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Two polling members of a group would get the same messages."""
    one, two = make(cluster, name="one"), make(cluster, name="two")
    for consumer in (one, two):
        consumer.subscribe("T")
    async with one, two:
        await until(lambda: len(of_topic(one)) == len(of_topic(two)) == 2)
        await one.poll(0)  # what was pulled while the queues were shared again
        sent = await send(producer, *texts("two", 8))
        found = await poll_until(one, 4) + await poll_until(two, 4)
        assert Counter(message.body for message in found) == Counter(sent)


# -- blocking -----------------------------------------------------------------------------------


async def test_blocking_consumers(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Programs without an event loop could only pull with explicit offsets."""
    await send(producer, *texts("blocking", 8))

    def work() -> tuple[list[bytes], list[bytes], int]:
        seen: list[bytes] = []
        config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
        pushed = sync.PushConsumer(
            "pushed", cluster.namesrv_address, lambda m: seen.append(m.body), config=config
        )
        pushed.subscribe("T")
        with pushed:
            lite = sync.LitePullConsumer(
                "lite", cluster.namesrv_address, config=LitePullConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
            )
            lite.subscribe("T")
            polled: list[bytes] = []
            with lite:
                for message in lite:
                    polled.append(message.body)
                    if len(polled) == 8:
                        break
                lite.commit()
                while len(seen) < 8:
                    lite.poll(10)
                stored = sum(lite.committed(queue) or 0 for queue in lite.fetch_queues("T"))
            assert pushed.health().ok
        return seen, polled, stored

    seen, polled, stored = await asyncio.to_thread(work)
    wanted = Counter(text.encode() for text in texts("blocking", 8))
    assert Counter(seen) == Counter(polled) == wanted
    assert stored == 8


async def test_batches_by_queue(cluster: EmbeddedCluster, producer: Producer) -> None:
    """An application that stores batches with their offsets could mix up queues, or lose messages."""
    for queue in QUEUES[:2]:
        for number in range(6):
            await producer.send(Message("T", b"%d" % number), queue=queue)
    consumer = make(cluster, auto_commit=False)
    await consumer.assign(QUEUES[:2])
    bodies: dict[MessageQueue, list[bytes]] = {queue: [] for queue in QUEUES[:2]}
    async with consumer, asyncio.timeout(LIMIT_S):
        while any(len(found) < 6 for found in bodies.values()):
            batches = await consumer.getmany(max_count=4)
            assert sum(map(len, batches.values())) <= 4
            for queue, messages in batches.items():
                assert messages
                assert {message.queue for message in messages} == {queue}
                bodies[queue] += [message.body for message in messages]
                await consumer.commit({queue: messages[-1].queue_offset + 1})
        assert bodies == {queue: [b"%d" % number for number in range(6)] for queue in QUEUES[:2]}
        assert [await consumer.committed(queue) for queue in QUEUES[:2]] == [6, 6]
        assert await consumer.getmany(timeout_ms=50) == {}
    with pytest.raises(ClientClosed):
        await consumer.getmany()


async def test_batches_by_queue_in_blocking_code(cluster: EmbeddedCluster) -> None:
    """The blocking consumer could lack the method, or name queues with their namespace."""
    client = ClientConfig(namespace="tenant")
    async with Producer("p", cluster.namesrv_address, client=client) as own:
        queue = (await own.send(Message("T", b"x"))).queue
    config = LitePullConfig(consume_from=ConsumeFrom.FIRST_OFFSET)

    def read() -> dict[MessageQueue, list[MessageExt]]:
        consumer = sync.LitePullConsumer("g", cluster.namesrv_address, config=config, client=client)
        consumer.subscribe("T")
        with consumer:
            while not (found := consumer.getmany(1000, max_count=10)):
                pass
            return found

    async with asyncio.timeout(LIMIT_S):
        found = await asyncio.to_thread(read)
    assert {place: [message.body for message in messages] for place, messages in found.items()} == {
        queue: [b"x"]
    }


async def test_a_second_task_that_polls(cluster: EmbeddedCluster, producer: Producer) -> None:
    """The messages of the first would count as processed while it works on them; a crash would lose them."""
    await send(producer, *texts("m", 8))
    async with make(cluster) as consumer:
        consumer.subscribe("T")
        go = asyncio.Event()
        taken: list[MessageExt] = []

        async def work() -> None:
            taken.extend(await consumer.poll(max_count=2))
            await go.wait()

        worker = asyncio.create_task(work(), name="worker")
        await until(lambda: taken)
        for poll in (consumer.poll, consumer.getmany, lambda: anext(aiter(consumer))):
            with pytest.raises(UsageError, match="worker polls consumer g, too"):
                await poll()
        await consumer.member.persist(again=True)
        assert sum([await consumer.committed(queue) or 0 for queue in QUEUES]) == 0
        go.set()
        await worker
        found = await poll_until(consumer, 8 - len(taken))  # the worker has ended
        assert {message.body for message in (*taken, *found)} == {text.encode() for text in texts("m", 8)}
        await consumer.commit()
        assert sum([await consumer.committed(queue) or 0 for queue in QUEUES]) == 8


async def test_tasks_that_wait_for_messages_together(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Four workers on one consumer would lose messages at a crash, without an error."""
    async with make(cluster) as consumer:
        consumer.subscribe("T")

        async def iterate() -> MessageExt:
            async for message in consumer:
                return message
            raise AssertionError

        tasks = [asyncio.create_task(iterate()) for _ in range(4)]
        await until(lambda: sum(task.done() for task in tasks) == 3)
        await send(producer, "one")
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends] == [MessageExt, UsageError, UsageError, UsageError]


async def test_a_commit_hands_over_to_another_task(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A program that reads a first message before it starts its worker would get an error."""
    await send(producer, *texts("m", 4))
    async with make(cluster) as consumer:
        consumer.subscribe("T")
        assert len(await poll_until(consumer, 4)) == 4
        await consumer.commit()
        assert await asyncio.create_task(consumer.poll(20)) == []
        assert await consumer.poll(20) == []


async def test_threads_that_poll_together(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A poll of one thread would count the messages of all others as processed."""
    await send(producer, *texts("m", 60))
    together, done = threading.Barrier(4, timeout=LIMIT_S), threading.Barrier(4, timeout=LIMIT_S)
    config = LitePullConfig(consume_from=ConsumeFrom.FIRST_OFFSET, poll_batch_size=4)
    lite = sync.LitePullConsumer("lite", cluster.namesrv_address, config=config)
    lite.subscribe("T")

    def committed() -> int:
        return sum(lite.committed(queue) or 0 for queue in lite.fetch_queues("T"))

    def first_polls() -> list[MessageExt]:
        while not (found := lite.poll()):
            pass
        return found

    def work(number: int) -> tuple[list[MessageExt], int]:
        found = first_polls()
        together.wait()  # each thread works on its messages
        if number == 0:
            found += first_polls()
            lite.commit()
        done.wait()
        stored = committed()
        done.wait()
        while polled := lite.poll(500):
            found += polled
        return found, stored

    def run() -> tuple[list[bytes], list[int], int]:
        with lite, ThreadPoolExecutor(4) as threads:
            ends = list(threads.map(work, range(4)))
            lite.poll(0)  # another thread: those of the pool may live, and have no messages
            lite.commit()
            return [m.body for found, _ in ends for m in found], [stored for _, stored in ends], committed()

    bodies, stored, at_the_end = await asyncio.to_thread(run)
    assert Counter(bodies) == Counter(text.encode() for text in texts("m", 60))
    assert max(stored) <= 8  # of the first thread alone, and only where no other has messages before them
    assert at_the_end == 60


async def test_a_thread_that_has_ended(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Its queues would never continue, because it cannot say that its messages are processed."""
    await send(producer, *texts("m", 4))
    config = LitePullConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
    lite = sync.LitePullConsumer("lite", cluster.namesrv_address, config=config)
    lite.subscribe("T")

    def run() -> int:
        with lite:
            found: list[MessageExt] = []
            while len(found) < 4:
                thread = threading.Thread(target=lambda: found.extend(lite.poll(100)))
                thread.start()
                thread.join()
            lite.poll(0)
            lite.commit()
            return sum(lite.committed(queue) or 0 for queue in lite.fetch_queues("T"))

    assert await asyncio.to_thread(run) == 4


async def test_a_blocking_seek_finishes_the_messages_of_the_last_poll(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """A queue would wait for messages that the application has left behind, before another member gets it."""
    await send(producer, "one")
    config = LitePullConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
    lite = sync.LitePullConsumer("lite", cluster.namesrv_address, config=config)
    lite.subscribe("T")

    def run() -> tuple[int, int]:
        with lite:
            while not (found := lite.poll(500)):
                pass
            before = len(lite._inner._buffer.polled)
            lite.seek_to_end(found[0].queue)
            return before, len(lite._inner._buffer.polled)

    assert await asyncio.to_thread(run) == (1, 0)
