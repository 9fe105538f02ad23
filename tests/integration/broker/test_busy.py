"""A broker whose disk fails or is too slow must report it to producers, with the codes that they handle."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from rocketpy.errors import FlushFailed
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import SendMessageRequestHeaderV2
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.store.busy import Reason, StoreBusy
from tests.integration.raw_client import RawClient
from tests.unit.store.faulty_disk import FaultyDisk
from tests.waiting import LIMIT_S, until


class HangingDisk(FaultyDisk):
    """A disk whose flushes block while `is_free` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = threading.Event()
        self.is_free.set()

    def fdatasync(self, handle: int) -> None:
        self.is_free.wait(60)
        super().fdatasync(handle)


def broker(root: Path, disk: FaultyDisk, **more: str) -> Broker:
    """A broker with SYNC_FLUSH on that disk."""
    settings = {
        "storePathRootDir": str(root),
        "listen": "127.0.0.1:0",
        "flushDiskType": "SYNC_FLUSH",
        "mappedFileSizeCommitLog": "1048576",
        "maxHashSlotNum": "1000",
        "maxIndexNum": "4000",
        **more,
    }
    return Broker(load_broker_config(None, settings), disk=disk)


async def send(client: RawClient, properties: str = "", *, batch: bool = False) -> Command:
    """The response to one message, or to a batch of one, whose request has these properties."""
    header = SendMessageRequestHeaderV2(
        producer_group="g",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties=properties,
        batch=batch,
    )
    if batch:
        return await client.call(RequestCode.SEND_BATCH_MESSAGE, header, encode_batch([(0, b"x", b"")]))
    return await client.call(RequestCode.SEND_MESSAGE_V2, header, b"x")


async def test_a_broker_acknowledges_nothing_after_a_failed_fsync(tmp_path: Path) -> None:
    """A broker would acknowledge messages that the disk has dropped."""
    disk = FaultyDisk(only="fdatasync", code=errno.EIO)
    # Nothing else is flushed meanwhile, so the flush that fails is that of the second message.
    running = broker(tmp_path, disk, flushIntervalConsumeQueue="600000")
    await running.start()
    async with await RawClient.open(running.address) as client:
        flushes = disk.calls
        assert (await send(client)).code == 0
        await until(lambda: disk.calls == flushes + 2)  # the log, and after the response the checkpoint
        disk.fail_at, disk.fail_count = disk.calls + 1, 1
        assert (await send(client)).code == ResponseCode.SYSTEM_ERROR
        refused = await send(client)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "flush failed" in (refused.remark or "")
        async with asyncio.timeout(LIMIT_S):
            assert isinstance(await running.wait_failed(), FlushFailed)
        health = running.health()
        assert not health.is_serving
        assert "flush failed" in (health.failure or "")
    await running.close()
    again = broker(tmp_path, FaultyDisk())
    await again.start()
    async with await RawClient.open(again.address) as client:
        assert (await send(client)).code == 0
    await again.close()


async def test_a_flush_beyond_its_timeout_is_reported_to_waiting_sends(tmp_path: Path) -> None:
    """Producers would wait for a slow disk until their own timeout, even with WAIT=false.

    Or they would believe that a message is on the disk.
    """
    disk = HangingDisk()
    running = broker(tmp_path, disk, syncFlushTimeout="50")
    await running.start()
    async with await RawClient.open(running.address) as client:
        disk.is_free.clear()
        assert (await send(client)).code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert (await send(client, "WAIT\x01false\x02")).code == 0
        assert running.store.flushed_offset < running.store.max_physical_offset
        disk.is_free.set()
        async with asyncio.timeout(LIMIT_S):
            while running.store.max_offset_in_queue("T", 0) < 2:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        assert running.store.flushed_offset == running.store.max_physical_offset
    await running.close()


WAITING = [
    "NO_WAIT\x01false\x02",
    "AWAIT\x01false\x02",
    "WAIT\x01true\x02A_WAIT\x01false\x02",
    "WAIT\x01false\x02WAIT\x01True\x02",
    "WAIT\x01\x02",
    "note\x01WAIT\x01false\x02",
]
NOT_WAITING = [
    "WAIT\x01false\x02",
    "A\x01b\x02WAIT\x01FALSE\x02C\x01d\x02",
    "A\x01b\x02WAIT\x01false",  # clients of 4.9 and later write no separator after the last property
    "WAIT\x01no\x02",
    "NO_WAIT\x01true\x02WAIT\x01true\x02WAIT\x01false\x02",
]


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("mode", ["SYNC_FLUSH", "SYNC_MASTER"])
async def test_only_the_property_wait_switches_off_waiting(tmp_path: Path, mode: str, *, batch: bool) -> None:
    """A send with a property whose name ends in WAIT would get SEND_OK before disk and slave have it.

    Source: Message.isWaitStoreMsgOK. WAIT is read as a Java boolean, and its last value counts.
    """
    disk = HangingDisk()
    if mode == "SYNC_FLUSH":
        code, settings = ResponseCode.FLUSH_DISK_TIMEOUT, {"syncFlushTimeout": "50"}
    else:
        code = ResponseCode.SLAVE_NOT_AVAILABLE
        settings = {"flushDiskType": "ASYNC_FLUSH", "brokerRole": "SYNC_MASTER"}
    running = broker(tmp_path, disk, **settings)
    await running.start()
    async with await RawClient.open(running.address) as client:
        assert (await send(client, "WAIT\x01false\x02", batch=batch)).code == 0  # makes the topic
        disk.is_free.clear()
        responses = {text: (await send(client, text, batch=batch)).code for text in WAITING + NOT_WAITING}
        disk.is_free.set()
    await running.close()
    assert responses == dict.fromkeys(WAITING, code) | dict.fromkeys(NOT_WAITING, 0)


async def test_a_store_that_cannot_keep_up_responds_system_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers would wait for their timeout before they send to another broker."""
    running = broker(tmp_path, FaultyDisk())
    await running.start()
    busy = StoreBusy("[TIMEOUT_CLEAN_QUEUE]broker busy")
    async with await RawClient.open(running.address) as client:
        with monkeypatch.context() as patch:
            patch.setattr(running.store.overload_detector, "sample", lambda _late_ms: busy)
            running.store.reject(Reason.BUSY, busy)
            response = await send(client)
        assert response.code == ResponseCode.SYSTEM_BUSY
        assert "[TIMEOUT_CLEAN_QUEUE]broker busy" in (response.remark or "")
        async with asyncio.timeout(LIMIT_S):
            while (await send(client)).code != 0:  # noqa: ASYNC110 - until the next sample
                await asyncio.sleep(0)
    await running.close()
