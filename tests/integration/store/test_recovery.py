"""Damaged stores: derived files are rebuilt, a torn tail is cut, other damage is rejected with its place."""

from __future__ import annotations

import dataclasses
import itertools
import random
import shutil
import struct
from pathlib import Path
from typing import Protocol

import pytest

from rocketpy.errors import MessageInvalid, StoreDamaged
from rocketpy.protocol.message.batch import encode_batch
from rocketpy_broker.store import (
    CommitLogConfig,
    IndexConfig,
    MessageInner,
    MessageStore,
    RecoveryConfig,
    StoreConfig,
)
from rocketpy_broker.store.files.checkpoint import Checkpoint
from rocketpy_broker.store.log.mapped_file import mapped_file_name
from rocketpy_broker.store.queue.consume_queue import UNIT
from tests.store_checks import check_store
from tests.unit.store.helpers import bodies, cutting, kill, log_content, put, small_config

COUNT = 900  # two and a half commit log files, four files a queue, seven index files


class Filled(Protocol):
    """Makes the files of a store with messages in three queues, whose broker has stopped."""

    def __call__(self, root: Path, *, stop: str = "clean", count: int = COUNT) -> None: ...


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Writes each kind of store once, then copies it. stop: clean, killed, or flushed and killed."""
    written: dict[tuple[str, int], Path] = {}

    def fill(root: Path, *, stop: str = "clean", count: int = COUNT) -> None:
        if (stop, count) not in written:
            written[stop, count] = _fill(tmp_path_factory.mktemp("filled"), stop, count)
        shutil.copytree(written[stop, count], root, dirs_exist_ok=True)

    return fill


def _fill(root: Path, stop: str, count: int) -> Path:
    store = MessageStore(small_config(root))
    store.open()
    for number in range(count):
        put(store, number, queue_id=number % 3)
    if stop == "clean":
        store.close()
        return root
    if stop == "flushed and killed":
        store.flush(thorough=True)
    kill(store)
    return root


def expect_all(config: StoreConfig, count: int = COUNT) -> MessageStore:
    """Open, check that all messages exist, close."""
    store = MessageStore(config)
    store.open()
    for queue_id in range(3):
        assert bodies(store, queue_id=queue_id) == [b"body %d" % n for n in range(queue_id, count, 3)]
    assert check_store(store).problems == []
    for number in range(0, count, 97):
        assert len(store.query_message("T", f"k{number}", 5, 0, 1 << 62).records) == 1
    store.close()
    return store


def flip(path: Path, position: int, mask: int = 0xFF) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def files_below(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "lost",
    ["consumequeue", "consumequeue/T", "consumequeue/T/1", "consumequeue/T/1/00000000000000000000",
     "consumequeue/T/1/00000000000000002000", "consumequeue/T/1/00000000000000005000", "index",
     "checkpoint", "lock"],
)  # fmt: skip
def test_lost_files_are_rebuilt(filled: Filled, tmp_path: Path, lost: str, clean: bool) -> None:
    """The loss of a queue file or the index would lose messages."""
    filled(tmp_path, stop="clean" if clean else "killed")
    path = tmp_path / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    store = expect_all(small_config(tmp_path))
    assert store.index is not None
    assert sum(file.inserts for file in store.index.files) == 3 * COUNT, "no record is indexed twice"


@pytest.mark.parametrize("stop", ["clean", "clean, no checksums", "flushed and killed"])
@pytest.mark.parametrize("start", [0, 2000, 4000])
def test_a_queue_that_lacks_one_file_is_complete_after_a_start(
    filled: Filled, tmp_path: Path, stop: str, start: int
) -> None:
    """A group would skip the messages of that file, or read those after it with wrong offsets."""
    count = 2 * COUNT  # recovery reads only the end of a log of this length
    filled(tmp_path, stop=stop.removesuffix(", no checksums"), count=count)
    if stop == "clean, no checksums":
        (tmp_path / "queuesums").unlink()
    (tmp_path / "consumequeue" / "T" / "1" / mapped_file_name(start)).unlink()
    expect_all(small_config(tmp_path), count)


@pytest.mark.parametrize("clean", [True, False])
def test_last_unit_that_leads_to_another_message_is_replaced(
    filled: Filled, tmp_path: Path, clean: bool
) -> None:
    """A consumer would be given a message of another queue, left there by a longer log (QUIRKS 48)."""
    filled(tmp_path)
    if not clean:
        (tmp_path / "abort").touch()
    (last,) = (tmp_path / "consumequeue" / "T" / "1").glob("*5000")
    other = (tmp_path / "consumequeue" / "T" / "2" / last.name).read_bytes()
    last.write_bytes(last.read_bytes()[:960] + other[960:])
    store = expect_all(small_config(tmp_path))
    assert store.max_offset_in_queue("T", 1) == COUNT // 3


@pytest.mark.parametrize("torn", [False, True])
def test_a_queue_of_expired_units_continues_with_the_log(filled: Filled, tmp_path: Path, torn: bool) -> None:
    """Units of expired records can be torn, or later units be missing, without a report."""
    filled(tmp_path, stop="killed")
    (tmp_path / "commitlog" / mapped_file_name(0)).unlink()
    checkpoint = Checkpoint.decode((tmp_path / "checkpoint").read_bytes())
    checkpoint.min_offset = checkpoint.flushed_offset = small_config(tmp_path).commit_log.segment_bytes
    (tmp_path / "checkpoint").write_bytes(checkpoint.encode())
    shutil.copytree(tmp_path, whole := tmp_path.with_name(f"{tmp_path.name}-whole"))
    with MessageStore(small_config(whole)) as store:
        kept = [record["queueOffset"] for record in log_content(store) if record["queueId"] == 0]
    first, expected = kept[0], [b"body %d" % (3 * number) for number in kept]
    assert len(expected) > 100
    files = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())
    for path in files[first // 50 + torn :]:
        path.unlink()
    if torn:  # a unit for a message that is kept, of which only the last byte of the size was not zeroed
        last = files[first // 50]
        units = last.read_bytes()[: (first % 50 + 1) * 20]
        last.write_bytes((units[:-20] + UNIT.pack(0, 181, 0)).ljust(1000, b"\0"))
    for again in (False, True):
        store = MessageStore(small_config(tmp_path))
        assert (store.open().rebuilt == 0) is again
        assert store.min_offset_in_queue("T", 0) == first
        assert bodies(store) == expected
        assert check_store(store).problems == []
        kill(store)


def test_rebuilt_files_equal_those_written_live(filled: Filled, tmp_path: Path) -> None:
    """Queues and index of two brokers would differ, and no check could compare them."""
    filled(tmp_path)
    live = files_below(tmp_path / "consumequeue"), [*files_below(tmp_path / "index").values()]
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    store = MessageStore(small_config(tmp_path))
    assert store.open().rebuilt == COUNT
    store.close()
    names = sorted((tmp_path / "index").iterdir())
    assert files_below(tmp_path / "consumequeue") == live[0]
    assert sorted(path.read_bytes() for path in names) == sorted(live[1])


def test_a_store_without_its_commit_log_starts_empty_only_if_configured(
    filled: Filled, tmp_path: Path
) -> None:
    """With an unmounted disk, queues would be deleted as in 4.6.0, and offsets be assigned twice."""
    filled(tmp_path)
    queues = files_below(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "commitlog")
    with pytest.raises(StoreDamaged, match=r"commitlog has no files, but .* remove the file `checkpoint`"):
        MessageStore(small_config(tmp_path)).open()
    assert files_below(tmp_path / "consumequeue") == queues
    (tmp_path / "checkpoint").unlink()
    store = MessageStore(small_config(tmp_path))
    report = store.open()
    assert (report.end, len(report.notes)) == (0, 3)
    put(store, 5)
    assert bodies(store) == [b"body 5"]
    store.close()


def test_damage_in_flushed_data_is_rejected_unchanged(filled: Filled, tmp_path: Path) -> None:
    """A flipped bit would silently cost every message after it."""
    filled(tmp_path)
    log = tmp_path / "commitlog" / f"{65536:020d}"
    position = log.read_bytes().index(b"body 500")
    flip(log, position)
    before = {name: data for name, data in files_below(tmp_path).items() if name != "abort"}
    store = MessageStore(small_config(tmp_path))
    with pytest.raises(StoreDamaged, match=r"damaged at 8\d{4}: .*flushed up to 14\d{4}.*cut_damage"):
        store.open()
    after = {name: data for name, data in files_below(tmp_path).items() if name != "abort"}
    assert after == before
    flip(log, position)
    expect_all(small_config(tmp_path))


def test_damage_is_cut_if_an_operator_configures_it(filled: Filled, tmp_path: Path) -> None:
    """A damaged store without a backup could never be used again."""
    filled(tmp_path)
    log = tmp_path / "commitlog" / f"{65536:020d}"
    flip(log, log.read_bytes().index(b"body 500"))
    store = MessageStore(cutting(tmp_path))
    report = store.open()
    assert any("truncated, since cut_damage is set" in note for note in report.notes)
    found = bodies(store)
    assert found == [b"body %d" % number for number in range(0, 500, 3)]
    assert check_store(store).problems == []
    store.close()


def as_java_leaves_it(root: Path) -> None:
    """Remove rocketpy's offsets from the checkpoint."""
    path = root / "checkpoint"
    checkpoint = Checkpoint.decode(path.read_bytes())
    path.write_bytes(checkpoint.encode()[:24].ljust(4096, b"\0"))


def test_damage_before_valid_records_is_rejected_in_a_java_store(filled: Filled, tmp_path: Path) -> None:
    """A Java broker's store would lose all records after a flipped bit, as 4.6.0 itself loses them."""
    filled(tmp_path, stop="killed")
    as_java_leaves_it(tmp_path)
    flip(tmp_path / "commitlog" / f"{131072:020d}", 88)
    with pytest.raises(StoreDamaged, match="a valid record follows at 131"):
        MessageStore(small_config(tmp_path)).open()


def test_the_unflushed_tail_is_cut_after_power_loss(tmp_path: Path) -> None:
    """A broker would refuse to start after an ordinary power loss."""
    store = MessageStore(small_config(tmp_path))
    store.open()
    put(store, *range(20))
    store.flush(thorough=True)
    flushed = store.flushed_offset
    put(store, *range(20, 40))
    kill(store)
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(flushed)
        file.write(bytes(512))  # a sector that never reached the disk
    store = MessageStore(small_config(tmp_path))
    report = store.open()
    assert report.end == flushed
    assert any("unflushed records" in note for note in report.notes)
    assert bodies(store) == [b"body %d" % number for number in range(20)]
    put(store, 77)
    assert check_store(store).problems == []
    store.close()
    assert MessageStore(small_config(tmp_path)).open().clean


@pytest.mark.parametrize("thorough", [True, False])
def test_flipped_byte_in_flushed_records_is_rejected(tmp_path: Path, thorough: bool) -> None:
    """A flipped bit in the newest second would silently cost acknowledged messages after it."""
    store = MessageStore(small_config(tmp_path))
    store.open()
    put(store, *range(20))
    store.flush(thorough=thorough)
    if not thorough:
        store.mark_flushed()
    put(store, 20)
    kill(store)
    log = tmp_path / "commitlog" / f"{0:020d}"
    flip(log, log.read_bytes().index(b"body 7"))
    with pytest.raises(StoreDamaged, match="the log was flushed up to"):
        MessageStore(small_config(tmp_path)).open()


def test_damage_that_power_loss_cannot_cause_is_rejected(tmp_path: Path) -> None:
    """A flipped bit after the flushed offset would silently cost the valid records behind it."""
    store = MessageStore(small_config(tmp_path))
    store.open()
    put(store, *range(20))
    kill(store)
    log = tmp_path / "commitlog" / f"{0:020d}"
    flip(log, log.read_bytes().index(b"body 7"))
    with pytest.raises(StoreDamaged, match="a valid record follows"):
        MessageStore(small_config(tmp_path)).open()


def test_a_record_with_an_invalid_queue_id_is_damage(filled: Filled, tmp_path: Path) -> None:
    """A flipped bit in a queue id would stop the broker with an error about a topic."""
    filled(tmp_path)
    flip(tmp_path / "commitlog" / f"{0:020d}", 12)  # the first record's queue id becomes negative
    (tmp_path / "abort").touch()
    with pytest.raises(StoreDamaged, match="is not a valid queue"):
        MessageStore(small_config(tmp_path, recovery=RecoveryConfig(use_progress=False))).open()


def test_properties_with_zeros_are_rejected(tmp_path: Path) -> None:
    """Recovery would take such a message for a torn one, and cut it and all after it."""
    store = MessageStore(small_config(tmp_path))
    store.open()
    with pytest.raises(MessageInvalid, match=r"U\+0000"):
        store.append(MessageInner("T", 0, b"x", b"KEYS\x01a\0b\x02"))
    with pytest.raises(MessageInvalid, match=r"U\+0000"):
        store.append_batch(MessageInner("T", 0, encode_batch([(0, b"x", b"\0")])))
    put(store, 1)
    assert bodies(store) == [b"body 1"]
    store.close()


def test_every_length_of_a_torn_last_record_is_cut(tmp_path: Path) -> None:
    """A crash in the middle of a write would keep the broker from starting."""
    store = MessageStore(small_config(tmp_path / "whole"))
    store.open()
    put(store, *range(5))
    store.flush(thorough=True)
    end = store.max_physical_offset
    put(store, 5)
    kill(store)
    last = (tmp_path / "whole" / "commitlog" / f"{0:020d}").read_bytes()[end : end + 200]
    for length in range(0, len(last.rstrip(b"\0")), 7):
        root = tmp_path / str(length)
        shutil.copytree(tmp_path / "whole", root)
        with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(end)
            file.write(last[:length].ljust(200, b"\0"))
        store = MessageStore(small_config(root))
        assert store.open().end == end
        assert len(bodies(store)) == 5
        put(store, 6)
        assert check_store(store).problems == []
        store.close()
        shutil.rmtree(root)


def store_record(root: Path) -> bytes:
    """The first record; those of messages 100 to 999 have the same length."""
    log = (root / "commitlog" / f"{0:020d}").read_bytes()
    return log[: int.from_bytes(log[:4], "big")]


@pytest.mark.parametrize("count", [15, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("room", ["commitlog", "consumequeue", "index", "checkpoint"])
def test_any_flipped_byte_is_repaired_or_rejected(tmp_path: Path, room: str, count: int) -> None:
    """One bad byte on disk would be served as a message, or crash the broker."""
    store = MessageStore(small_config(tmp_path / "whole"))
    store.open()
    for number in range(100, 250):
        put(store, number, queue_id=number % 3)
    store.close()
    size = len(store_record(tmp_path / "whole"))
    allowed = {b"body %d" % number for number in range(100, 250)}
    chance = random.Random(room)
    whole = tmp_path / "whole" / room
    files = sorted(path for path in whole.rglob("*") if path.is_file()) if whole.is_dir() else [whole]
    for _ in range(count):
        path = chance.choice(files)
        position, mask = chance.randrange(len(path.read_bytes().rstrip(b"\0"))), chance.randrange(1, 256)
        if room == "commitlog":  # 4.6.0's CRC covers only the body; size, magic and place are checked too
            position = position // size * size + chance.choice([*range(12), *range(28, 36), *range(84, 95)])
        root = tmp_path / "copy"
        shutil.copytree(tmp_path / "whole", root)
        flip(root / path.relative_to(tmp_path / "whole"), position, mask)
        note = f"{path.name} at {position} with {mask:#x}"
        store = MessageStore(small_config(root))
        try:
            store.open()
            refused = ""
            for queue_id in range(3):
                assert set(bodies(store, queue_id=queue_id)) <= allowed, note
        except StoreDamaged as error:
            refused = str(error)
        assert not refused or room in refused, f"{note}: {refused}"
        store.close()
        shutil.rmtree(root)


def test_a_wrong_file_size_setting_is_named(filled: Filled, tmp_path: Path) -> None:
    """A wrong mappedFileSizeCommitLog would look like a destroyed store."""
    filled(tmp_path)
    config = small_config(tmp_path, commit_log=StoreConfig(root=tmp_path).commit_log)
    with pytest.raises(StoreDamaged, match="configured file size is 1073741824"):
        MessageStore(config).open()


def test_an_index_switched_off_and_on_is_complete(filled: Filled, tmp_path: Path) -> None:
    """Messages stored in between would not be found by key."""
    filled(tmp_path, count=60)
    store = MessageStore(small_config(tmp_path, index=IndexConfig(enabled=False)))
    store.open()
    for number in range(60, 90):
        put(store, number, queue_id=number % 3)
    store.close()
    expect_all(small_config(tmp_path), 90)


@pytest.mark.parametrize("lost", ["consumequeue/T", "consumequeue/T/1"])
def test_a_queue_that_was_lost_before_the_end_that_is_read_is_rebuilt(tmp_path: Path, lost: str) -> None:
    """It would stay empty without a report: after a kill, only the end of a large log is read."""
    config = StoreConfig(root=tmp_path, commit_log=CommitLogConfig(segment_bytes=1 << 26))
    store = MessageStore(config)
    store.open()
    put(store, *range(3), queue_id=1)
    for number in range(3, 16):
        put(store, number, body=bytes(3 << 20))
    store.flush(thorough=True)
    kill(store)
    store = MessageStore(config)
    assert store.open().scanned_from > 1 << 20, "the messages of the queue are before the end that is read"
    kill(store)
    shutil.rmtree(tmp_path / lost)
    store = MessageStore(config)
    store.open()
    assert bodies(store, queue_id=1) == [b"body 0", b"body 1", b"body 2"]
    assert store.max_offset_in_queue("T", 0) == 13
    kill(store)


def test_a_queue_without_a_valid_unit_is_rebuilt(filled: Filled, tmp_path: Path) -> None:
    """An operator would read that its messages have expired, and that the damaged queue is kept."""
    filled(tmp_path)
    for path in (tmp_path / "consumequeue" / "T" / "1").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    store = MessageStore(small_config(tmp_path))
    notes = store.open().notes
    assert [note for note in notes if "checksum" in note] == [
        "queue T/1 differs from its checksum of the last stop; rebuilding it"
    ]
    store.close()
    expect_all(small_config(tmp_path))


@pytest.mark.parametrize("stop", ["clean", "flushed and killed"])
def test_a_torn_tags_code_of_the_last_unit_is_replaced(filled: Filled, tmp_path: Path, stop: str) -> None:
    """Consumers with a tag would not get that message: the broker filters by the code in the unit."""
    filled(tmp_path, stop=stop)
    (tmp_path / "queuesums").unlink(missing_ok=True)
    path = max((tmp_path / "consumequeue" / "T" / "1").iterdir())
    whole = path.read_bytes()
    last = len(whole.rstrip(b"\0")) - 1
    flip(path, last)
    with MessageStore(small_config(tmp_path)) as store:
        assert store.units("T", 1, COUNT // 3 - 1, 1)[0][2] == UNIT.unpack(whole[last - 19 : last + 1])[2]
    expect_all(small_config(tmp_path))


def test_a_restored_file_of_expired_messages_is_dropped(filled: Filled, tmp_path: Path) -> None:
    """Power loss may restore deleted files. Expired messages would be consumed and counted again."""
    filled(tmp_path, stop="flushed and killed")
    first = tmp_path / "commitlog" / mapped_file_name(0)
    checkpoint = Checkpoint.decode((tmp_path / "checkpoint").read_bytes())
    checkpoint.min_offset = small_config(tmp_path).commit_log.segment_bytes
    (tmp_path / "checkpoint").write_bytes(checkpoint.encode())
    with MessageStore(small_config(tmp_path)) as store:
        assert store.min_physical_offset == checkpoint.min_offset
        assert not first.exists()


def test_a_flushed_file_that_is_missing_is_reported(filled: Filled, tmp_path: Path) -> None:
    """The messages behind the gap would be lost silently."""
    filled(tmp_path, stop="flushed and killed")
    second = small_config(tmp_path).commit_log.segment_bytes
    (tmp_path / "commitlog" / mapped_file_name(second)).unlink()
    with pytest.raises(StoreDamaged, match=f"the file that starts at {second} is missing"):
        MessageStore(small_config(tmp_path)).open()


def test_clean_start_reads_only_the_tail_of_a_large_log(tmp_path: Path) -> None:
    """A broker with gigabytes of messages would take minutes to restart."""
    config = StoreConfig(
        root=tmp_path,
        commit_log=CommitLogConfig(segment_bytes=1 << 26),
        index=IndexConfig(slots=100, entries=9),
    )
    store = MessageStore(config)
    store.open()
    for number in range(25):
        put(store, number, body=bytes(3 << 20))
    store.close()
    store = MessageStore(config)
    report = store.open()
    assert report.clean
    assert 5 <= report.records <= 12
    assert report.end - report.scanned_from >= 16 << 20
    store.close()
    store = MessageStore(config)
    assert store.open().records == report.records
    assert store.checkpoint.log_end == -1
    kill(store)
    store = MessageStore(config)
    assert store.open().records <= 12
    kill(store)
    (tmp_path / "abort").unlink()  # the checkpoint still shows an unclean stop
    store = MessageStore(config)
    report = store.open()
    assert not report.clean
    assert report.records <= 12
    kill(store)
    config = dataclasses.replace(config, recovery=RecoveryConfig(use_progress=False))
    assert MessageStore(config).open().records == 25


@pytest.mark.parametrize(("late_ms", "file"), [(0, 1), (-1, 0), (1, 1)])
def test_a_store_of_java_is_read_from_the_file_that_its_checkpoint_names(
    tmp_path: Path, late_ms: int, file: int
) -> None:
    """Source: CommitLog.isMappedFileMatchedRecover. One file too late, and its queues would lack messages."""
    times = itertools.count(1_800_000_000_000)
    config = small_config(tmp_path, index=IndexConfig(enabled=False))
    store = MessageStore(config, clock=lambda: next(times))
    with store:
        for number in range(COUNT):
            put(store, number)
        starts = [file.start for file in store.commit_log.files.mapped_files]
        first = store.commit_log.first_record(store.commit_log.files.mapped_files[1])
    assert first is not None
    flushed = first.store_timestamp + 3000 + late_ms  # 4.6.0 goes back three seconds
    (tmp_path / "checkpoint").write_bytes(struct.pack(">qqq", flushed, flushed, 0).ljust(4096, b"\0"))
    (tmp_path / "abort").touch()
    store = MessageStore(config)
    assert store.open().scanned_from == starts[file]
    assert len(bodies(store)) == COUNT
    store.close()


def test_a_store_that_java_closed_is_read_from_its_third_last_file(tmp_path: Path) -> None:
    """Source: CommitLog.recoverNormally. Reading earlier files, which are flushed, would take minutes."""
    config = small_config(tmp_path, index=IndexConfig(enabled=False))
    with MessageStore(config) as store:
        for number in range(2 * COUNT):
            put(store, number)
        starts = [file.start for file in store.commit_log.files.mapped_files]
    assert len(starts) > 4
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:24].ljust(4096, b"\0"))
    store = MessageStore(config)
    report = store.open()
    assert report.clean
    assert report.scanned_from == starts[-3]
    store.close()


def test_reading_for_the_index_keeps_the_range_that_was_read(filled: Filled, tmp_path: Path) -> None:
    """Files in that range would not be rewritten, although their last flush may have failed."""
    filled(tmp_path, count=2 * COUNT)
    shutil.rmtree(tmp_path / "consumequeue")  # the log is read from its first file
    last = max((tmp_path / "commitlog").iterdir())
    with last.open("r+b") as file:  # the index has records after this place
        file.seek(2000)
        file.write(b"?" * 500)
    store = MessageStore(cutting(tmp_path))
    report = store.open()
    assert any("the index had records beyond" in note for note in report.notes)
    assert report.scanned_from == 0
    assert report.records == sum(len(bodies(store, queue_id=queue_id)) for queue_id in range(3))
    store.close()


@pytest.mark.parametrize("lost", [0, 2000, 5000])
def test_a_queue_that_lost_a_file_is_rebuilt_though_the_log_is_read_from_its_end(
    filled: Filled, tmp_path: Path, lost: int
) -> None:
    """Consumers would never get the messages whose units were in the file, without a report."""
    filled(tmp_path, count=2 * COUNT)
    assert len(list((tmp_path / "commitlog").iterdir())) > 4
    as_java_leaves_it(tmp_path)  # the log is read from its third-last file, and there are no checksums
    (tmp_path / "consumequeue" / "T" / "1" / f"{lost:020}").unlink()
    store = MessageStore(small_config(tmp_path))
    assert store.open().scanned_from == 0
    assert not store.queues.queues["T", 1].files.strays
    store.close()
    expect_all(small_config(tmp_path), 2 * COUNT)
