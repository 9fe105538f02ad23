"""A name server, a broker and its slave with users and policies (ACL 2.0)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from rocketpy import AdminClient, ClientConfig
from rocketpy.config import Credentials
from rocketpy.protocol.remoting.acl import Signer
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.transport import Address
from rocketpy_broker import Broker, NameServer, load_broker_config, load_namesrv_config
from tests.integration.raw_client import RawClient
from tests.integration.small import SMALL

BOSS = ("boss", "boss-secret")


class Servers(NamedTuple):
    """A name server, a broker and its slave, whose users are stored apart."""

    names: NameServer
    broker: Broker
    slave: Broker | None

    def client(self, name: str, password: str, **settings: str) -> ClientConfig:
        """The settings of a client with these keys."""
        keys = Credentials(access_key=name, secret_key=password)
        return ClientConfig(namesrv=str(self.names.address), credentials=keys, **settings)  # type: ignore[arg-type]

    def admin(self, name: str = BOSS[0], password: str = BOSS[1], **settings: str) -> AdminClient:
        """An admin client with these keys."""
        return AdminClient(client=self.client(name, password, **settings))

    async def ask(
        self,
        by: tuple[str, str] | None,
        code: int,
        fields: dict[str, str],
        body: bytes = b"",
        *,
        at: Address | None = None,
    ) -> Command:
        """The response to one request of the broker, or of the server at `at`. by: name and password."""
        request = Command.request(code, None, body)
        request.ext = fields if by is None else Signer(*by).sign(fields, body, code=code)
        async with await RawClient.open(at or self.broker.address) as client:
            return await client.call_frame(encode_command(request))


@asynccontextmanager
async def servers_at(path: Path, *, conf: str = "", has_slave: bool = False) -> AsyncIterator[Servers]:
    """Start them. The users of the master are in config/ below its store, and the name server reads them."""
    users = (
        "authenticationEnabled=true\nauthorizationEnabled=true\n"
        'initAuthenticationUser={"username":"boss","password":"boss-secret"}\n'
        'innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"inner-secret"}\n'
    )
    (path / "namesrv.conf").write_text(
        f"{users}listenPort=0\nkvConfigPath={path}/kv.json\nauthConfigPath={path}/store/config\n"
    )
    names = NameServer(load_namesrv_config(path / "namesrv.conf"))
    await names.start()
    brokers = []
    for store, own in (("store", ""), ("slave", "brokerRole=SLAVE\nbrokerId=1\n"))[: 1 + has_slave]:
        (path / f"{store}.conf").write_text(f"{users}listenPort=0\nhaSecret=shared\n{own}{conf}")
        settings = {**SMALL, "storePathRootDir": str(path / store), "namesrvAddr": str(names.address)}
        brokers.append(Broker(load_broker_config(path / f"{store}.conf", settings)))
        await brokers[-1].start()
    try:
        yield Servers(names, brokers[0], brokers[1] if has_slave else None)
    finally:
        for broker in reversed(brokers):
            await broker.close()
        await names.close()
