"""Raft without one of its rules: each defect must be caught, or the simulation proves nothing.

A defect patches what a hasty change would; some are what DLedger 0.1 does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import PropertyMock, patch

from rocketpy.errors import ensure
from rocketpy_broker.replication.dledger.core.election import LeaderElector, _NextRound
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
    RaftResponseCode,
    VoteRequest,
    VoteResult,
)
from rocketpy_broker.replication.dledger.core.node import RaftNode
from rocketpy_broker.replication.dledger.core.raft_state import RaftState
from rocketpy_broker.replication.dledger.core.settings import RaftSettings
from tests.sim.proposals import Proposals
from tests.sim.raft_disk import RaftDisk

Defect = Callable[[], AbstractContextManager[Any]]
_SUCCESS = RaftResponseCode.SUCCESS


def _count_old_terms(self: Leader) -> None:
    durable = sorted([self._view.durable_index, *(peer.match_index for peer in self.followers)], reverse=True)
    self._state.commit(durable[self._settings.quorum - 1])
    _count(self)


def _save_nothing(self: RaftState) -> None:
    """Term and vote stay in memory."""


def _vote_for_any_ledger(self: LeaderElector, request: VoteRequest) -> VoteResult:
    result = _decide_vote(self, request)
    newer = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)
    return VoteResult.ACCEPT if result in newer else result


def _vote_again(self: LeaderElector, request: VoteRequest) -> VoteResult:
    if request.term == self.state.term:
        self.state.voted_for = None
    return _decide_vote(self, request)


def _claim_last_term(self: Outbox, peer: str, message: Any) -> int:
    if isinstance(message, VoteRequest):
        message.ledger_end_term = message.term
    return _call(self, peer, message)


def _commit_to_the_end(self: Follower, request: PushEntryRequest) -> None:
    self.state.commit(min(request.commit_index, self.view.end_index))


def _append_at_the_end(self: Follower, entry: Entry) -> RaftResponseCode:
    self._match_index = max(self._match_index, self.view.end_index)
    return _append(self, entry)


def _truncate_where_told(self: Follower, entry: Entry) -> RaftResponseCode:
    if self.view.find(entry.index) == entry:
        self.view.truncate_after(entry.index)
    return _truncate(self, entry)


def _compare_index_only(self: Follower, entry: Entry) -> RaftResponseCode:
    found = self.view.find(entry.index)
    return _compare(self, found if found is not None else entry)


def _acknowledge_all(self: PeerProgress, index: int) -> None:
    _acknowledge(self, max(index, self.next_index - 1))


def _hear_anybody(self: LeaderElector, leader: str, term: int, now_ms: float) -> RaftResponseCode:
    return _accept_leader(self, leader, max(term, self.state.term), now_ms)


def _time_out_as_success(self: Proposals, node: RaftNode, now_ms: float) -> None:
    for index, _, deadline_ms, _ in self.pending:
        if deadline_ms <= now_ms:
            node.state.commit(index)
    _tick(self, node, now_ms)


def _write_without_flush(self: RaftDisk) -> None:
    """Responses leave all the same."""


def _elected_by_own_vote_only(self: RaftState, why: str) -> None:
    ensure(self.voted_for == self.self_id, f"term {self.term}: elected without its own vote")
    _lead(self, why)


def _vote_for_itself_too(self: LeaderElector, now_ms: float) -> None:
    self.state.voted_for = None
    _start_election(self, now_ms)


def _stand_in_the_same_term(self: LeaderElector, *arguments: Any) -> None:
    _elector(self, *arguments)
    self._next_round = _NextRound.SAME_TERM


def _keep_what_matched(self: Follower, request: PushEntryRequest, now_ms: float) -> RaftResponseCode:
    matched, is_compared = self._match_index, self._is_compared
    code = _recognise_push(self, request, now_ms)
    self._match_index, self._is_compared = max(self._match_index, matched), is_compared
    return code


def _all_is_committed(self: RaftNode, *arguments: Any) -> None:
    _node(self, *arguments)
    self.state.commit(self.view.end_index)


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
    self._state.commit(self._view.end_index)
    _count(self)


def _refuse_what_was_appended(self: Proposals) -> None:
    while self.pending:
        self.finish_first(RaftResponseCode.NOT_LEADER)


def _say_nothing(*_: Any) -> None:
    """Do nothing, in place of a method."""


_count, _tick = Leader.maybe_commit, Proposals.tick
_decide_vote, _accept_leader = LeaderElector._decide_vote, LeaderElector.accept_leader
_append, _truncate, _compare = Follower._append, Follower._truncate, Follower._compare
_acknowledge, _append_behind = PeerProgress.acknowledge, PeerProgress.start_appending
_call, _lead, _keep_until = Outbox.request, RaftState.become_leader, LedgerView.truncate_after
_start_election, _elector, _node = LeaderElector._start_election, LeaderElector.__init__, RaftNode.__init__
_recognise_push = Follower._accept_leader


def _replaced(owner: type, name: str, value: Any) -> Defect:
    return lambda: patch.object(owner, name, value)


DEFECTS: dict[str, Defect] = {
    "old_terms_committed_by_counting": _replaced(Leader, "maybe_commit", _count_old_terms),
    "votes_for_any_ledger": _replaced(LeaderElector, "_decide_vote", _vote_for_any_ledger),
    "votes_twice_in_a_term": _replaced(LeaderElector, "_decide_vote", _vote_again),
    "vote_not_saved": _replaced(RaftState, "take_unsaved_term", _save_nothing),
    "last_term_is_the_leaders": _replaced(Outbox, "request", _claim_last_term),
    "commit_beyond_what_matched": _replaced(Follower, "_commit", _commit_to_the_end),
    "append_behind_unknown_entries": _replaced(Follower, "_append", _append_at_the_end),
    "truncate_passes_commit": _replaced(Follower, "_truncate", _truncate_where_told),
    "compare_by_index_only": _replaced(Follower, "_compare", _compare_index_only),
    "acknowledges_what_was_only_sent": _replaced(PeerProgress, "acknowledge", _acknowledge_all),
    "hears_leaders_of_old_terms": _replaced(LeaderElector, "accept_leader", _hear_anybody),
    "time_out_counts_as_success": _replaced(Proposals, "tick", _time_out_as_success),
    "acknowledged_before_flush": _replaced(RaftDisk, "flush", _write_without_flush),
    "majority_is_one_less": _replaced(RaftSettings, "quorum", PropertyMock(return_value=1)),
    "who_waited_is_never_told": _replaced(Proposals, "fail_pending", _say_nothing),
    "who_waited_is_refused": _replaced(Proposals, "fail_pending", _refuse_what_was_appended),
    "elected_by_own_vote_only": _replaced(RaftState, "become_leader", _elected_by_own_vote_only),
    "votes_for_itself_too": _replaced(LeaderElector, "_start_election", _vote_for_itself_too),
    "stands_in_the_same_term": _replaced(LeaderElector, "__init__", _stand_in_the_same_term),
    "matched_another_leader": _replaced(Follower, "_accept_leader", _keep_what_matched),
    "all_is_committed_at_start": _replaced(RaftNode, "__init__", _all_is_committed),
    "serves_uncommitted_entries": _replaced(RaftNode, "_get", _serve_everything),
    "cut_entries_stay_durable": _replaced(LedgerView, "truncate_after", _keep_durable_mark),
    "appends_behind_a_gap": _replaced(PeerProgress, "start_appending", _append_behind_other_end),
    "commits_without_majority": _replaced(Leader, "maybe_commit", _commit_own_end),
    "never_stands": _replaced(LeaderElector, "_tick_candidate", _say_nothing),
    "never_cuts": _replaced(LedgerView, "truncate_after", _say_nothing),
    "deletes_before_it_says_so": _replaced(LedgerView, "expire", _say_nothing),
}
