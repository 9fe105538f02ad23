"""The files of timers, compared with those of a real broker of RocketMQ 5.3.3."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from rocketpy.errors import RemoteProtocolError, StoreError
from rocketpy.protocol.bodies import TimerMetricsSerializeWrapper
from rocketpy.protocol.java import utf8_hash
from rocketpy_broker.services.timers.files import CheckpointFile, TimerFiles, TimerFilesDamaged
from rocketpy_broker.services.timers.formats import (
    CHECKPOINT_BYTES,
    CHECKPOINT_FILE_BYTES,
    NO_UNIT,
    UNIT,
    WHEEL_BYTES,
    WHEEL_SLOTS,
    Slot,
    TimerCheckpoint,
    Unit,
    is_blank,
)
from rocketpy_broker.store.files.disk import OsDisk
from tests.golden_data import GOLDEN, Json
from tests.unit.store.faulty_disk import FaultyDisk

_LOG_BYTES = 520
_FLUSHED = 9 * UNIT.size


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a Java broker with timers in flight."""
    target = tmp_path_factory.mktemp("flight")
    with tarfile.open(GOLDEN / "timers" / "flight.tar.gz") as archive:
        archive.extractall(target, filter="data")
    return target / "store"


@pytest.fixture
def responses() -> list[Json]:
    """What the recorded broker responded."""
    found: list[Json] = json.loads((GOLDEN / "timers" / "flight.json").read_text())
    return found


def _files(root: Path, log_bytes: int = _LOG_BYTES, disk: OsDisk | FaultyDisk | None = None) -> TimerFiles:
    return TimerFiles(disk or OsDisk(), root, log_bytes)


def _unit(slot_s: int, number: int, **changes: int) -> Unit:
    fields = {
        "previous": NO_UNIT,
        "kind": 1,
        "enqueued_ms": 1000,
        "physical_offset": 100 * number,
        "size": 99,
    }
    return Unit(
        **{**fields, "slot_ms": slot_s * 1000, "topic_hash": 7, "due_ms": slot_s * 1000 + 5, **changes}
    )


def _add(files: TimerFiles, units: list[Unit]) -> int:
    """Add units to the slots of their times, each as a batch of its own."""
    position, _ = files.log.room()
    places = range(position, position + len(units) * UNIT.size, UNIT.size)
    slots = [
        (unit.slot_ms // 1000, place, place, -1 if unit.recalls else 1)
        for place, unit in zip(places, units, strict=True)
    ]
    return files.add(b"".join(unit.encode() for unit in units), slots)


def _chain(files: TimerFiles, second: int) -> list[int]:
    """The physical offsets of a slot's messages, the last first."""
    found, at = [], files.wheel.slot(second).last
    while at != NO_UNIT:
        unit = files.log.unit(at)
        assert unit is not None
        found.append(unit.physical_offset)
        at = unit.previous
    return found


def test_units_are_those_of_java(recorded: Path) -> None:
    """Java would not find timers of ours, nor we its own."""
    data = (recorded / "timerlog" / f"{0:020}").read_bytes()
    files = _files(recorded)
    files.log.load()
    units = list(files.log.units(0))
    assert [position for position, _ in units] == list(range(0, _FLUSHED, UNIT.size))
    assert b"".join(unit.encode() for _, unit in units) == data[:_FLUSHED]
    assert [unit.kind for _, unit in units] == [1, 1, 1, 1, 1, 3, 1, 1, 5]
    assert {unit.topic_hash for _, unit in units} == {utf8_hash(b"GoldenTimers")}
    files.close()


def test_slots_are_those_of_java(recorded: Path, tmp_path: Path) -> None:
    """QUIRKS 73: units of one second would not be linked as Java links them."""
    theirs, ours = _files(recorded), _files(tmp_path)
    theirs.log.load()
    for _, unit in theirs.log.units(0):
        _add(ours, [unit])
    slots = sorted(theirs.wheel.slots(0))
    assert len(slots) == 7
    assert sorted(ours.wheel.slots(0)) == slots
    assert (tmp_path / "timerwheel").stat().st_size == (recorded / "timerwheel").stat().st_size == WHEEL_BYTES
    assert (tmp_path / "timerwheel").read_bytes() == (recorded / "timerwheel").read_bytes()
    theirs.close()
    ours.close()


def test_a_checkpoint_keeps_the_window_until_java_enqueues(tmp_path: Path) -> None:
    """Timers of another window would be taken for those of this one, and deleted before they are due."""
    path = tmp_path / "config" / "timercheck"
    checkpoint = TimerCheckpoint(read_ms=7000, log_flushed=520, queue_offset=10, counter=3, window_ms=60_000)
    file = CheckpointFile(OsDisk(), path)
    file.save(checkpoint)
    assert file.load() == checkpoint
    later = replace(checkpoint, read_ms=8000, log_flushed=572, window_ms=61_000)
    file.save(later)
    assert file.load() == later
    file.close()
    data = path.read_bytes()
    assert len(data) == CHECKPOINT_FILE_BYTES
    assert TimerCheckpoint.decode(data) == replace(later, window_ms=0)  # what Java reads
    by_java = replace(later, log_flushed=624, window_ms=0).encode()
    assert TimerCheckpoint.decode_file(by_java + data[len(by_java) :]).window_ms == 0


def test_checkpoints_are_those_of_java(recorded: Path, responses: list[Json]) -> None:
    """A slave of one kind could not follow a master of the other."""
    data = (recorded / "config" / "timercheck").read_bytes()
    checkpoint = TimerCheckpoint.decode(data)
    assert checkpoint.encode_file() == data
    assert (checkpoint.queue_offset, checkpoint.log_flushed) == (9, _FLUSHED)
    sent = bytes.fromhex(next(one["body"] for one in responses if one.get("request") == 60))
    assert len(sent) == CHECKPOINT_BYTES
    assert TimerCheckpoint.decode(sent).encode() == sent
    assert len(data) == CHECKPOINT_FILE_BYTES
    assert TimerCheckpoint.decode_file(data) == checkpoint
    with pytest.raises(RemoteProtocolError, match="32 bytes"):
        TimerCheckpoint.decode(bytes(31))
    with pytest.raises(RemoteProtocolError, match="negative"):
        TimerCheckpoint.decode(b"\xff" * 56)


def test_metrics_are_those_of_java(recorded: Path, responses: list[Json]) -> None:
    """QUIRKS 75: the counts would begin at 0 when a broker of the other kind opens the store."""
    sent = bytes.fromhex(next(one["body"] for one in responses if one.get("request") == 61))
    for data in (sent, (recorded / "config" / "timermetrics").read_bytes()):
        found = TimerMetricsSerializeWrapper.decode(data)
        assert {topic: one.count for topic, one in found.timing_count.items()} == {"GoldenTimers": 6}
        assert TimerMetricsSerializeWrapper.decode(found.encode()) == found


def test_a_unit_is_not_split_between_files(tmp_path: Path) -> None:
    """Java ends a file with a blank unit, and reads no unit across files."""
    files = _files(tmp_path)
    left = [_unit(50 + number % 2, number) for number in range(25)]
    while left:
        room = files.log.room()[1]
        _add(files, left[:room])
        left = left[room:]
    assert [path.stat().st_size for path in sorted((tmp_path / "timerlog").iterdir())] == [520, 520, 520]
    assert is_blank((tmp_path / "timerlog" / f"{0:020}").read_bytes(), 9 * UNIT.size)
    assert _chain(files, 50) == [100 * number for number in range(24, -1, -2)]
    files.close()
    again = _files(tmp_path)
    last = again.recover(TimerCheckpoint(), 10**6)
    assert last is not None
    assert last.physical_offset == 2400
    assert again.log.end == 2 * 520 + 7 * UNIT.size
    assert again.wheel.slot(50).timers == 13
    again.close()


def test_units_that_a_kill_left_unlinked_are_linked(tmp_path: Path) -> None:
    """A timer whose slot was not written would never be delivered."""
    files = _files(tmp_path)
    _add(files, [_unit(50, 1), _unit(50, 2), _unit(60, 3)])
    files.flush()
    files.log.append(_unit(50, 4, previous=UNIT.size).encode() + _unit(70, 5).encode())
    files.close()
    again = _files(tmp_path)
    last = again.recover(TimerCheckpoint(log_flushed=3 * UNIT.size), 10**6)
    assert last is not None
    assert last.physical_offset == 500
    assert (_chain(again, 50), _chain(again, 60), _chain(again, 70)) == ([400, 200, 100], [300], [500])
    again.close()


def test_slots_beyond_the_timer_log_are_corrected(tmp_path: Path) -> None:
    """Power loss may keep a slot and lose its unit; the other units of the slot would be lost with it."""
    files = _files(tmp_path)
    _add(files, [_unit(50, 1), _unit(50, 2)])
    files.wheel.put([Slot(50, 0, 5 * UNIT.size, 6), Slot(80, 4 * UNIT.size, 4 * UNIT.size, 1)])
    files.close()
    again = _files(tmp_path)
    again.recover(TimerCheckpoint(log_flushed=2 * UNIT.size), 10**6)
    assert _chain(again, 50) == [200, 100]
    assert again.wheel.slot(80).last == NO_UNIT
    again.close()


def test_units_of_lost_messages_are_dropped(tmp_path: Path) -> None:
    """Another message would be stored at the offset of the lost one, and be delivered in its place."""
    files = _files(tmp_path)
    _add(files, [_unit(50, 1), _unit(50, 2), _unit(50, 3)])
    files.close()
    again = _files(tmp_path)
    again.recover(TimerCheckpoint(), 299)
    assert _chain(again, 50) == [200, 100]
    assert again.log.end == 2 * UNIT.size
    again.close()


def test_missing_files_are_noticed(tmp_path: Path) -> None:
    """Timers would be lost in silence."""
    files = _files(tmp_path)
    _add(files, [_unit(50, 1)])
    files.close()
    (tmp_path / "timerwheel").unlink()
    again = _files(tmp_path)
    again.recover(TimerCheckpoint(log_flushed=UNIT.size), 10**6)
    assert _chain(again, 50) == [100]
    again.reset()
    with pytest.raises(TimerFilesDamaged, match="timer log is missing"):
        again.recover(TimerCheckpoint(log_flushed=UNIT.size), 10**6)
    (tmp_path / "timerwheel").write_bytes(bytes(100))
    with pytest.raises(TimerFilesDamaged, match="100 bytes"):
        again.wheel.exists()


def test_a_slot_of_another_fortnight_is_free(tmp_path: Path) -> None:
    """Timers of a past second would be delivered again with those of a later one."""
    files = _files(tmp_path)
    _add(files, [_unit(50, 1)])
    assert files.wheel.slot(50 + WHEEL_SLOTS).last == NO_UNIT
    new = _add(files, [_unit(50 + WHEEL_SLOTS, 2)])
    assert new == 1
    assert _chain(files, 50 + WHEEL_SLOTS) == [200]
    files.close()


def test_the_next_second_with_timers_is_found_across_the_end_of_the_wheel(tmp_path: Path) -> None:
    """Timers behind an empty hour would wait for it slot by slot, or be passed over."""
    files = _files(tmp_path)
    base = WHEEL_SLOTS * 3 - 10
    _add(files, [_unit(base + 5000, 1), _unit(base + 2, 2)])
    assert files.wheel.next_second(base, base + 9000) == base + 2
    assert files.wheel.next_second(base + 3, base + 9000) == base + 5000
    assert files.wheel.next_second(base + 5001, base + 9000) == base + 9000
    files.close()


def test_no_timer_is_lost_while_the_disk_is_full(tmp_path: Path) -> None:
    """A unit without its slot would never be delivered, and a slot without its unit would end the chain."""
    disk = FaultyDisk(only="pwrite")
    files = _files(tmp_path, disk=disk)
    _add(files, [_unit(50, 1)])
    files.flush()
    disk.fail_at, disk.calls = 1, 0
    with pytest.raises(StoreError):
        _add(files, [_unit(50, 2)])
    _add(files, [_unit(50, 3)])
    assert _chain(files, 50) == [300, 100]
    files.close()


def test_expired_files_of_the_timer_log_are_deleted(tmp_path: Path) -> None:
    """The timer log would grow for ever."""
    files = _files(tmp_path)
    left = [_unit(50, number) for number in range(30)]
    while left:
        room = files.log.room()[1]
        _add(files, left[:room])
        left = left[room:]
    assert files.log.delete_expired(800) == []
    deletions = files.log.delete_expired(1700)
    assert len(deletions) == 1
    for delete in deletions:
        delete()
    assert files.log.begin == 520
    assert files.log.unit(0) is None
    files.close()
