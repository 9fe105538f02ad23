"""A job in a process of its own, on a machine that has no JDK."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.spark.conftest import Place
from tests.spark.trace_scenario import expect_one_trace, run_scenario

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
