"""Timers in a DLedger group."""

from datetime import timedelta
from pathlib import Path

import pytest

from rocketpy import Message
from tests.integration.ledger_group import ledger_group
from tests.waiting import until

SETTINGS = {"timerFlushIntervalMs": "50", "mappedFileSizeTimerLog": "5200"}
LATER = timedelta(minutes=10)


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
