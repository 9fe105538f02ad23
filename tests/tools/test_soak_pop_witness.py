"""The soak of POP would pass a broker that loses messages, or delivers them twice without a reason."""

from __future__ import annotations

import pytest

from tools.soak.pop_witness import PopWitness


def replayed(steps: str) -> PopWitness:
    """Steps ``MEMBER LINE``; ``send NUMBER``; ``MEMBER kill AT``; ``switch FROM TO``."""
    witness = PopWitness()
    for step in steps.split("; "):
        first, *words = step.split()
        if first == "send":
            witness.sent.add(int(words[0]))
        elif first == "switch":
            witness.switched(int(words[0]), int(words[1]))
        elif words[0] == "kill":
            witness.killed(first, int(words[1]))
        else:
            witness.observe(first, words)
    witness.settle()
    return witness


FIRST = "send 7; a got 7 1000 7000"
DONE = f"{FIRST}; a acked 7 1500"
AGAIN = "b got 7 7100 13000; b acked 7 7200"


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        (DONE, ""),
        ("send 7", "message 7 is lost: its send was acknowledged"),
        (f"{FIRST}; a left 7 1100", "message 7 is lost: it was left"),
        (FIRST, "message 7 has not ended at a"),
        (f"{DONE}; {AGAIN}", "message 7 came to b after its acknowledgement"),
        (f"{FIRST}; b got 7 6000 12000; b acked 7 6100; a acked 7 6200", "came to b while a had it"),
        (f"{FIRST}; a until 7 13000; {AGAIN}; a acked 7 8000", "came to b while a had it"),
        (f"{FIRST}; {AGAIN}; a acked 7 7150", "came to b, and its acknowledgement succeeded"),
        (f"{FIRST}; a failed 7 1500 ReceiptExpired; {AGAIN}", "was refused 5500 ms before its time was over"),
        (f"{FIRST}; a kill 1500; b got 7 6000 12000; b acked 7 6100", "came to b while a had it"),
        (f"{DONE}; switch 1600 9000; {AGAIN}", "came to b after its acknowledgement"),
        ("a got 7 1000 7000; a acked 7 1100", ""),
    ],
)
def test_a_violated_promise_is_reported(steps: str, complaint: str) -> None:
    """Each row is one way in which a broker may go wrong, or not."""
    problems = replayed(steps).problems
    assert [complaint in problem for problem in problems] == ([True] if complaint else [])


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (f"{FIRST}; a left 7 1100; {AGAIN}", "left on purpose"),
        (f"{FIRST}; a kill 1500; {AGAIN}", "worker killed"),
        (f"{FIRST}; a failed 7 7050 ReceiptExpired; {AGAIN}", "acknowledged too late"),
        (f"{FIRST}; {AGAIN}; a failed 7 7500 ReceiptExpired", "acknowledged too late"),
        (f"{FIRST}; a failed 7 1500 ResponseTimeout; {AGAIN}", "acknowledgement not answered"),
        (
            f"{FIRST}; switch 1100 4000; b got 7 4100 10000; b acked 7 4200; a failed 7 4300 ReceiptExpired",
            "in flight at a switch",
        ),
    ],
)
def test_each_copy_has_a_reason(steps: str, reason: str) -> None:
    """The report would say nothing about what a kill costs."""
    witness = replayed(steps)
    assert (witness.problems, dict(witness.copies), witness.received) == ([], {reason: 1}, 2)


def test_a_killed_member_ends_all_of_its_receptions() -> None:
    """One of them would count as a defect of the broker."""
    both = "send 7; send 8; a got 7 1000 7000; a got 8 1000 7000; a acked 8 1100; a kill 1200"
    witness = replayed(f"{both}; {AGAIN}")
    assert (witness.problems, dict(witness.copies), witness.acked) == ([], {"worker killed": 1}, 2)
