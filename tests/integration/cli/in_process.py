"""A cluster beside the tests' thread, and a shell whose commands run in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.access_place import Thread
from tests.integration.cli.commands import Done, run_here
from tests.integration.sdk_groups import SETTINGS
from tests.waiting import LIMIT_S


@contextmanager
def shared_cluster(**options: Any) -> Iterator[EmbeddedCluster]:
    """A cluster whose event loop runs in a thread, because commands run loops of their own."""
    thread = Thread()
    cluster = EmbeddedCluster(**{"settings": SETTINGS} | options)
    try:
        thread.run(cluster.__aenter__())
        try:
            yield cluster
        finally:
            thread.run(cluster.__aexit__(None, None, None))
    finally:
        thread.close()


class Shell:
    """Runs commands with a cluster. environment: variables of the commands."""

    def __init__(self, namesrv: str, **environment: str) -> None:
        self.namesrv = namesrv
        self._environment = environment

    def run(self, *words: str) -> Done:
        """Run a command to its end."""
        return run_here("--namesrv", self.namesrv, *words, given=b"", **self._environment)

    def text(self, *words: str) -> str:
        """Run a command that succeeds; return what people read."""
        done = self.run(*words)
        assert (done.status, done.err) == (0, ""), done
        return done.out

    def rows(self, *words: str) -> list[dict[str, Any]]:
        """Run a command that succeeds; return what programs read."""
        return [json.loads(line) for line in self.text("--json", *words).splitlines()]

    def fails(self, *words: str, status: int = 1) -> str:
        """Run a command that fails with one line; return that line."""
        done = self.run(*words)
        assert (done.status, done.out) == (status, "")
        assert done.err.startswith("rocketpy: ")
        assert done.err.count("\n") == 1
        return done.err


def wait_until(condition: Callable[[], object]) -> None:
    """Repeat a check until it holds. Fails after `LIMIT_S`."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
