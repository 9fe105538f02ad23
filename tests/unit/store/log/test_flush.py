"""A flush in its thread, while the broker deletes and creates files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy.errors import FlushFailed
from rocketpy_broker.store.files.checkpoint import CheckpointFile
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.log.flush import FlushPlan


class DeletingDisk(OsDisk):
    """Deletes each directory just before its flush."""

    def fsync_dir(self, path: Path) -> None:
        path.rmdir()
        super().fsync_dir(path)


class BrokenDisk(OsDisk):
    """Fails to flush an existing directory."""

    def fsync_dir(self, path: Path) -> None:
        raise FileNotFoundError(2, "the file system lost it", str(path))


def plan_for(directory: Path) -> FlushPlan:
    directory.mkdir(parents=True)
    return FlushPlan(directories={directory: None})


def test_a_topic_deleted_during_a_flush_does_not_stop_the_broker(tmp_path: Path) -> None:
    """Deleting a topic at the wrong moment would end the broker: a failed flush is final."""
    directory = tmp_path / "consumequeue" / "Deleted" / "2"
    disk = DeletingDisk()
    plan_for(directory).run(disk, CheckpointFile(disk, tmp_path / "checkpoint"))
    assert not directory.exists()


def test_an_existing_directory_that_cannot_be_flushed_fails_the_flush(tmp_path: Path) -> None:
    """Names of files would be lost by a power cut after the broker had promised to keep them."""
    disk = BrokenDisk()
    with pytest.raises(FlushFailed, match="lost it"):
        plan_for(tmp_path / "consumequeue" / "T" / "0").run(
            disk, CheckpointFile(disk, tmp_path / "checkpoint")
        )
