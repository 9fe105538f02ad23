"""Small stores, and readers for their content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocketpy.protocol.message.record import decode_all
from rocketpy_broker.store import (
    CommitLogConfig,
    ConsumeQueueConfig,
    IndexConfig,
    MessageInner,
    MessageStore,
    RecoveryConfig,
    StoreConfig,
)
from rocketpy_broker.store.index.index_file import IndexFile
from rocketpy_broker.store.log.log_scan import LogScan
from rocketpy_broker.store.message_store import finish
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue

Json = dict[str, Any]


def small_config(root: Path, **changes: Any) -> StoreConfig:
    """The sizes of the recorded stores: 64 KiB logs, 50 units a queue file, 100 slots and 400 entries."""
    settings: dict[str, Any] = {
        "commit_log": CommitLogConfig(segment_bytes=65536, reserve_bytes=16384),
        "consume_queue": ConsumeQueueConfig(segment_bytes=1000),
        "index": IndexConfig(slots=100, entries=400),
    }
    return StoreConfig(root=root, **{**settings, **changes})


def cutting(root: Path) -> StoreConfig:
    """`small_config` that cuts at any damage."""
    return small_config(root, recovery=RecoveryConfig(cut_damage=True))


def message(number: int, *, topic: str = "T", queue_id: int = 0, body: bytes | None = None) -> MessageInner:
    """A message whose body, tag and keys are derived from its number."""
    properties = f"KEYS\x01k{number} all\x02UNIQ_KEY\x01{number:032X}\x02TAGS\x01Tag{number % 3}\x02"
    return MessageInner(
        topic=topic,
        queue_id=queue_id,
        body=f"body {number}".encode() if body is None else body,
        properties=properties.encode(),
        flag=number,
        born_timestamp=1_700_000_000_000 + number,
        born_host=b"\x7f\x00\x00\x01\x00\x00\x12\x34",
    )


def put(store: MessageStore, *numbers: int, **changes: Any) -> None:
    """Store and dispatch messages with these numbers."""
    for number in numbers:
        store.append(message(number, **changes))
    store.write_out()
    store.dispatch()


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """Every body of a queue, read by offset from its min offset to its end."""
    found: list[bytes] = []
    offset = store.min_offset_in_queue(topic, queue_id)
    while offset < store.max_offset_in_queue(topic, queue_id):
        result = store.get_message(topic, queue_id, offset, 32)
        records = decode_all(result.body)
        assert [record.queue_offset for record in records] == list(range(offset, offset + len(records)))
        found += [record.body for record in records]
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset
    return found


def log_bytes(store: MessageStore) -> bytes:
    """The written part of a commit log."""
    return b"".join(file.read(0, file.wrote) for file in store.commit_log.files.mapped_files)


def kill(store: MessageStore) -> None:
    """Stop a store as a killed process would: nothing more is written, the lock goes."""
    store._is_open = False
    store._close_files()


def log_content(store: MessageStore) -> list[Json]:
    """Records of the commit log, as the recorder described them."""
    return [
        {
            "physicalOffset": view.physical_offset, "totalSize": view.size, "topic": view.topic,
            "queueId": view.queue_id, "queueOffset": view.queue_offset, "sysFlag": view.sys_flag,
            "storeTimestamp": view.store_timestamp, "bodyCRC": view.body_crc,
        }
        for view in LogScan(store.commit_log.files, store.min_physical_offset)
    ]  # fmt: skip


def queue_content(store: MessageStore) -> dict[str, list[tuple[int, int, int, int]]]:
    """Units of every consume queue."""
    return {
        f"{queue.topic}/{queue.queue_id}": list(queue.units())
        for queue in store.queues.queues.values()
        if queue.next_offset
    }


def index_content(file: IndexFile) -> list[tuple[int, int, int, int]]:
    """Entries of an index file."""
    return file.entries()


def drop_queues(store: MessageStore, is_unwanted: Callable[[ConsumeQueue], bool]) -> int:
    """Delete queues now; return their number."""
    taken = finish(store.take_queues(is_unwanted))
    for delete in taken:
        delete()
    return len(taken)
