"""Mapped files: names, reads, truncation, flushes, and the file that is made in advance."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy.errors import InvariantError, StoreDamaged
from rocketpy_broker.store import CommitLogConfig
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue, Preallocator


def log_of(directory: Path, *sizes: int) -> MappedFileQueue:
    """A log with 100-byte files, written up to `sizes`."""
    files = MappedFileQueue(OsDisk(), directory, 100, reserve_bytes=40)
    for size in sizes:
        file = files.add_file()
        file.write(0, bytes([65 + len(files.mapped_files)]) * size)
        file.wrote = size
    return files


def test_files_are_named_by_their_start_and_have_full_length(tmp_path: Path) -> None:
    """A Java broker would not find the files, or refuse their length."""
    files = log_of(tmp_path / "log", 100, 30)
    assert {path.name: path.stat().st_size for path in (tmp_path / "log").iterdir()} == {
        "00000000000000000000": 100,
        "00000000000000000100": 100,
    }
    assert (files.min_offset, files.max_offset, files.flushed_offset) == (0, 130, 0)
    files.close()


def test_reads_stay_within_the_written_part(tmp_path: Path) -> None:
    """Consumers would get bytes that are not messages."""
    files = log_of(tmp_path, 100, 30)
    assert files.read(95, 5) == b"BBBBB"
    assert files.read(95, 6) is None
    assert files.read(100, 30) == b"C" * 30
    assert files.read(100, 31) is None
    assert files.read(200, 1) is None
    assert files.read(-1, 1) is None
    assert files.read(0, -1) is None
    assert files.find(199) is files.last
    assert files.find(200) is None
    files.close()


def test_loading_rejects_gaps_and_other_sizes(tmp_path: Path) -> None:
    """A missing file, or a wrong setting, would silently shift or drop messages."""
    log_of(tmp_path, 100, 100, 100).close()
    (tmp_path / "notes.txt").write_text("not a file")
    files = MappedFileQueue(OsDisk(), tmp_path, 100)
    files.load()
    assert files.max_offset == 300
    files.close()
    with pytest.raises(StoreDamaged, match="configured file size is 400"):
        MappedFileQueue(OsDisk(), tmp_path, 400).load()
    (tmp_path / "00000000000000000100").unlink()
    files = MappedFileQueue(OsDisk(), tmp_path, 100)
    files.load()
    assert [file.start for file in files.strays] == [200]
    for flushed in (-1, 101, 300):
        with pytest.raises(StoreDamaged, match="100"):
            files.classify_files(flushed, -1)
    with pytest.raises(StoreDamaged, match="starts at 0 is missing"):
        MappedFileQueue.classify_files(_only(files, 200), 300, 0)
    files.classify_files(100, 0)
    assert (files.max_offset, len(files.strays)) == (100, 1)
    assert files.drop_strays() == 1
    assert [path.name for path in sorted(tmp_path.glob("0*"))] == ["00000000000000000000"]
    files.close()


def _only(files: MappedFileQueue, start: int) -> MappedFileQueue:
    """The same log without the files before that one."""
    rest = MappedFileQueue(OsDisk(), files.directory, files.file_bytes)
    rest.load()
    rest.mapped_files, rest.strays = [file for file in rest.strays if file.start == start], []
    return rest


def test_expired_files_that_return_after_power_loss_are_deleted(tmp_path: Path) -> None:
    """A broker would not start because its log has a hole, or serve messages that were deleted long ago."""
    log_of(tmp_path, 100, 100, 100, 50).close()
    (tmp_path / "00000000000000000100").unlink()
    files = MappedFileQueue(OsDisk(), tmp_path, 100)
    files.load()
    files.classify_files(350, 200)
    assert (files.min_offset, len(files.mapped_files), len(files.strays)) == (200, 2, 1)
    files.drop_strays()
    assert not (tmp_path / "00000000000000000000").exists()
    files.close()


@pytest.mark.parametrize("length", [0, 55])
def test_last_file_that_a_crash_left_short_is_extended(tmp_path: Path, length: int) -> None:
    """A broker killed while it creates a file would not start (4.6.0 does not)."""
    log_of(tmp_path, 100, 50).close()
    with (tmp_path / "00000000000000000100").open("r+b") as file:
        file.truncate(length)
    files = MappedFileQueue(OsDisk(), tmp_path, 100)
    files.load()
    assert (tmp_path / "00000000000000000100").stat().st_size == 100
    assert files.read(100, 100) == (b"C" * min(length, 50)).ljust(100, b"\0")
    files.close()


def test_truncation_deletes_files_and_zeros_the_rest(tmp_path: Path) -> None:
    """The next recovery would take bytes that were cut for messages."""
    files = log_of(tmp_path, 100, 100, 60)
    assert files.truncate(130) == 70 + 60
    assert files.max_offset == 130
    assert (tmp_path / "00000000000000000100").read_bytes() == b"C" * 30 + bytes(70)
    assert not (tmp_path / "00000000000000000200").exists()
    assert files.truncate(130) == 0
    files.close()


@pytest.mark.parametrize(
    "pieces", [[(0, 50_000)], [(9_000, 1), (20_000, 9_000)], [(30_000, 4_096), (49_999, 1)], [(50_000, 0)]]
)
def test_all_bytes_after_the_end_are_zeroed(tmp_path: Path, pieces: list[tuple[int, int]]) -> None:
    """A piece of an old record would be left there, and be taken for a message by a later recovery."""
    files = MappedFileQueue(OsDisk(), tmp_path, 50_000)
    file = files.add_file()
    for position, size in pieces:
        file.write(position, b"C" * size)
    file.wrote = 50_000
    content = file.read(0, 50_000)
    wiped = files.truncate(9_000)
    assert file.read(0, 50_000) == content[:9_000] + bytes(41_000)
    assert wiped >= content.count(b"C", 9_000)
    files.close()


def test_an_unused_file_is_closed(tmp_path: Path) -> None:
    """A broker with many queues would run out of open files."""
    files = log_of(tmp_path, 100, 100, 30)
    first, second, _ = files.mapped_files

    def open_files() -> int:
        return sum(file.is_open for file in files.mapped_files)

    assert (open_files(), files.close_idle()) == (3, 3), "nothing is flushed"
    for file in files.mapped_files:
        file.flushed = file.wrote
        file.flushed_changes = file.changes
    first.hold()
    assert (files.close_idle(), open_files()) == (1, 1)
    assert second.read(0, 3) == b"CCC"
    first.release()
    assert (files.close_idle(), open_files()) == (0, 0)
    files.close()


def test_spare_file_is_used_or_deleted(tmp_path: Path) -> None:
    """A file made ahead would be leaked, or made twice."""
    files = log_of(tmp_path, 100)
    spare = files.create_preallocated(100)
    files.adopt_preallocated(spare)
    assert files.add_file() is spare
    files.adopt_preallocated(files.create_preallocated(100))  # came too late
    assert files.preallocated is None
    files.adopt_preallocated(files.create_preallocated(200))
    files.delete_preallocated()
    assert sorted(path.name[-3:] for path in tmp_path.iterdir()) == ["000", "100"]
    files.close()


def test_deleted_file_stays_readable_for_its_holder(tmp_path: Path) -> None:
    """A flush in progress would hit a closed file, or another file with its number."""
    files = log_of(tmp_path, 100, 10)
    target = next(iter(files.unflushed()))
    files.take_first().delete()
    assert not (tmp_path / "00000000000000000000").exists()
    assert target.file.read(0, 1) == b"B"
    target.file.release()
    with pytest.raises(InvariantError, match="closed or deleted"):
        target.file.read(0, 1)
    with pytest.raises(InvariantError, match="in use"):
        files.take_first().delete()
    files.close()


def test_only_written_bytes_count_as_flushed(tmp_path: Path) -> None:
    """The checkpoint would promise more than the disk holds."""
    files = log_of(tmp_path, 100, 30)
    first, last = files.unflushed()
    assert files.last is not None
    files.last.wrote = 50  # written while the flush runs
    last.file.flushed = last.until
    assert files.flushed_offset == 0
    first.file.flushed = first.until
    assert files.flushed_offset == 130
    files.close()


def test_erased_or_unflushed_bytes_need_a_flush(tmp_path: Path) -> None:
    """Records that were cut from a log could return after power loss."""
    files = log_of(tmp_path, 80)
    (file,) = files.mapped_files

    def flush() -> None:
        file.flush()
        file.flushed, file.flushed_changes = file.wrote, file.changes

    flush()
    assert not file.needs_flush
    assert file.erase(50) == 30
    assert file.needs_flush
    flush()
    file.mark_unflushed()
    assert file.needs_flush
    flush()
    assert not file.needs_flush
    files.close()


@pytest.mark.parametrize(("wrote", "wanted"), [(59, False), (60, False), (61, True), (99, True), (100, True)])
def test_the_next_file_is_made_before_the_log_needs_it(tmp_path: Path, *, wrote: int, wanted: bool) -> None:
    """A send would wait until a file of a gigabyte is made, or unused files would take space."""
    files = MappedFileQueue(OsDisk(), tmp_path, 100)
    file = files.add_file()
    file.write(0, bytes([1]) * wrote)
    file.wrote = wrote
    config = CommitLogConfig(segment_bytes=1024, message_bytes_max=128, reserve_bytes=0)
    room = Preallocator(files, config)
    room._margin = 40
    assert room.is_wanted() is wanted
    made = room.make()
    assert made is not None
    assert made.start == 100
    files.preallocated = made
    assert not room.is_wanted()
    files.close()


@pytest.mark.parametrize(
    ("file", "message", "reserve", "margin"),
    [(1 << 30, 4 << 20, 64 << 20, 64 << 20), (1 << 30, 4 << 20, 0, 4 << 20), (65536, 4 << 20, 0, 32768)],
)
def test_how_early_the_next_file_is_made(
    tmp_path: Path, file: int, message: int, reserve: int, margin: int
) -> None:
    """The longest message would not fit into the file, and the next file would not exist yet."""
    config = CommitLogConfig(segment_bytes=file, message_bytes_max=message, reserve_bytes=reserve)
    assert Preallocator(MappedFileQueue(OsDisk(), tmp_path, file), config)._margin == margin
