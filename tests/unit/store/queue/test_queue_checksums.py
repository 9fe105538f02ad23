"""A consume queue that has changed while the store was stopped must be noticed, and no other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from rocketpy.protocol.message.record import decode_all
from rocketpy_broker.store import MessageStore, RetentionConfig
from rocketpy_broker.store.queue import queue_table
from rocketpy_broker.store.queue.queue_checksums import (
    FileChecksum,
    QueueChecksums,
    decode_checksums,
    encode_checksums,
)
from rocketpy_broker.store.recovery import recovery
from rocketpy_broker.store.upkeep.cleaner import Cleaner
from tests.store_checks import check_store
from tests.unit.store.helpers import bodies, kill, put, small_config

COUNT = 180  # four files of 50 units
ALL = [f"body {number}".encode() for number in range(COUNT)]


def stopped(root: Path, count: int = COUNT) -> Path:
    """A store of one queue that was stopped cleanly; returns the queue's directory."""
    with MessageStore(small_config(root)) as store:
        put(store, *range(count))
    return root / "consumequeue" / "T" / "0"


def started(root: Path) -> tuple[MessageStore, list[str]]:
    """The store, open, and the notes of its start about changed queues."""
    store = MessageStore(small_config(root))
    return store, [note for note in store.open().notes if "differs from its checksum" in note]


def flip(path: Path, at: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_is_found_and_repaired(tmp_path: Path, seed: int) -> None:
    """Consumers would get a wrong message, or miss a message with their tag."""
    random = Random(seed)
    directory = stopped(tmp_path)
    number = random.randrange(COUNT)
    path = directory / f"{number // 50 * 1000:020d}"
    flip(path, number % 50 * 20 + random.randrange(20), random.randrange(8))
    store, notes = started(tmp_path)
    assert notes == ["queue T/0 differs from its checksum of the last stop; rebuilding it"]
    assert bodies(store) == ALL
    assert check_store(store).problems == []
    store.close()
    store, notes = started(tmp_path)
    assert notes == []
    store.close()


@pytest.mark.parametrize(
    "lose",
    [
        shutil.rmtree,
        lambda directory: shutil.rmtree(directory.parent),
        lambda directory: (directory / f"{3000:020d}").unlink(),
        lambda directory: (directory / f"{1000:020d}").unlink(),
        lambda directory: (directory / f"{3000:020d}").write_bytes(bytes(1000)),
    ],
)
def test_a_lost_file_is_detected_and_rebuilt(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    """The queue would end earlier, and give its numbers to other messages."""
    directory = stopped(tmp_path)
    with MessageStore(small_config(tmp_path)) as store:
        put(store, *range(2000), topic="Other")  # recovery reads only the log's end
    lose(directory)
    store, notes = started(tmp_path)
    assert len(notes) == 1
    assert bodies(store) == ALL
    assert check_store(store).problems == []
    store.close()


def expire(store: MessageStore) -> None:
    """Delete all files of the log but the last."""
    store.flush(thorough=True)
    now = store.commit_log.files.mapped_files[-1].modified_ms() + 73 * 3_600_000
    assert Cleaner(store, use=lambda _: 0.99).run(now) > 0
    assert len(store.commit_log.files.mapped_files) == 1


@pytest.mark.parametrize("rest", [0, 5])
@pytest.mark.parametrize("number", [152, COUNT - 1])
def test_a_damaged_queue_whose_messages_expired_keeps_its_offsets(
    tmp_path: Path, number: int, rest: int
) -> None:
    """A group with offset 180 would not get the next 180 messages."""
    config = small_config(tmp_path, retention=RetentionConfig(max_used_percent=0))
    with MessageStore(config) as store:
        put(store, *range(COUNT))
        put(store, *range(800), topic="Other")
        put(store, *range(COUNT, COUNT + rest))
        expire(store)
    flip(tmp_path / "consumequeue" / "T" / "0" / f"{3000:020d}", number % 50 * 20 + 15, 2)
    store, notes = started(tmp_path)
    assert len(notes) == 1
    assert store.max_offset_in_queue("T", 0) == COUNT + rest
    put(store, 1000)
    found = decode_all(store.get_message("T", 0, COUNT, 32).body)
    assert [record.flag for record in found] == [*range(COUNT, COUNT + rest), 1000]
    assert check_store(store).problems == []
    store.close()
    store, notes = started(tmp_path)
    assert notes == []
    store.close()


def test_checksums_of_another_stop_are_ignored(tmp_path: Path) -> None:
    """A healthy store would be read from its first file, and an operator alarmed."""
    stopped(tmp_path)
    old = (tmp_path / "queuesums").read_bytes()
    with MessageStore(small_config(tmp_path)) as store:
        put(store, *range(COUNT, 190))
    (tmp_path / "queuesums").write_bytes(old)
    for _ in range(2):
        store, notes = started(tmp_path)
        assert notes == []
        put(store, 1)
        kill(store)
    store, notes = started(tmp_path)
    assert notes == []
    store.close()
    flip(tmp_path / "queuesums", 20, 3)
    store, notes = started(tmp_path)
    assert notes == []
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_no_false_alarm(tmp_path: Path, seed: int) -> None:
    """A queue that is cut, dropped, recovered after a kill or continued would look damaged."""
    random = Random(seed)
    store, notes = started(tmp_path)
    for number in range(60):
        what = random.random()
        topic, queue_id = random.choice("TU"), random.randrange(2)
        queue = store.queues.queues.get((topic, queue_id))
        if what < 0.6 or queue is None:
            put(store, *range(number, number + random.choice((1, 30, 90))), topic=topic, queue_id=queue_id)
        elif what < 0.7:
            store.flush(thorough=True)
        elif what < 0.75:
            store.drop_queue(topic, queue_id)
        elif what < 0.85:
            kill(store)
            store, notes = started(tmp_path)
        else:
            store.close()
            store, notes = started(tmp_path)
        assert notes == []
    store.close()


def test_unverified_queues_keep_their_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that verifies part of a large store would forget the checksums of the rest."""
    directory = stopped(tmp_path)
    monkeypatch.setattr(recovery, "CHECKSUM_BYTES_MAX", 1700)  # of the last file and the one before
    monkeypatch.setattr(queue_table, "CHECKSUM_BYTES_MAX", 0)
    flip(directory / f"{0:020d}", 8, 0)
    store, notes = started(tmp_path)
    assert notes == []
    store.close()
    monkeypatch.undo()
    store, notes = started(tmp_path)
    assert len(notes) == 1
    assert bodies(store) == ALL
    store.close()


def test_checksums_are_encoded_and_decoded() -> None:
    """A damaged file of checksums would be believed, or stop a start."""
    checksums = [FileChecksum("Täglich", 3, 1000, 980, 0xFFFFFFFF), FileChecksum("T", 0, 0, 1000, 0)]
    data = encode_checksums(checksums, 77)
    assert decode_checksums(data, 77) == checksums
    assert decode_checksums(data, 78) == []
    for end in range(len(data)):
        assert decode_checksums(data[:end], 77) == []


def test_checksums_follow_the_writes() -> None:
    """A checksum of the wrong bytes would reject a healthy queue."""
    checksums = QueueChecksums()
    checksums.wrote(1000, 0, b"ab")
    checksums.wrote(1000, 2, b"c")
    abc = FileChecksum("", 0, 1000, 3, 0x352441C2)
    assert checksums.get(1000) == (abc.covered, abc.crc)
    checksums.wrote(1000, 9, b"d")
    assert checksums.get(1000) is None
    checksums.wrote(1000, 0, b"abc")
    checksums.forget_from(1003)
    assert checksums.get(1000) == (abc.covered, abc.crc)
    checksums.forget_from(1002)
    assert checksums.get(1000) is None
    checksums.set(1000, 1000, 7)
    checksums.forget_from(2000)
    assert checksums.get(1000) == (1000, 7)
    checksums.forget_from(1999)
    assert checksums.get(1000) is None


def test_a_queue_at_a_senseless_place_keeps_no_store_from_a_clean_stop() -> None:
    """One damaged queue offset in the log made each stop end with an overflow, and look like a kill."""
    good = FileChecksum("T", 0, 0, 20, 1)
    assert decode_checksums(encode_checksums([FileChecksum("T", 1, 2**66, 20, 1), good], 77), 77) == [good]
