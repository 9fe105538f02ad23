"""Whether what clients were told fits one order of events, each between its call and its answer.

Two models, each with its own search:

- a register a key: Wing and Gong's search (1993) with the cache of states that Lowe added (2017), key by key,
  since a history is linearizable just when each object's part of it is (Herlihy and Wing 1990);
- a log: an append's answer says which place it got, so the order is known and one pass is enough.

A call that was never answered, or with "unknown", may take effect at any time behind its call, or never.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["UNKNOWN", "Appended", "Operation", "misplaced_append", "unlinearizable_key"]

UNKNOWN = math.inf
"""The `answered` of a call whose end nobody saw."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A write or a read of a register. called, answered: moments of the same clock, no two alike.

    value: that was written or read; None: the register was never written. No value is written twice.
    """

    kind: Literal["write", "read"]
    key: int
    value: int | None
    called: float
    answered: float = UNKNOWN


@dataclass(frozen=True, slots=True)
class Appended:
    """An entry that is in the log at `index`; answered: when its client was told so."""

    index: int
    called: float
    answered: float = UNKNOWN


def unlinearizable_key(operations: Iterable[Operation]) -> int | None:
    """Return a key whose operations fit no order; None: there is none."""
    by_key: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_key[operation.key].append(operation)
    return next((key for key, found in sorted(by_key.items()) if not _fits(_that_matter(found))), None)


def misplaced_append(log: Iterable[Appended]) -> Appended | None:
    """Return an entry that lies behind one called for only after its own answer; None: none does."""
    newest_call = -math.inf
    for entry in sorted(log, key=lambda entry: entry.index):
        newest_call = max(newest_call, entry.called)
        if entry.answered < newest_call:
            return entry
    return None


def _that_matter(operations: list[Operation]) -> list[Operation]:
    """Leave out what is without consequence: unknown writes that nobody read, and unknown reads.

    Were such a write part of an order, nothing but writes could follow it until the next write: the order
    without it fits too.
    """
    read = {operation.value for operation in operations if operation.kind == "read"}
    return sorted(
        (
            operation
            for operation in operations
            if operation.answered < UNKNOWN or (operation.kind == "write" and operation.value in read)
        ),
        key=lambda operation: operation.called,
    )


def _fits(operations: Sequence[Operation]) -> bool:
    """Search for an order, by depth. A state: which operations have taken effect, and the value."""
    must = sum(1 << at for at, operation in enumerate(operations) if operation.answered < UNKNOWN)
    states: list[tuple[int, int | None]] = [(0, None)]
    seen = set(states)
    while states:
        done, value = states.pop()
        if done & must == must:
            return True
        for at in _possible(operations, done):
            operation = operations[at]
            if operation.kind == "read" and operation.value != value:
                continue
            state = done | 1 << at, operation.value
            if state not in seen:
                seen.add(state)
                states.append(state)
    return False


def _possible(operations: Sequence[Operation], done: int) -> list[int]:
    """Return what may take effect next: whatever was called before the first answer that is outstanding."""
    possible = []
    first_answer = UNKNOWN
    for at, operation in enumerate(operations):
        if done >> at & 1:
            continue
        if operation.called > first_answer:
            break
        possible.append(at)
        first_answer = min(first_answer, operation.answered)
    return [at for at in possible if operations[at].called < first_answer]
