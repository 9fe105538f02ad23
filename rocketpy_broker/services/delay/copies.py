"""Finds stored messages by their unique ids, such as the copy that was made of one when it was due."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rocketpy.protocol.message.properties import PROPERTY_UNIQ_KEY, TIMER_DEL_UNIQKEY, find
from rocketpy.protocol.message.record import Record, decode
from rocketpy_broker.store import MessageStore

_UNIQ_KEY: Final = PROPERTY_UNIQ_KEY.encode()
_RECALLED: Final = TIMER_DEL_UNIQKEY.encode()
"""A recall of a timer has the unique id of the recalled message (QUIRKS 74)."""
_FOREVER_MS: Final = 2**63 - 1


def find_stored(store: MessageStore, topic: str, unique_id: str, after: int = -1) -> Iterator[Record]:
    """Yield the records behind an offset of the log that the key index finds for a unique id of a topic.

    A record may have another topic or id with the same hash. None if the index is switched off.
    """
    if store.index is not None:
        for offset in store.index.find(topic, unique_id, 0, _FOREVER_MS):
            if offset > after and (data := store.look_message(offset)) is not None:
                yield decode(data, check_crc=False)


def has_copy(store: MessageStore, record: Record, topic: str) -> bool:
    """Whether the key index finds a copy of a record, in any queue of this topic, behind it in the log.

    The queue may have changed: a topic that lost queues has the copy in another one. False for a record
    without a unique id, and if the index is switched off.
    """
    unique_id = find(record.properties, _UNIQ_KEY)
    if unique_id is None:
        return False
    wanted = topic, *_identity(record)
    found = find_stored(store, topic, unique_id.decode("utf-8", "replace"), record.physical_offset)
    return any(wanted == (copy.topic, *_identity(copy)) for copy in found)


def _identity(record: Record) -> tuple[bytes | None, bytes | None, int, int]:
    """Return what a message and its copy have in common."""
    return (
        find(record.properties, _UNIQ_KEY),
        find(record.properties, _RECALLED),
        record.born_timestamp,
        record.reconsume_times,
    )
