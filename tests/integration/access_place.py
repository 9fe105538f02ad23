"""A broker and a name server with access control, and accounts that own different topics and groups."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
import pytest

from rocketpy.config import Credentials
from rocketpy.protocol.bodies import HeartbeatData, ProducerData
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.protocol.remoting.acl import Signer
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.transport import Address
from rocketpy_broker import Broker, NameServer, load_broker_config, load_namesrv_config
from tests.integration.raw_client import RawClient
from tests.integration.small import SMALL

ACCOUNTS = """
accounts:
- {accessKey: my-account, secretKey: my-secret, defaultTopicPerm: DENY, defaultGroupPerm: DENY,
   topicPerms: [Mine=PUB|SUB, Shared=PUB|SUB], groupPerms: [mygroup=PUB|SUB]}
- {accessKey: other-account, secretKey: other-secret, defaultTopicPerm: DENY, defaultGroupPerm: DENY,
   topicPerms: [Foreign=PUB|SUB, Shared=PUB|SUB], groupPerms: [theirs=PUB|SUB]}
- {accessKey: no-rights, secretKey: no-secret, defaultTopicPerm: DENY, defaultGroupPerm: DENY}
- {accessKey: all-defaults, secretKey: all-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: PUB|SUB}
- {accessKey: operator, secretKey: operator-secret, admin: true}
"""
SIGNERS = {
    "mine": Signer("my-account", "my-secret"),
    "other": Signer("other-account", "other-secret"),
    "no rights": Signer("no-rights", "no-secret"),
    "defaults": Signer("all-defaults", "all-secret"),
    "operator": Signer("operator", "operator-secret"),
    "wrong": Signer("operator", "wrong-secret"),
}

T = TypeVar("T")


class Sent(NamedTuple):
    """Where a message was stored."""

    offset: int
    queue_offset: int
    msg_id: str


class Servers:
    """A broker and its name server. conf: lines for both of their files."""

    def __init__(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, *, conf: str = "", settings: Mapping[str, str] = {}
    ) -> None:
        self._path, self._monkeypatch = path, monkeypatch
        self._conf, self._settings = f"aclEnable=true\nlistenPort=0\n{conf}", dict(settings)
        self.broker: Broker
        self.name_server: NameServer

    @property
    def address(self) -> Address:
        """Address of the broker."""
        return self.broker.address

    @property
    def names(self) -> Address:
        """Address of the name server."""
        return self.name_server.address

    async def __aenter__(self) -> Self:
        path = self._path
        (path / "plain_acl.yml").write_text(ACCOUNTS)
        (path / "namesrv.conf").write_text(f"{self._conf}kvConfigPath={path}/kv.json\n")
        (path / "broker.conf").write_text(self._conf)
        self.name_server = NameServer(load_namesrv_config(path / "namesrv.conf"))
        await self.name_server.start()
        settings = {**SMALL, "storePathRootDir": str(path / "store"), "namesrvAddr": str(self.names)}
        with self._monkeypatch.context() as environment:
            environment.setenv("ROCKETMQ_ACCESS_KEY", "operator")
            environment.setenv("ROCKETMQ_SECRET_KEY", "operator-secret")
            config = load_broker_config(path / "broker.conf", {**settings, **self._settings})
        self.broker = Broker(config)
        await self.broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.broker.close()
        await self.name_server.close()

    async def ask(
        self,
        by: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        at: Address | None = None,
    ) -> Command:
        """The response to one request on a connection of its own. by: an account; empty for no account."""
        async with await RawClient.open(at or self.address) as client:
            return await asked(client, by, code, fields, body)

    async def send(self, by: str, topic: str, body: bytes = b"x", **properties: str) -> Sent:
        """Store one message and return where it is."""
        return await self._store(by, send_fields(topic, **properties), body)

    async def send_copy(self, by: str, group: str, topic: str, **header: int) -> Sent:
        """Store a copy for a group, as a consumer whose send-back failed. topic: its RETRY_TOPIC."""
        return await self._store(by, copy_fields(group, topic, **header), b"copy")

    async def _store(self, by: str, fields: Mapping[str, str], body: bytes) -> Sent:
        response = await self.ask(by, RequestCode.SEND_MESSAGE_V2, fields, body)
        assert response.code == 0, response
        header = response.header_as(SendMessageResponseHeader)
        return Sent(decode_message_id(header.msg_id)[1], header.queue_offset, header.msg_id)

    async def send_half(self, by: str, topic: str, group: str, body: bytes = b"half") -> Sent:
        """Store a half message."""
        return await self.send(by, topic, body, TRAN_MSG="true", PGROUP=group, UNIQ_KEY=f"id-of-{topic}")


class Thread:
    """An event loop in a thread, for servers that many tests share."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        """Stop the event loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def keys(account: str, *, version: int = 1) -> Credentials:
    """Credentials for clients. account: an access key."""
    secret = {"my-account": "my-secret", "other-account": "other-secret", "operator": "operator-secret"}
    return Credentials(
        access_key=account, secret_key=secret[account], signature_version=1 if version == 1 else 2
    )


def send_fields(topic: str, **properties: str) -> dict[str, str]:
    """The ext fields of SEND_MESSAGE_V2."""
    return send_header(topic, properties).ext_fields()


def copy_fields(group: str, topic: str, **header: int) -> dict[str, str]:
    """The ext fields of a copy that a consumer sends to its retry topic. topic: its RETRY_TOPIC."""
    copy = send_header(f"%RETRY%{group}", {"RETRY_TOPIC": topic, "ORIGIN_MESSAGE_ID": "0" * 32})
    return msgspec.structs.replace(copy, **{"max_reconsume_times": 16, **header}).ext_fields()


def send_header(topic: str, properties: Mapping[str, str]) -> SendMessageRequestHeaderV2:
    """The header of a send to queue 0."""
    return SendMessageRequestHeaderV2(
        producer_group="g", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=time.time_ns() // 1_000_000, flag=0, properties=props.encode(properties),
    )  # fmt: skip


def producer_beat(client_id: str, group: str) -> bytes:
    """The body of a heartbeat of one producer."""
    return HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name=group)]).encode()


async def asked(
    client: RawClient, by: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
) -> Command:
    """The response to one request on this connection."""
    request = Command.request(code, None, body)
    request.ext = SIGNERS[by].sign(fields or {}, body, code=code) if by else dict(fields or {})
    return await client.call_frame(encode_command(request))


def is_refused(response: Command) -> bool:
    """Whether access control rejected the request, and not a handler."""
    return (response.remark or "").startswith("org.apache.rocketmq.acl.common.AclException: ")
