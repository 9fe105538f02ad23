"""Clients that end while they start, close or send: their connections, shared instances and sends."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    LitePullConsumer,
    MessageTraceConfig,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from rocketpy.client.instance import ClientInstance, _instances
from rocketpy.client.lifecycle import Lifecycle
from rocketpy.consumer.group.member import GroupMember
from rocketpy.errors import ClientClosed, ConfigInvalid, RocketError, RouteNotFound, TransportError
from rocketpy.protocol.bodies import HeartbeatData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.telemetry.message_trace import MessageTrace
from rocketpy.transport import Channel
from tests.integration.client.test_connections import pool_with
from tests.integration.client.test_failures import MESSAGE, one_broker
from tests.integration.sdk_peers import Names, Peer
from tests.waiting import LIMIT_S, until


async def test_a_connection_that_a_caller_waits_for_is_not_dropped() -> None:
    """A refresh of routes while a connection is opened would leave a connection that is never closed."""
    async with Peer() as peer, pool_with(lambda _: None) as pool:
        connection = pool.get(peer.address)
        opening = asyncio.ensure_future(connection.open())
        await asyncio.sleep(0)
        pool.drop(peer.address)
        await opening
        assert pool.get(peer.address) is connection
        pool.drop(peer.address)
        await peer.until(lambda: peer.channels[0].is_closed)
        assert pool.all() == []


async def test_a_route_request_made_by_a_callback_gets_its_own_error() -> None:
    """A caller would get the error that the client is closed, although it is open."""
    async with Names() as names:
        client = await ClientInstance.acquire(ClientConfig(namesrv=names.address))
        topic = client.routes.entry("Nowhere")
        again: list[RocketError | None] = []
        client.routes.request(topic, lambda _: client.routes.request(topic, again.append))
        with pytest.raises(RouteNotFound):
            await client.routes.get("Nowhere")
        await until(lambda: bool(again))
        await client.release()


async def test_the_parts_of_a_split_batch_are_all_sent_to_a_broker_that_reads_slowly() -> None:
    """A send that was held back while others continue would be forgotten, and end with its timeout."""

    def refuses_batches(_channel: Channel, request: Command) -> Command:
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            return request.reply(ResponseCode.MESSAGE_ILLEGAL)
        return Peer.handle(quiet, _channel, request)  # type: ignore[return-value]

    quiet = Peer()
    async with one_broker(refuses_batches) as (producer, broker, names):
        await asyncio.gather(*[producer.send(MESSAGE) for _ in range(5)])
        assert producer._sender is not None
        assert producer._sender.rejecting_batches == ("a",)
        (sink,) = producer._sender._sinks.values()  # sockets cannot be made to block at exactly these sends
        client = await ClientInstance.acquire(ClientConfig(namesrv=names.address))
        channel = client.connections.get(broker.address).channel
        assert channel is not None
        channel.pause_writing()
        sends = [producer.send_nowait(MESSAGE, timeout_ms=60_000) for _ in range(3)]
        await until(lambda: bool(sink._waiting))
        written = channel.write

        def write_and_fill(frame: bytes) -> None:
            written(frame)
            channel.pause_writing()

        channel.write = write_and_fill  # type: ignore[method-assign]
        for _ in range(3):
            channel.resume_writing()
        channel.write = written  # type: ignore[method-assign]
        channel.resume_writing()
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*sends)
        assert not sink._waiting
        await client.release()


async def test_a_producer_whose_start_is_cancelled_releases_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connections and its group's heartbeats would continue until the process ends."""
    started = asyncio.Event()

    async def hang(_: MessageTrace, **_how: bool) -> None:
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(MessageTrace, "start", hang)
    async with Names() as names:
        config = ProducerConfig(message_trace=MessageTraceConfig())
        starting = asyncio.ensure_future(Producer("g", names.address, config=config).start())
        await started.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await names.until(lambda: all(channel.is_closed for channel in names.channels))


class BusyNames(Names):
    """A name server that aborts connections above `connections_max`."""

    connections_max = 1

    def channel_opened(self, channel: Channel) -> None:
        super().channel_opened(channel)
        if self.opened > self.connections_max:
            channel.abort()


async def test_a_producer_whose_start_failed_leaves_its_group() -> None:
    """Brokers would send checks to a client for a producer that it does not have."""
    client = ClientConfig(heartbeat_ms=20, namespace="ns")  # the trace's producer has a client of its own
    config = ProducerConfig(message_trace=MessageTraceConfig())
    async with Peer() as broker, BusyNames() as names:
        names.routes["ns%T"] = {"a": broker.address}
        async with Producer("other", names.address, client=client) as other:
            await other.send(MESSAGE)
            with pytest.raises(TransportError):
                await Producer("g", names.address, config=config, client=client).start()
            beats = len(broker.requests(RequestCode.HEART_BEAT))
            await broker.until(lambda: len(broker.requests(RequestCode.HEART_BEAT)) >= beats + 2)
        last = HeartbeatData.decode(broker.requests(RequestCode.HEART_BEAT)[-1].body)
        assert [group.group_name for group in last.producer_data_set] == ["ns%other"]


@pytest.mark.parametrize(
    ("kind", "owner", "name"),
    [(Producer, ClientInstance, "remove_producer"), (PushConsumer, GroupMember, "close")],
    ids=["producer", "consumer"],
)
async def test_a_client_whose_close_failed_closes_its_trace(
    monkeypatch: pytest.MonkeyPatch, kind: type[Producer | PushConsumer], owner: type, name: str
) -> None:
    """The connections of the trace, and its last reports, would stay until the process ends."""
    close = getattr(owner, name)

    async def fail(part: object, *group: str) -> None:
        await close(part, *group)
        if group in ((), ("g",)):  # the trace has a producer of its own
            raise OSError("planned")

    monkeypatch.setattr(owner, name, fail)
    trace = MessageTraceConfig()
    async with Names() as names:
        client: Producer | PushConsumer = Producer(
            "g", names.address, config=ProducerConfig(message_trace=trace)
        )
        if kind is PushConsumer:
            config = PushConfig(message_trace=trace)
            client = PushConsumer("g", names.address, lambda _: None, config=config)
        await client.start()
        with pytest.raises(OSError, match="planned"):
            await client.close()
        await names.until(lambda: all(channel.is_closed for channel in names.channels))


async def test_a_cancelled_close_continues() -> None:
    """Connections would stay open, and a second close would return at once."""
    async with Names() as names:
        admin = AdminClient(names.address)
        await admin.start()
        closing = asyncio.ensure_future(admin.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(ClientClosed, match="is closed"):
            admin.health()
        await admin.close()
        await names.until(lambda: all(channel.is_closed for channel in names.channels))


# -- clients that are not closed ----------------------------------------------------------------------------


async def test_a_client_that_was_never_closed_is_reported() -> None:
    """Messages in flight would be lost without a report, and sockets stay open until the process ends."""
    async with Names() as names:
        shared = await ClientInstance.acquire(ClientConfig(namesrv=names.address))
        for make in (lambda: Producer("g", names.address), lambda: AdminClient(names.address)):
            client = make()
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                del client
                gc.collect()
                assert not seen, "it was never started"
                client = make()
                await client.start()
                del client
                gc.collect()
            assert [warning.category for warning in seen] == [ResourceWarning]
            assert "was not closed" in str(seen[0].message)
            async with make():
                pass
        for _ in range(3):
            await shared.release()


UNCLOSED = """
from rocketpy import Message
from rocketpy.sync import Producer

def hand_over():
    producer = Producer("g", "{namesrv}")
    producer.start()
    for number in range(2000):
        producer.send_async(Message("T", b"%d" % number))

hand_over()
"""


async def test_a_blocking_producer_that_was_never_closed_is_closed_at_the_end() -> None:
    """A script that ends right after its last `send_async` would lose messages silently."""
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        script = UNCLOSED.format(namesrv=names.address)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "always", "-c", script, stderr=subprocess.PIPE
        )
        _, said = await asyncio.wait_for(child.communicate(), LIMIT_S)
        assert child.returncode == 0
        assert b"ResourceWarning: producer g was not closed" in said
        assert b"Traceback" not in said
        bodies = b"".join(command.body for command in broker.sends)
        assert all(b"%d" % number in bodies for number in range(2000))
        assert broker.requests(RequestCode.UNREGISTER_CLIENT)


@pytest.mark.parametrize(
    "make",
    [
        lambda address: Producer("g", address),
        lambda address: LitePullConsumer("g", address),
        AdminClient,
    ],
    ids=["producer", "consumer", "admin"],
)
async def test_of_two_starts_at_once_one_is_rejected(make: Callable[[str], Lifecycle]) -> None:
    """Both would get a client, and only one would be closed."""
    async with Names() as names:
        client = make(names.address)
        results = await asyncio.gather(client.start(), client.start(), return_exceptions=True)
        assert [type(result) for result in results] == [type(None), ConfigInvalid]
        await client.close()
        await until(lambda: all(channel.is_closed for channel in names.channels))


@pytest.mark.parametrize("make", [PullConsumer, AdminClient], ids=["consumer", "admin"])
async def test_a_client_that_was_not_started_can_be_closed(make: Callable[..., Lifecycle]) -> None:
    """The clean-up of a program whose start failed would hide the reason by another error."""
    client = make("g", "127.0.0.1:1") if make is PullConsumer else make("127.0.0.1:1")
    await client.close()
    await client.close()


async def test_a_start_without_a_name_server_leaves_nothing() -> None:
    """Each attempt of a program that waits for its servers would keep a client with its tasks."""
    config = ClientConfig(namesrv="127.0.0.1:1", request_timeout_ms=100)
    loop = asyncio.get_running_loop()
    before = asyncio.all_tasks()
    for _ in range(2):
        with pytest.raises(TransportError):
            await ClientInstance.acquire(config)
        assert config not in _instances.get(loop, {})
    await until(lambda: asyncio.all_tasks() == before)


async def test_connections_have_ended_when_a_client_is_closed() -> None:
    """A program that ends then would cut off what the client still sends, or warn of open sockets."""
    async with Peer() as peer, pool_with(lambda _: None) as pool:
        channel = await pool.get(peer.address).open()
        await pool.close()
        assert channel._transport is None
