"""The messages of the crowd, and their guarantees: at least once, in order, duplicates explained.

No I/O: lines of members go in with the time they came at, problems come out in words.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DISTURBED_S = 90.0
"""A membership change explains a duplicate for so long: 20 s to notice, 60 s until a dead one's locks end."""


@dataclass(slots=True)
class _Delivery:
    at: float
    times: int


@dataclass(slots=True)
class Witness:
    """Keeps the acknowledged messages, and those of each group. groups: name -> whether it is orderly."""

    groups: dict[str, bool]
    acked: dict[int, tuple[int, int]] = field(default_factory=dict)
    unknown: int = 0
    duplicates: int = 0
    received: int = 0
    problems: list[str] = field(default_factory=list)
    _taken: dict[str, dict[int, _Delivery]] = field(default_factory=dict)
    _disturbed: dict[str, float] = field(default_factory=dict)
    _last: dict[tuple[str, str, int], int] = field(default_factory=dict)
    _gaps: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    _offsets: dict[tuple[str, int], set[int]] = field(default_factory=dict)

    def disturb(self, group: str, now: float) -> None:
        """A member of a group came, left or was killed."""
        self._disturbed[group] = now

    def observe(self, group: str, member: str, line: str, now: float) -> None:
        """Process a line of output of a member (see member.py). member: one process."""
        what, *numbers = line.split()
        values = [int(number) for number in numbers]
        if what == "ack":
            self.acked[values[0]] = (values[1], values[2])
        elif what == "unknown":
            self.unknown += 1
        elif what == "got":
            self._got(group, member, *values, now=now)

    def _got(
        self, group: str, member: str, number: int, queue: int, offset: int, times: int, *, now: float
    ) -> None:
        self.received += 1
        taken = self._taken.setdefault(group, {})
        before = taken.get(number)
        if before is None:
            taken[number] = _Delivery(now, times)
        else:
            self.duplicates += 1
            if now - self._disturbed.get(group, float("-inf")) > DISTURBED_S:
                self.problems.append(f"{group}: message {number} came twice although no member came or left")
        if self.groups[group]:
            self._order(group, member, queue, offset)

    def _order(self, group: str, member: str, queue: int, offset: int) -> None:
        """Within one member a queue continues where it was, or earlier, or where another member left it."""
        last = self._last.get((group, member, queue))
        if last is not None and offset > last + 1:
            self._gaps.append((group, member, queue, last, offset))
        self._last[group, member, queue] = offset
        self._offsets.setdefault((group, queue), set()).add(offset)

    def missing(self) -> int:
        """How many acknowledged messages some group has not taken yet."""
        return sum(number not in self._taken.get(group, {}) for group in self.groups for number in self.acked)

    def settle(self) -> None:
        """No more messages follow: missing ones are lost, and skipped ones were skipped."""
        for group in self.groups:
            lost = [number for number in self.acked if number not in self._taken.get(group, {})]
            for number in lost:
                self.problems.append(
                    f"{group}: message {number}, acknowledged at {self.acked[number]}, is lost"
                )
        for group, member, queue, last, offset in self._gaps:
            left = set(range(last + 1, offset)) - self._offsets[group, queue]
            if left:
                skipped = f"from {last} to {offset} in queue {queue}; nobody took {min(left)}"
                self.problems.append(f"{group}: {member} went {skipped}")
