"""Messages that are not delivered as they are sent: delayed, transactional, sent back; and replies."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from rocketpy import LocalTransactionState, Message, Producer
from rocketpy.protocol.bodies import ConsumerOffsetSerializeWrapper, HeartbeatData, ProducerData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    CheckTransactionStateRequestHeader,
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    GetMaxOffsetRequestHeader,
    PullMessageRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from rocketpy.protocol.headers.base import Header
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy.protocol.message.message_id import decode_message_id, message_id
from rocketpy.protocol.message.record import Record, decode, decode_all
from rocketpy.protocol.remoting.command import FLAG_ONEWAY, Command, encode_command
from rocketpy_broker import EmbeddedCluster
from rocketpy_broker.store import MessageStore
from tests.golden_data import manifest, parsed
from tests.integration.delays import jump_ahead
from tests.integration.raw_client import RawClient, serving
from tests.waiting import LIMIT_S, until

SETTINGS = {
    "brokerFastFailureEnable": "false",  # on a busy machine the broker would reject sends
    "mappedFileSizeCommitLog": "1048576",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "messageDelayLevel": "0s 1s 0s 2h",
    "transactionTimeOut": "100",
    "transactionCheckInterval": "200",
    "flushDelayOffsetInterval": "100",
}
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """A broker in a kept store."""
    async with EmbeddedCluster(tmp_path / "store", settings=SETTINGS) as running:
        yield running


@pytest.fixture
async def client(cluster: EmbeddedCluster) -> AsyncIterator[RawClient]:
    """A connection to the broker."""
    async with await RawClient.open(cluster.brokers[0].address) as raw:
        yield raw


def send_header(
    text: str = "", topic: str = "T", queue_id: int = 0, **changes: object
) -> SendMessageRequestHeaderV2:
    settings: dict[str, object] = {
        "producer_group": "g", "topic": topic, "default_topic": "TBW102", "default_topic_queue_nums": 4,
        "queue_id": queue_id, "sys_flag": 0, "born_timestamp": int(time.time() * 1000), "flag": 0,
        "properties": text,
    }  # fmt: skip
    return SendMessageRequestHeaderV2(**{**settings, **changes})  # type: ignore[arg-type] # from a dict


async def send(client: RawClient, body: bytes, text: str = "", **header: object) -> Command:
    return await client.call(RequestCode.SEND_MESSAGE_V2, send_header(text, **header), body)  # type: ignore[arg-type] # from a dict


def oneway(client: RawClient, code: int, header: Header) -> None:
    request = Command.request(code, header)
    request.flag |= FLAG_ONEWAY
    client.writer.write(encode_command(request))


async def records(client: RawClient, topic: str = "T", queue_id: int = 0, offset: int = 0) -> list[Record]:
    """Up to 32 messages of a queue."""
    response = await client.call(RequestCode.PULL_MESSAGE, _pull(topic, queue_id, offset))
    return decode_all(response.body)


async def arrive(client: RawClient, count: int, topic: str = "T", queue_id: int = 0) -> list[Record]:
    """The messages of a queue once there are this many."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await records(client, topic, queue_id)
            if len(found) >= count:
                assert len(found) == count
                return found
            await asyncio.sleep(0.01)


async def half(
    client: RawClient, body: bytes, text: str = "", group: str = "g"
) -> EndTransactionRequestHeader:
    """Send a half message; the header that commits it."""
    text += f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02UNIQ_KEY\x01id-{body.decode()}\x02"
    response = (await send(client, body, text, sys_flag=4)).ext_fields()
    return EndTransactionRequestHeader(
        producer_group=group,
        tran_state_table_offset=int(response["queueOffset"]),
        commit_log_offset=decode_message_id(response["msgId"])[1],
        commit_or_rollback=COMMIT,
        msg_id=f"id-{body.decode()}",
    )


async def produce_as(client: RawClient, group: str, client_id: str = "me@1") -> None:
    """Join a producer group."""
    beat = HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name=group)])
    assert (await client.call(RequestCode.HEART_BEAT, body=beat.encode())).code == 0


# -- delay ------------------------------------------------------------------------------------


async def test_delayed_messages_are_not_delivered_early(client: RawClient) -> None:
    """QUIRKS 20, 29: a delayed message would be delivered early, or with other properties."""
    await send(client, b"first")
    before_ms = int(time.time() * 1000)
    response = await send(client, b"late", "DELAY\x012\x02TAGS\x01t\x02", queue_id=3)
    assert (response.ext_fields()["queueId"], response.ext_fields()["queueOffset"]) == ("3", "0")
    (record,) = await arrive(client, 1, queue_id=3)
    assert record.store_timestamp - before_ms >= 1000
    assert props.decode(record.properties) == {
        "DELAY": "2", "TAGS": "t", "CLUSTER": "DefaultCluster", "REAL_TOPIC": "T", "REAL_QID": "3",
    }  # fmt: skip


async def test_delayed_messages_survive_a_restart(tmp_path: Path) -> None:
    """A restart would lose delayed messages, or deliver them twice."""
    store = tmp_path / "store"
    slow = SETTINGS | {"messageDelayLevel": "0s 1s 1h 2h"}
    async with serving(store, settings=slow) as (_, client):
        await send(client, b"before", "DELAY\x011\x02")
        await send(client, b"after", "DELAY\x013\x02")
        await send(client, b"never", "DELAY\x0199\x02")
        await arrive(client, 1)
    offsets = (store / "config" / "delayOffset.json").read_text()
    assert offsets == '{\n\t"offsetTable":{1:1,3:0,4:0\n\t}\n}'
    async with serving(store, settings=SETTINGS) as (_, client):
        assert [record.body for record in await arrive(client, 2)] == [b"before", b"after"]


async def test_nothing_waits_for_the_next_periodic_flush(tmp_path: Path) -> None:
    """With SYNC_FLUSH, messages without a waiting producer would be readable late: only flushed ones are."""
    settings = SETTINGS | {
        "flushDiskType": "SYNC_FLUSH",
        "flushIntervalCommitLog": "3600000",
        "flushIntervalConsumeQueue": "3600000",
        "flushDelayOffsetInterval": "3600000",
        "transactionCheckInterval": "3600000",
    }
    async with serving(tmp_path / "store", settings=settings) as (_, client):
        await send(client, b"delayed", "DELAY\x011\x02")
        oneway(client, RequestCode.END_TRANSACTION, await half(client, b"half"))
        await send(client, b"hasty", "WAIT\x01false\x02", queue_id=1)
        await arrive(client, 1, queue_id=1)
        assert {record.body for record in await arrive(client, 2)} == {b"half", b"delayed"}


async def test_slaves_get_the_delay_offsets(client: RawClient) -> None:
    """QUIRKS 56: a slave that takes over would deliver old messages twice."""
    await send(client, b"x", "DELAY\x014\x02")
    response = await client.call(RequestCode.GET_ALL_DELAY_OFFSET)
    assert response.body == b'{"offsetTable":{"4":0}}'


# -- transactions -----------------------------------------------------------------------------


async def test_a_commit_delivers_and_a_rollback_does_not(client: RawClient) -> None:
    """QUIRKS 27, 28: a half message would be seen, or a committed one not, or twice."""
    commit = await half(client, b"yes")
    roll_back = await half(client, b"no")
    roll_back.commit_or_rollback = ROLLBACK
    assert await records(client) == []
    oneway(client, RequestCode.END_TRANSACTION, commit)
    assert (await client.call(RequestCode.END_TRANSACTION, roll_back)).code == 0
    late = msgspec.structs.replace(roll_back, commit_or_rollback=COMMIT)
    for again in (commit, roll_back, late):  # only the first decision counts
        response = await client.call(RequestCode.END_TRANSACTION, again)
        assert response.code == ResponseCode.SYSTEM_ERROR
    assert await _max_offset(client, "RMQ_SYS_TRANS_OP_HALF_TOPIC") == 2
    (record,) = await records(client)
    assert (record.body, record.sys_flag) == (b"yes", COMMIT)
    assert record.prepared_transaction_offset == commit.commit_log_offset
    assert props.decode(record.properties)["TRAN_MSG"] == "true"


async def test_a_broker_starts_despite_an_invalid_property_of_a_half_message(
    tmp_path: Path,
) -> None:
    """Any client could make a broker fail at each start, by one property of 5,000 digits."""
    store = tmp_path / "store"
    async with serving(store, settings=SETTINGS) as (_, client):
        await half(client, b"body", f"TRAN_PREPARED_QUEUE_OFFSET\x01{'9' * 5000}\x02")
    async with serving(store, settings=SETTINGS) as (_, client):
        assert (await send(client, b"after")).code == 0


async def test_only_its_own_producer_ends_a_transaction(client: RawClient) -> None:
    """Each client could publish a message that was never committed, or any record a second time."""
    commit = await half(client, b"x")
    place = decode_message_id((await send(client, b"y", "PGROUP\x01g\x02")).ext_fields()["msgId"])[1]
    for field, value in (
        ("producer_group", "other"), ("tran_state_table_offset", 5), ("commit_log_offset", place),
        ("commit_log_offset", -1), ("commit_log_offset", 1 << 40),
    ):  # fmt: skip
        wrong = msgspec.structs.replace(commit, **{field: value})
        response = await client.call(RequestCode.END_TRANSACTION, wrong)
        assert response.code == ResponseCode.SYSTEM_ERROR
    assert (await client.call(RequestCode.END_TRANSACTION, commit)).code == 0
    assert [record.body for record in await records(client)] == [b"y", b"x"]


async def test_a_check_goes_to_the_next_producer_if_one_is_offline(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    """QUIRKS 27: a transaction whose producer died would stay open."""
    address = cluster.brokers[0].address
    async with await RawClient.open(address) as first, await RawClient.open(address) as second:
        await produce_as(first, "g", "first@1")
        await produce_as(second, "g", "second@1")
        sent = await half(first, b"what")
        first.writer.close()
        await first.writer.wait_closed()
        question = await second.next()
        assert question.code == RequestCode.CHECK_TRANSACTION_STATE
        assert question.is_oneway
        asked = question.header_as(CheckTransactionStateRequestHeader)
        assert (asked.msg_id, asked.tran_state_table_offset) == ("id-what", sent.tran_state_table_offset + 1)
        record = decode(question.body)
        assert (record.topic, record.queue_id, record.body) == ("T", 0, b"what")
        assert record.physical_offset == asked.commit_log_offset
        assert props.decode(record.properties)["TRANSACTION_CHECK_TIMES"] == "1"
        response = EndTransactionRequestHeader(
            producer_group="g",
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=COMMIT,
            msg_id="id-what",
            from_transaction_check=True,
        )
        oneway(second, RequestCode.END_TRANSACTION, response)
        assert [record.body for record in await arrive(client, 1)] == [b"what"]


@pytest.mark.parametrize("room", [0, 10, 27, 60])
async def test_a_producer_checks_a_message_of_the_maximum_size(client: RawClient, room: int) -> None:
    """A transaction whose properties have no room for its number of checks would be forgotten."""
    await half(client, b"small", "PAD\x01\x02")
    small = (await records(client, "RMQ_SYS_TRANS_HALF_TOPIC"))[0]  # a copy may follow it already
    pad = 32767 - room - len(small.properties) - len("PAD\x01\x02")
    await produce_as(client, "g")
    await half(client, b"large", f"PAD\x01{'x' * pad}\x02")
    async with asyncio.timeout(LIMIT_S):
        while True:
            question = await client.next()
            asked = question.header_as(CheckTransactionStateRequestHeader)
            if asked.msg_id == "id-large":
                break
    assert len(props.decode(decode(question.body).properties)["PAD"]) == pad
    response = EndTransactionRequestHeader(
        producer_group="g",
        tran_state_table_offset=asked.tran_state_table_offset,
        commit_log_offset=asked.commit_log_offset,
        commit_or_rollback=COMMIT,
        msg_id="id-large",
    )
    oneway(client, RequestCode.END_TRANSACTION, response)
    assert [record.body for record in await arrive(client, 1)] == [b"large"]


async def test_an_accepted_message_fits_its_real_topic(tmp_path: Path) -> None:
    """A message that is first stored under a shorter topic would be too large for its own, and lost."""
    topic = "T" * 127
    async with serving(tmp_path / "store", settings=SETTINGS | {"maxMessageSize": "4096"}) as (_, client):
        late = await _largest(client, "DELAY\x011\x02", topic)
        whole = await _largest(client, "TRAN_MSG\x01true\x02PGROUP\x01g\x02", topic, sys_flag=4)
        fields = whole.ext_fields()
        end = EndTransactionRequestHeader(
            producer_group="g",
            tran_state_table_offset=int(fields["queueOffset"]),
            commit_log_offset=decode_message_id(fields["msgId"])[1],
            commit_or_rollback=COMMIT,
            msg_id="whole",
        )
        assert late.code == 0
        assert (await client.call(RequestCode.END_TRANSACTION, end)).code == 0
        await arrive(client, 2, topic)


async def _largest(client: RawClient, text: str, topic: str, **header: object) -> Command:
    """Send the largest message of this kind that the broker accepts; returns the response."""
    size = 4096
    while True:
        size -= 1
        response = await send(client, b"x" * size, text, topic=topic, **header)
        if response.code == 0:
            return response
        assert response.code == ResponseCode.MESSAGE_ILLEGAL


async def test_an_operator_resumes_the_check_of_a_transaction(tmp_path: Path) -> None:
    """A transaction that was discarded while its producer was offline could never be ended."""
    settings = SETTINGS | {"transactionCheckMax": "1", "transactionCheckInterval": "50"}
    async with (
        EmbeddedCluster(tmp_path / "store", settings=settings) as cluster,
        await RawClient.open(cluster.brokers[0].address) as client,
        await RawClient.open(cluster.brokers[0].address) as producer,
    ):
        await half(client, b"orphan")
        (given_up,) = await _arrive_in(client, "TRANS_CHECK_MAX_TIME_TOPIC")
        await produce_as(producer, "g")
        ordinary = (await send(client, b"ordinary")).ext_fields()["msgId"]
        resume = RequestCode.RESUME_CHECK_HALF_MESSAGE
        refused = await client.call(resume, ResumeCheckHalfMessageRequestHeader(msg_id=ordinary))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert (await client.call(resume, ResumeCheckHalfMessageRequestHeader())).code != 0
        wanted = message_id(given_up.store_host, given_up.physical_offset)
        assert (await client.call(resume, ResumeCheckHalfMessageRequestHeader(msg_id=wanted))).code == 0
        asked = (await producer.next()).header_as(CheckTransactionStateRequestHeader)
        response = EndTransactionRequestHeader(
            producer_group="g",
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=COMMIT,
            msg_id="id-orphan",
        )
        oneway(producer, RequestCode.END_TRANSACTION, response)
        assert [record.body for record in await arrive(client, 2)] == [b"ordinary", b"orphan"]


async def _arrive_in(client: RawClient, topic: str) -> list[Record]:
    """Like `arrive`, for a topic that may not exist yet."""
    await _grown(client, topic, 1)
    return await records(client, topic)


async def test_a_transaction_is_not_checked_within_its_immunity_time(
    client: RawClient, cluster: EmbeddedCluster
) -> None:
    """CHECK_IMMUNITY_TIME_IN_SECONDS: a long transaction would be checked before its producer decided."""
    await produce_as(client, "g")
    commit = await half(client, b"slow", "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")
    await _grown(client, "RMQ_SYS_TRANS_HALF_TOPIC", 2)
    oneway(client, RequestCode.END_TRANSACTION, commit)
    assert [record.body for record in await arrive(client, 1)] == [b"slow"]
    assert cluster.brokers[0].health().failure is None


async def test_cleaning_unused_topics_keeps_pending_messages(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    """An operator's cleanup would lose delayed messages, or have ended transactions checked a second time."""
    await send(client, b"late", "DELAY\x014\x02")
    oneway(client, RequestCode.END_TRANSACTION, await half(client, b"done"))
    assert (await client.call(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
    assert await _max_offset(client, "RMQ_SYS_TRANS_OP_HALF_TOPIC") == 1
    assert [record.body for record in await arrive(client, 1)] == [b"done"]
    jump_ahead(cluster.brokers[0])
    assert [record.body for record in await arrive(client, 2)] == [b"done", b"late"]


# -- messages sent back -----------------------------------------------------------------------


async def test_a_returned_message_is_delivered_again_later(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    """QUIRKS 37: a message that a consumer could not process would be lost, or be delivered at once."""
    place = decode_message_id((await send(client, b"hard", "TAGS\x01t\x02")).ext_fields()["msgId"])[1]
    origin = (await send(client, b"next")).ext_fields()["msgId"][:16]
    header = ConsumerSendMsgBackRequestHeader(offset=place, group="c", delay_level=4, max_reconsume_times=2)
    assert (await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0
    assert await records(client, "%RETRY%c") == []
    jump_ahead(cluster.brokers[0])
    (again,) = await arrive(client, 1, "%RETRY%c")
    found = props.decode(again.properties)
    assert (again.body, again.reconsume_times) == (b"hard", 1)
    assert found == {
        "TAGS": "t", "CLUSTER": "DefaultCluster", "RETRY_TOPIC": "T", "WAIT": "false", "DELAY": "4",
        "ORIGIN_MESSAGE_ID": f"{origin}{place:016X}", "REAL_TOPIC": "%RETRY%c", "REAL_QID": "0",
    }  # fmt: skip
    header.offset, header.delay_level = again.physical_offset, 1
    assert (await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0
    _, third = await arrive(client, 2, "%RETRY%c")
    assert props.decode(third.properties)["ORIGIN_MESSAGE_ID"] == found["ORIGIN_MESSAGE_ID"]
    header.offset = third.physical_offset
    assert (await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0
    assert await _max_offset(client, "%DLQ%c") == 1


async def test_a_message_without_retries_left_becomes_a_dead_letter(client: RawClient) -> None:
    """QUIRKS 37: a message that always fails would be redelivered forever."""
    place = decode_message_id((await send(client, b"bad")).ext_fields()["msgId"])[1]
    header = ConsumerSendMsgBackRequestHeader(offset=place, group="c", delay_level=-1, max_reconsume_times=16)
    assert (await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0
    assert await _max_offset(client, "%DLQ%c") == 1
    response = await client.call(RequestCode.PULL_MESSAGE, _pull("%DLQ%c"))
    assert response.code == ResponseCode.NO_PERMISSION  # dead letters are for operators
    header.offset = 1 << 40
    assert (await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == ResponseCode.SYSTEM_ERROR


async def test_retries_sent_as_ordinary_messages(client: RawClient) -> None:
    """A consumer whose send-back failed sends the retry itself; it would never become a dead letter."""
    text = "DELAY\x011\x02RETRY_TOPIC\x01T\x02"
    for times in (1, 2):
        response = await send(
            client, b"%d" % times, text, topic="%RETRY%c", reconsume_times=times, max_reconsume_times=2
        )
        assert response.code == 0
    assert [record.body for record in await arrive(client, 1, "%RETRY%c")] == [b"1"]
    assert await _max_offset(client, "%DLQ%c") == 1


def _pull(topic: str, queue_id: int = 0, offset: int = 0) -> PullMessageRequestHeader:
    return PullMessageRequestHeader(
        consumer_group="c", topic=topic, queue_id=queue_id, queue_offset=offset, max_msg_nums=32, sys_flag=4,
        commit_offset=0, suspend_timeout_millis=0, sub_version=0, subscription="*",
    )  # fmt: skip


async def _grown(client: RawClient, topic: str, count: int) -> None:
    """Wait until a queue has this many messages."""
    async with asyncio.timeout(LIMIT_S):
        while await _max_offset(client, topic) < count:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


async def _max_offset(client: RawClient, topic: str) -> int:
    header = GetMaxOffsetRequestHeader(topic=topic, queue_id=0)
    return int((await client.call(RequestCode.GET_MAX_OFFSET, header)).ext_fields()["offset"])


# -- replies ----------------------------------------------------------------------------------


async def test_a_reply_reaches_the_requester(cluster: EmbeddedCluster, client: RawClient) -> None:
    """QUIRKS 30: a request would never get a response, or its response be reported as failed."""
    text = "REPLY_TO_CLIENT\x01asker@1\x02CORRELATION_ID\x017\x02"
    header = send_header(text, topic="DefaultCluster_REPLY_TOPIC")
    response = await client.call(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"early")
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark == "push reply message fail, channel of <asker@1> not found."
    assert response.ext_fields()["queueOffset"] == "0"
    async with await RawClient.open(cluster.brokers[0].address) as asker:
        await produce_as(asker, "askers", "asker@1")
        replying = asyncio.create_task(client.call(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"reply"))
        push = await asker.next()
        assert push.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        fields = push.ext_fields()
        assert fields["storeHost"] == f"/{cluster.brokers[0].address}"
        assert fields["bornHost"].startswith("/127.0.0.1:")
        assert props.decode(fields["properties"]).keys() == {
            "REPLY_TO_CLIENT", "CORRELATION_ID", "PUSH_REPLY_TIME"
        }  # fmt: skip
        assert push.body == b"reply"
        asker.writer.write(encode_command(push.reply()))
        response = await replying
        assert (response.code, response.remark, response.ext_fields()["queueOffset"]) == (0, None, "1")
    assert [one.body for one in await records(client, "DefaultCluster_REPLY_TOPIC")] == [b"early", b"reply"]


async def test_a_requester_that_leaves_fails_its_reply(cluster: EmbeddedCluster, client: RawClient) -> None:
    """The replier would wait forever for a client that is offline."""
    header = send_header("REPLY_TO_CLIENT\x01asker@1\x02", topic="DefaultCluster_REPLY_TOPIC")
    asker = await RawClient.open(cluster.brokers[0].address)
    await produce_as(asker, "askers", "asker@1")
    replying = asyncio.create_task(client.call(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"reply"))
    await asker.next()
    asker.writer.close()
    assert (await replying).code == ResponseCode.SYSTEM_ERROR


# -- one buffer, one order --------------------------------------------------------------------


async def test_a_read_sees_the_sends_before_it(client: RawClient) -> None:
    """A client that pipelines a send and a query would not find the message that it just sent."""
    await send(client, b"topic")
    frames = []
    for number in range(3):
        frames.append(encode_command(Command.request(RequestCode.SEND_MESSAGE_V2, send_header(), b"x")))
        header = GetMaxOffsetRequestHeader(topic="T", queue_id=0)
        frames.append(encode_command(Command.request(RequestCode.GET_MAX_OFFSET, header)))
        assert number >= 0
    client.writer.write(b"".join(frames))
    responses = [await client.next() for _ in frames]
    assert [response.ext_fields()["offset"] for response in responses[1::2]] == ["2", "3", "4"]


# -- the recorded store -----------------------------------------------------------------------


async def test_the_store_is_built_as_4_6_0_builds_it(tmp_path: Path) -> None:
    """QUIRKS 20, 27-29, 44: a Java broker that takes over the directory would find other files."""
    settings = SETTINGS | {
        "brokerClusterName": "GoldenCluster",
        "messageDelayLevel": "1s 1s 2s" + " 2h" * 15,
        "transactionCheckInterval": "500",
    }
    async with EmbeddedCluster(tmp_path / "store", settings=settings) as cluster:
        broker = cluster.brokers[0]
        async with await RawClient.open(broker.address) as client:
            await produce_as(client, "golden_tx_store")
            await _send_recorded(client)
            for _ in range(6):
                assert (await client.next()).code == RequestCode.CHECK_TRANSACTION_STATE
            async with await RawClient.open(broker.address) as reader:
                await arrive(reader, 2, "StoreDelay", 1)
            ours = _our_structure(broker.store)
    assert ours == _recorded_structure()
    config = tmp_path / "store" / "config"
    assert "{1:1,2:1,3:1,18:0" in (config / "delayOffset.json").read_text()
    offsets = ConsumerOffsetSerializeWrapper.decode(
        (config / "consumerOffset.json").read_bytes()
    ).offset_table
    assert offsets["RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS"] == {0: 2}
    assert offsets["RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"] == {0: 8}


async def _send_recorded(client: RawClient) -> None:
    """The sends and decisions of the recorded producer."""
    for one in manifest("txdelay"):
        text = props.encode(one["properties"])
        queues = 2 if one["topic"] == "StoreDelay" else 1
        half_flag = 4 if "TRAN_MSG" in one["properties"] else 0
        response = await send(
            client,
            bytes.fromhex(one["bodyHex"]),
            text,
            topic=one["topic"],
            queue_id=one["queueId"],
            default_topic_queue_nums=queues,
            sys_flag=half_flag,
        )
        fields = response.ext_fields()
        assert (int(fields["queueId"]), int(fields["queueOffset"])) == (one["queueId"], one["queueOffset"])
        decision = {"COMMIT_MESSAGE": COMMIT, "ROLLBACK_MESSAGE": ROLLBACK}.get(
            one["properties"].get("state")
        )
        if decision is not None:
            end = EndTransactionRequestHeader(
                producer_group="golden_tx_store",
                tran_state_table_offset=one["queueOffset"],
                commit_log_offset=decode_message_id(fields["msgId"])[1],
                commit_or_rollback=decision,
                msg_id="",
            )
            oneway(client, RequestCode.END_TRANSACTION, end)


Structure = dict[str, list[tuple[int, str, dict[str, str], int, bool]]]
"""topic/queue -> for each message: tags code (in the schedule topic the delay in ms), body, properties,
sysFlag, and whether it has a prepared transaction offset."""


def _our_structure(store: MessageStore) -> Structure:
    found: Structure = {}
    for topic, queue_id in store.table:
        for physical, size, code in store.units(topic, queue_id, 0, 100):
            record = decode(store.look_message(physical, size) or b"")
            entry = (
                code - record.store_timestamp if topic == SCHEDULE_TOPIC else code,
                record.body.hex(),
                props.decode(record.properties),
                record.sys_flag,
                record.prepared_transaction_offset > 0,
            )
            found.setdefault(f"{topic}/{queue_id}", []).append(entry)
    return _comparable(found)


def _recorded_structure() -> Structure:
    recorded = parsed("txdelay")
    records = {one["physicalOffset"]: one for file in recorded["commitlog"] for one in file["records"]}
    found: Structure = {}
    for name, queue in recorded["consumequeue"].items():
        for unit in queue["entries"]:
            record = records[unit["commitLogOffset"]]
            is_scheduled = name.startswith(SCHEDULE_TOPIC)
            entry = (
                unit["tagsCode"] - record["storeTimestamp"] if is_scheduled else unit["tagsCode"],
                record["bodyHex"],
                record["properties"],
                record["sysFlag"],
                record["preparedTransactionOffset"] > 0,
            )
            found.setdefault(name, []).append(entry)
    return _comparable(found)


def _comparable(found: Structure) -> Structure:
    """Replace the delays of levels 2 and 3, which are shorter in the test, by 0."""
    for name in ("SCHEDULE_TOPIC_XXXX/1", "SCHEDULE_TOPIC_XXXX/2"):
        found[name] = [(0, *entry[1:]) for entry in found[name]]
    return found


async def test_finished_transactions_stay_finished_after_a_restart(tmp_path: Path) -> None:
    """Producers would be asked about committed messages, and these be delivered again."""
    for number in (1, 2):
        async with EmbeddedCluster(tmp_path / "store", settings=SETTINGS) as cluster:
            (broker,) = cluster.brokers
            assert broker.delivery.halves == number - 1
            async with Producer("g", cluster.namesrv_address) as producer:
                for state in (LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN):
                    await producer.send_in_transaction(
                        Message("T", b"x"),
                        local_transaction=lambda _, state=state: state,  # type: ignore[misc]
                        check=lambda _: LocalTransactionState.UNKNOWN,
                    )
            await until(lambda: broker.delivery.halves == number)  # noqa: B023
