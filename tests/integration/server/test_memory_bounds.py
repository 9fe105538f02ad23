"""Servers count the memory of their connections, and close the connection that uses most."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import struct
import tracemalloc
import weakref
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast

import pytest
import trustme

from rocketpy.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import GetRouteInfoRequestHeader, UnregisterClientRequestHeader
from rocketpy.protocol.java import tags_code
from rocketpy.protocol.remoting.command import FLAG_ONEWAY, Command, encode_command
from rocketpy.transport import (
    Address,
    Channel,
    ChannelOptions,
    MemoryBudget,
    TlsFiles,
    connect,
    serve,
)
from rocketpy.transport.memory_budget import KINDS, ConnectionMemory
from rocketpy_broker import Broker, EmbeddedCluster
from rocketpy_broker.handlers.base import handler_table
from rocketpy_broker.handlers.pull.long_polling import HELD_BYTES
from rocketpy_broker.handlers.pull.offsets import OffsetHandler
from rocketpy_broker.metrics.catalog import CONNECTION_BYTES, CONNECTION_REFUSALS
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from tests.integration.broker.test_broker import send
from tests.integration.broker.test_consumers import pull_request
from tests.integration.raw_client import RawClient, is_closed
from tests.integration.server.test_embedded import Silent
from tests.integration.small import SMALL
from tests.turns import Turns
from tests.waiting import until

KIB, MIB = 1 << 10, 1 << 20


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Broker]:
    async with EmbeddedCluster(settings=SMALL | settings) as cluster:
        yield cluster.brokers[0]


@asynccontextmanager
async def hostile(address: Address | str) -> AsyncIterator[RawClient]:
    """A client whose connection the server may close."""
    client = await RawClient.open(address)
    yield client
    client.writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await client.writer.wait_closed()


def used(memory: MemoryBudget) -> int:
    """Return the bytes in use, without responses that the sockets have taken since the last count."""
    return sum(memory.by_kind().values())


def memory_of(broker: Broker) -> MemoryBudget:
    assert broker.metrics is not None
    return broker._servers[0].memory


def figures(broker: Broker) -> dict[str, float]:
    """The metrics for operators: bytes by kind, and rejections."""
    assert broker.metrics is not None
    measured = {one.metric.name: one.values for one in broker.metrics.collect_from_any_thread()}
    kinds = {labels[-1]: value for labels, value in measured[CONNECTION_BYTES.name]}
    return kinds | {"refusals": measured[CONNECTION_REFUSALS.name][0][1]}


def half_frame(size: int, announced: int = 15 * MIB) -> bytes:
    """The first `size` bytes of a frame that never ends."""
    return struct.pack(">iI", announced, 100) + bytes(size - 8)


def beat(client: str, text: str, *, groups: int = 1) -> bytes:
    wanted = SubscriptionData(topic="T", sub_string=text, code_set={tags_code(text)}, tags_set={text})
    return HeartbeatData(
        client_id=client,
        producer_data_set=[ProducerData(group_name="p")],
        consumer_data_set=[
            ConsumerData(group_name=f"g{number}", subscription_data_set=[wanted]) for number in range(groups)
        ],
    ).encode()


async def test_half_read_frames_are_bounded_in_total() -> None:
    """Sixty connections with 12 MiB of an unfinished frame each took 763 MB."""
    async with serving(maxTotalBytes=8 * MIB) as broker, AsyncExitStack() as stack:
        good = await stack.enter_async_context(await RawClient.open(broker.address))
        assert (await send(good, b"first")).code == 0
        greedy = [await stack.enter_async_context(hostile(broker.address)) for _ in range(6)]
        good.writer.write(half_frame(300 * KIB))  # like a client in the middle of a large send
        await until(lambda: figures(broker)["frame"] == 300 * KIB)
        for client in greedy:
            client.writer.write(half_frame(3 * MIB))
        await until(lambda: figures(broker)["refusals"] >= 4)
        assert figures(broker)["frame"] <= 8 * MIB
        await until(lambda: broker.health().connections == 7 - figures(broker)["refusals"])
        await until(lambda: figures(broker)["frame"] >= 6 * MIB)
        assert not good.reader.at_eof()
        other = await stack.enter_async_context(await RawClient.open(broker.address))
        assert (await send(other, b"second")).code == 0


async def test_a_connection_with_too_much_of_everything_is_closed() -> None:
    """One connection could use the memory of all."""
    async with serving(maxConnectionBytes=2 * MIB) as broker:
        async with hostile(broker.address) as greedy:
            greedy.writer.write(half_frame(3 * MIB))
            assert await is_closed(greedy)
        assert figures(broker)["refusals"] == 1
        await until(lambda: not used(memory_of(broker)))


async def test_pulls_above_the_limit_of_a_connection_get_a_response_at_once() -> None:
    """1,441 held pulls of one connection with subscriptions of 900 KB took 2.5 GB."""
    async with serving(maxConnectionBytes=200 * KIB) as broker:
        async with (
            await RawClient.open(broker.address) as good,
            await RawClient.open(broker.address) as greedy,
        ):
            assert (await send(good, b"x", queue_id=1)).code == 0
            good.writer.write(encode_command(pull_request(wait_ms=60_000)))
            await until(lambda: figures(broker)["pulls"] == HELD_BYTES)
            for number in range(20):
                tags = "||".join(f"tag-{number}-{index}" for index in range(1000))
                before = figures(broker)
                greedy.writer.write(
                    encode_command(pull_request(wait_ms=60_000, sub=tags, group=f"g{number}"))
                )
                while figures(broker) == before:  # noqa: ASYNC110 - one by one
                    await asyncio.sleep(0.01)
            response = await greedy.next()
            assert response.code == ResponseCode.PULL_NOT_FOUND
            await until(lambda: figures(broker)["refusals"] >= 16)
            assert figures(broker)["pulls"] <= 200 * KIB + HELD_BYTES
            assert (await send(good, b"wakes the good one", queue_id=0)).code == 0
            assert (await good.next()).code == 0
        await until(lambda: not used(memory_of(broker)))


async def test_held_pulls_with_the_same_subscription_share_it() -> None:
    """A consumer with a long subscription and many queues would use memory for it once a queue."""
    tags = "||".join(f"tag-{index}" for index in range(1000))
    async with serving() as broker, await RawClient.open(broker.address) as client:
        assert (await send(client, b"x", queue_id=3)).code == 0
        for _ in range(2):
            client.writer.write(encode_command(pull_request(wait_ms=60_000, sub=tags)))
        await until(lambda: len(broker.consumers.holds) == 2)
        (group,) = broker.consumers.holds.groups(("T", 0))
        held = next(iter(group.requests))
        assert figures(broker)["pulls"] == 2 * HELD_BYTES + held.filter_bytes
        assert held.filter_bytes >= 1000 * 28


@pytest.mark.parametrize(("connections", "requests"), [(1, 800), (100, 10)])
async def test_the_responses_to_requests_for_a_table_share_it(connections: int, requests: int) -> None:
    """800 requests for all offsets took 2.7 GB, and no send got through for 24 s."""
    async with serving(maxTotalBytes=8 * MIB) as broker, AsyncExitStack() as stack:
        good = await stack.enter_async_context(await RawClient.open(broker.address))
        offsets = broker.consumers.offsets
        size = fill(offsets)
        encode = Turns(type(offsets).encode_in_slices)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(offsets), "encode_in_slices", lambda *args, **how: encode(*args, **how))  # noqa: PLW0108 - a method
            greedy = [await stack.enter_async_context(hostile(broker.address)) for _ in range(connections)]
            for client in greedy:
                cast(asyncio.Transport, client.writer.transport).pause_reading()
            frame = encode_command(Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET))
            tracemalloc.start()
            try:
                for client in greedy:
                    client.writer.write(frame * requests)
                memory = broker._servers[0].memory
                # Not `figures`, which would compute the lag of all these offsets each time.
                if connections == 1:
                    await until(lambda: memory.by_kind()["responses"] >= MIB)
                else:
                    await until(lambda: memory.refusals >= 1)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
                encode.stop()
        assert memory.by_kind()["responses"] <= (2 * size if connections == 1 else 8 * MIB)
        assert 1 <= encode.total <= 3
        assert peak < 30 * MIB
        assert (await send(good, b"still served")).code == 0


def fill(offsets: ConsumerOffsets) -> int:
    """Commit offsets whose table has more than a MiB; return its size."""
    for queue_id in range(100_000):
        offsets.commit(f"g{queue_id % 100}", "T", queue_id, 10**12 + queue_id)
    size = len(offsets.encode())
    assert size > MIB
    return size


async def test_a_slow_reader_gets_all_the_tables_it_requests() -> None:
    """It was disconnected: all its requests got their responses in one iteration of the event loop."""
    async with serving() as broker, await RawClient.open(broker.address) as slow:
        size = fill(broker.consumers.offsets)
        transport = cast(asyncio.Transport, slow.writer.transport)
        transport.pause_reading()
        slow.writer.write(encode_command(Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET)) * 20)
        memory = broker._servers[0].memory
        await until(lambda: memory.by_kind()["responses"] >= MIB)
        async with await RawClient.open(broker.address) as other:
            assert (await send(other, b"meanwhile")).code == 0
        assert memory.by_kind()["responses"] <= 2 * size
        transport.resume_reading()
        for _ in range(20):
            assert len((await slow.next()).body) == size
        await until(lambda: not used(memory))


@pytest.mark.parametrize("is_oneway", [False, True])
async def test_requests_that_wait_for_their_turn_are_bounded(is_oneway: bool) -> None:
    """Each waiting request took 4 KB that no limit counted; those without a response had none at all."""
    async with serving(maxConnectionBytes=2 * MIB) as broker, AsyncExitStack() as stack:
        good = await stack.enter_async_context(await RawClient.open(broker.address))
        greedy = await stack.enter_async_context(hostile(broker.address))
        stop = asyncio.Event()

        def until_stopped() -> Generator[None, None, bytes]:
            while not stop.is_set():
                yield
            return b"table"

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ConsumerOffsets, "encode_in_slices", lambda *_, **__: until_stopped())
            request = Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET)
            request.flag = FLAG_ONEWAY if is_oneway else 0
            frame = encode_command(request)
            memory, sent = memory_of(broker), 0
            while not memory.refusals:
                before = memory.total
                greedy.writer.write(frame)
                sent += 1
                while memory.total == before and not memory.refusals:  # noqa: ASYNC110 - one by one
                    await asyncio.sleep(0)
            assert MIB < figures(broker)["requests"] <= 2 * MIB
            assert (await send(good, b"meanwhile")).code == 0
            stop.set()
            await until(lambda: figures(broker)["requests"] == 0)
            if not is_oneway:
                codes = Counter([(await greedy.next()).code for _ in range(sent)])
                assert codes == {ResponseCode.SUCCESS: sent - 1, ResponseCode.SYSTEM_BUSY: 1}


async def test_no_table_is_built_for_clients_that_have_gone() -> None:
    """Requests of closed connections kept the broker busy for seconds."""
    async with serving() as broker, await RawClient.open(broker.address) as good:
        begun, dropped = asyncio.Event(), asyncio.Event()

        def endless() -> Iterator[None]:
            begun.set()
            try:
                while True:
                    yield
            finally:
                dropped.set()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.consumers.offsets, "encode_in_slices", lambda *_, **__: endless())
            async with hostile(broker.address) as gone:
                handler = OffsetHandler(
                    broker.store, broker.consumers.offsets, broker.consumers.clients, broker.topics,
                    broker.consumers.slices,
                )  # fmt: skip
                patch.setitem(
                    broker._endpoint._handlers,
                    RequestCode.GET_ALL_CONSUMER_OFFSET,
                    handler_table(broker.tasks, handler)[RequestCode.GET_ALL_CONSUMER_OFFSET],
                )
                frame = encode_command(Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET))
                gone.writer.write(frame * 3)
                await asyncio.wait_for(begun.wait(), 60)
                assert (await send(good, b"meanwhile")).code == 0
            await asyncio.wait_for(dropped.wait(), 60)
        assert broker.tasks.failure is None
        assert (await send(good, b"afterwards")).code == 0


async def test_unsent_responses_are_bounded_in_total() -> None:
    """Each client that read no responses took 8 MiB, without a limit on their total."""
    async with serving(maxTotalBytes=6 * MIB) as broker, AsyncExitStack() as stack:
        good = await stack.enter_async_context(await RawClient.open(broker.address))
        assert (await send(good, bytes(256 * KIB))).code == 0
        pulls = b"".join([encode_command(pull_request(0)) for _ in range(40)])
        greedy = [await stack.enter_async_context(hostile(broker.address)) for _ in range(8)]
        for client in greedy:
            cast(asyncio.Transport, client.writer.transport).pause_reading()
            client.writer.write(pulls)
        await until(lambda: figures(broker)["refusals"] >= 1)
        assert figures(broker)["responses"] <= 6 * MIB
        assert (await good.call_frame(encode_command(pull_request(0)))).code == 0


async def test_subscriptions_are_bounded_and_given_back() -> None:
    """A heartbeat with long subscriptions for thousands of groups would stay in memory."""
    async with serving(maxConnectionBytes=400 * KIB) as broker:
        async with (
            await RawClient.open(broker.address) as client,
            await RawClient.open(broker.address) as good,
        ):
            assert (await client.call(RequestCode.HEART_BEAT, body=beat("c", "a" * 1000))).code == 0
            first = figures(broker)["subscriptions"]
            assert 1000 < first < 8000
            assert (await client.call(RequestCode.HEART_BEAT, body=beat("c", "a" * 1000))).code == 0
            assert figures(broker)["subscriptions"] == first
            response = await client.call(RequestCode.HEART_BEAT, body=beat("c", "a" * 200, groups=250))
            assert response.code == ResponseCode.SYSTEM_BUSY
            assert response.remark is not None
            assert "maxConnectionBytes" in response.remark
            assert figures(broker)["subscriptions"] == first
            assert (await good.call(RequestCode.HEART_BEAT, body=beat("d", "b"))).code == 0
            for group in ("g0", "p"):
                header = UnregisterClientRequestHeader(
                    client_id="c", consumer_group=group, producer_group=group
                )
                await client.call(RequestCode.UNREGISTER_CLIENT, header)
            assert figures(broker)["subscriptions"] < first
        await until(lambda: not used(memory_of(broker)))


async def test_a_name_server_has_the_same_bounds() -> None:
    """Unfinished frames could end the name server of a whole cluster."""
    async with EmbeddedCluster(settings=SMALL) as cluster:
        assert cluster.namesrv is not None
        budget = cluster.namesrv.memory
        budget.total_bytes_max = 4 * MIB
        async with AsyncExitStack() as stack:
            for _ in range(4):
                client = await stack.enter_async_context(hostile(cluster.namesrv_address))
                client.writer.write(half_frame(3 * MIB))
            await until(lambda: budget.refusals >= 3)
            assert budget.by_kind()["frame"] <= 4 * MIB
            good = await stack.enter_async_context(await RawClient.open(cluster.namesrv_address))
            header = GetRouteInfoRequestHeader(topic="TBW102")
            assert (await good.call(RequestCode.GET_ROUTEINTO_BY_TOPIC, header)).code == 0


def test_a_large_request_does_not_close_small_clients() -> None:
    """One subscription of 8 MB would disconnect more than a hundred other consumers."""
    budget = MemoryBudget(100, 145)
    closed: list[int] = []
    usual = [ConnectionMemory(budget, lambda: 0, lambda _, n=n: closed.append(n)) for n in range(10)]  # type: ignore[misc]
    assert all(one.add("pulls", 14) for one in usual)
    greedy = ConnectionMemory(budget, lambda: 0, lambda _: closed.append(-1))
    assert not greedy.add("subscriptions", 50)
    assert closed == []
    assert greedy.add("subscriptions", 5)


@pytest.mark.parametrize("asking_keeps_most", [True, False])
def test_a_request_is_rejected_only_for_the_largest_user(asking_keeps_most: bool) -> None:
    """A client that uses little memory would be rejected because of others that use more."""
    budget = MemoryBudget(100, 145)
    closed: list[str] = []
    one = ConnectionMemory(budget, lambda: 0, lambda _error: closed.append("one"))
    two = ConnectionMemory(budget, lambda: 0, lambda _error: closed.append("two"))
    assert one.add("pulls", 90)
    assert two.add("pulls", 50)
    asking = one if asking_keeps_most else two
    assert asking.add("pulls", 10 if asking_keeps_most else 20) is not asking_keeps_most
    assert closed == ([] if asking_keeps_most else ["one"])
    assert budget.refusals == 1
    assert budget.total == (140 if asking_keeps_most else 70)


def test_connections_are_closed_until_there_is_room_again() -> None:
    """The next requests would close connections one by one; or more clients be closed than needed."""
    budget = MemoryBudget(1000, 800)
    closed: list[int] = []
    connections = [
        ConnectionMemory(budget, lambda: 0, lambda _, number=number: closed.append(number))  # type: ignore[misc]
        for number in range(8)
    ]
    for number, connection in enumerate(connections):
        assert connection.add("pulls", 100 - number)
    asking = ConnectionMemory(budget)
    assert asking.add("pulls", 50)
    assert closed == [0, 1]  # 573 and 50 bytes are below 700, 7/8 of the limit; with one more they are not
    assert budget.total == 623


def test_unsent_responses_count_while_they_are_unsent() -> None:
    """Metrics would show the memory of responses that clients have read; those would close connections."""
    budget = MemoryBudget(1000, 1000)
    unsent = 600
    connection = ConnectionMemory(budget, lambda: unsent)
    connection.set("responses", 600)
    unsent = 200
    assert budget.by_kind()["responses"] == 200
    assert budget.total == connection.total == 200
    unsent = 0
    assert ConnectionMemory(budget).add("pulls", 1000)
    connection.release()
    assert budget.by_kind() == {**dict.fromkeys(KINDS, 0), "pulls": 1000}


def test_a_connection_has_room_for_a_frame_and_what_is_kept() -> None:
    """A server without settings would have no limit, or refuse the largest frame."""
    options = ChannelOptions()
    budget = options.memory_budget()
    assert budget.connection_bytes_max == options.max_frame_bytes + options.write_limit_bytes + 8 * MIB
    assert budget.total_bytes_max == 16 * budget.connection_bytes_max
    given = ChannelOptions(connection_bytes_max=5, total_bytes_max=7).memory_budget()
    assert (given.connection_bytes_max, given.total_bytes_max) == (5, 7)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Disable garbage collection, so that reference cycles are not freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("transport", ["tcp", "memory"])
async def test_a_connection_that_ends_frees_its_memory_at_once(
    served: bool, transport: Literal["tcp", "memory"]
) -> None:
    """Unfinished frames of closed connections stayed until a garbage collection: 12 MiB each, unlimited."""
    async with EmbeddedCluster(transport=transport, settings=SMALL) as cluster:
        broker = cluster.brokers[0]
        ours = await connect(broker.address, Silent())
        ours.write(half_frame(MIB))
        await until(lambda: memory_of(broker).by_kind()["frame"] > 0)
        freed = weakref.ref(next(iter(broker._servers[0].channels)) if served else ours)
        ours.abort()
        await ours.wait_closed()
        del ours
        await until(lambda: freed() is None)


@pytest.mark.usefixtures("no_collection")
async def test_a_connection_that_sends_garbage_frees_its_memory_at_once() -> None:
    """Each connection left 49 objects for a garbage collection, which blocks the server for a while."""
    server = await serve("127.0.0.1:0", Silent(), ChannelOptions())
    before = count_of(Channel)
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
    await until(lambda: count_of(Channel) == before)
    await server.close()


@pytest.mark.usefixtures("no_collection")
async def test_a_failed_handshake_frees_its_memory_at_once(tmp_path: Path) -> None:
    """Each handshake takes 256 KiB: many could exhaust the memory between two garbage collections."""
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "all.pem")
    options = ChannelOptions(ssl=TlsFiles(cert_path=tmp_path / "all.pem", server=True))
    server = await serve("tls://127.0.0.1:0", Silent(), options)
    before = count_of(SSLProtocol, Channel)
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
        writer.write(b"\x16\x03\x01\x00\x05hello")
        await reader.read()
        writer.close()
    await until(lambda: count_of(SSLProtocol, Channel) == before)
    await server.close()


def count_of(*classes: type) -> int:
    return sum(type(one) in classes for one in gc.get_objects())


async def test_a_client_that_never_reads_is_closed() -> None:
    """Each such connection would keep its place and its responses until its client ends."""

    class Talkative(Silent):
        def handle(self, channel: Channel, request: Command) -> Command:
            return request.reply(body=bytes(6 * MIB))

    server = await serve("127.0.0.1:0", Talkative(), ChannelOptions(idle_timeout_ms=400))
    _, writer = await asyncio.open_connection("127.0.0.1", server.address.port, limit=1024)
    writer.write(encode_command(Command.request(RequestCode.GET_MAX_OFFSET)))
    await until(lambda: server.memory.total > 0)
    await until(lambda: not server.channels)
    assert server.memory.total == 0
    writer.transport.abort()
    await server.close()
