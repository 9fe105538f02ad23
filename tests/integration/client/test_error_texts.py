"""Errors that a new user sees: they name the server, the reason, and the remedy."""

from __future__ import annotations

import asyncio
import errno
import inspect
import ssl
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    CompressionConfig,
    Message,
    Outcome,
    Producer,
    ProducerConfig,
    RetryConfig,
)
from rocketpy.errors import (
    ConfigInvalid,
    ConnectFailed,
    RequestTimeout,
    RocketError,
    TransportError,
)
from rocketpy.protocol.codes import RequestCode
from rocketpy.transport import Address
from rocketpy.transport.connect import _reason
from rocketpy_broker import EmbeddedCluster
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.config.model import ListenConfig, NamesrvConfig
from rocketpy_broker.namesrv import NameServer
from tests.integration.client.test_failures import MESSAGE, one_broker
from tests.integration.sdk_peers import Names, Peer, not_waiting, silent


async def text_of_a_send(namesrv: str, timeout_ms: int = 3000) -> str:
    """The errors of a start, and of the first send of a client that did not wait at its start."""
    with pytest.raises(TransportError) as at_start:
        await Producer("g", namesrv).start()
    async with not_waiting(Producer("g", namesrv)) as producer:
        with pytest.raises(TransportError) as caught:
            await producer.send(MESSAGE, timeout_ms=timeout_ms)
        assert caught.value.outcome is Outcome.NOT_SENT
        assert "may have been handled" not in str(caught.value)
        assert str(at_start.value) == str(caught.value)
        return str(caught.value)


@asynccontextmanager
async def responding(data: bytes) -> AsyncIterator[str]:
    """The address of a server of another protocol, which responds with this and closes the connection."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(data)
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_a_refused_connection() -> None:
    """A first try without a server would end with an errno and a tuple."""
    async with Peer() as gone:
        address = gone.address
    assert await text_of_a_send(address) == (
        f"name server {address} cannot be reached: connection refused; is one running there? "
        "(`rocketpy-broker dev` starts one)"
    )
    async with Names(T={"a": address}) as names:
        config = ProducerConfig(retry=RetryConfig(times=0))
        async with Producer("g", names.address, config=config) as producer:
            with pytest.raises(ConnectFailed) as caught:
                await producer.send(MESSAGE)
            assert str(caught.value) == f"broker {address} cannot be reached: connection refused"
            assert producer.health().problems == (str(caught.value),)


async def test_tls_to_a_server_without_tls() -> None:
    """The error would have no reason."""
    async with Names() as names:
        text = await text_of_a_send(f"tls://{names.address}")
    assert "the peer ended the connection; check that it speaks TLS" in text


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer speaks HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "the peer speaks TLS, and this side does not"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "tls://host:port"),
    ],
)
async def test_another_protocol_is_named(data: bytes, said: str) -> None:
    """A wrong port would be reported as a frame of 1.2 GB."""
    async with responding(data) as address:
        assert said in (text := await text_of_a_send(address))
        assert address in text


async def test_a_silent_server_is_named() -> None:
    """The error would not name which of many servers is silent."""
    async with one_broker() as (producer, broker, names):
        await producer.send(MESSAGE)
        broker.script = silent
        with pytest.raises(
            RequestTimeout, match=f"{broker.address} did not respond in time; the request may"
        ):
            await producer.send(MESSAGE, timeout_ms=50)
        names.script = lambda _channel, _request: None
        with pytest.raises(RequestTimeout) as caught:
            await producer.send(Message("U", b"x"), timeout_ms=50)
        text = "timed out after 50 ms waiting for the route of topic 'U'; the message was not sent"
        assert str(caught.value) == text
        await names.until(lambda: len(names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC)) == 3)


async def test_a_silent_name_server_is_named() -> None:
    """An error would say both that the message was not sent and that it may be stored."""
    async with Names() as names:
        names.script = lambda _channel, _request: None
        client = ClientConfig(namesrv=names.address, request_timeout_ms=50)
        async with not_waiting(Producer("g", client=client)) as producer:
            with pytest.raises(RocketError) as caught:
                await producer.send(MESSAGE)
        text = f"name server {names.address} did not respond within 50 ms; check that it is a name server"
        assert str(caught.value) == text
        assert caught.value.outcome is Outcome.NOT_SENT


@pytest.mark.parametrize("namesrv", ["http://127.0.0.1:9876", "127.0.0.1:9876;rocketmq://127.0.0.1:1"])
async def test_an_unknown_scheme_is_rejected_at_once(namesrv: str) -> None:
    """The mistake would be reported only at the first send, as a failed connection."""
    with pytest.raises(ConfigInvalid, match="no transport for"):
        await Producer("g", namesrv).start()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (
            OSError(f"Multiple exceptions: [Errno {errno.ECONNREFUSED}] A, [Errno {errno.ECONNREFUSED}] B"),
            "connection refused",
        ),
        (OSError(-2, "Name or service not known"), "Name or service not known"),
        (ConnectionResetError(), "the peer ended the connection"),
        (OSError(), "OSError"),
        (ssl.SSLError(1, "[SSL: CERTIFICATE] certificate has expired"), "certificate has expired"),
        (UnicodeError("label too long"), "label too long"),
    ],
)
def test_reasons(error: OSError | UnicodeError, said: str) -> None:
    """A reason would be empty, or a tuple and a number."""
    assert said in _reason(error, Address("tcp", "127.0.0.1", 1))
    if isinstance(error, ConnectionResetError):
        assert "TLS" in _reason(error, Address("tls", "127.0.0.1", 1))


async def send(producer: Producer) -> None:
    """Start a producer and send by it."""
    async with producer:
        await producer.send(MESSAGE)


async def read_missing_accounts(path: Path) -> None:
    """Start a broker whose file of accounts is missing."""
    listen = ListenConfig(address=Address("tcp", "127.0.0.1"), acl_file=path / "none.yml")
    await NameServer(NamesrvConfig(listen=listen)).start()


MISTAKES: dict[str, Callable[[Path], object]] = {
    "a wrong port": lambda _: send(Producer("g", "127.0.0.1:1")),
    "an unknown host": lambda _: send(Producer("g", "no-such-host.invalid:9876")),
    "a port that cannot be": lambda _: Producer("g", "127.0.0.1:99999").start(),
    "a missing extra": lambda _: send(
        Producer("g", "embedded:", config=ProducerConfig(compression=CompressionConfig(type="zstd")))
    ),
    "a text that is not Unicode": lambda _: Message("T", b"x", keys="\ud800"),
    "an id that is none": lambda _: view("no id"),
    "a wrong setting": lambda _: load_broker_config(overrides={"listenPort": "many"}),
    "no room": lambda _: fill(),
    "no accounts": read_missing_accounts,
}


async def view(message_id: str) -> None:
    """Query a message."""
    async with AdminClient("embedded:") as admin:
        await admin.view_message(message_id)


async def fill() -> None:
    """Send more than there is room for."""
    async with one_broker(silent, ProducerConfig(max_in_flight=1)) as (producer, _, _):
        producer.send_nowait(MESSAGE, timeout_ms=300).add_done_callback(lambda done: done.exception())
        await producer.send(MESSAGE, timeout_ms=20)


def expect_short(error: RocketError) -> None:
    """Check that a traceback shows one error, and that it fits a screen."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    assert [line for line in lines if line.startswith("Traceback")] == ["Traceback (most recent call last):"]
    assert len(lines) <= 30, "\n".join(lines)


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
async def test_the_traceback_of_a_mistake_is_short(
    mistake: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The helpful sentence would be below 60 lines of other exceptions."""
    monkeypatch.setitem(sys.modules, "zstandard", None)

    async def make() -> None:
        if inspect.isawaitable(made := mistake(tmp_path)):
            await made

    with pytest.raises(RocketError) as caught:
        await make()
    expect_short(caught.value)


async def test_clients_read_the_variables_of_the_command(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program would use another cluster than the command rocketpy beside it."""
    monkeypatch.setenv("ROCKETPY_NAMESRV", cluster.namesrv_address)
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    async with AdminClient() as admin:
        assert len(await admin.brokers.list()) == 1
    monkeypatch.delenv("ROCKETPY_NAMESRV")
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:1 cannot be reached"):
        await AdminClient().start()
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(ConfigInvalid, match="set ROCKETPY_NAMESRV or NAMESRV_ADDR"):
        await AdminClient().start()


async def test_a_blocked_event_loop_is_named_as_the_cause() -> None:
    """A user would search the broker for a delay that the program itself has caused."""
    async with one_broker() as (producer, broker, _):
        await producer.send(MESSAGE)
        broker.script = silent
        sending = asyncio.create_task(producer.send(MESSAGE, timeout_ms=50))
        for _ in range(5):
            await asyncio.sleep(0)  # the request is written
        time.sleep(0.5)  # noqa: ASYNC251 - the mistake
        with pytest.raises(RequestTimeout, match=r"event loop was blocked for at least 0\.\d s"):
            await sending
        sending = asyncio.create_task(producer.send(Message("Other", b"x"), timeout_ms=50))
        await asyncio.sleep(0)  # it waits for the route
        time.sleep(0.5)  # noqa: ASYNC251 - the mistake
        with pytest.raises(RequestTimeout, match=r"route of topic 'Other'; the event loop was blocked for"):
            await sending
