"""Finds messages by key: the index has the hashes of keys, the records have the keys themselves.

Two keys can have the same hash, so each record that the index finds is read and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

from rocketpy.native import has_native_form
from rocketpy.protocol.message.record import is_intact, peek
from rocketpy_broker.store.index.index_service import IndexService
from rocketpy_broker.store.log.messages import timestamp_in
from rocketpy_broker.store.queue.log_fields import index_fields

_NOT_STORED, _OTHER_KEY, _HAS_KEY = range(3)
"""Results of `match_key`."""

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
    index: IndexService | None,
    read: Callable[[int], bytes | None],
    topic: str,
    key: str,
    count: int,
    begin: int,
    end: int,
) -> Generator[None, None, QueryMessageResult]:
    """Return the newest `count` records with a key that were stored in [begin, end] (ms), oldest first.

    It yields before each record that it reads, and ends when the records have `_BYTES_MAX` bytes. read:
    returns the bytes of the record at an offset of the log. Differs: 4.6.0 counts and returns records of
    other keys with the same hash, which could hide the others. Here, 4,096 of them end the search.
    """
    if index is None:
        return QueryMessageResult([], 0, 0)
    if count <= 0:
        return QueryMessageResult([], *index.newest)
    records: dict[int, bytes] = {}
    others = size = 0
    # All at once: files of the index may be deleted while others run.
    offsets = index.find(topic, key, begin, end, count + _OTHER_KEYS_MAX)
    topic_bytes, key_bytes = topic.encode(), key.encode()
    for offset in offsets:
        yield
        record = read(offset)
        if record is None:
            continue
        match = match_key(record, offset, topic_bytes, key_bytes, begin, end)
        if match != _HAS_KEY:
            others += match == _OTHER_KEY
        elif records and size + len(record) > _BYTES_MAX:
            break
        else:
            records[offset] = record
            size += len(record)
        if len(records) == count or others == _OTHER_KEYS_MAX:
            break
    return QueryMessageResult([records[offset] for offset in sorted(records)], *index.newest)


@has_native_form
def match_key(record: bytes, offset: int, topic: bytes, key: bytes, begin: int, end: int) -> int:
    """Return whether these bytes are the record at this offset of the log, and whether it has this key.

    The result is `_HAS_KEY`, `_OTHER_KEY`, or `_NOT_STORED` for other bytes, and for a record that was not
    stored in [begin, end] (ms). topic, key: in UTF-8.
    """
    if not is_intact(record, offset) or not begin <= timestamp_in(record) <= end:
        return _NOT_STORED
    view = peek(record)
    _, keys, unique_key = index_fields(view.properties)
    has_key = unique_key == key or key in keys.split(b" ")
    return _HAS_KEY if has_key and view.topic.encode() == topic else _OTHER_KEY
