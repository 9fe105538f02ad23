"""Finds the copy of a stored message that was made when it was due."""

from __future__ import annotations

from typing import Final

from rocketpy.protocol.message.properties import PROPERTY_UNIQ_KEY, find
from rocketpy.protocol.message.record import Record, decode
from rocketpy_broker.store import MessageStore

_UNIQ_KEY: Final = PROPERTY_UNIQ_KEY.encode()
_RECALLED: Final = b"TIMER_DEL_UNIQKEY"
"""A recall of a timer has the unique id of the recalled message (QUIRKS 74)."""
_FOREVER_MS: Final = 2**63 - 1


def has_copy(store: MessageStore, record: Record, topic: str, queue_id: int) -> bool:
    """Whether the key index finds a copy of a record, for this queue, behind it in the log.

    False for a record without a unique id, and if the index is switched off.
    """
    unique_id = find(record.properties, _UNIQ_KEY)
    if unique_id is None or store.index is None:
        return False
    wanted = topic, queue_id, *_identity(record)
    for offset in store.index.find(topic, unique_id.decode("utf-8", "replace"), 0, _FOREVER_MS):
        if offset > record.physical_offset and (data := store.look_message(offset)) is not None:
            copy = decode(data, check_crc=False)
            if wanted == (copy.topic, copy.queue_id, *_identity(copy)):
                return True
    return False


def _identity(record: Record) -> tuple[bytes | None, bytes | None, int, int]:
    """Return what a message and its copy have in common."""
    return (
        find(record.properties, _UNIQ_KEY),
        find(record.properties, _RECALLED),
        record.born_timestamp,
        record.reconsume_times,
    )
