"""The Raft state of one peer: role, term, vote, leader and committed index. No I/O.

Source: MemberState of DLedger 0.1. Differs: a peer enters a higher term immediately, not later in a thread.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from rocketpy.errors import ensure

NO_TERM: Final = -1
"""The term before the first one. Java's peers hold their first round of votes in it."""


class TermState(NamedTuple):
    """Must be durable. voted_for: the candidate that got this peer's vote in `term`; None: not voted yet."""

    term: int = NO_TERM
    voted_for: str | None = None


class LedgerCheckpoint(NamedTuple):
    """Saved every 3 s: the newest committed entry and the newest entry. -1: there is none."""

    committed_index: int = -1
    end_index: int = -1


class Role(enum.Enum):
    """The role of a peer in its term."""

    CANDIDATE = "candidate"
    FOLLOWER = "follower"
    LEADER = "leader"


class RaftState:
    """Starts as a candidate without a leader."""

    def __init__(self, self_id: str, state: TermState, committed_index: int) -> None:
        self.self_id = self_id
        self.role = Role.CANDIDATE
        self.leader_id: str | None = None
        self.term, self.voted_for = state
        self.highest_term = self.term
        """The highest term that any peer was seen in."""
        self.committed_index = committed_index
        """A majority has the entries up to this index; -1: none."""
        self._saved = state

    def commit(self, index: int) -> None:
        """Record that entries up to `index`, which this peer has, are committed. It never decreases."""
        self.committed_index = max(self.committed_index, index)

    def increment_term(self) -> None:
        """Enter a term in which this peer has not voted yet."""
        self.enter_term(max(self.term + 1, self.highest_term))

    def enter_term(self, term: int) -> None:
        """Enter a term if it is newer: as a candidate, without a vote or leader."""
        self.highest_term = max(self.highest_term, term)
        if term > self.term:
            self.term, self.voted_for = term, None
            self.role, self.leader_id = Role.CANDIDATE, None

    def become_candidate(self, highest_term: int = NO_TERM) -> None:
        """Stop leading or following. highest_term: a term that another peer is in."""
        self.highest_term = max(self.highest_term, self.term, highest_term)
        self.role, self.leader_id = Role.CANDIDATE, None

    def vote(self, candidate: str) -> None:
        """Vote in this term."""
        ensure(self.voted_for in (None, candidate), f"already voted for {self.voted_for} in term {self.term}")
        self.voted_for = candidate

    def become_follower(self, leader: str) -> None:
        """Follow the leader of this term."""
        self.role, self.leader_id = Role.FOLLOWER, leader

    def become_leader(self) -> None:
        """Lead this term. This peer may have voted for another: in a group of five, three others suffice."""
        self.role, self.leader_id = Role.LEADER, self.self_id

    @property
    def has_unsaved_term(self) -> bool:
        """Whether `take_unsaved_term` returns something."""
        return (self.term, self.voted_for) != self._saved

    def take_unsaved_term(self) -> TermState | None:
        """Return term and vote if they have changed since the last call; None otherwise."""
        if not self.has_unsaved_term:
            return None
        self._saved = TermState(self.term, self.voted_for)
        return self._saved
