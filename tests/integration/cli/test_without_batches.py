"""rocketpy send and import with brokers that reject batches, such as those of RocketMQ 4.6 with DLedger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import SendMessageRequestHeaderV2
from rocketpy.protocol.remoting.command import Command
from rocketpy.sync import AdminClient
from rocketpy.transport import Channel, Endpoint
from rocketpy_broker import Broker, BrokerConfig
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.cli.in_process import Shell, shared_cluster
from tests.integration.endpoints import WrappedEndpoint

REJECTED = {"A": ResponseCode.MESSAGE_ILLEGAL, "B": ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
"""How brokers reject the batches for a topic."""


class WithoutBatches(WrappedEndpoint):
    """Forwards requests of clients to a broker, and rejects batches."""

    def __init__(self, inner: Endpoint) -> None:
        super().__init__(inner)
        self.rejected = 0

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        if request.code != RequestCode.SEND_BATCH_MESSAGE:
            return super().handle(channel, request)
        self.rejected += 1
        return request.reply(
            REJECTED[request.header_as(SendMessageRequestHeaderV2).topic], remark="no batches"
        )


@pytest.fixture(scope="module")
def endpoints() -> list[WithoutBatches]:
    """The endpoints of the brokers."""
    return []


@pytest.fixture(scope="module")
def running(endpoints: list[WithoutBatches]) -> Iterator[EmbeddedCluster]:
    def wrap(inner: Endpoint) -> WithoutBatches:
        endpoints.append(WithoutBatches(inner))
        return endpoints[-1]

    def make(config: BrokerConfig) -> Broker:
        return Broker(config, intercept=wrap)

    with shared_cluster(make_broker=make) as cluster, AdminClient(cluster.namesrv_address) as admin:
        for topic in REJECTED:
            admin.topics.create(topic, 2)
        yield cluster


@pytest.mark.parametrize("topic", REJECTED)
def test_lines_and_imports_go_one_by_one(
    running: EmbeddedCluster,
    endpoints: list[WithoutBatches],
    tmp_path: Path,
    topic: str,
) -> None:
    """A file could not be sent to such a cluster, or an export not be imported."""
    shell = Shell(running.namesrv_address)
    (endpoint,) = endpoints
    lines = [str(number) for number in range(1000)]
    file = tmp_path / "lines"
    file.write_text("\n".join(lines), "utf-8")
    before = endpoint.rejected
    (done,) = map(json.loads, shell.run("--json", "send", topic, "--file", str(file)).out.splitlines())
    assert (done["stored"], done["failed"]) == (1000, 0)
    assert endpoint.rejected > before
    assert sorted(shell.text("consume", topic).split()) == sorted(lines)
    archive = str(tmp_path / "archive")
    shell.text("export", topic, "--to", archive)
    before = endpoint.rejected
    (done,) = shell.rows("import", archive, "--topic", topic, "--yes")
    assert done["sent_now"] == 1000
    assert 0 < endpoint.rejected - before <= 2, "a batch was tried again and again"
    assert sorted(shell.text("consume", topic).split()) == sorted(lines * 2)
