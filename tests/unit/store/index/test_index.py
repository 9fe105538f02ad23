"""The index: keys are found under Java's hashes, also after a restart, a crash or damage."""

from __future__ import annotations

import errno
import shutil
from datetime import datetime
from pathlib import Path
from random import Random

import pytest

from rocketpy.errors import StoreDamaged, StoreError
from rocketpy.protocol.java import string_hash, utf8_hash
from rocketpy_broker.store import IndexConfig, MessageStore
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.index.index_file import ENTRY_BYTES, HEADER_BYTES, ROW, SLOT_BYTES, IndexFile
from rocketpy_broker.store.index.index_hash import key_hash, positive_hash
from rocketpy_broker.store.index.index_service import IndexService, index_file_name
from tests.crash.disk import Operation, RecordingDisk
from tests.unit.store.helpers import put, small_config

FOREVER = 1 << 62


def service_of(
    root: Path, *, slots: int = 100, entries: int = 400, start: int = 1_700_000_000_000
) -> IndexService:
    ticks = iter(range(start, start + 10**9, 7))
    return IndexService(OsDisk(), root, IndexConfig(slots=slots, entries=entries), lambda: next(ticks))


def index_rows(topic: bytes, unique_key: bytes, keys: bytes, offset: int, stored_ms: int) -> bytes:
    """The rows of a record for its unique key and each of its keys."""
    topic_hash = utf8_hash(topic + b"#")
    present = [key for key in (unique_key, *keys.split(b" ")) if key]
    return b"".join(ROW.pack(key_hash(topic_hash, key), offset, stored_ms) for key in present)


def found(index: IndexService, topic: str, key: str, count: int, begin: int, end: int) -> list[int]:
    """The newest offsets that a query of the index yields."""
    return index.find(topic, key, begin, end, count)


def test_hash_without_sign_is_javas() -> None:
    """Keys with a negative hash would be looked up in another slot than Java's."""
    assert positive_hash(-5) == 5
    assert positive_hash(-(1 << 31)) == 0
    assert positive_hash((1 << 31) - 1) == (1 << 31) - 1


@pytest.mark.parametrize(
    "key",
    ["k", "C000020200004E0E2F2A6903FA110000", "C000020200004E0E2F2A6903FA11", "x" * 24, "x" * 25, "x" * 500,
     "订单一二三四五六七八九十", "C000020200004E0E2F2A6903é", "C000020200004E0E2F2A690é0001"],
)  # fmt: skip
def test_every_key_is_found_under_javas_hash(tmp_path: Path, key: str) -> None:
    """The quick way to hash a key would differ from the real one for some keys."""
    index = service_of(tmp_path)
    for offset in (1000, 2000):  # the second time from the cache
        index.put(index_rows("主题T".encode(), key.encode(), b"", offset, 1_700_000_000_000))
    assert {entry[0] for entry in index.files[0].entries()} == {positive_hash(string_hash(f"主题T#{key}"))}
    assert found(index, "主题T", key, 10, 0, FOREVER) == [2000, 1000]
    index.close()


def test_the_unique_key_is_before_the_other_keys(tmp_path: Path) -> None:
    """A query by one of several keys would find nothing."""
    index = service_of(tmp_path)
    index.put(index_rows(b"T", b"id1", b"a b  c", 100, 5000))
    hashes = [positive_hash(string_hash(f"T#{key}")) for key in ("id1", "a", "b", "c")]
    assert [entry[0] for entry in index.files[0].entries()] == hashes
    index.put(index_rows(b"T", b"", b"a", 50, 5000))  # older than the newest: indexed already
    assert found(index, "T", "a", 10, 0, FOREVER) == [100]
    index.close()


def test_a_record_that_has_a_key_often_hides_no_other(tmp_path: Path) -> None:
    """A producer that repeats a key in one message would make older messages impossible to find."""
    index = service_of(tmp_path)
    index.put(index_rows(b"T", b"", b"k", 100, 5000))
    index.put(index_rows(b"T", b"k", b"k other k k", 200, 5000))
    index.put(index_rows(b"T", b"", b"k", 300, 5000))
    assert index.find("T", "k", 0, FOREVER, 3) == [300, 200, 100]
    index.close()


def test_full_file_is_followed_by_another(tmp_path: Path) -> None:
    """After twenty million keys nothing more would be found."""
    index = service_of(tmp_path, entries=10)
    for number in range(11):
        index.put(index_rows(b"T", b"id%d" % number, b"all", number * 100, 1000 + number * 1000))
    assert [file.next_entry for file in index.files] == [10, 10, 5]
    assert [file.inserts for file in index.files] == [9, 9, 4]
    assert index.full == index.files[:2]
    assert found(index, "T", "all", 64, 0, FOREVER) == list(range(1000, -1, -100))
    assert found(index, "T", "id4", 64, 0, FOREVER) == [400]
    assert index.files[1].begin_offset == 400  # its first record's unique key went into the file before
    assert sorted(file.path.name for file in index.files) == [file.path.name for file in index.files]
    index.close()


def test_query_is_bounded_by_time_and_count(tmp_path: Path) -> None:
    """An admin tool asking for the last hour would be given last week."""
    index = service_of(tmp_path)
    for number in range(100):
        index.put(index_rows(b"T", b"", b"k", number * 10, 1_000_000 + number * 1000))
    assert found(index, "T", "k", 5, 0, FOREVER) == [990, 980, 970, 960, 950]
    assert len(found(index, "T", "k", 1000, 0, FOREVER)) == 100
    assert found(index, "T", "k", 64, 1_010_000, 1_012_000) == [
        120,
        110,
        100,
        0,
    ]  # the time of entry 1 is unknown
    assert found(index, "T", "k", 64, 0, 998_999) == [0]
    assert found(index, "T", "other", 64, 0, FOREVER) == []
    assert index.newest == (1_099_000, 990)
    index.close()


def test_closed_index_is_read_and_continued(tmp_path: Path) -> None:
    """A restart would lose the keys of the file in use."""
    index = service_of(tmp_path)
    for number in range(50):
        index.put(index_rows(b"T", b"", b"k%d" % (number % 5), number, 1000))
    index.finish()
    index.close()
    again = service_of(tmp_path)
    assert again.load(clean=True, checkpoint_timestamp=0)
    again.put(index_rows(b"T", b"", b"k3", 50, 1000))
    assert found(again, "T", "k3", 64, 0, FOREVER) == [50, 48, 43, 38, 33, 28, 23, 18, 13, 8, 3]
    again.close()


def test_unfinished_file_is_deleted_after_a_crash(tmp_path: Path) -> None:
    """Slots that were never written would hide the entries of their file."""
    index = service_of(tmp_path, entries=10)
    for number in range(15):
        index.put(index_rows(b"T", b"", b"k", number, 1000 + number))
    index.write_entries()
    index.full[0].write_slots()
    index.close()
    again = service_of(tmp_path, entries=10)
    assert not again.load(clean=False, checkpoint_timestamp=1008)
    assert [file.end_timestamp for file in again.files] == [1008]
    assert len(list(tmp_path.iterdir())) == 1
    again.close()


def test_damaged_file_and_all_behind_it_are_rebuilt(tmp_path: Path) -> None:
    """A damaged index would stop the broker, or hide keys from queries."""
    index = service_of(tmp_path, entries=10)
    for number in range(25):
        index.put(index_rows(b"T", b"", b"k", number, 1000 + number))
    index.finish()
    index.close()
    with index.files[1].path.open("r+b") as file:
        file.truncate(100)
    again = service_of(tmp_path, entries=10)
    assert not again.load(clean=True, checkpoint_timestamp=0)
    assert len(again.files) == 1
    assert again.end_offset == 8
    again.destroy()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("garbage", [-1, -(2**31), 3, 2**31 - 1])
@pytest.mark.parametrize("hashes", [(17, 25), (17, 25, 25), (15, 25)])
def test_an_invalid_slot_costs_no_other_key(tmp_path: Path, garbage: int, hashes: tuple[int, ...]) -> None:
    """After power loss, keys of other slots would not be found any more, or a query would not end."""
    contents = []
    for way in ("one by one", "together"):
        file = IndexFile(OsDisk(), tmp_path / way, 10, 50)
        file.create(None)
        file.put(ROW.pack(5, 100, 1000))
        file.put(ROW.pack(7, 200, 1000))
        file.write_entries()
        file.write_slots()
        file.close()
        with file.path.open("r+b") as opened:
            opened.seek(40 + 4 * 5)
            opened.write(garbage.to_bytes(4, "big", signed=True))
        file = IndexFile(OsDisk(), tmp_path / way, 10, 50)
        file.load()
        offsets = [300 + number for number in range(len(hashes))]
        times = [61_000 * (number + 1) for number in range(len(hashes))]
        if way == "together":
            file.put(b"".join(map(ROW.pack, hashes, offsets, times)))
        else:
            for row in zip(hashes, offsets, times, strict=True):
                file.put(ROW.pack(*row))
        assert file.find(7, 0, FOREVER) == [200]
        for wanted in hashes:
            expected = [at for one, at in zip(hashes, offsets, strict=True) if one == wanted]
            assert file.find(wanted, 0, FOREVER) == expected[::-1]
        contents.append(file.entries())
        file.close()
    assert contents[0] == contents[1]


def test_a_disk_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A query would end with an error that no handler expects, and without the file's name."""

    class Broken(OsDisk):
        def pread(self, handle: int, size: int, position: int) -> bytes:
            raise OSError(errno.EIO, "no such sector")

    service = service_of(tmp_path)
    service.put(index_rows(b"T", b"", b"k", 1, 1000))
    service.finish()
    service.close()
    with pytest.raises(StoreError, match=rf"{service.files[0].path}: .*no such sector"):
        IndexFile(Broken(), service.files[0].path, 100, 400).load()


def test_an_index_without_files_finds_nothing(tmp_path: Path) -> None:
    """A client would get a time of the last update although the index is empty."""
    index = service_of(tmp_path)
    assert (found(index, "T", "k", 10, 0, FOREVER), index.newest) == ([], (0, 0))


def test_empty_index_takes_no_space(tmp_path: Path) -> None:
    """Every new broker would take 420 MB."""
    file = IndexFile(OsDisk(), tmp_path / "f", 5_000_000, 20_000_000)
    file.create(None)
    file.put(ROW.pack(5, 100, 1000))
    file.write_entries()
    assert (tmp_path / "f").stat().st_size == 420_000_040
    assert (tmp_path / "f").stat().st_blocks * 512 < 1 << 20
    file.close()


def test_impossible_headers_are_rejected(tmp_path: Path) -> None:
    """A flipped bit would make the broker read past the file."""
    index = service_of(tmp_path)
    index.put(index_rows(b"T", b"", b"k", 1, 1000))
    index.finish()
    index.close()
    path = index.files[0].path
    with path.open("r+b") as file:
        file.seek(36)
        file.write((401).to_bytes(4, "big"))
    with pytest.raises(StoreDamaged, match="counts 401 entries, more than maxIndexNum=400"):
        IndexFile(OsDisk(), path, 100, 400).load()


def test_names_increase_even_if_the_clock_does_not(tmp_path: Path) -> None:
    """A file would be overwritten, or sorted before an older one."""
    index = IndexService(OsDisk(), tmp_path, IndexConfig(slots=10, entries=2), lambda: 1_700_000_000_000)
    for number in range(4):
        index.put(index_rows(b"T", b"", b"k", number, 1000))
    names = [file.path.name for file in index.files]
    assert names[0] == index_file_name(1_700_000_000_000)
    assert names[0] == f"{datetime.fromtimestamp(1_700_000_000):%Y%m%d%H%M%S}000"  # noqa: DTZ006 as in Java
    assert [int(name) - int(names[0]) for name in names] == [0, 1, 2, 3]
    index.close()


def test_power_loss_while_files_are_deleted_leaves_the_oldest() -> None:
    """A missing file in the middle would hide its keys without notice."""
    root = Path("/index")
    disk = RecordingDisk()
    ticks = iter(range(1_700_000_000_000, 1_800_000_000_000, 7))
    index = IndexService(disk, root, IndexConfig(slots=10, entries=10), lambda: next(ticks))
    for number in range(50):
        index.put(index_rows(b"T", b"id%d" % number, b"", number * 100, 1000))
    index.finish()
    disk.make_durable()
    names = disk.list_dir(root)
    assert len(names) > 4
    left: list[list[str]] = []

    def lose_power(_: Operation) -> None:
        left.extend(disk.after_power_loss(Random(seed)).list_dir(root) for seed in range(20))

    disk.before = lose_power
    assert not index.delete_from(1500)
    index.destroy()
    assert [] in left
    assert all(found == names[: len(found)] for found in left)


@pytest.mark.parametrize("entries", [10, 400])
@pytest.mark.parametrize("is_written", [False, True])
def test_times_that_go_back_hide_nothing(tmp_path: Path, entries: int, is_written: bool) -> None:
    """Messages stored while the clock was set back, or before it was, would not be found by time."""
    index = service_of(tmp_path, entries=entries)
    times = [(5000 + n) * 1000 for n in range(30)] + [(1000 + n) * 1000 for n in range(30)]
    times += [(5010 + n) * 1000 for n in range(30)]
    for offset, time in enumerate(times):
        index.put(index_rows(b"T", b"", b"k", offset, time))
    if is_written:
        index.finish()
    for begin, end in ((0, FOREVER), (5_000_000, 5_009_000), (1_010_000, 1_020_000), (5_020_000, 5_025_000)):
        wanted = {offset for offset, time in enumerate(times) if begin <= time <= end}
        assert wanted <= set(found(index, "T", "k", 100, begin, end))
    assert len(found(index, "T", "k", 100, 5_001_000, 5_002_000)) <= 2 + 30 + len(index.files)
    index.close()


@pytest.mark.parametrize("part", ["all", "entries", "last entry", "slots and header"])
def test_a_file_that_a_crash_filled_with_zeros_is_rebuilt(tmp_path: Path, part: str) -> None:
    """Messages would not be found by their keys, without an error or a warning."""
    with MessageStore(small_config(tmp_path / "store")) as store:
        put(store, *range(500))  # two keys and a unique key each: several files
        store.flush(thorough=True)
        assert store.index is not None
        count = store.index.files[-1].next_entry
        shutil.copytree(tmp_path / "store", tmp_path / "crashed", ignore=shutil.ignore_patterns("lock"))
    config = small_config(tmp_path / "crashed")
    last = max(config.index_directory.iterdir())
    entries_at = HEADER_BYTES + 100 * SLOT_BYTES
    zeroed = {
        "all": (0, last.stat().st_size),
        "entries": (entries_at, last.stat().st_size),
        "last entry": (entries_at + (count - 1) * ENTRY_BYTES, last.stat().st_size),
        "slots and header": (0, entries_at),
    }
    begin, end = zeroed[part]
    with last.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))
    with MessageStore(config) as store:
        assert store.index is not None
        for number in range(500):
            assert len(store.index.find("T", f"k{number}", 0, FOREVER)) == 1, number
