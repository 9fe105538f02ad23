"""Progress: when a repeated operation last succeeded, and why it has failed since. No I/O.

One rule decides what `health()` reports of everything that is repeated, such as pulls, locks, commits and
heartbeats: what has not succeeded for a time is a problem. So an operation whose task has ended, or that
waits for a response forever, is reported, too. A failure that only an operator can end is a problem at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

STALLED_AFTER_MS: Final = 60_000
"""Without a success for this time, a repeated operation is a problem."""


class Progress:
    """The progress of one operation.

    since_ms: the time of the last success, or of the begin, in ms of a monotonic clock. reason: of the last
    failure; None after a success. is_lasting: whether only an operator can end the failure.
    """

    __slots__ = ("is_lasting", "reason", "since_ms")

    def __init__(self, now_ms: float) -> None:
        self.since_ms = now_ms
        self.reason: str | None = None
        self.is_lasting = False

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


class Jobs:
    """The repeated jobs of a component that log their errors and try again, such as saves and deletions.

    clock_ms: monotonic time.
    """

    def __init__(self) -> None:
        self.clock_ms: Callable[[], float] = _monotonic_ms
        self._failing: dict[str, Progress] = {}

    def ended(self, job: str, error: Exception | None = None) -> None:
        """Record the end of a run. job: what has not been done, for example "save of consumer offsets"."""
        if error is None:
            self._failing.pop(job, None)
            return
        if job not in self._failing:
            self._failing[job] = Progress(self.clock_ms())
        self._failing[job].failed(str(error))

    def problems(self, limit_ms: float = STALLED_AFTER_MS) -> list[str]:
        """Return a text for each job whose runs have all failed for a time."""
        now_ms = self.clock_ms()
        found = [of.problem(now_ms, limit_ms, f"{job} has failed") for job, of in self._failing.items()]
        return [text for text in found if text is not None]


def _monotonic_ms() -> float:
    return time.monotonic() * 1000
