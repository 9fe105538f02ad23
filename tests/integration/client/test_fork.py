"""A process that forks: the child gets new connections, the parent keeps its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from rocketpy import Message, Producer, PullConsumer, SendStatus
from rocketpy.errors import ClientClosed
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
    """The parent's."""
    async with Producer("forkers", cluster.namesrv_address) as started:
        yield started


@pytest.fixture
async def consumer(cluster: EmbeddedCluster) -> AsyncIterator[PullConsumer]:
    """The parent's."""
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
    """A send in the child would hang, or answer with an error about loops and futures."""
    queue = (await producer.send(Message("Forks", b"x"))).queue
    message, refusal = Message("Forks", b"x"), f"made in process {os.getpid()}, before a fork"

    async def use() -> None:
        with pytest.raises(ClientClosed, match=refusal):
            await producer.send(message)
        with pytest.raises(ClientClosed, match=refusal):
            producer.send_nowait(message)
        with pytest.raises(ClientClosed, match=refusal):
            producer.send_oneway(message)
        with pytest.raises(ClientClosed, match=refusal):
            await consumer.max_offset(queue)
        assert not producer.health().ok
        assert await producer.close() == []
        await consumer.close()

    await in_a_child(lambda: asyncio.run(use()))
    assert (await producer.send(message)).status is SendStatus.SEND_OK
    assert await consumer.max_offset(queue) >= 1
