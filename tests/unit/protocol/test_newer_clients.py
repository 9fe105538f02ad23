"""What the Java client 5.5.0 and a broker of 5.5.0 send to each other, and what rocketpy reads of it."""

from __future__ import annotations

from rocketpy.protocol.bodies import HeartbeatData
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import AckMessageRequestHeader, PopMessageResponseHeader
from rocketpy.protocol.message.receipt import (
    Receipt,
    encode_message_offsets,
    encode_start_offsets,
    parse_message_offsets,
    parse_start_offsets,
)
from rocketpy.protocol.message.record import decode_all
from rocketpy.protocol.remoting.command import Command, decode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from tests.golden_data import RecordedFrame, frames
from tests.protocol_tables import HEADERLESS_REQUESTS, REQUEST_HEADERS

IGNORED = {"ns", "nsd", "bname", "n", "lo", "maxMsgBytes", "force", "suspend"}
"""Fields of 5.x that change nothing here (QUIRKS 82, 84); `n` is the short form of `bname`."""


def test_each_field_is_read_or_ignored_on_purpose() -> None:
    """A field of newer clients that matters would be skipped."""
    ignored: set[str] = set()
    for frame in (*frames("5.5.0", "clients"), *frames("5.5.0", "pop")):
        if frame.info["kind"] == "response":
            continue
        (data,) = FrameDecoder().feed(frame.data)
        command, fields = decode_command(data), frame.info["extFields"] or {}
        header_class = REQUEST_HEADERS.get(command.code)
        known: dict[str, str] = {}
        if header_class is None:
            assert command.code in HEADERLESS_REQUESTS
        else:
            known = command.header_as(header_class).ext_fields()
        ignored |= fields.keys() - known.keys()
        assert {name: text for name, text in fields.items() if name in known} == {
            name: text for name, text in known.items() if name in fields
        }
    assert ignored <= IGNORED


def test_heartbeats_name_their_subscriptions_or_say_that_they_do_not() -> None:
    """QUIRKS 81: one without subscriptions would be taken for one of a consumer that has none."""
    beats = [
        HeartbeatData.decode(frame.data[-frame.info["bodyLength"] :])
        for frame in frames("5.5.0", "clients")
        if frame.info["code"] == RequestCode.HEART_BEAT and frame.info["kind"] != "response"
    ]
    for beat in beats:
        for data in beat.consumer_data_set:
            assert bool(data.subscription_data_set) == (not beat.without_sub)
    assert {beat.without_sub for beat in beats} == {True, False}


def decoded(frame: RecordedFrame) -> Command:
    return decode_command(FrameDecoder().feed(frame.data)[0])


def test_receipts_of_a_pop_are_those_of_java() -> None:
    """An acknowledgement would name another message, or a check point that the broker does not know."""
    recorded = [(frame.info, decoded(frame)) for frame in frames("5.5.0", "pop")]
    given: set[tuple[str, int, str]] = set()
    for info, response in recorded:
        if info["requestCode"] != RequestCode.POP_MESSAGE or not response.is_response:
            continue
        header = response.header_as(PopMessageResponseHeader)
        assert header.ext_fields() == info["extFields"]
        starts = parse_start_offsets(header.start_offset_info)
        offsets = parse_message_offsets(header.msg_offset_info)
        assert encode_start_offsets(starts) == header.start_offset_info
        assert encode_message_offsets(offsets) == header.msg_offset_info
        for (kind, queue_id), start in starts.items():
            for offset in offsets[kind, queue_id]:
                receipt = Receipt(
                    start, header.pop_time, header.invisible_time, header.revive_qid, kind, "java-broker",
                    queue_id, offset,
                )  # fmt: skip
                given.add((kind.topic("GoldenPop", "golden"), offset, receipt.encode()))
        found = [(record.queue_id, record.queue_offset) for record in decode_all(response.body)]
        assert found == [(queue, offset) for (_, queue), each in offsets.items() for offset in each]
    used = set()
    for _, request in recorded:
        if not request.is_response and request.code in (
            RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        ):  # fmt: skip
            ack = request.header_as(AckMessageRequestHeader)
            used.add((ack.topic, ack.offset, ack.extra_info))
    assert used == given
