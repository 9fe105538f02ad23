"""Finds messages by key: the index has the hashes of keys, the records have the keys themselves.

Two keys can have the same hash, so each record that the index finds is read and compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

from rocketpy.protocol.message.record import decode
from rocketpy_broker.store.index.index_service import IndexService
from rocketpy_broker.store.queue.property_fields import index_fields

_OTHER_KEYS_MAX: Final = 4096
"""How many records of other keys a query reads: the event loop waits for it."""

_BYTES_MAX: Final = 12 << 20
"""Limit of the records of one result, which must fit into a frame. The first one is always returned."""


@dataclass(slots=True)
class QueryMessageResult:
    """Records found by key, oldest first; and timestamp (ms) and offset of the newest indexed record."""

    records: list[bytes]
    index_last_update_timestamp: int
    index_last_update_offset: int


def find_by_key(
    index: IndexService,
    read: Callable[[int], bytes | None],
    store_timestamp: Callable[[int], int],
    topic: str,
    key: str,
    count: int,
    begin: int,
    end: int,
) -> Generator[None, None, QueryMessageResult]:
    """Return the newest `count` records with a key that were stored in [begin, end] (ms), oldest first.

    It yields before each record that it reads, and ends when the records have `_BYTES_MAX` bytes. read,
    store_timestamp: return the record and its store time at an offset of the log. Differs: 4.6.0 counts and
    returns records of other keys with the same hash, which could hide the others. Here, 4,096 of them end the
    search.
    """
    records: dict[int, bytes] = {}
    others = size = 0
    if count <= 0:
        return QueryMessageResult([], *index.newest)
    # All at once: files of the index may be deleted while others run.
    offsets = list(itertools.islice(index.find(topic, key, begin, end), count + _OTHER_KEYS_MAX))
    for offset in offsets:
        yield
        if not begin <= store_timestamp(offset) <= end:
            continue
        record = read(offset)
        if record is None:
            continue
        if not _has_key(record, topic, key):
            others += 1
        elif records and size + len(record) > _BYTES_MAX:
            break
        else:
            records[offset] = record
            size += len(record)
        if len(records) == count or others == _OTHER_KEYS_MAX:
            break
    return QueryMessageResult([records[offset] for offset in sorted(records)], *index.newest)


def _has_key(data: bytes, topic: str, key: str) -> bool:
    record = decode(data, check_crc=False)
    _, keys, unique_key = index_fields(record.properties)
    wanted = key.encode()
    return record.topic == topic and (unique_key == wanted or wanted in keys.split(b" "))
