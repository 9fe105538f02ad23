"""Leader election: votes and heartbeats. No I/O.

A candidate holds rounds of votes. The first round after it lost its leader is a probe: it is in the old term,
in which a majority has already voted. It finds out whether the others still have the leader. The term is
incremented only if they do not. A probe does what PreVote does in etcd.

A restarted peer starts with a probe, too. The peer may have led that term, so it must not win this probe. A
peer that has just led increments the term immediately. So no peer leads a term twice.

A peer that receives a vote request of a newer term defers: it enters that term, and delays its own rounds.

Source: DLedgerLeaderElector of DLedger 0.1. Differs: a vote compares the term in the newest entry itself
(openmessaging/dledger #52), and a peer enters the term of a heartbeat immediately.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import InitVar, dataclass

from rocketpy_broker.replication.dledger.core.events import Outbox
from rocketpy_broker.replication.dledger.core.log_view import LedgerView
from rocketpy_broker.replication.dledger.core.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    RaftResponseCode,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from rocketpy_broker.replication.dledger.core.raft_state import RaftState, Role
from rocketpy_broker.replication.dledger.core.settings import RaftSettings


class ElectionResult(enum.Enum):
    """The result of a round of votes, with DLedger's names."""

    PASSED = "this peer is elected"
    REVOTE_IMMEDIATELY = "vote again now: some peers had to enter the term first"
    WAIT_TO_REVOTE = "wait, then vote again in this term"
    WAIT_TO_VOTE_NEXT = "wait, then vote again in a higher term"


class _NextRound(enum.Enum):
    """What the next round of votes of a candidate is."""

    PROBE = "in the term of the restart; it cannot be won"
    SAME_TERM = "in the current term"
    NEW_TERM = "in a higher term"


_NEWER_LEDGER = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)


def tally_votes(results: Counter[VoteResult], quorum: int, *, is_over: bool) -> ElectionResult | None:
    """Return the result of a round of votes; None: it continues. results: counts, own vote included.

    is_over: all peers have responded, or the round has timed out.
    """
    accepted = results[VoteResult.ACCEPT]
    ready_soon = accepted + results[VoteResult.REJECT_TERM_NOT_READY]
    has_leader = results[VoteResult.REJECT_ALREADY_HAS_LEADER] > 0
    if not (is_over or has_leader or ready_soon >= quorum):
        return None
    if has_leader:
        return ElectionResult.WAIT_TO_VOTE_NEXT
    if accepted >= quorum:
        return ElectionResult.PASSED
    if ready_soon >= quorum:
        return ElectionResult.REVOTE_IMMEDIATELY
    if results.total() - results[VoteResult.UNKNOWN] < quorum:
        return ElectionResult.WAIT_TO_REVOTE  # an isolated peer does not increment the term
    if accepted + sum(results[result] for result in _NEWER_LEDGER) >= quorum:
        return ElectionResult.WAIT_TO_REVOTE
    return ElectionResult.WAIT_TO_VOTE_NEXT


class _Round:
    """One round of requests to all peers, and their responses.

    is_probe: whether it is the probe of a restarted peer, which cannot be won.
    """

    def __init__(self, term: int, began_ms: float, *, is_probe: bool = False) -> None:
        self.term = term
        self.began_ms = began_ms
        self.is_probe = is_probe
        self.open: dict[int, str] = {}
        """Peers without a response, by the number of the request."""
        self.results: Counter[VoteResult] = Counter()
        """The results of a round of votes, own vote included."""
        self.codes: Counter[int] = Counter()
        """The codes of the responses to heartbeats, this peer's own SUCCESS included."""


@dataclass(eq=False)
class LeaderElector:
    """The election on one peer."""

    settings: RaftSettings
    state: RaftState
    view: LedgerView
    outbox: Outbox
    rng: Callable[[], float]
    """Returns random numbers in [0, 1)."""
    now_ms: InitVar[float]

    def __post_init__(self, now_ms: float) -> None:
        self._next_round = _NextRound.PROBE if self.state.term >= 0 else _NextRound.NEW_TERM
        self._vote_round: _Round | None = None
        self._heartbeat_round: _Round | None = None
        self._last_round_ms = 0.0
        self._next_election_ms = now_ms
        self._last_leader_contact_ms = now_ms
        self._next_heartbeat_ms = now_ms
        self._last_quorum_ms = now_ms
        self._last_response_ms: dict[str, float] = {}
        """When each follower responded to a heartbeat of this leader."""

    # -- requests of other peers --------------------------------------------------------------

    def on_vote(self, request_id: int, request: VoteRequest, now_ms: float) -> None:
        """Respond to a candidate. The vote is durable before the response is sent: both are in one Ready."""
        state = self.state
        response = VoteResponse(
            group=request.group,
            leader_id=request.leader_id,
            local_id=request.local_id,
            remote_id=request.remote_id,
            term=state.term,
            vote_result=self._decide_vote(request),
        )
        if response.vote_result is VoteResult.REJECT_TERM_NOT_READY:
            self._defer_to_newer_term(request, now_ms)
        elif response.vote_result is VoteResult.ACCEPT and request.leader_id is not None:
            state.vote(request.leader_id, "asked first, and its ledger is as new as this peer's")
        self.outbox.respond(request_id, response)

    def _decide_vote(self, request: VoteRequest) -> VoteResult:
        state, view = self.state, self.view
        if request.leader_id not in self.settings.peers:
            return VoteResult.REJECT_UNKNOWN_LEADER
        if request.leader_id == state.self_id:
            return VoteResult.REJECT_UNEXPECTED_LEADER
        if request.term != state.term:
            is_old = request.term < state.term
            return VoteResult.REJECT_EXPIRED_VOTE_TERM if is_old else VoteResult.REJECT_TERM_NOT_READY
        if state.voted_for not in (None, request.leader_id):
            has_leader = state.leader_id is not None
            return VoteResult.REJECT_ALREADY_HAS_LEADER if has_leader else VoteResult.REJECT_ALREADY_VOTED
        if request.ledger_end_term < view.end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if request.ledger_end_term == view.end_term and request.ledger_end_index < view.end_index:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        return VoteResult.ACCEPT

    def on_heartbeat(self, request_id: int, request: HeartBeatRequest, now_ms: float) -> None:
        """Respond to a leader."""
        self.outbox.respond(request_id, self._heartbeat_response(request, now_ms))

    def _heartbeat_response(self, request: HeartBeatRequest, now_ms: float) -> HeartBeatResponse:
        state, leader = self.state, request.leader_id
        if leader is None or leader not in self.settings.peers:
            return HeartBeatResponse(code=RaftResponseCode.UNKNOWN_MEMBER, term=state.term)
        if leader == state.self_id:
            return HeartBeatResponse(code=RaftResponseCode.UNEXPECTED_MEMBER, term=state.term)
        code = self.accept_leader(leader, request.term, now_ms)
        if code is not RaftResponseCode.SUCCESS:
            return HeartBeatResponse(code=code, term=state.term)
        self._last_leader_contact_ms = now_ms
        return HeartBeatResponse()

    def accept_leader(self, leader: str, term: int, now_ms: float) -> RaftResponseCode:
        """Follow a peer that claims to lead `term`. Returns SUCCESS, or why not: the term may be over."""
        state = self.state
        if term < state.term:
            return RaftResponseCode.EXPIRED_TERM
        if term > state.term:
            state.enter_term(term, f"{leader} leads it")
        if state.leader_id is None:
            state.become_follower(leader)
            self._vote_round = self._heartbeat_round = None
            self._next_round = _NextRound.SAME_TERM
            self._last_leader_contact_ms = now_ms
        return RaftResponseCode.SUCCESS if state.leader_id == leader else RaftResponseCode.INCONSISTENT_LEADER

    def _defer_to_newer_term(self, request: VoteRequest, now_ms: float) -> None:
        # A waiting candidate does not postpone its next election: otherwise a peer with many unsuccessful
        # rounds would delay the others.
        keeps_time = self.state.role is Role.CANDIDATE and self._vote_round is None
        self.state.enter_term(request.term, f"{request.leader_id} asks for votes in it")
        self._next_round = _NextRound.SAME_TERM
        self._vote_round = self._heartbeat_round = None
        election_ms = now_ms + self._election_wait_ms()
        self._next_election_ms = min(self._next_election_ms, election_ms) if keeps_time else election_ms

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        """Check the timers of the current role."""
        match self.state.role:
            case Role.LEADER:
                self._tick_leader(now_ms)
            case Role.FOLLOWER:
                timeout_ms = self.settings.election_timeout_ms
                if now_ms - self._last_leader_contact_ms > timeout_ms:
                    leader = self.state.leader_id
                    self.state.become_candidate(f"no heartbeat of {leader} for {timeout_ms} ms")
                    self._next_election_ms = now_ms
            case Role.CANDIDATE:
                self._tick_candidate(now_ms)

    def step_down(self, highest_term: int, why: str, now_ms: float) -> None:
        """Stop leading. highest_term: the highest known term."""
        self.state.become_candidate(why, highest_term)
        self._next_round = _NextRound.NEW_TERM
        self._heartbeat_round = None
        self._next_election_ms = now_ms + self._election_wait_ms()

    def _election_wait_ms(self) -> float:
        low, high = self.settings.vote_interval_ms_min, self.settings.vote_interval_ms_max
        return self._last_round_ms + low + self.rng() * (high - low)

    # -- as a candidate -----------------------------------------------------------------------

    def _tick_candidate(self, now_ms: float) -> None:
        if self._vote_round is None:
            if now_ms >= self._next_election_ms:
                self._start_election(now_ms)
        elif now_ms - self._vote_round.began_ms > self.settings.vote_wait_ms:
            self._finish_election(self._vote_round, now_ms, is_over=True)

    def _start_election(self, now_ms: float) -> None:
        state = self.state
        if self._next_round is _NextRound.NEW_TERM:
            state.increment_term()
            self._next_round = _NextRound.SAME_TERM
        is_probe = self._next_round is _NextRound.PROBE
        vote_round = self._vote_round = _Round(state.term, now_ms, is_probe=is_probe)
        if vote_round.is_probe:
            vote_round.results[VoteResult.REJECT_ALREADY_VOTED] += 1
        elif state.voted_for in (None, state.self_id):
            state.vote(state.self_id, "stands for election")
            vote_round.results[VoteResult.ACCEPT] += 1
        else:
            vote_round.results[VoteResult.REJECT_ALREADY_VOTED] += 1
        for peer in self.settings.others:
            request = VoteRequest(
                group=self.settings.group,
                leader_id=state.self_id,
                ledger_end_index=self.view.end_index,
                ledger_end_term=self.view.end_term,
                remote_id=peer,
                term=state.term,
            )
            vote_round.open[self.outbox.request(peer, request)] = peer
        self._finish_election(vote_round, now_ms, is_over=not vote_round.open)

    def on_vote_response(self, number: int, response: VoteResponse | None, now_ms: float) -> None:
        """Count a response to a vote request; None: the request failed."""
        vote_round = self._vote_round
        if vote_round is None or number not in vote_round.open:
            return
        del vote_round.open[number]
        result = response.vote_result if response is not None else VoteResult.UNKNOWN
        vote_round.results[result] += 1
        if response is not None and result in (
            VoteResult.REJECT_EXPIRED_VOTE_TERM,
            VoteResult.REJECT_TERM_SMALL_THAN_LEDGER,
        ):
            self.state.highest_term = max(self.state.highest_term, response.term)
        self._finish_election(vote_round, now_ms, is_over=not vote_round.open)

    def _finish_election(self, vote_round: _Round, now_ms: float, *, is_over: bool) -> None:
        outcome = tally_votes(vote_round.results, self.settings.quorum, is_over=is_over)
        if outcome is None:
            return
        self._vote_round = None
        self._last_round_ms = now_ms - vote_round.began_ms
        self._next_election_ms = now_ms + self._election_wait_ms()
        if self.state.highest_term > vote_round.term:
            outcome = ElectionResult.WAIT_TO_VOTE_NEXT
        elif vote_round.results[VoteResult.REJECT_ALREADY_HAS_LEADER]:
            self._next_election_ms += self.settings.election_timeout_ms
        if vote_round.is_probe:
            if vote_round.results.total() - vote_round.results[VoteResult.UNKNOWN] >= self.settings.quorum:
                self._next_round = _NextRound.NEW_TERM
            return
        is_term_over = outcome is ElectionResult.WAIT_TO_VOTE_NEXT
        self._next_round = _NextRound.NEW_TERM if is_term_over else _NextRound.SAME_TERM
        if outcome is ElectionResult.REVOTE_IMMEDIATELY:
            self._next_election_ms = now_ms
        elif outcome is ElectionResult.PASSED:
            votes = vote_round.results[VoteResult.ACCEPT]
            self.state.become_leader(f"{votes} of {len(self.settings.peers)} peers voted for it")
            self._next_round = _NextRound.NEW_TERM  # should it become a candidate again
            self._last_quorum_ms = now_ms
            self._last_response_ms = dict.fromkeys(self.settings.others, now_ms)
            self._send_heartbeats(now_ms)

    # -- as the leader ------------------------------------------------------------------------

    def _tick_leader(self, now_ms: float) -> None:
        timeout_ms = self.settings.election_timeout_ms
        if now_ms - self._last_quorum_ms > timeout_ms:
            self.step_down(self.state.term, f"no majority has responded for {timeout_ms} ms", now_ms)
        elif now_ms >= self._next_heartbeat_ms:
            self._send_heartbeats(now_ms)

    def _send_heartbeats(self, now_ms: float) -> None:
        state = self.state
        heartbeat_round = self._heartbeat_round = _Round(state.term, now_ms)
        self._next_heartbeat_ms = now_ms + self.settings.heartbeat_ms
        heartbeat_round.codes[RaftResponseCode.SUCCESS] += 1
        for peer in self.settings.others:
            request = HeartBeatRequest(
                group=self.settings.group,
                leader_id=state.self_id,
                local_id=state.self_id,
                remote_id=peer,
                term=state.term,
            )
            heartbeat_round.open[self.outbox.request(peer, request)] = peer
        self._count_heartbeats(heartbeat_round, now_ms)

    def on_heartbeat_response(self, number: int, response: HeartBeatResponse, now_ms: float) -> None:
        """Count a response to a heartbeat."""
        heartbeat_round = self._heartbeat_round
        if heartbeat_round is None or number not in heartbeat_round.open:
            return
        peer = heartbeat_round.open.pop(number)
        self._last_response_ms[peer] = now_ms
        if response.code == RaftResponseCode.EXPIRED_TERM and response.term > self.state.term:
            self.step_down(response.term, f"{peer} is in term {response.term}", now_ms)
        elif response.code == RaftResponseCode.INCONSISTENT_LEADER:
            self.step_down(self.state.term, f"{peer} follows another leader of this term", now_ms)
        else:
            heartbeat_round.codes[response.code] += 1
            self._count_heartbeats(heartbeat_round, now_ms)

    def silent_peers(self, now_ms: float) -> tuple[str, ...]:
        """Return the followers that have missed too many heartbeats; none unless this peer leads."""
        if self.state.role is not Role.LEADER:
            return ()
        since_ms = now_ms - self.settings.election_timeout_ms
        return tuple(peer for peer, at_ms in self._last_response_ms.items() if at_ms < since_ms)

    def _count_heartbeats(self, heartbeat_round: _Round, now_ms: float) -> None:
        accepted = heartbeat_round.codes[RaftResponseCode.SUCCESS]
        if accepted >= self.settings.quorum:
            self._last_quorum_ms = now_ms
        elif accepted + heartbeat_round.codes[RaftResponseCode.TERM_NOT_READY] >= self.settings.quorum:
            # Java peers have to enter the term first.
            self._next_heartbeat_ms = min(
                self._next_heartbeat_ms, now_ms + self.settings.vote_interval_ms_min
            )
