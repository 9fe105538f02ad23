"""`Tasks`: a task or callback that ends unexpectedly is reported, and closing ends all running tasks."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time

import pytest

from rocketpy.errors import InvariantError, RocketError
from rocketpy.runtime.tasks import Tasks, subtask
from tests.simulated_loop import SimulatedLoop
from tests.waiting import LIMIT_S


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


class _Flaky:
    """A function that raises or returns the configured values. is_done: set by the last call."""

    def __init__(self, *ends: BaseException | float | None) -> None:
        self.ends = list(ends)
        self.called_at: list[float] = []
        self.is_done = asyncio.Event()

    def __call__(self) -> float | None:
        self.called_at.append(asyncio.get_running_loop().time())
        end = self.ends.pop(0)
        if not self.ends:
            self.is_done.set()
        if isinstance(end, BaseException):
            raise end
        return end

    async def until_done(self) -> None:
        """Wait for the last call."""
        async with asyncio.timeout(2 * LIMIT_S):
            await self.is_done.wait()

    async def later(self) -> float | None:
        await asyncio.sleep(0)
        return self()


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_periodic_call_is_repeated_after_a_failure(
    is_coroutine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One failure would end a consumer's commits, and later a restart would deliver everything again."""

    async def scenario() -> None:
        caplog.set_level(logging.INFO, "rocketpy.tasks")
        tasks, start_s = Tasks("the tester"), asyncio.get_running_loop().time()
        bug = ValueError("a bug")
        flaky = _Flaky(None, bug, bug, bug, None, None)
        periodic = tasks.every(5, flaky.later if is_coroutine else flaky, "commit")
        await asyncio.sleep(17)
        assert tasks.problems() == ["commit of the tester has failed 2 times: ValueError: a bug"]
        await flaky.until_done()
        assert [now_s - start_s for now_s in flaky.called_at] == [5, 10, 15, 20, 25, 30]
        assert (tasks.problems(), tasks.failure) == ([], None)
        periodic.stop()
        await tasks.wait()
        await asyncio.sleep(100)
        assert len(flaky.called_at) == 6

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(scenario())
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "commit of the tester failed, trying again in 5 s: ValueError('a bug')"),
        ("INFO", "commit of the tester has succeeded after 3 failures"),
    ]
    assert caplog.records[0].exc_info is not None


def test_a_changed_interval_applies_after_the_next_call() -> None:
    """A setting that was changed while a server runs would have no effect until its restart."""

    async def scenario() -> None:
        tasks, start_s = Tasks("the tester"), asyncio.get_running_loop().time()
        interval_s = 5.0
        flaky = _Flaky(None, None, ValueError("a bug"), None, None)
        tasks.every(lambda: interval_s, flaky, "commit")
        await asyncio.sleep(6)
        interval_s = 20.0
        await flaky.until_done()
        assert [now_s - start_s for now_s in flaky.called_at] == [5, 10, 30, 50, 70]
        await tasks.close()

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(scenario())


def test_repeated_failures_are_logged_with_their_number(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug that recurs in each tick would fill the disk with tracebacks."""

    async def scenario() -> None:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        tasks, flaky = Tasks("the tester"), _Flaky(*[ValueError("a bug")] * 64)
        tasks.every(1, flaky, "tick")
        await flaky.until_done()
        await tasks.close()

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(scenario())
    first = "tick of the tester failed, trying again in 1 s: ValueError('a bug')"
    assert [record.getMessage() for record in caplog.records] == [first, f"{first} (and 59 more like it)"]


async def test_a_log_handler_that_raises_ends_no_periodic_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk under the application's log would end a consumer's commits."""

    def emit(_: logging.LogRecord) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(logging.getLogger("rocketpy.tasks"), "handle", emit)
    monkeypatch.setattr(logging.getLogger("rocketpy.tasks"), "level", logging.INFO)
    tasks, flaky = Tasks("the tester"), _Flaky(ValueError("a bug"), None, None)
    tasks.every(0, flaky, "commit")
    await flaky.until_done()
    assert tasks.failure is None
    await tasks.close()


@pytest.mark.parametrize("error", [InvariantError("x"), asyncio.CancelledError()])
async def test_a_periodic_call_and_broken_state_or_cancelled_work(error: BaseException) -> None:
    """Calls would go on with a state that is wrong, or end because of something that was cancelled."""
    tasks, flaky = Tasks("the tester"), _Flaky(error, None)
    periodic = tasks.every(0, flaky, "call")
    if isinstance(error, InvariantError):
        await asyncio.wait({periodic.task})
        assert "InvariantError('x')" in str(tasks.failure)
        assert len(flaky.called_at) == 1
    else:
        await flaky.until_done()
        assert tasks.failure is None
    await tasks.close()


def test_a_periodic_call_can_be_woken_and_choose_its_pause() -> None:
    """A rebalance would come after 20 s, although a member has joined, or a look-up failed."""

    async def scenario() -> None:
        tasks, start_s = Tasks("the tester"), asyncio.get_running_loop().time()
        flaky = _Flaky(2.0, None, None, None)
        periodic = tasks.every(20, flaky, "rebalance", first_s=0)
        await asyncio.sleep(5)
        periodic.wake()
        await flaky.until_done()
        assert [now_s - start_s for now_s in flaky.called_at] == [0, 2, 5, 25]
        await tasks.close()

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(scenario())


def test_a_periodic_call_that_is_woken_while_it_runs_is_made_again() -> None:
    """A change during a rebalance would be noticed after 20 s."""

    async def scenario() -> None:
        tasks, start_s = Tasks("the tester"), asyncio.get_running_loop().time()
        begins: list[float] = []

        async def rebalance() -> None:
            begins.append(asyncio.get_running_loop().time() - start_s)
            await asyncio.sleep(3)

        periodic = tasks.every(20, rebalance, "rebalance", first_s=0)
        await asyncio.sleep(1)
        periodic.wake()
        await asyncio.sleep(26)
        periodic.stop()  # while it runs: `wait` lets the call end
        await tasks.wait()
        assert begins == [0, 3, 26]
        assert asyncio.get_running_loop().time() - start_s == 29

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(scenario())


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


async def test_a_failure_is_not_part_of_the_request_that_began_the_work() -> None:
    """Logs and listeners would report it as a failure of that request, long after its end."""
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("a request's")
    found: list[str] = []
    tasks = Tasks("the tester", lambda _: found.append(variable.get()))
    await asyncio.wait({tasks.spawn(_raises(ValueError(1)), "work")})
    assert found == ["none"]
