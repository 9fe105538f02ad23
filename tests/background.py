"""What tests of background tasks have in common: finding them, and ending them as a bug would."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from rocketpy.errors import InvariantError, RocketError, TaskFailed
from rocketpy.runtime.tasks import Tasks

__all__ = ["Bug", "assert_logged", "kill", "running"]


class Bug(InvariantError):
    """An exception that no task expects, whatever it handles."""


def running(pattern: str, *owners: Tasks) -> list[asyncio.Task[Any]]:
    """The tasks of these components that have such a name."""
    return [task for owner in owners for task in owner._tasks if re.fullmatch(pattern, task.get_name())]


def kill(pattern: str, *owners: Tasks) -> None:
    """Raise a Bug in the one task with such a name, at the place where it waits now."""
    [task] = running(pattern, *owners)
    waits_for: asyncio.Future[object] = task._fut_waiter  # type: ignore[attr-defined]
    waits_for.set_exception(Bug())


def assert_logged(failure: RocketError | None, caplog: pytest.LogCaptureFixture) -> None:
    """Hold a failure against the log: one ERROR says it, with its traceback."""
    assert isinstance(failure, TaskFailed)
    records = [record for record in caplog.records if record.name == "rocketpy.tasks"]
    assert [record.getMessage() for record in records] == [str(failure)]
    assert records[0].levelno == logging.ERROR
    assert records[0].exc_info is not None
    assert records[0].exc_info[1] is failure.__cause__
    assert isinstance(failure.__cause__, Bug)
