"""Pops at a broker with real sockets: who gets which message, how long it is hidden, and what ends that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketpy.protocol.bodies import BatchAck, BatchAckMessageRequestBody
from rocketpy.protocol.bodies.pop import bit_set
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    INIT_AT_MIN,
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    DeleteTopicRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rocketpy.protocol.message.properties import decode
from rocketpy.protocol.message.receipt import (
    Receipt,
    TopicKind,
    parse_message_offsets,
    parse_start_offsets,
)
from rocketpy.protocol.message.record import Record, decode_all
from rocketpy.protocol.remoting.command import Command, decode_command, encode_command
from rocketpy.protocol.remoting.frame import CODEC_JSON, CODEC_MSGPACK, FrameDecoder
from rocketpy_broker.services.pop.formats import tag_of
from tests.golden_data import RecordedFrame, frames
from tests.integration.broker.test_deferred import send, send_header
from tests.integration.raw_client import RawClient, new_topic, serving
from tests.integration.small import SMALL
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.usefixtures("patient_pops")

HOUR_MS = 3_600_000


class Popped(NamedTuple):
    """A popped message."""

    record: Record
    receipt: Receipt
    topic: str
    """The topic that has it, maybe a retry topic."""

    @property
    def body(self) -> str:
        """The body."""
        return self.record.body.decode()


async def pop(
    client: RawClient, count: int = 32, invisible_ms: int = HOUR_MS, topic: str = "T", **changes: object
) -> list[Popped]:
    """Pop messages of a topic for the group g."""
    response = await pop_response(client, count, invisible_ms, topic, **changes)
    if response.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert response.code == 0, response.remark
    return popped(response, topic, str(changes.get("consumer_group", "g")))


async def pop_response(
    client: RawClient, count: int = 32, invisible_ms: int = HOUR_MS, topic: str = "T", **changes: object
) -> Command:
    """The response to a pop."""
    request = pop_request(count, invisible_ms, topic, **changes)
    return await client.call_frame(encode_command(request))


def pop_request(count: int = 32, invisible_ms: int = HOUR_MS, topic: str = "T", **changes: object) -> Command:
    """The request of a pop."""
    fields: dict[str, object] = {
        "consumer_group": "g", "topic": topic, "queue_id": -1, "max_msg_nums": count,
        "invisible_time": invisible_ms, "poll_time": 0, "born_time": int(time.time() * 1000),
        "init_mode": INIT_AT_MIN,
    }  # fmt: skip
    header = PopMessageRequestHeader(**{**fields, **changes})  # type: ignore[arg-type] # from a dict
    return Command.request(RequestCode.POP_MESSAGE, header)


def popped(response: Command, topic: str, group: str = "g") -> list[Popped]:
    """The messages of a response, with their receipts, as a client of RocketMQ makes them."""
    header = response.header_as(PopMessageResponseHeader)
    starts = parse_start_offsets(header.start_offset_info)
    offsets = {key: iter(each) for key, each in parse_message_offsets(header.msg_offset_info).items()}
    found = []
    for record in decode_all(response.body):
        text = decode(record.properties).get("POP_CK")
        if text is not None:
            receipt = Receipt.decode(text)
        else:
            kind = TopicKind.of(record.topic)
            key = kind, record.queue_id
            assert next(offsets[key]) == record.queue_offset
            receipt = Receipt(
                starts[key], header.pop_time, header.invisible_time, header.revive_qid, kind, "broker-a",
                record.queue_id, record.queue_offset,
            )  # fmt: skip
        found.append(Popped(record, receipt, receipt.kind.topic(topic, group)))
    return found


async def ack(client: RawClient, message: Popped, group: str = "g") -> Command:
    """ACK_MESSAGE."""
    return await client.call_frame(encode_command(ack_request(message, group)))


def ack_request(message: Popped, group: str = "g", **changes: object) -> Command:
    """The request of `ack`."""
    fields: dict[str, object] = {
        "consumer_group": group, "topic": message.topic, "queue_id": message.receipt.queue_id,
        "extra_info": message.receipt.encode(), "offset": message.record.queue_offset,
    }  # fmt: skip
    header = AckMessageRequestHeader(**{**fields, **changes})  # type: ignore[arg-type] # from a dict
    return Command.request(RequestCode.ACK_MESSAGE, header)


async def change(client: RawClient, message: Popped, invisible_ms: int, group: str = "g") -> Command:
    """CHANGE_MESSAGE_INVISIBLETIME."""
    return await client.call_frame(encode_command(change_request(message, invisible_ms, group)))


def change_request(message: Popped, invisible_ms: int, group: str = "g") -> Command:
    """The request of `change`."""
    header = ChangeInvisibleTimeRequestHeader(
        consumer_group=group, topic=message.topic, queue_id=message.receipt.queue_id,
        extra_info=message.receipt.encode(), offset=message.record.queue_offset, invisible_time=invisible_ms,
    )  # fmt: skip
    return Command.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)


async def respond_together(client: RawClient, requests: Sequence[Command]) -> list[Command]:
    """Send requests in one buffer; return their responses in the same order."""
    for number, request in enumerate(requests):
        request.opaque = number
    client.writer.write(b"".join(map(encode_command, requests)))
    responses = [await client.next() for _ in requests]
    return sorted(responses, key=lambda response: response.opaque)


async def call_together(client: RawClient, requests: Sequence[Command]) -> list[int]:
    """Send requests in one buffer; return the codes of their responses."""
    return [response.code for response in await respond_together(client, requests)]


def make_turns(monkeypatch: pytest.MonkeyPatch, turn_s: float) -> None:
    """Limit the turns of connections, and of the work of pops behind them; a loaded machine is slow."""
    for module in ("rocketpy.transport.channel", "rocketpy_broker.handlers.pop.run"):
        monkeypatch.setattr(f"{module}._TURN_S", turn_s)


def changed(message: Popped, response: Command) -> Popped:
    """A message with the receipt that the response to `change` gives."""
    assert response.code == 0, response.remark
    header = response.header_as(ChangeInvisibleTimeResponseHeader)
    return message._replace(
        receipt=message.receipt._replace(
            checkpoint_offset=message.record.queue_offset, pop_time=header.pop_time,
            invisible_time=header.invisible_time, revive_queue=header.revive_qid,
        )
    )  # fmt: skip


async def batch_ack(client: RawClient, messages: Sequence[Popped]) -> Command:
    """BATCH_ACK_MESSAGE of messages of one check point."""
    receipt = messages[0].receipt
    indexes = [message.record.queue_offset - receipt.checkpoint_offset for message in messages]
    one = BatchAck(
        consumer_group="g", topic="T", retry=receipt.kind, start_offset=receipt.checkpoint_offset,
        queue_id=receipt.queue_id, revive_queue_id=receipt.revive_queue, pop_time=receipt.pop_time,
        invisible_time=receipt.invisible_time, bit_set=bit_set(indexes),
    )  # fmt: skip
    body = BatchAckMessageRequestBody(broker_name="broker-a", acks=[one])
    return await client.call(RequestCode.BATCH_ACK_MESSAGE, body=body.encode())


async def create(client: RawClient, queues: int = 1) -> None:
    """Create the topic T."""
    assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("T", queues))).code == 0


async def send_all(client: RawClient, names: str, queues: int = 1) -> None:
    """Send a message for each letter, to the queues in turn."""
    for number, name in enumerate(names):
        assert (
            await send(client, name.encode(), f"UNIQ_KEY\x01{name}\x02", queue_id=number % queues)
        ).code == 0


async def arrive(client: RawClient, count: int, **changes: object) -> list[Popped]:
    """Pop until there are `count` messages."""
    found: list[Popped] = []

    async with asyncio.timeout(LIMIT_S):
        while len(found) < count:
            found += await pop(client, **changes)  # type: ignore[arg-type] # from a dict
    return found


async def test_a_new_group_begins_in_all_queues(tmp_path: Path) -> None:
    """A group that begins at the end would miss messages that come before its first look into a queue."""
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        offsets = cluster.brokers[0].consumers.offsets
        for _ in range(2):  # also in a new topic of the same name
            await create(client, 9)
            await send_all(client, "abcdefghi", 9)
            assert len(await pop(client, 1)) == 1
            assert None not in [offsets.get("g", "T", queue_id) for queue_id in range(9)]
            assert len(await arrive(client, 8)) == 8
            await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T"))


async def test_each_message_goes_to_one_pop(tmp_path: Path) -> None:
    """Two workers would do the same job."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await create(client, 3)
        await send_all(client, "abcdefgh", 3)
        first = await pop(client, 5)  # fewer if the time for its reads is over
        second = await arrive(client, 8 - len(first))
        assert 1 <= len(first) <= 5
        assert sorted(message.body for message in first + second) == list("abcdefgh")
        assert await pop(client) == []


async def test_what_is_not_acknowledged_comes_again(tmp_path: Path) -> None:
    """QUIRKS 77: a message of a dead worker would be lost, or an acknowledged one would be handled twice."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await create(client)
        await send_all(client, "abcdef")
        messages = {message.body: message for message in await pop(client, invisible_ms=500)}
        assert (await ack(client, messages["a"])).code == 0
        assert (await batch_ack(client, [messages["c"], messages["f"]])).code == 0
        again = await arrive(client, 3)
        assert [message.body for message in again] == ["b", "d", "e"]
        assert [message.record.reconsume_times for message in again] == [1, 1, 1]
        assert {message.record.topic for message in again} == {"T"}
        assert {message.topic for message in again} == {"%RETRY%g_T"}
        for message in again:
            assert message.record.store_timestamp >= messages[message.body].receipt.pop_time + 500
            assert (await ack(client, message)).code == 0
        late = await ack(client, messages["b"])
        assert late.code == ResponseCode.NO_MESSAGE
        assert "its time was over" in str(late.remark)


async def test_acknowledgements_in_one_buffer_share_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pop of 32 messages would need 33 records; or one wrong request would decide about the others."""
    make_turns(monkeypatch, LIMIT_S)
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        await create(client)
        await send_all(client, "abcdefgh")
        a, b, c, d, e, *_ = await pop(client)
        gone = ResponseCode.NO_MESSAGE
        requests = [ack_request(a), ack_request(b), ack_request(c, offset=99), ack_request(d)]
        assert await call_together(client, requests) == [0, 0, gone, 0]
        requests = [ack_request(c), ack_request(e), ack_request(c), change_request(e, 1), ack_request(a)]
        assert await call_together(client, requests) == [0, 0, gone, gone, gone]
        points, store = cluster.brokers[0].delivery.pop.points, cluster.brokers[0].store
        stored = decode_all(store.get_message(points.topic, a.receipt.revive_queue, 0, 32).body)
        assert [tag_of(record.properties) for record in stored] == [b"ck", b"bAck", b"bAck"]
        assert points.in_flight.counts == {("T", "g", 0): 3}


@pytest.mark.parametrize("turn_s", [LIMIT_S, 0])
async def test_workers_that_share_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn_s: float
) -> None:
    """A pop would miss a message that was sent before it, or get one that was popped in the same buffer."""
    make_turns(monkeypatch, turn_s)
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        await create(client)
        await send_all(client, "ab")
        (a,) = await pop(client, 1)
        sent = Command.request(RequestCode.SEND_MESSAGE_V2, send_header("UNIQ_KEY\x01c\x02"), b"c")
        requests = [ack_request(a), pop_request(1), sent, pop_request(1), ack_request(a)]
        responses = await respond_together(client, requests)
        assert [response.code for response in responses] == [0, 0, 0, 0, ResponseCode.NO_MESSAGE]
        b, c = (popped(responses[number], "T")[0] for number in (1, 3))
        assert (b.body, c.body) == ("b", "c")
        assert await call_together(client, [ack_request(c), ack_request(b), pop_request()]) == [
            0, 0, ResponseCode.POLLING_TIMEOUT
        ]  # fmt: skip
        assert not cluster.brokers[0].delivery.pop.points.in_flight.points


async def test_pops_in_one_buffer_keep_to_the_limit(tmp_path: Path) -> None:
    """Workers that pop at the same time would exceed the memory that check points may use."""
    async with serving(tmp_path, settings=SMALL | {"maxPopCheckPoints": "2"}) as (cluster, client):
        await create(client)
        await send_all(client, "abcd")
        busy = ResponseCode.SYSTEM_BUSY
        assert await call_together(client, [pop_request(1) for _ in range(4)]) == [0, 0, busy, busy]
        assert len(cluster.brokers[0].delivery.pop.points.in_flight) == 2


async def test_acknowledgements_do_not_delay_a_pop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker that acknowledges without end would stop the pops of all others."""
    make_turns(monkeypatch, LIMIT_S)
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await create(client)
        await send_all(client, "ab")
        (a,) = await pop(client, 1)
        receipts = [a.receipt._replace(checkpoint_offset=number).encode() for number in range(100, 110)]
        requests = [ack_request(a, extra_info=receipt) for receipt in receipts] + [pop_request(1)]
        for number, request in enumerate(requests):
            request.opaque = number
        monkeypatch.setattr("rocketpy_broker.handlers.pop.run._TURN_S", 0)
        client.writer.write(b"".join(map(encode_command, requests)))
        order = [(await client.next()).opaque for _ in requests]
        assert order.index(10) < 2


async def test_a_bug_in_one_acknowledgement_does_not_stop_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker would fail, and the requests behind it would get no response."""

    def broken() -> bool:
        raise ValueError("a bug")

    make_turns(monkeypatch, LIMIT_S)
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        await create(client)
        await send_all(client, "ab")
        (a,) = await pop(client, 1)
        cluster.brokers[0].delivery.pop.points.timers_wait = broken
        unknown = a.receipt._replace(checkpoint_offset=100).encode()
        requests = [ack_request(a, extra_info=unknown), ack_request(a), pop_request(1)]
        failed, *others = await respond_together(client, requests)
        assert failed.code == ResponseCode.SYSTEM_ERROR
        assert "internal error" in str(failed.remark)
        assert [response.code for response in others] == [0, 0]
        assert cluster.brokers[0].tasks.failure is None
    assert "a bug" in caplog.text
    caplog.clear()


async def test_another_invisible_time_replaces_the_receipt(tmp_path: Path) -> None:
    """A long job would run twice, or one that was given back would wait."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await create(client)
        await send_all(client, "ab")
        a, b = await pop(client, invisible_ms=800)
        longer = changed(a, await change(client, a, HOUR_MS))
        released = await change(client, b, 0)
        assert released.code == 0
        (again,) = await arrive(client, 1)
        assert again.body == "b"
        used = await ack(client, a)
        assert used.code == ResponseCode.NO_MESSAGE
        assert (await change(client, a, HOUR_MS)).code == ResponseCode.NO_MESSAGE
        assert (await ack(client, longer)).code == 0
        assert (await change(client, longer, HOUR_MS)).code == ResponseCode.NO_MESSAGE


async def test_the_same_response_in_each_codec(tmp_path: Path) -> None:
    """Common responses in JSON come from a template, which could lack a field or name the wrong offset."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await create(client)
        await send_all(client, "ab")
        for offset, codec in enumerate((CODEC_JSON, CODEC_MSGPACK)):
            response = await client.call_frame(encode_command(pop_request(1), codec))
            fields = dict(response.ext_fields())
            fields.pop("popTime"), fields.pop("reviveQid")
            assert (response.code, response.codec, response.remark) == (0, codec, "FOUND")
            assert fields == {
                "invisibleTime": str(HOUR_MS), "restNum": str(1 - offset),
                "startOffsetInfo": f"0 0 {offset}", "msgOffsetInfo": f"0 0 {offset}",
            }  # fmt: skip
            (message,) = popped(response, "T")
            response = await client.call_frame(encode_command(ack_request(message), codec))
            fixed = (response.code, response.codec, response.remark, response.ext_fields())
            assert fixed == (0, codec, None, {})


async def test_the_requests_of_java(tmp_path: Path) -> None:
    """Java's consumers would find a field missing, or one of another form than from their own broker."""
    recorded = [frame for frame in frames("5.5.0", "pop") if frame.info["requestCode"] in POP_CODES]
    responses = {frame.info["requestCode"]: frame.info for frame in recorded[::-1] if is_response(frame)}
    requests = {frame.info["code"]: frame.data for frame in recorded[::-1] if not is_response(frame)}
    async with serving(tmp_path, settings=SMALL) as (_, client):
        header = new_topic("GoldenPop", 2)
        assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
        for number, body in enumerate([b"later", b"one", b"three", b"four"]):
            await send(client, body, "UNIQ_KEY\x01u\x02", topic="GoldenPop", queue_id=number % 2)

        def check(code: int, response: Command) -> None:
            info = responses[code]
            assert response.code == info["code"]
            assert response.ext_fields().keys() == (info["extFields"] or {}).keys()

        response = await client.call_frame(requests[RequestCode.POP_MESSAGE])
        check(RequestCode.POP_MESSAGE, response)
        info = responses[RequestCode.POP_MESSAGE]
        fields = response.ext_fields()
        assert response.remark == info["remark"]
        for name in ("startOffsetInfo", "msgOffsetInfo"):
            assert sorted(fields[name].split(";")) == sorted(info["extFields"][name].split(";"))
        for code in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
            request = decode_command(FrameDecoder().feed(requests[code])[0])
            ext = request.ext_fields()
            receipt = Receipt.decode(ext["extraInfo"])
            own = receipt._replace(pop_time=int(fields["popTime"]), revive_queue=int(fields["reviveQid"]))
            request.ext = {**ext, "extraInfo": own.encode()}
            check(code, await client.call_frame(encode_command(request)))


POP_CODES = {RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME}


def is_response(frame: RecordedFrame) -> bool:
    return bool(frame.info["kind"] == "response")
