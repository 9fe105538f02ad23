"""The sources of the inputs: bytes that the real RocketMQ 4.6.0 produced."""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

from rocketpy.errors import RocketError
from rocketpy.protocol import fastjson
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.message import record
from rocketpy.protocol.remoting.command import decode_command, encode_command
from rocketpy.protocol.remoting.frame import CODEC_MSGPACK, Frame, FrameDecoder
from tests import golden_data
from tests.protocol_tables import REQUEST_BODIES, RESPONSE_BODIES

JSON_TOKENS = (
    b"{", b"}", b"[", b"]", b'"', b"'", b":", b",", b"{{", b'{"a":', b"null", b"true", b"-1", b"1e400",
    b"0.5", b"NaN", b"\\u0000", b"\\ud800", b"\\", b"\\x", b"9223372036854775808", b"-2147483649", b"9" * 400,
    b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b'"language":7', b'"extFields":', b'{1:"a"}', b"$ref",
    b"\xe2\x80\xa8",
)  # fmt: skip
PROPERTY_TOKENS = (
    b"\x01",
    b"\x02",
    b"\x01\x02",
    b"KEYS\x01",
    b"TAGS\x01",
    b"UNIQ_KEY\x01",
    b"null",
    b"\xff",
    b"\xc3",
)

_RESPONSES_WITH_RECORDS = {RequestCode.PULL_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID}
_LONGEST = 8192
"""Longer recordings only make the inputs slower, not stranger."""


@cache
def streams() -> list[bytes]:
    """Whole frames, length field included: one of each kind that was recorded."""
    seen = {
        bytes.fromhex(entry[key])
        for entry in golden_data.essential()
        for key in ("requestHex", "responseHex")
        if entry.get(key)
    }
    return sorted(frame for frame in seen if len(frame) <= _LONGEST)


@cache
def request_frames(*codes: int) -> list[bytes]:
    """Recorded requests as whole frames; of these request codes, or of all."""
    found = [bytes.fromhex(entry["requestHex"]) for entry in golden_data.essential()]
    return [f for f in found if len(f) <= _LONGEST and (not codes or _command_code(f) in codes)]


def _command_code(frame: bytes) -> int:
    return decode_command(FrameDecoder().feed(frame)[0]).code


@cache
def frames() -> list[Frame]:
    """The frames of `streams`, split into codec, header and body."""
    return FrameDecoder().feed(b"".join(streams()))


@cache
def headers(codec: int) -> list[bytes]:
    """Headers in one codec. MessagePack has no recordings: those of the others are re-encoded."""
    if codec != CODEC_MSGPACK:
        return [frame.header for frame in frames() if frame.codec == codec]
    return [FrameDecoder().feed(encode_command(decode_command(f), codec))[0].header for f in frames()]


@cache
def records() -> list[bytes]:
    """Message records, singly and several in one, with IPv4 and with IPv6 hosts."""
    found = [
        bytes.fromhex(vector["hex"]) for vector in golden_data.vectors("messageEncode") if "hex" in vector
    ]
    found += [
        _body_of_response(entry["response"])
        for entry in golden_data.catalog()
        if entry["code"] in _RESPONSES_WITH_RECORDS and entry.get("response")
    ]
    whole = [data for data in found if data and _is_records(data)]
    return [*whole, *map(_with_ipv6, whole)]


def _is_records(data: bytes) -> bool:
    try:
        return bool(record.decode_all(data))
    except RocketError:
        return False


def _with_ipv6(data: bytes) -> bytes:
    changed = record.decode(data)
    changed.born_host = record.host_bytes("fe80::1", 10911)
    changed.sys_flag |= 0x10
    return record.encode(changed)


def _body_of_response(place: dict[str, Any]) -> bytes:
    recorded = golden_data.frames(place["scenario"])[place["n"]]
    return FrameDecoder().feed(recorded.data)[0].body


@cache
def batches() -> list[bytes]:
    """Bodies of SEND_BATCH_MESSAGE."""
    wholes = request_frames(RequestCode.SEND_BATCH_MESSAGE)
    return [FrameDecoder().feed(frame)[0].body for frame in wholes]


@cache
def properties() -> list[bytes]:
    """Property texts."""
    texts = {record.decode(data).properties for data in records()}
    texts |= {vector["string"].encode() for vector in golden_data.vectors("string2messageProperties")}
    return sorted(texts)


@cache
def json_bodies() -> list[tuple[type[Any], bytes]]:
    """JSON bodies with their types."""
    found = {
        (body_class, recorded.data[-recorded.info["bodyLength"] :])
        for scenario in golden_data.scenarios()
        for recorded in golden_data.frames(scenario)
        if 0 < recorded.info["bodyLength"] <= _LONGEST and (body_class := _body_class(recorded.info))
    }
    return sorted(found, key=lambda pair: (pair[0].__name__, pair[1]))[::3]


def _body_class(info: golden_data.Json) -> type[Any] | None:
    if info["kind"] == "response":
        return RESPONSE_BODIES.get(info.get("requestCode", -1)) if info["code"] == 0 else None
    return REQUEST_BODIES.get(info["code"])


@cache
def peer_bodies() -> list[bytes]:
    """Bodies of requests and responses of DLedger's peers."""
    found = {
        frame.data[-frame.info["bodyLength"] :] for frame in golden_data.frames("raft-frames", "dledger")
    }
    return sorted(body for body in found if 0 < len(body) <= _LONGEST)[::5]


@cache
def registrations() -> list[bytes]:
    """Bodies of REGISTER_BROKER in their compressed form, inflated; the fuzzer deflates them."""
    bodies = [
        recorded.data[-recorded.info["bodyLength"] :]
        for recorded in golden_data.frames("boot")
        if recorded.info["code"] == RequestCode.REGISTER_BROKER and recorded.info["kind"] == "request"
    ]
    return [zlib.decompress(body) for body in bodies if body.startswith(b"\x78")]


@cache
def compressed() -> list[bytes]:
    """Streams of zlib: Java's, rocketpy's, and ones that inflate to far more bytes."""
    java = [bytes.fromhex(vector["zlibLevel5Hex"]) for vector in golden_data.vectors("crcAndCompress")]
    ours = [zlib.compress(fastjson.dumps({"text": "coffee " * n}), 5) for n in (1, 100, 1000)]
    bombs = [zlib.compress(bytes(1 << shift)) for shift in (16, 20, 24, 25)]
    return [*java * 6, *ours * 6, *bombs]
