"""TLS: name server and broker serve it in each mode, and the client uses it for both."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from rocketpy import ClientConfig, Message, Producer, PullConsumer
from rocketpy.errors import ConfigInvalid, RocketError
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.command import Command
from rocketpy_broker import Broker, NameServer, load_broker_config, load_namesrv_config
from tests.integration.raw_client import RawClient
from tests.mqproducer.place import eventually

SMALL = {"mappedFileSizeCommitLog": "1048576", "maxHashSlotNum": "1000", "maxIndexNum": "4000"}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Who signs the certificates of this test; making one takes a moment."""
    return trustme.CA()


def tls_settings(authority: trustme.CA, directory: Path, mode: str) -> str:
    """The text of a tls.properties, and its files in a directory."""
    cert = authority.issue_cert("127.0.0.1", common_name="127.0.0.1")
    cert.private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    return (
        f"tls.server.mode={mode}\ntls.server.certPath={directory}/server.pem\n"
        f"tls.server.keyPath={directory}/server.pem\ntls.client.trustCertPath={directory}/ca.pem\n"
    )


@asynccontextmanager
async def servers(directory: Path, tls: str) -> AsyncIterator[tuple[NameServer, Broker]]:
    """A name server and a broker whose files name one tls.properties."""
    (directory / "tls.properties").write_text(tls)
    common = f"tls.config.file={directory}/tls.properties\nlistenPort=0\n"
    (directory / "namesrv.conf").write_text(f"{common}kvConfigPath={directory}/kv.json\n")
    names = NameServer(load_namesrv_config(directory / "namesrv.conf"))
    await names.start()
    try:
        (directory / "broker.conf").write_text(common)
        settings = {**SMALL, "storePathRootDir": f"{directory}/store", "namesrvAddr": str(names.address)}
        broker = Broker(load_broker_config(directory / "broker.conf", settings))
        await broker.start()
        try:
            yield names, broker
        finally:
            await broker.close()
    finally:
        await names.close()


async def send_and_read(namesrv: str, context: ssl.SSLContext | None) -> list[bytes]:
    """Send a message to a new topic and read it; the bodies that are there."""
    client = ClientConfig(namesrv=namesrv, ssl=context, instance_name=namesrv[:3])
    async with Producer("p", client=client) as producer, PullConsumer("c", client=client) as consumer:
        result = await producer.send(Message("T", b"x" * 100_000))
        return [message.body[:1] for message in (await consumer.pull(result.queue, 0)).messages]


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def is_answered(address: str) -> bool:
    """Whether a request without TLS gets an answer."""
    try:
        async with await RawClient.open(address) as client:
            return (await client.call(RequestCode.GET_BROKER_CLUSTER_INFO)).is_response
    except OSError:
        return False


@pytest.mark.parametrize("mode", ["enforcing", "permissive"])
async def test_clients_with_tls_are_served(tmp_path: Path, authority: trustme.CA, mode: str) -> None:
    """Nobody could keep others on the network from reading messages."""
    async with servers(tmp_path, tls_settings(authority, tmp_path, mode)) as (names, broker):
        assert broker.health().registered_at == (str(names.address),)
        assert await send_and_read(str(names.address), trusting(authority)) == [b"x"]
        with pytest.raises(RocketError):
            await send_and_read(str(names.address), ssl.create_default_context())


async def test_a_slave_copies_its_master_by_tls(tmp_path: Path, authority: trustme.CA) -> None:
    """A slave of a master that serves TLS only would not know its topics, and so serve no consumer."""
    async with servers(tmp_path, tls_settings(authority, tmp_path, "enforcing")) as (names, master):
        await send_and_read(str(names.address), trusting(authority))
        settings = {
            **SMALL, "storePathRootDir": f"{tmp_path}/slave", "namesrvAddr": str(names.address),
            "brokerRole": "SLAVE", "brokerId": "1",
        }  # fmt: skip
        slave = Broker(load_broker_config(tmp_path / "broker.conf", settings))
        await slave.start()

        async def is_there() -> bool | None:
            log = slave.store.max_physical_offset
            return (slave.topics.get("T") is not None and log == master.store.max_physical_offset) or None

        try:
            await eventually(is_there)
        finally:
            await slave.close()


@pytest.mark.parametrize(("mode", "served"), [("enforcing", False), ("permissive", True)])
async def test_clients_without_tls(tmp_path: Path, authority: trustme.CA, mode: str, served: bool) -> None:
    """A server that shall serve TLS only would read what comes in the clear, or shut out old clients."""
    async with servers(tmp_path, tls_settings(authority, tmp_path, mode)) as (names, broker):
        plain = f"127.0.0.1:{names.address.port}"
        assert await is_answered(plain) is served
        assert await is_answered(broker.advertised_address) is served
        assert await is_answered(f"127.0.0.1:{broker.address.port - 2}") is served
        if served:
            assert await send_and_read(plain, None) == [b"x"]


async def test_tls_can_be_off(tmp_path: Path, authority: trustme.CA) -> None:
    """The mode in a tls.properties would not count."""
    async with servers(tmp_path, tls_settings(authority, tmp_path, "disabled")) as (names, _):
        assert names.address.scheme == "tcp"
        assert await send_and_read(str(names.address), None) == [b"x"]


async def test_a_client_certificate_can_be_wanted(tmp_path: Path, authority: trustme.CA) -> None:
    """Whoever trusts the server's certificate could connect."""
    tls = tls_settings(authority, tmp_path, "enforcing") + (
        f"tls.server.need.client.auth=require\ntls.server.trustCertPath={tmp_path}/ca.pem\n"
        f"tls.client.certPath={tmp_path}/server.pem\ntls.client.keyPath={tmp_path}/server.pem\n"
    )
    async with servers(tmp_path, tls) as (names, broker):
        assert broker.health().registered_at == (str(names.address),)
        with pytest.raises(RocketError):
            await send_and_read(str(names.address), trusting(authority))
        context = trusting(authority)
        authority.issue_cert("client").configure_cert(context)
        assert await send_and_read(str(names.address), context) == [b"x"]


async def test_a_permissive_port_does_not_wait_for_ever(tmp_path: Path, authority: trustme.CA) -> None:
    """A stranger who says nothing, or nonsense, would hold a connection and in the end all of them."""
    tls = tls_settings(authority, tmp_path, "permissive") + "frameTimeoutMillis=200\n"
    async with servers(tmp_path, tls) as (names, _):
        for said in (b"", b"\x16\x03\x01", b"\x16nonsense" * 10):
            reader, writer = await asyncio.open_connection("127.0.0.1", names.address.port)
            writer.write(said)
            async with asyncio.timeout(10):
                assert len(await reader.read()) < 100  # an alert, at most
            writer.close()
        assert await is_answered(f"127.0.0.1:{names.address.port}")


async def test_a_permissive_port_does_not_listen_to_one_host_only(
    tmp_path: Path, authority: trustme.CA
) -> None:
    """One host could open connections, say nothing on them, and leave no place for others."""
    tls = tls_settings(authority, tmp_path, "permissive") + "maxConnectionsPerHost=3\n"
    (tmp_path / "namesrv.conf").write_text(f"{tls}listenPort=0\n")
    names = NameServer(load_namesrv_config(tmp_path / "namesrv.conf"))
    await names.start()
    opened = [await asyncio.open_connection("127.0.0.1", names.address.port) for _ in range(4)]
    async with asyncio.timeout(10):
        assert await opened[3][0].read() == b""
    for _, writer in opened:
        writer.close()
    await names.close()


def test_old_versions_are_not_spoken(tmp_path: Path, authority: trustme.CA) -> None:
    """Traffic could be read by who breaks TLS 1.1."""
    path = tmp_path / "broker.conf"
    path.write_text(tls_settings(authority, tmp_path, "enforcing"))
    context = load_broker_config(path).listen.options.ssl
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("settings", "is_allowed"),
    [
        ("", False),
        ("insecure=true\n", True),
        ("TLS enforcing", True),
        ("TLS permissive", False),
        ("TLS permissive aclEnable=true\n", True),
        ("TLS disabled", False),
        ("aclEnable=true\n", True),
    ],
)
def test_other_machines_are_served_by_asking_for_it(
    tmp_path: Path, authority: trustme.CA, settings: str, is_allowed: bool
) -> None:
    """A broker would be open to the whole network because nobody thought of it."""
    text = settings
    if settings.startswith("TLS"):
        _, mode, *more = settings.split(maxsplit=2)
        text = tls_settings(authority, tmp_path, mode) + "".join(more)
    path = tmp_path / "namesrv.conf"
    path.write_text(f"bindAddress=192.0.2.1\n{text}")
    if is_allowed:
        assert load_namesrv_config(path).listen.address.host == "192.0.2.1"
    else:
        with pytest.raises(ConfigInvalid, match="refusing to serve"):
            load_namesrv_config(path)


async def test_commands_are_what_tls_carries(tmp_path: Path, authority: trustme.CA) -> None:
    """A frame cut into TLS records, or several in one, would be read wrongly."""
    async with servers(tmp_path, tls_settings(authority, tmp_path, "permissive")) as (names, _):
        context = trusting(authority)
        reader, writer = await asyncio.open_connection("127.0.0.1", names.address.port, ssl=context)
        client = RawClient(reader, writer)
        for _ in range(3):
            answer: Command = await client.call(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert answer.code == 0
        writer.close()
        await writer.wait_closed()
