"""The kinds of connections: harmless ones and hostile ones. A seed determines each."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import re
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from rocketpy.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    RegisterBrokerBody,
    SubscriptionData,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import (
    GetMaxOffsetRequestHeader,
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    PutKVConfigRequestHeader,
    RegisterBrokerRequestHeader,
    SendMessageRequestHeaderV2,
    UpdateConsumerOffsetRequestHeader,
)
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.protocol.remoting.command import Command, encode_command
from tools.attack.clients import TOPIC

_NO_FILTER: Final = "*"
_EMPTY: Final = "TBW102"
"""A topic that never has messages."""
_LINGER_S: Final = 1.0


class RawConnection:
    """A connection to one of the ports. addresses: of the ports, by the names in `tools.attack.servers`."""

    def __init__(self, addresses: Mapping[str, str], rng: random.Random) -> None:
        self.addresses = addresses
        self.rng = rng
        self._sockets: list[socket.socket] = []

    @property
    def _socket(self) -> socket.socket:
        return self._sockets[-1]

    async def connect(self, name: str) -> None:
        """Connect; a connection that was made before stays open until `close`. Raises OSError."""
        host, _, port = self.addresses[name].rpartition(":")
        self._sockets.append(socket.socket())
        self._socket.setblocking(False)
        # Closed by a reset, or many thousand connections would keep their ports for a minute each.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.get_running_loop().sock_connect(self._socket, (host, int(port)))

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises OSError; TimeoutError if the server stops reading."""
        async with asyncio.timeout(_LINGER_S * 5):
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def request(self, code: int, *, header: object = None, body: bytes = b"") -> None:
        """Send a request."""
        await self.send(encode_command(Command.request(code, header, body)))  # type: ignore[arg-type]

    async def receive(self, seconds: float = _LINGER_S) -> bytes:
        """Return the next bytes from the server; empty if none came in time, or it closed the connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().sock_recv(self._socket, 1 << 16)
        return b""

    async def stay_open(self) -> None:
        """Keep the connection open for a random time, and do nothing."""
        await asyncio.sleep(self.rng.uniform(0, _LINGER_S))

    def close(self) -> None:
        """Close all connections."""
        for one in self._sockets:
            one.close()

    def random_name(self) -> str:
        """Return a name for a topic, group, client or broker that nobody else has."""
        return f"attack-{self.rng.getrandbits(48):x}"


async def harmless(connection: RawConnection) -> None:
    """Request a route, or send a producer's heartbeat, and read the response."""
    if connection.rng.random() < 0.5:
        await connection.connect("namesrv")
        await connection.request(
            RequestCode.GET_ROUTEINTO_BY_TOPIC, header=GetRouteInfoRequestHeader(topic=TOPIC)
        )
    else:
        await connection.connect("broker")
        beat = HeartbeatData(
            client_id=connection.random_name(), producer_data_set=[ProducerData(group_name="harmless")]
        )
        await connection.request(RequestCode.HEART_BEAT, body=beat.encode())
    await connection.receive(10)
    await connection.stay_open()


def _any_port(connection: RawConnection) -> str:
    return connection.rng.choice(["namesrv", "broker", "guarded", "peer"])


async def _half_frame(connection: RawConnection) -> None:
    """Announce 12 MiB, and send a part."""
    await connection.connect(_any_port(connection))
    size = connection.rng.choice([1, 7, 8, 100, 5000, 60_000, 60_000, 1 << 20])
    await connection.send((struct.pack(">iI", 12 << 20, 100) + bytes(size))[:size])
    await connection.stay_open()


async def _garbage(connection: RawConnection) -> None:
    await connection.connect(_any_port(connection))
    await connection.send(connection.rng.randbytes(connection.rng.randint(1, 2000)))
    await connection.receive()


async def _slow(connection: RawConnection) -> None:
    """Send a request byte by byte, and never its end."""
    await connection.connect(_any_port(connection))
    request = Command.request(RequestCode.GET_BROKER_CONFIG)
    for byte in encode_command(request)[: connection.rng.randint(2, 20)]:
        await connection.send(bytes([byte]))
        await asyncio.sleep(0.05)


async def _flood(connection: RawConnection) -> None:
    """Many requests at once, and do not read the responses."""
    await connection.connect("broker")
    code = connection.rng.choice(
        [RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO, 9999]
    )
    await connection.send(encode_command(Command.request(code)) * connection.rng.randint(2, 60))
    await connection.stay_open()


async def _big_tables(connection: RawConnection) -> None:
    """Requests of whole tables, whose responses are not read."""
    await connection.connect(connection.rng.choice(["namesrv", "broker", "broker"]))
    code = connection.rng.choice(
        [
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.GET_ALL_DELAY_OFFSET,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        ]
    )
    await connection.send(encode_command(Command.request(code)) * connection.rng.choice([10, 100, 800]))
    await connection.stay_open()


async def _offsets(connection: RawConnection) -> None:
    """Commit offsets of 20,000 groups that do not consume."""
    await connection.connect("broker")
    for _ in range(connection.rng.choice([1, 10, 200])):
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=f"attack-{connection.rng.randrange(20_000)}",
            topic=TOPIC,
            queue_id=0,
            commit_offset=connection.rng.getrandbits(20),
        )
        await connection.request(RequestCode.UPDATE_CONSUMER_OFFSET, header=header)
    await connection.receive()


def _pull(
    group: str, *, topic: str = TOPIC, text: str | None = _NO_FILTER, kind: str = "TAG", offset: int = 0
) -> bytes:
    header = PullMessageRequestHeader(
        consumer_group=group, topic=topic, queue_id=0, queue_offset=offset, max_msg_nums=32,
        sys_flag=PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION, commit_offset=0,
        suspend_timeout_millis=60_000, sub_version=0, subscription=text, expression_type=kind,
    )  # fmt: skip
    return encode_command(Command.request(RequestCode.PULL_MESSAGE, header))


async def _greedy_pulls(connection: RawConnection) -> None:
    """Pulls that are held, each with a long list of tags."""
    await connection.connect("broker")
    for _ in range(connection.rng.randint(1, 8)):
        digits = connection.rng.randbytes(5 * connection.rng.choice([10, 300, 1350, 3000])).hex()
        tags = "||".join(digits[place : place + 10] for place in range(0, len(digits), 10))
        await connection.send(_pull("attack-held", topic=_EMPTY, text=tags))
    await connection.stay_open()


async def _many_held_pulls(connection: RawConnection) -> None:
    """Pulls with a filter that wait for messages of a topic with messages, on one connection."""
    await connection.connect("broker")
    header = GetMaxOffsetRequestHeader(topic=TOPIC, queue_id=0)
    await connection.request(RequestCode.GET_MAX_OFFSET, header=header)
    end = re.search(rb'"offset":"(\d+)"', await connection.receive())
    if end is not None:
        count = connection.rng.choice([300] * 60 + [30_000])
        await connection.send(_pull("attack-many", text="a||b||c", offset=int(end[1])) * count)
    await connection.stay_open()


async def _unread_responses(connection: RawConnection) -> None:
    """Pulls of many messages whose responses are not read."""
    await connection.connect("broker")
    await connection.send(_pull("attack-unread") * connection.rng.randint(5, 40))
    await connection.stay_open()


async def _idle(connection: RawConnection) -> None:
    await connection.connect(connection.rng.choice(["namesrv", "broker", "guarded", "peer", "ha", "dledger"]))
    await connection.stay_open()


def _beat(connection: RawConnection, groups: list[str], text: str) -> bytes:
    wanted = SubscriptionData(topic=TOPIC, sub_string=text, sub_version=1)
    return HeartbeatData(
        client_id=connection.random_name(),
        consumer_data_set=[
            ConsumerData(group_name=group, subscription_data_set=[wanted]) for group in groups
        ],
    ).encode()


async def _long_subscription(connection: RawConnection) -> None:
    await connection.connect("broker")
    size = connection.rng.choice([1000, 60_000, 900_000])
    await connection.request(RequestCode.HEART_BEAT, body=_beat(connection, ["attack-long"], "a" * size))
    await connection.receive()


async def _new_groups(connection: RawConnection) -> None:
    await connection.connect("broker")
    groups = [connection.random_name() for _ in range(connection.rng.choice([1, 3, 100, 3000]))]
    await connection.request(RequestCode.HEART_BEAT, body=_beat(connection, groups, _NO_FILTER))
    await connection.receive()


async def _new_topics(connection: RawConnection) -> None:
    await connection.connect("broker")
    for _ in range(connection.rng.randint(1, 3)):
        header = SendMessageRequestHeaderV2(
            producer_group="attack", topic=connection.random_name(), default_topic="TBW102",
            default_topic_queue_nums=65_536, queue_id=0, sys_flag=0, born_timestamp=1, flag=0, properties="",
        )  # fmt: skip
        await connection.request(RequestCode.SEND_MESSAGE_V2, header=header, body=b"x")
    await connection.receive()


async def _no_rights(connection: RawConnection) -> None:
    """Requests without, and with a wrong, signature."""
    await connection.connect("guarded")
    for code in connection.rng.sample(list(RequestCode), 10):
        request = Command.request(code)
        if connection.rng.random() < 0.5:
            request.ext = {"AccessKey": "attacked", "Signature": connection.random_name()}
        await connection.send(encode_command(request))
    await connection.receive()


async def _replica_garbage(connection: RawConnection) -> None:
    await connection.connect(connection.rng.choice(["ha", "dledger"]))
    data = connection.rng.choice(
        [bytes(8), struct.pack(">q", 1 << 50), connection.rng.randbytes(300), b"GET / HTTP/1.1\r\n\r\n"]
    )
    await connection.send(data)
    await connection.receive()


async def _open_and_close(connection: RawConnection) -> None:
    await connection.connect(connection.rng.choice(["namesrv", "broker", "guarded", "peer", "ha", "dledger"]))


_BOMBS: Final = (
    "-" * 16_000 + "1 > 0",
    " OR ".join(f"a = {number}" for number in range(600)),
    "(" * 5000 + "a = 1" + ")" * 5000,
)


async def _sql_bomb(connection: RawConnection) -> None:
    await connection.connect("broker")
    await connection.send(_pull("attack-sql", text=connection.rng.choice(_BOMBS), kind="SQL92"))
    await connection.receive()


async def _big_settings(connection: RawConnection) -> None:
    await connection.connect("namesrv")
    value = "v" * connection.rng.choice([1000, 100_000, 900_000])
    header = PutKVConfigRequestHeader(
        namespace="ORDER_TOPIC_CONFIG", key=connection.random_name(), value=value
    )
    await connection.request(RequestCode.PUT_KV_CONFIG, header=header)
    await connection.receive()


async def _false_routes(connection: RawConnection) -> None:
    """Register a broker with an invalid topic, until the connection ends."""
    await connection.connect("namesrv")
    name = connection.random_name()
    table = {name: TopicConfig(topic_name=name, write_queue_nums=2**31 - 1, read_queue_nums=1)}
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigSerializeWrapper(topic_config_table=table)
    )
    header = RegisterBrokerRequestHeader(
        broker_name=name,
        broker_addr="127.0.0.1:1",
        cluster_name="attack",
        ha_server_addr="127.0.0.1:2",
        broker_id=0,
    )
    await connection.request(RequestCode.REGISTER_BROKER, header=header, body=body.encode())
    await connection.receive()


@functools.cache
def _client_hello() -> bytes:
    """The first bytes of a TLS handshake."""
    outgoing = ssl.MemoryBIO()
    begun = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        begun.do_handshake()
    return outgoing.read()


async def _half_handshake(connection: RawConnection) -> None:
    """Begin TLS handshakes, and never continue."""
    hello = _client_hello()
    for _ in range(connection.rng.choice([1, 10, 60])):
        await connection.connect(connection.rng.choice(["namesrv", "broker", "guarded"]))
        await connection.send(hello[: connection.rng.randint(1, len(hello))])
    await connection.stay_open()


def _http(connection: RawConnection, target: bytes, more: bytes = b"\r\n", method: bytes = b"GET") -> bytes:
    host = connection.addresses["console"].encode()
    return b"%b %b HTTP/1.1\r\nHost: %b\r\n%b" % (method, target, host, more)


async def _half_console_requests(connection: RawConnection) -> None:
    """Send a part of each request; the console has at most 200 connections."""
    form = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\ncsrf="
    for _ in range(connection.rng.choice([1, 10, 60])):
        await connection.connect("console")
        request = connection.rng.choice(
            [_http(connection, b"/"), _http(connection, b"/send", form, b"POST") + b"\r\n"]
        )
        await connection.send(request[: connection.rng.randrange(len(request) - 2)])
    await connection.stay_open()


async def _malformed_console_requests(connection: RawConnection) -> None:
    await connection.connect("console")
    name = connection.random_name().encode()
    await connection.send(
        connection.rng.choice(
            [
                connection.rng.randbytes(connection.rng.randint(1, 2000)) + b"\r\n\r\n",
                b"GET / HTTP/1.1\r\n\r\n",
                _http(connection, b"//%b/?token=%b" % (name, name)),
                _http(connection, b"/%FF%00?token=%FF%FE"),
                _http(connection, b"/", b"Cookie: \xff=\xfe; " + name + b"\r\n\r\n"),
                _http(connection, b"/", b"X: " + b"x" * 100_000 + b"\r\n\r\n"),
                _http(connection, b"/send", b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"POST"),
                _http(connection, b"/send", b"Content-Length: -1\r\n\r\n", b"POST"),
                _http(connection, b"/", b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n"),
                _http(connection, b"/") * 50,
            ]
        )
    )
    await connection.receive()


HOSTILE: Final[Mapping[str, Callable[[RawConnection], Awaitable[None]]]] = {
    "half frames": _half_frame,
    "garbage": _garbage,
    "slow senders": _slow,
    "floods of requests": _flood,
    "greedy held pulls": _greedy_pulls,
    "unread responses": _unread_responses,
    "idle": _idle,
    "long subscriptions": _long_subscription,
    "new groups": _new_groups,
    "new topics": _new_topics,
    "no rights": _no_rights,
    "garbage for replicas": _replica_garbage,
    "opened and closed": _open_and_close,
    "SQL bombs": _sql_bomb,
    "big settings": _big_settings,
    "false routes": _false_routes,
    "big tables": _big_tables,
    "offsets": _offsets,
    "many held pulls": _many_held_pulls,
    "half TLS handshakes": _half_handshake,
    "half requests to the console": _half_console_requests,
    "malformed requests to the console": _malformed_console_requests,
}
