"""The recordings that other tests compare with, and their loader."""

from pathlib import Path

import pytest

from tests import golden_data

RECORDINGS = [
    (folder, name)
    for folder in ("remoting", "ha", "dledger", "clients", "pop")
    for name in golden_data.scenarios(folder)
]


@pytest.mark.parametrize(("folder", "name"), RECORDINGS)
def test_recorded_frames_are_whole(folder: str, name: str) -> None:
    """A damaged recording would be mistaken for a defect of the codec."""
    for info, data in golden_data.frames(name, folder):
        assert int.from_bytes(data[:4], "big") == info["length"] - 4 == len(data) - 4


@pytest.mark.parametrize("name", [*golden_data.store_names(), "n1-final"])
def test_stores_are_unpacked_as_they_were(name: str, tmp_path: Path) -> None:
    """Recovery would be tested with directories that no broker wrote."""
    golden_data.extract_store(name, tmp_path)
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    assert (tmp_path / "abort").exists() == golden_data.parsed(name)["abortPresent"]
    for file in golden_data.parsed(name).get("commitlog", []):
        assert (tmp_path / "commitlog" / file["file"]).stat().st_size == file["size"]


def test_an_unknown_store_names_the_existing_ones() -> None:
    """The author of a test would have to search for a typing error."""
    with pytest.raises(FileNotFoundError, match="torn-recovered"):
        golden_data.parsed("tron")
