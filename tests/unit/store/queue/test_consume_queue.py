"""The consume queue: units, gaps, truncation, and recovery after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy.errors import StoreDamaged
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.queue.consume_queue import BLANK_UNIT, UNIT, ConsumeQueue


def queue_of(root: Path, count: int = 0, *, units_per_file: int = 10) -> ConsumeQueue:
    queue = ConsumeQueue(OsDisk(), root, "T", 3, units_per_file * 20)
    for number in range(count):
        assert queue.put(1000 + number * 100, 100, number, number)
    return queue


def test_units_are_twenty_bytes_in_files_of_the_queue(tmp_path: Path) -> None:
    """A Java broker could not consume the messages of this store."""
    queue = queue_of(tmp_path, 12)
    queue.write_out()
    first, second = sorted((tmp_path / "T" / "3").iterdir())
    assert (first.name, second.name) == (f"{0:020d}", f"{200:020d}")
    assert list(UNIT.iter_unpack(first.read_bytes()))[9] == (1900, 100, 9)
    assert second.read_bytes() == UNIT.pack(2000, 100, 10) + UNIT.pack(2100, 100, 11) + bytes(160)
    queue.files.close()


def test_records_dispatched_twice_have_one_unit(tmp_path: Path) -> None:
    """Consumers would get messages twice after a recovery, which dispatches records a second time."""
    queue = queue_of(tmp_path, 5)
    assert not queue.put(1400, 100, 4, 4)
    assert not queue.put(9900, 100, 4, 2)  # the last record in the log, with an old queue offset
    assert queue.put(1500, 100, 5, 5)
    assert queue.next_offset == 6
    queue.files.close()


def test_a_queue_that_starts_in_the_middle_is_filled(tmp_path: Path) -> None:
    """Message numbers would shift on a slave that began late (QUIRKS 45)."""
    queue = queue_of(tmp_path)
    assert queue.put(5000, 100, 7, 23)
    queue.write_out()
    (file,) = (tmp_path / "T" / "3").iterdir()
    assert file.name == f"{400:020d}"
    assert file.read_bytes()[:80] == BLANK_UNIT * 3 + UNIT.pack(5000, 100, 7)
    assert (queue.min_offset, queue.next_offset) == (23, 24)
    assert queue.unit(23) == (5000, 100, 7)
    assert queue.unit(22) is None
    queue.files.close()
    again = queue_of(tmp_path)
    again.files.load()
    again.recover()
    assert (again.next_offset, again.max_physical_offset) == (24, 5100)
    again.correct_min_offset(0)
    assert again.min_offset == 23
    again.files.close()


def test_an_empty_queue_accepts_any_first_offset(tmp_path: Path) -> None:
    """An offset that a peer got for a queue without messages could keep messages out of it."""
    queue = queue_of(tmp_path)
    queue.begin_at(23)
    assert (queue.min_offset, queue.next_offset) == (23, 23)
    assert queue.read_units(23, 1) is None
    queue.write_out()
    assert queue.put(5000, 100, 7, 11)
    assert (queue.min_offset, queue.next_offset) == (11, 12)
    assert queue.unit(11) == (5000, 100, 7)
    queue.files.close()


def test_gap_keeps_the_numbers_right(tmp_path: Path) -> None:
    """A consumer would be given another message under a number it has seen."""
    queue = queue_of(tmp_path, 2)
    assert queue.put(9000, 100, 0, 4)
    assert list(queue.units())[2:] == [(2, 0, 0x7FFFFFFF, 0), (3, 0, 0x7FFFFFFF, 0), (4, 9000, 100, 0)]
    with pytest.raises(StoreDamaged, match="next record in the commit log has queue offset 90000000"):
        queue.put(9900, 100, 0, 90_000_000)
    queue.files.close()


def test_reads_end_at_the_file_and_see_pending_units(tmp_path: Path) -> None:
    """A consumer at the end of its queue would not see the newest message."""
    queue = queue_of(tmp_path, 12)
    assert len(queue.read_units(8, 10) or b"") == 40
    assert queue.read_units(10, 10) == UNIT.pack(2000, 100, 10) + UNIT.pack(2100, 100, 11)
    assert queue.read_units(12, 1) is None
    assert queue.read_units(-1, 1) is None
    assert queue.roll_next_file(3) == 10
    assert queue.roll_next_file(10) == 20
    queue.files.close()


def test_truncation_drops_units_of_cut_records(tmp_path: Path) -> None:
    """Consumers would be sent to records that were lost in a crash."""
    queue = queue_of(tmp_path, 25)
    queue.truncate(2050)
    assert (queue.next_offset, queue.max_physical_offset) == (11, 2050)
    assert [unit[0] for unit in queue.units()] == list(range(11))
    assert len(list((tmp_path / "T" / "3").iterdir())) == 2
    queue.truncate(500)
    assert (queue.next_offset, queue.max_physical_offset) == (0, -1)
    assert queue.put(0, 100, 0, 0)
    queue.files.close()


def test_min_offset_follows_the_commit_log(tmp_path: Path) -> None:
    """Consumers would be offered messages that were deleted."""
    queue = queue_of(tmp_path, 9)
    queue.correct_min_offset(1350)
    assert queue.min_offset == 4
    queue.correct_min_offset(99_999)
    assert queue.min_offset == 4
    assert queue.read_units(3, 1) is None
    queue.files.close()


def test_recovery_finds_the_end_by_the_first_empty_unit(tmp_path: Path) -> None:
    """A restarted broker would repeat or skip message numbers."""
    queue = queue_of(tmp_path, 47)
    queue.write_out()
    queue.files.close()
    again = queue_of(tmp_path)
    again.files.load()
    again.recover()
    assert (again.next_offset, again.max_physical_offset) == (47, 5700)
    again.destroy()
    assert not (tmp_path / "T" / "3").exists()
    assert again.put(9000, 100, 7, 23)
    assert (again.min_offset, again.next_offset) == (23, 24)
    again.files.close()


@pytest.mark.parametrize(("file", "end"), [(1, 45), (2, 23), (3, 33), (4, 43)])
def test_recovery_reads_the_last_three_files(tmp_path: Path, file: int, end: int) -> None:
    """A start would read the whole queue, or miss the damage of a crash in its newest files."""
    queue = queue_of(tmp_path, 45)
    queue.write_out()
    queue.files.close()
    path = sorted((tmp_path / "T" / "3").iterdir())[file]
    units = bytearray(path.read_bytes())
    units[60:80] = bytes(20)  # its fourth unit is empty
    path.write_bytes(units)
    again = queue_of(tmp_path)
    again.files.load()
    again.recover()
    assert again.next_offset == end
    again.files.close()


@pytest.mark.parametrize(("dispatched", "end"), [(5000, 45), (3001, 45), (3000, 13), (0, 13)])
def test_recovery_reads_back_to_the_flushed_part(tmp_path: Path, dispatched: int, end: int) -> None:
    """After power loss a hole in an older file would stay, and its messages be lost to consumers."""
    queue = queue_of(tmp_path, 45)
    queue.write_out()
    queue.files.close()
    path = sorted((tmp_path / "T" / "3").iterdir())[1]
    units = bytearray(path.read_bytes())
    units[60:80] = bytes(20)
    path.write_bytes(units)
    again = queue_of(tmp_path)
    again.files.load()
    again.recover(dispatched)
    assert again.next_offset == end
    again.files.close()


@pytest.mark.parametrize(
    ("offsets", "numbers"),
    [
        ([1500, 1600, 1700], [5, 6, 7]),
        ([1400, 1500, 1600], [4, 5, 6]),  # the first is here already
        ([1500, 1600, 1800], [5, 6, 8]),  # one is missing
        ([1500, 1600, 1600, 1700], [5, 6, 6, 7]),  # one is dispatched twice
        ([1300, 1400], [3, 4]),  # all are here
        ([1400, 1500], [5, 6]),  # an older record with a new queue offset
    ],
)
def test_a_run_of_units_is_put_as_each_of_them_would_be(
    tmp_path: Path, offsets: list[int], numbers: list[int]
) -> None:
    """Recovery would number messages in another way than the live broker did."""
    run, single = (queue_of(tmp_path / name, 5) for name in ("run", "single"))
    sizes, codes = list(range(91, 91 + len(offsets))), list(range(len(offsets)))
    added = [single.put(*unit) for unit in zip(offsets, sizes, codes, numbers, strict=True)]
    put = 0
    for first, number in enumerate(numbers):
        if first and number == numbers[first - 1] + 1:
            continue
        stop = first + 1
        while stop < len(numbers) and numbers[stop] == numbers[stop - 1] + 1:
            stop += 1
        units = zip(offsets[first:stop], sizes[first:stop], codes[first:stop], strict=True)
        put += run.put_many(
            number,
            offsets[first],
            offsets[stop - 1] + sizes[stop - 1],
            sum(sizes[first:stop]),
            b"".join(UNIT.pack(*unit) for unit in units),
        )
    assert put == sum(added)
    assert list(run.units()) == list(single.units())
    assert (run.next_offset, run.max_physical_offset) == (single.next_offset, single.max_physical_offset)
    run.files.close()
    single.files.close()


@pytest.mark.parametrize(("dispatched", "rewritten"), [(0, 45), (1000, 45), (3500, 20), (9999, 0)])
def test_units_of_unflushed_records_are_rewritten(tmp_path: Path, dispatched: int, rewritten: int) -> None:
    """After power loss a queue would lack units that the page cache showed to the recovery."""

    class Disk(OsDisk):
        written = 0

        def pwrite(self, handle: int, data: bytes, position: int) -> None:
            Disk.written += len(data)
            super().pwrite(handle, data, position)

    queue = queue_of(tmp_path, 45)
    queue.write_out()
    queue.files.close()
    again = ConsumeQueue(Disk(), tmp_path, "T", 3, 200)
    again.files.load()
    again.recover()
    again.rewrite_unflushed(dispatched)
    assert Disk.written >= rewritten * 20
    assert (Disk.written == 0) is (rewritten == 0)
    assert again.next_offset == 45
    again.files.close()


def test_a_queue_that_begins_again_at_0_has_only_new_units(tmp_path: Path) -> None:
    """A slave would serve messages of a deleted topic, and ignore those of the new one of its name."""
    queue = queue_of(tmp_path, 25)
    assert queue.put(9000, 100, 7, 0)
    assert queue.put_many(1, 9100, 9300, 200, UNIT.pack(9100, 100, 8) + UNIT.pack(9200, 100, 9)) == 2
    assert (queue.min_offset, queue.next_offset, queue.max_physical_offset) == (0, 3, 9300)
    assert [unit[1:] for unit in queue.units()] == [(9000, 100, 7), (9100, 100, 8), (9200, 100, 9)]
    queue.write_out()
    assert [path.name for path in (tmp_path / "T" / "3").iterdir()] == [f"{0:020d}"]
    queue.files.close()


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("first", range(1, 25))
def test_units_before_a_log_offset_are_dropped(tmp_path: Path, first: int, *, is_written: bool) -> None:
    """Messages of a deleted topic would stay in the queue, or those of the new one would be lost."""
    queue = queue_of(tmp_path, 25)
    if is_written:
        queue.write_out()
    expected = list(queue.units())[first:]
    queue.drop_before(1000 + first * 100 - 50)
    assert (queue.min_offset, queue.next_offset, queue.max_physical_offset) == (first, 25, 3500)
    assert [unit for unit in queue.units() if unit[1:] != UNIT.unpack(BLANK_UNIT)] == expected
    assert queue.put(3500, 100, 25, 25)
    queue.write_out()
    again = queue_of(tmp_path)
    again.files.load()
    again.recover()
    again.correct_min_offset(0)
    assert (again.min_offset, again.next_offset) == (first, 26)
    again.files.close()
    queue.files.close()
