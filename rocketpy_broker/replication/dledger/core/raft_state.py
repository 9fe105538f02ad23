"""The Raft state of one peer: role, term, vote, leader and committed index. No I/O.

After an incident, the logs of the peers must show which peer led which term, and why it changed. So all
changes are made by the methods of this class, which log the old value, the new value and the reason.

Source: MemberState of DLedger 0.1. Differs: a peer enters a higher term immediately, not later in a thread.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from rocketpy.errors import ensure
from rocketpy_broker.replication.dledger.core.settings import RaftSettings

NO_TERM: Final = -1
"""The term before the first one. Java's peers hold their first round of votes in it."""


class TermState(NamedTuple):
    """Must be durable."""

    term: int = NO_TERM
    voted_for: str | None = None
    """The candidate that got this peer's vote in `term`; None: not voted yet."""


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
    """Starts as a candidate without a leader.

    committed_index: a majority has the entries up to this index; -1: none.
    """

    def __init__(self, settings: RaftSettings, state: TermState, committed_index: int) -> None:
        self.self_id = settings.self_id
        self.role = Role.CANDIDATE
        self.leader_id: str | None = None
        self.term, self.voted_for = state
        self.highest_term = self.term
        """The highest term that any peer was seen in."""
        self.committed_index = committed_index
        self._saved = state
        self._log = settings.log
        self._log.info(
            "peer %s starts as candidate of term %d; vote: %s; committed index: %d",
            self.self_id,
            self.term,
            self.voted_for,
            committed_index,
        )

    def commit(self, index: int) -> None:
        """Record that entries up to `index`, which this peer has, are committed. It never decreases."""
        if index > self.committed_index:
            self._log.debug(
                "peer %s: committed index %d -> %d, as %s of term %d, leader: %s",
                self.self_id,
                self.committed_index,
                index,
                self.role.value,
                self.term,
                self.leader_id,
            )
            self.committed_index = index

    def increment_term(self) -> None:
        """Enter a term in which this peer has not voted yet, to start an election."""
        self.enter_term(max(self.term + 1, self.highest_term), "starts an election")

    def enter_term(self, term: int, why: str) -> None:
        """Enter a newer term: as a candidate, without a vote or leader."""
        ensure(term > self.term, f"cannot enter term {term} after term {self.term}")
        self.highest_term = max(self.highest_term, term)
        self._become(Role.CANDIDATE, None, term, why)
        self.voted_for = None

    def become_candidate(self, why: str, highest_term: int = NO_TERM) -> None:
        """Stop leading or following. highest_term: a term that another peer is in."""
        self.highest_term = max(self.highest_term, self.term, highest_term)
        self._become(Role.CANDIDATE, None, self.term, why)

    def vote(self, candidate: str, why: str) -> None:
        """Vote in this term."""
        ensure(self.voted_for in (None, candidate), f"already voted for {self.voted_for} in term {self.term}")
        if self.voted_for is None:
            self._log.info(
                "peer %s: vote in term %d: None -> %s: %s", self.self_id, self.term, candidate, why
            )
        self.voted_for = candidate

    def become_follower(self, leader: str) -> None:
        """Follow the leader of this term."""
        self._become(Role.FOLLOWER, leader, self.term, f"{leader} leads it")

    def become_leader(self, why: str) -> None:
        """Lead this term. This peer may have voted for another: in a group of five, three others suffice."""
        self._become(Role.LEADER, self.self_id, self.term, why)

    def _become(self, role: Role, leader_id: str | None, term: int, why: str) -> None:
        self._log.info(
            "peer %s: %s of term %d -> %s of term %d: %s",
            self.self_id,
            self.role.value,
            self.term,
            role.value,
            term,
            why,
        )
        self.role, self.leader_id, self.term = role, leader_id, term

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
