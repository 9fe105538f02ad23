"""The message record: the format of a message both in the commit log and in a pull response.

All numbers are big-endian, timestamps are ms since 1970. With IPv4 hosts::

    offset  size  field                          offset  size  field
         0     4  size of the whole record           48     8  born host: address 4, port i32
         4     4  magic 0xDAA320A7                   56     8  store timestamp
         8     4  body CRC, 31 bits                  64     8  store host: address 4, port i32
        12     4  queue id                           72     4  reconsume times
        16     4  flag, the user's                   76     8  prepared transaction offset
        20     8  queue offset                       84     4  body length
        28     8  physical offset                    88     b  body
        36     4  sysFlag                          88+b     1  topic length
        40     8  born timestamp                   89+b     t  topic, UTF-8
                                                 89+b+t     2  properties length
                                                 91+b+t     p  properties, see `properties`

An IPv6 host is 16 + 4 bytes and moves later fields by 12. SysFlag bit 0x10 marks an IPv6 born host,
0x20 an IPv6 store host (QUIRKS 51). The end of a commit log file is a blank record: i32 bytes left in the
file, i32 0xCBD43194, then undefined bytes (QUIRKS 43).

Source: RocketMQ 4.6 CommitLog (append, check) and MessageDecoder (decode).
"""

from __future__ import annotations

import socket
import struct
from mmap import mmap
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from rocketpy.errors import (
    LocalProtocolError,
    MessageTooLarge,
    RecordCorrupt,
    TopicInvalid,
    TornTail,
)
from rocketpy.native import has_native_form
from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES
from rocketpy.protocol.message.sysflag import MessageSysFlag

Buffer = bytes | bytearray | memoryview | mmap

MESSAGE_MAGIC: Final = 0xDAA320A7
_MAGIC_BYTES: Final = MESSAGE_MAGIC.to_bytes(4, "big")
BLANK_MAGIC: Final = 0xCBD43194
MIN_BLANK_BYTES: Final = 8
"""Bytes that a record must leave free at the end of a commit log file for the blank record."""
MAX_TOPIC_BYTES: Final = 127
"""The length is a signed 8-bit field."""
V6_EXTRA_BYTES: Final = 12
"""How much longer an IPv6 host is than an IPv4 host."""

_BORN_V6: Final = 0x10
_STORE_V6: Final = 0x20
_V6: Final = _BORN_V6 | _STORE_V6
_UNUSUAL: Final = _V6 | MessageSysFlag.COMPRESSED

HEAD_FORMATS: Final = {
    "size": "i",
    "magic": "I",
    "body_crc": "i",
    "queue_id": "i",
    "flag": "i",
    "queue_offset": "q",
    "physical_offset": "q",
    "sys_flag": "i",
    "born_timestamp": "q",
    "born_host": "8s",
    "store_timestamp": "q",
    "store_host": "8s",
    "reconsume_times": "i",
    "prepared_transaction_offset": "q",
    "body_length": "i",
}
"""The fields before the body, in order: the format of each in the language of `struct`, with IPv4 hosts.

Whatever reads these fields gets their offsets from `HEAD_OFFSETS` or `head_fields`.
"""
_FORMATS: Final = tuple(HEAD_FORMATS.values())
HEAD_OFFSETS: Final = {
    name: struct.calcsize(">" + "".join(_FORMATS[:index])) for index, name in enumerate(HEAD_FORMATS)
}
"""Where each field of the head begins, with IPv4 hosts."""


def head_fields(*names: str) -> Struct:
    """Return the layout of some fields of the head with IPv4 hosts, up to the last of them.

    names: of `HEAD_FORMATS`, in its order; the bytes between them are skipped.
    """
    layout = ">"
    for name in names:
        layout += f"{HEAD_OFFSETS[name] - struct.calcsize(layout)}x{HEAD_FORMATS[name]}"
    return Struct(layout)


# Indexed by (sysFlag & _V6) >> 4: neither, born, store, both hosts IPv6.
_HEADS: Final = tuple(
    Struct(">" + "".join(({**HEAD_FORMATS, "born_host": born, "store_host": store}).values()))
    for store in ("8s", "20s")
    for born in ("8s", "20s")
)
_HEAD: Final = _HEADS[0]
HEAD_BYTES: Final = _HEAD.size
"""Size of the fields before the body, with IPv4 hosts."""
FIXED_BYTES: Final = HEAD_BYTES + 3
"""Size of a record with IPv4 hosts without body, topic and properties: the head and the last two lengths."""
_BODY_CRC, _SYS_FLAG, _BODY_LENGTH = map(list(HEAD_FORMATS).index, ("body_crc", "sys_flag", "body_length"))
"""Indexes of the unpacked fields."""
_START: Final = head_fields("size", "magic")
_PLACE: Final = head_fields("size", "magic", "body_crc", "physical_offset", "sys_flag", "body_length")
_CONSUMED: Final = head_fields(
    "size", "magic", "body_crc", "queue_id", "queue_offset", "sys_flag", "body_length"
)
_QUEUE_OFFSET: Final = head_fields("queue_offset")
_PROPERTIES_LENGTH: Final = Struct(">H")
_HOSTS: Final = {8: (socket.AF_INET, Struct(">4si")), 20: (socket.AF_INET6, Struct(">16si"))}


class Record(msgspec.Struct, gc=False):
    """One stored message with all its fields. Layout and meaning: see the module's table."""

    topic: str
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    """Address and port as on the wire, see `host_text`."""
    store_timestamp: int
    store_host: bytes
    """Address and port as on the wire, see `host_text`."""
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    """As stored; it is compressed if sys_flag says so."""
    properties: bytes
    """As UTF-8 text, see `properties.decode`."""
    body_crc: int = 0
    size: int = 0


class RecordView(NamedTuple):
    """The fields that a store checks and indexes: everything but the body."""

    size: int
    """Of the whole record in bytes."""
    magic: int
    """MESSAGE_MAGIC, or BLANK_MAGIC for the end of a commit log file, for which only `size` is defined."""
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_timestamp: int
    topic: str
    properties: bytes
    prepared_transaction_offset: int
    born_timestamp: int
    flag: int
    reconsume_times: int
    body_crc: int
    body_at: int
    """Where the body starts in the buffer."""
    body_length: int


def host_bytes(address: str, port: int) -> bytes:
    """Encode a host: 8 bytes for an IPv4 address, 20 for IPv6. Raises LocalProtocolError for other text."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.inet_pton(family, address) + port.to_bytes(4, "big")
    except (OSError, OverflowError) as error:
        raise LocalProtocolError(f"{address!r} port {port} is not an IP address and port") from error


def host_text(host: bytes) -> tuple[str, int]:
    """Decode a host of 8 or 20 bytes to address and port. Raises RecordCorrupt for any other length."""
    known = _HOSTS.get(len(host))
    if known is None:
        raise RecordCorrupt(0, f"a host has 8 or 20 bytes, not {len(host)}")
    family, layout = known
    address, port = layout.unpack(host)
    return socket.inet_ntop(family, address), port


def record_size(body_bytes: int, topic_bytes: int, properties_bytes: int, sys_flag: int = 0) -> int:
    """Return the size in bytes of a record with these parts. sys_flag: for its two IPv6 bits."""
    size = FIXED_BYTES + body_bytes + topic_bytes + properties_bytes
    if sys_flag & _V6:
        size += V6_EXTRA_BYTES * ((sys_flag & _V6) >> 4).bit_count()
    return size


@has_native_form
def encode_record(
    topic: bytes,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes,
    properties: bytes,
    /,
) -> bytes:
    """Encode one record, with the CRC of its body.

    Raises TopicInvalid (over 127 bytes) and MessageTooLarge (over 32,767 bytes of properties). Raises
    LocalProtocolError when the length of a host contradicts sys_flag, or a number is out of range.
    """
    v6 = (sys_flag & _V6) >> 4
    body_length = len(body)
    size = FIXED_BYTES + body_length + len(topic) + len(properties)
    if v6 or len(born_host) != 8 or len(store_host) != 8:
        size += V6_EXTRA_BYTES * v6.bit_count()
        _check_hosts(sys_flag, born_host, store_host)
    if len(topic) > MAX_TOPIC_BYTES:
        raise TopicInvalid(f"topic of {len(topic)} bytes; the limit is {MAX_TOPIC_BYTES}")
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise MessageTooLarge(f"properties of {len(properties)} bytes; the limit is {MAX_PROPERTIES_BYTES}")
    try:
        head = _HEADS[v6].pack(
            size, MESSAGE_MAGIC, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, physical_offset,
            sys_flag, born_timestamp, born_host, store_timestamp, store_host, reconsume_times,
            prepared_transaction_offset, body_length,
        )  # fmt: skip
    except struct.error as error:
        raise LocalProtocolError(f"a number does not fit into its field of the record: {error}") from error
    return b"%b%b%c%b%b%b" % (
        head, body, len(topic), topic, _PROPERTIES_LENGTH.pack(len(properties)), properties,
    )  # fmt: skip


def encode(record: Record) -> bytes:
    """Encode a `Record`; its body_crc and size are ignored and computed again."""
    topic, *fields = msgspec.structs.astuple(record)[:14]  # in the order of the parameters
    return encode_record(topic.encode(), *fields)


def encode_blank(size: int) -> bytes:
    """Encode the blank record that fills the last `size` bytes (8 or more) of a commit log file."""
    return encode_blank_start(size).ljust(size, b"\x00")


def encode_blank_start(size: int) -> bytes:
    """Encode the first 8 bytes of a blank record, for a file whose remaining bytes are zeros already."""
    if size < MIN_BLANK_BYTES:
        raise LocalProtocolError(f"a blank record takes {MIN_BLANK_BYTES} bytes, only {size} are left")
    return _START.pack(size, BLANK_MAGIC)


def read_start(buffer: Buffer, offset: int = 0) -> tuple[int, int]:
    """Return (size, magic) at `offset`, unchecked. Both are 0 after the last record of a preallocated file.

    Raises TornTail when fewer than 8 bytes are left.
    """
    if offset < 0 or len(buffer) - offset < 8:
        raise TornTail(offset, f"{max(0, len(buffer) - offset)} bytes left, a record starts with 8")
    size, magic = _START.unpack_from(buffer, offset)
    return size, magic


def decode(buffer: Buffer, offset: int = 0, *, check_crc: bool = True) -> Record:
    """Decode the record that starts at `offset`; the next one starts `size` bytes later.

    Raises TornTail when the buffer ends inside the record. Raises RecordCorrupt when its lengths contradict
    each other, the magic number is wrong, or the body does not match its CRC.
    """
    fields = _head(buffer, offset)
    body_at, body_length = offset + _HEADS[(fields[_SYS_FLAG] & _V6) >> 4].size, fields[_BODY_LENGTH]
    topic, properties = _tail(buffer, offset, fields[0], body_at, body_length)
    body = bytes(buffer[body_at : body_at + body_length])
    if check_crc and crc32(body) & 0x7FFFFFFF != fields[_BODY_CRC]:
        raise _crc_mismatch(offset, body, fields[_BODY_CRC])
    return _record(fields, topic, body, properties)


def decode_all(buffer: Buffer, *, check_crc: bool = True) -> list[Record]:
    """Decode every record in the body of a pull response. Raises as `decode`."""
    records: list[Record] = []
    offset, end = 0, len(buffer)
    while offset < end:
        record = decode(buffer, offset, check_crc=check_crc)
        records.append(record)
        offset += record.size
    return records


@has_native_form
def split_records(
    data: bytes, start: int, topic: bytes, queue_id: int, check_crc: bool
) -> tuple[int, list[bytes], list[bytes], list[int]]:
    """Split usual records of one queue, from `start` to the first record that is not usual.

    A record is usual if it has this topic and queue, IPv4 hosts and an uncompressed body, and is valid.
    `decode` handles all others. check_crc: whether the CRC of the body is checked.

    Returns where the first other record begins, or the end of the data; then for each record its envelope
    (the record without its body, see `open_envelope`), its body, and its queue offset.
    """
    envelopes: list[bytes] = []
    bodies: list[bytes] = []
    queue_offsets: list[int] = []
    unpack, end = _CONSUMED.unpack_from, len(data)
    topic_field = bytes((len(topic),)) + topic if len(topic) <= MAX_TOPIC_BYTES else b"\xff"
    between, properties_length = b"", -1
    at, last = start, end - FIXED_BYTES
    while at <= last:
        size, magic, body_crc, record_queue, queue_offset, sys_flag, body_length = unpack(data, at)
        body_at, following = at + HEAD_BYTES, at + size
        body_end = body_at + body_length
        properties_at = body_end + 2 + len(topic_field)
        if following - properties_at != properties_length:
            properties_length = following - properties_at
            if not 0 <= properties_length <= MAX_PROPERTIES_BYTES:
                break
            between = topic_field + _PROPERTIES_LENGTH.pack(properties_length)
        if (
            magic != MESSAGE_MAGIC
            or record_queue != queue_id
            or sys_flag & _UNUSUAL
            or body_length < 0
            or following > end
            or data[body_end:properties_at] != between
        ):
            break
        body = data[body_at:body_end]
        if check_crc and crc32(body) & 0x7FFFFFFF != body_crc:
            break
        envelopes.append(data[at:body_at] + data[body_end:following])
        bodies.append(body)
        queue_offsets.append(queue_offset)
        at = following
    return at, envelopes, bodies, queue_offsets


def open_envelope(envelope: bytes, body: bytes) -> Record:
    """Return the record of an envelope and a body of `split_records`."""
    fields = _HEAD.unpack_from(envelope)
    return _record(fields, envelope_topic(envelope), body, envelope_properties(envelope))


def PackedRecord(  # noqa: N802 - the name of a class in pickles of earlier versions
    head: bytes, _queue_offset: int, topic: str, body: bytes, properties: bytes
) -> Record:
    """Return the record of a message that an earlier version pickled. head: the record up to its body."""
    fields: tuple[Any, ...] = _HEAD.unpack(head)
    return _record(fields, topic, body, properties)


def envelope_properties(envelope: bytes) -> bytes:
    """Return the properties of an envelope of `split_records`."""
    return envelope[FIXED_BYTES + envelope[HEAD_BYTES] :]


def envelope_topic(envelope: bytes) -> str:
    """Return the topic of an envelope of `split_records`."""
    return str(envelope[HEAD_BYTES + 1 : HEAD_BYTES + 1 + envelope[HEAD_BYTES]], "utf-8")


def envelope_queue_offset(envelope: bytes) -> int:
    """Return the queue offset of an envelope of `split_records`."""
    queue_offset: int = _QUEUE_OFFSET.unpack_from(envelope)[0]
    return queue_offset


def salvage(data: bytes, offset: int, topic: str) -> Record | None:
    """Read a record that `decode` rejects, as far as possible; None when its length is not reliable.

    The length is reliable when the lengths inside the record agree with it. It is also reliable when the data
    ends, or another record begins, at the end of this record. In the second case topic, properties and body
    cannot be separated. Then the topic is `topic`, there are no properties, and the body is all bytes after
    the head.
    """
    try:
        fields = _head(data, offset)
    except RecordCorrupt:
        return None
    end = offset + fields[0]
    body_at, body_length = offset + _HEADS[(fields[_SYS_FLAG] & _V6) >> 4].size, fields[_BODY_LENGTH]
    try:
        topic, properties = _tail(data, offset, fields[0], body_at, body_length)
        body = data[body_at : body_at + body_length]
    except RecordCorrupt:
        if end < len(data) and not data.startswith(_MAGIC_BYTES, end + HEAD_OFFSETS["magic"]):
            return None
        properties, body = b"", data[body_at:end]
    return _record(fields, topic, body, properties)


def _record(fields: tuple[Any, ...], topic: str, body: bytes, properties: bytes) -> Record:
    """Make a record. fields: its unpacked head."""
    (
        size, _, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp, born_host,
        store_timestamp, store_host, reconsume_times, prepared_transaction_offset, _,
    ) = fields  # fmt: skip
    return Record(
        topic, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp, born_host,
        store_timestamp, store_host, reconsume_times, prepared_transaction_offset, body, properties, body_crc,
        size,
    )  # fmt: skip


def peek(buffer: Buffer, offset: int = 0, *, check_crc: bool = False) -> RecordView:
    """Decode the record at `offset` without a copy of its body.

    A blank record has the magic number BLANK_MAGIC; its bytes after the first 8 are ignored.
    Raises TornTail and RecordCorrupt as `decode`.
    """
    size, magic = read_start(buffer, offset)
    if magic == BLANK_MAGIC:
        return _blank_view(buffer, offset, size)
    (
        _, _, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp, _,
        store_timestamp, _, reconsume_times, prepared_transaction_offset, body_length,
    ) = _head(buffer, offset)  # fmt: skip
    body_at = offset + (_HEADS[(sys_flag & _V6) >> 4].size if sys_flag & _V6 else _HEAD.size)
    topic, properties = _tail(buffer, offset, size, body_at, body_length)
    if check_crc:
        with memoryview(buffer) as whole, whole[body_at : body_at + body_length] as body:
            if crc32(body) & 0x7FFFFFFF != body_crc:
                raise _crc_mismatch(offset, body, body_crc)
    return RecordView(
        size, magic, queue_id, queue_offset, physical_offset, sys_flag, store_timestamp, topic, properties,
        prepared_transaction_offset, born_timestamp, flag, reconsume_times, body_crc, body_at, body_length,
    )  # fmt: skip


def is_intact(record: bytes, physical_offset: int) -> bool:
    """Return whether these bytes are one whole record with that physical offset, whose body matches its CRC.

    The same checks as `peek`, but nothing is decoded: see `tools/bench/codecs.py` for the difference.
    """
    if len(record) < FIXED_BYTES:
        return False
    size, magic, body_crc, own_offset, sys_flag, body_length = _PLACE.unpack_from(record)
    if size != len(record) or magic != MESSAGE_MAGIC or own_offset != physical_offset:
        return False
    body_end = _HEAD.size + body_length
    if body_length >= 0 and body_end + 3 <= size and not sys_flag & _V6:
        topic_end = body_end + 1 + record[body_end]
        topic = record[body_end + 1 : topic_end]
        if len(topic) <= MAX_TOPIC_BYTES and topic.isascii():
            rest = int.from_bytes(record[topic_end : topic_end + 2], "big")
            is_whole = rest <= MAX_PROPERTIES_BYTES and topic_end + 2 + rest == size
            return is_whole and crc32(record[_HEAD.size : body_end]) & 0x7FFFFFFF == body_crc
    try:
        peek(record, check_crc=True)
    except (RecordCorrupt, TornTail):
        return False
    return True


def intact_properties(record: bytes) -> bytes:
    """Return the properties of a record that `is_intact` accepts."""
    _, _, _, _, sys_flag, body_length = _PLACE.unpack_from(record)
    if sys_flag & _V6:
        return peek(record).properties
    topic_at = HEAD_BYTES + body_length
    return record[topic_at + 3 + record[topic_at] :]


def _head(buffer: Buffer, offset: int) -> tuple[Any, ...]:
    """Unpack the fields up to the body length; check size, magic number and the end of the buffer."""
    size, magic = read_start(buffer, offset)
    if magic != MESSAGE_MAGIC:
        raise RecordCorrupt(offset, f"magic 0x{magic:08x}, a message has 0x{MESSAGE_MAGIC:08x}")
    if size < FIXED_BYTES:
        raise RecordCorrupt(offset, f"size {size}, below the {FIXED_BYTES} bytes of the smallest record")
    if size > len(buffer) - offset:
        raise TornTail(offset, f"size {size}, but the data ends after {len(buffer) - offset} bytes")
    fields: tuple[Any, ...] = _HEAD.unpack_from(buffer, offset)
    v6 = (fields[_SYS_FLAG] & _V6) >> 4
    if v6:
        if size < FIXED_BYTES + V6_EXTRA_BYTES * v6.bit_count():
            raise RecordCorrupt(offset, f"size {size} leaves no room for the IPv6 hosts of sysFlag")
        fields = _HEADS[v6].unpack_from(buffer, offset)
    return fields


def _tail(buffer: Buffer, offset: int, size: int, body_at: int, body_length: int) -> tuple[str, bytes]:
    """Decode topic and properties; check every length against the size of the record first."""
    end = offset + size
    topic_at = body_at + body_length + 1
    if body_length < 0 or topic_at + 2 > end:
        raise RecordCorrupt(offset, f"body length {body_length} in a record of {size} bytes")
    topic_length = buffer[topic_at - 1]
    properties_at = topic_at + topic_length + 2
    if topic_length > MAX_TOPIC_BYTES or properties_at > end:
        raise RecordCorrupt(offset, f"topic length {topic_length} in a record of {size} bytes")
    (properties_length,) = _PROPERTIES_LENGTH.unpack_from(buffer, properties_at - 2)
    if properties_at + properties_length != end or properties_length > MAX_PROPERTIES_BYTES:
        raise RecordCorrupt(
            offset,
            f"properties length {properties_length}, but {end - properties_at} bytes are left for them",
        )
    try:
        topic = str(buffer[topic_at : topic_at + topic_length], "utf-8")
    except UnicodeDecodeError as error:
        raise RecordCorrupt(offset, f"the topic is not UTF-8: {error.reason}") from error
    return topic, bytes(buffer[properties_at:end])


def _blank_view(buffer: Buffer, offset: int, size: int) -> RecordView:
    if size < MIN_BLANK_BYTES:
        raise RecordCorrupt(offset, f"blank record of size {size}, below {MIN_BLANK_BYTES}")
    if size > len(buffer) - offset:
        raise TornTail(offset, f"blank of size {size}, but the data ends after {len(buffer) - offset} bytes")
    return RecordView(size, BLANK_MAGIC, 0, 0, 0, 0, 0, "", b"", 0, 0, 0, 0, 0, offset + MIN_BLANK_BYTES, 0)


def _check_hosts(sys_flag: int, born_host: bytes, store_host: bytes) -> None:
    for name, host, bit in (("born", born_host, _BORN_V6), ("store", store_host, _STORE_V6)):
        expected = 20 if sys_flag & bit else 8
        if len(host) != expected:
            raise LocalProtocolError(
                f"{name} host of {len(host)} bytes, sysFlag 0x{sys_flag:x} requires {expected}"
            )


def _crc_mismatch(offset: int, body: bytes | memoryview, body_crc: int) -> RecordCorrupt:
    return RecordCorrupt(offset, f"crc 0x{crc32(body) & 0x7FFFFFFF:08x}, header says 0x{body_crc:08x}")
