"""Replicates the leader's ledger to its followers, and commits entries. No I/O; one object per term.

A new leader does not know the ledgers of its followers. They may lack entries, or have entries of an earlier
leader that were never committed. So for each follower: COMPARE until a common entry is found. TRUNCATE if
the follower has entries after it. Then APPEND each entry, with many in flight. COMMIT sends an idle follower
the committed index.

Source: DLedgerEntryPusher (EntryDispatcher, QuorumAckChecker) of DLedger 0.1. Differs: only entries of the
leader's own term are committed by counting (openmessaging/dledger #4), and only durable entries are counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rocketpy_broker.replication.dledger.core.entry import HEADER_BYTES, Entry
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


@dataclass(slots=True)
class _Sent:
    """An entry without an acknowledgement."""

    index: int
    size: int
    """In bytes."""
    at_ms: float
    """When it was last sent."""


class PeerProgress:
    """The replication progress of one follower, as its leader knows it.

    Its indexes are those of entries; -1: not known yet.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.phase = PushType.COMPARE
        self.compare_index = -1
        """The entry to compare, or to truncate after."""
        self.common_index = -1
        """The newest entry that is known to be equal on both."""
        self.conflict_index = -1
        """The oldest entry that is known to differ, or to be missing on the follower."""
        self.next_index = -1
        """The entry to send next."""
        self.match_index = -1
        """The newest entry that is durable on the follower."""
        self.open_request: int | None = None
        """Number of the open COMPARE or TRUNCATE."""
        self.open_commit: int | None = None
        """Number of the open COMMIT."""
        self.open_appends: dict[int, int] = {}
        """Index of the entry, by the number of its open APPEND."""
        self.in_flight: deque[_Sent] = deque()
        """Entries without an acknowledgement, in their order."""
        self.in_flight_bytes = 0
        self.retry_at_ms = float("-inf")
        self.last_sent_ms = float("-inf")
        """When the last push was sent; each push contains the committed index."""
        self.caught_up_ms = float("inf")
        """The latest known time at which the follower had all entries that the leader had then."""
        self._target_index = -1
        """The leader's last entry at `_target_ms`: a follower that has it had caught up by then."""
        self._target_ms = float("inf")

    def restart_compare(self) -> None:
        """Start again with COMPARE, without assumptions about the follower's ledger."""
        self.phase, self.compare_index, self.open_request = PushType.COMPARE, -1, None
        self.open_commit = None
        self.common_index = self.conflict_index = -1
        self.open_appends.clear()
        self.in_flight.clear()
        self.in_flight_bytes = 0

    def start_appending(self, index: int) -> None:
        """Continue with APPEND after `index`, up to which the follower's ledger equals the leader's."""
        self.phase, self.open_request = PushType.APPEND, None
        self.next_index = index + 1
        self.acknowledge(index)

    def lag_ms(self, end_index: int, now_ms: float) -> float:
        """Return for how long the follower has lacked entries of the leader; 0 if it has all of them."""
        return 0.0 if self.match_index >= end_index else max(0.0, now_ms - self.caught_up_ms)

    def note_time(self, end_index: int, now_ms: float) -> None:
        """Note the leader's last entry from time to time, for `lag_ms`. Kafka measures its replicas alike."""
        if self.match_index >= self._target_index:
            self.caught_up_ms = min(self._target_ms, now_ms)
            self._target_index, self._target_ms = end_index, now_ms

    def acknowledge(self, index: int) -> None:
        """Note that the entries up to `index` are durable on the follower."""
        self.match_index = max(self.match_index, index)
        while self.in_flight and self.in_flight[0].index <= self.match_index:
            self.in_flight_bytes -= self.in_flight.popleft().size


class Leader:
    """Leads one term."""

    def __init__(self, settings: RaftSettings, state: RaftState, view: LedgerView, outbox: Outbox) -> None:
        self._settings = settings
        self._state = state
        self._view = view
        self._outbox = outbox
        self.term = state.term
        self.followers = [PeerProgress(peer) for peer in settings.others]
        self._last_matched: list[int] = []
        """Durable index of each peer at the last `maybe_commit`."""
        if settings.no_op is not None:
            pos = view.next_entry_pos(len(settings.no_op(0)))
            self._append(settings.no_op(pos + HEADER_BYTES))

    # -- entries ------------------------------------------------------------------------------

    def append(self, body: bytes) -> Entry | None:
        """Append an entry; None if too many are uncommitted. `push` sends it."""
        if self._view.end_index - self._state.committed_index >= self._settings.pending_max:
            return None
        return self._append(body)

    def _append(self, body: bytes) -> Entry:
        entry = Entry.of(self._view.end_index + 1, self.term, self._view.next_entry_pos(len(body)), body)
        self._view.append(entry)
        return entry

    def maybe_commit(self) -> None:
        """Commit the entries that are durable on a majority."""
        known = [self._view.durable_index, *[peer.match_index for peer in self.followers]]
        if known == self._last_matched:
            return
        self._last_matched = known
        index = sorted(known)[-self._settings.quorum]
        # Figure 8 of the Raft paper: an entry of an earlier term may be on a majority and still be replaced.
        if index > self._state.committed_index and self._view.get(index).term == self.term:
            self._state.commit(index)

    def push(self, now_ms: float) -> None:
        """Send each follower its next entries, COMPARE, TRUNCATE or COMMIT, if one is due."""
        for follower in self.followers:
            follower.note_time(self._view.end_index, now_ms)
            if follower.phase is PushType.APPEND:
                self._push_entries(follower, now_ms)
            elif (
                follower.open_request is None and now_ms >= follower.retry_at_ms and self._view.end_index >= 0
            ):
                self._send_compare_or_truncate(follower, now_ms)

    def _send_compare_or_truncate(self, follower: PeerProgress, now_ms: float) -> None:
        view = self._view
        if not view.begin_index <= follower.compare_index <= view.end_index:
            follower.compare_index = (
                view.end_index if follower.phase is PushType.COMPARE else view.begin_index
            )
        follower.open_request = self._send(follower, view.get(follower.compare_index), follower.phase, now_ms)

    def _push_entries(self, follower: PeerProgress, now_ms: float) -> None:
        view = self._view
        sent, sent_max = follower.in_flight, self._settings.in_flight_max
        if (sent[0].index if sent else follower.next_index) < view.begin_index:
            follower.restart_compare()  # its next entry has expired here
            return
        while follower.next_index <= view.end_index and len(sent) < sent_max:
            entry = view.get(follower.next_index)
            if sent and follower.in_flight_bytes + entry.size > self._settings.in_flight_bytes_max:
                break
            sent.append(_Sent(entry.index, entry.size, now_ms))
            follower.in_flight_bytes += entry.size
            self._push_entry(follower, entry, now_ms)
            follower.next_index += 1
        if sent and now_ms - sent[0].at_ms > self._settings.push_timeout_ms:
            sent[0].at_ms = now_ms
            self._push_entry(follower, view.get(sent[0].index), now_ms)
        if not sent and now_ms - follower.last_sent_ms > self._settings.commit_push_ms:
            follower.open_commit = self._send(follower, None, PushType.COMMIT, now_ms)

    def _push_entry(self, follower: PeerProgress, entry: Entry, now_ms: float) -> None:
        follower.open_appends[self._send(follower, entry, PushType.APPEND, now_ms)] = entry.index

    def _send(self, follower: PeerProgress, entry: Entry | None, kind: PushType, now_ms: float) -> int:
        follower.last_sent_ms = now_ms
        request = PushEntryRequest(
            commit_index=self._state.committed_index,
            entry=entry,
            group=self._settings.group,
            leader_id=self._state.self_id,
            remote_id=follower.peer,
            term=self.term,
            type=kind,
        )
        return self._outbox.request(follower.peer, request)

    # -- responses ------------------------------------------------------------------------------

    def on_response(self, number: int, response: PushEntryResponse | None, now_ms: float) -> None:
        """Handle a follower's response; None: the request failed."""
        for follower in self.followers:
            if number == follower.open_request:
                follower.open_request = None
                self._on_compare_or_truncate_response(follower, response, now_ms)
            elif (index := follower.open_appends.pop(number, None)) is not None:
                self._on_append_response(follower, index, response)
            elif number == follower.open_commit:
                follower.open_commit = None
                if response is not None and response.code == _INCONSISTENT and follower.open_request is None:
                    follower.restart_compare()

    def _on_append_response(
        self, follower: PeerProgress, index: int, response: PushEntryResponse | None
    ) -> None:
        if response is not None and response.code == _SUCCESS:
            follower.acknowledge(index)
        elif response is not None and response.code == _INCONSISTENT:
            follower.restart_compare()

    def _on_compare_or_truncate_response(
        self, follower: PeerProgress, response: PushEntryResponse | None, now_ms: float
    ) -> None:
        if response is None or response.code not in (_SUCCESS, _INCONSISTENT):
            follower.retry_at_ms = now_ms + self._settings.retry_ms
        elif follower.phase is PushType.TRUNCATE:
            if response.code == _SUCCESS:
                follower.start_appending(follower.compare_index)
            else:
                follower.restart_compare()
                follower.retry_at_ms = now_ms + self._settings.retry_ms
        elif response.code == _SUCCESS:
            follower.common_index = follower.compare_index
            if response.end_index == follower.compare_index:
                follower.start_appending(follower.compare_index)
            else:
                self._choose_compare_index(follower, response)
        else:
            follower.conflict_index = min(follower.compare_index, response.end_index + 1)
            self._choose_compare_index(follower, response)

    def _choose_compare_index(self, follower: PeerProgress, response: PushEntryResponse) -> None:
        """Choose the entry to compare next; truncate once the newest common entry is known.

        Ledgers that differ at an index differ after it too, so this is a binary search. 0.1 goes back one by
        one.
        """
        begin = self._view.begin_index
        high = follower.conflict_index if follower.conflict_index >= 0 else self._view.end_index + 1
        low = max(follower.common_index, begin - 1, response.begin_index - 1)
        if high - low > 1:
            # The follower's newest entry first: it is usually equal, which ends the search.
            is_first = follower.common_index < 0 and high == response.end_index + 1
            follower.compare_index = high - 1 if is_first else (low + high) // 2
            return
        follower.phase = PushType.TRUNCATE
        follower.compare_index = follower.common_index if follower.common_index >= 0 else begin
