"""What a peer is in its group: role, term, vote, and how far the group is. Pure.

Source: MemberState of DLedger 0.1. Differs: a higher term is taken on at once, not by a thread later on.
"""

from __future__ import annotations

import enum

from rocketpy.errors import ensure
from rocketpy_broker.replication.dledger.core.state_files import TermState


class Role(enum.Enum):
    """What a peer does."""

    CANDIDATE = "candidate"
    FOLLOWER = "follower"
    LEADER = "leader"


class RaftState:
    """Begins as a candidate that knows no leader."""

    def __init__(self, self_id: str, state: TermState, committed_index: int) -> None:
        self.self_id = self_id
        self.role = Role.CANDIDATE
        self.leader_id: str | None = None
        self.term, self.voted_for = state
        self.highest_term = self.term
        """That anybody was heard to be in."""
        self._committed_index = committed_index
        self._saved = state

    @property
    def committed_index(self) -> int:
        """A majority has the entries up to here; -1: none."""
        return self._committed_index

    def commit(self, index: int) -> None:
        """Take note that entries up to `index`, which are here, are committed. Never goes back (I6)."""
        self._committed_index = max(self._committed_index, index)

    def increment_term(self) -> None:
        """Go on to a term in which nothing was voted yet."""
        self.enter_term(max(self.term + 1, self.highest_term))

    def enter_term(self, term: int) -> None:
        """Take on a term if it is newer: no vote, no leader."""
        self.highest_term = max(self.highest_term, term)
        if term > self.term:
            self.term, self.voted_for = term, None
            self.role, self.leader_id = Role.CANDIDATE, None

    def become_candidate(self, highest_term: int | None = None) -> None:
        """Follow nobody and lead nobody. highest_term: that somebody is in."""
        self.highest_term = max(self.highest_term, self.term if highest_term is None else highest_term)
        self.role, self.leader_id = Role.CANDIDATE, None

    def vote(self, candidate: str) -> None:
        """Vote, in this term."""
        ensure(self.voted_for in (None, candidate), f"term {self.term}: voted for {self.voted_for} before")
        self.voted_for = candidate

    def become_follower(self, leader: str) -> None:
        """Follow whoever leads this term."""
        self.role, self.leader_id = Role.FOLLOWER, leader

    def become_leader(self) -> None:
        """Lead this term. Its own vote may be another's: in a group of five, three others are a majority."""
        self.role, self.leader_id = Role.LEADER, self.self_id

    @property
    def has_unsaved_term(self) -> bool:
        """Whether `take_unsaved_term` would return something."""
        return (self.term, self.voted_for) != self._saved

    def take_unsaved_term(self) -> TermState | None:
        """Return term and vote unless they are on disk as they are; from here on they count as saved."""
        state = TermState(self.term, self.voted_for)
        if state == self._saved:
            return None
        self._saved = state
        return state
