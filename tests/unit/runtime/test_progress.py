"""The rule by which `health()` reports what is repeated without a success."""

from __future__ import annotations

from rocketpy.runtime.progress import Jobs, Progress

LIMIT_MS = 60_000


def test_what_has_not_succeeded_for_the_limit_is_a_problem() -> None:
    """Readiness probes would restart clients early, or never."""
    progress = Progress(1000)
    progress.failed("timed out")
    assert progress.problem(60_999, LIMIT_MS, "no pull has succeeded") is None
    assert not progress.is_stalled(60_999, LIMIT_MS)
    assert progress.is_stalled(61_000, LIMIT_MS)
    assert progress.problem(61_000, LIMIT_MS, "no pull has succeeded") == (
        "no pull has succeeded for 60 s: timed out"
    )


def test_a_success_ends_a_problem() -> None:
    """A client would never become ready again."""
    progress = Progress(0)
    progress.failed("rejected", is_lasting=True)
    progress.succeeded(70_000)
    assert progress.problem(129_999, LIMIT_MS, "no pull has succeeded") is None
    assert progress.problem(130_000, LIMIT_MS, "no pull has succeeded") == (
        "no pull has succeeded for 60 s: no request has ended"
    )


def test_a_lasting_failure_is_a_problem_at_once() -> None:
    """An operator would learn of a wrong secret a minute late."""
    progress = Progress(0)
    progress.failed("rejected", is_lasting=True)
    assert progress.is_stalled(0, LIMIT_MS)
    assert progress.problem(0, LIMIT_MS, "no pull has succeeded") == "rejected"
    progress.failed("timed out")
    assert progress.problem(0, LIMIT_MS, "no pull has succeeded") is None


def test_a_pause_does_not_count() -> None:
    """A consumer that was paused for long would be reported when it continues."""
    progress = Progress(0)
    progress.failed("timed out")
    progress.restart(100_000)
    assert progress.problem(159_999, LIMIT_MS, "no pull has succeeded") is None
    assert progress.problem(160_000, LIMIT_MS, "no pull has succeeded") is not None


def test_a_job_that_fails_now_and_then_is_no_problem() -> None:
    """A broker whose disk was full for a moment would be reported a minute later."""
    jobs, times = Jobs(), [0.0]
    jobs.clock_ms = lambda: times[-1]
    for now_ms in (0.0, 30_000.0, 59_000.0):
        times.append(now_ms)
        jobs.ended("save", OSError("disk full"))
        assert jobs.problems() == []
    times.append(61_000.0)
    assert jobs.problems() == []
    jobs.ended("save", OSError("disk full"))
    assert jobs.problems() == ["save has failed for 61 s: disk full"]
    times.append(200_000.0)
    assert jobs.problems(recent_ms=100_000) == []
    assert jobs.problems() == ["save has failed for 61 s: disk full"]
    jobs.ended("save")
    assert jobs.problems() == []
    jobs.ended("save", OSError("disk full"))
    assert jobs.problems() == []
