"""rocketpy's clients with RocketMQ's name servers and brokers by TLS, with a certificate for each client."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest
import trustme

from rocketpy import AdminClient, ClientConfig, Message, Producer, PushConfig, PushConsumer
from rocketpy.errors import TransportError
from tests.interop.certificates import issue
from tests.interop.cluster import Cluster, only_broker
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import ALL_VERSIONS, OUR_SDK, Side, serve
from tests.mqconsumer.group import FIRST, Seen

pytestmark = pytest.mark.interop

LONG = bytes(range(256)) * 2000
"""Several TLS records."""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Signs the certificates of servers and clients."""
    return trustme.CA()


@pytest.fixture(scope="module", params=[OUR_SDK[0], *ALL_VERSIONS], ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest,
    peer: JavaPeer,
    authority: trustme.CA,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """A pair of servers with certificates. The test setup checks their readiness without TLS."""
    side: Side = request.param
    run = tmp_path_factory.mktemp("tls")
    with serve(side, peer, run, java={"tls.config.file": str(issue(authority, run / "tls"))}) as running:
        yield running


def client(servers: Cluster, context: ssl.SSLContext) -> ClientConfig:
    """The settings of a client that uses TLS only."""
    return ClientConfig(namesrv=f"tls://{servers.namesrv.address}", ssl=context)


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """A context that trusts the servers' certificates, without a client certificate."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_messages_travel_by_tls(servers: Cluster, authority: trustme.CA) -> None:
    """Clients could not be used with servers that offer TLS, or would alter long messages."""
    context = trusting(authority)
    authority.issue_cert("client").configure_cert(context)
    settings, topic, seen = client(servers, context), servers.topic("sealed"), Seen()
    async with AdminClient(client=settings) as admin:
        await admin.create_topic(topic, 2)
        await only_broker(admin)
    bodies = [b"small", LONG, *(b"%d" % number for number in range(50))]
    consumer = PushConsumer("tls_members", None, seen, client=settings, config=PushConfig(consume_from=FIRST))
    consumer.subscribe(topic)
    async with Producer("tls_senders", client=settings) as sender, consumer:
        for body in bodies[:2]:
            await sender.send(Message(topic, body))
        await sender.send_batch([Message(topic, body) for body in bodies[2:]])
        await seen.until(*bodies)
    assert sorted(seen.bodies) == sorted(bodies)


async def test_untrusted_servers_and_clients_are_rejected(servers: Cluster, authority: trustme.CA) -> None:
    """A client would accept an untrusted server, or a server accept a client without a certificate."""
    other = ssl.create_default_context()
    trustme.CA().configure_trust(other)
    for context in (other, trusting(authority)):
        with pytest.raises(TransportError, match="certificate"):
            async with Producer("tls_strangers", client=client(servers, context)) as sender:
                await sender.send(Message("Strangers", b"no"), timeout_ms=3000)
