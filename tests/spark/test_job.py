"""A job in a process of its own, on a machine that has no JDK."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.interop.processes import our_environment
from tests.spark.conftest import Place
from tests.spark.trace_scenario import expect_one_trace, run_scenario
from tools.import_map import SOURCES

pytestmark = pytest.mark.spark


def without_java(folder: Path) -> dict[str, str]:
    """An environment in which no Java is found: PATH is one directory with links to all else."""
    for place in map(Path, os.environ["PATH"].split(os.pathsep)):
        for program in place.iterdir() if place.is_dir() else ():
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return {"PATH": str(folder), "JAVA_HOME": ""}


async def test_a_jobs_tasks_and_its_consumers_are_one_trace(place: Place, tmp_path: Path) -> None:
    """Sends of a job would have no parent span, or Spark not run on a machine without a JDK."""
    environment = without_java(tmp_path)
    assert shutil.which("java", path=environment["PATH"]) is None
    topic = place.topic()
    expect_one_trace(await run_scenario(place.namesrv, topic, environment), topic)


def test_a_job_with_py_files_runs_without_crcmod(place: Place, tmp_path: Path) -> None:
    """Every executor would need a package with a C extension, which few jobs use."""
    archive, hidden = tmp_path / "packages.zip", tmp_path / "hidden"
    with ZipFile(archive, "w") as packed:
        for root in (SOURCES["rocketpy"], SOURCES["pyspark_rocketmq"]):
            for file in root.rglob("*.py"):
                packed.write(file, file.relative_to(root.parent))
    hidden.mkdir()
    (hidden / "crcmod.py").write_text("raise ModuleNotFoundError('hidden by a test', name='crcmod')\n")
    found = subprocess.run(
        [sys.executable, "-m", "tests.spark.py_files_job", place.namesrv, place.topic(), str(archive)],
        env={**our_environment(), "PYTHONPATH": str(hidden)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    count, origin = found.stdout.split()
    assert count == "6"
    assert "packages.zip" in origin
