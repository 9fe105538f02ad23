"""What a client may ask of a broker in the properties and header of a message, in each kind of send."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    EndTransactionRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.protocol.remoting.command import FLAG_ONEWAY, Command, encode_command
from rocketpy_broker import Broker
from tests.integration.broker.test_deferred import half, records, send, send_header
from tests.integration.raw_client import RawClient, serving
from tests.integration.small import SMALL

Send = Callable[[RawClient, str], Any]
TIMERS = sorted(props.TIMER_PROPERTIES)
RETRIES = sorted(props.RETRY_PROPERTIES)


async def single(client: RawClient, text: str) -> Command:
    """SEND_MESSAGE_V2."""
    return await send(client, b"x", text)


async def single_v1(client: RawClient, text: str) -> Command:
    """SEND_MESSAGE."""
    sent = send_header(text)
    fields = {name: getattr(sent, name) for name in SendMessageRequestHeader.__struct_fields__}
    return await client.call(RequestCode.SEND_MESSAGE, SendMessageRequestHeader(**fields), b"x")


async def in_batch(client: RawClient, text: str) -> Command:
    """A message of a SEND_BATCH_MESSAGE, after one with a unique id."""
    body = encode_batch([(0, b"first", b"UNIQ_KEY\x011\x02"), (0, b"x", text.encode())])
    return await client.call(RequestCode.SEND_BATCH_MESSAGE, send_header(batch=True), body)


async def of_batch(client: RawClient, text: str) -> Command:
    """The properties of a whole batch."""
    header = send_header(text, batch=True)
    return await client.call(RequestCode.SEND_BATCH_MESSAGE, header, encode_batch([(0, b"x", b"")]))


async def in_transaction(client: RawClient, text: str) -> Command:
    """A half message."""
    return await send(client, b"x", f"TRAN_MSG\x01true\x02PGROUP\x01g\x02{text}", sys_flag=4)


async def as_reply(client: RawClient, text: str) -> Command:
    """SEND_REPLY_MESSAGE_V2 to an ordinary topic."""
    return await client.call(RequestCode.SEND_REPLY_MESSAGE_V2, send_header(text), b"x")


WAYS: list[Send] = [single, single_v1, in_batch, of_batch, in_transaction, as_reply]
REJECTED = [
    pytest.param(way, name, id=f"{name}-{way.__name__}")
    for name in [*TIMERS, *RETRIES]
    for way in WAYS
    if not (way in (single, single_v1) and name in props.TIMER_PROPERTIES - {props.START_DELIVER_TIME})
]


@pytest.mark.parametrize(("way", "name"), REJECTED)
@pytest.mark.parametrize("before", ["", "UNIQ_KEY\x011\x02WAIT\x01true\x02"], ids=["alone", "after others"])
async def test_a_property_that_would_be_ignored_or_abused_is_rejected(
    client: RawClient, way: Send, name: str, before: str
) -> None:
    """A timer message of a batch would be delivered at once, or a producer choose the topic of a retry."""
    assert (await single(client, before)).code == 0  # creates the topic
    response = await way(client, f"{before}{name}\x015\x02")
    assert response.code == ResponseCode.MESSAGE_ILLEGAL, response
    assert name in (response.remark or "")
    assert len(await records(client)) == 1


async def test_names_that_end_in_a_checked_name_are_accepted(client: RawClient) -> None:
    """A user's property such as MY_RETRY_TOPIC would make a message impossible to send."""
    text = "".join(f"MY_{name}\x015\x02" for name in (*TIMERS, *RETRIES))
    for way in (single, single_v1, in_batch, of_batch):
        assert (await way(client, text)).code == 0


@pytest.mark.parametrize("name", TIMERS)
async def test_a_oneway_timer_message_is_not_delivered_at_once(client: RawClient, name: str) -> None:
    """Its consumers would get it at once."""
    at = 4_000_000_000_000 if name in (props.TIMER_DELIVER_MS, props.START_DELIVER_TIME) else 60
    request = Command.request(RequestCode.SEND_MESSAGE_V2, send_header(f"{name}\x01{at}\x02"), b"later")
    request.flag = FLAG_ONEWAY
    client.writer.write(encode_command(request))
    assert (await send(client, b"next")).code == 0
    assert [record.body for record in await records(client)] == [b"next"]


async def test_a_copy_for_a_retry_may_have_the_timer_of_its_message(client: RawClient) -> None:
    """A consumer could not return a message that a broker of RocketMQ 4.6 had stored with a timer."""
    text = "RETRY_TOPIC\x01T\x02TIMER_DELAY_SEC\x015\x02__STARTDELIVERTIME\x015\x02"
    copy = {"topic": "%RETRY%c", "max_reconsume_times": 16, "reconsume_times": 1}
    assert (await send(client, b"x", text, **copy)).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await send(client, b"x", f"{text}DELAY\x013\x02", **copy)).code == 0


@pytest.mark.parametrize("code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
@pytest.mark.parametrize("topic", ["%RETRY%c", "%DLQ%c"])
async def test_copies_are_single_sends_to_retry_topics(client: RawClient, code: int, topic: str) -> None:
    """A producer could choose the topic of dead letters, or of retries in another request."""
    is_batch = code == RequestCode.SEND_BATCH_MESSAGE
    header = send_header("RETRY_TOPIC\x01T\x02", topic, batch=is_batch)
    body = encode_batch([(0, b"x", b"RETRY_TOPIC\x01T\x02")]) if is_batch else b"x"
    assert (await client.call(code, header, body)).code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("flags", [0x8, 0xC, 0x10, 0x20, 0x40, 0x80, 0x800, -1], ids=hex)
@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
async def test_sys_flags_that_only_brokers_set_are_rejected(
    client: RawClient, flags: int, is_batch: bool
) -> None:
    """The record would be misread: with hosts of another length, as rolled back, or as a batch to unwrap."""
    header = send_header("", sys_flag=flags, batch=is_batch)
    code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
    body = encode_batch([(0, b"x", b"")]) if is_batch else b"x"
    response = await client.call(code, header, body)
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert str(flags) in (response.remark or "")
    assert (await send(client, b"next")).code == 0
    assert [record.body for record in await records(client)] == [b"next"]


@pytest.mark.parametrize(("topic", "times"), [("T", 3), ("T", -1), ("%RETRY%c", -(2**31))])
async def test_only_copies_have_retries(client: RawClient, topic: str, times: int) -> None:
    """A message would become a dead letter at its first failure, or get a delay level below 1."""
    response = await send(client, b"x", topic=topic, reconsume_times=times, max_reconsume_times=16)
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert "reconsumeTimes" in (response.remark or "")


async def test_a_transactional_message_in_a_batch_is_rejected(client: RawClient) -> None:
    """Consumers would see it before its transaction has ended."""
    for way in (in_batch, of_batch):
        response = await way(client, "TRAN_MSG\x01true\x02PGROUP\x01g\x02")
        assert response.code == ResponseCode.MESSAGE_ILLEGAL
        assert (await way(client, "TRAN_MSG\x01false\x02")).code == 0


async def test_a_queue_of_a_topic_without_queues_is_rejected(client: RawClient, broker: Broker) -> None:
    """The message would be stored where no consumer reads."""
    header = SendMessageRequestHeaderV2(
        producer_group="g", topic="None", default_topic="TBW102", default_topic_queue_nums=-1, queue_id=-1,
        sys_flag=0, born_timestamp=1, flag=0,
    )  # fmt: skip
    response = await client.call(RequestCode.SEND_MESSAGE_V2, header, b"x")
    assert response.code != 0
    assert broker.store.appended_in_queue("None", 0) == 0


# -- transactions ---------------------------------------------------------------------------------

FOREIGN_END = "UNIQ_KEY\x01id-victim\x02TRAN_PREPARED_QUEUE_OFFSET\x010\x02TRANSACTION_CHECK_TIMES\x0199\x02"


@pytest.mark.parametrize("text", [FOREIGN_END, "UNIQ_KEY\x01id-victim\x02"], ids=["offset", "unique id"])
async def test_a_half_message_cannot_stand_for_that_of_another_producer(tmp_path: Path, text: str) -> None:
    """After a restart, a producer could end a transaction of another one: its message would be lost."""
    store = tmp_path / "store"
    async with serving(store, settings=SMALL) as (cluster, client):
        victim = await half(client, b"victim")
        born = (cluster.brokers[0].store.look_message(victim.commit_log_offset) or b"")[40:48]
        forged = f"TRAN_MSG\x01true\x02PGROUP\x01thief\x02{text}"
        header = send_header(forged, topic="Other", sys_flag=4, born_timestamp=int.from_bytes(born, "big"))
        sent = await client.call(RequestCode.SEND_MESSAGE_V2, header, b"forged")
        assert sent.code == 0
    async with serving(store, settings=SMALL) as (_, client):
        fields = sent.ext_fields()
        rollback = EndTransactionRequestHeader(
            producer_group="thief",
            tran_state_table_offset=int(fields["queueOffset"]),
            commit_log_offset=decode_message_id(fields["msgId"])[1],
            commit_or_rollback=12,
            msg_id="id-victim",
        )
        assert (await client.call(RequestCode.END_TRANSACTION, rollback)).code == 0
        assert (await client.call(RequestCode.END_TRANSACTION, victim)).code == 0
        assert [record.body for record in await records(client)] == [b"victim"]


@pytest.mark.parametrize("level", ["1_0", " 1", "\u0661", "0x1", "1.5", "one"])
async def test_a_delay_level_that_is_no_number_is_rejected(client: RawClient, level: str) -> None:
    """Python reads 1_0 as 10: the message would be delayed for minutes."""
    response = await send(client, b"x", f"DELAY\x01{level}\x02")
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert "DELAY" in (response.remark or "")


async def test_the_receipt_of_a_forwarded_message_is_removed(client: RawClient) -> None:
    """A worker would acknowledge the message that was forwarded, and not the one that it has received."""
    text = "UNIQ_KEY\x01u\x02POP_CK\x015 1 2 3 0 broker-a 0 5\x02MY_POP_CK\x01kept\x02"
    for way in (single, single_v1):
        assert (await way(client, text)).code == 0
    found = [props.decode(record.properties) for record in await records(client)]
    assert [("POP_CK" in one, one["MY_POP_CK"]) for one in found] == [(False, "kept")] * 2
