"""Timed messages at a broker with real sockets: when they arrive, what is refused, how they are recalled."""

from __future__ import annotations

import asyncio
import shutil
import time
from functools import partial
from pathlib import Path

import pytest

from rocketpy.errors import DiskFull
from rocketpy.protocol.bodies import KVTable, TimerMetricsSerializeWrapper
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    HeartbeatResponseHeader,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SendMessageResponseHeader,
)
from rocketpy.protocol.message.properties import decode
from rocketpy.protocol.message.recall_handle import RecallHandle
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.services.timers.formats import TimerCheckpoint
from rocketpy_broker.services.timers.messages import TIMER_TOPIC
from rocketpy_broker.services.timers.scheduler import TimerService
from rocketpy_broker.store.busy import Reason
from tests.integration.broker.test_deferred import arrive, send
from tests.integration.raw_client import RawClient, serving
from tests.integration.server.test_live_config import ALLOWED, servers, update
from tests.integration.small import SMALL
from tests.waiting import until

LATER_MS = 60_000


def now_ms() -> int:
    """The time, as brokers have it."""
    return time.time_ns() // 1_000_000


def timed(name: str, **times: int) -> str:
    """The properties of a timed message."""
    return f"UNIQ_KEY\x01{name}\x02" + "".join(f"{key}\x01{value}\x02" for key, value in times.items())


async def recall(client: RawClient, handle: str, topic: str = "T") -> Command:
    """RECALL_MESSAGE."""
    header = RecallMessageRequestHeader(producer_group="g", topic=topic, recall_handle=handle)
    return await client.call(RequestCode.RECALL_MESSAGE, header)


async def test_timed_messages_are_delivered_when_they_are_due(tmp_path: Path) -> None:
    """They would be late by up to a second, as in RocketMQ, or early."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        assert (await send(client, b"first")).code == 0
        asked = now_ms()
        assert (await send(client, b"delay", timed("a", TIMER_DELAY_MS=730))).code == 0
        assert (await send(client, b"second", timed("b", TIMER_DELAY_SEC=1))).code == 0
        assert (await send(client, b"at", timed("c", TIMER_DELIVER_MS=asked + 300))).code == 0
        assert (await send(client, b"past", timed("d", TIMER_DELIVER_MS=asked - 300))).code == 0
        found = {record.body: record.store_timestamp for record in await arrive(client, 5)}
    assert list(found) == [b"first", b"past", b"at", b"delay", b"second"]
    assert found[b"at"] >= asked + 300
    assert found[b"delay"] >= asked + 730
    assert found[b"second"] >= asked + 1000


async def test_tools_show_how_many_timers_wait(tmp_path: Path) -> None:
    """Mqadmin brokerStatus and clusterList of RocketMQ 5 would show no backlog of timers."""
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        timers = cluster.brokers[0].delivery.timers

        async def shown() -> dict[str, str]:
            table = KVTable.decode((await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
            return {name: value for name, value in table.items() if name.startswith("timer")}

        expected = {"timerReadBehind": "0", "timerOffsetBehind": "0", "timerCongestNum": "0"}
        assert await shown() == expected
        assert (await send(client, b"x", timed("a", TIMER_DELAY_MS=LATER_MS))).code == 0
        await until(lambda: timers.waiting == 1)
        assert await shown() == {**expected, "timerCongestNum": "1"}


async def test_timers_are_moved_when_files_are_kept_shorter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Timers that wait longer would be deleted: at a change of a running broker, and at one in its file."""
    async with servers(tmp_path, ALLOWED) as (_, broker), await RawClient.open(broker.address) as client:
        assert (await send(client, b"x", timed("a", TIMER_DELAY_SEC=30 * 3600))).code == 0
        await until(lambda: broker.delivery.timers.waiting == 1)
        assert await update(client, "fileReservedTime=24\n") == (0, "")
        await until(lambda: "they roll after 43200 s now, instead of 129600 s" in caplog.text)
        await until(lambda: broker.delivery.timers.waiting == 1)
        await until(lambda: not broker.delivery.timers.needs_files())
        await update(client, "fileReservedTime=2\n")
        assert broker.delivery.timers.needs_files()
        broker.store.reject(Reason.DISK_FULL, DiskFull("full"))  # or nothing would be deleted for ever
        assert not broker.delivery.timers.needs_files()
        broker.store.reject(Reason.DISK_FULL, None)
        await until(lambda: "they roll after 3600 s now, instead of 43200 s" in caplog.text)
    async with servers(tmp_path, f"{ALLOWED}fileReservedTime=1\n") as (_, broker):
        await until(lambda: "they roll after 1800 s now, instead of 3600 s" in caplog.text)
        await until(lambda: broker.delivery.timers.waiting == 1)


async def test_a_delay_level_counts_more(tmp_path: Path) -> None:
    """QUIRKS 71: two times would compete."""
    settings = {**SMALL, "messageDelayLevel": "1s 1h"}
    async with serving(tmp_path, settings=settings) as (cluster, client):
        assert (await send(client, b"x", timed("a", TIMER_DELAY_MS=1, DELAY=1))).code == 0
        (record,) = await arrive(client, 1)
        assert "TIMER_DELAY_MS" not in decode(record.properties)
        assert cluster.brokers[0].delivery.timers.waiting == 0


async def test_what_cannot_be_timed_is_refused_with_the_reason(tmp_path: Path) -> None:
    """The message would be delivered at another time than its sender expects."""
    async with serving(tmp_path, settings={**SMALL, "timerMaxDelaySec": "100"}) as (_, client):
        for times, code, reason in (
            ({"TIMER_DELAY_SEC": 101}, ResponseCode.MESSAGE_ILLEGAL, "timerMaxDelaySec=100"),
            ({"TIMER_DELIVER_MS": 10**18}, ResponseCode.MESSAGE_ILLEGAL, "timerMaxDelaySec=100"),
        ):
            response = await send(client, b"x", timed("a", **times))
            assert response.code == code
            assert reason in (response.remark or "")
        response = await send(client, b"x", "TIMER_DELAY_SEC\x01soon\x02")
        assert response.code == ResponseCode.MESSAGE_ILLEGAL
        assert "'soon'" in (response.remark or "")
        assert (await send(client, b"x", timed("a", TIMER_DELAY_SEC=99))).code == 0


async def test_a_broker_without_timers_refuses_timed_messages(tmp_path: Path) -> None:
    """It would never deliver them, and clients would not choose a delay level instead."""
    async with serving(tmp_path, settings={**SMALL, "timerWheelEnable": "false"}) as (_, client):
        response = await send(client, b"x", timed("a", TIMER_DELAY_SEC=1))
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "timerWheelEnable" in (response.remark or "")
        assert "timer" not in (await _heartbeat(client)).feature_set
    async with serving(tmp_path, settings=SMALL) as (_, client):
        assert "timer" in (await _heartbeat(client)).feature_set


async def _heartbeat(client: RawClient) -> HeartbeatResponseHeader:
    response = await client.call(RequestCode.HEART_BEAT, body=b'{"clientID":"c"}')
    return response.header_as(HeartbeatResponseHeader)


def _waits(timers: TimerService, count: int) -> bool:
    return timers.waiting >= count


async def test_too_many_timers_are_refused(tmp_path: Path) -> None:
    """A producer in a loop would fill the broker with messages for later."""
    at = (now_ms() // 1000 + 100) * 1000 + 500
    settings = {**SMALL, "timerCongestNumEachSlot": "5", "timerMessagesMax": "20"}
    async with serving(tmp_path, settings=settings) as (cluster, client):
        timers = cluster.brokers[0].delivery.timers

        async def fill(limit: int, step_ms: int) -> str:
            for number in range(100):
                wanted = timers.waiting + 1
                response = await send(
                    client, b"x", timed(f"{number}", TIMER_DELIVER_MS=at + number * step_ms)
                )
                if response.code:
                    assert response.code == ResponseCode.SYSTEM_ERROR
                    return response.remark or ""
                await until(partial(_waits, timers, wanted))
                assert timers.waiting <= limit
            raise AssertionError("no message was refused")

        assert "timerCongestNumEachSlot=5" in await fill(10, 0)
        at += 10_000
        assert "timerMessagesMax" in await fill(20, 1000)


async def test_a_recall(tmp_path: Path) -> None:
    """The message would be delivered nevertheless, or another one would not."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        assert (await send(client, b"first")).code == 0
        at = now_ms() + 1500
        handles = []
        for name in ("a", "b", "c"):
            response = await send(client, name.encode(), timed(name, TIMER_DELIVER_MS=at))
            handles.append(response.header_as(SendMessageResponseHeader).recall_handle or "")
        response = await recall(client, handles[1])
        assert response.code == 0, response.remark
        assert response.header_as(RecallMessageResponseHeader).msg_id == "b"
        found = await arrive(client, 3)
        assert [record.body for record in found] == [b"first", b"a", b"c"]
        assert min(record.store_timestamp for record in found[1:]) >= at


async def test_a_recall_is_obeyed_from_its_arrival(tmp_path: Path) -> None:
    """The message would be delivered during the flush of the recall, whose response says success."""
    async with serving(tmp_path, settings={**SMALL, "flushDiskType": "SYNC_FLUSH"}) as (cluster, client):
        broker = cluster.brokers[0]
        timers = broker.delivery.timers
        at = now_ms() + 2000
        response = await send(client, b"x", timed("a", TIMER_DELIVER_MS=at))
        handle = response.header_as(SendMessageResponseHeader).recall_handle or ""
        await until(lambda: timers.waiting == 1)
        appended = broker.store.appended_in_queue(TIMER_TOPIC, 0)
        async with timers.driver.paused():
            recalling = asyncio.create_task(recall(client, handle))
            await until(lambda: broker.store.appended_in_queue(TIMER_TOPIC, 0) > appended)
            await until(lambda: now_ms() > at + 50)
        assert (await recalling).code == 0
        await until(lambda: timers.waiting == 0)
        assert broker.store.appended_in_queue("T", 0) == 0


async def test_what_a_recall_is_refused_for(tmp_path: Path) -> None:
    """RocketMQ reports success for messages that it does not have (QUIRKS 74)."""
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        assert (await send(client, b"other", topic="Other")).code == 0
        response = await send(client, b"x", timed("a", TIMER_DELAY_MS=LATER_MS))
        text = response.header_as(SendMessageResponseHeader).recall_handle or ""
        handle = RecallHandle.decode(text)
        assert handle.topic == "T"
        cases = {
            "recall handle": "junk",
            "is due since": handle._replace(deliver_ms=now_ms() - 1).encode(),
            "no message b": handle._replace(message_id="b").encode(),
            "that is due at": handle._replace(deliver_ms=handle.deliver_ms + 1000).encode(),
            "not of T": handle._replace(topic="Other").encode(),
            f"this one is {cluster.brokers[0].config.name}": handle._replace(broker_name="b2").encode(),
        }
        for reason, wrong in cases.items():
            refused = await recall(client, wrong)
            assert refused.code == ResponseCode.ILLEGAL_OPERATION
            assert reason in (refused.remark or "")
        assert (await recall(client, text, topic="Unknown")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await recall(client, text)).code == 0
    async with serving(tmp_path, settings={**SMALL, "recallMessageEnable": "false"}) as (_, client):
        assert (await recall(client, text)).code == ResponseCode.NO_PERMISSION


async def test_timers_survive_a_restart(tmp_path: Path) -> None:
    """A clean stop would lose them, or deliver them twice. QUIRKS 75: slaves request the checkpoint."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        for number in range(20):
            response = await send(
                client, b"%d" % number, timed(f"{number}", TIMER_DELAY_MS=100 + 100 * number)
            )
            assert response.code == 0
        await arrive(client, 5)
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        found = await arrive(client, 20)
        assert sorted(int(record.body) for record in found) == list(range(20))
        checkpoint = await client.call(RequestCode.GET_TIMER_CHECK_POINT)
        assert TimerCheckpoint.decode(checkpoint.body).queue_offset == 20
        assert cluster.brokers[0].topics.get(TIMER_TOPIC) is None


async def counts(client: RawClient) -> dict[str, int]:
    """GET_TIMER_METRICS."""
    response = await client.call(RequestCode.GET_TIMER_METRICS)
    found = TimerMetricsSerializeWrapper.decode(response.body).timing_count
    return {topic: one.count for topic, one in found.items()}


async def test_the_number_of_timers_of_a_topic(tmp_path: Path) -> None:
    """QUIRKS 75: a slave of RocketMQ requests it, and operators' tools show it."""
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        for number in range(5):
            text = timed(f"{number}", TIMER_DELAY_MS=300 if number < 2 else LATER_MS)
            response = await send(client, b"x", text, topic="T" if number else "U")
        assert (await recall(client, response.ext_fields()["recallHandle"])).code == 0
        await arrive(client, 1)
        await arrive(client, 1, topic="U")
        timers = cluster.brokers[0].delivery.timers
        await until(lambda: timers._timers.queue_offset == 6 and timers.waiting == 2)
        assert await counts(client) == {"T": 2}
    async with serving(tmp_path, settings=SMALL) as (_, client):
        assert await counts(client) == {"T": 2}


async def test_timers_that_are_read_again_count_once(tmp_path: Path) -> None:
    """Each loss of the files would add all timers to the counts for ever."""
    for _ in range(2):
        async with serving(tmp_path, settings=SMALL) as (cluster, client):
            if not await counts(client):
                text = timed("a", TIMER_DELAY_MS=LATER_MS)
                assert (await send(client, b"x", text)).code == 0
            broker = cluster.brokers[0]
            await until(lambda: broker.delivery.timers.waiting == 1)  # noqa: B023 - called at once
            assert await counts(client) == {"T": 1}
        shutil.rmtree(broker.config.store.root / "timerlog")


async def test_clients_cannot_write_the_timer_topic(tmp_path: Path) -> None:
    """A client could choose any topic as the real one."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        text = "REAL_TOPIC\x01Secret\x02REAL_QID\x010\x02TIMER_OUT_MS\x011000\x02"
        response = await send(client, b"x", text, topic=TIMER_TOPIC)
        assert response.code != 0


async def test_a_recall_property_must_be_of_the_same_topic(tmp_path: Path) -> None:
    """A producer could take back the messages of topics that it may not write."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        text = timed("a", TIMER_DELAY_SEC=60) + "TIMER_DEL_UNIQKEY\x01{}+b\x02"
        assert (await send(client, b"x", text.format("Other"))).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await send(client, b"x", text.format("T"))).code == 0
