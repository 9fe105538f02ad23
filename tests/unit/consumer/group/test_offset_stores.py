"""LocalOffsets: the offsets of a broadcasting member in a file."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from rocketpy.consumer.group.offset_stores import LocalOffsets, local_offsets_file
from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import MessageQueue
from tests.waiting import LIMIT_S, until

FIRST, SECOND = (MessageQueue("T", "b", number) for number in range(2))


async def test_offsets_are_found_after_a_restart(tmp_path: Path) -> None:
    """A broadcasting member would start from the beginning, or lose the offsets of other queues."""
    file = local_offsets_file(tmp_path, "10.0.0.1@one", "g")
    assert file == tmp_path / "10.0.0.1@one" / "g" / "offsets.json"
    offsets = LocalOffsets(file)
    assert await offsets.read(FIRST) is None
    await offsets.write({FIRST: 3, SECOND: 4})
    await offsets.write({FIRST: 5})
    again = LocalOffsets(file)
    assert [await again.read(queue) for queue in (FIRST, SECOND)] == [5, 4]
    assert local_offsets_file(None, "c", "g").parts[-4:] == (".rocketmq_offsets", "c", "g", "offsets.json")


async def test_an_unchanged_offset_is_not_written(tmp_path: Path) -> None:
    """Every commit of an idle member would cost a flush of the disk."""
    file = tmp_path / "offsets.json"
    offsets = LocalOffsets(file)
    await offsets.write({FIRST: 3})
    file.unlink()
    await offsets.write({FIRST: 3})
    assert not file.exists()


async def test_a_damaged_file_falls_back_to_the_previous_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn write would send a broadcasting member back to the beginning."""
    file = tmp_path / "offsets.json"
    offsets = LocalOffsets(file)
    for offset in (1, 2):
        await offsets.write({FIRST: offset})
    file.write_bytes(b'{"offsetTable":{{')
    assert await LocalOffsets(file).read(FIRST) == 1
    assert str(file) in caplog.text
    assert file.with_name("offsets.json.damaged").exists()
    caplog.clear()
    assert await LocalOffsets(file).read(FIRST) == 1
    assert f"{file} is missing; using the older offsets" in caplog.text
    await LocalOffsets(file).write({FIRST: 3})
    assert await LocalOffsets(file.with_name("offsets.json.bak")).read(FIRST) == 1, "it was replaced"


async def test_a_failed_write_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A member with a full disk would stop, or lose its offsets without a report."""
    (tmp_path / "file").touch()
    offsets = LocalOffsets(tmp_path / "file" / "offsets.json")  # its directory cannot be created
    await offsets.write({FIRST: 1})
    assert "offsets were not written" in caplog.text


async def test_the_next_write_repeats_one_that_failed(tmp_path: Path) -> None:
    """The offsets of an idle member would not be stored, although the disk has room again."""
    file = tmp_path / "offsets.json"
    offsets = LocalOffsets(file)
    obstacle = tmp_path / "offsets.json.tmp"
    obstacle.mkdir()  # the new version cannot be written
    await offsets.write({FIRST: 7})
    assert not file.exists()
    obstacle.rmdir()
    await offsets.write({FIRST: 7})
    assert await LocalOffsets(file).read(FIRST) == 7


@pytest.mark.parametrize("backup", ["missing", "damaged"])
async def test_offsets_that_cannot_be_read_are_not_taken_for_missing(tmp_path: Path, backup: str) -> None:
    """A member with a damaged file would begin at `consume_from`, and overwrite the file."""
    file = tmp_path / "offsets.json"
    file.write_bytes(b'{"offsetTable":{{')
    if backup == "damaged":
        file.with_name("offsets.json.bak").write_bytes(b"")
    offsets = LocalOffsets(file)
    with pytest.raises(ConfigInvalid, match="can be read"):
        await offsets.read(FIRST)
    await offsets.write({FIRST: 1})
    assert file.read_bytes() == b'{"offsetTable":{{'


async def test_an_error_of_the_operating_system_is_an_error_of_the_store(tmp_path: Path) -> None:
    """A member's rebalance would fail for all its queues, since it expects only errors of this library."""
    file = tmp_path / "offsets.json"
    file.mkdir()  # cannot be read, even by root
    offsets = LocalOffsets(file)
    with pytest.raises(ConfigInvalid, match="Is a directory"):
        await offsets.read(FIRST)
    file.rmdir()
    assert await offsets.read(FIRST) is None


async def test_a_first_read_beside_a_write_keeps_the_written_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two loads at the same time, the later one would bring back older offsets."""
    file = tmp_path / "offsets.json"
    await LocalOffsets(file).write({FIRST: 1, SECOND: 1})
    offsets = LocalOffsets(file)
    release, loads = threading.Event(), []
    load = offsets._load

    def load_slowly() -> dict[MessageQueue, int]:
        loads.append(load())
        if len(loads) == 1:
            release.wait(LIMIT_S)
        return loads[-1]

    monkeypatch.setattr(offsets, "_load", load_slowly)
    reading = asyncio.ensure_future(offsets.read(FIRST))
    await until(lambda: loads)
    writing = asyncio.ensure_future(offsets.write({FIRST: 2}))
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(reading, writing)
    assert len(loads) == 1
    assert [await offsets.read(queue) for queue in (FIRST, SECOND)] == [2, 1]


async def test_a_file_that_another_process_writes_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two broadcasting processes without an instance_name would skip messages after a restart."""
    file = tmp_path / "offsets.json"
    one, other = LocalOffsets(file), LocalOffsets(file)
    await one.write({FIRST: 1})
    await one.write({FIRST: 2})
    assert await other.read(FIRST) == 2
    assert caplog.text == ""
    await other.write({FIRST: 9})
    assert caplog.text == ""  # it may be the next process, after a restart
    await one.write({FIRST: 3})
    await one.write({FIRST: 4})
    assert caplog.text.count(f"another process writes {file}, too") == 1
