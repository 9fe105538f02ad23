"""Timers over kills of a broker, and when a slave takes over: none is lost, early, or delivered twice."""

from __future__ import annotations

import asyncio
import signal
import time
from asyncio.subprocess import Process
from pathlib import Path

import pytest

from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.message.record import decode_all
from rocketpy_broker import Broker
from rocketpy_broker.services.timers.messages import TIMER_TOPIC
from tests.integration.broker.test_deferred import records, send
from tests.integration.broker.test_timers import now_ms, recall, timed
from tests.integration.ha_pair import caught_up, pair
from tests.integration.processes import start, stop
from tests.integration.raw_client import RawClient
from tests.waiting import LIMIT_S, until

CONF = """
brokerName=b1
mappedFileSizeCommitLog=1048576
mappedFileSizeTimerLog=5200
timerFlushIntervalMs=50
maxHashSlotNum=1000
maxIndexNum=4000
"""


async def broker(directory: Path) -> tuple[Process, str]:
    """A broker process with a store in this directory."""
    conf = directory / "broker.conf"
    conf.write_text(f"{CONF}storePathRootDir={directory}/store\n")
    return await start("broker", "-c", str(conf), "--listen", "127.0.0.1:0")


async def everything(client: RawClient, topic: str = "T") -> dict[bytes, int]:
    """Body -> store time of all messages of a topic, none of which may be there twice."""
    found: dict[bytes, int] = {}
    offset = 0
    while part := await records(client, topic, offset=offset):
        for record in part:
            assert record.body not in found, f"{record.body!r} was delivered twice"
            found[record.body] = record.store_timestamp
        offset += len(part)
    return found


@pytest.mark.parametrize("rounds", [2, pytest.param(8, marks=pytest.mark.slow)])
async def test_timers_survive_kills(tmp_path: Path, rounds: int) -> None:
    """A killed broker would lose timers, or deliver them early or again."""
    dues: dict[bytes, int] = {}
    recalled: set[bytes] = set()
    for number in range(rounds):
        process, address = await broker(tmp_path)
        async with await RawClient.open(address) as client:
            for index in range(60):
                body = b"%d-%d" % (number, index)
                delay_ms = 100 + 70 * index
                asked = now_ms()
                response = await send(client, body, timed(body.decode(), TIMER_DELAY_MS=delay_ms))
                assert response.code == 0, response.remark
                dues[body] = asked + delay_ms
                if index in (35, 59):
                    assert (await recall(client, response.ext_fields()["recallHandle"])).code == 0
                    recalled.add(body)
            await asyncio.sleep(0.4 + 0.37 * (number % 4))  # kills in the middle of deliveries
        await stop(process, signal.SIGKILL)
    process, address = await broker(tmp_path)
    async with await RawClient.open(address) as client, asyncio.timeout(LIMIT_S):
        while (found := await everything(client)).keys() != dues.keys() - recalled:
            assert found.keys() <= dues.keys() - recalled
            await asyncio.sleep(0.05)
        for body, stored_ms in found.items():
            assert stored_ms >= dues[body], body
    await stop(process)


def delivered(broker: Broker) -> list[bytes]:
    """The bodies of topic T at a broker of this process."""
    found: list[bytes] = []
    while len(result := decode_all(broker.store.get_message("T", 0, len(found), 32).body)):
        found += [record.body for record in result]
    return found


async def test_a_slave_goes_on_with_the_timers_of_its_master(tmp_path: Path) -> None:
    """They would be lost with their master, or those that it has delivered would be delivered again."""
    settings = {"timerFlushIntervalMs": "50", "mappedFileSizeTimerLog": "5200"}
    async with pair(tmp_path) as brokers:
        master = await brokers.master(brokerRole="SYNC_MASTER", **settings)
        slave = await brokers.start("slave", brokerRole="SLAVE", brokerId="1", **settings)
        await caught_up(master, slave)
        wanted = {b"%d" % number for number in range(40)}
        asked = now_ms()
        async with await RawClient.open(master.address) as client:
            for number in range(40):
                text = timed(f"{number}", TIMER_DELAY_MS=200 + 80 * number)
                assert (await send(client, b"%d" % number, text)).code == 0
            recallable = await send(client, b"x", timed("x", TIMER_DELAY_MS=60_000))
            handle = recallable.ext_fields()["recallHandle"]
            before = await send(client, b"y", timed("y", TIMER_DELAY_MS=3000))
            assert (await recall(client, before.ext_fields()["recallHandle"])).code == 0
        await until(lambda: len(delivered(master)) >= 10)
        timers = slave.delivery.timers._timers
        await until(lambda: timers.queue_offset > 0)
        assert timers.checkpoint.master_queue_offset > 0
        async with await RawClient.open(slave.address) as client:
            refused = await recall(client, handle)
            assert refused.code == ResponseCode.SLAVE_NOT_AVAILABLE
            assert "recall at its master" in (refused.remark or "")
        await caught_up(master, slave)
        await brokers.stop(master)
        await brokers.stop(slave)
        second = await brokers.start("slave", brokerRole="ASYNC_MASTER", brokerId="0", **settings)
        async with await RawClient.open(second.address) as client:
            assert (await recall(client, handle)).code == 0
        await until(lambda: set(delivered(second)) == wanted)
        assert len(delivered(second)) == 40
        assert time.time() * 1000 >= asked + 200 + 80 * 39
        assert second.store.max_offset_in_queue(TIMER_TOPIC, 0) == 44


async def test_a_slave_whose_damaged_files_cannot_be_deleted_tries_again(tmp_path: Path) -> None:
    """It would report that it cannot copy topics and offsets, disconnect from its master, or fail."""
    async with pair(tmp_path) as brokers:
        master = await brokers.master(timerFlushIntervalMs="50")
        slave = await brokers.slave(timerFlushIntervalMs="50")
        wheel = tmp_path / "slave" / "timerwheel"
        wheel.mkdir()
        timers = slave.delivery.timers._timers
        async with await RawClient.open(master.address) as client:
            assert (await send(client, b"x", timed("x", TIMER_DELAY_MS=60_000))).code == 0
            await until(lambda: master.delivery.timers._timers.checkpoint.queue_offset == 1)
            assert (await send(client, b"later than the checkpoint")).code == 0
        await until(lambda: timers.checkpoint.master_queue_offset == 1)
        assert not slave._sync.jobs.failing
        assert timers.queue_offset == 0
        wheel.rmdir()
        await until(lambda: timers.queue_offset == 1)
        assert not slave.health().stalled
