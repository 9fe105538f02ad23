"""`Tasks`: a task or callback that ends unexpectedly is reported, and closing ends all running tasks."""

from __future__ import annotations

import asyncio
import contextvars
import logging

import pytest

from rocketpy.errors import InvariantError, RocketError
from rocketpy.runtime.tasks import Tasks, subtask


async def _raises(error: BaseException) -> None:
    raise error


async def _forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("error", [ValueError("x"), InvariantError("x"), asyncio.CancelledError()])
async def test_a_task_that_ends_unexpectedly_fails_its_component(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Users would have a loop that stopped without a report, or a cancellation that they did not request."""
    failures: list[RocketError] = []
    tasks = Tasks("the tester", failures.append)
    await asyncio.wait({tasks.spawn(_raises(error), "work")})
    assert failures == [tasks.failure]
    assert str(failures[0]) == f"background task work of the tester failed: {error!r}"
    assert failures[0].__cause__ is error
    [record] = caplog.records
    assert (record.levelno, record.name) == (logging.ERROR, "rocketpy.tasks")
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    await tasks.close()


async def test_a_task_that_waited_for_something_cancelled_fails_its_component() -> None:
    """No log line would show that the task ended: asyncio reports it as cancelled."""
    tasks = Tasks("the tester")
    waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        await waited

    task = tasks.spawn(wait(), "wait")
    await asyncio.sleep(0)
    waited.cancel()
    await asyncio.wait({task})
    assert tasks.failure is not None


async def test_ends_that_were_wanted_fail_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Each pull that is stopped, and each close, would look like a failure."""
    tasks = Tasks("the tester")
    await tasks.spawn(asyncio.sleep(0), "returns")
    cancelled = tasks.spawn(_forever(), "cancelled")
    await tasks.cancel(cancelled, None)
    tasks.spawn(_forever(), "closed")
    await tasks.close()
    assert cancelled.cancelled()
    assert tasks.failure is None
    assert caplog.records == []


async def test_closing_ends_all_parts_even_if_one_fails() -> None:
    """A failed task would leave the others running, or `close` would raise its error."""
    tasks = Tasks("the tester")
    ends: list[str] = []

    async def stubborn() -> None:
        try:
            await _forever()
        finally:
            late.append(tasks.spawn(_forever(), "started while closing"))
            ends.append("stubborn")
            raise ValueError

    late: list[asyncio.Task[None]] = []
    tasks.spawn(_raises(ValueError()), "fails")
    tasks.spawn(stubborn(), "stubborn")
    await asyncio.sleep(0)
    await tasks.close()
    assert ends == ["stubborn"]
    assert late[0].cancelled()
    await tasks.close()


async def test_a_callback_that_fails_fails_its_component(caplog: pytest.LogCaptureFixture) -> None:
    """A timer that sets itself would have stopped, and only asyncio's own log would show it."""
    tasks = Tasks("the tester")

    def tick(number: int) -> None:
        raise ValueError(number)

    asyncio.get_running_loop().call_soon(tasks.run, tick, 7)
    await asyncio.sleep(0)
    assert "tick" in str(tasks.failure)
    assert "ValueError(7)" in str(tasks.failure)
    assert len(caplog.records) == 1


async def test_a_failure_counts_also_if_it_cannot_be_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Because of a defect in a log handler of the application, `health()` would report no problem."""

    def emit(_: logging.LogRecord) -> None:
        raise OSError("the disk is full")

    unhandled: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    monkeypatch.setattr(logging.getLogger("rocketpy.tasks"), "handle", emit)
    failures: list[RocketError] = []
    tasks = Tasks("the tester", failures.append)
    await asyncio.wait({tasks.spawn(_raises(ValueError("x")), "work")})
    assert failures == [tasks.failure]
    assert [str(context["exception"]) for context in unhandled] == ["the disk is full"]


async def test_the_first_failure_counts_and_reaches_the_whole() -> None:
    """The cause would be hidden by its consequences, or the owner of a failed part would not fail."""
    whole = Tasks("the whole")
    part = Tasks("a part", whole.fail_with)
    await asyncio.wait({part.spawn(_raises(ValueError(1)), "first")})
    await asyncio.wait({part.spawn(_raises(ValueError(2)), "second")})
    assert whole.failure is part.failure
    assert "ValueError(1)" in str(whole.failure)


async def test_background_work_is_not_part_of_the_request_that_began_it() -> None:
    """A consumer's pulls would belong to the span in which it was started, as only subtasks should."""
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("a request's")

    async def read() -> str:
        return variable.get()

    tasks = Tasks("the tester")
    assert await tasks.spawn(read(), "read") == "none"
    assert await subtask(read(), "read") == "a request's"
