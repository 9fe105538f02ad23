"""The check of a store finds each kind of damage, and nothing in a whole store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rocketpy.errors import StoreError
from rocketpy_broker.store import MessageInner, MessageStore
from rocketpy_broker.store.queue.consume_queue import UNIT
from tests.store_checks import check_store
from tests.unit.store.helpers import message, put, small_config


def overwrite_unit(store: MessageStore, number: int, unit: bytes) -> None:
    queue = store.queues.queues["T", 0]
    queue.write_out()
    assert queue.files.last is not None
    queue.files.last.write(number * 20, unit)


def flip_code(store: MessageStore) -> None:
    unit = store.queues.queues["T", 0].unit(3)
    assert unit is not None
    overwrite_unit(store, 3, UNIT.pack(*unit[:2], unit[2] ^ 4))


def overwrite_log(store: MessageStore, position: int, data: bytes) -> None:
    store.commit_log.files.mapped_files[-1].write(position, data)


def overwrite_index(store: MessageStore, entry: int, data: bytes) -> None:
    assert store.index is not None
    file = store.index.files[0]
    file.write_entries()
    file._write(40 + 100 * 4 + entry * 20, data)


def cut_queue(store: MessageStore) -> None:
    store.queues.queues["T", 0].truncate_at(15)


def forget_queue(store: MessageStore) -> None:
    del store.queues.queues["T", 0]


def raise_min_offset(store: MessageStore) -> None:
    store.queues.queues["T", 0].min_offset = 3


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda s: overwrite_unit(s, 3, UNIT.pack(5, 100, 0)), "queue T/0: unit 3 points to 100 bytes at 5"),
        (flip_code, "queue T/0: the tags code of unit 3 is off by "),
        (lambda s: overwrite_log(s, 88, b"?"), "commit log: readable to"),
        (lambda s: overwrite_index(s, 2, bytes(20)), "index: no entry for the record at "),
        (lambda s: overwrite_index(s, 2, b"\0\0\0\1" + bytes(16)), "points to 0, where the log has no such"),
        (lambda s: overwrite_index(s, 5, bytes(16) + b"\0\0\0\5"), "entry 5 links to 5, which is not"),
        (cut_queue, "queue T/0: 5 messages have no unit"),
        (forget_queue, "queue T/0: missing, but the log has 20 of its messages"),
        (raise_min_offset, "queue T/0: its minimum offset is 3, but the log has offset 0"),
        (lambda s: s.queues.queues["T", 0].put(99_999, 10, 0, 20), "unit 20 points to 10 bytes at 99999"),
    ],
)  # fmt: skip
def test_each_kind_of_damage_is_reported(
    tmp_path: Path, damage: Callable[[MessageStore], None], problem: str
) -> None:
    """A broken store would pass its check."""
    store = MessageStore(small_config(tmp_path))
    store.open()
    put(store, *range(20))
    assert check_store(store).problems == []
    damage(store)
    assert any(problem in line for line in check_store(store).problems), check_store(store).problems
    store._close_files()


def test_whole_store_is_counted(tmp_path: Path) -> None:
    """A check that reads nothing would pass."""
    store = MessageStore(small_config(tmp_path))
    store.open()
    put(store, *range(20))
    report = check_store(store)
    assert (report.records, report.units, report.index_entries, report.problems) == (20, 20, 60, [])
    store.put_message(message(21))
    with pytest.raises(StoreError, match="1 records wait"):
        check_store(store)
    store.close()


def test_due_times_of_a_changed_table_are_no_damage(tmp_path: Path) -> None:
    """After `messageDelayLevel` was changed, all waiting messages would count as damaged, or none ever."""
    delayed = MessageInner("SCHEDULE_TOPIC_XXXX", 0, b"x", properties=b"DELAY\x011\x02")
    with MessageStore(small_config(tmp_path, delay_levels="1s 5s")) as store:
        for _ in range(5):
            store.put_message(delayed)
        store.dispatch()
        assert check_store(store).problems == []
    with MessageStore(small_config(tmp_path, delay_levels="7s 5s")) as store:
        queue = store.queues.queues["SCHEDULE_TOPIC_XXXX", 0]
        stored = [store.store_timestamp("SCHEDULE_TOPIC_XXXX", 0, number) for number in range(4)]
        assert [unit[3] - time for unit, time in zip(queue.units(), stored, strict=False)] == [1000] * 4
        assert check_store(store).problems == []
        unit = queue.unit(2)
        assert unit is not None
        assert queue.files.last is not None
        queue.files.last.write(40, UNIT.pack(*unit[:2], unit[2] + 64))
        assert check_store(store).problems == [
            "queue SCHEDULE_TOPIC_XXXX/0: the tags code of unit 2 is off by -5936"
        ]
