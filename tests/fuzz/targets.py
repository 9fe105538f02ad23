"""Targets without a socket: for each reader how its inputs are made, and which promises hold.

A check returns when the reader accepted the input, or lets the reader's error through; only `allowed`
ones may come out. What was accepted must also survive a round trip, or agree with a second way of reading it.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from random import Random

from rocketpy.errors import (
    ConfigInvalid,
    RecordCorrupt,
    RemoteProtocolError,
    RocketError,
    StoreError,
    UsageError,
)
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import RegisterBrokerBody
from rocketpy.protocol.headers import Header
from rocketpy.protocol.message import properties, record, trace
from rocketpy.protocol.message.batch import decode_batch, encode_batch
from rocketpy.protocol.message.compression import MAX_INFLATED_BYTES, inflate
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.protocol.remoting.command import Command, decode_command, encode_command
from rocketpy.protocol.remoting.connection import Connection
from rocketpy.protocol.remoting.frame import (
    CODEC_JSON,
    CODEC_MSGPACK,
    CODEC_ROCKETMQ,
    Frame,
    FrameDecoder,
    encode_frame,
)
from rocketpy_broker.filter.tokens import ExpressionInvalid
from tests.fuzz import broker_targets as own
from tests.fuzz import corpus
from tests.fuzz import file_targets as files
from tests.fuzz import replica_targets as replicas
from tests.fuzz.mutation import Mutator
from tests.protocol_tables import REQUEST_HEADERS, RESPONSE_HEADERS


@dataclass(frozen=True, slots=True)
class Target:
    """One reader under test.

    make: draws an input. check: reads it; raises one of `allowed` when it refuses it, anything else is a bug.
    """

    name: str
    make: Callable[[Random], bytes]
    check: Callable[[bytes, Random], None]
    allowed: tuple[type[Exception], ...]
    rate: int = 10_000
    """About how many inputs a second; runs of a given time take fewer of slow ones."""


# -- frames -------------------------------------------------------------------------------------


def _make_stream(rng: Random) -> bytes:
    mutator = Mutator(corpus.streams())
    pieces = [
        mutator.make(rng) if rng.random() < 0.5 else rng.choice(mutator.seeds)
        for _ in range(rng.randrange(1, 5))
    ]
    return b"".join(pieces)


def _check_stream(data: bytes, rng: Random) -> None:
    """The same frames result from any split of the stream, and they contain the given bytes."""
    split, whole = FrameDecoder(), FrameDecoder()
    expected = _feed_or_none(whole, [data])
    found = _feed_or_none(split, _chunks(data, rng))
    assert found == expected, "another cut of the stream gave other frames"
    if expected is None:
        whole.feed(b"")  # raises again
    assert split.buffered == whole.buffered, "another cut of the stream keeps other bytes"
    again = b"".join(encode_frame(*frame) for frame in expected or ())
    assert data[: len(data) - whole.buffered] == again, "the frames are not the bytes that came"


def _feed_or_none(decoder: FrameDecoder, chunks: list[bytes]) -> list[Frame] | None:
    try:
        return [frame for chunk in chunks for frame in decoder.feed(chunk)]
    except RemoteProtocolError:
        return None


def _chunks(data: bytes, rng: Random) -> list[bytes]:
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(8)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _make_connection_input(rng: Random) -> bytes:
    """Whole frames with mutated content, so that they pass the frame decoder."""
    frame = rng.choice(corpus.frames())
    mutator = Mutator(corpus.headers(frame.codec), corpus.JSON_TOKENS)
    header = odd_header(frame, rng) if rng.random() < 0.5 else mutator.mutate(rng, frame.header)
    return encode_frame(frame.codec, header, frame.body)


def _check_connection(data: bytes, _: Random) -> None:
    Connection(CODEC_JSON).receive(data)


# -- headers ------------------------------------------------------------------------------------


def _make_header(codec: int, rng: Random) -> bytes:
    if rng.random() < 0.5:
        return odd_header(rng.choice(_frames_in(codec)), rng)
    tokens = corpus.JSON_TOKENS if codec == CODEC_JSON else ()
    return Mutator(corpus.headers(codec), tokens).make(rng)


@cache
def _frames_in(codec: int) -> list[Frame]:
    return [Frame(codec, header, b"") for header in corpus.headers(codec)]


def odd_header(frame: Frame, rng: Random) -> bytes:
    """The header of a frame, valid except for up to three missing or odd fields."""
    command = decode_command(frame)
    fields = command.ext_fields()
    for name in rng.sample(sorted(fields), min(len(fields), rng.randrange(1, 4))):
        if rng.random() < 0.3:
            del fields[name]
        else:
            fields[name] = rng.choice(_ODD_VALUES)
    command.ext = fields
    return FrameDecoder().feed(encode_command(command))[0].header


_ODD_VALUES = (
    "", " ", "-1", "0", "+7", "1.0", "1e9", "true", "TRUE", "null", "0x10", "2147483648",
    "-9223372036854775809", "9" * 400, "a" * 3000, "NaN", "\x00", "\x01\x02", "٣", "../../etc",
    "😀", "%RETRY%", "{}", "[]", '"',
)  # fmt: skip


def _check_header(codec: int, data: bytes, rng: Random) -> None:
    """An accepted header has the same value after encoding and decoding, in each codec."""
    command = decode_command(Frame(codec, data, b""))
    errors = [
        error for header_class in _header_classes(command.code) if (error := _refusal(command, header_class))
    ]
    fields = command.ext_fields()
    _check_rewritten(command, fields, rng.choice((CODEC_JSON, CODEC_ROCKETMQ, CODEC_MSGPACK)))
    if errors:
        raise errors[0]


def _header_classes(code: int) -> list[type[Header]]:
    return [table[code] for table in (REQUEST_HEADERS, RESPONSE_HEADERS) if code in table]


def _refusal(command: Command, header_class: type[Header]) -> RemoteProtocolError | None:
    try:
        command.header_as(header_class)
    except RemoteProtocolError as error:
        return error
    return None


def _check_rewritten(command: Command, fields: dict[str, str], codec: int) -> None:
    if codec == CODEC_ROCKETMQ and not _fits_binary(command, fields):
        return
    again = decode_command(FrameDecoder().feed(encode_command(command, codec))[0])
    assert (again.code, again.opaque, again.flag, again.version) == (
        command.code, command.opaque, command.flag, command.version,
    ), "a number changed"  # fmt: skip
    assert (again.remark or "") == (command.remark or ""), "the remark changed"
    assert again.ext_fields() == fields, "the ext fields changed"


def _fits_binary(command: Command, fields: dict[str, str]) -> bool:
    """The binary header has 16 bits for code, version and the length of a name."""
    numbers_fit = all(-(2**15) <= number < 2**15 for number in (command.code, command.version))
    return numbers_fit and all(len(name.encode()) < 2**15 for name in fields)


# -- records and message bodies -----------------------------------------------------------------


def _make_record(rng: Random) -> bytes:
    data = Mutator(corpus.records()).make(rng)
    if rng.random() < 0.5 and len(data) >= record.FIXED_BYTES:
        data = _mend_record(data)
    return data


def _mend_record(data: bytes) -> bytes:
    """Size and CRC made right, so that the mutation is met after these two checks."""
    (body_length,) = struct.unpack_from(">i", data, 84)
    crc = zlib.crc32(data[88 : 88 + max(body_length, 0)]) & 0x7FFFFFFF
    return struct.pack(">iIi", len(data), record.MESSAGE_MAGIC, crc) + data[12:]


def _check_record(data: bytes, _: Random) -> None:
    """`peek` and `decode` agree, and a record that was read is written as the same bytes."""
    try:
        view = record.peek(data, check_crc=True)
    except RecordCorrupt:
        view = None
    if view is not None and view.magic == record.MESSAGE_MAGIC:
        found = record.decode(data)
        assert (found.size, found.topic, found.properties, found.body_crc) == (
            view.size, view.topic, view.properties, view.body_crc,
        ), "peek and decode disagree"  # fmt: skip
        assert record.encode(found) == data[: found.size], "the record changed"
        properties.decode(found.properties)
    record.decode_all(data)


def _make_batch(rng: Random) -> bytes:
    return Mutator(corpus.batches()).make(rng)


def _check_batch(data: bytes, _: Random) -> None:
    messages = decode_batch(data)
    if all(len(message.properties) <= properties.MAX_PROPERTIES_BYTES for message in messages):
        assert decode_batch(encode_batch(messages)) == messages, "the batch changed"


def _make_properties(rng: Random) -> bytes:
    return Mutator(corpus.properties(), corpus.PROPERTY_TOKENS).make(rng)


def _check_properties(data: bytes, rng: Random) -> None:
    """`find` and `decode` agree on every name, and decoded properties can be encoded."""
    found = properties.decode(data)
    names = [name for name in found if "�" not in name and "\x01" not in name]
    for name in (*rng.sample(names, min(3, len(names))), "KEYS", "UNIQ_KEY"):
        value = properties.find(data, name.encode())
        text = None if value is None else value.decode("utf-8", "replace").rstrip("\x01")
        assert text == found.get(name), f"find and decode disagree on {name!r}"
    assert properties.decode(properties.encode(found)) == found, "the properties changed"


def _make_message_id(rng: Random) -> bytes:
    seeds = [b"7F00000100002A9F0000000000000000", b"fe80000000000000000000000000000100002A9F00000000000001F4"]
    return Mutator(seeds, [b"00000000", b" ", b"-1", b"\xd9\xa1"]).make(rng)


def _check_message_id(data: bytes, _: Random) -> None:
    decode_message_id(data.decode("utf-8", "replace"))


# -- JSON bodies and compression ----------------------------------------------------------------


def _make_json(rng: Random) -> bytes:
    if rng.random() < 0.5:
        return Mutator([text for _, text in corpus.json_bodies()], corpus.JSON_TOKENS).make(rng)
    _, text = rng.choice(corpus.json_bodies())
    return _with_odd_scalar(text, rng)


def _with_odd_scalar(text: bytes, rng: Random) -> bytes:
    """A body in order, but for one text or number of it."""
    at = rng.choice([match.span() for match in re.finditer(rb'"[^"]*"|-?\d+', text)] or [(0, 0)])
    return text[: at[0]] + rng.choice(corpus.JSON_TOKENS) + text[at[1] :]


def _check_json(data: bytes, rng: Random) -> None:
    """The tolerant reader accepts its inputs, and the type then accepts or rejects the values."""
    body_class, _ = rng.choice(corpus.json_bodies())
    fastjson.loads(data)
    found = fastjson.decode(data, body_class)
    fastjson.decode(fastjson.dumps(found), body_class)


def _make_registration(rng: Random) -> bytes:
    data = zlib.compress(Mutator(corpus.registrations(), corpus.JSON_TOKENS).make(rng), 1)
    return Mutator([data]).mutate(rng, data) if rng.random() < 0.1 else data


def _check_registration(data: bytes, _: Random) -> None:
    found = RegisterBrokerBody.decode(data, compressed=True)
    RegisterBrokerBody.decode(found.encode(compressed=True), compressed=True)


def _make_compressed(rng: Random) -> bytes:
    return Mutator(corpus.compressed()).make(rng)


def _check_compressed(data: bytes, _: Random) -> None:
    plain = inflate(data)
    assert len(plain) <= min(MAX_INFLATED_BYTES, max(4 << 20, 100 * len(data))), "inflated beyond the limits"


def _make_trace(rng: Random) -> bytes:
    lines = (
        b"Pub\x011700000000000\x01r\x01g\x01T\x01id\x01tag\x01keys\x01127.0.0.1:1\x015\x0110\x010\x01off\x01true\x02",
        b"SubBefore\x011700000000000\x01r\x01g\x01req\x01id\x010\x01keys\x02",
        b"SubAfter\x01req\x01id\x015\x01true\x01keys\x010\x02",
    )
    return Mutator([*lines, b"".join(lines)], (b"\x01", b"\x02", b"null", b"-1", b"9" * 5000)).make(rng)


def _check_trace(data: bytes, _: Random) -> None:
    """Records that were read are written as such that mean the same."""
    found = trace.decode(data.decode("utf-8", "replace"))
    assert trace.decode(trace.encode(found)) == found, "a trace record changed"


def _spark_targets() -> tuple[Target, ...]:
    """Return the targets that need PySpark; empty if it is not installed."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return ()
    from tests.fuzz import spark_targets  # noqa: PLC0415 - it needs both

    return (Target("Spark options", spark_targets.make_options, spark_targets.check_options, (UsageError,)),)


_PEER = (RemoteProtocolError,)
_STORED = (RecordCorrupt,)

TARGETS = (
    Target("frame decoder, any split", _make_stream, _check_stream, _PEER),
    Target("connection", _make_connection_input, _check_connection, _PEER),
    Target("header JSON", partial(_make_header, CODEC_JSON), partial(_check_header, CODEC_JSON), _PEER),
    Target(
        "header ROCKETMQ",
        partial(_make_header, CODEC_ROCKETMQ),
        partial(_check_header, CODEC_ROCKETMQ),
        _PEER,
    ),
    Target(
        "header msgpack", partial(_make_header, CODEC_MSGPACK), partial(_check_header, CODEC_MSGPACK), _PEER
    ),
    Target("message record", _make_record, _check_record, _STORED),
    Target("batch body", _make_batch, _check_batch, _PEER),
    Target("properties", _make_properties, _check_properties, ()),
    Target("message id", _make_message_id, _check_message_id, (RocketError,)),
    Target("JSON body", _make_json, _check_json, _PEER),
    Target("registration body", _make_registration, _check_registration, _PEER),
    Target("inflate", _make_compressed, _check_compressed, _PEER),
    Target("SQL92 filter", own.make_expression, own.check_expression, (ExpressionInvalid,)),
    Target("ACL file", own.make_access_file, own.check_access_file, (ConfigInvalid,)),
    Target("users and policies", own.make_auth_file, own.check_auth_file, (ConfigInvalid,)),
    Target("ACL address", own.make_address, own.check_address, (ConfigInvalid,)),
    Target("broker.conf", files.make_broker_conf, files.check_broker_conf, (ConfigInvalid,), rate=150),
    Target("records of pops", own.make_pop_record, own.check_pop_record, _PEER),
    Target("trace records", _make_trace, _check_trace, _PEER),
    Target("HA stream, master", replicas.make_reports, replicas.check_master, _PEER),
    Target("HA stream, slave", replicas.make_stream, replicas.check_slave, _PEER),
    Target("DLedger frames", replicas.make_peer_frames, replicas.check_peer, _PEER, rate=600),
    Target("state files", files.make_state_file, files.check_state_file, (ValueError,)),
    Target("store files", files.make_store_file, files.check_store_file, (StoreError,), rate=50),
    *_spark_targets(),
)
