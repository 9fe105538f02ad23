"""ReplicaLog: a commit log written from another's bytes."""

import dataclasses
import random
from pathlib import Path

import pytest

from rocketpy.errors import DiskFull, StoreDamaged, StoreError
from rocketpy_broker.replication.ha.wire import Frame, FrameReader
from rocketpy_broker.store import CommitLogConfig, ConsumeQueueConfig, IndexConfig, MessageStore
from rocketpy_broker.store.files.store_lock import StoreLock
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue
from rocketpy_broker.store.replica.backlog import Backlog
from rocketpy_broker.store.replica.replica_log import ReplicaLog
from tests import golden_data
from tests.crash.disk import RecordingDisk
from tests.unit.store.faulty_disk import FaultyDisk
from tests.unit.store.helpers import log_bytes, message, put, small_config


def queue_bytes(store: MessageStore) -> dict[tuple[str, int], list[tuple[int, int, int, int]]]:
    return {key: list(queue.units()) for key, queue in store.queues.queues.items()}


def found(store: MessageStore, key: str) -> list[bytes]:
    return store.query_message("T", key, 64, 0, 1 << 62).records


@pytest.fixture
def master(tmp_path: Path) -> MessageStore:
    """A store of several files with queues of two topics."""
    store = MessageStore(small_config(tmp_path / "master"))
    store.open()
    chance = random.Random(1)
    for number in range(150):
        body = chance.randbytes(chance.randrange(4000))
        store.append(message(number, topic=chance.choice("TU"), queue_id=chance.randrange(3), body=body))
        if number % 7 == 0:
            store.write_out()
    store.write_out()
    store.dispatch()
    assert len(store.commit_log.files.mapped_files) > 3
    return store


def copy(data: bytes, target: ReplicaLog, chance: random.Random, offset: int = 0) -> None:
    while data:
        size = chance.choice((1, 5, 90, 5000, 40000))
        target.append(offset, data[:size])
        offset += len(data[:size])
        data = data[size:]


@pytest.mark.parametrize("burst_bytes", [None, 1, 5000])
@pytest.mark.parametrize("seed", range(5))
def test_a_copy_is_equal_and_can_be_read(
    master: MessageStore, tmp_path: Path, seed: int, burst_bytes: int | None
) -> None:
    """Consumers of a slave would miss messages, or a promoted slave would assign their offsets twice."""
    chance = random.Random(seed)
    with MessageStore(small_config(tmp_path / "slave")) as slave:
        backlog = Backlog(slave, burst_bytes=burst_bytes) if burst_bytes else None
        copy(log_bytes(master), ReplicaLog(slave, backlog), chance)
        slave.dispatch()
        if backlog is not None:
            assert slave.dispatch_behind_bytes == backlog.size > 0
            backlog.drain()
        assert slave.dispatch_behind_bytes == 0
        assert log_bytes(slave) == log_bytes(master)
        assert queue_bytes(slave) == queue_bytes(master)
        assert found(slave, "k7") == found(master, "k7")
        put(slave, 500)
        put(master, 500)
        assert queue_bytes(slave) == queue_bytes(master)
    master.close()


@pytest.mark.parametrize("cut", range(0, 70000, 9973))
def test_a_restart_in_the_middle_continues(master: MessageStore, tmp_path: Path, cut: int) -> None:
    """A slave stopped within a record, or at a file's end, would not start."""
    data = log_bytes(master)
    for position in (
        cut,
        master.commit_log.files.mapped_files[0].end,
        master.commit_log.files.mapped_files[0].end - 3,
    ):
        config = small_config(tmp_path / f"slave{position}")
        with MessageStore(config) as slave:
            ReplicaLog(slave).append(0, data[:position])
        with MessageStore(config) as slave:
            at = slave.max_physical_offset
            assert at <= position
            ReplicaLog(slave).append(at, data[at:])
            slave.dispatch()
            assert log_bytes(slave) == data
            assert queue_bytes(slave) == queue_bytes(master)
    master.close()


def test_a_backlog_survives_a_crash(master: MessageStore, tmp_path: Path) -> None:
    """Messages that a slave copied fast would be in no queue after its process was killed."""
    disk = RecordingDisk()
    config = small_config(tmp_path / "slave")
    slave = MessageStore(config, disk=disk)
    slave.open()
    backlog = Backlog(slave, burst_bytes=1)
    data = log_bytes(master)
    ReplicaLog(slave, backlog).append(0, data[:100_000])
    backlog.dispatch_piece()
    ReplicaLog(slave, backlog).append(slave.max_physical_offset, data[slave.max_physical_offset :])
    slave.flush(thorough=True)
    assert backlog.size
    StoreLock._held.clear()
    with MessageStore(config, disk=disk.copy()) as again:
        again.dispatch()
        assert log_bytes(again) == data
        assert queue_bytes(again) == queue_bytes(master)
    master.close()


def test_a_damaged_backlog_names_the_log_and_the_remedy(master: MessageStore, tmp_path: Path) -> None:
    """The log of a slave whose copy was damaged would neither say which files, nor what to do."""
    with MessageStore(small_config(tmp_path / "slave")) as slave:
        backlog = Backlog(slave, burst_bytes=1)
        ReplicaLog(slave, backlog).append(0, log_bytes(master))
        files = slave.commit_log.files
        assert isinstance(files, MappedFileQueue)
        files.truncate(0)
        with pytest.raises(StoreDamaged, match="cannot be read at 0; restart this slave") as caught:
            backlog.dispatch_piece()
        assert str(tmp_path / "slave") in str(caught.value)
    master.close()


def test_a_backlog_is_worked_off_in_pieces(master: MessageStore, tmp_path: Path) -> None:
    """Consumers of a slave that has caught up would never get the messages of the burst."""
    with MessageStore(small_config(tmp_path / "slave")) as slave:
        backlog = Backlog(slave, burst_bytes=1)
        ReplicaLog(slave, backlog).append(0, log_bytes(master))
        while left := backlog.size:
            backlog.dispatch_piece()
            assert backlog.size < left
        assert queue_bytes(slave) == queue_bytes(master)
    master.close()


def test_a_copy_may_begin_later(master: MessageStore, tmp_path: Path) -> None:
    """A slave could not follow a master whose first files have expired."""
    with MessageStore(small_config(tmp_path / "slave")) as slave:
        with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
            ReplicaLog(slave).append(1000, b"")
        ReplicaLog(slave).append(65536, b"")
        assert slave.min_physical_offset == slave.max_physical_offset == 65536
        ReplicaLog(slave).append(65536, log_bytes(master)[65536:])
        slave.dispatch()
        assert log_bytes(slave) == log_bytes(master)[65536:]
        assert slave.max_offset_in_queue("T", 0) == master.max_offset_in_queue("T", 0)
        assert slave.min_offset_in_queue("T", 0) > 0
    master.close()


@pytest.mark.parametrize(("name", "store"), [("ha2-conn1", "slave2"), ("ha4-conn1", "slave4")])
def test_a_java_masters_stream_makes_the_files_of_a_java_slave(tmp_path: Path, name: str, store: str) -> None:
    """A slave's directory could not be given to RocketMQ (QUIRKS 45, 54, 55)."""
    expected = golden_data.extract_store(f"store-{store}", tmp_path / "expected")
    config = small_config(tmp_path / "slave", consume_queue=ConsumeQueueConfig(segment_bytes=2000))
    with MessageStore(config) as slave:
        log = ReplicaLog(slave)
        for frame in FrameReader().feed(golden_data.ha_stream(name).master_to_slave):
            assert isinstance(frame, Frame)
            log.append(frame.offset, bytes(frame.body or b""))
        slave.dispatch()
    for folder in ("commitlog", "consumequeue"):
        files = {path.relative_to(expected) for path in (expected / folder).rglob("*") if path.is_file()}
        assert files
        for path in files:
            theirs, ours = (expected / path).read_bytes(), (tmp_path / "slave" / path).read_bytes()
            assert ours.rstrip(b"\0") == theirs.rstrip(b"\0")[: len(ours)], path


def test_invalid_records_are_not_written(master: MessageStore, tmp_path: Path) -> None:
    """A damaged master, or one with other file sizes, would damage its slaves."""
    data = log_bytes(master)
    late = len(data) - 500  # in a record of a queue that is known by then
    wrongs = (
        data[:200] + b"?" + data[201:],
        data[:late] + b"?" + data[late + 1 :],
        b"\0" * 100,
        data[:91] + data,
    )
    for number, wrong in enumerate(wrongs):
        with MessageStore(small_config(tmp_path / f"slave{number}")) as slave:
            with pytest.raises(StoreDamaged):
                ReplicaLog(slave).append(0, wrong)
            assert slave.failure is not None
            slave.failure = None
    master.close()


def test_a_full_disk_leaves_nothing_half_done(master: MessageStore, tmp_path: Path) -> None:
    """A slave would report bytes that it lost, or write some twice after its disk has free space."""
    disk = FaultyDisk(only="pwrite")
    slave = MessageStore(small_config(tmp_path / "slave"), disk=disk)
    slave.open()
    data = log_bytes(master)
    log = ReplicaLog(slave)
    log.append(0, data[:60000])
    before = log.max_offset
    disk.fail_at = disk.calls + 2
    with pytest.raises(DiskFull):
        log.append(before, data[before:])
    assert log.max_offset == before
    log.append(before, data[before:])
    slave.dispatch()
    assert log_bytes(slave) == data
    assert queue_bytes(slave) == queue_bytes(master)
    slave.close()
    master.close()


def test_truncated_records_leave_queues_and_index(master: MessageStore, tmp_path: Path) -> None:
    """Consumers would get messages that only the losing master had, or the new master's messages twice."""
    data = log_bytes(master)
    units = sorted(unit for units in queue_bytes(master).values() for unit in units)
    ends = sorted(offset + size for _, offset, size, _ in units)
    for end in (ends[3], ends[70], ends[-2]):
        root = tmp_path / f"slave{end}"
        aside = root / "cut" / "tail"
        with (
            MessageStore(small_config(root)) as slave,
            MessageStore(small_config(tmp_path / f"r{end}")) as short,
        ):
            ReplicaLog(slave).append(0, data)
            slave.dispatch()
            ReplicaLog(slave).truncate(end, aside)
            ReplicaLog(short).append(0, data[:end])
            short.dispatch()
            assert aside.read_bytes() == data[end:]
            assert log_bytes(slave) == data[:end]
            assert queue_bytes(slave) == {
                key: units for key, units in queue_bytes(short).items() if units
            } | {key: [] for key, units in queue_bytes(slave).items() if not units}
            for key in ("k3", "k70", "k149", "all"):
                assert found(slave, key) == found(short, key)
        with MessageStore(small_config(root)) as slave:
            assert slave.max_physical_offset == end
            ReplicaLog(slave).append(end, data[end:])
            slave.dispatch()
            assert queue_bytes(slave) == queue_bytes(master)
            assert found(slave, "k149") == found(master, "k149")
    master.close()


def test_index_files_that_a_cut_deletes_are_not_flushed(master: MessageStore, tmp_path: Path) -> None:
    """The flush of a deleted file would fail, and the slave would take no messages until a restart."""
    data = log_bytes(master)
    end = sorted(offset + size for units in queue_bytes(master).values() for _, offset, size, _ in units)[70]
    config = dataclasses.replace(small_config(tmp_path / "slave"), index=IndexConfig(slots=8, entries=24))
    with MessageStore(config) as slave:
        ReplicaLog(slave).append(0, data)
        ReplicaLog(slave).truncate(end, tmp_path / "tail")  # dispatches first, which fills index files
        ReplicaLog(slave).append(end, data[end:])
        slave.dispatch()
        slave.flush(thorough=True)
        assert found(slave, "k3") == found(master, "k3")
        assert found(slave, "all") == found(master, "all")
    master.close()


def test_a_backlog_is_taken_in_pieces_of_any_size(tmp_path: Path) -> None:
    """A slave in a burst would refuse its own log at a message of more than a megabyte, or after one."""
    config = dataclasses.replace(
        small_config(tmp_path / "master"), commit_log=CommitLogConfig(segment_bytes=4 << 20, reserve_bytes=0)
    )
    with MessageStore(config) as master:
        for number, size in enumerate((10, 100, (1 << 20) - 300, 1_500_000, 2_600_000, 50)):
            put(master, number, body=bytes(size))
        data = log_bytes(master)
        with MessageStore(dataclasses.replace(config, root=tmp_path / "slave")) as slave:
            backlog = Backlog(slave, burst_bytes=1)
            target = ReplicaLog(slave, backlog)
            target.append(0, data[:500])
            backlog.drain()  # what follows begins in the middle of a file
            target.append(500, data[500:])
            backlog.drain()
            assert queue_bytes(slave) == queue_bytes(master)


def test_dispatch_waits_for_the_end_of_a_burst(tmp_path: Path) -> None:
    """A slave that was away would take longer to have all messages, or its backlog grow without a limit."""
    with MessageStore(small_config(tmp_path)) as store:
        backlog = Backlog(store)
        assert not backlog.accepts(1000)
        assert backlog.accepts(128 << 10)
        backlog.add(0, 1 << 20, 1 << 20)
        assert backlog.check_burst()
        assert not backlog.check_burst(), "nothing more has come"
        backlog.add(1 << 20, 4 << 30, 1 << 20)
        assert not backlog.check_burst()
