"""A crash must cost the unflushed tail, not a walk through the whole log; and never a message or a key."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rocketpy_broker.store import IndexConfig, MessageStore, RecoveryConfig, StoreConfig
from rocketpy_broker.store.files.checkpoint import Checkpoint, DispatchProgress
from tests.crash.disk import RecordingDisk
from tests.store_checks import check_store
from tests.unit.store.helpers import index_content, kill, message, put, queue_content, small_config


def _config(root: Path, entries: int = 5000, **changes: Any) -> StoreConfig:
    return small_config(root, index=IndexConfig(slots=100, entries=entries), **changes)


Content = tuple[dict[str, list[tuple[int, int, int, int]]], list[list[tuple[int, int, int, int]]]]


def _content(store: MessageStore) -> Content:
    assert store.index is not None
    return queue_content(store), [index_content(file) for file in store.index.files]


def _killed(root: Path, *, entries: int = 5000, flushed: int = 300, more: int = 40) -> Content:
    """The content of a killed store with this many flushed messages and more unflushed ones."""
    store = MessageStore(_config(root, entries))
    store.open()
    for number in range(flushed):
        put(store, number, queue_id=number % 2)
    store.flush(thorough=True)
    for number in range(flushed, flushed + more):
        put(store, number, queue_id=number % 2)
    content = _content(store)
    kill(store)
    return content


@pytest.mark.parametrize("entries", [5000, 400])
def test_only_the_tail_is_dispatched_twice(
    tmp_path: Path, entries: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each start after a crash would dispatch the whole log again, or lose the keys of the last messages."""
    before = _killed(tmp_path, entries=entries)
    store = MessageStore(_config(tmp_path, entries))
    store.open()
    assert "rebuilt" not in caplog.text
    assert _content(store) == before
    assert len(store.query_message("T", "k299", 10, 0, 1 << 62).records) == 1
    assert check_store(store).problems == []
    put(store, 1000)
    store.close()
    with MessageStore(_config(tmp_path, entries)) as again:
        assert check_store(again).problems == []


def test_without_the_progress_all_is_rebuilt_to_the_same(tmp_path: Path) -> None:
    """A store without progress, such as one of RocketMQ, would lose messages or keys."""
    before = _killed(tmp_path)
    with MessageStore(_config(tmp_path, recovery=RecoveryConfig(use_progress=False))) as store:
        assert _content(store) == before


@pytest.mark.parametrize("victim", ["consumequeue/T/1", "consumequeue", "index"])
def test_missing_files_are_rebuilt(tmp_path: Path, victim: str) -> None:
    """A consume queue or index that was deleted would stay empty."""
    before = _killed(tmp_path)
    shutil.rmtree(tmp_path / victim)
    with MessageStore(_config(tmp_path)) as store:
        assert _content(store) == before
        assert check_store(store).problems == []


def test_an_index_file_that_another_broker_finished_is_not_continued(tmp_path: Path) -> None:
    """Recovery would write into an index file that a Java broker completed, and lose its keys."""
    _killed(tmp_path)
    (name,) = (tmp_path / "index").iterdir()
    with name.open("r+b") as file:  # its header counts entries: not the file that the checkpoint means
        file.seek(36)
        file.write((7).to_bytes(4, "big"))
    with MessageStore(_config(tmp_path)) as store:
        assert check_store(store).problems == []


def test_progress_under_a_wrong_checksum_is_ignored() -> None:
    """QUIRKS 47: a Java broker writes the times of the page and leaves the rest."""
    checkpoint = Checkpoint(1, 2, 3, 4, 5, tail_offset=6, progress=DispatchProgress(7, 8, 9))
    page = checkpoint.encode()
    assert Checkpoint.decode(page) == checkpoint
    assert Checkpoint.decode(page[:100] + b"\x01" + page[101:]).progress is None
    assert Checkpoint.decode(page[:7] + b"\x09" + page[8:]).progress is None


def test_the_checkpoint_has_the_time_of_the_newest_message(tmp_path: Path) -> None:
    """A Java broker would read more of the log than necessary, or begin after unflushed records."""
    times = iter(range(1_700_000_000_000, 1_800_000_000_000, 1000))
    store = MessageStore(_config(tmp_path), clock=lambda: next(times))
    store.open()
    for number in range(5):
        store.append(message(number))
    store.write_out()
    store.dispatch()
    newest = store.store_timestamp("T", 0, 4)
    store.flush(thorough=True)
    checkpoint = Checkpoint.decode((tmp_path / "checkpoint").read_bytes())
    assert (checkpoint.physic_timestamp, checkpoint.logics_timestamp) == (newest, newest)
    assert newest > store.store_timestamp("T", 0, 0)
    store.close()


def test_flushed_files_exist_after_power_loss() -> None:
    """The whole index would be rebuilt from a log that may have gigabytes."""
    root = Path("/store")
    disk = RecordingDisk()
    store = MessageStore(_config(root, 100), disk=disk)
    store.open()
    try:
        for number in range(200):
            put(store, number, queue_id=number % 2)
        store.flush(thorough=True)
        left = disk.after_power_loss(None)
        for directory in ("index", "commitlog", "consumequeue/T/0", "consumequeue/T/1"):
            names = disk.list_dir(root / directory)
            assert names
            assert left.list_dir(root / directory) == names, directory
    finally:
        kill(store)
