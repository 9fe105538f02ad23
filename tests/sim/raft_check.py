"""Checks the invariants I1 to I7 of a DLedger group after each turn of each peer.

docs/internals/dledger.md defines the invariants. `tests.sim.raft` checks I10, and `tests.crash` I8 and I9.
"""

from __future__ import annotations

from rocketpy_broker.replication.dledger.core.entry import Entry, next_pos
from rocketpy_broker.replication.dledger.core.messages import RaftResponseCode
from rocketpy_broker.replication.dledger.core.node import RaftNode
from rocketpy_broker.replication.dledger.core.raft_state import Role
from tests.sim.proposals import ProposalResult
from tests.sim.raft_disk import RaftDisk
from tests.sim.raft_history import Find, History


class Violation(AssertionError):
    """A guarantee was violated."""


def check(condition: object, text: str) -> None:
    """Raise Violation unless the condition holds."""
    if not condition:
        raise Violation(text)


class Checker:
    """Sees every peer of a group. size: how many there are."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.bodies: dict[int, bytes] = {}
        self.known: set[bytes] = {b"no-op"}
        self.acked: dict[int, bytes] = {}
        self.acked_index = -1
        self.results: dict[int, RaftResponseCode] = {}
        self.history = History()
        self.served_count = 0
        self.committed: dict[int, Entry] = {}
        self._leaders: dict[int, str] = {}
        self._terms: dict[str, int] = {}
        self._votes: dict[tuple[str, int], str] = {}
        self._marks: dict[str, tuple[int, int]] = {}
        self._seen: dict[tuple[int, int], bytes] = {}
        self._looked: dict[str, tuple[int, list[Entry]]] = {}

    def sent(self, proposal_id: int, body: bytes) -> None:
        """Record the body that a client asks to append."""
        self.bodies[proposal_id] = body
        self.known.add(body)
        self.history.called(proposal_id, body)

    def ended(self, result: ProposalResult, find: Find) -> None:
        """A client got a response. find: the entries of the peer that sent it."""
        check(result.proposal_id not in self.results, f"proposal {result.proposal_id} got two responses")
        self.results[result.proposal_id] = result.code
        self.history.ended(result, find)
        if result.code is not RaftResponseCode.SUCCESS:
            return
        body = self.bodies[result.proposal_id]
        check(self.acked.setdefault(result.index, body) == body, f"I3: {result.index} acknowledged for two")
        self.acked_index = max(self.acked_index, result.index)
        entry = self.committed.get(result.index)
        check(entry is not None and entry.body == body, f"I1: {result.index} acknowledged, not committed")

    def served(self, entry: Entry) -> None:
        """A client got an entry that it requested."""
        self.served_count += 1
        check(self.committed.get(entry.index) == entry, f"I5: {entry.index} served, which is not committed")

    def look(self, name: str, life: int, node: RaftNode, disk: RaftDisk, *, is_stored: bool = True) -> None:
        """Look at a peer. life: how often it was started. is_stored: others may know of its term and vote."""
        if is_stored:
            self._look_at_member(name, node)
        self._look_at_entries(name, disk)
        self._look_at_commit(name, life, node)

    def _look_at_member(self, name: str, node: RaftNode) -> None:
        state = node.state
        check(state.term >= self._terms.get(name, -1), f"I6: {name}'s term fell to {state.term}")
        self._terms[name] = state.term
        if state.role is Role.LEADER:
            leader = self._leaders.setdefault(state.term, name)
            check(leader == name, f"I6: {leader} and {name} lead term {state.term}")
        if state.voted_for is not None:
            voted = self._votes.setdefault((name, state.term), state.voted_for)
            check(voted == state.voted_for, f"I6: {name} voted twice in term {state.term}")

    def _look_at_entries(self, name: str, disk: RaftDisk) -> None:
        entries = disk.entries
        version, looked = self._looked.get(name, (-1, []))
        if version == disk.version:
            return
        start = min(len(entries), len(looked))
        while start and entries[start - 1] is not looked[start - 1]:
            start -= 1
        self._looked[name] = disk.version, list(entries)
        for at in range(start, len(entries)):
            entry = entries[at]
            seen = self._seen.setdefault((entry.index, entry.term), entry.body)
            check(seen == entry.body, f"I6: two entries {entry.index} of term {entry.term}")
            check(entry.body in self.known, f"I2: {name} has {entry.body!r}, which nobody sent")
            if at:
                before = entries[at - 1]
                check(before.index + 1 == entry.index, f"I4: {before.index}, then {entry.index}")
                check(before.term <= entry.term, f"I6: terms fall at {entry.index}")
                check(next_pos(before.end_pos, entry.size, 4096) == entry.pos, f"I4: a gap at {entry.index}")

    def _look_at_commit(self, name: str, life: int, node: RaftNode) -> None:
        before, mark = self._marks.get(name, (0, -1))
        committed = node.state.committed_index
        if life == before:
            check(committed >= mark, f"I6: {name}'s commit fell from {mark} to {committed}")
        else:
            mark = -1
        self._marks[name] = life, committed
        if committed == mark:
            return
        for index in range(max(mark + 1, node.view.begin_index), committed + 1):
            entry = node.view.find(index)
            check(entry is not None, f"I7: {name} has committed {index}, but lacks it")
            first = self.committed.setdefault(index, entry) if entry is not None else None
            check(first == entry, f"I7: {index} committed as two: {first!r:.60} and {entry!r:.60}")

    def finish(self, ledgers: dict[str, list[Entry]]) -> None:
        """The group has settled: every peer has the acknowledged entries."""
        for name, entries in ledgers.items():
            held = {entry.index: entry.body for entry in entries}
            for index, body in self.acked.items():
                is_expired = bool(entries) and index < entries[0].index
                check(is_expired or held.get(index) == body, f"I1: {name} lost acknowledged entry {index}")
