"""Requests: the header template writes the bytes of the general encoder, and of recorded frames."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy.errors import MessageTooLarge
from rocketpy.message import Message
from rocketpy.producer.send.request_template import (
    ONEWAY_OPAQUE,
    SendTemplate,
    head_text,
    other_properties_text,
    properties_text,
)
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import SendMessageRequestHeaderV2
from rocketpy.protocol.message import properties
from rocketpy.protocol.message.checksum import verify_body_checksum
from rocketpy.protocol.remoting.command import Command, decode_command, encode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from tests import golden_data

int32 = st.integers(-(2**31), 2**31 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
CODES = [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE]


def read(frame: bytes) -> Command:
    """The command in a frame."""
    (only,) = FrameDecoder().feed(frame)
    return decode_command(only)


@pytest.mark.parametrize("code", CODES)
@given(
    group=st.sampled_from(["g", "%RETRY%g", 'quo"te', "grün", "per%dcent"]),
    queue_id=int32,
    sys_flag=int32,
    born=st.integers(0, 2**62),
    flag=int32,
    text=text,
    opaque=st.integers(0, 2**31 - 1),
    body=st.binary(max_size=40),
)
def test_template_and_general_encoder_write_the_same(
    code: RequestCode,
    group: str,
    queue_id: int,
    sys_flag: int,
    born: int,
    flag: int,
    text: str,
    opaque: int,
    body: bytes,
) -> None:
    """A broker would read other values than the user sent, for some letters only."""
    template = SendTemplate(code, group, "T|%d", "TBW102", 4)
    frame = template.frame(queue_id, sys_flag, born, flag, text, opaque, body)
    command = template.command(queue_id, sys_flag, born, flag, text, body)
    command.opaque = opaque
    ours, general = read(frame), read(encode_command(command))
    assert ours.header_as(SendMessageRequestHeaderV2) == general.header_as(SendMessageRequestHeaderV2)
    assert ours.ext_fields() == general.ext_fields()
    assert (ours.code, ours.opaque, ours.flag, ours.language, ours.version, ours.body) == (
        general.code,
        general.opaque,
        general.flag,
        general.language,
        general.version,
        general.body,
    )
    assert ours.ext_fields()["i"] == text


def test_oneway_frames_have_the_oneway_flag() -> None:
    """The broker would respond, and the response would be taken for that of another message."""
    template = SendTemplate(RequestCode.SEND_MESSAGE_V2, "g", "T", "TBW102", 4)
    command = read(template.frame(1, 0, 5, 7, "a\x01b\x02", ONEWAY_OPAQUE, b"x", oneway=True))
    assert command.is_oneway
    assert command.opaque == ONEWAY_OPAQUE
    assert command.ext_fields()["i"] == "a\x01b\x02"


@pytest.mark.parametrize(
    ("code", "step"), [(310, "send.sync no tag no key empty-ish body, q2"), (320, "send.batch of 3 to q1")]
)
def test_fields_equal_those_of_the_java_client(code: int, step: str) -> None:
    """A real broker would miss a field, and refuse or misread the message."""
    pair = next(
        item
        for item in golden_data.essential()
        if item["code"] == code and item["name"].endswith(f"JSON/{step}")
    )
    theirs = read(bytes.fromhex(pair["requestHex"]))
    header = theirs.header_as(SendMessageRequestHeaderV2)
    template = SendTemplate(
        RequestCode(code),
        header.producer_group,
        header.topic,
        header.default_topic,
        header.default_topic_queue_nums,
    )
    frame = template.frame(
        header.queue_id,
        header.sys_flag,
        header.born_timestamp,
        header.flag,
        header.properties or "",
        theirs.opaque,
        theirs.body,
    )
    ours = read(frame)
    assert ours.ext_fields() == theirs.ext_fields()
    assert (ours.code, ours.opaque, ours.flag, ours.body) == (
        theirs.code,
        theirs.opaque,
        theirs.flag,
        theirs.body,
    )


def test_a_frame_without_properties_is_plain_json() -> None:
    """A strict reader would refuse the header."""
    frame = SendTemplate(RequestCode.SEND_MESSAGE_V2, "g", "T", "TBW102", 4).frame(0, 0, 0, 0, "", 0, b"")
    assert list(json.loads(frame[8:])) == sorted(json.loads(frame[8:]))


def test_properties_of_a_message() -> None:
    """Consumers would not find the message by tag or key, or get it too early."""
    message = Message(
        "T",
        b"x",
        tags="t",
        keys=["a", "b"],
        delay_level=3,
        wait_store=False,
        properties={"n": "ü", "trace": "mine"},
    )
    found = properties.decode(properties_text(message, "ID", "crc-32c", {"trace": "theirs", "span": "1"}))
    checksum = found.pop("BODY_CHECKSUM")
    assert verify_body_checksum(checksum, b"x")
    assert found == {
        "UNIQ_KEY": "ID",
        "TAGS": "t",
        "KEYS": "a b",
        "DELAY": "3",
        "n": "ü",
        "trace": "mine",
        "span": "1",
    }


def test_properties_text_is_that_of_the_codec() -> None:
    """Two ways to write properties would drift apart."""
    message = Message("T", b"x", tags="t")
    assert properties_text(message, "ID") == properties.encode({"UNIQ_KEY": "ID", "TAGS": "t"})
    single = head_text("ID", wait_store=True) + other_properties_text(message, 0)
    assert single == properties.encode({"UNIQ_KEY": "ID", "WAIT": "true", "TAGS": "t"})


@pytest.mark.parametrize(("letter", "fits"), [("a", 32_700), ("ü", 16_350), ("\U0001f600", 8_175)])
def test_properties_that_are_too_long_are_rejected(letter: str, fits: int) -> None:
    """The only error would be the broker's, which does not name the size of the properties."""
    assert properties_text(Message("T", b"x", properties={"p": letter * fits}), "I")
    with pytest.raises(MessageTooLarge, match=r"properties have 33.* bytes; 32767"):
        properties_text(Message("T", b"x", properties={"p": letter * (fits * 101 // 100)}), "I" * 8)
