"""Handles the pushes of the leader on a follower. No I/O.

Safety depends on the match index: up to it, the ledger is known to equal that of this term's leader. An
APPEND adds only the entry directly after it. The match index, not the end of the ledger, limits the committed
index (openmessaging/dledger #278). Entries up to the match index or the committed index are never truncated
(#316), so late or repeated pushes are harmless. DLedger 0.1 has no match index: it appends any entry with the
next index, and truncates after the entry of any TRUNCATE.

Source: DLedgerEntryPusher.EntryHandler of DLedger 0.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketpy_broker.replication.dledger.core.election import LeaderElector
from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.events import Outbox
from rocketpy_broker.replication.dledger.core.log_view import LedgerView
from rocketpy_broker.replication.dledger.core.messages import (
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    RaftResponseCode,
)
from rocketpy_broker.replication.dledger.core.raft_state import RaftState
from rocketpy_broker.replication.dledger.core.settings import RaftSettings

_SUCCESS = RaftResponseCode.SUCCESS
_INCONSISTENT = RaftResponseCode.INCONSISTENT_STATE


@dataclass(eq=False)
class Follower:
    """The follower's part of a peer. Responses are sent after the write that they confirm; see `Ready`."""

    settings: RaftSettings
    state: RaftState
    view: LedgerView
    outbox: Outbox
    elector: LeaderElector

    def __post_init__(self) -> None:
        self._followed: tuple[int, str | None] = (-1, None)
        """Term and id of the leader whose pushes were last handled."""
        self._match_index = -1
        """Index of the newest entry that is known to equal the leader's; -1: none yet."""
        self._is_compared = False
        """Whether a push of this leader has set the match index."""
        self._early: dict[int, tuple[int, PushEntryRequest, float]] = {}
        """Pushes that arrived before the push of the previous entry, by index."""

    def on_push(self, request_id: int, request: PushEntryRequest, now_ms: float) -> None:
        """Handle a push. An early one gets its response when the previous entry has arrived or timed out."""
        code = self._accept_leader(request, now_ms)
        if code is not _SUCCESS:
            self._respond(request_id, request, code)
        elif request.type is PushType.COMMIT:
            self._commit(request)
            # The rejection starts a comparison. Without it, a restarted follower, which may be empty, would
            # not be compared before the next entry.
            self._respond(request_id, request, _SUCCESS if self._is_compared else _INCONSISTENT)
        elif request.entry is None:
            self._respond(request_id, request, RaftResponseCode.UNEXPECTED_ARGUMENT)
        elif request.type is PushType.APPEND:
            self._on_append(request_id, request, request.entry, now_ms)
        else:
            self._reject_early()
            handle = self._compare if request.type is PushType.COMPARE else self._truncate
            self._respond(request_id, request, handle(request.entry))
            self._commit(request)

    def tick(self, now_ms: float) -> None:
        """Reject the early pushes whose previous entry did not arrive in time."""
        for index, (request_id, request, received_ms) in list(self._early.items()):
            if now_ms - received_ms > self.settings.push_timeout_ms:
                del self._early[index]
                self._respond(request_id, request, _INCONSISTENT)

    def _accept_leader(self, request: PushEntryRequest, now_ms: float) -> RaftResponseCode:
        leader = request.leader_id
        if leader is None or leader not in self.settings.peers or leader == self.state.self_id:
            return RaftResponseCode.UNKNOWN_MEMBER
        code = self.elector.accept_leader(leader, request.term, now_ms)
        if code is _SUCCESS and self._followed != (request.term, leader):
            self._followed = (request.term, leader)
            self._match_index, self._is_compared = -1, False
            self._reject_early()
        return code

    def _respond(self, request_id: int, request: PushEntryRequest, code: RaftResponseCode) -> None:
        is_old = code is RaftResponseCode.EXPIRED_TERM
        response = PushEntryResponse(
            begin_index=self.view.begin_index,
            code=code,
            end_index=self.view.end_index,
            group=request.group,
            index=request.entry.index if request.entry is not None else None,
            term=self.state.term if is_old else request.term,
        )
        self.outbox.respond(request_id, response)

    def _commit(self, request: PushEntryRequest) -> None:
        self.state.commit(min(request.commit_index, self._match_index))

    # -- APPEND -------------------------------------------------------------------------------

    def _on_append(self, request_id: int, request: PushEntryRequest, entry: Entry, now_ms: float) -> None:
        is_early = self._is_compared and entry.index > self._match_index + 1
        if is_early and entry.index in self._early:
            self._respond(request_id, request, RaftResponseCode.REPEATED_PUSH)
        elif is_early and len(self._early) < self.settings.in_flight_max:
            self._early[entry.index] = request_id, request, now_ms
        else:
            self._respond(request_id, request, self._append(entry))
            self._commit(request)
            self._append_early()

    def _append_early(self) -> None:
        while (found := self._early.pop(self._match_index + 1, None)) is not None:
            request_id, request, _ = found
            if request.entry is None or (code := self._append(request.entry)) is not _SUCCESS:
                self._respond(request_id, request, _INCONSISTENT)
                return
            self._respond(request_id, request, code)
            self._commit(request)

    def _append(self, entry: Entry) -> RaftResponseCode:
        local = self.view.find(entry.index)
        if entry.index <= self._match_index:
            return _SUCCESS if local == entry else _INCONSISTENT
        if entry.index > self._match_index + 1:
            return _INCONSISTENT
        if local != entry and not self._write(entry):
            return _INCONSISTENT
        self._match_index, self._is_compared = entry.index, True
        return _SUCCESS

    def _write(self, entry: Entry) -> bool:
        """Write an entry after the previous one, which equals the leader's; replace entries from there on.

        Returns False if a committed entry would be replaced, or if the position does not match.
        """
        view = self.view
        if entry.index <= self.state.committed_index:
            return False
        if entry.index <= view.end_index:
            view.truncate_after(entry.index - 1)
        if view.end_index != entry.index - 1 or view.next_entry_pos(len(entry.body)) != entry.pos:
            return False
        view.append(entry)
        return True

    # -- COMPARE and TRUNCATE -----------------------------------------------------------------

    def _compare(self, entry: Entry) -> RaftResponseCode:
        if self.view.find(entry.index) != entry:
            return _INCONSISTENT
        self._match_index, self._is_compared = max(self._match_index, entry.index), True
        return _SUCCESS

    def _truncate(self, entry: Entry) -> RaftResponseCode:
        """Truncate after this entry, but keep matched and committed entries (QUIRKS 60).

        The entry is written if it is missing or differs.
        """
        view, committed = self.view, self.state.committed_index
        if view.find(entry.index) == entry:
            view.truncate_after(max(entry.index, self._match_index, committed))
        elif entry.index <= max(committed, self._match_index):
            return _INCONSISTENT
        elif entry.index - 1 <= max(committed, self._match_index):
            # The entries before it equal the leader's, or there are none.
            if not self._write(entry):
                return _INCONSISTENT
        else:
            # The leader's ledger starts at this entry. Which of the older entries were committed is unknown.
            view.reset_to(entry.index)
            view.append(entry)
        self._match_index, self._is_compared = max(self._match_index, entry.index), True
        return _SUCCESS

    def _reject_early(self) -> None:
        for request_id, request, _ in self._early.values():
            self._respond(request_id, request, _INCONSISTENT)
        self._early.clear()
