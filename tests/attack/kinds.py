"""The kinds of connections: harmless ones, and what hostile ones do. Each is drawn from a seed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
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
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    PutKVConfigRequestHeader,
    RegisterBrokerRequestHeader,
    SendMessageRequestHeaderV2,
)
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.protocol.remoting.command import Command, encode_command
from tests.attack.clients import TOPIC

_NO_FILTER: Final = "*"
_EMPTY: Final = "TBW102"
"""A topic that never has messages."""
_LINGER_S: Final = 1.0


class Visit:
    """One connection to one of the ports. addresses: by name, see `tests.attack.servers`."""

    def __init__(self, addresses: Mapping[str, str], draw: random.Random) -> None:
        self._addresses = addresses
        self.draw = draw
        self._socket = socket.socket()

    async def to(self, name: str) -> None:
        """Connect. Raises OSError."""
        host, _, port = self._addresses[name].rpartition(":")
        self._socket.setblocking(False)
        # Closed by a reset, or many thousand connections would keep their ports for a minute each.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.get_running_loop().sock_connect(self._socket, (host, int(port)))

    async def say(self, data: bytes) -> None:
        """Send. Raises OSError, TimeoutError when the server stops reading."""
        async with asyncio.timeout(_LINGER_S * 5):
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def ask(self, code: int, *, header: object = None, body: bytes = b"") -> None:
        """Send a request."""
        await self.say(encode_command(Command.request(code, header, body)))  # type: ignore[arg-type]

    async def hear(self, seconds: float = _LINGER_S) -> bytes:
        """Something that the server says; nothing when it is silent for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().sock_recv(self._socket, 1 << 16)
        return b""

    async def linger(self) -> None:
        """Keep the connection open for a while, and do nothing."""
        await asyncio.sleep(self.draw.uniform(0, _LINGER_S))

    def close(self) -> None:
        """End it."""
        self._socket.close()

    def name(self) -> str:
        """Of something that nobody has."""
        return f"attack-{self.draw.getrandbits(48):x}"


async def harmless(visit: Visit) -> None:
    """Ask for a route, or say that one produces, and read the answer."""
    if visit.draw.random() < 0.5:
        await visit.to("namesrv")
        await visit.ask(RequestCode.GET_ROUTEINTO_BY_TOPIC, header=GetRouteInfoRequestHeader(topic=TOPIC))
    else:
        await visit.to("broker")
        beat = HeartbeatData(client_id=visit.name(), producer_data_set=[ProducerData(group_name="harmless")])
        await visit.ask(RequestCode.HEART_BEAT, body=beat.encode())
    await visit.hear(10)
    await visit.linger()


def _any_port(visit: Visit) -> str:
    return visit.draw.choice(["namesrv", "broker", "guarded", "peer"])


async def _half_frame(visit: Visit) -> None:
    """Announce 12 MiB, and send a part."""
    await visit.to(_any_port(visit))
    size = visit.draw.choice([1, 7, 8, 100, 5000, 60_000, 60_000, 1 << 20])
    await visit.say((struct.pack(">iI", 12 << 20, 100) + bytes(size))[:size])
    await visit.linger()


async def _garbage(visit: Visit) -> None:
    await visit.to(_any_port(visit))
    await visit.say(visit.draw.randbytes(visit.draw.randint(1, 2000)))
    await visit.hear()


async def _slow(visit: Visit) -> None:
    """Send a request byte by byte, and never its end."""
    await visit.to(_any_port(visit))
    request = Command.request(RequestCode.GET_BROKER_CONFIG)
    for byte in encode_command(request)[: visit.draw.randint(2, 20)]:
        await visit.say(bytes([byte]))
        await asyncio.sleep(0.05)


async def _flood(visit: Visit) -> None:
    """Many requests at once, and no interest in the answers."""
    await visit.to("broker")
    code = visit.draw.choice([RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO, 9999])
    await visit.say(encode_command(Command.request(code)) * visit.draw.randint(2, 60))
    await visit.linger()


def _pull(group: str, *, topic: str = TOPIC, text: str | None = _NO_FILTER, kind: str = "TAG") -> bytes:
    header = PullMessageRequestHeader(
        consumer_group=group, topic=topic, queue_id=0, queue_offset=0, max_msg_nums=32,
        sys_flag=PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION, commit_offset=0,
        suspend_timeout_millis=60_000, sub_version=0, subscription=text, expression_type=kind,
    )  # fmt: skip
    return encode_command(Command.request(RequestCode.PULL_MESSAGE, header))


async def _greedy_pulls(visit: Visit) -> None:
    """Pulls that are held, each with a long list of tags."""
    await visit.to("broker")
    for _ in range(visit.draw.randint(1, 8)):
        digits = visit.draw.randbytes(5 * visit.draw.choice([10, 300, 1350, 3000])).hex()
        tags = "||".join(digits[place : place + 10] for place in range(0, len(digits), 10))
        await visit.say(_pull("attack-held", topic=_EMPTY, text=tags))
    await visit.linger()


async def _unread_answers(visit: Visit) -> None:
    """Pulls that find much, and answers that nobody reads."""
    await visit.to("broker")
    await visit.say(_pull("attack-unread") * visit.draw.randint(5, 40))
    await visit.linger()


async def _idle(visit: Visit) -> None:
    await visit.to(visit.draw.choice(["namesrv", "broker", "guarded", "peer", "ha", "dledger"]))
    await visit.linger()


def _beat(visit: Visit, groups: list[str], text: str) -> bytes:
    wanted = SubscriptionData(topic=TOPIC, sub_string=text, sub_version=1)
    return HeartbeatData(
        client_id=visit.name(),
        consumer_data_set=[
            ConsumerData(group_name=group, subscription_data_set=[wanted]) for group in groups
        ],
    ).encode()


async def _long_subscription(visit: Visit) -> None:
    await visit.to("broker")
    size = visit.draw.choice([1000, 60_000, 900_000])
    await visit.ask(RequestCode.HEART_BEAT, body=_beat(visit, ["attack-long"], "a" * size))
    await visit.hear()


async def _new_groups(visit: Visit) -> None:
    await visit.to("broker")
    groups = [visit.name() for _ in range(visit.draw.choice([1, 3, 100, 3000]))]
    await visit.ask(RequestCode.HEART_BEAT, body=_beat(visit, groups, _NO_FILTER))
    await visit.hear()


async def _new_topics(visit: Visit) -> None:
    await visit.to("broker")
    for _ in range(visit.draw.randint(1, 3)):
        header = SendMessageRequestHeaderV2(
            producer_group="attack", topic=visit.name(), default_topic="TBW102",
            default_topic_queue_nums=65_536, queue_id=0, sys_flag=0, born_timestamp=1, flag=0, properties="",
        )  # fmt: skip
        await visit.ask(RequestCode.SEND_MESSAGE_V2, header=header, body=b"x")
    await visit.hear()


async def _no_rights(visit: Visit) -> None:
    """Requests without, and with a wrong, signature."""
    await visit.to("guarded")
    for code in visit.draw.sample(list(RequestCode), 10):
        request = Command.request(code)
        if visit.draw.random() < 0.5:
            request.ext = {"AccessKey": "attacked", "Signature": visit.name()}
        await visit.say(encode_command(request))
    await visit.hear()


async def _replica_garbage(visit: Visit) -> None:
    await visit.to(visit.draw.choice(["ha", "dledger"]))
    said = visit.draw.choice(
        [bytes(8), struct.pack(">q", 1 << 50), visit.draw.randbytes(300), b"GET / HTTP/1.1\r\n\r\n"]
    )
    await visit.say(said)
    await visit.hear()


async def _open_and_close(visit: Visit) -> None:
    await visit.to(visit.draw.choice(["namesrv", "broker", "guarded", "peer", "ha", "dledger"]))


_BOMBS: Final = (
    "-" * 16_000 + "1 > 0",
    " OR ".join(f"a = {number}" for number in range(600)),
    "(" * 5000 + "a = 1" + ")" * 5000,
)


async def _sql_bomb(visit: Visit) -> None:
    await visit.to("broker")
    await visit.say(_pull("attack-sql", text=visit.draw.choice(_BOMBS), kind="SQL92"))
    await visit.hear()


async def _big_settings(visit: Visit) -> None:
    await visit.to("namesrv")
    value = "v" * visit.draw.choice([1000, 100_000, 900_000])
    header = PutKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key=visit.name(), value=value)
    await visit.ask(RequestCode.PUT_KV_CONFIG, header=header)
    await visit.hear()


async def _false_routes(visit: Visit) -> None:
    """Register a broker whose topic cannot be, until the connection ends."""
    await visit.to("namesrv")
    name = visit.name()
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
    await visit.ask(RequestCode.REGISTER_BROKER, header=header, body=body.encode())
    await visit.hear()


HOSTILE: Final[Mapping[str, Callable[[Visit], Awaitable[None]]]] = {
    "half frames": _half_frame,
    "garbage": _garbage,
    "slow senders": _slow,
    "floods of requests": _flood,
    "greedy held pulls": _greedy_pulls,
    "unread answers": _unread_answers,
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
}
