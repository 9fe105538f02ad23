"""Ledger files that DLedger 0.1 wrote are decoded, and encoding them gives the same bytes."""

from pathlib import Path

import pytest

from rocketpy_broker.replication.dledger.core.entry import (
    Blank,
    Entry,
    decode_entry,
    decode_index_unit,
    encode_blank,
    encode_entry,
    encode_index_unit,
    next_pos,
)
from rocketpy_broker.replication.dledger.storage.state_files import (
    decode_checkpoint,
    decode_term,
    encode_checkpoint,
    encode_term,
)
from tests import golden_data

STORES = golden_data.store_names("dledger")
FILE_BYTES = 65536


def _entries(data: bytes, file_start: int) -> tuple[list[Entry], int]:
    """The entries of a data file, and where they end in it."""
    entries: list[Entry] = []
    at = 0
    while at + 8 < len(data) and data[at : at + 4] != bytes(4):
        found = decode_entry(data, at, file_start + at)
        if isinstance(found, Blank):
            assert at + found.size == len(data)
            assert data[at : at + 8] == encode_blank(found.size)
            return entries, at
        entries.append(found)
        at += found.size
    return entries, at


@pytest.mark.parametrize("store", STORES)
def test_data_files_are_read_and_written_as_recorded(store: str, tmp_path: Path) -> None:
    """QUIRKS 62: a Java peer would reject rocketpy's files, or the reverse."""
    root = golden_data.extract_store(store, tmp_path)
    recorded = golden_data.parsed(store)["dledger"]
    count = 0
    for file in recorded["data"]:
        data = (root / recorded["dir"] / "data" / file["file"]).read_bytes()
        entries, end = _entries(data, int(file["file"]))
        assert b"".join(map(encode_entry, entries)) == data[:end]
        theirs_whole = [found for found in file["entries"] if "blankMagic" not in found]
        for ours, theirs in zip(entries, theirs_whole, strict=True):
            assert (ours.index, ours.term, ours.pos, ours.size) == (
                theirs["index"],
                theirs["term"],
                theirs["pos"],
                theirs["size"],
            )
            assert (ours.magic, ours.channel, ours.chain_crc, ours.body_crc) == (1, 0, 0, 0)
            assert ours == Entry.of(ours.index, ours.term, ours.pos, ours.body)
            assert theirs["message"]["physicalOffset"] == ours.pos + 48
        count += len(entries)
    assert count > 149


@pytest.mark.parametrize("store", STORES)
def test_entries_have_the_positions_of_this_code(store: str, tmp_path: Path) -> None:
    """A follower would reject a Java leader's entry at the end of a file."""
    root = golden_data.extract_store(store, tmp_path)
    recorded = golden_data.parsed(store)["dledger"]
    end = 0
    for file in recorded["data"]:
        data = (root / recorded["dir"] / "data" / file["file"]).read_bytes()
        for entry in _entries(data, int(file["file"]))[0]:
            assert next_pos(end, entry.size, FILE_BYTES) == entry.pos
            end = entry.end_pos
    assert end > FILE_BYTES


@pytest.mark.parametrize("store", STORES)
def test_index_units_are_read_and_written_as_recorded(store: str, tmp_path: Path) -> None:
    """QUIRKS 63: entries would not be found by their index."""
    root = golden_data.extract_store(store, tmp_path)
    recorded = golden_data.parsed(store)["dledger"]
    entries = {
        entry.index: entry
        for file in recorded["data"]
        for entry in _entries(
            (root / recorded["dir"] / "data" / file["file"]).read_bytes(), int(file["file"])
        )[0]
    }
    path = root / recorded["dir"] / "index" / recorded["index"][0]["file"]
    with path.open("rb") as file:
        data = file.read(32 * (len(entries) + 1))
    for index, entry in entries.items():
        unit = decode_index_unit(data, index * 32)
        assert unit is not None
        assert (unit.magic, unit.pos, unit.size, unit.index, unit.term) == (
            1,
            entry.pos,
            entry.size,
            index,
            entry.term,
        )
        assert data[index * 32 : index * 32 + 32] == encode_index_unit(entry)
    assert decode_index_unit(data, 32 * len(entries)) is None
    assert path.stat().st_size == 167772160


@pytest.mark.parametrize("store", STORES)
def test_state_files_are_read_and_written_as_recorded(store: str, tmp_path: Path) -> None:
    """QUIRKS 58: a peer would lose its vote by a restart."""
    root = golden_data.extract_store(store, tmp_path) / golden_data.parsed(store)["dledger"]["dir"]
    for name in ("currterm", "currterm.bak"):
        data = (root / name).read_bytes()
        assert encode_term(decode_term(data)) == data
    for name in ("checkpoint", "checkpoint.bak"):
        data = (root / name).read_bytes()
        assert encode_checkpoint(decode_checkpoint(data)) == data


def test_the_values_of_the_state_files(tmp_path: Path) -> None:
    """A vote could be read as no vote, and still be written in the same form."""
    leader = golden_data.extract_store("n1-uncommitted-tail", tmp_path / "n1") / "dledger-n1"
    assert decode_term((leader / "currterm").read_bytes()) == (0, "n1")
    assert decode_checkpoint((leader / "checkpoint").read_bytes()) == (149, 150)
    follower = golden_data.extract_store("n0-final", tmp_path / "n0") / "dledger-n0"
    assert decode_term((follower / "currterm").read_bytes()) == (1, "n2")
    assert decode_term((follower / "currterm.bak").read_bytes()) == (1, None)
