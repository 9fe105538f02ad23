"""Messages that cannot be decoded, with RocketMQ's servers; the cases are in tests/mqconsumer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpy import PullConsumer
from rocketpy.errors import RecordCorrupt
from tests.interop.cluster import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import ALL_VERSIONS, OUR_SDK, serve
from tests.mqconsumer import undecodable
from tests.mqconsumer.group import BROKER_SETTINGS, Seen, group, pushing, until
from tests.mqconsumer.undecodable import GOOD, damage, mixed
from tests.mqproducer.place import Place

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", params=[*OUR_SDK[:1], *ALL_VERSIONS], ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """RocketMQ's servers."""
    with serve(request.param, peer, tmp_path_factory.mktemp("undecodable"), conf=BROKER_SETTINGS) as running:
        yield running


@pytest.fixture
def place(servers: Cluster) -> Place:
    """The name server's address, for the cases of tests/mqconsumer."""
    return Place(servers.namesrv.address)


@pytest.fixture
def store(servers: Cluster) -> Path:
    """The broker's store."""
    return servers.broker.store


async def test_a_record_without_a_length(place: Place, store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A queue would stop without a report, or good messages be skipped with the damaged one.

    rocketpy's broker rejects a pull that begins at such a record.
    """
    topic = await mixed(place, "length", {b"will have no length": 0})
    async with PullConsumer(group("length"), place.namesrv) as reader:
        (queue,) = await reader.fetch_queues(topic)
        (message,) = (await reader.pull(queue, 3, 1)).messages
        damage(store, message.physical_offset + 4, b"\0\0\0\0")  # its magic number
        first = await reader.pull(queue, 0)
        assert ([one.body for one in first.messages], first.next_offset) == (GOOD[:3], 3)
        with pytest.raises(RecordCorrupt, match="magic"):
            await reader.pull(queue, 3)
        seen = Seen()
        async with pushing(place, topic, seen) as consumer:
            await seen.until(*GOOD[:3])
            await until(lambda: not consumer.health().ok)
            (problem,) = consumer.health().problems
            assert "cannot be read from offset 3: record at 0: magic 0x00000000" in problem
            assert seen.bodies == GOOD[:3]
            await consumer.seek(queue, 4)
            await seen.until(*GOOD)
            await until(lambda: consumer.health().ok)
    logged = [record for record in caplog.records if "cannot be read from offset 3" in record.getMessage()]
    assert [record.levelno for record in logged] == [logging.ERROR]


globals().update(undecodable.CASES)
