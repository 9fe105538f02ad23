"""The Raft core of one peer: events and `now_ms` in, a `Ready` out. No I/O. The shell's loop is::

    node.step(event, now_ms)
    while ready := node.take_ready():
        send(ready.requests_before_write)              # pushes and heartbeats, unless the term has changed
        save(ready.term_state), store(ready.write)     # and flush
        send(ready.requests_after_write), send(ready.responses)
        node.advance(now_ms)

Events may be stepped while a Ready is being stored. Only one Ready is taken at a time.

A broker appends its messages with `append` and `push`, without an event each. After responses, a leader
commits and pushes at the next `push`, `take_ready` or other event, once for all of them.

Source: DLedgerServer of DLedger 0.1. Differs: GET returns only committed entries. PULL gets a response, where
0.1 sends none. APPEND is rejected, since only the broker of this peer appends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocketpy.errors import NotLeader, StoreDamaged, ensure
from rocketpy_broker.replication.dledger.core.election import LeaderElector
from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.events import (
    EntriesExpiring,
    Event,
    Outbox,
    Ready,
    RequestReceived,
    ResponseReceived,
    Tick,
)
from rocketpy_broker.replication.dledger.core.follower import Follower
from rocketpy_broker.replication.dledger.core.leader import Leader, PeerProgress
from rocketpy_broker.replication.dledger.core.log_view import LedgerView, StoredLedger, Write
from rocketpy_broker.replication.dledger.core.messages import (
    RESPONSE_TYPES,
    AppendEntryRequest,
    GetEntriesRequest,
    GetEntriesResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataResponse,
    PullEntriesRequest,
    PushEntryRequest,
    PushEntryResponse,
    RaftMessage,
    RaftResponseCode,
    VoteRequest,
    VoteResponse,
)
from rocketpy_broker.replication.dledger.core.raft_state import LedgerCheckpoint, RaftState, Role, TermState
from rocketpy_broker.replication.dledger.core.settings import RaftSettings

_NOTHING = Write(is_reset=False, truncate_after=None, entries=())


class RaftNode:
    """The Raft core of one peer. It starts as a candidate.

    stored: the recovered ledger. state, checkpoint: as loaded from their files. rng: returns random numbers
    in [0, 1).

    Raises:
        StoreDamaged: The newest entry has a later term than `state`.
    """

    def __init__(
        self,
        settings: RaftSettings,
        stored: StoredLedger,
        state: TermState,
        checkpoint: LedgerCheckpoint,
        rng: Callable[[], float],
        now_ms: float,
    ) -> None:
        self._settings = settings
        self._outbox = Outbox()
        self.view = LedgerView(stored, settings.file_bytes)
        if self.view.end_term > state.term:
            raise StoreDamaged(
                f"entry {self.view.end_index} has term {self.view.end_term}, but file currterm has the older "
                f"term {state.term}; start this peer with an empty directory: it copies the ledger from the "
                "others"
            )
        self.state = RaftState(settings, state, min(checkpoint.committed_index, self.view.end_index))
        self._elector = LeaderElector(settings, self.state, self.view, self._outbox, rng, now_ms)
        self._follower = Follower(settings, self.state, self.view, self._outbox, self._elector)
        self._leader: Leader | None = None
        self._is_ready_taken = False
        self._deferred_response_ms: float | None = None
        """Time of the last response after which commit and push were deferred; None: there is none."""

    @property
    def role(self) -> Role:
        """The role in `state.term`."""
        return self.state.role

    def step(self, event: Event, now_ms: float) -> None:
        """Handle an event."""
        match event:
            case Tick():
                self._elector.tick(now_ms)
                self._follower.tick(now_ms)
            case RequestReceived(request_id, message):
                self._on_request(request_id, message, now_ms)
            case ResponseReceived(number, message):
                self._on_response(number, message, now_ms)
                if self._is_still_leader:  # many responses arrive together; commit and push once for all
                    self._deferred_response_ms = now_ms
                    return
            case EntriesExpiring(begin_index):
                ensure(begin_index <= self.state.committed_index, f"entry {begin_index} is not committed")
                self.view.expire(begin_index)
        self._update_leader(now_ms)

    def append(self, body: bytes) -> Entry | None:
        """Append an entry as the leader; `push` must follow.

        It is committed once the committed index has reached it in this term. Returns None if too many entries
        are uncommitted. Raises NotLeader.
        """
        if self._leader is None:
            raise NotLeader(f"{self.state.self_id} does not lead", leader_hint=self.state.leader_id)
        return self._leader.append(body)

    def push(self, now_ms: float) -> None:
        """Send the appended entries, and commit those that responses have acknowledged."""
        self._update_leader(now_ms)

    @property
    def _is_still_leader(self) -> bool:
        """Whether this peer still leads the term of its `Leader`."""
        state, leader = self.state, self._leader
        return leader is not None and state.role is Role.LEADER and state.term == leader.term

    def silent_peers(self, now_ms: float) -> tuple[str, ...]:
        """See `LeaderElector.silent_peers`."""
        return self._elector.silent_peers(now_ms)

    @property
    def followers(self) -> Sequence[PeerProgress]:
        """Progress of the followers; empty unless this peer leads."""
        return () if self._leader is None else self._leader.followers

    def take_ready(self) -> Ready:
        """Return the work for the shell; falsy if there is none, or `advance` is still to be called."""
        if self._deferred_response_ms is not None and not self._is_ready_taken:
            self._update_leader(self._deferred_response_ms)
        outbox = self._outbox
        if self._is_ready_taken or not (outbox or self.view.has_unwritten or self.state.has_unsaved_term):
            return Ready(None, _NOTHING, (), (), self.state.committed_index)
        ready = Ready(
            self.state.take_unsaved_term(),
            self.view.take(),
            tuple(outbox.requests),
            tuple(outbox.responses),
            self.state.committed_index,
        )
        outbox.clear()
        self._is_ready_taken = True
        return ready

    def advance(self, now_ms: float) -> None:
        """Note that the last Ready is done."""
        ensure(self._is_ready_taken, "no Ready was taken")
        self._is_ready_taken = False
        self.view.written()
        self._update_leader(now_ms)

    def _update_leader(self, now_ms: float) -> None:
        """Start or stop leading after an event; as the leader, commit and push."""
        self._deferred_response_ms = None
        state, leader = self.state, self._leader
        if leader is not None and not self._is_still_leader:
            self._leader = leader = None
        if leader is None and state.role is Role.LEADER:
            self._leader = leader = Leader(self._settings, state, self.view, self._outbox)
        if leader is not None:
            leader.maybe_commit()
            leader.push(now_ms)

    # -- requests -----------------------------------------------------------------------------

    def _on_request(self, request_id: int, message: RaftMessage, now_ms: float) -> None:
        reject_code = self._reject_code(message)
        if reject_code is not None:
            self._outbox.respond(request_id, self._error_response(message, reject_code))
        elif isinstance(message, VoteRequest):
            self._elector.on_vote(request_id, message, now_ms)
        elif isinstance(message, HeartBeatRequest):
            self._elector.on_heartbeat(request_id, message, now_ms)
        elif isinstance(message, PushEntryRequest):
            self._follower.on_push(request_id, message, now_ms)
        elif isinstance(message, GetEntriesRequest):
            self._outbox.respond(request_id, self._get(message))
        else:
            response = MetadataResponse(
                group=message.group, leader_id=self.state.leader_id, peers=self._settings.peers
            )
            self._outbox.respond(request_id, response)

    def _reject_code(self, message: RaftMessage) -> RaftResponseCode | None:
        if message.remote_id != self._settings.self_id:
            return RaftResponseCode.UNKNOWN_MEMBER
        if message.group != self._settings.group:
            return RaftResponseCode.UNKNOWN_GROUP
        if isinstance(message, AppendEntryRequest | GetEntriesRequest) and self._leader is None:
            return RaftResponseCode.NOT_LEADER
        if isinstance(message, AppendEntryRequest | PullEntriesRequest):
            return RaftResponseCode.UNSUPPORTED
        return None

    def _error_response(self, message: RaftMessage, code: RaftResponseCode) -> RaftMessage:
        return RESPONSE_TYPES[type(message)](
            code=code,
            group=message.group,
            leader_id=self.state.leader_id,
            local_id=message.local_id,
            remote_id=message.remote_id,
            term=message.term,
        )

    def _get(self, request: GetEntriesRequest) -> RaftMessage:
        index = request.begin_index if request.begin_index is not None else -1
        entry = self.view.find(index)
        if entry is None or index > self.state.committed_index:
            return self._error_response(request, RaftResponseCode.INDEX_OUT_OF_RANGE)
        return GetEntriesResponse(group=request.group, entries=[entry])

    # -- responses ----------------------------------------------------------------------------

    def _on_response(self, number: int, message: RaftMessage | None, now_ms: float) -> None:
        leader = self._leader
        if (
            leader is not None
            and isinstance(message, PushEntryResponse)
            and message.code == RaftResponseCode.EXPIRED_TERM
            and message.term > self.state.term
        ):
            self._elector.step_down(message.term, f"a follower is in term {message.term}", now_ms)
            return
        # Without a response the type of the request is unknown: elector and leader compare the number.
        if message is None or isinstance(message, VoteResponse):
            self._elector.on_vote_response(number, message, now_ms)
        if isinstance(message, HeartBeatResponse):
            self._elector.on_heartbeat_response(number, message, now_ms)
        if leader is not None and (message is None or isinstance(message, PushEntryResponse)):
            leader.on_response(number, message, now_ms)
