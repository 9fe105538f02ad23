"""Raft with one of its rules taken away: each of these must be caught, or the simulation proves nothing.

A defect patches what a hasty change would; some are what DLedger 0.1 does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import PropertyMock, patch

from rocketpy.errors import ensure
from rocketpy_broker.replication.dledger.core.codes import RaftResponseCode, VoteResult
from rocketpy_broker.replication.dledger.core.election import Elector
from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.events import Outbox
from rocketpy_broker.replication.dledger.core.follower import Follower
from rocketpy_broker.replication.dledger.core.leader import Leader, PeerProgress
from rocketpy_broker.replication.dledger.core.log_view import LedgerView
from rocketpy_broker.replication.dledger.core.messages import (
    GetEntriesRequest,
    GetEntriesResponse,
    PushEntryRequest,
    RaftMessage,
    VoteRequest,
)
from rocketpy_broker.replication.dledger.core.node import RaftNode
from rocketpy_broker.replication.dledger.core.raft_state import Member
from rocketpy_broker.replication.dledger.core.settings import RaftSettings
from tests.sim.raft_disk import RaftDisk

Defect = Callable[[], AbstractContextManager[Any]]
_SUCCESS = RaftResponseCode.SUCCESS


def _count_old_terms(self: Leader) -> None:
    durable = sorted([self._view.durable_index, *(peer.match_index for peer in self.followers)], reverse=True)
    self._member.commit(durable[self._settings.quorum - 1])
    _count(self)


def _save_nothing(self: Member) -> None:
    """Term and vote stay in memory."""


def _vote_for_any_ledger(self: Elector, request: VoteRequest) -> VoteResult:
    result = _vote(self, request)
    newer = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)
    return VoteResult.ACCEPT if result in newer else result


def _vote_again(self: Elector, request: VoteRequest) -> VoteResult:
    if request.term == self._member.term:
        self._member.voted_for = None
    return _vote(self, request)


def _claim_last_term(self: Outbox, peer: str, message: Any) -> int:
    if isinstance(message, VoteRequest):
        message.ledger_end_term = message.term
    return _call(self, peer, message)


def _commit_to_the_end(self: Follower, request: PushEntryRequest) -> None:
    self._member.commit(min(request.commit_index, self._view.end_index))


def _append_at_the_end(self: Follower, entry: Entry) -> RaftResponseCode:
    self._matched = max(self._matched, self._view.end_index)
    return _append(self, entry)


def _truncate_where_told(self: Follower, entry: Entry) -> RaftResponseCode:
    if self._view.find(entry.index) == entry:
        self._view.keep_until(entry.index)
    return _truncate(self, entry)


def _compare_index_only(self: Follower, entry: Entry) -> RaftResponseCode:
    found = self._view.find(entry.index)
    return _compare(self, found if found is not None else entry)


def _acknowledge_all(self: PeerProgress, index: int) -> None:
    _acknowledge(self, max(index, self.next_index - 1))


def _hear_anybody(self: Elector, leader: str, term: int, now_ms: float) -> RaftResponseCode:
    return _recognise(self, leader, max(term, self._member.term), now_ms)


def _time_out_as_success(self: Leader, now_ms: float) -> None:
    for index, _, deadline_ms, _ in self._pending:
        if deadline_ms <= now_ms:
            self._member.commit(index)
    _tick(self, now_ms)


def _write_without_flush(self: RaftDisk) -> None:
    """Answers leave all the same."""


def _elected_by_own_vote_only(self: Member) -> None:
    ensure(self.voted_for == self.self_id, f"term {self.term}: elected without its own vote")
    _lead(self)


def _vote_for_itself_too(self: Elector, now_ms: float) -> None:
    self._member.voted_for = None
    _ask(self, now_ms)


def _stand_in_the_same_term(self: Elector, *arguments: Any) -> None:
    _elector(self, *arguments)
    self._must_raise = False


def _keep_what_matched(self: Follower, request: PushEntryRequest, now_ms: float) -> RaftResponseCode:
    matched, is_compared = self._matched, self._is_compared
    code = _recognise_push(self, request, now_ms)
    self._matched, self._is_compared = max(self._matched, matched), is_compared
    return code


def _all_is_committed(self: RaftNode, *arguments: Any) -> None:
    _node(self, *arguments)
    self.member.commit(self.view.end_index)


def _serve_everything(self: RaftNode, request: GetEntriesRequest) -> RaftMessage:
    entry = self.view.find(request.begin_index or 0)
    return GetEntriesResponse(entries=[entry] if entry is not None else [])


def _keep_durable_mark(self: LedgerView, index: int) -> None:
    before = self._stored_end
    _keep_until(self, index)
    if index < before and not self._is_reset:
        self._stored_end = before


def _append_behind_other_end(self: PeerProgress, index: int) -> None:
    _append_behind(self, index + 1)


def _commit_own_end(self: Leader) -> None:
    self._member.commit(self._view.end_index)
    _count(self)


def _refuse_what_was_appended(self: Leader) -> None:
    while self._pending:
        self._end_first(RaftResponseCode.NOT_LEADER)


def _say_nothing(*_: Any) -> None:
    """Not done."""


_count, _tick = Leader.count, Leader.tick
_vote, _recognise = Elector._vote, Elector.recognise
_append, _truncate, _compare = Follower._append, Follower._truncate, Follower._compare
_acknowledge, _append_behind = PeerProgress.acknowledge, PeerProgress.append_behind
_call, _lead, _keep_until = Outbox.call, Member.lead, LedgerView.keep_until
_ask, _elector, _node = Elector._ask, Elector.__init__, RaftNode.__init__
_recognise_push = Follower._recognise


def _replaced(owner: type, name: str, value: Any) -> Defect:
    return lambda: patch.object(owner, name, value)


DEFECTS: dict[str, Defect] = {
    "old_terms_committed_by_counting": _replaced(Leader, "count", _count_old_terms),
    "votes_for_any_ledger": _replaced(Elector, "_vote", _vote_for_any_ledger),
    "votes_twice_in_a_term": _replaced(Elector, "_vote", _vote_again),
    "vote_not_saved": _replaced(Member, "take_unsaved", _save_nothing),
    "last_term_is_the_leaders": _replaced(Outbox, "call", _claim_last_term),
    "commit_beyond_what_matched": _replaced(Follower, "_commit", _commit_to_the_end),
    "append_behind_unknown_entries": _replaced(Follower, "_append", _append_at_the_end),
    "truncate_passes_commit": _replaced(Follower, "_truncate", _truncate_where_told),
    "compare_by_index_only": _replaced(Follower, "_compare", _compare_index_only),
    "acknowledges_what_was_only_sent": _replaced(PeerProgress, "acknowledge", _acknowledge_all),
    "hears_leaders_of_old_terms": _replaced(Elector, "recognise", _hear_anybody),
    "time_out_counts_as_success": _replaced(Leader, "tick", _time_out_as_success),
    "acknowledged_before_flush": _replaced(RaftDisk, "flush", _write_without_flush),
    "majority_is_one_less": _replaced(RaftSettings, "quorum", PropertyMock(return_value=1)),
    "who_waited_is_never_told": _replaced(Leader, "abandon", _say_nothing),
    "who_waited_is_refused": _replaced(Leader, "abandon", _refuse_what_was_appended),
    "elected_by_own_vote_only": _replaced(Member, "lead", _elected_by_own_vote_only),
    "votes_for_itself_too": _replaced(Elector, "_ask", _vote_for_itself_too),
    "stands_in_the_same_term": _replaced(Elector, "__init__", _stand_in_the_same_term),
    "matched_another_leader": _replaced(Follower, "_recognise", _keep_what_matched),
    "all_is_committed_at_start": _replaced(RaftNode, "__init__", _all_is_committed),
    "serves_uncommitted_entries": _replaced(RaftNode, "_get", _serve_everything),
    "cut_entries_stay_durable": _replaced(LedgerView, "keep_until", _keep_durable_mark),
    "appends_behind_a_gap": _replaced(PeerProgress, "append_behind", _append_behind_other_end),
    "commits_without_majority": _replaced(Leader, "count", _commit_own_end),
    "never_stands": _replaced(Elector, "_tick_candidate", _say_nothing),
    "never_cuts": _replaced(LedgerView, "keep_until", _say_nothing),
    "deletes_before_it_says_so": _replaced(LedgerView, "expire", _say_nothing),
}
