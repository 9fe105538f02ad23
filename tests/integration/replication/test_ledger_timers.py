"""Timers and changes of the role in a DLedger group, also when a part of a change fails."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from rocketpy import Message
from rocketpy_broker.replication.dledger.core.events import Tick
from rocketpy_broker.services.timers.files import CheckpointFile
from rocketpy_broker.store.files.disk import OsDisk
from tests.integration.ledger_group import ledger_group
from tests.integration.replication.test_ledger_brokers import bodies_of
from tests.waiting import until

SETTINGS = {"timerFlushIntervalMs": "50", "mappedFileSizeTimerLog": "5200"}
LATER = timedelta(minutes=10)
CHANGE = "change of the role"


async def test_a_follower_saves_its_timers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It would not be ready, keep each file of the timer log, and read all timers again at each start."""
    async with ledger_group(tmp_path, settings=SETTINGS, sync_ms=50) as group:
        master = await group.master()
        async with group.producer() as producer:
            for _ in range(3):
                await producer.send(Message("T", b"x", delay=LATER))
            await until(lambda: master.delivery.timers._timers.checkpoint.queue_offset == 3)
            await producer.send(Message("T", b"later than the checkpoint"))
        follower = group.slaves()[0]
        saved = follower.delivery.timers._files.checkpoint_file.load

        def is_saved() -> bool:
            assert not follower._driver.jobs.failing
            checkpoint = saved()
            return checkpoint is not None and checkpoint.queue_offset == 3

        await until(is_saved)
        name = group.name_of(follower)
        await group.stop(name)
        again = await group.start(name, SETTINGS)
        assert again.delivery.timers._timers.queue_offset == 3
    logged = [r.getMessage() for r in caplog.records if r.name == "rocketpy.broker.timers"]
    assert not logged


async def test_a_new_master_tries_again_to_start_its_work(tmp_path: Path) -> None:
    """It would accept messages and be ready, but deliver no timer, and reject each pop until a restart."""
    async with ledger_group(tmp_path, settings=SETTINGS) as group, group.producer() as producer:
        first = await group.master()
        await producer.send(Message("T", b"before"))
        for slave in group.slaves():
            (tmp_path / group.name_of(slave) / "timerwheel").write_bytes(b"of another size")
        await group.stop(group.name_of(first))
        second = await group.master()
        await until(lambda: CHANGE in second._driver.jobs.failing)
        assert not second.delivery.pop.is_ready
        (tmp_path / group.name_of(second) / "timerwheel").unlink()
        await producer.send(Message("T", b"timer", delay=timedelta(milliseconds=1)))
        await until(lambda: b"timer" in bodies_of(second))
        await until(lambda: second.delivery.pop.is_ready)
        assert not second._driver.jobs.failing


async def test_a_former_master_tries_again_to_become_a_slave(tmp_path: Path) -> None:
    """It would never copy topics and offsets again, and lack them as the next master."""
    async with ledger_group(tmp_path, settings=SETTINGS) as group:
        master = await group.master()
        for slave in group.slaves():
            await group.stop(group.name_of(slave))
        stray = tmp_path / group.name_of(master) / "timerlog" / f"{0:020}"
        stray.parent.mkdir()
        stray.write_bytes(bytes(9999))
        await group.end_silence()
        await until(lambda: CHANGE in master._driver.jobs.failing)
        assert master._sync._copying is None
        stray.unlink()
        await until(lambda: master._sync._copying is not None)
        assert not master._driver.jobs.failing
        assert not master.delivery.timers._is_master


async def test_a_leader_that_stops_without_a_majority_saves_no_delivery(tmp_path: Path) -> None:
    """If the group does not keep the copy, no later leader would deliver the message."""
    async with ledger_group(tmp_path, settings=SETTINGS) as group, group.producer() as producer:
        master = await group.master()
        name, timers = group.name_of(master), master.delivery.timers
        await producer.send(Message("T", b"x", delay=timedelta(seconds=1)))
        await until(lambda: timers.waiting == 1)
        for slave in group.slaves():
            await group.stop(group.name_of(slave))
        await until(lambda: timers.waiting == 0)
        end_ms = timers._timers.read_ms
        stopping = asyncio.create_task(group.stop(name))
        await until(timers._saving.locked)
        group.advance(master.ledger.peer.settings.election_timeout_ms + 1)
        master.ledger.peer._step(Tick())
        await stopping
    file = CheckpointFile(OsDisk(), tmp_path / name / "config" / "timercheck")
    saved = file.load()
    file.close()
    assert saved is None or saved.read_ms < end_ms
