"""Walks an open store and reports every inconsistency with its place.

The commit log is the truth: each of its records is checked, and each must be found in its consume queue at
its queue offset, and in the index under its keys; no consume queue or index may hold anything else.
For tests, crash tests and operators.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from rocketpy.errors import StoreError
from rocketpy.protocol.java import utf8_hash
from rocketpy.protocol.properties import PROPERTY_KEYS, PROPERTY_UNIQ_KEY, find
from rocketpy.protocol.record import RecordView
from rocketpy_broker.store.consume_queue import BLANK_SIZE, ConsumeQueue
from rocketpy_broker.store.index_hash import positive_hash
from rocketpy_broker.store.index_service import IndexService
from rocketpy_broker.store.log_scan import LogScan
from rocketpy_broker.store.message_store import MessageStore

__all__ = ["CheckReport", "check_store"]

_PROBLEMS_MAX = 1000
_NOT_IN_QUEUE = 0x4
_ROLLBACK = 0xC


@dataclass(slots=True)
class CheckReport:
    """What a walk found. problems: one line each, the first thousand."""

    records: int = 0
    units: int = 0
    index_entries: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Note a problem."""
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(problem)


def check_store(store: MessageStore) -> CheckReport:
    """Check an open store; all must be dispatched. Reads everything; memory grows with the records.

    A store is opened (and so recovered) before it can be checked. Raises StoreError when the disk fails.
    """
    if store.dispatcher.waiting:
        raise StoreError(f"{store.dispatcher.waiting} records wait for dispatch; check a store at rest")
    report = CheckReport()
    in_queues: dict[tuple[str, int], dict[int, RecordView]] = defaultdict(dict)
    entries: list[tuple[int, int]] = []
    scan = LogScan(store.commit_log.files, store.min_physical_offset)
    for view in scan:
        report.records += 1
        if not view.sys_flag & _NOT_IN_QUEUE:
            _check_place(view, in_queues[view.topic, view.queue_id], report)
        if view.sys_flag & _ROLLBACK != _ROLLBACK:
            entries += [(key_hash, view.physical_offset) for key_hash in _key_hashes(view)]
    if scan.end != store.max_physical_offset:
        reason = scan.stop.reason if scan.stop is not None else "zeros"
        report.add(f"commit log: readable to {scan.end}, ends at {store.max_physical_offset}: {reason}")
    for key, records in in_queues.items():
        if key not in store.queues.queues:
            report.add(f"queue {key[0]}/{key[1]}: missing, the log has {len(records)} messages of it")
    for key, queue in store.queues.queues.items():
        _check_queue(queue, in_queues.get(key, {}), store.min_physical_offset, report)
    if store.index is not None:
        _check_index(store.index, entries, store.min_physical_offset, report)
    return report


def _check_place(view: RecordView, records: dict[int, RecordView], report: CheckReport) -> None:
    where = f"record at {view.physical_offset}: {view.topic}/{view.queue_id} message {view.queue_offset}"
    earlier = records.get(view.queue_offset)
    if earlier is not None:
        report.add(f"{where} is also at {earlier.physical_offset}")
    elif records and view.queue_offset - 1 not in records:
        report.add(f"{where} comes after {max(records)}")
    records[view.queue_offset] = view


def _check_queue(
    queue: ConsumeQueue, records: dict[int, RecordView], log_start: int, report: CheckReport
) -> None:
    name = f"queue {queue.topic}/{queue.queue_id}"
    seen = 0
    for number, offset, size, _ in queue.units():
        report.units += 1
        view = records.get(number)
        if view is not None:
            seen += 1
            if (offset, size) != (view.physical_offset, view.size):
                report.add(
                    f"{name}: unit {number} is {offset}+{size}, the record {view.physical_offset}+{view.size}"
                )
        elif offset >= log_start and not (offset == 0 and size == BLANK_SIZE):
            report.add(f"{name}: unit {number} at {offset}+{size} has no record")
    if seen != len(records):
        missing = sorted(set(records) - set(range(queue.next_offset - seen, queue.next_offset)))
        report.add(f"{name}: {len(records) - seen} messages have no unit, the first is {missing[:1]}")
    if records and queue.min_offset > min(records):
        report.add(f"{name}: min offset {queue.min_offset}, but the log has {min(records)}")


def _key_hashes(view: RecordView) -> list[int]:
    prefix = view.topic.encode() + b"#"
    unique_key = find(view.properties, PROPERTY_UNIQ_KEY.encode())
    keys = [key for key in (find(view.properties, PROPERTY_KEYS.encode()) or b"").split(b" ") if key]
    return [positive_hash(utf8_hash(prefix + key)) for key in [*filter(None, [unique_key]), *keys]]


def _check_index(
    index: IndexService, expected: list[tuple[int, int]], log_start: int, report: CheckReport
) -> None:
    present: set[tuple[int, int]] = set()
    for file in index.files:
        for number, (key_hash, offset, _, previous) in enumerate(file.entries(), 1):
            report.index_entries += 1
            present.add((key_hash, offset))
            if previous >= number:
                report.add(f"{file.path.name}: entry {number} is chained to {previous}")
        for key_hash, offset in set(expected[:: max(1, len(expected) // 50)]):
            covered = file.begin_offset < offset < file.end_offset
            if covered and offset not in file.find(key_hash, 1 << 30, 0, 1 << 62):
                report.add(f"{file.path.name}: record at {offset} is not in the chain of its key")
    wanted = set(expected)
    for key_hash, offset in sorted(wanted - present, key=lambda entry: entry[1]):
        report.add(f"index: record at {offset} lacks the key with hash {key_hash}")
    for key_hash, offset in sorted(present - wanted, key=lambda entry: entry[1]):
        if offset >= log_start:
            report.add(f"index: key with hash {key_hash} points to {offset}, where no such record is")
