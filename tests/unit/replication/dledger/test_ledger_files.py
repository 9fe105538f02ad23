"""The ledger's files on a real disk: Java's bytes, truncation, restarts, and when files are rejected."""

import dataclasses
import tracemalloc
from pathlib import Path

import pytest

from rocketpy.errors import DiskFull, FlushFailed, StoreDamaged, StoreError
from rocketpy_broker.replication.dledger.core.entry import Entry, encode_entry
from rocketpy_broker.replication.dledger.core.log_view import LedgerView, Write
from rocketpy_broker.replication.dledger.core.raft_state import LedgerCheckpoint
from rocketpy_broker.replication.dledger.storage.entry_scan import accept_any
from rocketpy_broker.replication.dledger.storage.ledger_files import LedgerFiles
from rocketpy_broker.replication.dledger.storage.state_files import encode_checkpoint, with_checksum
from rocketpy_broker.store import CommitLogConfig
from rocketpy_broker.store.files.disk import OsDisk
from tests import golden_data

STORES = golden_data.store_names("dledger")
SMALL = CommitLogConfig(segment_bytes=1024, reserve_bytes=0)


def opened(directory: Path, *, disk: OsDisk | None = None, config: CommitLogConfig = SMALL) -> LedgerFiles:
    """A ledger with files that are full after a few entries."""
    files = LedgerFiles(directory, config, check=accept_any, disk=disk, index_file_bytes=320)
    files.open()
    return files


def grown(files: LedgerFiles, bodies: list[bytes], term: int = 0) -> list[Entry]:
    """Append entries with these bodies, as a leader would."""
    view = LedgerView(files, files.data.file_bytes)
    for body in bodies:
        view.append(Entry.of(view.end_index + 1, term, view.next_entry_pos(len(body)), body))
    write = view.take()
    files.apply(write)
    files.flush()
    return list(write.entries)


def contents(directory: Path, name: str) -> dict[str, bytes]:
    """The content of files of one kind without trailing zeros; every recorded file has at most this much."""
    found = {}
    for path in sorted((directory / name).iterdir()):
        with path.open("rb") as file:
            found[path.name] = file.read(1 << 17).rstrip(b"\0")
    return found


def appending(entries: list[Entry]) -> Write:
    """A write that appends these entries."""
    return Write(is_reset=False, truncate_after=None, entries=tuple(entries))


@pytest.mark.parametrize("store", STORES)
def test_files_of_java_are_opened_and_written_byte_for_byte(store: str, tmp_path: Path) -> None:
    """QUIRKS 62, 63: a peer could not continue the files of the other kind of broker."""
    root = golden_data.extract_store(store, tmp_path / "java")
    recorded = golden_data.parsed(store)["dledger"]
    java = root / recorded["dir"]
    config = CommitLogConfig(segment_bytes=65536, reserve_bytes=0)
    theirs = LedgerFiles(java, config, check=accept_any)
    report = theirs.open()
    indexes = [entry["index"] for file in recorded["data"] for entry in file["entries"] if "index" in entry]
    assert (theirs.begin_index, theirs.end_index) == (0, max(indexes))
    assert (report.cut_bytes, report.entries) == (0, len(indexes))
    entries = [theirs.get(index) for index in range(theirs.end_index + 1)]
    theirs.close()
    ours = LedgerFiles(tmp_path / "ours", config, check=accept_any)
    ours.open()
    for start in range(0, len(entries), 40):
        ours.apply(appending(entries[start : start + 40]))
    ours.close()
    again = golden_data.extract_store(store, tmp_path / "again") / recorded["dir"]
    assert contents(tmp_path / "ours", "data") == contents(again, "data") == contents(java, "data")
    assert contents(tmp_path / "ours", "index") == contents(again, "index") == contents(java, "index")


@pytest.mark.parametrize("segment_bytes", [1024, 1100])
def test_entries_survive_a_restart_and_files_roll(segment_bytes: int, tmp_path: Path) -> None:
    """A peer would have fewer entries after a restart than it acknowledged."""
    config = dataclasses.replace(SMALL, segment_bytes=segment_bytes)
    files = opened(tmp_path, config=config)
    entries = grown(files, [bytes([65 + n]) * (n * 7 % 90) for n in range(60)])
    assert len(files.data.mapped_files) > 3
    assert len(files.index.mapped_files) > 3
    files.close()
    again = opened(tmp_path, config=config)
    assert (again.begin_index, again.end_index) == (0, 59)
    assert [again.get(index) for index in range(60)] == entries
    more = grown(again, [b"more"] * 9, term=1)
    assert [again.get(entry.index) for entry in more] == more
    again.close()


def test_a_run_is_one_write_a_file(tmp_path: Path) -> None:
    """Sixty system calls for sixty entries would cost more than their flush."""
    calls: list[str] = []

    class Counting(OsDisk):
        def pwrite(self, handle: int, data: bytes, position: int) -> None:
            calls.append(data[:4].hex())
            super().pwrite(handle, data, position)

    files = LedgerFiles(tmp_path, CommitLogConfig(reserve_bytes=0), check=accept_any, disk=Counting())
    files.open()
    calls.clear()
    grown(files, [b"x"] * 60)
    assert len(calls) == 2
    files.close()


class _Reading(OsDisk):
    """Counts the reads."""

    reads = 0

    def pread(self, handle: int, size: int, position: int) -> bytes:
        self.reads += 1
        return super().pread(handle, size, position)


def test_followers_at_different_positions_share_reads(tmp_path: Path) -> None:
    """Two followers that catch up would make the leader read 128 KiB for every entry."""
    config = CommitLogConfig(segment_bytes=1 << 20, reserve_bytes=0)
    files = LedgerFiles(tmp_path, config, check=accept_any)
    files.open()
    grown(files, [b"." * 900] * 1000)
    files.close()
    disk = _Reading()
    files = LedgerFiles(tmp_path, config, check=accept_any, disk=disk)
    files.open()
    disk.reads = 0
    for index in range(500):
        assert files.get(index).index == index
        assert files.get(500 + index).index == 500 + index
    assert disk.reads < 50
    files.close()


def test_each_entry_that_is_read_ahead_is_compared_with_the_index(tmp_path: Path) -> None:
    """An entry that is not the ledger's, as stale bytes are, would be sent to followers (I9)."""
    files = opened(tmp_path)
    entries = grown(files, [b"." * 60] * 8)
    files.close()
    files = opened(tmp_path)
    _change(files.data.mapped_files[0].path, entries[5].pos + 16, (7).to_bytes(8, "big"))  # its term
    assert [files.get(index) for index in range(5)] == entries[:5]
    with pytest.raises(StoreDamaged, match=f"entry 5 in .* at {entries[5].pos} does not match"):
        files.get(5)
    assert files.get(6) == entries[6]
    files.close()


def test_a_start_after_a_kill_reads_only_the_unflushed_part(tmp_path: Path) -> None:
    """A peer with a large ledger would read all of it, for minutes, at each start after a crash."""
    config = CommitLogConfig(segment_bytes=8 << 20, reserve_bytes=0)
    files = LedgerFiles(tmp_path, config, check=accept_any)
    files.open()
    for _ in range(5):
        grown(files, [bytes(1 << 20)] * 10)
    files.flush(thorough=True)
    _kill(files)
    files = LedgerFiles(tmp_path, config, check=accept_any)
    report = files.open()
    assert files.end_index == 49
    assert report.entries <= 34  # 16 to 32 MiB before the end, and the entry around each mark
    assert report.notes == []
    files.close()


def test_read_ahead_is_bounded_in_bytes(tmp_path: Path) -> None:
    """A leader of large messages would run out of memory while a follower catches up."""
    config = CommitLogConfig(segment_bytes=1 << 20, reserve_bytes=0)
    files = LedgerFiles(tmp_path, config, check=accept_any)
    files.open()
    grown(files, [bytes(200_000)] * 200)
    files.close()
    files = LedgerFiles(tmp_path, config, check=accept_any)
    files.open()
    tracemalloc.start()
    sizes = [files.get(index).size for index in range(200)]
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(sizes) > 40_000_000
    assert kept < 20_000_000
    files.close()


def test_truncated_entries_leave_both_kinds_of_files(tmp_path: Path) -> None:
    """A truncated entry would return at the next start, after entries of another leader."""
    files = opened(tmp_path)
    entries = grown(files, [b"." * 60] * 40)
    files.apply(Write(is_reset=False, truncate_after=11, entries=()))
    assert (files.end_index, files.get(11)) == (11, entries[11])
    other = grown(files, [b"another leader's"] * 3, term=3)
    files.close()
    again = opened(tmp_path)
    assert again.end_index == 14
    assert [again.get(index) for index in (12, 13, 14)] == other
    assert contents(tmp_path, "index")["00000000000000000320"] == (tmp_path / "index" / "00000000000000000320"
        ).read_bytes()[: 5 * 32].rstrip(b"\0")  # fmt: skip
    again.close()


def test_new_entries_are_in_memory_after_many_truncations(tmp_path: Path) -> None:
    """Truncated entries would fill the memory, so that each new entry is read from the disk."""
    disk = _Reading()
    files = opened(tmp_path, disk=disk, config=CommitLogConfig(segment_bytes=8 << 20, reserve_bytes=0))
    grown(files, [b"stays"])
    for term in range(12):
        entries = grown(files, [bytes([term]) * (3 << 20)], term=term)
        disk.reads = 0
        assert [files.get(0).body, files.get(1)] == [b"stays", *entries]
        assert disk.reads == 0
        files.apply(Write(is_reset=False, truncate_after=0, entries=()))
    files.close()


def test_a_ledger_can_start_over_at_a_later_index(tmp_path: Path) -> None:
    """A follower whose entries have all expired on the leader could never join the group."""
    files = opened(tmp_path)
    grown(files, [b"." * 60] * 20)
    first = Entry.of(1000, 4, 5 * 1024, b"the leader's oldest")
    files.apply(Write(is_reset=True, truncate_after=None, entries=(first,)))
    entries = [first, *grown(files, [b"and so on"] * 4, term=4)]
    files.close()
    again = opened(tmp_path)
    assert (again.begin_index, again.end_index) == (1000, 1004)
    assert [again.get(index) for index in range(1000, 1005)] == entries
    assert sorted(contents(tmp_path, "data")) == ["00000000000000005120"]
    again.close()


def test_a_ledger_can_start_over_at_an_earlier_position(tmp_path: Path) -> None:
    """A follower whose ledger starts behind an older log could never join a group that has no such log."""
    files = opened(tmp_path)
    files.begin_at(5 * 1024)
    grown(files, [b"." * 60] * 20)
    first = Entry.of(1000, 4, 1024, b"the leader's oldest")
    files.apply(Write(is_reset=True, truncate_after=None, entries=(first,)))
    entries = [first, *grown(files, [b"and so on"] * 4, term=4)]
    files.close()
    again = opened(tmp_path)
    assert (again.begin_index, again.end_index) == (1000, 1004)
    assert [again.get(index) for index in range(1000, 1005)] == entries
    assert sorted(contents(tmp_path, "data")) == ["00000000000000001024"]
    again.close()


def test_the_first_entry_goes_behind_an_older_log(tmp_path: Path) -> None:
    """A store that began without DLedger would hand out the same offset twice."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "00000000000000003072").write_bytes(bytes(1024))
    files = opened(tmp_path)
    assert (files.begin_index, files.start_pos) == (-1, 3072)
    (entry,) = grown(files, [b"first"])
    assert (entry.index, entry.pos) == (0, 3072)
    files.close()
    again = opened(tmp_path)
    assert again.get(0) == entry
    again.close()


def test_expired_files_are_no_entries_any_more(tmp_path: Path) -> None:
    """A leader would push entries from deleted files, and retention would never end."""
    files = opened(tmp_path)
    entries = grown(files, [b"." * 60] * 60)
    view = LedgerView(files, SMALL.segment_bytes)
    expired = [files.data.take_first(), files.data.take_first()]
    files.persist_min_offset()
    begin = files.begin_index
    assert begin > 0
    view.expire(begin)
    assert view.find(begin - 1) is None
    expired_index = files.take_expired_index()
    assert [file.start for file in expired_index] == list(range(0, begin * 32 // 320 * 320, 320))
    expired += expired_index
    for file in expired:
        file.delete()
    files.close()
    again = opened(tmp_path)
    assert (again.begin_index, again.end_index) == (begin, 59)
    assert [again.get(index) for index in range(begin, 60)] == entries[begin:]
    again.close()


def test_the_index_is_made_from_the_data(tmp_path: Path) -> None:
    """A peer that lost its index would have to be filled from the others."""
    files = opened(tmp_path)
    grown(files, [b"." * 30] * 30)
    files.close()
    whole = contents(tmp_path, "index")
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    again = opened(tmp_path)
    assert again.get(29).index == 29
    again.close()
    assert contents(tmp_path, "index") == whole


def test_an_index_with_a_gap_is_made_from_all_data(tmp_path: Path) -> None:
    """Entries before the file that recovery begins with could not be read, once Java has used the ledger."""
    files = opened(tmp_path)
    entries = grown(files, [b"." * 60] * 60)
    starts = [file.start for file in files.data.mapped_files]
    assert len(starts) > 4
    checkpoint = files.checkpoint_file.path
    files.close()
    checkpoint.unlink()
    whole = contents(tmp_path, "index")
    before = next(entry.index for entry in entries if entry.pos == starts[-3]) - 1
    _change(tmp_path / "index" / f"{before // 10 * 320:020d}", before % 10 * 32, bytes(32))
    again = opened(tmp_path)
    assert [again.get(index) for index in range(60)] == entries
    again.close()
    assert contents(tmp_path, "index") == whole


def test_expired_files_stay_expired_after_a_kill(tmp_path: Path) -> None:
    """A peer killed before it deleted them would begin with entries that its group has dropped."""
    files = opened(tmp_path)
    grown(files, [b"." * 60] * 60)
    files.data.take_first()
    files.data.take_first()
    files.persist_min_offset()
    begin = files.begin_index
    _kill(files)
    again = opened(tmp_path)
    assert (again.begin_index, again.end_index) == (begin, 59)
    again.close()


class _Watched(OsDisk):
    """Notes where files are written, and which are flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[int, str] = {}
        self.written: list[tuple[str, int]] = []
        self.flushed: list[str] = []

    def open(self, path: Path, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        self.names[handle] = f"{path.parent.name}/{int(path.name)}" if path.name.isdigit() else path.name
        return handle

    def pwrite(self, handle: int, data: bytes, position: int) -> None:
        self.written.append((self.names[handle], position))
        super().pwrite(handle, data, position)

    def fdatasync(self, handle: int) -> None:
        self.flushed.append(self.names[handle])
        super().fdatasync(handle)


def test_entries_left_unflushed_by_a_kill_are_rewritten_and_flushed(tmp_path: Path) -> None:
    """Bytes in the page cache after a failed flush would count as flushed, but never reach the disk."""
    files = opened(tmp_path)
    grown(files, [b"." * 60] * 3)
    files.close()
    files = opened(tmp_path)
    flushed = files.data.max_offset
    view = LedgerView(files, files.data.file_bytes)
    view.append(Entry.of(3, 0, view.next_entry_pos(60), b"," * 60))
    files.apply(view.take())
    _kill(files)
    disk = _Watched()
    again = opened(tmp_path, disk=disk)
    assert again.end_index == 3
    offsets = [offset for name, offset in disk.written if name == "data/0"]
    assert offsets[0] == min(offsets) == flushed
    # Zeros after the end too, where the file system has data: the disk may still hold what was cut.
    assert offsets[1:] in ([], [again.data.max_offset])
    assert {"data/0", "index/0"} <= set(disk.flushed)
    again.close()
    disk = _Watched()
    opened(tmp_path, disk=disk).close()
    assert [name for name, _ in disk.written if name == "data/0"] == []


# -- damage --------------------------------------------------------------------------------------


def _kill(files: LedgerFiles) -> None:
    """End like a killed process: nothing more is written."""
    files.failure = StoreError("killed")
    files.close()


def _change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_a_torn_tail_is_cut(tmp_path: Path) -> None:
    """A peer that was killed during a write would not start."""
    files = opened(tmp_path)
    entries = grown(files, [b"." * 60] * 5)
    torn = Entry.of(5, 0, entries[-1].end_pos, b"," * 60)
    _kill(files)
    _change(tmp_path / "data" / f"{0:020d}", torn.pos, b"\0\0\0\1\0\0\0\x6c\0\0\0")
    again = opened(tmp_path)
    assert again.end_index == 4
    again.close()


def test_a_truncated_tail_is_reported_with_its_reason(tmp_path: Path) -> None:
    """The rest of a torn write would be erased like zeros, and could not be examined."""
    files = opened(tmp_path)
    last = grown(files, [b"." * 60] * 5)[-1]
    _kill(files)
    _change(tmp_path / "data" / f"{0:020d}", last.end_pos, b"\x55" * 20)
    again = LedgerFiles(tmp_path, SMALL, check=accept_any, index_file_bytes=320)
    report = again.open()
    again.close()
    assert report.cut_bytes == 20
    assert any(note.startswith(f"torn tail at {last.end_pos}: ") for note in report.notes), report.notes


def test_damage_below_the_flushed_mark_is_rejected(tmp_path: Path) -> None:
    """A peer that loses acknowledged entries may elect a leader that never had them."""
    files = opened(tmp_path)
    grown(files, [b"." * 60] * 5)
    files.close()
    _change(tmp_path / "data" / f"{0:020d}", 4 * 108, b"\x55")
    with pytest.raises(StoreDamaged, match="it was flushed up to 540"):
        opened(tmp_path)


def test_a_flushed_tail_that_is_missing_after_a_kill_is_rejected(tmp_path: Path) -> None:
    """Acknowledged entries would be cut like a torn tail: only the checkpoint distinguishes them."""
    files = opened(tmp_path)
    entries = grown(files, [b"." * 60] * 5)
    files.flush(thorough=True)
    _kill(files)
    _change(tmp_path / "data" / f"{0:020d}", entries[3].pos, bytes(2 * entries[3].size))
    with pytest.raises(StoreDamaged, match=f"it was flushed up to {entries[-1].end_pos}"):
        opened(tmp_path)


def test_a_file_that_is_missing_is_rejected(tmp_path: Path) -> None:
    """The peer would start with an empty ledger, and vote for any candidate."""
    files = opened(tmp_path)
    grown(files, [b"." * 60] * 5)
    files.close()
    (tmp_path / "data" / f"{0:020d}").unlink()
    with pytest.raises(StoreDamaged, match="there is no file"):
        opened(tmp_path)


def test_damage_in_front_of_a_whole_entry_is_rejected_without_a_mark(tmp_path: Path) -> None:
    """A flipped bit in the files of a Java peer would silently cost everything after it."""
    files = opened(tmp_path)
    grown(files, [b"." * 60] * 5)
    files.close()
    (tmp_path / "progress").unlink()
    _change(tmp_path / "data" / f"{0:020d}", 2 * 108, b"\x55")
    with pytest.raises(StoreDamaged, match="entry 3 follows at 324"):
        opened(tmp_path)


def test_damage_in_front_of_a_whole_entry_is_rejected_after_a_truncation(tmp_path: Path) -> None:
    """Acknowledged entries of the new leader would be taken for truncated ones, and be wiped after a kill."""
    files = opened(tmp_path)
    grown(files, [b"." * 60] * 5)
    files.flush(thorough=True)
    files.apply(Write(is_reset=False, truncate_after=1, entries=()))
    damaged, later, _ = grown(files, [b"another leader's"] * 3, term=3)
    _kill(files)
    _change(tmp_path / "data" / f"{0:020d}", damaged.pos, b"\x55")
    with pytest.raises(StoreDamaged, match=f"entry {later.index} follows at {later.pos}"):
        opened(tmp_path)


def test_an_entry_after_lost_blocks_is_found(tmp_path: Path) -> None:
    """Entries that a group has acknowledged would be wiped as a torn tail, where a copy lost blocks."""
    config = CommitLogConfig(segment_bytes=1 << 16, reserve_bytes=0)
    files = LedgerFiles(tmp_path, config, check=accept_any)
    files.open()
    grown(files, [b"." * (4096 - 48)] * 3)
    files.close()
    (tmp_path / "progress").unlink()
    path = tmp_path / "data" / f"{0:020d}"
    whole = path.read_bytes()
    path.unlink()
    with path.open("wb") as file:  # what is not written is a hole
        file.write(whole[:4096])
        file.seek(8192)
        file.write(whole[8192:12288])
        file.truncate(len(whole))
    with pytest.raises(StoreDamaged, match="entry 2 follows at 8192"):
        LedgerFiles(tmp_path, config, check=accept_any).open()


@pytest.mark.parametrize(
    ("index", "term", "is_old"), [(2, 5, True), (1, 6, True), (4, 4, True), (4, 5, False), (4, 6, False)]
)
def test_entries_that_do_not_follow_the_last_one_are_left_over_from_a_truncation(
    index: int, term: int, is_old: bool, tmp_path: Path
) -> None:
    """Stale bytes would keep a peer from starting; or an acknowledged entry after damage would be wiped."""
    files = opened(tmp_path)
    last = grown(files, [b"." * 60] * 3, term=5)[-1]
    files.flush(thorough=True)
    _kill(files)
    behind = Entry.of(index, term, last.end_pos + 20, b"x")
    _change(tmp_path / "data" / f"{0:020d}", last.end_pos, b"?" * 20 + encode_entry(behind))
    if is_old:
        again = opened(tmp_path)
        assert again.end_index == 2
        again.close()
        assert b"?" not in (tmp_path / "data" / f"{0:020d}").read_bytes()
    else:
        with pytest.raises(StoreDamaged, match=f"entry {index} follows"):
            opened(tmp_path)


def test_the_checkpoint_does_not_count_once_java_has_used_the_files(tmp_path: Path) -> None:
    """A directory in which a Java peer truncated its ledger would never be accepted."""
    state = encode_checkpoint(LedgerCheckpoint(3, 4))
    files = opened(tmp_path)
    entries = grown(files, [b"." * 60] * 5)
    files.close()
    _change(tmp_path / "data" / f"{0:020d}", entries[3].pos, bytes(2 * 108))
    (tmp_path / "checkpoint").write_bytes(with_checksum(state))
    with pytest.raises(StoreDamaged):
        opened(tmp_path)
    (tmp_path / "checkpoint").write_bytes(state)
    again = opened(tmp_path)
    assert again.end_index == 2
    again.close()


# -- disks that fail -----------------------------------------------------------------------------


class Failing(OsDisk):
    """Lets a kind of call fail a number of times."""

    def __init__(self) -> None:
        self.full = 0
        self.broken_flushes = 0
        self.let_through = 0

    def pwrite(self, handle: int, data: bytes, position: int) -> None:
        """Write a part, then run out of space."""
        if self.full:
            self.full -= 1
            super().pwrite(handle, data[: self.let_through], position)
            raise OSError(28, "No space left on device")
        super().pwrite(handle, data, position)

    def fdatasync(self, handle: int) -> None:
        """Fail."""
        if self.broken_flushes:
            self.broken_flushes -= 1
            raise OSError(5, "Input/output error")
        super().fdatasync(handle)


def test_a_change_that_met_a_full_disk_can_be_repeated(tmp_path: Path) -> None:
    """Half an entry would stay in the file, and the next entry would have another position."""
    disk = Failing()
    files = opened(tmp_path, disk=disk)
    grown(files, [b"." * 60] * 5)
    view = LedgerView(files, SMALL.segment_bytes)
    for _ in range(12):
        view.append(Entry.of(view.end_index + 1, 0, view.next_entry_pos(70), b"," * 70))
    write = view.take()
    for disk.let_through in (0, 1, 50, 200):
        disk.full = 1
        with pytest.raises(DiskFull):
            files.apply(write)
        assert files.end_index == 4
        assert list(contents(tmp_path, "data")) == [f"{0:020d}"]
    files.apply(write)
    files.close()
    again = opened(tmp_path)
    assert [again.get(index) for index in range(5, 17)] == list(write.entries)
    again.close()


def test_a_failed_flush_is_never_repeated(tmp_path: Path) -> None:
    """The second flush would succeed without having written anything, and the entry be acknowledged."""
    disk = Failing()
    files = opened(tmp_path, disk=disk)
    disk.broken_flushes = 1
    with pytest.raises(FlushFailed):
        grown(files, [b"x"])
    with pytest.raises(FlushFailed):
        files.flush()
    with pytest.raises(StoreError, match="cannot write to the ledger"):
        files.apply(appending([Entry.of(1, 0, 49, b"y")]))
    files.close()
