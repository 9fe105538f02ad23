"""A store as source and target of replication: which records may be sent, and which offsets are reported."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpy_broker.replication.ha.log import EpochFile, StoreSource, StoreTarget
from rocketpy_broker.store import FlushConfig, FlushDiskType, MessageStore
from tests.unit.store.helpers import put, small_config

FILE_BYTES = 65536


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore(small_config(tmp_path)) as store:
        yield store


def target_of(store: MessageStore) -> StoreTarget:
    return StoreTarget(store, EpochFile(store.disk, store.config.root / "epochs.json"))


def test_an_empty_store_has_no_tail(store: MessageStore) -> None:
    """A new slave could not join."""
    assert target_of(store).tail(100) == b""


def test_the_tail_is_of_the_last_file_only(store: MessageStore) -> None:
    """A slave would request bytes that its master had in a deleted file."""
    while len(store.commit_log.files.mapped_files) < 2:
        put(store, 1)
    put(store, *range(20))
    last = store.commit_log.files.mapped_files[-1]
    written = last.read(0, last.wrote)
    assert last.start == FILE_BYTES
    target = target_of(store)
    assert target.tail(10) == written[-10:]
    assert target.tail(len(written)) == written
    assert target.tail(FILE_BYTES) == written


@pytest.mark.parametrize(("kind", "waits"), [("SYNC_FLUSH", True), ("ASYNC_FLUSH", False)])
def test_unflushed_records_are_sent_only_if_configured(tmp_path: Path, kind: str, *, waits: bool) -> None:
    """A slave would have records that power loss took from its master, or lag behind it."""
    flush = FlushConfig(disk_type=FlushDiskType[kind])
    with MessageStore(small_config(tmp_path, flush=flush)) as store:
        source = StoreSource(store, EpochFile(store.disk, tmp_path / "epochs.json"))
        put(store, 1, 2, 3)
        assert source.max_offset > 0
        assert source.ready_offset == (0 if waits else source.max_offset)
        store.flush(thorough=True)
        assert source.ready_offset == source.max_offset
