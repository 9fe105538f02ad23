"""Helpers for tests of background tasks: find a task, and make it fail as a bug would."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from rocketpy.errors import InvariantError, RocketError, TaskFailed
from rocketpy.runtime.tasks import Tasks
from tests.waiting import LIMIT_S


class Bug(InvariantError):
    """An exception that no task expects, whatever errors it handles."""


def running(pattern: str, *owners: Tasks) -> list[asyncio.Task[Any]]:
    """The tasks of these components whose names match a pattern."""
    return [task for owner in owners for task in owner._tasks if re.fullmatch(pattern, task.get_name())]


async def kill(pattern: str, *owners: Tasks) -> None:
    """Raise a Bug in the only task whose name matches, at the place where it waits."""
    [task] = running(pattern, *owners)
    async with asyncio.timeout(LIMIT_S):
        while _waits_for(task) is None:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
    waits_for = _waits_for(task)
    assert waits_for is not None
    waits_for.set_exception(Bug())


def fails(*_args: object, **_kwargs: object) -> Any:
    """Replaces a function by one with a bug."""
    raise Bug


def _waits_for(task: asyncio.Task[Any]) -> asyncio.Future[object] | None:
    future: asyncio.Future[object] | None = task._fut_waiter  # type: ignore[attr-defined]
    return None if future is None or future.done() else future


def assert_logged(failure: RocketError | None, caplog: pytest.LogCaptureFixture) -> None:
    """Compare a failure with the log: one ERROR reports it, with its traceback."""
    assert isinstance(failure, TaskFailed)
    records = [record for record in caplog.records if record.name == "rocketpy.tasks"]
    assert [record.getMessage() for record in records] == [str(failure)]
    assert records[0].levelno == logging.ERROR
    assert records[0].exc_info is not None
    assert records[0].exc_info[1] is failure.__cause__
    assert isinstance(failure.__cause__, Bug)
