"""Whether the check of histories finds forbidden results, and only those."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.messages import RaftResponseCode
from rocketpy_broker.replication.dledger.core.node import RaftNode
from rocketpy_broker.replication.dledger.core.raft_state import Role
from tests.sim import raft_check
from tests.sim.linearizable import UNKNOWN, Appended, Operation, misplaced_append, unlinearizable_key
from tests.sim.proposals import ProposalResult, Proposals, Propose
from tests.sim.raft import run_seed
from tests.sim.raft_check import Checker, Violation
from tests.sim.raft_history import History
from tests.sim.raft_planted import DEFECTS

BAD = """
r1 0-1                                      | what nobody wrote
w1 0-1  r- 2-3                              | a lost write
w1 0-1  w2 2-3  r1 4-5                      | a stale read
w1 0-1  w2 2-3  r1 4-5  r2 6-7              | a stale read, then a fresh one
w1 0-1  w2 2-3  r2 4-5  r1 6-7              | back again
w1 0-3  r1 1-2  r- 4-5                      | seen, then gone
w1 0-?  r1 1-2  r- 3-4                      | an unknown write seen, then gone
w1 0-?  r- 1-2  r1 3-4  r- 5-6              | … late, then gone
w1 2-3  r1 0-1                              | from the future
w1 4-?  r1 0-3                              | an unknown write from the future
w1 0-5  w2 1-6  r1 7-8  r2 9-10             | writes at once, read in both orders
w1 0-5  w2 1-6  r2 7-8  r1 9-10  r2 11-12   | … back and forth
w1 0-1  w2 2-7  r2 3-4  r1 5-6              | two readers, one of them behind
w1 0-1  w2 2-?  r2 3-4  r1 5-6              | … of an unknown write
w1 0-1  w2 2-3  r- 4-5                      | both writes lost
w1 0-1  w2 2-3  w3 4-5  r2 6-7              | the last write lost
w1 0-1  r1 2-3  w2 4-5  r1 6-7              | a write lost behind a read
w1 0-9  w2 1-2  r1 3-4  r2 5-6              | overwritten by what was written before
w1 0-?  w2 1-2  r1 3-4  r2 5-6              | … by an unknown write that took effect once
w1 0-1  w2 2-3  r1 3.5-9  r1 4-5            | two stale reads
w1 0-1  w2 2-9  r- 3-4                      | nothing, though an older write was done
w1 0-1  w2 0.5-2  r1 3-4  r2 5-6  r1 7-8    | neither order
w1 0-1  r- 0.5-2  r- 3-4                    | the second comes too late
w1 0-?  w2 1-?  r2 2-3  r1 4-5  r2 6-7      | two unknown writes, one of them twice
"""
GOOD = """
r- 0-1                                      | nothing yet
w1 0-1  r1 2-3                              | written, read
w1 0-3  r- 1-2                              | not yet
w1 0-3  r1 1-2                              | already
w1 0-?                                      | never known
w1 0-?  r- 1-2  r1 3-4  r1 5-6              | an unknown write that comes late
w1 0-?  r- 1-2  r- 3-4                      | … or never
w1 0-5  w2 1-6  r2 7-8                      | either order
w1 0-5  w2 1-6  r1 7-8                      | … or the other
w1 0-1  w2 2-7  r1 3-4  r2 5-6              | two readers while it is written
w1 0-9  w2 1-2  r2 3-4  r1 5-6              | an older call that takes effect later
w1 0-?  w2 1-2  r2 3-4  r1 5-6              | … of an unknown end
w1 0-1  r- 0.5-2  r1 3-4                    | the first read came before the write
"""


def _lines(text: str) -> list[Any]:
    rows = [line.split("|") for line in text.strip().splitlines()]
    return [pytest.param(left, id=right.strip()) for left, right in rows]


def _history(text: str) -> list[Operation]:
    words = text.split()
    return [
        Operation(
            "write" if what[0] == "w" else "read",
            0,
            None if what[1:] == "-" else int(what[1:]),
            float(when.split("-")[0]),
            UNKNOWN if when.endswith("?") else float(when.split("-")[1]),
        )
        for what, when in zip(words[::2], words[1::2], strict=True)
    ]


@pytest.mark.parametrize("text", _lines(BAD))
def test_a_bad_history_is_found(text: str) -> None:
    """A group that loses writes or returns old values would count as right."""
    assert unlinearizable_key(_history(text)) == 0


@pytest.mark.parametrize("text", _lines(GOOD))
def test_a_good_history_passes(text: str) -> None:
    """A whole group would be called broken, and the next real finding would not be believed."""
    assert unlinearizable_key(_history(text)) is None


def _fits_by_trying(operations: list[Operation]) -> bool:
    """Linearizability by its definition: some order of all completed calls and of some others."""
    ended = [operation for operation in operations if operation.returned < UNKNOWN]
    open_ended = [operation for operation in operations if operation.returned == UNKNOWN]
    return any(
        _is_legal(order)
        for count in range(len(open_ended) + 1)
        for some in itertools.combinations(open_ended, count)
        for order in itertools.permutations([*ended, *some])
    )


def _is_legal(order: tuple[Operation, ...]) -> bool:
    value = None
    for at, operation in enumerate(order):
        if any(later.returned < operation.called for later in order[at + 1 :]):
            return False
        if operation.kind == "write":
            value = operation.value
        elif operation.returned < UNKNOWN and operation.value != value:
            return False
    return True


@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_the_zones_agree_with_the_definition(random: Random, count: int) -> None:
    """The test could overlook an order that fits, or accept a history that has none."""
    moments = random.sample(range(20), 2 * count)
    operations = []
    for at in range(count):
        called, returned = sorted(moments[2 * at : 2 * at + 2])
        end = UNKNOWN if random.random() < 0.2 else returned
        if random.random() < 0.5:
            operations.append(Operation("write", 0, at, called, end))
        else:
            value = random.choice([None, *range(count)])
            operations.append(Operation("read", 0, value, called, end))
    assert (unlinearizable_key(operations) is None) == _fits_by_trying(operations)


def test_one_bad_key_among_good_ones_is_named() -> None:
    """A register could hide behind the others."""
    good = [Operation("write", 1, 1, 0, 1), Operation("read", 1, 1, 2, 3)]
    bad = [Operation("write", 2, 5, 0, 1), Operation("read", 2, None, 2, 3)]
    assert unlinearizable_key([*good, *bad]) == 2


def test_an_append_before_an_earlier_completed_one_is_found() -> None:
    """A log whose order differs from that of its clients' calls would pass."""
    assert misplaced_append([Appended(0, 0, 5), Appended(1, 1, 2), Appended(2, 3, 4)]) is None
    assert misplaced_append([Appended(0, 1, 2), Appended(1, 0, 3), Appended(2, 2.5)]) is None
    late = Appended(1, 0, 1)
    assert misplaced_append([Appended(0, 2, 3), late]) is late


def test_a_rejected_append_that_is_in_the_log_is_found() -> None:
    """A producer that was rejected sends a second time: consumers would get the message twice."""
    history = History()
    history.called(1, b"entry 1 0 ")
    history.ended(ProposalResult(1, RaftResponseCode.NOT_LEADER), lambda _: None)
    failure = history.failure({0: Entry.of(0, 0, 0, b"entry 1 0 ")})
    assert failure is not None
    assert "refused" in failure


_propose = Proposals.propose


def _read_without_log(self: Proposals, node: RaftNode, propose: Propose, now_ms: float) -> None:
    """Reads of a supposed leader, from the entries that it knows as committed."""
    if propose.body.startswith(b"read") and node.role is Role.LEADER:
        index = node.state.committed_index + 1
        self.tell(ProposalResult(propose.proposal_id, RaftResponseCode.SUCCESS, index))
    else:
        _propose(self, node, propose, now_ms)


def _history_only(self: Checker, result: ProposalResult, find: Callable[[int], Entry | None]) -> None:
    self.results[result.proposal_id] = result.code
    self.history.ended(result, find)


@pytest.mark.planted
@pytest.mark.parametrize(
    "defect",
    [
        lambda: patch.object(Proposals, "propose", _read_without_log),
        DEFECTS["commits_without_majority"],
        DEFECTS["majority_is_one_less"],
        DEFECTS["who_waited_is_refused"],
    ],
    ids=["stale_reads", "lost_writes", "majority", "refused"],
)
def test_histories_alone_find_defects(defect: Callable[[], Any]) -> None:
    """The view of clients of a broken group must suffice: nothing else is known of a real one."""
    with defect(), patch.object(Checker, "ended", _history_only), patch.object(raft_check, "check"):
        found = next(filter(None, map(_violation, range(400))), "")
    assert any(word in found for word in ("not linearizable", "lies behind", "was refused")), found


def _violation(seed: int) -> str | None:
    try:
        run_seed(seed)
    except Violation as violation:
        return str(violation)
    return None
