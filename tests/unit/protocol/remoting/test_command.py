"""Commands: recorded ones are decoded, and encoding them gives the recorded bytes."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy.errors import LocalProtocolError, RemoteProtocolError
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import GetMaxOffsetRequestHeader
from rocketpy.protocol.remoting.command import (
    FLAG_ONEWAY,
    FLAG_READS_MSGPACK,
    FLAG_RESPONSE,
    Command,
    decode_command,
    encode_command,
)
from rocketpy.protocol.remoting.frame import CODEC_JSON, CODEC_MSGPACK, CODEC_ROCKETMQ, Frame, FrameDecoder
from tests.golden_data import frames, scenarios, vectors

CODECS = (CODEC_JSON, CODEC_ROCKETMQ, CODEC_MSGPACK)
INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
RECORDINGS = [("remoting", name) for name in scenarios()] + [("ha", name) for name in scenarios("ha")]


def read(data: bytes) -> Command:
    (frame,) = FrameDecoder().feed(data)
    return decode_command(frame)


@pytest.mark.parametrize(("folder", "scenario"), [*RECORDINGS, ("dledger", "raft-frames")])
def test_recorded_commands_are_read_as_recorded(folder: str, scenario: str) -> None:
    """QUIRKS 2, 3, 4, 5: a header of the real RocketMQ, in either codec, would be misread."""
    for recorded in frames(scenario, folder):
        command, info = read(recorded.data), recorded.info
        assert (command.code, command.opaque, command.flag) == (info["code"], info["opaque"], info["flag"])
        assert info["language"].strip("0 ()") == command.language == "JAVA"
        assert command.version == info["version"]
        assert command.remark == info["remark"]
        assert command.ext_fields() == (info["extFields"] or {})
        assert len(command.body) == info["bodyLength"]
        assert (command.codec == CODEC_JSON) == (info["serializeType"] == "JSON")
        assert (command.is_response, command.is_oneway) == (
            info["kind"] == "response",
            info["kind"] == "oneway",
        )


@pytest.mark.parametrize(("folder", "scenario"), RECORDINGS)
def test_recorded_commands_are_written_as_recorded(folder: str, scenario: str) -> None:
    """QUIRKS 3: a Java peer would get a header that differs from Java's.

    Equal up to the order inside the ext fields, which is that of a Java HashMap.
    """
    for recorded in frames(scenario, folder):
        command = read(recorded.data)
        again = encode_command(command)
        assert len(again) == len(recorded.data)
        (ours,), (theirs,) = FrameDecoder().feed(again), FrameDecoder().feed(recorded.data)
        if command.codec == CODEC_JSON:
            assert list(json.loads(ours.header)) == list(json.loads(theirs.header))
            assert json.loads(ours.header) == json.loads(theirs.header)
        else:
            assert read(again).ext_fields() == command.ext_fields()
            assert ours.header[:13] == theirs.header[:13]


@pytest.mark.parametrize("vector", vectors("remotingCommandEncode"), ids=lambda vector: vector["what"])
def test_vectors_of_the_java_encoder(vector: dict[str, object]) -> None:
    """Frames of the 4.6.0 encoder with values a live run rarely has would be misread."""
    command = read(bytes.fromhex(str(vector["frameHex"])))
    assert (command.code, command.opaque, command.version) == (
        vector["code"],
        vector["opaque"],
        vector["version"],
    )
    assert command.remark == vector["remark"]
    assert command.ext_fields() == (vector["extFields"] or {})


@given(
    code=st.integers(-(2**15), 2**15 - 1),
    opaque=INT32,
    flag=INT32,
    remark=st.none() | TEXT.filter(bool),
    ext=st.dictionaries(TEXT, TEXT, max_size=5),
    body=st.binary(max_size=50),
    codec=st.sampled_from(CODECS),
)
def test_round_trip_in_each_codec(
    code: int, opaque: int, flag: int, remark: str | None, ext: dict[str, str], body: bytes, codec: int
) -> None:
    """A remark or property with an unusual letter would change on the way."""
    sent = Command(code, opaque, flag, remark=remark, ext=ext, body=body, codec=codec)
    seen = read(encode_command(sent))
    assert (seen.code, seen.opaque, seen.flag, seen.remark, seen.body) == (code, opaque, flag, remark, body)
    in_json = codec == CODEC_ROCKETMQ and "" in ext.values() and not sent.is_response
    assert (seen.language, seen.codec) == ("PYTHON", CODEC_JSON if in_json else codec)
    assert seen.ext_fields() == ext


def test_empty_values_are_not_sent_in_binary() -> None:
    """RocketMQ from 4.9.4 on would read null, and reject the signature of the request."""
    request = Command(1, ext={"a": "", "b": "x"}, codec=CODEC_ROCKETMQ)
    seen = read(encode_command(request))
    assert (seen.codec, seen.ext_fields()) == (CODEC_JSON, {"a": "", "b": "x"})
    assert read(encode_command(Command(1, ext={"b": "x"}, codec=CODEC_ROCKETMQ))).codec == CODEC_ROCKETMQ


@pytest.mark.parametrize("codec", CODECS)
def test_a_typed_header_survives_each_codec(codec: int) -> None:
    """A handler would see no topic, or a queue id as text."""
    header = GetMaxOffsetRequestHeader(topic='a "quoted" topic', queue_id=3)
    request = Command.request(RequestCode.GET_MAX_OFFSET, header)
    seen = read(encode_command(request, codec))
    assert seen.header_as(GetMaxOffsetRequestHeader) == header


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("ext", "field"),
    [({"queueId": "1"}, "topic"), ({"topic": "T", "queueId": "one"}, "queueId"), ({}, "topic")],
)
def test_a_bad_header_names_its_field(codec: int, ext: dict[str, str], field: str) -> None:
    """A user of another client would get an error that does not name the mistake."""
    seen = read(encode_command(Command(RequestCode.GET_MAX_OFFSET, ext=ext, codec=codec)))
    with pytest.raises(RemoteProtocolError, match=f"code 30: .*{field}"):
        seen.header_as(GetMaxOffsetRequestHeader)


def test_a_reply_belongs_to_its_request() -> None:
    """The requester would wait forever, or get a response in a codec that it cannot read."""
    request = Command(RequestCode.HEART_BEAT, 7, FLAG_ONEWAY | FLAG_READS_MSGPACK, codec=CODEC_ROCKETMQ)
    response = request.reply(1, remark="no")
    assert (response.opaque, response.codec, response.code) == (7, CODEC_ROCKETMQ, 1)
    assert response.flag == FLAG_RESPONSE | FLAG_READS_MSGPACK


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":105,"extFields":{"topic":"T","n":4,"b":true},"flag":0,"language":9,"opaque":1,"version":1}',
        b'{ "code" : 105, "language":"GO", "extFields":{"b":true,"n":4,"topic":"T","z":null}, "x":[1,{}] }',
    ],
)
def test_headers_of_clients_in_other_languages(header: bytes) -> None:
    """A Go or C++ client, whose JSON has numbers where Java writes texts, would be disconnected."""
    command = decode_command(Frame(CODEC_JSON, header, b""))
    assert command.ext_fields() == {"topic": "T", "n": "4", "b": "true"}
    assert command.language == "GO"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"code":"x"}',
        b'{"code":99999999999,"opaque":1}',
        b'{"code":1,"opaque":1.5}',
        b'{"code":1,"language":[]}',
        b'{"code":1,"remark":"\xff"}',
        b'{"code":1,"extFields":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_an_invalid_json_header_is_rejected(header: bytes) -> None:
    """Hostile JSON would raise an error that is not caught, and end the task of its connection."""
    with pytest.raises(RemoteProtocolError):
        decode_command(Frame(CODEC_JSON, header, b"")).ext_fields()


@pytest.mark.parametrize(
    "changes",
    [
        {0: "1"}, {0: True}, {0: 2**31}, {1: None}, {1: -(2**31) - 1}, {2: 1.5}, {3: "1"}, {4: None},
        {5: 7}, {5: b"\xff"}, {6: []}, {6: "x"}, {6: {"a": 1}}, {6: {1: "a"}}, {6: {"a": "b", "c": None}},
    ],
)  # fmt: skip
def test_an_invalid_msgpack_header_is_rejected(changes: dict[int, object]) -> None:
    """A number or a nested value would reach a handler as if it were a text."""
    good: list[object] = [105, 1, 0, 395, 1, "remark", {"topic": "T"}]
    assert decode_command(Frame(CODEC_MSGPACK, msgpack.packb(good), b"")).ext_fields() == {"topic": "T"}
    bad = msgpack.packb([changes.get(number, value) for number, value in enumerate(good)])
    with pytest.raises(RemoteProtocolError, match="msgpack header"):
        decode_command(Frame(CODEC_MSGPACK, bad, b""))


@given(st.binary(max_size=60), st.sampled_from(CODECS))
def test_random_headers_only_raise_the_typed_error(header: bytes, codec: int) -> None:
    """A hostile binary header would raise an error that is not caught, and end its connection's task."""
    try:
        decode_command(Frame(codec, header, b"")).ext_fields()
    except RemoteProtocolError:
        return


@given(st.data(), st.sampled_from(CODECS))
def test_mutated_headers_only_raise_the_typed_error(data: st.DataObject, codec: int) -> None:
    """One flipped byte in a valid header would reach code that random bytes do not reach."""
    command = Command(310, 9, remark="r", ext={"a": "group", "b": "Topic"}, codec=codec)
    (frame,) = FrameDecoder().feed(encode_command(command))
    header = bytearray(frame.header)
    for _ in range(data.draw(st.integers(1, 3))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_command(Frame(codec, bytes(header), b"")).ext_fields()
    except RemoteProtocolError:
        return


@pytest.mark.parametrize("codec", [CODEC_ROCKETMQ, CODEC_MSGPACK])
def test_numbers_that_do_not_fit_are_our_own_error(codec: int) -> None:
    """A number that is truncated to its low bits would end the request of another caller."""
    with pytest.raises(LocalProtocolError, match="code 1"):
        encode_command(Command(1, 2**31, codec=codec))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("changes", [{"remark": "\ud800"}, {"ext": {"topic": "\ud800"}}], ids=str)
def test_text_that_is_not_unicode_is_our_own_error(codec: int, changes: dict[str, Any]) -> None:
    """An error of another class would leave the request in the table of requests in flight."""
    with pytest.raises(LocalProtocolError, match="code 1"):
        encode_command(Command(1, codec=codec, **changes))


def test_an_unknown_codec_is_rejected() -> None:
    """A wrong setting would produce frames that no peer reads."""
    with pytest.raises(LocalProtocolError, match="codec 5"):
        encode_command(Command(1), codec=5)


def test_nested_ext_fields_are_rejected() -> None:
    """A nested value would reach a handler as if it were a text."""
    command = Command(1, ext=msgspec.json.encode({"a": {"b": 1}}))
    with pytest.raises(RemoteProtocolError, match="'a' is a dict"):
        command.ext_fields()
