"""Compares the files of a store with each other, and reports every inconsistency with its position.

The commit log is authoritative. Each record must be in its consume queue and in the index, and both must not
point to anything else. The unit in the queue must have the record's queue offset and tags code. In
SCHEDULE_TOPIC_XXXX the code is the due time. After a change of `messageDelayLevel`, all codes of a queue may
differ by the same time, which is not reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rocketpy.protocol.java import utf8_hash
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy.protocol.message.properties import PROPERTY_KEYS, PROPERTY_UNIQ_KEY, find
from rocketpy.protocol.message.record import RecordView
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store.index.index_file import IndexFile
from rocketpy_broker.store.index.index_hash import positive_hash
from rocketpy_broker.store.inspect.inspection import ReadOnlyStore
from rocketpy_broker.store.log.mapped_file_queue import LogFiles
from rocketpy_broker.store.log.message_log import RecordScan
from rocketpy_broker.store.log.messages import NOT_IN_QUEUE
from rocketpy_broker.store.queue.consume_queue import BLANK_SIZE, ConsumeQueue
from rocketpy_broker.store.queue.log_fields import tags_code_of

_PROBLEMS_MAX = 1000
_ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK

_Unit = tuple[int, int, int]
"""Physical offset, size and tags code."""


@dataclass(slots=True)
class CheckReport:
    """The result of a check."""

    records: int = 0
    units: int = 0
    index_entries: int = 0
    problems: list[str] = field(default_factory=list)
    """The first thousand, one line each."""
    may_be_behind: bool = False
    behind: int = 0
    """Units and index entries that the next start will add."""
    log_end: int = 0

    def add(self, problem: str, *, behind: int = 0) -> None:
        """Add a problem. behind: number of entries that are missing only at the end."""
        if behind and self.may_be_behind:
            self.behind += behind
        elif len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(problem)


def check_files(stored: ReadOnlyStore) -> CheckReport:
    """Check the files of a stopped store, of rocketpy or of a Java broker. Reads all files.

    After an unclean stop, consume queues and index may lack records that the next start adds. They are
    counted as `behind`, not as problems.
    """
    report = CheckReport(problems=list(stored.problems), may_be_behind=not stored.is_clean)
    index = stored.index_files if stored.has_index else None
    scan = stored.scan(stored.log.min_offset)
    check_log(scan, stored.log, stored.queues, index, stored.delays_ms, report)
    for problem in stored.log_problems(scan):
        report.add(problem)
    report.log_end = scan.end
    return report


def check_log(
    scan: RecordScan,
    files: LogFiles,
    queues: Mapping[tuple[str, int], ConsumeQueue],
    index: Sequence[IndexFile] | None,
    delays_ms: Sequence[int],
    report: CheckReport,
) -> None:
    """Read the log with `scan`, and report where queues or index differ from it. index: None without one.

    delays_ms: of the delay levels.
    """
    in_queues: dict[tuple[str, int], dict[int, _Unit]] = defaultdict(dict)
    entries: list[tuple[int, int]] = []
    for view in scan:
        report.records += 1
        if not view.sys_flag & NOT_IN_QUEUE:
            unit = (view.physical_offset, view.size, tags_code_of(view, delays_ms))
            _check_unit(view, unit, in_queues[view.topic, view.queue_id], report)
        if view.sys_flag & _ROLLBACK != _ROLLBACK and index is not None:
            entries += [(key_hash, view.physical_offset) for key_hash in _key_hashes(view)]
    for key, records in in_queues.items():
        if key not in queues:
            problem = f"queue {key[0]}/{key[1]}: missing, but the log has {len(records)} of its messages"
            report.add(problem, behind=len(records))
    for key, queue in queues.items():
        _check_queue(queue, in_queues.get(key, {}), files.min_offset, report)
    if index is not None:
        _check_index(index, entries, files.min_offset, report)


def _check_unit(view: RecordView, unit: _Unit, records: dict[int, _Unit], report: CheckReport) -> None:
    where = f"record at {view.physical_offset}: {view.topic}/{view.queue_id} message {view.queue_offset}"
    earlier = records.get(view.queue_offset)
    if earlier is not None:
        report.add(f"{where}: another record at {earlier[0]} has the same queue offset")
    elif records and view.queue_offset - 1 not in records:
        report.add(f"{where}: the message before it in the log has queue offset {max(records)}")
    records[view.queue_offset] = unit


def _check_queue(queue: ConsumeQueue, records: dict[int, _Unit], log_start: int, report: CheckReport) -> None:
    name = f"queue {queue.topic}/{queue.queue_id}"
    seen = 0
    wrong_codes: dict[int, list[int]] = defaultdict(list)
    for number, offset, size, code in queue.units():
        report.units += 1
        found = records.get(number)
        if found is not None:
            seen += 1
            record_offset, record_size, record_code = found
            if (offset, size) != (record_offset, record_size):
                report.add(
                    f"{name}: unit {number} points to {size} bytes at {offset}, but the record has "
                    f"{record_size} bytes at {record_offset}"
                )
            elif code != record_code:
                wrong_codes[code - record_code].append(number)
        elif offset >= log_start and not (offset == 0 and size == BLANK_SIZE):
            report.add(f"{name}: unit {number} points to {size} bytes at {offset}, where it has no record")
    _report_codes(queue, wrong_codes, report)
    if seen != len(records):
        missing = sorted(set(records) - set(range(queue.next_offset - seen, queue.next_offset)))
        first = f", the first at queue offset {missing[0]}" if missing else ""
        problem = f"{name}: {len(records) - seen} messages have no unit{first}"
        is_tail = bool(missing) and missing[0] >= queue.next_offset
        report.add(problem, behind=len(records) - seen if is_tail else 0)
    if records and queue.min_offset > min(records):
        report.add(f"{name}: its minimum offset is {queue.min_offset}, but the log has offset {min(records)}")


def _report_codes(queue: ConsumeQueue, wrong: Mapping[int, list[int]], report: CheckReport) -> None:
    """Report units with a wrong tags code. wrong: their queue offsets, by the difference of the code."""
    for off_by, numbers in wrong.items():
        if queue.topic != SCHEDULE_TOPIC or len(numbers) == 1:
            for number in numbers:
                name = f"queue {queue.topic}/{queue.queue_id}"
                report.add(f"{name}: the tags code of unit {number} is off by {off_by}")


def _key_hashes(view: RecordView) -> list[int]:
    prefix = view.topic.encode() + b"#"
    unique_key = find(view.properties, PROPERTY_UNIQ_KEY.encode())
    keys = [key for key in (find(view.properties, PROPERTY_KEYS.encode()) or b"").split(b" ") if key]
    return [positive_hash(utf8_hash(prefix + key)) for key in [*filter(None, [unique_key]), *keys]]


def _check_index(
    index: Sequence[IndexFile], expected: list[tuple[int, int]], log_start: int, report: CheckReport
) -> None:
    present: set[tuple[int, int]] = set()
    for file in index:
        for number, (key_hash, offset, _, previous) in enumerate(file.entries(), 1):
            report.index_entries += 1
            present.add((key_hash, offset))
            if previous >= number:
                report.add(
                    f"{file.path.name}: entry {number} links to {previous}, which is not an older entry"
                )
        for key_hash, offset in set(expected[:: max(1, len(expected) // 50)]):
            covered = file.begin_offset < offset < file.end_offset
            if covered and offset not in file.find(key_hash, 0, 1 << 62):
                report.add(f"{file.path.name}: the record at {offset} is not in the chain of its key")
    wanted = set(expected)
    for key_hash, offset in sorted(wanted - present, key=lambda entry: entry[1]):
        is_tail = not index or offset > index[-1].end_offset
        report.add(f"index: no entry for the record at {offset} and hash {key_hash}", behind=int(is_tail))
    for key_hash, offset in sorted(present - wanted, key=lambda entry: entry[1]):
        if offset >= log_start:
            report.add(
                f"index: an entry with hash {key_hash} points to {offset}, where the log has no such record"
            )
