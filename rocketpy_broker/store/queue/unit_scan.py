"""Selects the messages of a read in the units of a consume queue, and checks the records read for them.

The two functions are pure: a reader reads the units, selects some, reads the parts of the log that have their
records, and takes the records out of these bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from rocketpy.native import has_native_form
from rocketpy.protocol.message.record import FIXED_BYTES, MESSAGE_MAGIC, head_fields
from rocketpy_broker.store.queue.consume_queue import BLANK_SIZE, UNIT, UNIT_BYTES

LogRange = tuple[int, int, int]
"""A part of the log to read at once: where it begins and ends, and the number of selected records in it."""

_RANGE_BYTES_MAX: Final = 1 << 20
_GAP_BYTES_MAX: Final = 16 << 10
"""Reading so many bytes between two records takes less time than another read (tools.bench.store)."""
_RECORD_IDENTITY: Final = head_fields("size", "magic", "queue_id", "queue_offset", "physical_offset")


@has_native_form
def select_units(
    units: bytes,
    tag_codes: AbstractSet[int] | None,
    log_begin: int,
    log_end: int,
    file_bytes: int,
    memory_begin: int,
    memory_limits: tuple[int, int],
    disk_limits: tuple[int, int],
    accepts: Callable[[int, int], bool | None] | None,
) -> tuple[list[int], list[LogRange], int, int, bool]:
    """Select messages in the units of a queue, until a limit is reached or a unit is damaged.

    tag_codes: None selects all. log_begin, log_end, file_bytes: of the log and its files. memory_begin:
    records from this offset of the log on are in memory. memory_limits, disk_limits: maximum count and bytes
    of the records before a unit that is in memory or on disk; the first record has no limit. accepts: of
    offset and size of a record; None ends the selection before it.

    Returns the indexes of the selected units, the parts of the log with their records, the number of units
    that were examined, the log offset of the last one, and whether messages were skipped. A message is
    skipped if its file was deleted, or if its unit is blank. 0 examined units: the first one is damaged, or
    its record.
    """
    selected: list[int] = []
    ranges: list[LogRange] = []
    begin = end = count = 0  # of the last range, which is not in `ranges` yet
    low = high = 0  # the part of the log in the file of the last record
    index = physical = total = 0
    has_skipped = False
    for index, (physical, size, code) in enumerate(UNIT.iter_unpack(units)):
        if selected:
            count_max, bytes_max = memory_limits if physical >= memory_begin else disk_limits
            if len(selected) >= count_max or total + size > bytes_max:
                break
        if tag_codes is not None and code not in tag_codes:
            continue
        after = physical + size
        if not (low <= physical and after <= high and size >= FIXED_BYTES):
            file_begin = physical - physical % file_bytes
            low, high = max(file_begin, log_begin), min(file_begin + file_bytes, log_end)
            ranges.append((begin, end, count))
            count = 0
            if not (low <= physical and after <= high and size >= FIXED_BYTES):
                low = high = 0
                if physical >= log_begin and size != BLANK_SIZE:
                    break
                has_skipped = True
                continue
        if accepts is not None:
            is_accepted = accepts(physical, size)
            if is_accepted is None:
                break
            if not is_accepted:
                continue
        if not (count and 0 <= physical - end <= _GAP_BYTES_MAX and after - begin <= _RANGE_BYTES_MAX):
            ranges.append((begin, end, count))
            begin, count = physical, 0
        count += 1
        end = after
        total += size
        selected.append(index)
    else:
        index = len(units) // UNIT_BYTES
    ranges.append((begin, end, count))
    return selected, [found for found in ranges if found[2]], index, physical, has_skipped


@has_native_form
def take_records(
    data: bytes, begin: int, units: bytes, selected: Sequence[int], queue_id: int, first_offset: int
) -> tuple[bytes, int]:
    """Return the records of selected units, and their number; they end before a damaged one.

    data: the log from offset `begin` on. units: from queue offset `first_offset` on. A record must have the
    size and the offset of its unit, and queue id and offset of the queue. Its body is not checked.
    """
    records: list[bytes] = []
    run_begin = run_end = 0
    count, length = 0, len(data)
    unpack_identity = _RECORD_IDENTITY.unpack_from
    places = list(UNIT.iter_unpack(units))
    for index in selected:
        physical, size, _ = places[index]
        at = physical - begin
        if not (0 <= at <= length - size <= length - FIXED_BYTES) or unpack_identity(data, at) != (
            size,
            MESSAGE_MAGIC,
            queue_id,
            first_offset + index,
            physical,
        ):
            break
        if at != run_end:
            records.append(data[run_begin:run_end])
            run_begin = at
        run_end = at + size
        count += 1
    records.append(data[run_begin:run_end])
    return b"".join(records), count
