"""Progress: when a repeated operation last succeeded, and why it has failed since. No I/O.

One rule decides what `health()` reports of everything that is repeated, such as pulls, locks, commits and
heartbeats: what has not succeeded for a time is a problem. So an operation whose task has ended, or that
waits for a response forever, is reported, too. A failure that only an operator can end is a problem at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

STALLED_AFTER_MS: Final = 60_000
"""Without a success for this time, a repeated operation is a problem."""


class Progress:
    """The progress of one operation."""

    __slots__ = ("is_lasting", "reason", "since_ms")

    def __init__(self, now_ms: float) -> None:
        self.since_ms: float = now_ms
        """The time of the last success, or of the begin, in ms of a monotonic clock."""
        self.reason: str | None = None
        """The reason of the last failure; None after a success."""
        self.is_lasting: bool = False
        """Whether only an operator can end the failure."""

    def succeeded(self, now_ms: float) -> None:
        """Record a success."""
        self.since_ms = now_ms
        self.reason = None
        self.is_lasting = False

    def failed(self, reason: str, *, is_lasting: bool = False) -> None:
        """Record a failure."""
        self.reason = reason
        self.is_lasting = is_lasting

    def restart(self, now_ms: float) -> None:
        """Measure from now on: the operation did not have to run before, for example during a pause."""
        self.since_ms = now_ms

    def is_stalled(self, now_ms: float, limit_ms: float) -> bool:
        """Return whether the operation is a problem."""
        return self.is_lasting or now_ms - self.since_ms >= limit_ms

    def problem(self, now_ms: float, limit_ms: float, text: str) -> str | None:
        """Return the problem in words; None if there is none.

        text: what has not succeeded, such as "broker a has answered no heartbeat".
        """
        if self.is_lasting:
            return self.reason
        age_ms = now_ms - self.since_ms
        if age_ms < limit_ms:
            return None
        return f"{text} for {age_ms / 1000:.0f} s: {self.reason or 'no request has ended'}"


class FailingJob(NamedTuple):
    """A job whose runs have failed since its last success. Times in ms."""

    since_ms: float
    last_ms: float
    reason: str
    """Of the last failure."""


class Jobs:
    """The jobs of a component that log their errors and are tried again, such as saves and deletions.

    A job is a problem when its runs of a minute have all failed.
    """

    def __init__(self) -> None:
        self.clock_ms: Callable[[], float] = _monotonic_ms
        """Returns the monotonic time."""
        self.failing: dict[str, FailingJob] = {}

    def ended(self, job: str, error: BaseException | None = None) -> None:
        """Record the end of a run. job: what has not been done, for example "save of consumer offsets"."""
        if error is None:
            self.failing.pop(job, None)
        else:
            now_ms = self.clock_ms()
            since_ms = self.failing[job].since_ms if job in self.failing else now_ms
            self.failing[job] = FailingJob(since_ms, now_ms, str(error))

    def problems(self, limit_ms: float = STALLED_AFTER_MS, recent_ms: float | None = None) -> list[str]:
        """Return a text for each job whose runs have all failed for `limit_ms`.

        recent_ms: only jobs that were tried in this time; None for all, also if they are not tried any more.
        """
        oldest_ms = float("-inf") if recent_ms is None else self.clock_ms() - recent_ms
        return [
            f"{job} has failed for {(last_ms - since_ms) / 1000:.0f} s: {reason}"
            for job, (since_ms, last_ms, reason) in self.failing.items()
            if last_ms - since_ms >= limit_ms and last_ms >= oldest_ms
        ]


def _monotonic_ms() -> float:
    return time.monotonic() * 1000
