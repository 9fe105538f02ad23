"""The soak of a crowd would pass a broker, or a client, that loses, repeats or reorders messages."""

from __future__ import annotations

import pytest

from tools.soak.witness import DISTURBED_S, Witness


def replayed(steps: str) -> Witness:
    """Steps ``GROUP MEMBER LINE``, a second apart; ``GROUP !``: a member came or left; ``@ N``: time."""
    witness = Witness({"c": False, "o": True})
    now = 0.0
    for step in steps.split("; "):
        first, rest = step.split(" ", 1)
        now += 1
        if first == "@":
            now += float(rest)
        elif rest == "!":
            witness.disturb(first, now)
        else:
            member, line = rest.split(" ", 1)
            witness.observe(first, member, line, now)
    witness.settle()
    return witness


ALL = "p 1 ack 7 0 0; c a got 7 0 0 0; o b got 7 0 0 0"


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        (ALL, ""),
        ("p 1 ack 7 0 0; c a got 7 0 0 0", "o: message 7, acknowledged at (0, 0), is lost"),
        ("p 1 ack 7 0 0; o b got 7 0 0 0; c a fail 7", "c: message 7"),
        (f"{ALL}; c a got 7 5 0 1", "c: message 7 came twice although no member came or left"),
        (f"c !; {ALL}; c a got 7 0 0 0", ""),
        (f"c !; @ {DISTURBED_S}; {ALL}; c a got 7 0 0 0", "came twice"),
        (f"o !; {ALL}; c a got 7 0 0 0", "c: message 7 came twice"),
        (f"{ALL}; o b got 8 0 1 0; o b got 9 0 2 0", ""),
        (f"{ALL}; o b got 9 0 2 0", "o: b went from 0 to 2 in queue 0; nobody took 1"),
        (f"{ALL}; o b got 9 1 2 0", ""),
        (f"{ALL}; o d got 8 0 1 0; o b got 9 0 2 0", ""),
        (f"o !; {ALL}; o b got 8 0 1 0; o b got 7 0 0 0; o b got 8 0 1 0; o b got 9 0 2 0", ""),
        ("p 1 unknown 7", ""),
    ],
)
def test_a_violated_promise_is_reported(steps: str, complaint: str) -> None:
    """Each row is one way in which a broker or a client may go wrong, or not."""
    problems = replayed(steps).problems
    assert [complaint in problem for problem in problems] == ([True] if complaint else [])
