"""Checkpoint, state files and settings: what a crash or a full disk leaves of them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from rocketpy.errors import ConfigInvalid, DiskFull, StoreDamaged
from rocketpy_broker.store import CommitLogConfig, ConsumeQueueConfig, StoreConfig
from rocketpy_broker.store.files.checkpoint import CHECKPOINT_BYTES, Checkpoint, CheckpointFile
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.files.state_file import load_state, save_state
from tests.unit.store.faulty_disk import FaultyDisk


def test_checkpoint_keeps_javas_fields_in_place(tmp_path: Path) -> None:
    """A Java broker would recover from the wrong file."""
    checkpoint = Checkpoint(
        111, 222, 333, flushed_offset=444, dispatched_offset=555, log_end=666, index_files=2
    )
    file = CheckpointFile(OsDisk(), tmp_path / "checkpoint")
    assert file.load() == Checkpoint()
    file.save(checkpoint)
    file.close()
    data = (tmp_path / "checkpoint").read_bytes()
    assert len(data) == CHECKPOINT_BYTES
    assert [int.from_bytes(data[at : at + 8], "big") for at in (0, 8, 16)] == [111, 222, 333]
    assert file.load() == checkpoint
    file.close()


def test_only_a_truncated_log_lowers_offsets_of_the_checkpoint(tmp_path: Path) -> None:
    """An older checkpoint would name deleted files; after a truncation, higher offsets would be wrong."""
    file = CheckpointFile(OsDisk(), tmp_path / "checkpoint")
    file.load()
    older = Checkpoint(flushed_offset=100, dispatched_offset=90, min_offset=10)
    file.advance_flushed_offset(200)
    file.advance_min_offset(50)
    file.save(older)
    assert Checkpoint.decode((tmp_path / "checkpoint").read_bytes()) == Checkpoint(
        flushed_offset=200, dispatched_offset=90, min_offset=50
    )
    file.truncate(older)
    assert Checkpoint.decode((tmp_path / "checkpoint").read_bytes()) == older
    file.save(older)
    assert Checkpoint.decode((tmp_path / "checkpoint").read_bytes()) == older
    file.close()


def test_checkpoint_of_a_java_broker_has_no_offsets() -> None:
    """Offsets from before a Java broker used the store would be believed."""
    ours = Checkpoint(111, 222, 333, flushed_offset=444).encode()
    assert Checkpoint.decode((999).to_bytes(8, "big") + ours[8:]) == Checkpoint(999, 222, 333)
    assert Checkpoint.decode(ours[:24]) == Checkpoint(111, 222, 333)
    assert Checkpoint.decode(b"") == Checkpoint()
    assert Checkpoint(10_000, 9_000).min_timestamp == 6_000
    assert Checkpoint(10, 9_000).min_timestamp == 0


@pytest.mark.parametrize("fail_at", range(1, 8))
def test_a_state_file_is_old_or_new_after_any_failure(tmp_path: Path, fail_at: int) -> None:
    """A full disk would cost the topics or the consumer offsets."""
    path = tmp_path / "config" / "topics.json"
    save_state(OsDisk(), path, b'{"n": 1}')
    save_state(OsDisk(), path, b'{"n": 2}')
    assert path.with_name("topics.json.bak").read_bytes() == b'{"n": 1}'
    disk = FaultyDisk(fail_at)
    with contextlib.suppress(DiskFull):
        save_state(disk, path, b'{"n": 3}')
    assert load_state(OsDisk(), path, json.loads).value in ({"n": 2}, {"n": 3})
    save_state(OsDisk(), path, b'{"n": 4}')
    assert load_state(OsDisk(), path, json.loads) == ({"n": 4}, False)


def test_backup_is_used_when_the_file_is_lost_or_broken(tmp_path: Path) -> None:
    """4.6.0 may leave the file missing when it is killed; its offsets would start from nothing."""
    path = tmp_path / "topics.json"
    assert load_state(OsDisk(), path, json.loads) == (None, False)
    save_state(OsDisk(), path, b"[1]")
    save_state(OsDisk(), path, b"[2]")
    path.unlink()
    assert load_state(OsDisk(), path, json.loads) == ([1], True)
    path.write_bytes(b"[2")
    assert load_state(OsDisk(), path, json.loads) == ([1], True)
    assert path.with_name("topics.json.damaged").read_bytes() == b"[2"
    save_state(OsDisk(), path, b"[3]")
    assert path.with_name("topics.json.bak").read_bytes() == b"[1]", "the damaged file replaced it"
    path.write_bytes(b"[3")
    path.with_name("topics.json.bak").write_bytes(b"")
    with pytest.raises(StoreDamaged, match=r"topics\.json.*topics\.json\.bak.*restore"):
        load_state(OsDisk(), path, json.loads)


def test_settings_are_checked_where_they_are_made(tmp_path: Path) -> None:
    """A wrong setting would show as a damaged store later."""
    assert ConsumeQueueConfig(segment_bytes=1001).segment_bytes == 1020
    assert CommitLogConfig().segment_bytes == 1 << 30
    with pytest.raises(ConfigInvalid, match="mappedFileSizeCommitLog is 100"):
        CommitLogConfig(segment_bytes=100)
    with pytest.raises(ConfigInvalid, match="store_host has 6 bytes"):
        StoreConfig(root=tmp_path, store_host=bytes(6))
    with pytest.raises(ConfigInvalid, match="messageDelayLevel has '5x'"):
        StoreConfig(root=tmp_path, delay_levels="1s 5x")
