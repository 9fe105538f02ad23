"""A SYNC_MASTER without its slave, and a DLedger group with a dead peer: everybody who looks is told."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rocketpy import Message, Producer, SendStatus
from rocketpy_broker import Broker, cli
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_broker.metrics import catalog
from rocketpy_broker.metrics.collecting import collect
from tests.integration.cli.commands import run as run_rocketpy
from tests.integration.ha_pair import Pair, pair
from tests.integration.ledger_group import ledger_group
from tests.integration.small import SMALL
from tests.waiting import until

Command = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Pair]:
    async with pair(tmp_path) as it:
        yield it


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `rocketpy-broker`; return its exit status and output, errors among it."""

    async def run(*arguments: str) -> tuple[int, str]:
        status = await asyncio.to_thread(cli.main, arguments)
        return status, "".join(capsys.readouterr())

    return run


def measured(broker: Broker, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric, by its own labels."""
    assert broker.metrics is not None
    (found,) = (one for one in collect(broker.metrics._sources) if one.metric.name == name)
    return {labels[2:]: value for labels, value in found.values}


async def send(namesrv: str) -> SendStatus:
    async with Producer("p", namesrv) as producer:
        return (await producer.send(Message("T", b"x"), timeout_ms=60_000)).status


async def test_a_sync_master_without_its_slave(
    brokers: Pair, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages were on one disk for days; doctor, ha status, alerts and logs were silent."""
    namesrv = brokers.namesrv_address
    master = await brokers.master(brokerRole="SYNC_MASTER")
    slave = await brokers.slave()
    await until(lambda: master.replication.connected.acked >= 0)
    assert await send(namesrv) is SendStatus.SEND_OK
    assert master.health().replication_problem == ""
    assert measured(master, catalog.MISSING_REPLICAS.name) == {(): 0}
    assert (await command("ha", "status", "--namesrv", namesrv))[0] == 0
    done = await run_rocketpy("doctor", "--namesrv", namesrv)
    assert "it has a slave, as a SYNC_MASTER needs" in done.out
    await brokers.stop(slave)
    await until(lambda: master.replication.connected.connections == 0)
    assert [await send(namesrv) for _ in range(3)] == [SendStatus.SLAVE_NOT_AVAILABLE] * 3
    problem = "no slave is connected, so sends get SLAVE_NOT_AVAILABLE and one copy holds their messages"
    assert master.health().replication_problem == problem
    assert all(check.problem is None for check in master.readiness())  # it still serves
    status, text = await command("ha", "status", "--namesrv", namesrv)
    assert (status, f"serves: {problem}" in text) == (1, True), text
    done = await run_rocketpy("doctor", "--namesrv", namesrv)
    assert (done.status, problem in done.out) == (1, True), done
    assert measured(master, catalog.MISSING_REPLICAS.name) == {(): 1}
    assert measured(master, catalog.LESS_DURABLE.name)[("SLAVE_NOT_AVAILABLE",)] == 3
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING
        and record.name == "rocketpy.broker.ha"
        and "SLAVE_NOT_AVAILABLE" in record.getMessage()
    ]
    assert line.startswith("1 sends get SLAVE_NOT_AVAILABLE")


async def test_an_async_master_needs_no_slave(brokers: Pair, command: Command) -> None:
    """Clusters without slaves, as intended, would have a problem."""
    master = await brokers.master()
    assert await send(brokers.namesrv_address) is SendStatus.SEND_OK
    assert master.health().replication_problem == ""
    assert (await command("ha", "status", "--namesrv", brokers.namesrv_address))[0] == 0
    assert (await run_rocketpy("doctor", "--namesrv", brokers.namesrv_address)).status == 0


async def test_a_sync_master_whose_slave_stays_behind(brokers: Pair) -> None:
    """A connected slave does not help while it is too far behind to be waited for."""
    master = await brokers.master(brokerRole="SYNC_MASTER", haSlaveFallbehindMax="0")  # every slave is behind
    await brokers.slave()
    await until(lambda: master.replication.connected.acked >= 0)
    assert await send(brokers.namesrv_address) is SendStatus.SLAVE_NOT_AVAILABLE
    assert (
        "every slave is haSlaveFallbehindMax or more behind (1 connected)"
        in master.health().replication_problem
    )


async def test_a_group_of_three_with_a_dead_peer(command: Command) -> None:
    """The next failure would stop all sends; nobody was told that only two peers were left."""
    async with EmbeddedCluster(replicas=3, settings=SMALL) as cluster:
        namesrv = cluster.namesrv_address
        status = ("dledger", "status", "--namesrv", namesrv)
        assert (await command(*status))[0] == 0
        leader = next(broker for broker in cluster.brokers if broker.is_master)
        dead = next(broker for broker in cluster.brokers if broker is not leader)
        peer = dead.config.dledger.self_id
        assert measured(leader, catalog.MISSING_REPLICAS.name) == {(): 0}
        done = await run_rocketpy("doctor", "--namesrv", namesrv)
        assert "the peers of its group respond" in done.out, done.out
        cluster.brokers.remove(dead)
        await dead.close()
        await until(lambda: leader.health().replication_problem)
        problem = f"no response to this leader from {peer}: 1 of 3 peers. The group survives 0 more failures"
        assert leader.health().replication_problem == problem
        assert await send(namesrv) is SendStatus.SEND_OK
        assert measured(leader, catalog.MISSING_REPLICAS.name) == {(): 1}
        code, text = await command(*status)
        assert (code, problem in text) == (1, True), text
        done = await run_rocketpy("doctor", "--namesrv", namesrv)
        assert (done.status, problem in done.out) == (1, True), done


async def test_a_peer_that_responds_and_falls_behind(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer stored nothing for days, but answered heartbeats; the next failure would stop all sends."""
    async with ledger_group(tmp_path) as group:
        leader, namesrv = await group.master(), group.namesrv_address
        slow = group.slaves()[0]
        peer = slow.config.dledger.self_id
        status = ("dledger", "status", "--namesrv", namesrv)
        async with group.producer() as producer:
            await producer.send(Message("T", b"x"))
            await until(lambda: set(leader.ledger.peer.lags.values()) == {0})
            with monkeypatch.context() as patch:
                follower = slow.ledger.peer._node._follower
                patch.setattr(follower, "on_push", lambda *_: None)
                for _ in range(3):
                    await producer.send(Message("T", b"x"))
                lags = measured(leader, catalog.DLEDGER_LAG.name)
                assert lags[(peer,)] >= 3
                assert leader.health().replication_problem == ""  # not yet: a busy leader is always ahead
                assert (await command(*status))[0] == 0
                group.advance(31_000)
                count = f"{lags[peer,]:.0f}"
                problem = f"{peer} is {count} entries and [0-9]+ s behind this leader. The group survives 0"
                assert re.match(problem, leader.health().replication_problem)
                assert measured(leader, catalog.MISSING_REPLICAS.name) == {(): 0}
                assert 31 <= measured(leader, catalog.DLEDGER_LAG_SECONDS.name)[(peer,)] < 10_000
                code, text = await command(*status)
                assert code == 1
                assert re.search(problem, text), text
                assert re.search(f" {count}, [0-9]+ s ", text), text
                done = await run_rocketpy("doctor", "--namesrv", namesrv)
                assert done.status == 1
                assert re.search(problem, done.out), done
                assert "dLegerPeers" in done.out, done
            await until(lambda: set(leader.ledger.peer.lags.values()) == {0})
            assert leader.health().replication_problem == ""
            assert set(measured(leader, catalog.DLEDGER_LAG_SECONDS.name).values()) == {0}
            assert (await command(*status))[0] == 0
