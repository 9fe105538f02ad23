"""After a failed flush, the page cache has data that never reached the disk: a restart must not use them.

Each test lets one flush fail, kills the process, restarts it, appends, and then loses power. The disk then
has the old data that the failed flush should have replaced.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from rocketpy.errors import DiskFull, StoreDamaged, StoreError
from rocketpy.protocol.message.record import FIXED_BYTES
from rocketpy_broker.replication.dledger.core.entry import HEADER_BYTES, Entry, encode_entry
from rocketpy_broker.replication.dledger.core.log_view import LedgerView, Write
from rocketpy_broker.replication.dledger.core.raft_state import TermState
from rocketpy_broker.replication.dledger.storage.entry_scan import accept_any
from rocketpy_broker.replication.dledger.storage.ledger_files import LedgerFiles
from rocketpy_broker.replication.dledger.storage.state_files import StateFiles
from rocketpy_broker.replication.ha.epochs import Epoch, EpochState
from rocketpy_broker.replication.ha.log import EpochFile
from rocketpy_broker.store import CommitLogConfig, MessageInner, MessageStore
from rocketpy_broker.store.replica.replica_log import ReplicaLog
from tests.crash.disk import SECTOR, Crash, Operation, RecordingDisk
from tests.crash.ledger_writer import DIRECTORY, kill_ledger
from tests.crash.verify import open_store
from tests.crash.writer import ROOT, Clock, kill, small_config
from tests.unit.store.helpers import log_bytes

_FILE_BYTES = 4096


@pytest.fixture
def disk() -> RecordingDisk:
    """An empty disk with the directory of a store."""
    made = RecordingDisk()
    made.make_dir(ROOT)
    made.make_durable()
    return made


@contextlib.contextmanager
def failing(disk: RecordingDisk, kind: str, name: str) -> Iterator[None]:
    """Let the first call of this kind for a path that contains `name` fail, and drop its data."""
    failed: list[Operation] = []

    def before(operation: Operation) -> None:
        if operation.kind == kind and name in operation.path and not failed:
            failed.append(operation)
            if kind == "fdatasync":
                disk.fail_fdatasync(operation)
            raise OSError(errno.EIO, "planned failure")

    disk.before = before
    try:
        with pytest.raises(StoreError):
            yield
    finally:
        disk.before = None
    assert failed


def overwrite(disk: RecordingDisk, path: Path, position: int, data: bytes) -> None:
    """Replace durable bytes of a file."""
    handle = disk.open(path)
    disk.pwrite(handle, data, position)
    disk.close(handle)
    disk.make_durable()


# -- a ledger ------------------------------------------------------------------------------------


def ledger_on(disk: RecordingDisk) -> LedgerFiles:
    """Open the ledger of a peer."""
    files = LedgerFiles(
        DIRECTORY,
        CommitLogConfig(segment_bytes=_FILE_BYTES, reserve_bytes=0),
        check=accept_any,
        disk=disk,
        index_file_bytes=320,
    )
    files.open()
    return files


def append(files: LedgerFiles, *sizes: int, term: int = 0) -> None:
    """Append entries of this size, header included, as a leader or follower does, and flush them."""
    view = LedgerView(files, _FILE_BYTES)
    for size in sizes:
        body = b"%d" % term * (size - HEADER_BYTES)
        view.append(Entry.of(view.end_index + 1, term, view.next_entry_pos(len(body)), body))
    files.apply(view.take())
    files.flush()


def entries(files: LedgerFiles) -> list[Entry]:
    """All entries of a ledger."""
    return [files.get(index) for index in range(files.begin_index, files.end_index + 1)]


def go_on_and_lose_power(disk: RecordingDisk, *sizes: int) -> None:
    """Start, append entries of a new term, lose power, start: exactly the flushed entries must exist."""
    files = ledger_on(disk)
    append(files, *sizes, term=7)
    held = entries(files)
    assert held[-1].end_pos % SECTOR == 0  # otherwise the last write replaces the old bytes under test
    again = ledger_on(disk.after_power_loss(None))
    assert entries(again) == held
    kill_ledger(again)


def cut_to(index: int) -> Write:
    """A truncation after an entry."""
    return Write(is_reset=False, truncate_after=index, entries=())


def test_entries_that_were_cut_do_not_keep_a_peer_from_starting(disk: RecordingDisk) -> None:
    """After a failed flush of a truncation, an old sector behind the end would count as damage."""
    files = ledger_on(disk)
    append(files, 256, 306, 300, 300)
    with failing(disk, "fdatasync", "data/"):
        files.apply(cut_to(0))
    kill_ledger(files)
    go_on_and_lose_power(disk.copy(), 256)


def test_a_cut_that_failed_is_not_taken_for_a_clean_stop(disk: RecordingDisk) -> None:
    """A failed truncation leaves the same checkpoint as a clean stop: the next flush would not repeat it."""
    files = ledger_on(disk)
    append(files, 256, 306, 300, 300)
    files.flush(thorough=True)
    with failing(disk, "fdatasync", "data/"):
        files.apply(cut_to(0))
    kill_ledger(files)
    files = ledger_on(disk)
    held = entries(files)
    assert len(held) == 1
    again = ledger_on(disk.after_power_loss(None))
    assert entries(again) == held
    kill_ledger(again)


def test_a_tail_that_a_start_erased_does_not_return(disk: RecordingDisk) -> None:
    """After a failed flush at the end of a start, the erased tail is zeros in the page cache only."""
    files = ledger_on(disk)
    append(files, 256)
    files.flush(thorough=True)
    append(files, 306, 300, 300)
    kill_ledger(files)
    # Power loss took the first of the unflushed entries.
    overwrite(disk, DIRECTORY / "data" / f"{0:020d}", 256, bytes(256))
    with failing(disk, "fdatasync", "data/"):
        ledger_on(disk)
    go_on_and_lose_power(disk.copy(), 256)


def test_left_over_entries_hide_no_damage(disk: RecordingDisk) -> None:
    """A valid entry behind leftover ones would be overlooked, and acknowledged entries truncated silently."""
    files = ledger_on(disk)
    append(files, 100)
    append(files, 200, 100, term=2)
    kill_ledger(files)
    disk.unlink(DIRECTORY / "progress")  # like a ledger of Java, behind whose end old entries may follow
    overwrite(disk, DIRECTORY / "data" / f"{0:020d}", 100, encode_entry(Entry.of(0, 0, 100, b"old")))
    with pytest.raises(StoreDamaged, match="entry 2 follows at 300"):
        ledger_on(disk)


def test_a_start_may_stop_before_it_has_saved_which_files_are_expired(disk: RecordingDisk) -> None:
    """Files would be deleted before the mark that they expired is durable: later starts would miss them."""
    files = ledger_on(disk)
    append(files, 2048, 2000, 2048, 2000, 300)
    files.flush(thorough=True)
    file = files.data.take_first()
    with failing(disk, "fdatasync", "progress"):
        files.persist_min_offset()
    assert file.start == 0
    begin = files.begin_index
    kill_ledger(files)
    image = disk.copy()

    def stop(operation: Operation) -> None:
        if operation.kind == "fdatasync" and "data/" in operation.path:
            raise Crash

    image.before = stop
    with pytest.raises(Crash):
        ledger_on(image)
    image.before = None
    again = ledger_on(image.after_power_loss(None))
    assert again.begin_index in (0, begin)
    assert again.end_index == 4
    kill_ledger(again)


# -- small files ---------------------------------------------------------------------------------


def test_a_vote_that_a_peer_acts_on_survives_power_loss(disk: RecordingDisk) -> None:
    """A peer would vote, lose power, and vote for another peer in the same term."""
    StateFiles(disk, DIRECTORY).save_term(TermState(4, None))
    with failing(disk, "fsync_dir", "dledger"):
        StateFiles(disk, DIRECTORY).save_term(TermState(5, "n1"))
    acted_on = StateFiles(disk, DIRECTORY).load_term(has_entries=True)
    after = StateFiles(disk.after_power_loss(None), DIRECTORY).load_term(has_entries=True)
    assert after == acted_on


def test_epochs_that_a_slave_acts_on_survive_power_loss(disk: RecordingDisk) -> None:
    """A slave would forget an epoch whose bytes it acknowledged, and one without them be promoted."""
    path = ROOT / "config" / "haEpochs.json"
    EpochFile(disk, path).save(EpochState(epochs=(Epoch(1, 0, "a"),), seen=1))
    newer = EpochState(epochs=(Epoch(1, 0, "a"), Epoch(2, 500, "b")), seen=2)
    with failing(disk, "fsync_dir", "config"):
        EpochFile(disk, path).save(newer)
    acted_on = EpochFile(disk, path)
    acted_on.load()
    acted_on.save(newer)
    after = EpochFile(disk.after_power_loss(None), path)
    after.load()
    assert after.state == newer


# -- a commit log --------------------------------------------------------------------------------


def put(store: MessageStore, *sizes: int) -> None:
    """Store messages whose records have this size."""
    for size in sizes:
        store.put_message(MessageInner("T", 0, b"." * (size - FIXED_BYTES - 1), b""))


def lose_power(disk: RecordingDisk, held: bytes) -> None:
    """Start after a power loss; check that the log equals the flushed one."""
    assert len(held) % SECTOR == 0
    again, _ = open_store(small_config(), disk.after_power_loss(None), Clock())
    assert log_bytes(again) == held
    kill(again)


def test_records_that_a_start_erased_do_not_return(disk: RecordingDisk) -> None:
    """Erased bytes that return after a failed flush would count as damage, and prevent a later start."""
    store, _ = open_store(small_config(), disk, Clock())
    put(store, 256)
    store.flush(thorough=True)
    put(store, 306, 300, 300)
    kill(store)
    overwrite(disk, ROOT / "commitlog" / f"{0:020d}", 256, bytes(256))  # power loss took a sector
    with failing(disk, "fdatasync", "commitlog/"):
        open_store(small_config(), disk, Clock())
    image = disk.copy()
    store, _ = open_store(small_config(), image, Clock())
    put(store, 256)
    store.flush()
    lose_power(image, log_bytes(store))


def test_records_that_a_slave_cut_do_not_return(disk: RecordingDisk) -> None:
    """Records that a slave truncated, since its master lacks them, would return behind their replacements."""
    store, _ = open_store(small_config(), disk, Clock())
    put(store, 256, 306, 300, 300)
    store.flush(thorough=True)
    log = log_bytes(store)
    with failing(disk, "fdatasync", "commitlog/"):
        ReplicaLog(store).truncate(256, ROOT / "cut")
    kill(store)
    image = disk.copy()
    store, _ = open_store(small_config(), image, Clock())
    assert log_bytes(store) == log[:256]
    master, _ = open_store(small_config(), RecordingDisk(), Clock(1_800_000_000_000))
    put(master, 256, 256)
    ReplicaLog(store).append(256, log_bytes(master)[256:])
    store.flush()
    lose_power(image, log[:256] + log_bytes(master)[256:])


def test_bytes_that_a_slave_dropped_do_not_return(disk: RecordingDisk) -> None:
    """The rest of a failed write would return behind shorter records of the next master."""
    store, _ = open_store(small_config(), disk, Clock())
    put(store, 256)
    store.flush(thorough=True)
    log = log_bytes(store)
    masters = [open_store(small_config(), RecordingDisk(), Clock(now))[0] for now in (10**12, 2 * 10**12)]
    put(masters[0], 256, 306, 300, 300)
    put(masters[1], 256, 256)
    replica = ReplicaLog(store)

    def half(operation: Operation) -> None:
        if operation.kind == "pwrite" and "commitlog/" in operation.path:
            disk.before = None
            disk.fail_pwrite(operation, 800)
            raise OSError(errno.ENOSPC, "planned failure")

    disk.before = half
    with pytest.raises(DiskFull):
        replica.append(256, log_bytes(masters[0])[256:])
    replica.append(256, log_bytes(masters[1])[256:])
    images = [disk.after_power_loss(Random(seed)) for seed in range(60)]
    for image in images:
        again, _ = open_store(small_config(), image, Clock())
        assert log_bytes(again) in (log, log + log_bytes(masters[1])[256:])
        kill(again)
