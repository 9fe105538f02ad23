"""Replication without one of its rules: the seeds must catch each defect, or they prove nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rocketpy.protocol.codes import ResponseCode
from rocketpy_broker.replication.ha import epochs, log, master
from rocketpy_broker.replication.ha.connected_slaves import ConnectedSlaves
from rocketpy_broker.replication.ha.epochs import EpochState
from rocketpy_broker.replication.ha.log import EpochFile, StoreSource, StoreTarget
from rocketpy_broker.replication.ha.master import MasterSession
from rocketpy_broker.replication.ha.slave import SlaveSession
from rocketpy_broker.replication.ha.sync_waiters import ReplicationResult, SyncWaiters
from rocketpy_broker.replication.ha.wire import FrameReader
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.replica.backlog import Backlog
from rocketpy_broker.store.replica.copied_records import ParsedRecords
from rocketpy_broker.store.replica.replica_log import ReplicaLog
from tests.sim import ha_world
from tests.sim.planted import Defects

DEFECTS = defect = Defects()


@defect
def what_is_sent_counts_as_received() -> Iterator[None]:
    """The master responds when bytes were sent, before a slave has reported them."""
    with patch.object(MasterSession, "acked_offset", property(lambda session: session.next_offset)):
        yield


@defect
def received_counts_where_flushed_was_promised() -> Iterator[None]:
    """Power loss of both machines takes acknowledged messages."""
    with patch.object(MasterSession, "acked_offset", property(lambda session: session.received)):
        yield


@defect
def acks_of_slaves_that_are_gone_count() -> Iterator[None]:
    """As in 4.6.0: the furthest report of any slave, ever."""
    seen = {"acked": -1}

    def acked(connected: ConnectedSlaves) -> int:
        sessions = [session.acked_offset for session in connected._sessions if session.is_copying]
        seen["acked"] = max([seen["acked"], *sessions])
        return seen["acked"]

    with patch.object(ConnectedSlaves, "acked", property(acked)):
        yield


@defect
def slaves_of_rocketmq_count_where_a_handshake_is_required() -> Iterator[None]:
    """Records that only these have are lost with the master: they cannot be promoted."""
    with patch.object(ConnectedSlaves, "_counts", lambda _self, session: session.is_copying):
        yield


@defect
def who_waited_in_vain_is_told_that_all_is_well() -> Iterator[None]:
    """A send that timed out is acknowledged."""
    original = SyncWaiters.expire

    def expire(self: SyncWaiters[Any], now_ms: float) -> list[ReplicationResult[Any]]:
        return [ReplicationResult(sends, ResponseCode.SUCCESS) for sends, _ in original(self, now_ms)]

    with patch.object(SyncWaiters, "expire", expire):
        yield


@defect
def what_waits_for_a_slave_is_shown() -> Iterator[None]:
    """Consumers read messages that are lost with the master (#8239)."""
    with patch.object(SyncWaiters, "limit", lambda _self: 1 << 62):
        yield


@defect
def what_waits_for_the_disk_is_shown_before_a_slave_has_it() -> Iterator[None]:
    """A flush for another message shows it before the slave has it."""
    original = SyncWaiters.limit

    def limit(self: SyncWaiters[Any]) -> int:
        return original(self) if self._groups else 1 << 62

    with patch.object(SyncWaiters, "limit", limit):
        yield


@defect
def slaves_get_what_the_master_has_not_flushed() -> Iterator[None]:
    """Consumers read it there, and power loss takes it from the master: another message gets its offset."""
    with patch.object(StoreSource, "ready_offset", StoreSource.max_offset):
        yield


@defect
def an_empty_slave_of_rocketmq_begins_within_a_file() -> Iterator[None]:
    """It begins where the master's log ends: its first file has a hole (QUIRKS 53)."""
    with patch.object(MasterSession, "_last_file_start", lambda session: session._log.max_offset):
        yield


@defect
def slaves_of_rocketmq_need_no_secret() -> Iterator[None]:
    """Each client that reaches the port is served."""
    with patch.object(MasterSession, "_check_plain_slave", lambda _session, _offset: None):
        yield


@defect
def frames_cross_the_ends_of_files() -> Iterator[None]:
    """RocketMQ's slave appends received bytes to its current file (QUIRKS 55)."""

    def read(self: StoreSource, offset: int, size_max: int) -> bytes:
        mapped_files = self._store.commit_log.files.mapped_files
        whole = b"".join(file.read(0, file.wrote) for file in mapped_files)
        return whole[offset - mapped_files[0].start :][:size_max]

    with patch.object(StoreSource, "read", read):
        yield


@defect
def a_crashed_master_goes_on_in_its_epoch() -> Iterator[None]:
    """Its slaves keep records that it lost, and append its next writes to them."""
    original = EpochFile.become_master

    def lead(self: EpochFile, end: int, identity: str, now_ms: int, *, is_clean: bool) -> None:
        original(self, end, identity, now_ms, is_clean=is_clean or bool(self.state.epochs))

    with patch.object(EpochFile, "become_master", lead):
        yield


@defect
def the_loser_keeps_its_tail() -> Iterator[None]:
    """Nothing is cut; the slave continues from its own end."""

    def adopt(self: StoreTarget, state: EpochState, end: int) -> None:
        if self.is_empty:
            self.append(end, b"")
        self._epochs.save(state)

    with patch.object(StoreTarget, "adopt", adopt):
        yield


@defect
def a_cut_leaves_the_consume_queues() -> Iterator[None]:
    """Consumers get units of messages that do not exist."""
    original = ReplicaLog.truncate

    def truncate(self: ReplicaLog, end: int, saved_to: Path) -> None:
        queues, self._store.queues.queues = self._store.queues.queues, {}
        try:
            original(self, end, saved_to)
        finally:
            self._store.queues.queues = queues

    with patch.object(ReplicaLog, "truncate", truncate):
        yield


@defect
def a_cut_forgets_the_marks() -> Iterator[None]:
    """The checkpoint is ahead of the log: after a crash the store does not open."""
    with patch("rocketpy_broker.store.files.checkpoint.CheckpointFile.save", lambda _self, _checkpoint: None):
        yield


@defect
def offsets_are_not_compared() -> Iterator[None]:
    """A slave writes all received bytes at its own end."""
    original = ReplicaLog.append

    def append(self: ReplicaLog, offset: int, data: bytes) -> None:
        original(self, self.max_offset if not self.is_empty else offset, data)

    def take(self: SlaveSession, message: Any) -> list[Any]:
        if message.body:
            self._pieces_at = self.log.max_offset if not self._pieces else self._pieces_at
            self._pieces.append(message.body)
            self._pieces_bytes += len(message.body)
        return []

    def begin(self: MasterSession, offset: int) -> None:
        self.next_offset = max(0, offset - 1)
        self._state = master._State.SENDING

    with (
        patch.object(ReplicaLog, "append", append),
        patch.object(SlaveSession, "_on_frame", take),
        patch.object(MasterSession, "_begin", begin),
    ):
        yield


@defect
def the_longest_log_is_promoted() -> Iterator[None]:
    """With any epoch: unacknowledged bytes win over acknowledged ones."""
    with patch.object(ha_world, "rank", lambda _state, end: (0, end)):
        yield


@defect
def the_shortest_log_is_promoted() -> Iterator[None]:
    """The operator takes any slave."""
    with patch.object(ha_world, "rank", lambda _state, end: (0, -end)):
        yield


@defect
def epochs_are_forgotten() -> Iterator[None]:
    """They are kept in memory only."""
    with patch.object(log, "save_state", lambda _disk, _path, _data: None):
        yield


@defect
def epochs_are_only_counted() -> Iterator[None]:
    """A master that was promoted and lost at once shares its number with its successor."""
    original = epochs.begin_epoch

    def begin(state: EpochState, end: int, identity: str, _now_ms: int) -> EpochState:
        return original(state, end, identity, 0)

    with patch.object(log, "begin_epoch", begin):
        yield


@defect
def a_split_frame_loses_its_first_part() -> Iterator[None]:
    """The received part of a frame is dropped."""
    original = FrameReader.feed

    def feed(self: FrameReader, data: bytes) -> Iterator[Any]:
        self._data = b""
        yield from original(self, data)

    with patch.object(FrameReader, "feed", feed):
        yield


@defect
def a_slave_does_not_dispatch() -> Iterator[None]:
    """Its log is whole, and its consume queues are empty."""
    with patch.object(ParsedRecords, "hand_over", lambda _self, _store: None):
        yield


@defect
def a_promoted_slave_numbers_anew() -> Iterator[None]:
    """Queue offsets of copied messages are not recorded."""
    original = ParsedRecords.hand_over

    def hand_over(self: ParsedRecords, store: MessageStore) -> None:
        original(self._replace(next_offsets={}), store)

    with patch.object(ParsedRecords, "hand_over", hand_over):
        yield


@defect
def a_cut_forgets_the_backlog() -> Iterator[None]:
    """Records that were copied fast, and not dispatched before the log is cut after them, never are."""
    with patch.object(Backlog, "drain", lambda _self: None):
        yield


@defect
def a_backlog_is_overtaken() -> Iterator[None]:
    """Later records are dispatched before it."""
    with patch.object(Backlog, "accepts", lambda self, size: size >= self._burst_bytes):
        yield
