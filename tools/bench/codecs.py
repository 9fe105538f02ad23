"""Compares fast paths of the codecs with the plain code that they replace, in one process.

`python -m tools.bench.codecs` prints nanoseconds per message for both, the best of several rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rocketpy import MessageColumns
from rocketpy.protocol.java import hash_polynomial, string_hash, string_hashes
from rocketpy.protocol.message import batch, properties, record
from rocketpy.protocol.remoting.frame import Frame
from rocketpy_broker.store.index.index_hash import key_hash, key_hashes

COUNT: Final = 500
ROUNDS: Final = 50
BODY: Final = b"x" * 128
PROPERTIES: Final = b"KEYS\x01key\x02UNIQ_KEY\x01C000020200004E0E2F2A690300000001\x02WAIT\x01true\x02"
HOST: Final = b"\x7f\x00\x00\x01\x00\x00\x12\x34"


def one_record(position: int) -> bytes:
    """Encode one record."""
    return record.encode_record(b"T", 0, 0, 1, position, 0, 2, HOST, 3, HOST, 0, 0, BODY, PROPERTIES)


def walk(data: bytes) -> None:
    """Decode all fields of each record."""
    offset = 0
    while offset < len(data):
        offset += record.decode(data, offset).size


def column_texts(columns: MessageColumns) -> None:
    """Encode the properties of messages in columns."""
    columns.property_texts(["id"] * COUNT)


def message_texts(columns: MessageColumns) -> None:
    """Encode the properties of the same messages, one by one."""
    for message in columns:
        user = {properties.PROPERTY_TAGS: message.tags, **message.properties}
        own = {properties.PROPERTY_UNIQ_KEY: "id", properties.PROPERTY_WAIT_STORE_MSG_OK: "true"}
        properties.encode({**user, **own}).encode()


def best(work: Callable[[], object]) -> float:
    """Return the nanoseconds per message of the fastest round."""
    clock = time.perf_counter_ns
    times = []
    for _ in range(ROUNDS):
        begin = clock()
        work()
        times.append(clock() - begin)
    return min(times) / COUNT


def main() -> None:
    """Measure each pair."""
    elements = [(0, BODY, PROPERTIES)] * COUNT
    keys = [f"{number:032X}".encode() for number in range(COUNT)]
    size = len(one_record(0))
    positions = [size * n for n in range(COUNT)]
    data = b"".join(map(one_record, positions))
    single = one_record(0)
    columns = MessageColumns("T", [BODY] * COUNT, tags=["a"] * COUNT, properties={"shop": ["s"] * COUNT})
    tags = [f"tag-{number:06}" for number in range(COUNT)]
    new = tuple.__new__
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "split_records, decode": (
            lambda: record.split_records(data, 0, b"T", 0, True),
            lambda: walk(data),
        ),
        "is_intact, peek": (
            lambda: [record.is_intact(single, 0) for _ in range(COUNT)],
            lambda: [record.peek(single, check_crc=True) for _ in range(COUNT)],
        ),
        "encode_batch, elements": (
            lambda: batch.encode_batch(elements),
            lambda: b"".join([batch.encode_batch([element]) for element in elements]),
        ),
        "key_hashes, key_hash": (
            lambda: key_hashes([7] * COUNT, keys),
            lambda: [key_hash(7, key) for key in keys],
        ),
        "MessageColumns, Message": (lambda: column_texts(columns), lambda: message_texts(columns)),
        "string_hashes, string_hash": (lambda: string_hashes(tags), lambda: set(map(string_hash, tags))),
        "hash_polynomial of up to 32 characters, of more": (
            lambda: [hash_polynomial(BODY[:32]) for _ in range(COUNT)],
            lambda: [hash_polynomial(BODY[:33]) for _ in range(COUNT)],
        ),
        "tuple.__new__, Frame": (
            lambda: [new(Frame, (0, b"", b"")) for _ in range(COUNT)],
            lambda: [Frame(0, b"", b"") for _ in range(COUNT)],
        ),
    }
    for name, (fast, plain) in pairs.items():
        print(f"{name}: {best(fast):.0f} ns, {best(plain):.0f} ns")


if __name__ == "__main__":
    main()
