"""Finding lost sectors of a log, which distinguish a torn tail from damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.log.log_scan import SECTOR_BYTES, has_lost_sector
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue

MIB = 1 << 20


@pytest.mark.parametrize(
    "lost", [None, 5 * MIB, 8 * MIB - SECTOR_BYTES, 8 * MIB, 13 * MIB, 24 * MIB - SECTOR_BYTES]
)
@pytest.mark.parametrize("start", [3 * MIB + 100, 4 * MIB, 5 * MIB])
def test_a_lost_sector_is_found_wherever_it_is(tmp_path: Path, start: int, lost: int | None) -> None:
    """After power loss a broker with much unflushed data would refuse to start, or never finish its start."""
    data = bytearray(b"x" * (24 * MIB))
    if lost is not None:
        data[lost : lost + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    for at in (0, 12 * MIB):
        (tmp_path / f"{at:020}").write_bytes(data[at : at + 12 * MIB])
    files = MappedFileQueue(OsDisk(), tmp_path, 12 * MIB)
    files.load()
    assert has_lost_sector(files, start, 24 * MIB) is (lost is not None)
    if lost is not None:
        assert not has_lost_sector(files, start, lost)
        assert not has_lost_sector(files, lost + SECTOR_BYTES, 24 * MIB)
    files.close()


@pytest.mark.parametrize(
    ("first", "count", "lost"),
    [
        (0, 1023, True),
        (1, 1022, False),
        (1, 1023, True),
        (1024, 100, True),
        (1025, 99, False),
        (1023, 101, True),
    ],
)
def test_only_a_whole_sector_of_zeros_is_lost(tmp_path: Path, first: int, count: int, lost: bool) -> None:
    """A record with zeros would count as damage, and a broker refuse to start."""
    data = bytearray(b"x" * 1124)
    data[first : first + count] = bytes(count)
    (tmp_path / f"{0:020}").write_bytes(data)
    files = MappedFileQueue(OsDisk(), tmp_path, 1124)
    files.load()
    assert has_lost_sector(files, 0, 1124) is lost
    files.close()
