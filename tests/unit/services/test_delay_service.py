"""DelayService: deliveries and saves that fail, and are repeated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rocketpy.protocol.bodies import DelayOffsetSerializeWrapper
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.services.delay.scheduler import DelayService
from rocketpy_broker.services.delay.topic_rewrite import to_delayed_message
from rocketpy_broker.store import MessageInner, MessageStore
from rocketpy_broker.store.busy import Reason, StoreBusy
from rocketpy_broker.store.config import FlushConfig
from rocketpy_broker.store.upkeep.driver import StoreDriver
from tests.unit.store.faulty_disk import FaultyDisk
from tests.unit.store.helpers import bodies, small_config
from tests.waiting import until

HOUR_MS = 3_600_000


async def put(service: DelayService) -> None:
    """Store a delayed message."""
    message = MessageInner("Real", 0, b"late", born_timestamp=7)
    to_delayed_message(message, {"DELAY": "0"}, 1, service.levels.level_max)
    service.store.put_message(message)
    service.driver.schedule_dispatch(0)
    await until(lambda: service.store.dispatch_behind_bytes == 0)


@asynccontextmanager
async def delivering(root: Path, disk: FaultyDisk) -> AsyncIterator[DelayService]:
    """A service with one message that is due, which saves only on request. No periodic flush runs."""
    flush = FlushConfig(commit_log_interval_ms=HOUR_MS, consume_queue_interval_ms=HOUR_MS)
    store = MessageStore(small_config(root, flush=flush), disk=disk)
    driver = StoreDriver(store)
    await driver.start()
    service = DelayService(
        store,
        driver,
        root / "delayOffset.json",
        Tasks("a broker"),
        queue_to_deliver=lambda _topic, queue_id, _count: queue_id,
        interval_ms=HOUR_MS,
    )
    service.load()
    await put(service)
    service.clock = lambda: store.clock() + HOUR_MS
    try:
        yield service
    finally:
        disk.fail_at = 0
        await service.close(saves=False)
        await driver.close()


async def test_delayed_messages_are_delivered_after_an_overload(tmp_path: Path) -> None:
    """Messages that were due while the store rejected messages would wait for the next delayed message."""
    async with delivering(tmp_path, FaultyDisk()) as service:
        store = service.store
        store.reject(Reason.SLAVE, StoreBusy("overloaded"))  # for longer than a reason BUSY lasts
        service.start()
        first = service._calls._timer
        await until(lambda: service._calls._timer is not first and service._calls._timer is not None)
        assert bodies(store, "Real") == []
        store.reject(Reason.SLAVE, None)
        await until(lambda: bodies(store, "Real") == [b"late"])
        assert service.driver.jobs.failing == {}  # an overload is no failure


async def test_delayed_messages_are_delivered_after_a_disk_error(tmp_path: Path) -> None:
    """After one failed write, due messages would wait for the next delayed message."""
    disk = FaultyDisk(only="pwrite")
    async with delivering(tmp_path, disk) as service:
        disk.calls, disk.fail_at = 0, 1
        service.start()
        await until(lambda: service.driver.jobs.failing)
        assert bodies(service.store, "Real") == []
        await until(lambda: bodies(service.store, "Real") == [b"late"])
        await until(lambda: not service.driver.jobs.failing)


async def test_offsets_are_saved_after_the_messages_are_durable(tmp_path: Path) -> None:
    """After a power failure, a message that was delivered but not flushed would be missing."""
    disk = FaultyDisk(only="fdatasync")
    async with delivering(tmp_path, disk) as service:
        service.create()
        service.start()
        await until(lambda: bodies(service.store, "Real") == [b"late"])
        disk.calls, disk.fail_at, disk.fail_count = 0, 1, 1000
        await service._save()
        assert disk.failed
        saved = DelayOffsetSerializeWrapper.decode(service.path.read_bytes())
        assert saved.offset_table == {}
        assert service.offsets() == {1: 1}


async def test_a_clean_stop_saves_the_offsets(tmp_path: Path) -> None:
    """Each restart would deliver the messages of the last seconds again."""
    async with delivering(tmp_path, FaultyDisk()) as service:
        service.create()
        service.start()
        await until(lambda: bodies(service.store, "Real") == [b"late"])
        saving = service._saving
        assert saving is not None
        await service.close()
        assert saving.task.done()  # else it would use the store after that is closed
        saved = DelayOffsetSerializeWrapper.decode(service.path.read_bytes())
        assert saved.offset_table == {1: 1}
        await put(service)
        service.start()
        await until(lambda: bodies(service.store, "Real") == [b"late"] * 2)
        service.message_appended(1)
        timer = service._calls._timer
        assert timer is not None
        await service.close(saves=False)  # a former master must not overwrite the offsets of the new one
        assert DelayOffsetSerializeWrapper.decode(service.path.read_bytes()).offset_table == {1: 1}
        assert timer.cancelled()
