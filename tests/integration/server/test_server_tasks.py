"""A bug ends each background task of a server in turn: it must be reported, and all parts must be closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketpy.errors import StoreError
from rocketpy.protocol.codes import RequestCode
from rocketpy.transport import Address
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.config.model import ListenConfig, NamesrvConfig
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_broker.metrics.catalog import SERVING
from rocketpy_broker.namesrv import NameServer
from rocketpy_broker.namesrv.route_table import RouteTable
from rocketpy_broker.store import MessageStore
from tests.background import Bug, assert_logged, fails, kill, running
from tests.integration.broker.test_broker import send
from tests.integration.raw_client import RawClient
from tests.integration.small import SMALL
from tests.waiting import LIMIT_S, until


def can_be_opened(broker: Broker) -> None:
    """Check that a closed broker has released its store."""
    if not broker.config.dledger.enabled:
        with MessageStore(broker.config.store):
            pass


@asynccontextmanager
async def serving(store: Path, **settings: Any) -> AsyncIterator[EmbeddedCluster]:
    """A cluster, which is closed at the end in any case."""
    cluster = EmbeddedCluster(store, settings=SMALL, **settings)
    await cluster.start()
    brokers = list(cluster.brokers)
    try:
        yield cluster
    finally:
        async with asyncio.timeout(LIMIT_S):
            await cluster.close()
    for broker in brokers:
        assert running(".*", broker.tasks) == []
        can_be_opened(broker)


async def fails_visibly(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """Wait until a broker has failed; check that health, metrics and log report it."""
    async with asyncio.timeout(LIMIT_S):
        failure = await broker.wait_failed()
    health = broker.health()
    assert (health.is_serving, health.failure) == (False, str(failure))
    assert broker.metrics is not None
    measured = {metric.name: values for metric, values in broker.metrics.collect_from_any_thread()}
    [(_, serving)] = measured[SERVING.name]
    assert serving == 0
    assert_logged(failure, caplog)
    assert any(record.levelname == "CRITICAL" and "has failed" in record.msg for record in caplog.records)


MASTER = ["save of tables", "registration at .*", "save of delay offsets", "check of transactions"]
SLAVE = ["copy of topics and offsets from the master", "HA copy"]


@pytest.mark.parametrize("name", MASTER)
async def test_a_loop_of_a_broker_that_ends(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Offsets would not be saved, or the registration expire, while health() reports no failure."""
    async with serving(tmp_path) as cluster:
        [broker] = cluster.brokers
        await until(lambda: len(running(name, broker.tasks)) == 1)
        await kill(name, broker.tasks)
        await fails_visibly(broker, caplog)


@pytest.mark.parametrize("name", SLAVE)
async def test_a_loop_of_a_slave_that_ends(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A slave would stop copying, while health() reports no failure."""
    async with serving(tmp_path, slaves=1) as cluster:
        slave = next(broker for broker in cluster.brokers if not broker.is_master)
        await until(lambda: len(running(name, slave.tasks)) == 1)
        await kill(name, slave.tasks)
        await fails_visibly(slave, caplog)


async def test_a_role_change_of_a_group_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After the next election, no peer would be the master."""
    async with serving(tmp_path, replicas=3) as cluster:
        broker = next(broker for broker in cluster.brokers if broker.is_master)
        await kill("roles", broker.tasks)
        await fails_visibly(broker, caplog)


Part = Callable[[Broker], Any]
TIMERS: list[tuple[str, Part, str]] = [
    ("delivery of delayed messages", lambda broker: broker.delivery.delay._queues, "deliver"),
    ("sweep of held pulls", lambda broker: broker.consumers.holds, "expired"),
    ("heartbeats to slaves", lambda broker: broker.replication.server, "_poll_slaves"),
]


@pytest.mark.parametrize(("part", "method"), [row[1:] for row in TIMERS], ids=[row[0] for row in TIMERS])
async def test_a_timer_of_a_broker_that_fails(
    part: Part,
    method: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The timer would stop, and only asyncio's own log would show it."""
    async with serving(tmp_path) as cluster:
        [broker] = cluster.brokers
        with monkeypatch.context() as patch:
            patch.setattr(part(broker), method, fails)
            broker.delivery.delay.message_appended(1)  # sets the timer of delayed messages
            await fails_visibly(broker, caplog)


async def test_a_request_that_breaks_an_invariant(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client would get an internal error, and the broker continue in an invalid state."""
    async with serving(tmp_path) as cluster:
        [broker] = cluster.brokers
        monkeypatch.setattr(broker.topics, "snapshot", fails)
        async with await RawClient.open(broker.address) as client:
            with pytest.raises(ConnectionError):
                await client.call(RequestCode.GET_ALL_TOPIC_CONFIG)
        await fails_visibly(broker, caplog)


async def test_an_unexpected_error_in_a_flush_that_sends_wait_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends that wait for the disk would never get a response."""
    cluster = EmbeddedCluster(tmp_path, settings=SMALL | {"flushDiskType": "SYNC_FLUSH"})
    async with cluster:
        [broker] = cluster.brokers
        async with await RawClient.open(broker.address) as client:
            with monkeypatch.context() as patch:
                patch.setattr(broker._driver, "flush", fails)
                response = await send(client, b"m")
        assert response.code != 0
        await fails_visibly(broker, caplog)
    can_be_opened(broker)


async def test_a_timer_of_a_name_server_that_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline brokers would stay in routes forever."""
    listen = ListenConfig(address=Address.parse("127.0.0.1:0"))
    namesrv = NameServer(NamesrvConfig(scan_interval_ms=10, listen=listen))
    await namesrv.start()
    monkeypatch.setattr(RouteTable, "drop_inactive", fails)
    async with asyncio.timeout(LIMIT_S):
        assert_logged(await namesrv.wait_failed(), caplog)
    await namesrv.close()


def _failing(close: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Coroutine[Any, Any, None]]:
    """A close that does its work, and raises at the end."""

    async def fail() -> None:
        await close()
        raise Bug

    return fail


async def test_everything_is_closed_even_if_a_part_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part that cannot be closed would leave the store locked, and messages of it unflushed."""
    cluster = EmbeddedCluster(tmp_path, settings=SMALL)
    await cluster.start()
    [broker] = cluster.brokers
    for part in (broker._replication, broker.delivery):
        monkeypatch.setattr(part, "close", _failing(part.close))
    with pytest.raises(Bug):
        await cluster.close()
    can_be_opened(broker)
    assert isinstance(broker.store.failure, StoreError)
    assert cluster.namesrv is None
