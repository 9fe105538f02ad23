"""SendHandler: where messages are stored, which sends are rejected, and when responses leave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rocketpy.errors import StoreError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.record import host_bytes
from rocketpy.protocol.message.sysflag import MessageSysFlag, TopicSysFlag
from rocketpy.protocol.remoting.command import FLAG_ONEWAY, Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import channel
from rocketpy_broker.config.model import ConsumeConfig, SendConfig, TopicsConfig
from rocketpy_broker.handlers.send.response import OnStored, ParkedResponse, SendResponses
from rocketpy_broker.handlers.send.response_waiters import PC_BUSY, CommitWaiters
from rocketpy_broker.handlers.send.send import _host, _waits
from rocketpy_broker.services.delay.topic_rewrite import HALF_TOPIC
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.busy import PendingFull, Reason, StoreBusy
from rocketpy_broker.store.files.disk import OsDisk
from tests.unit.handlers.broker_parts import HOST, BrokerParts, broker, send_header, served
from tests.unit.store.faulty_disk import FaultyDisk
from tests.unit.store.helpers import message
from tests.waiting import LIMIT_S, until

PREPARED = MessageSysFlag.TRANSACTION_PREPARED
READ = 4


async def test_sends_of_one_buffer_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each send of a pipelining producer would cost a write, or get the response of another send."""
    monkeypatch.setattr(channel, "_TURN_S", LIMIT_S)  # a slow turn would end after some of the sends

    class Disk(OsDisk):
        """Counts writes to the commit log; those of the periodic flush to other files may come any time."""

        writes = 0

        def pwrite(self, handle: int, data: bytes, position: int) -> None:
            self.writes += "commitlog" in Path(f"/proc/self/fd/{handle}").readlink().parts
            super().pwrite(handle, data, position)

    disk = Disk()
    async with broker(tmp_path, "T", disk=disk) as (_parts, client):
        await client.send(b"first")
        writes = disk.writes
        responses = await asyncio.gather(*(client.send(b"%d" % number) for number in range(20)))
        assert (writes, disk.writes) == (1, 2)
    assert [response.ext_fields()["queueOffset"] for response in responses] == [str(i) for i in range(1, 21)]


async def test_the_broker_chooses_a_queue_that_is_read(tmp_path: Path) -> None:
    """A message without a queue id would be stored where no consumer reads it."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T", read_queue_nums=1, write_queue_nums=64)
    parts.add_topics("%RETRY%g", read_queue_nums=1, write_queue_nums=64)
    async with served(parts) as (client,):
        for number in range(8):
            assert (await client.send(queue_id=-1)).code == ResponseCode.SUCCESS
            response = await client.send(topic="%RETRY%g", queue_id=number, max_reconsume_times=16)
            assert response.code == ResponseCode.SUCCESS
        assert len(parts.records("T")) == len(parts.records("%RETRY%g")) == 8


async def test_a_oneway_send_gets_no_response(tmp_path: Path) -> None:
    """A response to a oneway send could be taken for that of another request."""
    async with broker(tmp_path, "T") as (parts, client):
        for body in (b"one", encode_batch([(0, b"two", b"")])):
            header = send_header(batch=body != b"one")
            command = Command.request(RequestCode.SEND_MESSAGE_V2, header, body)
            command.flag |= FLAG_ONEWAY
            client.channel.oneway(command)
        assert (await client.send(b"three")).ext_fields()["queueOffset"] == "2"
        assert [record.body for record in parts.records()] == [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    ("header", "body", "code", "remark"),
    [
        ({"queue_id": 2}, b"x", ResponseCode.SYSTEM_ERROR, "request queueId[2] is illegal"),
        ({"topic": "Missing", "default_topic": "None"}, b"x", ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        ({"topic": "no topic"}, b"x", ResponseCode.MESSAGE_ILLEGAL, "no topic"),
        ({"topic": "TBW102"}, b"x", ResponseCode.SYSTEM_ERROR, "system reserved words"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, b"x", ResponseCode.SYSTEM_ERROR, "system reserved words"),
        ({"sys_flag": PREPARED}, b"x", ResponseCode.MESSAGE_ILLEGAL, "without the property TRAN_MSG=true"),
        ({"properties": "DELAY\x01soon\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL, "DELAY is 'soon'"),
        ({"properties": "TRAN_MSG\x01true\x02"}, b"x", ResponseCode.NO_PERMISSION, "transaction message"),
        ({"batch": True}, b"", ResponseCode.MESSAGE_ILLEGAL, "holds no message"),
        ({"batch": True}, b"123", ResponseCode.MESSAGE_ILLEGAL, ""),
        (
            {"batch": True},
            encode_batch([(0, b"x", b"DELAY\x011\x02")]),
            ResponseCode.MESSAGE_ILLEGAL,
            "cannot be delayed",
        ),
        ({"topic": "%RETRY%g", "batch": True}, b"", ResponseCode.MESSAGE_ILLEGAL, "retry group"),
        ({"topic": "%RETRY%unknown"}, b"x", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "unknown"),
    ],
)
async def test_invalid_sends_are_rejected(
    tmp_path: Path, header: dict[str, Any], body: bytes, code: int, remark: str
) -> None:
    """QUIRKS 18, 24. A producer would believe that a message is stored which no consumer can get."""
    parts = BrokerParts(
        tmp_path, send=SendConfig(reject_transactions=True), consume=ConsumeConfig(auto_create_group=False)
    )
    parts.add_topics("T", "%RETRY%g", "%RETRY%unknown")
    async with served(parts) as (client,):
        text = header.pop("properties", "")
        response = await client.send(body, text, **header)
        assert (response.code, remark in (response.remark or "")) == (code, True), response.remark
        assert response.ext_fields()["MSG_REGION"] == "r"
    assert not parts.records()


async def test_no_send_is_accepted_before_the_configured_time(tmp_path: Path) -> None:
    """startAcceptSendRequestTimeStamp: producers would send while operators still prepare the broker."""
    async with broker(tmp_path, "T", send=SendConfig(start_accept_ms=100)) as (parts, client):
        parts.time_ms = 99
        response = await client.send()
        assert (response.code, "until 100 ms" in (response.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        parts.time_ms = 100
        assert (await client.send()).code == ResponseCode.SUCCESS


async def test_an_ordered_topic_follows_the_permission_of_the_broker(tmp_path: Path) -> None:
    """An operator could not move ordered topics to other brokers by removing the write permission."""
    parts = BrokerParts(tmp_path, permission=READ)
    parts.add_topics("Ordered", order=True)
    parts.add_topics("T")
    async with served(parts) as (client,):
        response = await client.send(topic="Ordered")
        assert (response.code, response.remark) == (
            ResponseCode.NO_PERMISSION,
            "the broker[broker-a] sending message is forbidden",
        )
        assert (await client.send()).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("reason", "error", "code", "remark"),
    [
        (Reason.SLAVE, StoreError("a slave"), ResponseCode.SERVICE_NOT_AVAILABLE, "a slave"),
        (Reason.BUSY, StoreBusy("slow"), ResponseCode.SYSTEM_BUSY, "the store rejects messages: slow"),
        (Reason.BUSY, PendingFull("full"), ResponseCode.SYSTEM_ERROR, PC_BUSY),
    ],
)
async def test_the_reason_of_the_store_decides_the_code(
    tmp_path: Path, reason: Reason, error: StoreError, code: int, remark: str
) -> None:
    """QUIRKS 39. Clients would not know whether to try another broker, wait or give up."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T")
    parts.store.reject(reason, error)
    async with served(parts) as (client,):
        for header in (
            {},
            {"text": "DELAY\x010\x02"},
            {"batch": True, "body": encode_batch([(0, b"x", b"")])},
        ):
            response = await client.send(**header)
            assert (response.code, response.remark) == (code, remark)


async def test_a_failed_write_fails_every_send_of_the_buffer(tmp_path: Path) -> None:
    """A producer would get SEND_OK for a message that is not in the log."""
    disk = FaultyDisk(only="pwrite")
    parts = BrokerParts(tmp_path, disk=disk)
    parts.add_topics("T")
    errors: list[StoreError | None] = []
    async with served(parts) as (client,):
        await client.send(b"first")
        parts.send.append(message(1), errors.append)
        disk.fail_at, disk.fail_count = disk.calls + 1, 1000
        responses = await asyncio.gather(*(client.send(b"x") for _ in range(3)))
        assert {response.code for response in responses} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        assert len(errors) == 1
        assert isinstance(errors[0], StoreError)
        disk.fail_at = 0


# -- properties ---------------------------------------------------------------------------------


async def test_a_topic_with_several_tags_marks_its_messages(tmp_path: Path) -> None:
    """RocketMQ's consumers would miss the flag MULTI_TAGS of messages of such topics."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T", topic_filter_type="MULTI_TAG")
    async with served(parts) as (client,):
        await client.send()
        (record,) = parts.records()
    assert record.sys_flag == MessageSysFlag.MULTI_TAGS


# -- delayed messages, transactions, retries ------------------------------------------------------


@pytest.mark.parametrize(("level", "used"), [("1", 1), ("2", 2), ("9", 2), ("0", 0), ("-1", 0)])
async def test_a_delayed_message_goes_to_the_queue_of_its_level(
    tmp_path: Path, level: str, used: int
) -> None:
    """QUIRKS 20, 29. A level above the last one would name a queue that nothing delivers from."""
    async with broker(tmp_path, "T") as (parts, client):
        response = await client.send(text=f"DELAY\x01{level}\x02", queue_id=1)
        assert response.ext_fields()["queueId"] == "1"
        assert parts.delayed == [used] * (used > 0)
        (record,) = parts.records("SCHEDULE_TOPIC_XXXX", used - 1) if used else parts.records("T", 1)
    found = props.decode(record.properties)
    assert (found.get("REAL_TOPIC"), found.get("REAL_QID")) == (("T", "1") if used else (None, None))


async def test_without_delay_levels_a_delayed_message_is_rejected(tmp_path: Path) -> None:
    """With an empty messageDelayLevel, a delayed message would be delivered at once."""
    async with broker(tmp_path, "T", delay_levels="") as (parts, client):
        response = await client.send(text="DELAY\x011\x02")
        assert (response.code, parts.records()) == (ResponseCode.MESSAGE_ILLEGAL, [])
        assert "messageDelayLevel is empty" in (response.remark or "")
        assert (await client.send(text="DELAY\x010\x02")).code == ResponseCode.SUCCESS


async def test_a_half_message_is_hidden_from_consumers(tmp_path: Path) -> None:
    """QUIRKS 27. Consumers would read a message whose transaction may be rolled back."""
    async with broker(tmp_path, "T") as (parts, client):
        text = "TRAN_MSG\x01true\x02DELAY\x011\x02"
        assert (await client.send(text=text, sys_flag=PREPARED)).code == ResponseCode.SUCCESS
        assert parts.records() == []
        (record,) = parts.records(HALF_TOPIC)
    assert (record.sys_flag & MessageSysFlag.TRANSACTION_MASK, parts.delayed) == (0, [])
    assert "DELAY" not in props.decode(record.properties)


@pytest.mark.parametrize(
    ("times", "limit", "topic"), [(1, 2, "%RETRY%g"), (2, 2, "%DLQ%g"), (16, None, "%DLQ%g")]
)
async def test_a_message_that_was_retried_often_enough_is_a_dead_letter(
    tmp_path: Path, times: int, limit: int | None, topic: str
) -> None:
    """QUIRKS 37. A consumer that sends retries itself would get a message forever."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("%RETRY%g")
    async with served(parts) as (client,):
        header: dict[str, Any] = {"topic": "%RETRY%g", "reconsume_times": times, "max_reconsume_times": limit}
        assert (await client.send(text="DELAY\x011\x02", **header)).code == ResponseCode.SUCCESS
        stored_in = "SCHEDULE_TOPIC_XXXX" if topic == "%RETRY%g" else topic
        (record,) = parts.records(stored_in)
    assert record.reconsume_times == times
    assert parts.delayed == [1] * (topic == "%RETRY%g")


@pytest.mark.parametrize(
    ("topic", "flags"),
    [("U", TopicSysFlag.UNIT), ("%RETRY%g", TopicSysFlag.UNIT_SUB)],
)
async def test_topics_of_units_are_marked(tmp_path: Path, topic: str, flags: int) -> None:
    """Name servers, which list the topics of units by these flags, would not list them."""
    async with broker(tmp_path) as (parts, client):
        assert (await client.send(topic=topic, unit_mode=True)).code == ResponseCode.SUCCESS
        created = parts.topics.get(topic)
    assert created is not None
    assert created.topic_sys_flag == flags


async def test_a_retry_topic_is_created_without_a_model(tmp_path: Path) -> None:
    """A consumer whose retry topic is missing would lose the messages that it returns."""
    async with broker(tmp_path, topics=TopicsConfig(auto_create=False)) as (parts, client):
        assert (await client.send(topic="%RETRY%g")).code == ResponseCode.SUCCESS
        assert (await client.send(topic="Other")).code == ResponseCode.TOPIC_NOT_EXIST
        assert len(parts.records("%RETRY%g")) == 1


# -- responses ----------------------------------------------------------------------------------


async def test_only_sends_that_wait_are_parked(tmp_path: Path) -> None:
    """SYNC_FLUSH, SYNC_MASTER: a producer with WAIT=false would wait, or one without it would not."""
    parked: list[tuple[list[ParkedResponse], int]] = []

    def park(sends: list[ParkedResponse], end: int, _: Sequence[OnStored] = ()) -> None:
        parked.append((sends, end))

    async with broker(tmp_path, "T", park=park) as (parts, client):
        assert (await client.send(text="WAIT\x01false\x02")).code == ResponseCode.SUCCESS
        waiting = asyncio.ensure_future(client.send(b"waits"))
        await until(lambda: len(parked) == 2)
        assert not waiting.done()
        (none, first_end), ((one,), end) = parked
        assert (none, one.request.body, end) == ([], b"", parts.store.max_physical_offset)
        assert 0 < first_end < end
        one.channel.reply(SendResponses(store_host=HOST, region_id="r", trace_on=True).stored(one))
        assert (await waiting).code == ResponseCode.SUCCESS


async def test_a_peer_of_a_group_responds_after_the_commit(tmp_path: Path) -> None:
    """DLedger: a producer would get SEND_OK for a message that no majority has."""

    def commits(responses: SendResponses, tasks: Tasks, store: MessageStore) -> CommitWaiters:
        return CommitWaiters(
            responses,
            tasks,
            appended=lambda: store.max_physical_offset,
            push=lambda: None,
            timeout_ms=600_000,
        )

    parts = BrokerParts(tmp_path, make_commits=commits)
    parts.add_topics("T")
    assert parts.commits is not None
    async with served(parts) as (client,):
        waiting = asyncio.ensure_future(client.send())
        await until(lambda: parts.store.max_physical_offset)
        assert not waiting.done()
        parts.commits.committed(parts.store.max_physical_offset)
        assert (await waiting).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("properties", "waits"),
    [
        (b"", True),
        (b"WAIT\x01true\x02", True),
        (b"WAIT\x01TRUE\x02", True),
        (b"WAIT\x01false\x02", False),
        (b"MY_WAIT\x01false\x02", True),
        (b"MY_WAIT\x01false\x02WAIT\x01false\x02", False),
        (b"MY_WAIT\x01true\x02WAIT\x01no\x02", False),
    ],
)
def test_only_the_property_wait_decides_whether_a_send_waits(properties: bytes, waits: bool) -> None:
    """A user's property such as MY_WAIT would switch off the guarantee of SYNC_FLUSH."""
    assert _waits(properties) is waits


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", host_bytes("127.0.0.1", 1)),
        ("[::ffff:1.2.3.4]:5", host_bytes("1.2.3.4", 5)),
        ("[fe80::1%eth0]:9", host_bytes("fe80::1", 9)),
        ("memory://x#1", bytes(8)),
    ],
)
def test_the_born_host_is_the_address_of_the_connection(address: str, expected: bytes) -> None:
    """Operators could not find the sender of a message by its born host."""
    assert _host(address) == expected
