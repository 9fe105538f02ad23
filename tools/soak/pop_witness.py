"""The receptions of popped messages, and their guarantees: none is lost, and each copy has a reason.

No I/O: lines of members go in (see pop_member.py), problems come out in words. Times are ms since 1970, by
the clock of the machine that brokers and members share.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

EXPIRED: Final = "ReceiptExpired"
_ACKED, _LEFT, _KILLED = "acked", "left", "killed"
_CLOCK_MS: Final = 10
"""Brokers count on by some ms if a check point with the same time exists."""


@dataclass(slots=True)
class Reception:
    """One delivery of a message. end: how its member ended it, or the error of the request that should."""

    member: str
    at_ms: int
    until_ms: int
    end: str = ""
    end_ms: int = 0


@dataclass(slots=True)
class PopWitness:
    """Keeps the messages whose send was acknowledged, and the receptions of each."""

    sent: set[int] = field(default_factory=set)
    received: int = 0
    acked: int = 0
    """Acknowledgements that brokers confirmed."""
    extended: int = 0
    copies: Counter[str] = field(default_factory=Counter)
    """Receptions after the first of a message, by their reason."""
    problems: list[str] = field(default_factory=list)
    lost: int = 0
    _receptions: dict[int, list[Reception]] = field(default_factory=dict)
    _left: set[int] = field(default_factory=set)
    """Messages whose last reception was left, so that another must follow."""
    _open: dict[str, dict[int, list[Reception]]] = field(default_factory=dict)
    """Receptions that have not ended, by member and message, oldest first."""
    _switches: list[tuple[int, int]] = field(default_factory=list)

    def observe(self, member: str, words: list[str]) -> None:
        """Process a line of a member."""
        what, *rest = words
        if what == "got":
            self._got(member, *map(int, rest))
        elif what == "until":
            self._open[member][int(rest[0])][0].until_ms = int(rest[1])
            self.extended += 1
        elif what in (_ACKED, _LEFT):
            self._end(member, int(rest[0]), what, int(rest[1]))
        elif what == "failed":
            self._end(member, int(rest[0]), rest[2], int(rest[1]))

    def killed(self, member: str, now_ms: int) -> None:
        """A member was killed, and all of its lines are observed."""
        for number, receptions in list(self._open.get(member, {}).items()):
            for _ in list(receptions):
                self._end(member, number, _KILLED, now_ms)

    def switched(self, from_ms: int, to_ms: int) -> None:
        """Another broker became the master within this time."""
        self._switches.append((from_ms, to_ms))

    def seen(self) -> int:
        """Return how many messages were received at least once."""
        return len(self._receptions)

    def unfinished(self) -> int:
        """Return how many messages must still come: those that never came, and those that were left."""
        return len(self.sent - self._receptions.keys()) + len(self._left)

    def settle(self) -> None:
        """Judge everything: no message comes any more."""
        for number in sorted(self.sent - self._receptions.keys()):
            self.lost += 1
            self.problems.append(f"message {number} is lost: its send was acknowledged, and nobody got it")
        for number in sorted(self._left):
            self.lost += 1
            self.problems.append(f"message {number} is lost: it was left, and never came again")
        for number, receptions in self._receptions.items():
            receptions.sort(key=lambda one: one.at_ms)
            for one in receptions:
                self._judge_end(number, one)
            for index, (before, copy) in enumerate(pairwise(receptions), 1):
                self._judge_copy(number, receptions[:index], before, copy)

    def _got(self, member: str, number: int, at_ms: int, until_ms: int) -> None:
        self.received += 1
        reception = Reception(member, at_ms, until_ms)
        self._receptions.setdefault(number, []).append(reception)
        self._open.setdefault(member, {}).setdefault(number, []).append(reception)
        self._left.discard(number)

    def _end(self, member: str, number: int, end: str, now_ms: int) -> None:
        receptions = self._open[member][number]
        reception = receptions.pop(0)
        if not receptions:
            del self._open[member][number]
        reception.end, reception.end_ms = end, now_ms
        self.acked += end == _ACKED
        if end == _LEFT and self._receptions[number][-1] is reception:
            self._left.add(number)

    def _judge_end(self, number: int, one: Reception) -> None:
        if not one.end:
            self.problems.append(f"message {number} has not ended at {one.member}")
        in_time = one.end == EXPIRED and one.end_ms < one.until_ms - _CLOCK_MS
        if in_time and not self._has_switched(one.at_ms, one.end_ms):
            early_ms = one.until_ms - one.end_ms
            self.problems.append(
                f"message {number} at {one.member} was refused {early_ms} ms before its time was over"
            )

    def _judge_copy(self, number: int, earlier: list[Reception], before: Reception, copy: Reception) -> None:
        if any(one.end == _ACKED and one.end_ms <= copy.at_ms for one in earlier):
            self.problems.append(f"message {number} came to {copy.member} after its acknowledgement")
        elif copy.at_ms < before.until_ms - _CLOCK_MS:
            if self._has_switched(before.at_ms, copy.at_ms):
                self.copies["in flight at a switch"] += 1
            else:
                self.problems.append(f"message {number} came to {copy.member} while {before.member} had it")
        elif before.end == _ACKED:
            self.problems.append(f"message {number} came to {copy.member}, and its acknowledgement succeeded")
        else:
            reasons = {_LEFT: "left on purpose", _KILLED: "worker killed", EXPIRED: "acknowledged too late"}
            self.copies[reasons.get(before.end, "acknowledgement not answered")] += 1

    def _has_switched(self, from_ms: int, to_ms: int) -> bool:
        return any(begin <= to_ms and from_ms <= end for begin, end in self._switches)
