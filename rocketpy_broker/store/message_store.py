"""The message store, with the file formats of RocketMQ 4.6.0. It has no threads, sockets or tasks of its own.

One thread calls it, in three steps. `append` adds a message to the current run. `write_out` writes the run to
the commit log with one system call. `dispatch` adds the written records to consume queues and index.
`put_message` does the first two. `flush` makes written records durable. `StoreDriver` calls dispatch and
flush.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from rocketpy.errors import DiskFull, FlushFailed, StoreDamaged, StoreError
from rocketpy.protocol.message.delays import DelayLevels
from rocketpy.protocol.message.record import is_intact
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy_broker.store.busy import OverloadDetector, Reason, StoreBusy
from rocketpy_broker.store.config import FlushDiskType, StoreConfig
from rocketpy_broker.store.files.checkpoint import Checkpoint, CheckpointFile, DispatchProgress
from rocketpy_broker.store.files.disk import Clock, Disk, OsDisk, disk_errors, make_durable_dir, system_clock
from rocketpy_broker.store.files.state_file import load_state, save_state
from rocketpy_broker.store.files.store_lock import StoreLock
from rocketpy_broker.store.index.index_service import IndexService
from rocketpy_broker.store.log.commit_log import CommitLog
from rocketpy_broker.store.log.flush import FlushPlan, PlanLimits, flush_failure, flush_now
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import Deletion
from rocketpy_broker.store.log.message_log import MakeLog, RecoveryReport
from rocketpy_broker.store.log.messages import (
    AppendReceipt,
    BatchReceipt,
    LogPiece,
    MessageInner,
    QueueTable,
)
from rocketpy_broker.store.queue.clock_steps import ClockSteps
from rocketpy_broker.store.queue.consume_queue import UNIT, ConsumeQueue, QueueUnit
from rocketpy_broker.store.queue.dispatch import ArrivalListener, Dispatcher
from rocketpy_broker.store.queue.key_search import QueryMessageResult, find_by_key
from rocketpy_broker.store.queue.queue_checksums import FileChecksum, decode_checksums, encode_checksums
from rocketpy_broker.store.queue.queue_reader import (
    Accepts,
    GetMessageResult,
    QueueReader,
    last_offset_by_time,
    offset_by_time,
)
from rocketpy_broker.store.queue.queue_table import ConsumeQueueTable
from rocketpy_broker.store.recovery.recovery import Recovery
from rocketpy_broker.store.stats import StoreStats

T = TypeVar("T")

logger = logging.getLogger("rocketpy_broker.store.message_store")

_GAP_BYTES_MAX: Final = 4096
"""Maximum number of bytes between two records that are read together."""
_TOGETHER_BYTES: Final = 1 << 16
"""Maximum number of bytes of records that one read gets together."""


class MessageStore:
    """The messages of one store directory.

    clock: returns ms since 1970. disk: does all file operations. make_log: creates the log. A DLedger group
    passes a function that returns a log on its ledger.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        clock: Clock = system_clock,
        disk: Disk | None = None,
        make_log: MakeLog = CommitLog,
    ) -> None:
        self.config = config
        self.clock = clock
        self.disk: Disk = OsDisk() if disk is None else disk
        self.table = QueueTable()
        self.commit_log = make_log(config, self.table, clock, self.disk)
        self.queues = ConsumeQueueTable(self.disk, config.consume_queue_directory, config.consume_queue)
        self.index = (
            IndexService(self.disk, config.index_directory, config.index, clock)
            if config.index.enabled
            else None
        )
        self.dispatcher = Dispatcher(
            self.queues,
            self.index,
            DelayLevels(config.delay_levels),
            ClockSteps(self.disk, config.root / "clocksteps"),
            self.commit_log.files.read,  # unlike `MessageLog.read`, offset 0 is not the oldest record
        )
        self.stats = StoreStats()
        self.truncations = 0
        """How often a slave has truncated its log since the start, to follow another master."""
        self._reader = QueueReader(self.commit_log, config.read)
        self._lock = StoreLock(self.disk, config.root / "lock")
        self._abort_path = config.root / "abort"
        self._checksums_path = config.root / "queuesums"
        self.checkpoint_file = CheckpointFile(self.disk, config.root / "checkpoint")
        self.checkpoint = Checkpoint()
        self._saved_checkpoint = Checkpoint()
        self._rejections: dict[Reason, StoreError] = {}
        self._rejection: StoreError | None = None
        self.failure = StoreError("the store is not open")
        self._is_sync_flush = config.flush.disk_type is FlushDiskType.SYNC_FLUSH
        self._is_open = False
        self._thorough_flushes = 0
        """Number of thorough flushes that have begun. Only the newest one may save its checkpoint."""
        self.overload_detector = OverloadDetector(config.busy)
        self._damage_log = RateLimitedLog(logger)

    # -- opening and closing ---------------------------------------------------------------------

    def open(self) -> RecoveryReport:
        """Create the directory if it is missing, lock it, and recover its files. May take minutes.

        After a clean stop, a full disk does not prevent the start: the store can be read, and rejects
        messages until `StoreDriver` finds space. Raises StoreLocked, StoreDamaged, DiskFull, StoreError; then
        the store is closed.
        """
        make_durable_dir(self.disk, self.config.root)
        self._lock.acquire()
        try:
            report = self._recover()
        except BaseException:  # also after KeyboardInterrupt, the lock must be released
            self._close_files()
            raise
        self.failure = None
        self._is_open = True
        return report

    def _recover(self) -> RecoveryReport:
        self.checkpoint = self.checkpoint_file.load()
        # The checkpoint records a clean stop, too: an operator may have removed the file `abort`.
        was_running = self.checkpoint.flushed_offset >= 0 > self.checkpoint.log_end
        clean = not self.disk.exists(self._abort_path) and not was_running
        self._saved_checkpoint = dataclasses.replace(self.checkpoint)
        flushed, dispatched = self.checkpoint.flushed_offset, self.checkpoint.dispatched_offset
        try:
            self.mark_open()
        except DiskFull as error:
            logger.error("messages can be read; none is accepted until the disk has space: %s", error)
            self.reject(Reason.NOT_MARKED, error)
        if not clean and flushed >= 0:
            # The checkpoint may be only in the page cache; it must be durable before files are deleted.
            self.checkpoint_file.save(self.checkpoint)
        self.commit_log.load()
        with contextlib.suppress(OSError):  # on a full disk, the first queue tries again
            self.disk.make_dir(self.config.consume_queue_directory)  # it is part of a copy from the start on
        self.queues.load()
        recovery = Recovery(
            self.config.recovery, self.commit_log, self.queues, self.index, self.dispatcher, self.table
        )
        report = recovery.run(self.checkpoint, self._load_checksums(clean=clean), clean=clean)
        report.from_rocketpy = flushed >= 0 and self.disk.exists(self._checksums_path)
        if not clean:
            self.commit_log.rewrite_unflushed(report, flushed)
            self.queues.rewrite_unflushed(dispatched, partial(flush_now, self))
        self.commit_log.start(recovery.tail)
        self.commit_log.last_store_timestamp = self.dispatcher.last_store_timestamp
        self.checkpoint.log_end = self.checkpoint.index_files = self.checkpoint.tail_offset = -1
        self._flush_all()
        return report

    def _load_checksums(self, *, clean: bool) -> list[FileChecksum]:
        """Return the checksums of consume queues from the last stop, if it was clean. Raises StoreError."""
        log_end = self.checkpoint.log_end
        if not clean or log_end < 0:
            return []
        return (
            load_state(self.disk, self._checksums_path, lambda data: decode_checksums(data, log_end)).value
            or []
        )

    def _save_checksums(self) -> None:
        """Save the checksums of consume queues. A failure is logged: the next start then skips the check."""
        try:
            self.disk.unlink(self._checksums_path)
            save_state(
                self.disk,
                self._checksums_path,
                encode_checksums(self.queues.checksums(), self.checkpoint.log_end),
            )
        except (StoreError, OSError) as error:
            logger.warning("checksums of consume queues are not saved: %s", error)

    def mark_open(self) -> None:
        """Create the file `abort`, before any message is written. A clean stop removes it.

        Without it, RocketMQ would take a crash for a clean stop; this store also sees it in the checkpoint.
        Raises DiskFull, StoreError.
        """
        with disk_errors("create", self._abort_path):
            self.disk.close(self.disk.open(self._abort_path, create=True))
            self.disk.fsync_dir(self.config.root)

    def close(self) -> None:
        """Write, dispatch and flush everything, record a clean stop, and close the files.

        After a failure no clean stop is recorded, so the next start recovers. Raises StoreError, and
        FlushFailed when the last flush fails. The files are closed and unlocked in any case.
        """
        if not self._is_open:
            return
        self._is_open = False
        failed, self.failure = self.failure, StoreError("the store is closed")
        try:
            if failed is None:
                self._stop_cleanly()
        finally:
            self._close_files()

    def _stop_cleanly(self) -> None:
        self.write_out()
        self.dispatcher.clock.save()
        self.flush()
        self.dispatch()
        self.commit_log.finish()
        if self.index is not None:
            self.index.finish()
        self.checkpoint.log_end = self.commit_log.max_offset
        self.checkpoint.tail_offset = self.commit_log.tail.offset
        self.checkpoint.index_files = len(self.index.files) if self.index is not None else -1
        self._flush_all()
        self._save_checksums()
        with disk_errors("remove", self._abort_path):
            self.disk.unlink(self._abort_path)
            self.disk.fsync_dir(self.config.root)

    def _close_files(self) -> None:
        with contextlib.ExitStack() as closing:  # runs all callbacks, the last first, even if one raises
            closing.callback(self._lock.release)
            closing.callback(self.checkpoint_file.close)
            if self.index is not None:
                closing.callback(self.index.close)
            closing.callback(self.queues.close)
            closing.callback(self.commit_log.close)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- writing ---------------------------------------------------------------------------------

    def append(self, message: MessageInner) -> AppendReceipt:
        """Add a message to the current run. It is stored once `write_out` has returned.

        Raises MessageTooLarge, TopicInvalid, MessageInvalid, DiskFull, and StoreError while the store rejects
        messages; then nothing has changed.
        """
        if self._rejection is not None:
            raise _rejected(self._rejection)
        return self.commit_log.append(message)

    def append_batch(self, message: MessageInner) -> BatchReceipt:
        """Add a batch to the current run, a record for each message; see `CommitLog.append_batch`."""
        if self._rejection is not None:
            raise _rejected(self._rejection)
        return self.commit_log.append_batch(message)

    def write_out(self) -> None:
        """Write the run to the commit log. Afterwards its messages survive the end of this process.

        Raises DiskFull, StoreError; then no message of the run is stored, and queue offsets are reset.
        """
        begin = self.clock()
        try:
            pieces = self.commit_log.write_out()
        except StoreError:
            if self.commit_log.rollback_error is not None:
                self.fail(self.commit_log.rollback_error)
            raise
        if pieces:
            waiting = self.dispatcher.add(pieces)
            taken_ms = self.clock() - begin
            self.stats.count_run(pieces, taken_ms, waiting)
            busy = self.overload_detector.wrote_in(taken_ms)
            if busy is not None:
                self.reject(Reason.BUSY, busy)

    def publish(self, pieces: list[LogPiece]) -> None:
        """Queue records that a DLedger group has committed, for the next `dispatch`."""
        self.stats.count_run(pieces, 0, self.dispatcher.add(pieces))

    def put_message(self, message: MessageInner) -> AppendReceipt:
        """`append` and `write_out`."""
        receipt = self.append(message)
        self.write_out()
        return receipt

    def dispatch(self) -> int:
        """Add the written records to consume queues and index; return their number.

        With SYNC_FLUSH it stops at the flushed offset, so consumers never see unflushed messages. Raises
        DiskFull, StoreError; the next call continues where this one stopped.
        """
        return self.dispatcher.run(self.flushed_offset if self._is_sync_flush else None)

    def set_store_host(self, host: bytes) -> None:
        """Set the address that is written into later records. host: 8 bytes for IPv4, 20 for IPv6."""
        self.commit_log.set_store_host(host)

    def set_arrival_listener(self, listener: ArrivalListener | None) -> None:
        """Set what `dispatch` calls when queues have new messages."""
        self.dispatcher.arrivals = listener

    @property
    def failure(self) -> StoreError | None:
        """The error that makes the store reject messages until it is opened again; None without one."""
        return self._rejections.get(Reason.FAILURE)

    @failure.setter
    def failure(self, reason: StoreError | None) -> None:
        self.reject(Reason.FAILURE, reason)

    @property
    def disk_full(self) -> StoreError | None:
        """The error that makes the store reject messages until the disk has space; None without one."""
        return self._rejections.get(Reason.DISK_FULL)

    def reject(self, reason: Reason, error: StoreError | None) -> None:
        """Reject later messages with `error`. error: None ends the rejection for this reason."""
        if error is None:
            self._rejections.pop(reason, None)
        else:
            self._rejections[reason] = error
        self._rejection = self._rejections[min(self._rejections)] if self._rejections else None

    def rejection(self, reason: Reason) -> StoreError | None:
        """Return the error with which messages are rejected for this reason; None if they are not."""
        return self._rejections.get(reason)

    def drop_queue(self, topic: str, queue_id: int) -> None:
        """Delete a consume queue. If it is created again, its offsets continue. Raises StoreError."""
        delete = self.queues.drop(topic, queue_id)
        if delete is not None:
            delete()

    def take_queues(
        self, is_unwanted: Callable[[ConsumeQueue], bool]
    ) -> Generator[None, None, list[Deletion]]:
        """Remove queues from the store; return what deletes their files, to be called in any thread.

        It yields after each queue, since a broker may have many thousands. The commit log keeps the messages.
        If a queue is created again, its offsets continue until a restart. Raises StoreError.
        """
        self.dispatch()
        taken: list[Deletion] = []
        for key, queue in list(self.queues.queues.items()):
            if self.queues.queues.get(key) is queue and is_unwanted(queue):
                delete = self.queues.drop(*key)
                if delete is not None:
                    taken.append(delete)
            yield
        return taken

    def drop_deleted(self, ends: Mapping[str, int]) -> int:
        """Drop the units of deleted topics; return the number of changed queues. Raises StoreError.

        ends: topic -> end of the log when it was deleted. Recovery, or a slave that has copied the deletion
        together with a new topic of this name, may have units of records before it.
        """
        count = 0
        for key, queue in list(self.queues.queues.items()):
            end = ends.get(key[0], 0)
            if not end:
                continue
            if queue.has_expired(end):
                self.drop_queue(*key)
                count += 1
            elif (first := queue.unit(queue.min_offset)) is not None and first.physical_offset < end:
                queue.drop_before(end)
                count += 1
        return count

    def fail(self, failure: StoreError) -> None:
        """Reject messages until the store is opened again. Only the first failure is kept and logged."""
        if self.failure is None or not self._is_open:
            logger.critical("%s", failure)
            self.failure = failure

    # -- reading by queue ------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Dispatch waiting records, so that a reader sees all written messages.

        An error is ignored: queues can still be read, and the next `dispatch` tries again and raises it.
        """
        if self.dispatcher.waiting and not self.dispatcher.is_stuck:
            with contextlib.suppress(StoreError):
                self.dispatch()

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue with all written messages; None if it does not exist."""
        if self.dispatcher.has_waiting(topic, queue_id):
            self._catch_up()
        return self.queues.queues.get((topic, queue_id))

    def list_queues(self) -> list[tuple[str, int]]:
        """Return topic and id of each queue that has or had messages, new ones included."""
        self._catch_up()
        return list(self.queues.queues)

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        max_bytes: int | None = None,
        tag_codes: AbstractSet[int] | None = None,
        accepts: Accepts | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> GetMessageResult:
        """Return the messages of a queue from queue offset `offset` on, as whole records.

        max_count, max_bytes: limits in addition to those of `ReadConfig`; the first message is always
        returned. tag_codes: return only messages with one of these tags codes. accepts: return only messages
        whose properties it accepts. is_over: called before each call of `accepts` but the first; True ends
        the read there. At most 1024 units are scanned, or the limits of `ReadConfig` if they are higher.
        Raises StoreError when the disk cannot be read.
        """
        queue = self._queue(topic, queue_id)
        try:
            result = self._reader.read(queue, offset, max_count, max_bytes, tag_codes, accepts, is_over)
        except StoreDamaged as error:
            self.stats.damaged_reads += 1
            self._damage_log.error(f"{topic} {queue_id}", "%s", error)
            raise
        self.stats.count_read(result.count)
        return result

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Return (physical offset, size, tags code) of up to `count` messages of a queue from `offset` on.

        The result ends at the end of a queue file. It is empty for an offset outside the queue. Raises
        StoreError when the disk cannot be read.
        """
        queue = self._queue(topic, queue_id)
        data = queue.read_units(offset, count) if queue is not None else None
        return list(UNIT.iter_unpack(data)) if data else []

    def appended_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last message, dispatched or not; 0 for an unknown queue."""
        cursor = self.table.get((topic, queue_id))
        return cursor.next_offset if cursor is not None else 0

    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last readable message; 0 for an unknown queue."""
        queue = self._queue(topic, queue_id)
        return queue.next_offset if queue is not None else 0

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first readable message; 0 for an unknown queue, as in 4.6.0."""
        queue = self._queue(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """Return the offset of the first message of a queue stored at or after a time (ms).

        Returns the end of the queue if there is none, and 0 for an unknown queue.
        """
        queue = self._queue(topic, queue_id)
        steps = self.dispatcher.clock.steps
        return offset_by_time(queue, self.commit_log, timestamp, steps) if queue is not None else 0

    def last_offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """Return the offset of the last message of a queue stored at or before a time (ms).

        Returns the first offset of the queue if there is none, and 0 for an unknown queue.
        """
        queue = self._queue(topic, queue_id)
        steps = self.dispatcher.clock.steps
        return last_offset_by_time(queue, self.commit_log, timestamp, steps) if queue is not None else 0

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store timestamp (ms) of a message; -1 if it does not exist."""
        unit = self._unit(topic, queue_id, offset)
        return self.commit_log.store_timestamp(unit.physical_offset) if unit is not None else -1

    def earliest_store_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Return the store timestamp (ms) of the oldest message of the store or a queue; -1 without one."""
        if topic is not None:
            return self.store_timestamp(topic, queue_id, self.min_offset_in_queue(topic, queue_id))
        return self.commit_log.store_timestamp(self.commit_log.first_offset)

    def physical_offset(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the commit log offset of a message; 0 if it does not exist, as in 4.6.0."""
        unit = self._unit(topic, queue_id, offset)
        return unit.physical_offset if unit is not None else 0

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message is within `memory_window_bytes` of the end of the log; True if it does not exist.

        Source: RocketMQ checkInDiskByConsumeOffset, negated.
        """
        unit = self._unit(topic, queue_id, offset)
        window = self.config.read.memory_window_bytes
        return unit is None or self.commit_log.max_offset - unit.physical_offset <= window

    def _unit(self, topic: str, queue_id: int, offset: int) -> QueueUnit | None:
        queue: ConsumeQueue | None = self._queue(topic, queue_id)
        return queue.unit(offset) if queue is not None else None

    # -- reading by physical offset and key ------------------------------------------------------

    @property
    def min_physical_offset(self) -> int:
        """Start offset of the commit log."""
        return self.commit_log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """End offset of the commit log."""
        return self.commit_log.max_offset

    @property
    def dispatch_behind_bytes(self) -> int:
        """Number of bytes by which consume queues and index are behind the commit log."""
        return max(0, self.commit_log.max_offset - self.dispatcher.offset)

    def look_message(self, physical_offset: int, size: int | None = None) -> bytes | None:
        """Return the record at this commit log offset; None if no record starts there.

        size: of the record, if the caller knows it. Offset 0 means the oldest record if the log starts later
        (QUIRKS 36).
        """
        record = self.commit_log.read_record(physical_offset, size)
        expected = physical_offset or self.commit_log.first_offset
        return record if record is not None and is_intact(record, expected) else None

    def look_messages(self, places: Sequence[tuple[int, int]]) -> Iterator[bytes | None]:
        """Yield what `look_message` returns for each physical offset and size.

        One read gets the records that are near each other in the log. Raises StoreError at the record that
        cannot be read.
        """
        first = 0
        for count, data in self.read_together(places):
            begin = places[first][0]
            for offset, size in places[first : first + count]:
                record = data[offset - begin : offset - begin + size]
                yield record if is_intact(record, offset) else self.look_message(offset, size)
            first += count

    def read_together(self, places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        """Yield how many of these records are near each other in the log, and the bytes from the first on.

        places: physical offset and size of each. All are yielded, in order. Nothing is checked. The bytes are
        empty if they cannot be read together.
        """
        first = 0
        while first < len(places):
            begin, size = places[first]
            end, following = begin + size, first + 1
            for offset, its_size in places[following:]:
                if not 0 <= offset - end <= _GAP_BYTES_MAX or offset + its_size - begin > _TOGETHER_BYTES:
                    break
                end = offset + its_size
                following += 1
            data = b""
            with contextlib.suppress(StoreError):
                data = self.commit_log.read(begin, end - begin) or b""
            yield following - first, data
            first = following

    def read_log(self, physical_offset: int, size: int) -> bytes | None:
        """Return bytes of one commit log file, which may start and end inside records; for replication."""
        return self.commit_log.files.read(physical_offset, size)

    def query_message(self, topic: str, key: str, max_count: int, begin: int, end: int) -> QueryMessageResult:
        """Do the work of `find_messages` now."""
        return finish(self.find_messages(topic, key, max_count, begin, end))

    def find_messages(
        self, topic: str, key: str, max_count: int, begin: int, end: int
    ) -> Generator[None, None, QueryMessageResult]:
        """Return the newest records with a key that were stored in [begin, end] (ms); see `find_by_key`.

        It yields after each record. At most `max_count` and maxMsgsNumBatch. The result is empty if the index
        is switched off.
        """
        self._catch_up()
        count = min(max_count, self.config.index.query_count_max)
        return find_by_key(self.index, self.commit_log.read_record, topic, key, count, begin, end)

    def check_in_place(self) -> None:
        """Fail the store if the log file that is written was removed or replaced. Raises StoreError.

        Such a file accepts writes and flushes, but the next start does not find its messages.
        """
        last = next(reversed(self.commit_log.files.mapped_files), None)
        if last is not None and not last.is_in_place():
            text = (
                "was removed or replaced while the broker runs; acknowledged messages may be lost. Look for"
            )
            self.fail(StoreDamaged(f"{last.path} {text} an unmounted disk, then restart the broker"))

    # -- flushing --------------------------------------------------------------------------------

    def plan_flush(self) -> FlushPlan:
        """Plan a flush of the commit log. Pass the plan to `run_flush` in any thread, then to `finish_flush`.

        Raises FlushFailed after a failed flush: another flush might succeed without having written anything.
        """
        self._check_flushes()
        plan = FlushPlan(log_timestamp=self.commit_log.last_store_timestamp)
        self.commit_log.plan_flush(plan)
        return plan

    def thorough_plans(self, limits: PlanLimits | None = None) -> Iterator[FlushPlan]:
        """Yield plans of a flush of commit log, index, consume queues and, last, the checkpoint.

        Run and finish each plan before the next one. Other flushes may run in between, except another
        thorough one: it would be the one that saves the checkpoint. An empty plan is an opportunity to do
        other work.

        Raises DiskFull, StoreError when queues cannot be written; a later flush may succeed. Raises
        FlushFailed like `plan_flush`.
        """
        self._check_flushes()
        if self.index is not None:
            self.index.write_entries()  # may fail; later, the plan must be run
        self._close_idle_log_files()
        plan = self.plan_flush()
        self._plan_index(plan)
        # States what is true now; units that are added to queues from now on wait for the next flush.
        checkpoint = self._next_checkpoint(plan)
        self._thorough_flushes += 1
        number = self._thorough_flushes
        yield plan
        yield from self.queues.flush_plans(limits or PlanLimits())
        if checkpoint is not None and number == self._thorough_flushes:
            yield FlushPlan(checkpoint=checkpoint)

    def _plan_index(self, plan: FlushPlan) -> None:
        if self.index is not None:
            plan.index_files = list(self.index.full)
            if self.index.directory_changed:
                plan.directories.update({self.index.directory: None, self.config.root: None})
                self.index.directory_changed = False

    def _next_checkpoint(self, plan: FlushPlan) -> Checkpoint | None:
        """Return the checkpoint to save once all is flushed that is written now; None without a change.

        plan: flushes the log and the index.
        """
        checkpoint = dataclasses.replace(self.checkpoint)
        checkpoint.logics_timestamp = self.dispatcher.last_store_timestamp or checkpoint.logics_timestamp
        checkpoint.physic_timestamp = plan.log_timestamp or checkpoint.physic_timestamp
        checkpoint.dispatched_offset = self.dispatcher.offset
        checkpoint.flushed_offset = self.commit_log.max_offset
        checkpoint.min_offset = self.commit_log.min_offset
        checkpoint.tail_offset = self.commit_log.tail.offset
        units = sum(queue.next_offset for queue in self.queues.queues.values())
        checkpoint.progress = (
            self.index.progress(units) if self.index is not None else DispatchProgress(units, -1)
        )
        for file in plan.index_files:
            checkpoint.index_timestamp = max(checkpoint.index_timestamp, file.end_timestamp)
        if checkpoint == self._saved_checkpoint:
            return None
        if self.index is not None and self.index.files:
            plan.index_entries = self.index.files[-1]
        return checkpoint

    def _check_flushes(self) -> None:
        if isinstance(self.failure, FlushFailed):
            raise FlushFailed(f"the store rejects messages: {self.failure}")

    def run_flush(self, plan: FlushPlan) -> None:
        """Run a plan. Blocks; safe in a thread, one plan at a time. Raises FlushFailed."""
        plan.run(self.disk, self.checkpoint_file)

    def _close_idle_log_files(self) -> None:
        """Close old files of the log until their next read, if more than `handles_max` are open.

        A consumer that reads old messages opens all of them. The two newest stay open, since a thread may
        preallocate there.
        """
        mapped_files = self.commit_log.files.mapped_files
        if sum(file.is_open for file in mapped_files) > self.config.consume_queue.handles_max:
            for file in mapped_files[:-2]:
                file.close_idle()

    def finish_flush(self, plan: FlushPlan, error: FlushFailed | None = None) -> None:
        """Record that a plan was run. error: its failure, after which the store rejects messages."""
        if error is not None:
            plan.release()
            self.fail(error)
            return
        plan.finish()
        if plan.checkpoint is not None:
            self.checkpoint = plan.checkpoint
            self._saved_checkpoint = dataclasses.replace(plan.checkpoint)
        if self.index is not None:
            for file in plan.index_files:
                file.forget_slots()
                self.index.full.remove(file)

    def flush(self, *, thorough: bool = False) -> int:
        """Flush in this thread; return the flushed offset.

        thorough: also flush consume queues, full index files and the checkpoint. Raises FlushFailed, after
        which the store rejects messages until it is opened again.
        """
        if thorough:
            self._flush_all()
        else:
            flush_now(self, self.plan_flush())
        if self._is_sync_flush:
            self.mark_flushed()
        return self.flushed_offset

    def _flush_all(self) -> None:
        for plan in self.thorough_plans():
            flush_now(self, plan)

    def mark_flushed(self, offset: int | None = None) -> None:
        """Save the flushed offset in the checkpoint, so that recovery detects damage below it.

        offset: None for the current flushed offset. Call it after every flush; no response waits for it (see
        decision 0006). Blocks; safe in one thread at a time. Raises FlushFailed, after which the store
        rejects messages until it is opened again.
        """
        self._check_flushes()
        try:
            self.checkpoint_file.advance_flushed_offset(self.flushed_offset if offset is None else offset)
        except Exception as error:  # noqa: BLE001 - raised below
            failure = flush_failure(error)
            self.fail(failure)
            raise failure from failure.__cause__

    def persist_min_offset(self) -> None:
        """Save the start offset of the log, before older files are deleted. Blocks; safe in a thread.

        Power loss may restore deleted files in any order. Without the saved offset, recovery would find a gap
        between them. Raises StoreError.
        """
        self.checkpoint_file.advance_min_offset(self.commit_log.min_offset)
        self.commit_log.persist_min_offset()

    @property
    def flushed_offset(self) -> int:
        """Records below this offset of the commit log survive power loss."""
        return self.commit_log.flushed_offset

    # -- preallocation ---------------------------------------------------------------------------

    def needs_preallocation(self) -> bool:
        """Whether the log is near the end of its reserved blocks, or of its file."""
        return self.failure is None and self.commit_log.needs_preallocation()

    def preallocate_ahead(self) -> MappedFile | None:
        """Reserve space ahead of the log, or create its next file. Blocks; safe in one thread at a time.

        Returns the file for `adopt_preallocated`. Raises DiskFull, StoreError; appends may continue.
        """
        return self.commit_log.preallocate_ahead()

    def adopt_preallocated(self, file: MappedFile | None) -> None:
        """Keep the file that `preallocate_ahead` created, or delete it if the store was closed since."""
        if file is not None and self._is_open:
            self.commit_log.adopt_preallocated(file)
        elif file is not None:
            file.delete()


def finish(work: Generator[None, None, T]) -> T:
    """Do all of the work now; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def _rejected(reason: StoreError) -> StoreError:
    kind = type(reason) if isinstance(reason, FlushFailed | DiskFull | StoreBusy) else StoreError
    return kind(f"the store rejects messages: {reason}")
