"""Jobs on two executors whose driver and whose broker are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from pyspark_rocketmq import ROW_ID_PROPERTY, SeenRows
from rocketpy.errors import RocketError
from tests.interop.probe import wait_until
from tests.interop.processes import our_environment
from tests.spark.conftest import Place

pytestmark = pytest.mark.spark

FILES, LINES = 6, 3000
WAIT_S = 600
"""A busy machine may take minutes to start a driver and two executors."""


class Job:
    """`stream_job` as a process."""

    def __init__(self, place: Place, topic: str, folder: Path) -> None:
        self.log = folder / "job.log"
        command = [sys.executable, "-m", "tests.spark.stream_job", place.namesrv, topic, str(folder)]
        with self.log.open("ab") as log:
            # Its JVM, executors and Python workers go with it.
            self.process = subprocess.Popen(
                command, env=our_environment(), stdout=log, stderr=log, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL, as when a machine goes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def stored(place: Place, topic: str) -> int:
    """How many messages there are; 0 while the broker is away."""
    try:
        return len(place.messages(topic))
    except RocketError:
        return 0


def test_a_stream_survives_its_driver_and_its_broker(own_place: Place, tmp_path: Path) -> None:
    """Rows would be lost, or counted twice, after a crash, a broker's restart or a speculative task."""
    place, topic = own_place, own_place.topic()
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        lines = "".join(f"{number * LINES + line}\n" for line in range(LINES))
        (tmp_path / "in" / f"{number}.txt").write_text(lines)
    with Job(place, topic, tmp_path) as first:
        wait_until(lambda: stored(place, topic) > LINES, "the second micro-batch", WAIT_S, 0.5)
        first.kill()
    assert stored(place, topic) < FILES * LINES
    with Job(place, topic, tmp_path) as second:
        wait_until(lambda: stored(place, topic) > 3 * LINES, "more after the restart", WAIT_S, 0.5)
        place.broker.kill()
        place.broker.start()
        assert second.process.wait(WAIT_S) == 0, second.log.read_text()[-3000:]
    messages = place.messages(topic)
    assert {int(message.body) for message in messages} == set(range(FILES * LINES))
    assert len({message.properties[ROW_ID_PROPERTY] for message in messages}) == FILES * LINES
    assert len(messages) > FILES * LINES  # copies there were: of the task that stood still, if of no other
    once = [int(message.body) for message in SeenRows().new(messages)]
    assert sorted(once) == list(range(FILES * LINES))
