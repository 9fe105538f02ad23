"""Whether the results of clients fit one order of events, each between its call and its response.

Two models, each decided without a search, whose time would explode with what happens at the same time:

- a register a key, whose writes all differ: the zones of Gibbons and Korach (Testing shared memories, 1997),
  key by key, since a history is linearizable just when each object's part of it is (Herlihy and Wing, 1990);
- a log: an append's response says which place it got, so the order is known.

A call that never returned, or with "unknown", may take effect at any time behind its call, or never.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

UNKNOWN = math.inf
"""The `returned` of a call without a response."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A write or a read of a register. called, returned: moments of the same clock, no two alike.

    value: that was written or read; None: the register was never written. No value is written twice.
    """

    kind: Literal["write", "read"]
    key: int
    value: int | None
    called: float
    returned: float = UNKNOWN


@dataclass(frozen=True, slots=True)
class Appended:
    """An entry that is in the log at `index`; returned: when its client got the response."""

    index: int
    called: float
    returned: float = UNKNOWN


def unlinearizable_key(operations: Iterable[Operation]) -> int | None:
    """Return a key whose operations fit no order; None if there is none."""
    by_key: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_key[operation.key].append(operation)
    return next((key for key, found in sorted(by_key.items()) if not _is_linearizable(found)), None)


def misplaced_append(log: Iterable[Appended]) -> Appended | None:
    """Return an entry that is after one called for only after its own response; None if there is none."""
    newest_call = -math.inf
    for entry in sorted(log, key=lambda entry: entry.index):
        newest_call = max(newest_call, entry.called)
        if entry.returned < newest_call:
            return entry
    return None


def _is_linearizable(operations: list[Operation]) -> bool:
    """Gibbons and Korach's test for a register whose writes all differ.

    A value's operations follow each other without another write between. Where one of them has ended before
    another was called, the register held the value from the one moment to the other: no two values may claim
    the same moment, and no value must have come and gone within another's claim.
    """
    values = {operation.value: [operation] for operation in operations if operation.kind == "write"}
    values[None] = [Operation("write", 0, None, -math.inf, -math.inf)]
    for read in operations:
        if read.kind == "read" and read.returned < UNKNOWN:
            written = values.get(read.value)
            if written is None or read.returned < written[0].called:
                return False
            written.append(read)
    claims: list[tuple[float, float]] = []
    brief: list[tuple[float, float]] = []
    for found in values.values():
        ended = min(operation.returned for operation in found)
        called = max(operation.called for operation in found)
        if ended < called:
            claims.append((ended, called))
        elif ended < UNKNOWN:
            brief.append((called, ended))
    claims.sort()
    if any(one[1] > other[0] for one, other in itertools.pairwise(claims)):
        return False
    return not any(begin < called and ended < end for begin, end in claims for called, ended in brief)
