"""The replication status for operators: the runtime information and `rocketpy-broker ha status`."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rocketpy import Message, Producer
from rocketpy.protocol.bodies import KVTable
from rocketpy.protocol.codes import RequestCode
from rocketpy_broker import cli
from rocketpy_broker.replication.ha.client import HaClientState
from tests.integration.ha_pair import Pair, caught_up, pair
from tests.integration.raw_client import RawClient
from tests.waiting import until


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Pair]:
    async with pair(tmp_path) as it:
        yield it


Command = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `rocketpy-broker ha status`; return its exit status and output, errors among it."""

    async def run(*arguments: str) -> tuple[int, str]:
        status = await asyncio.to_thread(cli.main, ("ha", "status", *arguments))
        return status, "".join(capsys.readouterr())

    return run


async def test_brokers_report_their_replication(brokers: Pair) -> None:
    """The tool brokerStatus would not show that a slave is far behind, or offline."""
    master = await brokers.master()
    slave = await brokers.slave()
    async with Producer("ha", namesrv=brokers.namesrv_address) as producer:
        await producer.send(Message("HaTopic", b"x"))
    await caught_up(master, slave)
    end = master.store.max_physical_offset
    await until(lambda: master.replication.connected.acked == end)
    async with await RawClient.open(str(master.address)) as client:
        table = KVTable.decode((await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    assert (table["haRole"], table["haConnections"], table["haAckedOffset"]) == (
        "ASYNC_MASTER",
        "1",
        str(end),
    )
    assert table["haAddress"] == master.replication.advertised_address
    (report,) = json.loads(table["haSlaves"])
    assert (report["broker_id"], report["received"], report["lag_bytes"]) == (1, end, 0)
    async with await RawClient.open(str(slave.address)) as client:
        ours = KVTable.decode((await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    assert (ours["haRole"], ours["haState"], ours["haProblem"]) == ("SLAVE", "COPIES", "")
    assert ours["haMasterAddress"] == table["haAddress"]
    assert ours["haEpoch"] == table["haEpoch"] != "0"
    assert ours["commitLogMaxOffset"] == str(end)


async def test_the_command_shows_lag_and_idle_slaves(brokers: Pair, command: Command) -> None:
    """An operator would have to read logs to learn that a slave does not copy."""
    master = await brokers.master()
    slave = await brokers.slave()
    refused = await brokers.slave("unknown", 2, haSecret="other")
    async with Producer("ha", namesrv=brokers.namesrv_address) as producer:
        await producer.send(Message("HaTopic", b"x"))
    await caught_up(master, slave)
    await until(lambda: refused.replication.client.problem != "")
    status, output = await command("--namesrv", brokers.namesrv_address, "--name", "pair")
    assert status == 1
    head, first, second, third = (line.split() for line in output.splitlines())
    end = str(master.store.max_physical_offset)
    assert (head[0], head[5:9]) == ("BROKER", ["LOG", "ENDS", "LAG", "SLAVES"])
    assert first[:2] == ["pair", "0"]
    assert first[5:] == [end, "-", "1", "serves"]
    assert second[1:4] == ["1", str(slave.address), "SLAVE"]
    assert second[5:] == [end, "0", "0", "copies"]
    assert third[5:7] == ["0", end]
    assert refused.replication.client.problem in output

    await brokers.stop(refused)
    status, output = await command("--namesrv", brokers.namesrv_address)
    assert status == 0
    status, output = await command("--broker", str(slave.address), "--json")
    assert status == 0
    report = json.loads(output)
    assert (report["name"], report["broker_id"], report["state"]) == ("pair", 1, HaClientState.COPIES.name)


async def test_the_command_without_a_broker(brokers: Pair, command: Command) -> None:
    """A script would take an offline name server for a healthy cluster, and a user see an empty table."""
    here = "--namesrv", brokers.namesrv_address
    says = f"rocketpy-broker ha: no broker is registered at {brokers.namesrv_address}\n"
    assert await command(*here) == (1, says)
    assert (await command("--namesrv", "127.0.0.1:1"))[0] == 2
    await brokers.master()
    assert await command(*here, "--name", "zz") == (1, says.replace("no broker", "no broker named zz"))
    status, output = await command("--broker", "127.0.0.1:1")
    assert (status, "does not respond" in output) == (1, True)
