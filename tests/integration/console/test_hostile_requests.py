"""Hostile connections and malformed requests at a console on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from rocketpy.config import ClientConfig
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_cli.console import connections
from rocketpy_cli.console.server import serve
from rocketpy_cli.console.settings import ConsoleSettings
from tests.waiting import LIMIT_S

TOKEN = "a-token-of-this-test"


@pytest.fixture
async def port(cluster: EmbeddedCluster) -> AsyncIterator[int]:
    """The port of a console that serves until the end of the test."""
    links: asyncio.Queue[str] = asyncio.Queue()
    client = ClientConfig(namesrv=cluster.namesrv_address)
    settings = ConsoleSettings(client=client, cluster="c", token=TOKEN, port=0)
    serving = asyncio.create_task(serve(settings, links.put_nowait))
    try:
        link = await links.get()
        yield int(link.partition("/?")[0].rpartition(":")[2])
    finally:
        serving.cancel()
        await asyncio.wait({serving})


async def ask(port: int, request: bytes) -> bytes:
    """All bytes of the response, until the console closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        async with asyncio.timeout(LIMIT_S):
            return await reader.read()
    finally:
        writer.close()


def get(port: int, target: str, *headers: str) -> bytes:
    """A GET request that closes its connection."""
    lines = [f"GET {target} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


async def test_half_requests_do_not_keep_others_out(port: int) -> None:
    """Any program of the machine could make the console respond 503 to everybody."""
    async with AsyncExitStack() as opened:
        for number in range(connections.CONNECTIONS_MAX + 30):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            opened.callback(writer.close)
            writer.write(b"GET / HTT" if number % 2 else b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le")
        assert (await ask(port, get(port, f"/?token={TOKEN}"))).startswith(b"HTTP/1.1 303")


async def test_a_half_request_ends(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without a complete request would be kept as long as its peer likes."""
    monkeypatch.setattr(connections, "_REQUEST_S", 0.05)
    assert await ask(port, b"GET / HTTP/1.1\r\nHost: ") == b""


@pytest.mark.parametrize(
    "target",
    ["//host.example/", "///host.example", "/\\host.example", "//host.example/..", "/%5Chost.example"],
)
async def test_the_link_with_the_token_stays_at_the_console(port: int, target: str) -> None:
    """A link with the token could lead to the page of somebody else."""
    response = await ask(port, get(port, f"{target}?token={TOKEN}"))
    (location,) = (line for line in response.split(b"\r\n") if line.lower().startswith(b"location:"))
    assert location.partition(b":")[2].strip() in {
        b"/",
        b"/host.example",
        b"/host.example/",
        b"/host.example/..",
    }


async def test_malformed_requests_get_a_response_and_no_traceback(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Anyone who reaches the port could fill the log with tracebacks."""
    host = f"Host: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode()
    requests = [
        b"nonsense\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\n" + host,
        b"GET /%ff%fe?token=%ff HTTP/1.1\r\n" + host,
        b"GET /?token=%ED%A0%80 HTTP/1.1\r\n" + host,
        b"GET http://[ HTTP/1.1\r\n" + host,
        b"GET @evil:99999/ HTTP/1.1\r\n" + host,
        b"GET /?token=" + TOKEN.encode() + b" HTTP/1.1\r\nHost: [\r\nConnection: close\r\n\r\n",
        b"GET :99999999/?token=" + TOKEN.encode() + b" HTTP/1.1\r\n" + host,
        b"GET / HTTP/1.1\r\nHost: [::1\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nCookie: \xff=\xfe; =;;=\r\n" + host,
        b"OPTIONS * HTTP/1.1\r\n" + host,
        b"CONNECT evil:443 HTTP/1.1\r\n" + host,
        b"POST /send HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + host + b"zz\r\n",
        b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + host,
    ]
    for request in requests:
        response = await ask(port, request)
        status = response[:12].decode()
        assert status.startswith(("HTTP/1.1 4", "HTTP/1.1 303")), (request[:60], response[:200])
    assert "Traceback" not in caplog.text
    lines = [record.getMessage() for record in caplog.records if record.name.endswith(".http")]
    assert len(lines) <= len(set(lines))
