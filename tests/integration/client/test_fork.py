"""A process that forks: the child gets new connections, the parent keeps its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from rocketpy import (
    AdminClient,
    ConsumeFrom,
    LitePullConfig,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    SendStatus,
    sync,
)
from rocketpy.errors import ClientClosed
from rocketpy.sync.loop_thread import LoopThread
from rocketpy_broker.embedded import EmbeddedCluster

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system"),
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
]


async def in_a_child(work: Callable[[], None]) -> None:
    """Fork, let the child do `work`, and raise its error. The parent's loop keeps running."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status, text = 1, ""
        try:
            # A thread of its own: in this one the parent's loop counts as running.
            errors: list[BaseException] = []
            thread = threading.Thread(target=_collect, args=(work, errors))
            thread.start()
            thread.join()
            status, text = (1, repr(errors[0])) if errors else (0, "")
        finally:
            os.write(writing, text.encode())
            os._exit(status)
    os.close(writing)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    with os.fdopen(reading, "rb") as end:
        said = end.read().decode()
    assert os.waitstatus_to_exitcode(status) == 0, said


def _collect(work: Callable[[], None], errors: list[BaseException]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - handed to the parent process
        errors.append(error)


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """Servers on sockets, in the parent."""
    async with EmbeddedCluster(transport="tcp") as running:
        yield running


@pytest.fixture
async def producer(cluster: EmbeddedCluster) -> AsyncIterator[Producer]:
    """A producer of the parent."""
    async with Producer("forkers", cluster.namesrv_address) as started:
        yield started


@pytest.fixture
async def consumer(cluster: EmbeddedCluster) -> AsyncIterator[PullConsumer]:
    """A consumer of the parent."""
    async with PullConsumer("readers", cluster.namesrv_address) as started:
        yield started


async def test_a_child_creates_its_own_clients_and_the_parent_continues(
    cluster: EmbeddedCluster, producer: Producer, consumer: PullConsumer
) -> None:
    """Web servers that fork workers would mix the bytes of two processes on one connection."""
    parents = 1
    await producer.send(Message("Forks", b"parent"))

    async def send_three() -> None:
        async with Producer("forkers", cluster.namesrv_address) as own:
            assert str(os.getpid()) in own.health().client_id
            for _ in range(3):
                assert (await own.send(Message("Forks", b"child"))).status is SendStatus.SEND_OK

    child = asyncio.create_task(in_a_child(lambda: asyncio.run(send_three())))
    while not child.done():
        await producer.send(Message("Forks", b"parent"))
        parents += 1
    await child
    offsets = [await consumer.max_offset(queue) for queue in await consumer.fetch_queues("Forks")]
    assert sum(offsets) == parents + 3


async def test_the_parents_clients_fail_in_the_child_with_the_reason(
    producer: Producer, consumer: PullConsumer
) -> None:
    """A send in the child would hang, or fail with an error about loops and futures."""
    queue = (await producer.send(Message("Forks", b"x"))).queue
    message, refusal = Message("Forks", b"x"), f"started in process {os.getpid()}, before a fork"

    async def use() -> None:
        with pytest.raises(ClientClosed, match=refusal):
            await producer.send(message)
        with pytest.raises(ClientClosed, match=refusal):
            producer.send_nowait(message)
        with pytest.raises(ClientClosed, match=refusal):
            producer.send_oneway(message)
        with pytest.raises(ClientClosed, match=refusal):
            await consumer.max_offset(queue)
        with pytest.raises(ClientClosed, match=refusal):
            producer.health()
        with pytest.raises(ClientClosed, match=refusal):
            await producer.start()
        assert await producer.close() == []
        await consumer.close()

    await in_a_child(lambda: asyncio.run(use()))
    assert (await producer.send(message)).status is SendStatus.SEND_OK
    assert await consumer.max_offset(queue) >= 1


async def test_a_consumer_of_the_parent_raises_in_the_child(cluster: EmbeddedCluster) -> None:
    """A worker that polls its parent's consumer would wait forever, without an error."""
    config = LitePullConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
    refusal = f"started in process {os.getpid()}, before a fork"
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.create_topic("Forks", 1)
    async with (
        Producer("forkers", cluster.namesrv_address) as producer,
        LitePullConsumer("pollers", cluster.namesrv_address, config=config) as polling,
    ):
        polling.subscribe("Forks")

        async def use() -> None:
            for call in (polling.poll, polling.getmany, polling.commit, polling.start):
                with pytest.raises(ClientClosed, match=refusal):
                    await call()
            with pytest.raises(ClientClosed, match=refusal):
                await anext(aiter(polling))
            with pytest.raises(ClientClosed, match=refusal):
                polling.health()
            assert await polling.close()

        await in_a_child(lambda: asyncio.run(use()))
        await producer.send(Message("Forks", b"parent"))
        while not (found := await polling.poll()):
            pass
        assert [message.body for message in found] == [b"parent"]


async def test_blocking_clients_of_the_parent_raise_in_the_child(cluster: EmbeddedCluster) -> None:
    """A worker would wait for a thread that a fork does not copy."""
    refusal = f"started in process {os.getpid()}, before a fork"
    message = Message("Forks", b"x")

    def use(producer: sync.Producer, polling: sync.LitePullConsumer, pushing: sync.PushConsumer) -> None:
        calls: list[Callable[[], object]] = [
            lambda: producer.send(message),
            lambda: producer.send_async(message),
            lambda: producer.send_oneway(message),
            lambda: producer.send_batch([message]),
            lambda: producer.send_batch_async([message]),
            lambda: producer.request_async(message),
            producer.flush,
            producer.health,
            producer.start,
            polling.poll,
            lambda: next(iter(polling)),
            polling.commit,
            pushing.health,
            lambda: pushing.subscribe("Others"),
        ]
        for call in calls:
            with pytest.raises(ClientClosed, match=refusal):
                call()
        assert producer.close() == []
        assert polling.close()
        assert pushing.close()
        with sync.Producer("forkers", cluster.namesrv_address) as own:
            assert own.send(message).status is SendStatus.SEND_OK

    def start() -> tuple[sync.Producer, sync.LitePullConsumer, sync.PushConsumer]:
        clients = (
            sync.Producer("forkers", cluster.namesrv_address),
            sync.LitePullConsumer("pollers", cluster.namesrv_address),
            sync.PushConsumer("handlers", cluster.namesrv_address, lambda _: None),
        )
        for client in clients:
            client.start()
        return clients

    clients = await asyncio.to_thread(start)
    await in_a_child(lambda: use(*clients))
    assert (await asyncio.to_thread(clients[0].send, message)).status is SendStatus.SEND_OK
    for client in clients:
        await asyncio.to_thread(client.close)


async def test_a_client_that_was_not_started_works_in_the_child(cluster: EmbeddedCluster) -> None:
    """Modules that are imported before the fork, as by gunicorn with preload_app, could create no client."""
    producer = sync.Producer("forkers", cluster.namesrv_address)

    def use() -> None:
        with producer:
            assert producer.send(Message("Forks", b"x")).status is SendStatus.SEND_OK

    await in_a_child(use)
    await asyncio.to_thread(use)


async def test_a_fork_while_a_thread_creates_a_client(cluster: EmbeddedCluster) -> None:
    """The child would wait for a lock whose thread exists in the parent only."""

    def use() -> None:
        with sync.Producer("forkers", cluster.namesrv_address) as own:
            own.send(Message("Forks", b"x"))

    with LoopThread._creation_lock:
        await in_a_child(use)


async def test_the_child_drops_the_sockets_of_the_parent(producer: Producer) -> None:
    """A broker would not notice that a parent has died while a child of it lives."""
    await producer.send(Message("Forks", b"x"))
    client = producer._client
    assert client is not None
    channels = [connection.channel for connection in client.connections.all()]
    sockets = [
        channel._transport.get_extra_info("socket")
        for channel in channels
        if channel is not None and channel._transport is not None
    ]
    assert len(sockets) >= 2

    def look() -> None:
        null = Path(os.devnull).stat().st_rdev
        assert {os.fstat(socket.fileno()).st_rdev for socket in sockets} == {null}

    await in_a_child(look)
    assert (await producer.send(Message("Forks", b"x"))).status is SendStatus.SEND_OK
