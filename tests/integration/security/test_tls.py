"""TLS: name server and broker serve it in each mode, and the client uses it for both."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from rocketpy import ClientConfig, Message, Producer, PullConsumer, SendStatus
from rocketpy.errors import ConfigInvalid, RemoteProtocolError, RocketError, TransportError
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Address, ChannelOptions, ClientOnlyEndpoint, TlsFiles, connect
from rocketpy_broker import Broker, NameServer, load_broker_config, load_namesrv_config
from rocketpy_broker.replication.dledger.core.messages import MetadataRequest, to_request
from rocketpy_broker.replication.ha.client import HaClientState
from tests.integration.ha_pair import Pair, pair
from tests.integration.raft_group import PeerTls, group
from tests.integration.raw_client import RawClient
from tests.integration.small import SMALL
from tests.mqproducer.place import eventually
from tests.waiting import LIMIT_S, until


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A certificate authority, shared because its creation is slow."""
    return trustme.CA()


def tls_settings(authority: trustme.CA, directory: Path, mode: str) -> str:
    """Write certificate files into a directory; return the text of a tls.properties for them."""
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
    """Send a message to a new topic and read it; return all bodies of the topic."""
    client = ClientConfig(namesrv=namesrv, ssl=context, instance_name=namesrv[:3])
    async with Producer("p", client=client) as producer, PullConsumer("c", client=client) as consumer:
        result = await producer.send(Message("T", b"x" * 100_000))
        return [message.body[:1] for message in (await consumer.pull(result.queue, 0)).messages]


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def gets_response(address: str) -> bool:
    """Whether a request without TLS gets a response."""
    try:
        async with await RawClient.open(address) as client:
            return (await client.call(RequestCode.GET_BROKER_CLUSTER_INFO)).is_response
    except (OSError, RemoteProtocolError):  # the latter: TLS's alert
        return False


@pytest.mark.parametrize("mode", ["enforcing", "permissive"])
async def test_clients_with_tls_are_served(tmp_path: Path, authority: trustme.CA, mode: str) -> None:
    """Others on the network could read messages."""
    async with servers(tmp_path, tls_settings(authority, tmp_path, mode)) as (names, broker):
        assert broker.health().registered_at == (str(names.address),)
        assert await send_and_read(str(names.address), trusting(authority)) == [b"x"]
        with pytest.raises(RocketError):
            await send_and_read(str(names.address), ssl.create_default_context())


async def test_a_slave_copies_its_master_by_tls(tmp_path: Path, authority: trustme.CA) -> None:
    """A slave could not copy the topics of a master that serves TLS only, and so serve no consumer."""
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
    """A server for TLS only would accept plain text, or a permissive one would reject old clients."""
    async with servers(tmp_path, tls_settings(authority, tmp_path, mode)) as (names, broker):
        plain = f"127.0.0.1:{names.address.port}"
        assert await gets_response(plain) is served
        assert await gets_response(broker.advertised_address) is served
        assert await gets_response(f"127.0.0.1:{broker.address.port - 2}") is served
        if served:
            assert await send_and_read(plain, None) == [b"x"]


async def test_tls_can_be_off(tmp_path: Path, authority: trustme.CA) -> None:
    """The mode in a tls.properties would have no effect."""
    async with servers(tmp_path, tls_settings(authority, tmp_path, "disabled")) as (names, _):
        assert names.address.scheme == "tcp"
        assert await send_and_read(str(names.address), None) == [b"x"]


async def test_a_client_certificate_can_be_required(tmp_path: Path, authority: trustme.CA) -> None:
    """Clients without a certificate of their own could connect."""
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


def replicas(authority: trustme.CA, directory: Path, name: str = "pair") -> str:
    """Settings of a broker whose certificate has this name, for both ends of its connections."""
    cert = authority.issue_cert("127.0.0.1", name)
    cert.private_key_and_cert_chain_pem.write_to_path(directory / f"{name}.pem")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    return "".join(
        f"tls.{end}.{key}={directory}/{file}\n"
        for end in ("server", "client")
        for key, file in (
            ("certPath", f"{name}.pem"),
            ("keyPath", f"{name}.pem"),
            ("trustCertPath", "ca.pem"),
        )
    )


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Pair]:
    async with pair(tmp_path) as it:
        yield it


def properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


async def test_a_clients_certificate_is_not_a_replicas(brokers: Pair, authority: trustme.CA) -> None:
    """Every application with a certificate could copy all messages, in spite of access control."""
    named = {"replicaCertNames": "pair;other"}
    tls = properties(replicas(authority, brokers.root))
    # The mode need not be permissive, since only replicas connect here, and no client without TLS.
    master = await brokers.master(**tls, **named, namesrvAddr="")
    where = master.replication.server.address
    assert where is not None
    given = {"haMasterAddress": str(where), "namesrvAddr": ""}
    slave = await brokers.slave("slave", 1, **tls, **named, **given)
    await until(lambda: slave.replication.client.state is HaClientState.COPIES)
    application = properties(replicas(authority, brokers.root, "application"))
    unknown = await brokers.slave("unknown", 2, **application, **named, **given)
    await until(lambda: unknown.replication.client.problem != "")
    assert len(master.replication.slaves()) == 1


@pytest.mark.parametrize(
    ("masters", "slaves", "problem"),
    [(True, False, "speaks TLS"), (False, True, "check that it speaks TLS")],
    ids=["slave without TLS", "master without TLS"],
)
async def test_a_slave_reports_which_end_lacks_tls(
    brokers: Pair, authority: trustme.CA, masters: bool, slaves: bool, problem: str
) -> None:
    """An operator would see that a connection ended, but not the reason."""
    tls = properties(replicas(authority, brokers.root))
    master = await brokers.master(namesrvAddr="", **(tls if masters else {}))
    where = master.replication.server.address
    assert where is not None
    scheme = "tls" if slaves else "tcp"
    given = {"haMasterAddress": f"{scheme}://{where.host}:{where.port}", "namesrvAddr": ""}
    slave = await brokers.slave("slave", 1, **given, **(tls if slaves else {}))
    await until(lambda: problem in slave.replication.client.problem)


async def test_a_group_by_tls_lets_its_peers_in(tmp_path: Path, authority: trustme.CA) -> None:
    """Entries would cross the network unencrypted, or each owner of a certificate could vote."""
    replicas(authority, tmp_path, "n0")
    replicas(authority, tmp_path, "application")
    trust = tmp_path / "ca.pem"
    cert = tmp_path / "n0.pem"
    listen = TlsFiles(cert_path=cert, trust_cert_path=trust, server=True, verify_mode=ssl.CERT_REQUIRED)
    own = TlsFiles(cert_path=cert, trust_cert_path=trust)
    tls = PeerTls(ChannelOptions(ssl=listen), ChannelOptions(ssl=own), frozenset({"n0"}))
    async with group(tmp_path, tls=tls) as running:
        _, peer = await running.leader()
        await running.append(peer, b"a")
        await until(lambda: all(member.bodies() == [b"a"] for member in running.running))
        other = TlsFiles(cert_path=tmp_path / "application.pem", trust_cert_path=trust)
        channel = await connect(peer.address, ClientOnlyEndpoint(), ChannelOptions(ssl=other))
        with pytest.raises(TransportError):
            await channel.request(to_request(MetadataRequest(group="g")), 5000)


async def shown_to(port: Address, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that a server shows to a new connection."""
    _, writer = await asyncio.open_connection(port.host, port.port, ssl=context)
    shown = writer.get_extra_info("peercert")
    writer.close()
    return int(shown["serialNumber"], 16)


async def test_a_new_certificate_has_effect_without_a_restart(
    tmp_path: Path,
    authority: trustme.CA,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Servers would have to be restarted each time their certificates are renewed, or stop serving."""
    monkeypatch.setattr("rocketpy.transport.tls._CHECK_S", 0.02)
    async with servers(tmp_path, tls_settings(authority, tmp_path, "enforcing")) as (names, broker):
        ports = [names.address, broker.address, replace(broker.address, port=broker.address.port - 2)]
        where = broker.replication.server.address
        assert where is not None
        ports.append(where)
        context = trusting(authority)
        first = await shown_to(names.address, context)
        path = tmp_path / "server.pem"
        old = path.read_bytes()

        path.write_bytes(old[: len(old) // 2])
        await until(lambda: broker.health().tls_problem != "" != names.tls_problem)
        assert str(path) in broker.health().tls_problem
        assert "keep the previous certificates" in caplog.text
        assert {await shown_to(port, context) for port in ports} == {first}

        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(path)
        await until(lambda: not broker.health().tls_problem and not names.tls_problem)
        for port in ports:
            assert await shown_to(port, context) != first
        assert await send_and_read(str(names.address), context) == [b"x"]


async def test_a_client_connects_despite_silent_connections(tmp_path: Path, authority: trustme.CA) -> None:
    """Connections without a handshake would occupy all places, so that clients are rejected."""
    tls = tls_settings(authority, tmp_path, "enforcing") + "maxConnections=4\n"
    async with servers(tmp_path, tls) as (names, _):
        with contextlib.ExitStack() as opened:
            for _ in range(8):
                opened.enter_context(socket.create_connection((names.address.host, names.address.port)))
            assert await shown_to(names.address, trusting(authority))


@pytest.mark.parametrize("mode", ["enforcing", "permissive"])
async def test_half_handshakes_do_not_disturb_sends(tmp_path: Path, authority: trustme.CA, mode: str) -> None:
    """300 connections that stop in the middle of a handshake would make sends fail, or wait for them."""
    hello = client_hello(trusting(authority))
    async with servers(tmp_path, tls_settings(authority, tmp_path, mode)) as (names, broker):
        client = ClientConfig(namesrv=str(names.address), ssl=trusting(authority))
        async with Producer("p", client=client) as producer:
            await producer.send(Message("T", b"first"))
            with contextlib.ExitStack() as opened:
                for number in range(300):
                    half = socket.create_connection((broker.address.host, broker.address.port))
                    opened.enter_context(half)
                    half.sendall(hello[: 1 + number % len(hello)])
                    if number % 10 == 0:
                        await producer.send(Message("T", b"beside"))
                results = await asyncio.gather(*(producer.send(Message("T", b"m")) for _ in range(100)))
            assert all(result.status is SendStatus.SEND_OK for result in results)
            assert producer.health().ok


def client_hello(context: ssl.SSLContext) -> bytes:
    """The first bytes that a client sends."""
    outgoing = ssl.MemoryBIO()
    begun = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        begun.do_handshake()
    return outgoing.read()


async def test_a_permissive_port_limits_its_wait(tmp_path: Path, authority: trustme.CA) -> None:
    """A silent or invalid client would hold a connection, and in the end all of them."""
    tls = tls_settings(authority, tmp_path, "permissive") + "frameTimeoutMillis=200\n"
    async with servers(tmp_path, tls) as (names, _):
        for said in (b"", b"\x16\x03\x01", b"\x16nonsense" * 10):
            reader, writer = await asyncio.open_connection("127.0.0.1", names.address.port)
            writer.write(said)
            async with asyncio.timeout(LIMIT_S):
                assert len(await reader.read()) < 100  # an alert, at most
            writer.close()
        assert await gets_response(f"127.0.0.1:{names.address.port}")


async def test_one_host_does_not_occupy_a_permissive_port(tmp_path: Path, authority: trustme.CA) -> None:
    """Silent connections of one host would occupy all places, so that others are rejected."""
    tls = tls_settings(authority, tmp_path, "permissive") + "maxConnectionsPerHost=3\n"
    (tmp_path / "namesrv.conf").write_text(f"{tls}listenPort=0\n")
    names = NameServer(load_namesrv_config(tmp_path / "namesrv.conf"))
    await names.start()
    opened = [await asyncio.open_connection("127.0.0.1", names.address.port) for _ in range(4)]
    async with asyncio.timeout(LIMIT_S):
        assert await opened[3][0].read() == b""
    for _, writer in opened:
        writer.close()
    await names.close()


def test_old_versions_of_tls_are_rejected(tmp_path: Path, authority: trustme.CA) -> None:
    """An attacker who breaks TLS 1.1 could read the traffic."""
    path = tmp_path / "broker.conf"
    path.write_text(tls_settings(authority, tmp_path, "enforcing"))
    files = load_broker_config(path).listen.options.ssl
    assert isinstance(files, TlsFiles)
    assert files.context.minimum_version == ssl.TLSVersion.TLSv1_2


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
def test_other_machines_are_served_only_on_request(
    tmp_path: Path, authority: trustme.CA, settings: str, is_allowed: bool
) -> None:
    """A broker would be open to the whole network by default."""
    text = settings
    if settings.startswith("TLS"):
        _, mode, *more = settings.split(maxsplit=2)
        text = tls_settings(authority, tmp_path, mode) + "".join(more)
    path = tmp_path / "namesrv.conf"
    path.write_text(f"bindAddress=192.0.2.1\n{text}")
    if is_allowed:
        assert load_namesrv_config(path).listen.address.host == "192.0.2.1"
    else:
        with pytest.raises(ConfigInvalid, match="will not serve"):
            load_namesrv_config(path)


async def test_commands_travel_inside_tls(tmp_path: Path, authority: trustme.CA) -> None:
    """A frame cut into TLS records, or several in one, would be read wrongly."""
    async with servers(tmp_path, tls_settings(authority, tmp_path, "permissive")) as (names, _):
        context = trusting(authority)
        reader, writer = await asyncio.open_connection("127.0.0.1", names.address.port, ssl=context)
        client = RawClient(reader, writer)
        for _ in range(3):
            response: Command = await client.call(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert response.code == 0
        writer.close()
        await writer.wait_closed()


async def test_a_channel_ends_although_its_peer_is_silent(authority: trustme.CA) -> None:
    """A command, or a broker that stops, would wait half a minute for a server that hangs."""
    mine, theirs = ssl.create_default_context(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.configure_trust(mine)
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    connected = asyncio.Event()

    def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport = writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        peers.append(transport)
        connected.set()

    peers: list[asyncio.Transport] = []
    server = await asyncio.start_server(hang, "127.0.0.1", 0, ssl=theirs, ssl_shutdown_timeout=3600)
    address = Address("tls", "127.0.0.1", server.sockets[0].getsockname()[1])
    channel = await connect(address, ClientOnlyEndpoint(), ChannelOptions(ssl=mine))
    await connected.wait()
    async with asyncio.timeout(20):  # asyncio would give up after 30 s
        await channel.close_within(0.01)
    assert channel.is_closed
    peers[0].abort()
    server.close()
    await server.wait_closed()
