"""The message record: records of Java are decoded, and encoding them gives Java's bytes."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketpy.errors import LocalProtocolError, MessageTooLarge, RecordCorrupt, TopicInvalid, TornTail
from rocketpy.protocol.message import properties, record
from rocketpy.protocol.message.checksum import crc32
from rocketpy.protocol.message.compression import decompress
from rocketpy.protocol.message.record import BLANK_MAGIC, MESSAGE_MAGIC, Record
from tests.golden_data import Json, extract_store, frames, parsed, scenarios, store_names, vectors

HOST = record.host_bytes("127.0.0.1", 40000)
HOST_V6 = record.host_bytes("2001:db8::1", 10911)
JAVA = bytes.fromhex(vectors("messageEncode")[0]["hex"])
PROPERTIES = b"TAGS\x01TagA\x02"
STORES = [name for room in ("store", "ha") for name in store_names(room)]


def make(*, sys_flag: int = 0, body: bytes = b"hello golden", **changes: Any) -> bytes:
    """The record of the vector, with other values where the test wants them."""
    fields: dict[str, Any] = {
        "topic": b"GoldenTopic",
        "queue_id": 3,
        "flag": 5,
        "queue_offset": 42,
        "physical_offset": 1000,
        "sys_flag": sys_flag,
        "born_timestamp": 1574300000000,
        "born_host": HOST_V6 if sys_flag & 0x10 else HOST,
        "store_timestamp": 1574300000123,
        "store_host": HOST_V6 if sys_flag & 0x20 else record.host_bytes("127.0.0.1", 10911),
        "reconsume_times": 1,
        "prepared_transaction_offset": 0,
        "body": body,
        "properties": PROPERTIES,
    }
    return record.encode_record(*(fields | changes).values())


def test_bytes_are_javas() -> None:
    """A Java broker or consumer would decode another message from a record of rocketpy."""
    assert make() == JAVA
    ours = record.decode(JAVA)
    assert (ours.topic, ours.queue_id, ours.flag, ours.queue_offset) == ("GoldenTopic", 3, 5, 42)
    assert (ours.body, ours.properties, ours.reconsume_times) == (b"hello golden", PROPERTIES, 1)
    assert record.host_text(ours.born_host) == ("127.0.0.1", 40000)
    assert record.host_text(ours.store_host) == ("127.0.0.1", 10911)
    assert record.encode(ours) == JAVA


def stored_records(path: Path) -> Iterator[tuple[bytes, int]]:
    """(file's content, offset) of every record of a commit log file, as the codec walks it."""
    data, at = path.read_bytes(), 0
    while len(data) - at >= 8 and record.read_start(data, at) != (0, 0):
        view = record.peek(data, at)
        if view.magic == BLANK_MAGIC:
            assert at + view.size == len(data)
            break
        yield data, at
        at += view.size


def as_recorded(read: Record) -> Json:
    """A record in the words of the recordings."""
    inflated = (
        {"bodyDecompressedLength": len(decompress(read.body, read.sys_flag))} if read.sys_flag & 1 else {}
    )
    host, port = record.host_text(read.born_host)
    store_host, store_port = record.host_text(read.store_host)
    return {
        "totalSize": read.size, "magic": MESSAGE_MAGIC, "bodyCRC": read.body_crc, "queueId": read.queue_id,
        "flag": read.flag, "queueOffset": read.queue_offset, "physicalOffset": read.physical_offset,
        "sysFlag": read.sys_flag, "bornTimestamp": read.born_timestamp, "bornHost": f"{host}:{port}",
        "storeTimestamp": read.store_timestamp, "storeHost": f"{store_host}:{store_port}",
        "reconsumeTimes": read.reconsume_times, "bodyLength": len(read.body), "topic": read.topic,
        "preparedTransactionOffset": read.prepared_transaction_offset, "bodyHex": read.body.hex(),
        "propertiesRaw": read.properties.decode(), "properties": properties.decode(read.properties),
        "crcOk": crc32(read.body) == read.body_crc, **inflated,
    }  # fmt: skip


@pytest.mark.parametrize("name", STORES)
def test_recorded_commit_logs_are_read_and_written_alike(name: str, tmp_path: Path) -> None:
    """QUIRKS 21, 28, 29, 43, 51: a store of the real broker would not open, or read as other messages."""
    store = extract_store(name, tmp_path)
    for log in parsed(name)["commitlog"]:
        expected = [entry for entry in log["records"] if "blank" not in entry]
        found = []
        for data, at in stored_records(store / "commitlog" / log["file"]):
            whole = record.decode(data, at, check_crc=False)
            found.append(as_recorded(whole))
            assert record.encode(whole) == data[at : at + whole.size] or not found[-1]["crcOk"]
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert {key: theirs[key] for key in theirs.keys() & ours.keys()} == {
                key: ours[key] for key in theirs.keys() & ours.keys()
            }
            assert theirs.keys() - ours.keys() <= {"file", "offset"}


def test_a_torn_record_is_noticed(tmp_path: Path) -> None:
    """QUIRKS 48: recovery would keep a record whose body was damaged by a crash."""
    store = extract_store("torn", tmp_path)
    data, at = list(stored_records(store / "commitlog" / "00000000000000131072"))[-1]
    for check in (record.decode, lambda d, a: record.peek(d, a, check_crc=True)):
        with pytest.raises(RecordCorrupt, match=rf"record at {at}: crc 0x\w+, header says 0x\w+"):
            check(data, at)


def test_recorded_pull_bodies_survive_a_round_trip() -> None:
    """QUIRKS 22, 28, 37: consumers of rocketpy and of Java would get different messages from one broker."""
    seen = 0
    for scenario in scenarios():
        for info, data in frames(scenario):
            if "bodyMessages" in info:
                body = data[len(data) - info["bodyLength"] :]
                records = record.decode_all(body)
                assert b"".join(map(record.encode, records)) == body
                assert len(records) == len(info["bodyMessages"])
                seen += len(records)
    assert seen > 50


@pytest.mark.parametrize("sys_flag", [0, 0x10, 0x20, 0x30])
def test_ipv6_hosts(sys_flag: int) -> None:
    """QUIRKS 51: a client with an IPv6 address would shift every field after it."""
    data = make(sys_flag=sys_flag)
    assert len(data) == record.record_size(12, 11, len(PROPERTIES), sys_flag)
    read = record.decode(data)
    assert record.host_text(read.born_host)[0] == ("2001:db8::1" if sys_flag & 0x10 else "127.0.0.1")
    assert record.host_text(read.store_host)[0] == ("2001:db8::1" if sys_flag & 0x20 else "127.0.0.1")
    assert (read.topic, read.body, read.prepared_transaction_offset) == ("GoldenTopic", b"hello golden", 0)
    view = record.peek(data, check_crc=True)
    assert (view.topic, view.store_timestamp, view.properties) == ("GoldenTopic", 1574300000123, PROPERTIES)


def test_the_published_offsets_are_those_of_the_fields() -> None:
    """A store that patches a record in place would overwrite its neighbours."""
    at = record.HEAD_OFFSETS
    for sys_flag, extra in ((0, 0), (0x10, record.V6_EXTRA_BYTES)):
        data = bytearray(make(sys_flag=sys_flag))
        struct.pack_into(">q", data, at["queue_offset"], 77)
        struct.pack_into(">q", data, at["physical_offset"], 88)
        struct.pack_into(">q", data, at["store_timestamp"] + extra, 99)
        assert bytes(data) == make(sys_flag=sys_flag, queue_offset=77, physical_offset=88, store_timestamp=99)


def test_peek_returns_the_values_of_decode() -> None:
    """The consume queue would be built from other values than the consumer gets."""
    data = b"xx" + make() + make(body=b"", properties=b"")
    for at in (2, 2 + len(JAVA)):
        view, whole = record.peek(data, at, check_crc=True), record.decode(data, at)
        for name in set(view._fields) & set(Record.__struct_fields__):
            assert getattr(view, name) == getattr(whole, name), name
        assert data[view.body_at : view.body_at + view.body_length] == whole.body


@pytest.mark.parametrize("sys_flag", [0, 0x10, 0x30])
@pytest.mark.parametrize("topic", ["GoldenTopic", "主题", "x" * 127])
def test_the_quick_check_agrees_with_peek(sys_flag: int, topic: str) -> None:
    """A look-up by key would serve a damaged record, or hide a sound one."""

    def found_by_peek(data: bytes) -> bool:
        try:
            view = record.peek(data, check_crc=True)
        except (RecordCorrupt, TornTail):
            return False
        return (view.magic, view.size, view.physical_offset) == (MESSAGE_MAGIC, len(data), 1000)

    sound = make(sys_flag=sys_flag, topic=topic.encode())
    assert record.is_intact(sound, 1000)
    assert record.intact_properties(sound) == record.peek(sound).properties != b""
    assert not record.is_intact(sound, 1001)
    damaged = [sound[:length] for length in range(len(sound))]
    for position in range(len(sound)):
        flipped = (bytes((sound[position] ^ mask,)) for mask in (0x01, 0x10, 0x80, 0xFF))
        damaged += [sound[:position] + byte + sound[position + 1 :] for byte in flipped]
    responses = [record.is_intact(data, 1000) for data in damaged]
    assert responses == [found_by_peek(data) for data in damaged]
    assert set(responses) == {True, False}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: Any) -> None:
    """Recovery would have to copy whole files to read them."""
    buffer = kind(JAVA + JAVA)
    assert record.decode(buffer, len(JAVA)) == record.decode(JAVA)
    assert [r.body for r in record.decode_all(buffer)] == [b"hello golden"] * 2
    assert all(type(part) is bytes for part in (record.decode(buffer).body, record.peek(buffer).properties))


def test_a_mapped_file_will_do_and_can_be_closed(tmp_path: Path) -> None:
    """A mapped commit log could not be closed after a record was checked in it."""
    path = tmp_path / "log"
    path.write_bytes(JAVA)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert record.peek(mapped, check_crc=True).topic == "GoldenTopic"
        assert record.decode(mapped) == record.decode(JAVA)
        mapped.close()


def test_blank_records() -> None:
    """QUIRKS 43: a Java broker would not find the end of a commit log file of rocketpy."""
    blank = record.encode_blank(20)
    assert blank[:8].hex() == "00000014cbd43194"
    assert record.peek(blank + b"garbage")[:2] == (20, BLANK_MAGIC)
    assert record.read_start(JAVA) == (len(JAVA), MESSAGE_MAGIC)
    with pytest.raises(LocalProtocolError, match="only 7 are left"):
        record.encode_blank(7)
    with pytest.raises(RecordCorrupt, match="blank record of size 7"):
        record.peek(struct.pack(">iI", 7, BLANK_MAGIC))
    for at in (0, 2):
        assert record.peek(bytes(at) + blank, at)[:2] == (20, BLANK_MAGIC)
        with pytest.raises(TornTail, match="blank of size 9"):
            record.peek(bytes(at) + struct.pack(">iI", 9, BLANK_MAGIC), at)
    with pytest.raises(RecordCorrupt, match="magic 0xcbd43194"):
        record.decode(blank)


def patched(at: int, layout: str, value: int) -> bytes:
    data = bytearray(JAVA)
    struct.pack_into(layout, data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (patched(4, ">I", 0xDAA320A8), "magic 0xdaa320a8, a message has 0xdaa320a7"),
        (patched(0, ">i", -1), "size -1, below"),
        (patched(0, ">i", 90), "size 90, below the 91"),
        (patched(0, ">i", len(JAVA) - 1), "bytes are left for them"),
        (patched(84, ">i", -1), "body length -1"),
        (patched(84, ">i", 2**31 - 1), "body length 2147483647"),
        (patched(100, ">B", 255), "topic length 255"),
        (patched(112, ">H", 65535), "properties length 65535, but 10 bytes"),
        (patched(101, ">B", 0xFF), "topic is not UTF-8"),
        (patched(36, ">i", 0x30) + bytes(50), "body length|size|properties"),
        (
            make(body=b"", topic=b"", properties=b"")[:36] + struct.pack(">i", 0x30) + bytes(51),
            "no room for the IPv6",
        ),
    ],
)
def test_contradictions_are_rejected(data: bytes, reason: str) -> None:
    """Recovery would index garbage as a message, or ask for gigabytes by a damaged length."""
    for read in (record.decode, record.peek):
        with pytest.raises(RecordCorrupt, match=reason):
            read(data)


def test_every_cut_is_a_torn_tail() -> None:
    """The result of a crash in the middle of a write would be mistaken for unexplained damage."""
    for length in range(len(JAVA)):
        for read in (record.decode, record.peek, record.decode_all):
            if length or read is not record.decode_all:
                with pytest.raises(TornTail):
                    read(JAVA[:length])
    with pytest.raises(TornTail):
        record.decode(JAVA, len(JAVA) + 5)
    with pytest.raises(TornTail):
        record.decode(JAVA, -4)


def test_values_outside_the_format_are_rejected_before_a_write() -> None:
    """QUIRKS 24: a length would wrap and make the log unreadable after this record."""
    assert record.decode(make(topic=b"t" * 127, properties=b"p" * 32767)).topic == "t" * 127
    with pytest.raises(TopicInvalid, match="128 bytes; the limit is 127"):
        make(topic=b"t" * 128)
    with pytest.raises(MessageTooLarge, match="32768 bytes; the limit is 32767"):
        make(properties=b"p" * 32768)
    with pytest.raises(LocalProtocolError, match="store host of 20 bytes, sysFlag 0x0 requires 8"):
        make(store_host=HOST_V6)
    with pytest.raises(LocalProtocolError, match="born host of 8 bytes, sysFlag 0x10 requires 20"):
        make(sys_flag=0x10, born_host=HOST)
    with pytest.raises(LocalProtocolError, match="does not fit"):
        make(queue_id=2**31)


def test_hosts_as_bytes_and_text() -> None:
    """The born host would be that of another client than the sender."""
    assert record.host_bytes("192.0.2.2", 65535).hex() == "c00002020000ffff"
    assert record.host_text(record.host_bytes("::ffff:1.2.3.4", 1)) == ("::ffff:1.2.3.4", 1)
    for address, port in (("localhost", 1), ("1.2.3", 1), ("::g", 1), ("1.2.3.4", -1), ("1.2.3.4", 2**32)):
        with pytest.raises(LocalProtocolError, match="not an IP address and port"):
            record.host_bytes(address, port)
    with pytest.raises(RecordCorrupt, match="8 or 20 bytes, not 4"):
        record.host_text(b"1234")


def split(data: bytes, topic: bytes = b"GoldenTopic", start: int = 0) -> tuple[int, list[Record]]:
    """The records that `split_records` takes, and where it stops."""
    end, envelopes, bodies, offsets = record.split_records(data, start, topic, 3, True)
    records = list(map(record.open_envelope, envelopes, bodies))
    assert [one.queue_offset for one in records] == offsets
    assert list(map(record.envelope_queue_offset, envelopes)) == offsets
    assert list(map(record.envelope_topic, envelopes)) == [one.topic for one in records]
    assert list(map(record.envelope_properties, envelopes)) == [one.properties for one in records]
    return end, records


@pytest.mark.parametrize("topic", ["T", "Topic", "GoldenTopic"])
def test_usual_records_are_split_as_they_are_decoded(topic: str) -> None:
    """A consumer would get a message with another's properties."""
    sizes = (0, 1, 2, 1, 0, 255, 256, 256, 1, 32767)
    data = b"".join(make(topic=topic.encode(), properties=b"p" * size) for size in sizes)
    assert split(data, topic.encode()) == (len(data), record.decode_all(data))


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": b"AnotherTopic"},
        {"topic": b"t" * 127},
        {"queue_id": 1},
        {"sys_flag": 0x1},
        {"sys_flag": 0x10, "born_host": HOST_V6},
        {"sys_flag": 0x20, "store_host": HOST_V6},
    ],
)
def test_records_are_split_up_to_an_unusual_one(changes: dict[str, Any]) -> None:
    """A compressed body would be delivered as it is, or a message of another queue."""
    usual = make()
    data = usual + make(**changes) + usual
    assert split(data) == (len(usual), [record.decode(usual)])
    assert split(data, start=len(data) - len(usual)) == (len(data), [record.decode(usual)])


@pytest.mark.parametrize("at", [3, 4, 8, 84, 87, 88])
def test_records_are_split_up_to_a_damaged_one(at: int) -> None:
    """A consumer would get a damaged body, or a part of the next message."""
    usual = make()
    damaged = bytearray(usual)
    damaged[at] ^= 1
    assert split(usual + damaged + usual)[0] == len(usual)
    assert split(usual + usual[:-1])[0] == len(usual)


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("sys_flag", [0, 0x30])
@pytest.mark.parametrize("behind", [b"", make(), record.encode_blank(50)])
def test_readable_parts_of_a_damaged_record(behind: bytes, sys_flag: int, before: int) -> None:
    """A consumer would be stuck at a damaged record, or get bytes of the next one."""
    sound = make(sys_flag=sys_flag)
    body_at = sound.index(b"hello golden")

    def salvaged(damaged: bytes) -> Record | None:
        return record.salvage(bytes(before) + damaged + behind, before, "Asked")

    wrong_body = salvaged(sound.replace(b"hello", b"jello"))
    whole = record.decode(sound)
    whole.body = b"jello golden"
    assert wrong_body == whole
    is_followed = not behind or behind == make()
    for at, value in ((body_at - 1, 99), (body_at + 12, 99), (len(sound) - len(PROPERTIES) - 1, 99)):
        wrong_length = sound[:at] + bytes([value]) + sound[at + 1 :]
        found = salvaged(wrong_length)
        assert (found is not None) is is_followed
        if found is not None:
            assert (found.topic, found.properties, found.body) == ("Asked", b"", wrong_length[body_at:])
            assert (found.size, found.queue_offset) == (len(sound), 42)
    assert salvaged(b"\0\0\0\1" + sound[4:]) is None
