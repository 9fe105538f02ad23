"""Random and mutated bytes: each decoder returns a value or its own error, and allocates little.

The cases come from a seeded generator, so a failure repeats: its seed is in the message. `HOSTILE_CASES`
in the environment sets their number for each decoder.
"""

from __future__ import annotations

import os
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from random import Random

import msgspec
import pytest

from rocketpy.errors import RecordCorrupt, RemoteProtocolError
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper
from rocketpy.protocol.message import message_id, properties, record
from rocketpy.protocol.message.batch import decode_batch, encode_batch
from rocketpy.protocol.message.compression import compress, inflate
from tests.protocol_tables import REQUEST_BODIES, REQUEST_HEADERS, RESPONSE_BODIES, RESPONSE_HEADERS

CASES = int(os.environ.get("HOSTILE_CASES", "2000"))
MEMORY_LIMIT_BYTES = 24 << 20

HOST, HOST_V6 = record.host_bytes("127.0.0.1", 1), record.host_bytes("::1", 1)
PROPERTIES = b"TAGS\x01A\x02UNIQ_KEY\x01C0000202000030946E09690E5F230000\x02"
RECORDS = [
    record.encode_record(b"Topic", 1, 2, 3, 4, 0, 5, HOST, 6, HOST, 7, 8, b"body" * 10, PROPERTIES),
    record.encode_record(b"Topic", 1, 2, 3, 4, 0x30, 5, HOST_V6, 6, HOST_V6, 7, 8, b"", b""),
    record.encode_blank(40),
]
REGISTRATION = RegisterBrokerBody(
    topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
        topic_config_table={name: TopicConfig(topic_name=name) for name in ("A", "B")}
    )
).encode(compressed=True)
JSON = [
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5,{"brokerName":"b","queueId":1}:-7}}',
    b'{"brokerAddrs":{0:"127.0.0.1:1"},"cluster":null,"x":[1,2.5,1e3,true,"\\u00e4\\ud83d\\ude00"]}',
    b"{a:'b',c:[NaN,Infinity,-Infinity],}",
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T","tagsSet":["a"]}]}]}',
]
EXT = b'{"topic":"T","queueId":"3","consumerGroup":"g","a":"g","d":"4","g":"1574300000000","k":"false"}'
BODY_CLASSES = sorted({*REQUEST_BODIES.values(), *RESPONSE_BODIES.values()}, key=lambda cls: cls.__name__)
HEADER_CLASSES = sorted({*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}, key=lambda cls: cls.__name__)
INSERTED = [
    b"{", b"[", b'"', b"\\", b"\xff", b":", b",", b"9" * 20, b"{" * 50, b"\\ud800", b"\0\0\0\0",
    b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\x01", b"\x02", b"'", b"NaN", b"-",
]  # fmt: skip


def mutated(random: Random, seeds: list[bytes]) -> bytes:
    """One of the seeds with one to six changes, or bytes that never were one."""
    if random.random() < 0.05:
        return random.randbytes(random.randrange(200))
    data = random.choice(seeds)
    for _ in range(random.randint(1, 6)):
        at = random.randrange(len(data) + 1)
        change = random.random()
        if change < 0.4:
            data = data[:at] + random.randbytes(1) + data[at + 1 :]
        elif change < 0.6:
            data = data[:at] + random.choice(INSERTED) + data[at:]
        elif change < 0.7:
            replacement = random.choice(INSERTED)
            data = data[:at] + replacement + data[at + len(replacement) :]
        elif change < 0.9:
            data = data[:at] + data[at + random.randint(1, 20) :]
        else:
            data = data[:at] + data[at:] * 2
    return data


def read_all_records(data: bytes) -> object:
    record.peek(memoryview(data), check_crc=True)
    record.decode(data)
    return record.decode_all(data, check_crc=False)


def read_json(data: bytes) -> object:
    value = fastjson.loads(data)
    fastjson.dumps(value)
    return value


def read_registration(data: bytes) -> object:
    return RegisterBrokerBody.decode(zlib.compress(data, 1), compressed=True)


def read_body(data: bytes) -> object:
    return BODY_CLASSES[zlib.crc32(data) % len(BODY_CLASSES)].decode(data)


def read_header(data: bytes) -> object:
    header_class = HEADER_CLASSES[zlib.crc32(data) % len(HEADER_CLASSES)]
    return msgspec.json.decode(data, type=header_class, strict=False).ext_fields()


def read_properties(data: bytes) -> object:
    return properties.find(data, b"TAGS"), properties.decode(data)


def read_message_id(data: bytes) -> object:
    return message_id.decode_message_id(data.decode("latin-1"))


def read_unique_id(data: bytes) -> object:
    text = data.decode("latin-1")
    message_id.check_unique_id(text)
    return text


Refusals = tuple[type[Exception], ...]
DECODERS: list[tuple[Callable[[bytes], object], list[bytes], Refusals]] = [
    (read_all_records, [*RECORDS, b"".join(RECORDS[:2])], (RecordCorrupt,)),
    (decode_batch, [encode_batch([(1, b"x" * 5, PROPERTIES), (2, b"", b"")])], (RemoteProtocolError,)),
    (inflate, [compress(PROPERTIES * 20)], (RemoteProtocolError,)),
    (read_registration, [zlib.decompress(REGISTRATION)], (RemoteProtocolError,)),
    (read_json, JSON, (RemoteProtocolError,)),
    (read_body, JSON, (RemoteProtocolError,)),
    (read_header, [EXT], (msgspec.DecodeError, UnicodeDecodeError)),
    (read_properties, [PROPERTIES], ()),
    (read_message_id, [b"7F00000100002A9F0000000000000000"], (RemoteProtocolError,)),
    (read_unique_id, [b"C0000202000030946E09690E5F230000"], (RemoteProtocolError,)),
]


@pytest.mark.parametrize(
    ("read", "seeds", "refusals"), DECODERS, ids=[entry[0].__name__ for entry in DECODERS]
)
def test_only_its_own_errors_leave_a_decoder(
    read: Callable[[bytes], object], seeds: list[bytes], refusals: Refusals
) -> None:
    """One hostile message would end the process or the loop that serves all clients."""
    accepted = 0
    for seed in range(CASES):
        data = mutated(Random(seed), seeds)
        try:
            read(data)
            accepted += 1
        except refusals:
            pass
        except Exception as error:  # noqa: BLE001 - anything else is what this test is about
            pytest.fail(f"seed {seed}: {error!r} for {data!r}")
    assert accepted, "the mutations leave nothing intact, so nothing behind the first check is tested"


def one_by_one(data: bytes) -> list[record.Record]:
    found: list[record.Record] = []
    while (at := sum(one.size for one in found)) < len(data):
        found.append(record.decode(data, at))
    return found


def test_a_run_of_records_is_read_as_each_of_them_is() -> None:
    """The way for records that look alike would take bytes for a message that `decode` refuses."""
    run = b"".join((RECORDS[0], RECORDS[0], RECORDS[1], RECORDS[0], RECORDS[0]))
    ends: set[type] = set()
    for seed in range(CASES):
        data = mutated(Random(seed), [run])
        end: list[object] = []
        for read in (one_by_one, record.decode_all):
            try:
                end.append(read(data))
            except RecordCorrupt as error:
                end.append((type(error), str(error)))
        assert end[0] == end[1], f"seed {seed}"
        ends.add(type(end[0]))
    assert ends == {list, tuple}, "the mutations leave nothing intact, or everything"


@pytest.mark.parametrize(
    ("read", "seeds", "refusals"), DECODERS, ids=[entry[0].__name__ for entry in DECODERS]
)
def test_no_length_is_believed(
    read: Callable[[bytes], object], seeds: list[bytes], refusals: Refusals
) -> None:
    """A few bytes that claim to be gigabytes would fill the memory of a broker."""
    cases = [mutated(Random(seed), seeds) for seed in range(200)]
    cases += [seed[:at] + b"\x7f\xff\xff\xff" + seed[at + 4 :] for seed in seeds for at in range(len(seed))]
    tracemalloc.start()
    try:
        for data in cases:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with suppress(*refusals):
                read(data)
            assert tracemalloc.get_traced_memory()[1] - before < MEMORY_LIMIT_BYTES, data
    finally:
        tracemalloc.stop()
