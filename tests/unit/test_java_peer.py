"""How jars and drivers for the interop cases are prepared; no Java is needed here."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tests.interop.java_peer import made_once

FILES = 200


def _make(folder: Path) -> None:
    with (folder.parent.parent / "makers").open("a") as makers:
        makers.write(f"{os.getpid()}\n")
    for number in range(FILES):
        (folder / f"{number}.jar").write_text("jar")


def _prepare(folder: Path, together: Barrier) -> None:
    together.wait()
    made_once(folder, "recipe", _make)
    assert len(list(folder.glob("*.jar"))) == FILES


def test_processes_that_prepare_at_once_share_one_result(tmp_path: Path) -> None:
    """Interop cases would find half of the jars, as two test processes resolve them into the same folder."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(4)
    processes = [context.Process(target=_prepare, args=(tmp_path / "jars", together)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert len((tmp_path / "makers").read_text().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jars", "jars.lock", "makers"]


def test_a_failed_preparation_leaves_the_previous_state(tmp_path: Path) -> None:
    """A lost connection while jars are resolved would leave a folder that is taken as whole."""
    folder = tmp_path / "jars"

    def fail(scratch: Path) -> None:
        (scratch / "half.jar").touch()
        raise RuntimeError("Maven could not resolve")

    with pytest.raises(RuntimeError):
        made_once(folder, "old", fail)
    assert not folder.exists()
    made_once(folder, "old", _make)
    with pytest.raises(RuntimeError):
        made_once(folder, "new", fail)
    assert len(list(folder.glob("*.jar"))) == FILES
    assert not (folder / "half.jar").exists()


def test_another_recipe_replaces_the_result(tmp_path: Path) -> None:
    """Changed drivers would not be compiled, or an old class file would stay next to the new ones."""
    folder = tmp_path / "drivers"
    made_once(folder, "old", _make)
    made_once(folder, "new", lambda scratch: (scratch / "new.class").touch())
    assert sorted(path.name for path in folder.iterdir()) == [".complete", "new.class"]
