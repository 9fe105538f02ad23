"""Votes and heartbeats: who leads. Pure.

A candidate asks in rounds. Its first round after it lost a leader is held in the old term, where everybody
has voted already: that finds out whether the others still hear the leader, and only when they do not is the
term raised. A peer that was started again asks so, too, but does not lead that term, whatever it hears: it
might have led it before. One that has just led raises the term at once: so nobody leads one term twice.

Source: DLedgerLeaderElector of DLedger 0.1. Differs: the end of the ledger that a vote compares is its newest
entry's own term (D#52), and a heartbeat of a higher term is followed at once.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable

from rocketpy_broker.replication.dledger.core.codes import RaftResponseCode, VoteResult
from rocketpy_broker.replication.dledger.core.events import Outbox
from rocketpy_broker.replication.dledger.core.log_view import LedgerView
from rocketpy_broker.replication.dledger.core.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    VoteRequest,
    VoteResponse,
)
from rocketpy_broker.replication.dledger.core.raft_state import Member, Role
from rocketpy_broker.replication.dledger.core.settings import RaftSettings


class Verdict(enum.Enum):
    """How a round of votes ended."""

    PASSED = "this peer leads"
    ASK_AT_ONCE = "ask again now: some had to take on the term first"
    ASK_AGAIN = "ask again in this term"
    ASK_IN_NEXT_TERM = "ask in a higher term"


_NEWER_LEDGER = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)


def judge(results: Counter[VoteResult], quorum: int, *, is_over: bool) -> Verdict | None:
    """Say how a round ended; None: it goes on. results: how often each was heard, this peer's own among them.

    is_over: everybody has answered, or it has taken too long.
    """
    accepted = results[VoteResult.ACCEPT]
    ready_soon = accepted + results[VoteResult.REJECT_TERM_NOT_READY]
    has_leader = results[VoteResult.REJECT_ALREADY_HAS_LEADER] > 0
    if not (is_over or has_leader or ready_soon >= quorum):
        return None
    if has_leader:
        return Verdict.ASK_IN_NEXT_TERM
    if accepted >= quorum:
        return Verdict.PASSED
    if ready_soon >= quorum:
        return Verdict.ASK_AT_ONCE
    if results.total() - results[VoteResult.UNKNOWN] < quorum:
        return Verdict.ASK_AGAIN  # a peer that is cut off does not drive the term up
    if accepted + sum(results[result] for result in _NEWER_LEDGER) >= quorum:
        return Verdict.ASK_AGAIN
    return Verdict.ASK_IN_NEXT_TERM


class _Round:
    """Questions to everybody, and what was answered."""

    def __init__(self, term: int, began_ms: float, *, is_probe: bool = False) -> None:
        self.term = term
        self.began_ms = began_ms
        self.is_probe = is_probe
        """Whether it can only find out that there is a leader."""
        self.open: set[int] = set()
        self.results: Counter[VoteResult] = Counter()
        self.beats: Counter[int] = Counter()


class Elector:
    """One peer's part in it. chance: returns numbers from 0 up to 1, evenly spread."""

    def __init__(
        self,
        settings: RaftSettings,
        member: Member,
        view: LedgerView,
        outbox: Outbox,
        chance: Callable[[], float],
        now_ms: float,
    ) -> None:
        self._settings = settings
        self._member = member
        self._view = view
        self._outbox = outbox
        self._chance = chance
        self._must_raise = True
        self._must_probe = member.term >= 0
        self._ballot: _Round | None = None
        self._beat: _Round | None = None
        self._vote_cost_ms = 0.0
        self._ask_at_ms = now_ms
        self._heard_ms = now_ms
        self._beat_at_ms = now_ms
        self._answered_ms = now_ms

    # -- being asked --------------------------------------------------------------------------

    def on_vote(self, token: int, request: VoteRequest, now_ms: float) -> None:
        """Answer a candidate. The vote is durable before the answer leaves: both are in one Ready."""
        member = self._member
        answer = VoteResponse(
            group=request.group,
            leader_id=request.leader_id,
            local_id=request.local_id,
            remote_id=request.remote_id,
            term=member.term,
            vote_result=self._vote(request),
        )
        if answer.vote_result is VoteResult.REJECT_TERM_NOT_READY:
            self._step_down(request.term, now_ms)
        elif answer.vote_result is VoteResult.ACCEPT and request.leader_id is not None:
            member.vote(request.leader_id)
        self._outbox.answer(token, answer)

    def _vote(self, request: VoteRequest) -> VoteResult:
        member, view = self._member, self._view
        if request.leader_id not in self._settings.peers:
            return VoteResult.REJECT_UNKNOWN_LEADER
        if request.leader_id == member.self_id:
            return VoteResult.REJECT_UNEXPECTED_LEADER
        if request.term != member.term:
            is_old = request.term < member.term
            return VoteResult.REJECT_EXPIRED_VOTE_TERM if is_old else VoteResult.REJECT_TERM_NOT_READY
        if member.voted_for not in (None, request.leader_id):
            has_leader = member.leader_id is not None
            return VoteResult.REJECT_ALREADY_HAS_LEADER if has_leader else VoteResult.REJECT_ALREADY_VOTED
        if request.ledger_end_term < view.end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if request.ledger_end_term == view.end_term and request.ledger_end_index < view.end_index:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        return VoteResult.ACCEPT

    def on_heartbeat(self, token: int, request: HeartBeatRequest, now_ms: float) -> None:
        """Answer a leader."""
        self._outbox.answer(token, self._hear_leader(request, now_ms))

    def _hear_leader(self, request: HeartBeatRequest, now_ms: float) -> HeartBeatResponse:
        member, leader = self._member, request.leader_id
        if leader is None or leader not in self._settings.peers:
            return HeartBeatResponse(code=RaftResponseCode.UNKNOWN_MEMBER, term=member.term)
        if leader == member.self_id:
            return HeartBeatResponse(code=RaftResponseCode.UNEXPECTED_MEMBER, term=member.term)
        code = self.recognise(leader, request.term, now_ms)
        if code is not RaftResponseCode.SUCCESS:
            return HeartBeatResponse(code=code, term=member.term)
        self._heard_ms = now_ms
        return HeartBeatResponse()

    def recognise(self, leader: str, term: int, now_ms: float) -> RaftResponseCode:
        """Follow whoever says that it leads `term`, unless that is over. Returns SUCCESS or what is wrong."""
        member = self._member
        if term < member.term:
            return RaftResponseCode.EXPIRED_TERM
        member.enter_term(term)
        if member.leader_id is None:
            member.follow(leader)
            self._ballot = self._beat = None
            self._must_raise = self._must_probe = False
            self._heard_ms = now_ms
        return (
            RaftResponseCode.SUCCESS if member.leader_id == leader else RaftResponseCode.INCONSISTENT_LEADER
        )

    def _step_down(self, term: int, now_ms: float) -> None:
        # Who waits for its turn keeps it: else a peer that asks often, and in vain, holds up the others.
        keeps_turn = self._member.role is Role.CANDIDATE and self._ballot is None
        self._member.enter_term(term)
        self._must_raise = self._must_probe = False
        self._ballot = self._beat = None
        ask_at_ms = now_ms + self._interval_ms()
        self._ask_at_ms = min(self._ask_at_ms, ask_at_ms) if keeps_turn else ask_at_ms

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        """Do what is due in this role."""
        match self._member.role:
            case Role.LEADER:
                self._tick_leader(now_ms)
            case Role.FOLLOWER:
                if now_ms - self._heard_ms > self._settings.silence_ms:
                    self._member.stand()
                    self._ask_at_ms = now_ms
            case Role.CANDIDATE:
                self._tick_candidate(now_ms)

    def give_up(self, highest_term: int, now_ms: float) -> None:
        """Lead no more. highest_term: the newest that was heard of."""
        self._member.stand(highest_term)
        self._must_raise = True
        self._beat = None
        self._ask_at_ms = now_ms + self._interval_ms()

    def _interval_ms(self) -> float:
        low, high = self._settings.vote_interval_ms_min, self._settings.vote_interval_ms_max
        return self._vote_cost_ms + low + self._chance() * (high - low)

    # -- standing -----------------------------------------------------------------------------

    def _tick_candidate(self, now_ms: float) -> None:
        if self._ballot is None:
            if now_ms >= self._ask_at_ms:
                self._ask(now_ms)
        elif now_ms - self._ballot.began_ms > self._settings.vote_wait_ms:
            self._conclude(self._ballot, now_ms, is_over=True)

    def _ask(self, now_ms: float) -> None:
        member = self._member
        if self._must_raise and not self._must_probe:
            member.raise_term()
            self._must_raise = False
        ballot = self._ballot = _Round(member.term, now_ms, is_probe=self._must_probe)
        if ballot.is_probe:
            ballot.results[VoteResult.REJECT_ALREADY_VOTED] += 1
        elif member.voted_for in (None, member.self_id):
            member.vote(member.self_id)
            ballot.results[VoteResult.ACCEPT] += 1
        else:
            ballot.results[VoteResult.REJECT_ALREADY_VOTED] += 1
        for peer in self._settings.others:
            request = VoteRequest(
                group=self._settings.group,
                leader_id=member.self_id,
                ledger_end_index=self._view.end_index,
                ledger_end_term=self._view.end_term,
                remote_id=peer,
                term=member.term,
            )
            ballot.open.add(self._outbox.call(peer, request))
        self._conclude(ballot, now_ms, is_over=not ballot.open)

    def on_vote_answer(self, call: int, answer: VoteResponse | None, now_ms: float) -> None:
        """Count an answer to a question of this peer's; None: there was none."""
        ballot = self._ballot
        if ballot is None or call not in ballot.open:
            return
        ballot.open.discard(call)
        result = answer.vote_result if answer is not None else VoteResult.UNKNOWN
        ballot.results[result] += 1
        if answer is not None and result in (
            VoteResult.REJECT_EXPIRED_VOTE_TERM,
            VoteResult.REJECT_TERM_SMALL_THAN_LEDGER,
        ):
            self._member.highest_term = max(self._member.highest_term, answer.term)
        self._conclude(ballot, now_ms, is_over=not ballot.open)

    def _conclude(self, ballot: _Round, now_ms: float, *, is_over: bool) -> None:
        verdict = judge(ballot.results, self._settings.quorum, is_over=is_over)
        if verdict is None:
            return
        self._ballot = None
        self._vote_cost_ms = now_ms - ballot.began_ms
        self._ask_at_ms = now_ms + self._interval_ms()
        if self._member.highest_term > ballot.term:
            verdict = Verdict.ASK_IN_NEXT_TERM
        elif ballot.results[VoteResult.REJECT_ALREADY_HAS_LEADER]:
            self._ask_at_ms += self._settings.silence_ms
        if ballot.is_probe:
            self._must_probe = (
                ballot.results.total() - ballot.results[VoteResult.UNKNOWN] < self._settings.quorum
            )
            return
        self._must_raise = verdict is Verdict.ASK_IN_NEXT_TERM
        if verdict is Verdict.ASK_AT_ONCE:
            self._ask_at_ms = now_ms
        elif verdict is Verdict.PASSED:
            self._member.lead()
            self._must_raise = True  # should it ever stand again
            self._answered_ms = now_ms
            self._send_heartbeats(now_ms)

    # -- leading ------------------------------------------------------------------------------

    def _tick_leader(self, now_ms: float) -> None:
        if now_ms - self._answered_ms > self._settings.silence_ms:
            self.give_up(self._member.term, now_ms)
        elif now_ms >= self._beat_at_ms:
            self._send_heartbeats(now_ms)

    def _send_heartbeats(self, now_ms: float) -> None:
        member = self._member
        beat = self._beat = _Round(member.term, now_ms)
        self._beat_at_ms = now_ms + self._settings.heartbeat_ms
        beat.beats[RaftResponseCode.SUCCESS] += 1
        for peer in self._settings.others:
            request = HeartBeatRequest(
                group=self._settings.group,
                leader_id=member.self_id,
                local_id=member.self_id,
                remote_id=peer,
                term=member.term,
            )
            beat.open.add(self._outbox.call(peer, request))
        self._count_beats(beat, now_ms)

    def on_heartbeat_answer(self, call: int, answer: HeartBeatResponse, now_ms: float) -> None:
        """Count an answer to a heartbeat."""
        beat = self._beat
        if beat is None or call not in beat.open:
            return
        beat.open.discard(call)
        if answer.code == RaftResponseCode.EXPIRED_TERM and answer.term > self._member.term:
            self.give_up(answer.term, now_ms)
        elif answer.code == RaftResponseCode.INCONSISTENT_LEADER:
            self.give_up(self._member.term, now_ms)
        else:
            beat.beats[answer.code] += 1
            self._count_beats(beat, now_ms)

    def _count_beats(self, beat: _Round, now_ms: float) -> None:
        agreed = beat.beats[RaftResponseCode.SUCCESS]
        if agreed >= self._settings.quorum:
            self._answered_ms = now_ms
        elif agreed + beat.beats[RaftResponseCode.TERM_NOT_READY] >= self._settings.quorum:
            # Java peers that have to take on the term first.
            self._beat_at_ms = min(self._beat_at_ms, now_ms + self._settings.vote_interval_ms_min)
