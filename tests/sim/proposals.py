"""Clients that append at a peer, and their responses: what `CommitWaiters` does in a broker."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from rocketpy.errors import NotLeader
from rocketpy_broker.replication.dledger.core.messages import RaftResponseCode
from rocketpy_broker.replication.dledger.core.node import RaftNode
from rocketpy_broker.replication.dledger.core.raft_state import Role

WAIT_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class Propose:
    """A client asks a peer to append this body. proposal_id: one `ProposalResult` carries it."""

    proposal_id: int
    body: bytes


@dataclass(frozen=True, slots=True)
class ProposalResult:
    """The response to a client. code: SUCCESS once its entry is committed. index, pos: -1 if it has none.

    After WAIT_QUORUM_ACK_TIMEOUT or TERM_CHANGED the entry may still be committed.
    """

    proposal_id: int
    code: RaftResponseCode
    index: int = -1
    pos: int = -1


class Proposals:
    """The appends of one peer's clients in one of its lives. node: always the same one."""

    def __init__(self) -> None:
        self.pending: deque[tuple[int, int, float, int]] = deque()
        """Index, proposal id, deadline and position of uncommitted entries, in order."""
        self._term = -1
        self._results: list[ProposalResult] = []

    def propose(self, node: RaftNode, propose: Propose, now_ms: float) -> None:
        """Append an entry; its result follows."""
        self.look(node)
        try:
            entry = node.append(propose.body)
        except NotLeader:
            self.tell(ProposalResult(propose.proposal_id, RaftResponseCode.NOT_LEADER))
        else:
            if entry is None:
                self.tell(ProposalResult(propose.proposal_id, RaftResponseCode.LEADER_PENDING_FULL))
            else:
                self._term = entry.term
                self.pending.append((entry.index, propose.proposal_id, now_ms + WAIT_MS, entry.pos))
        node.push(now_ms)
        self.look(node)

    def look(self, node: RaftNode) -> None:
        """See which entries are committed, and whether the peer still leads; after each step of the node."""
        state = node.state
        if self.pending and (state.role is not Role.LEADER or state.term != self._term):
            self.fail_pending()
            self.pending.clear()
        while self.pending and self.pending[0][0] <= state.committed_index:
            self.finish_first(RaftResponseCode.SUCCESS)

    def tick(self, node: RaftNode, now_ms: float) -> None:
        """End what has waited too long; after each tick of the node."""
        self.look(node)
        while self.pending and self.pending[0][2] <= now_ms:
            self.finish_first(RaftResponseCode.WAIT_QUORUM_ACK_TIMEOUT)

    def fail_pending(self) -> None:
        """End all, as the term is over; their entries may be committed or not."""
        while self.pending:
            self.finish_first(RaftResponseCode.TERM_CHANGED)

    def finish_first(self, code: RaftResponseCode) -> None:
        """End the oldest pending proposal with this code."""
        index, proposal_id, _, pos = self.pending.popleft()
        self.tell(ProposalResult(proposal_id, code, index, pos))

    def tell(self, result: ProposalResult) -> None:
        """Add a result for `take`."""
        self._results.append(result)

    def take(self) -> list[ProposalResult]:
        """Return the results since the last call."""
        results, self._results = self._results, []
        return results
