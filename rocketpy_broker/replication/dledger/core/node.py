"""One peer of a group: events and `now_ms` in, a `Ready` out. Pure; the shell's loop is::

    node.step(event, now_ms)
    while ready := node.take_ready():
        save(ready.term_state), store(ready.write)   # and flush: durable first
        send(ready.calls), send(ready.answers)       # only then may peers hear of it
        tell(ready.outcomes)
        node.advance(now_ms)

Events may be stepped while a Ready is being stored; only one Ready is out at a time.

A broker's own messages go in by `append` and `push`, without an event each. Answers to a leader take effect
with `push`, or when a Ready is taken.

Source: DLedgerServer of DLedger 0.1. Differs: GET serves only what is committed (I5), PULL is refused where
0.1 is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocketpy.errors import NotLeader, StoreDamaged, ensure
from rocketpy_broker.replication.dledger.core.codes import RaftResponseCode
from rocketpy_broker.replication.dledger.core.election import Elector
from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.events import (
    Answered,
    Asked,
    Event,
    Expire,
    Outbox,
    Outcome,
    Propose,
    Ready,
    Tick,
)
from rocketpy_broker.replication.dledger.core.follower import Follower
from rocketpy_broker.replication.dledger.core.leader import Leader, PeerProgress
from rocketpy_broker.replication.dledger.core.log_view import LedgerView, StoredLedger, Write
from rocketpy_broker.replication.dledger.core.messages import (
    AppendEntryRequest,
    AppendEntryResponse,
    GetEntriesRequest,
    GetEntriesResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PullEntriesRequest,
    PullEntriesResponse,
    PushEntryRequest,
    PushEntryResponse,
    RaftMessage,
    VoteRequest,
    VoteResponse,
)
from rocketpy_broker.replication.dledger.core.raft_state import Member, Role
from rocketpy_broker.replication.dledger.core.settings import RaftSettings
from rocketpy_broker.replication.dledger.core.state_files import LedgerCheckpoint, TermState

_NOTHING = Write(is_reset=False, keep_until=None, entries=())
_ANSWERS: dict[type[RaftMessage], type[RaftMessage]] = {
    AppendEntryRequest: AppendEntryResponse,
    GetEntriesRequest: GetEntriesResponse,
    HeartBeatRequest: HeartBeatResponse,
    MetadataRequest: MetadataResponse,
    PullEntriesRequest: PullEntriesResponse,
    PushEntryRequest: PushEntryResponse,
    VoteRequest: VoteResponse,
}


class RaftNode:
    """A peer that has just started.

    stored: its ledger, recovered. state, checkpoint: from its files. chance: numbers from 0 up to 1.
    Raises StoreDamaged for a ledger from a later term than the vote.
    """

    def __init__(
        self,
        settings: RaftSettings,
        stored: StoredLedger,
        state: TermState,
        checkpoint: LedgerCheckpoint,
        chance: Callable[[], float],
        now_ms: float,
    ) -> None:
        self._settings = settings
        self._outbox = Outbox()
        self.view = LedgerView(stored, settings.file_bytes)
        if self.view.end_term > state.term:
            raise StoreDamaged(
                f"entry {self.view.end_index} has term {self.view.end_term}, the vote {state.term}"
            )
        self.member = Member(settings.self_id, state, min(checkpoint.committed_index, self.view.end_index))
        self._elector = Elector(settings, self.member, self.view, self._outbox, chance, now_ms)
        self._follower = Follower(settings, self.member, self.view, self._outbox, self._elector)
        self._leader: Leader | None = None
        self._is_out = False
        self._unsettled_ms: float | None = None
        """When the last answer came, while what follows from it is still to be done."""
        self._asked: dict[int, tuple[int, AppendEntryRequest]] = {}
        """Token and request of appends that came over the wire, by the ticket (below 0) made for them."""

    @property
    def role(self) -> Role:
        """What this peer does in `member.term`."""
        return self.member.role

    def step(self, event: Event, now_ms: float) -> None:
        """Take an event."""
        match event:
            case Tick():
                self._elector.tick(now_ms)
                self._follower.tick(now_ms)
            case Asked(token, message):
                self._on_request(token, message, now_ms)
            case Answered(call, message):
                self._on_answer(call, message, now_ms)
                if self._leads_on:  # many answers come at once: what they make possible is done once
                    self._unsettled_ms = now_ms
                    return
            case Propose(ticket, body):
                self._propose(ticket, body, now_ms)
            case Expire(begin_index):
                ensure(begin_index <= self.member.committed_index, f"{begin_index} is not committed")
                self.view.expire(begin_index)
        self._settle(now_ms)
        if isinstance(event, Tick) and self._leader is not None:
            self._leader.tick(now_ms)
            self._answer_appends()

    def append(self, body: bytes) -> Entry | None:
        """Append an entry, at once and without an Outcome; `push` follows.

        It is committed when `committed_index` has reached it in this term. Returns None when too much waits.
        Raises NotLeader.
        """
        if self._leader is None:
            raise NotLeader(f"{self.member.self_id} does not lead", leader_hint=self.member.leader_id)
        return self._leader.append(body)

    def push(self, now_ms: float) -> None:
        """Send what was appended, and commit what answers since made possible."""
        self._settle(now_ms)

    @property
    def _leads_on(self) -> bool:
        """Whether this peer leads, as it did after the last event."""
        member, leader = self.member, self._leader
        return leader is not None and member.role is Role.LEADER and member.term == leader.term

    @property
    def followers(self) -> Sequence[PeerProgress]:
        """What a leader knows of the others; nothing on any other peer."""
        return () if self._leader is None else self._leader.followers

    def take_ready(self) -> Ready:
        """Return what is to be done; falsy when there is nothing, or the last one is still being done."""
        if self._unsettled_ms is not None and not self._is_out:
            self._settle(self._unsettled_ms)
        outbox = self._outbox
        if self._is_out or not (outbox or self.view.has_changes or self.member.is_unsaved):
            return Ready(None, _NOTHING, (), (), (), self.member.committed_index)
        ready = Ready(
            self.member.take_unsaved(),
            self.view.take(),
            tuple(outbox.calls),
            tuple(outbox.answers),
            tuple(outbox.outcomes),
            self.member.committed_index,
        )
        outbox.calls.clear()
        outbox.answers.clear()
        outbox.outcomes.clear()
        self._is_out = True
        return ready

    def advance(self, now_ms: float) -> None:
        """What `take_ready` returned last is done."""
        ensure(self._is_out, "nothing was taken")
        self._is_out = False
        self.view.written()
        self._settle(now_ms)

    def _settle(self, now_ms: float) -> None:
        """Begin or end leading, as the last event made it; commit and push what it made possible."""
        self._unsettled_ms = None
        member, leader = self.member, self._leader
        if leader is not None and not self._leads_on:
            leader.abandon()
            self._leader = leader = None
        if leader is None and member.role is Role.LEADER:
            self._leader = leader = Leader(self._settings, member, self.view, self._outbox)
        if leader is not None:
            leader.count()
            leader.push(now_ms)
        self._answer_appends()

    # -- requests -----------------------------------------------------------------------------

    def _on_request(self, token: int, message: RaftMessage, now_ms: float) -> None:
        refusal = self._refusal(message)
        if refusal is not None:
            self._outbox.answer(token, self._refused(message, refusal))
        elif isinstance(message, VoteRequest):
            self._elector.on_vote(token, message, now_ms)
        elif isinstance(message, HeartBeatRequest):
            self._elector.on_heartbeat(token, message, now_ms)
        elif isinstance(message, PushEntryRequest):
            self._follower.on_push(token, message, now_ms)
        elif isinstance(message, AppendEntryRequest) and self._leader is not None:
            ticket = -1 - token
            self._asked[ticket] = token, message
            self._leader.propose(ticket, message.body or b"", now_ms)
        elif isinstance(message, GetEntriesRequest):
            self._outbox.answer(token, self._get(message))
        else:
            answer = MetadataResponse(
                group=message.group, leader_id=self.member.leader_id, peers=self._settings.peers
            )
            self._outbox.answer(token, answer)

    def _refusal(self, message: RaftMessage) -> RaftResponseCode | None:
        if message.remote_id != self._settings.self_id:
            return RaftResponseCode.UNKNOWN_MEMBER
        if message.group != self._settings.group:
            return RaftResponseCode.UNKNOWN_GROUP
        if isinstance(message, AppendEntryRequest | GetEntriesRequest) and self._leader is None:
            return RaftResponseCode.NOT_LEADER
        is_closed = isinstance(message, AppendEntryRequest) and not self._settings.takes_appends
        if is_closed or isinstance(message, PullEntriesRequest):
            return RaftResponseCode.UNSUPPORTED
        return None

    def _refused(self, message: RaftMessage, code: RaftResponseCode) -> RaftMessage:
        return _ANSWERS[type(message)](
            code=code,
            group=message.group,
            leader_id=self.member.leader_id,
            local_id=message.local_id,
            remote_id=message.remote_id,
            term=message.term,
        )

    def _get(self, request: GetEntriesRequest) -> RaftMessage:
        index = request.begin_index if request.begin_index is not None else -1
        entry = self.view.find(index)
        if entry is None or index > self.member.committed_index:
            return self._refused(request, RaftResponseCode.INDEX_OUT_OF_RANGE)
        return GetEntriesResponse(group=request.group, entries=[entry])

    def _propose(self, ticket: int, body: bytes, now_ms: float) -> None:
        if self._leader is None:
            self._outbox.outcomes.append(Outcome(ticket, RaftResponseCode.NOT_LEADER))
        else:
            self._leader.propose(ticket, body, now_ms)

    def _answer_appends(self) -> None:
        """Turn outcomes of appends that came over the wire into answers."""
        if not self._asked:
            return
        outcomes = self._outbox.outcomes
        for outcome in [outcome for outcome in outcomes if outcome.ticket in self._asked]:
            outcomes.remove(outcome)
            token, request = self._asked.pop(outcome.ticket)
            answer = AppendEntryResponse(
                code=outcome.code,
                group=request.group,
                index=outcome.index,
                leader_id=self.member.leader_id,
                pos=outcome.pos,
                term=self.member.term,
            )
            self._outbox.answer(token, answer)

    # -- answers ------------------------------------------------------------------------------

    def _on_answer(self, call: int, message: RaftMessage | None, now_ms: float) -> None:
        leader = self._leader
        if (
            leader is not None
            and isinstance(message, PushEntryResponse)
            and message.code == RaftResponseCode.EXPIRED_TERM
            and message.term > self.member.term
        ):
            self._elector.give_up(message.term, now_ms)
            return
        # A call that failed has no answer to tell it by; whoever made it knows its number.
        if message is None or isinstance(message, VoteResponse):
            self._elector.on_vote_answer(call, message, now_ms)
        if isinstance(message, HeartBeatResponse):
            self._elector.on_heartbeat_answer(call, message, now_ms)
        if leader is not None and (message is None or isinstance(message, PushEntryResponse)):
            leader.on_answer(call, message, now_ms)
