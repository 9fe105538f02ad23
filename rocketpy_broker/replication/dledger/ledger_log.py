"""The log of a message store in a DLedger group: each message's record is the body of a ledger entry.

A record's physical offset is its position in the data files: 48 bytes after its entry's (QUIRKS 62, 63). Only
committed entries are read (QUIRKS 64). The old commit log of a store that was created without DLedger stays
in front of the ledger; see `JoinedFiles`.

Source: DLedgerCommitLog of RocketMQ 4.6.0. Differs: batches are accepted, with one entry per message.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from rocketpy.errors import (
    InvariantError,
    MessageInvalid,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    RecordCorrupt,
    StoreError,
    TopicInvalid,
    ensure,
)
from rocketpy.protocol.message.batch import decode_batch
from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES
from rocketpy.protocol.message.record import (
    FIXED_BYTES,
    MESSAGE_MAGIC,
    MIN_BLANK_BYTES,
    RecordView,
    encode_blank_start,
    encode_record,
    read_start,
)
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.replication.dledger.core.entry import HEADER_BYTES, Entry
from rocketpy_broker.replication.dledger.storage.entry_records import EntryRecordScan, JoinedFiles, record_of
from rocketpy_broker.replication.dledger.storage.ledger_files import LedgerFiles
from rocketpy_broker.store.busy import PendingFull
from rocketpy_broker.store.config import RecoveryConfig, StoreConfig
from rocketpy_broker.store.files.checkpoint import Checkpoint
from rocketpy_broker.store.files.disk import Clock, Disk
from rocketpy_broker.store.log.flush import FlushPlan
from rocketpy_broker.store.log.log_scan import BulkReader, LogTail
from rocketpy_broker.store.log.mapped_file import MappedFile
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue
from rocketpy_broker.store.log.message_log import MessageLog, RecordScan, RecoveryReport
from rocketpy_broker.store.log.messages import (
    NOT_IN_QUEUE,
    NUL_IN_PROPERTIES,
    AppendReceipt,
    BatchReceipt,
    LogPiece,
    MessageInner,
    QueueTable,
    peek_message,
    too_large,
    with_hosts,
)

logger = logging.getLogger("rocketpy_broker.dledger.ledger_log")

NO_OP_TOPIC: Final = "SELF_TEST_TOPIC"
"""RocketMQ's system topic for messages that no consumer receives."""
_HEAD_BYTES: Final = 1 << 16


class Appender(Protocol):
    """Appends entries: the peer of this broker while it leads."""

    def next_entry_pos(self, body_bytes: int) -> int:
        """Return the position of the next entry, if its body has this size."""

    def append(self, body: bytes) -> Entry:
        """Append an entry. Raises NotLeader, NotEnoughReplicas (too many are uncommitted), DiskFull."""


class LedgerLog(MessageLog):
    """Appends entries, and reads the committed ones. committed: returns the saved committed index."""

    def __init__(
        self,
        config: StoreConfig,
        table: QueueTable,
        clock: Clock,
        disk: Disk,
        *,
        ledger: LedgerFiles,
        committed: Callable[[], int],
    ) -> None:
        self._table = table
        self._clock = clock
        self._ledger = ledger
        self._load_committed = committed
        self._message_bytes_max = config.commit_log.message_bytes_max
        self._old = MappedFileQueue(disk, config.commit_log_directory, ledger.data.file_bytes)
        self.files: JoinedFiles = JoinedFiles(self._old, ledger.data)
        self.set_store_host(config.store_host)
        self._leader: Appender | None = None
        self._uncommitted: deque[tuple[int, LogPiece]] = deque()
        """Entry index and record of the messages that were appended here and are not committed."""
        self.on_expired: Callable[[int], None] | None = None
        """Called with the oldest remaining index before older entries are deleted."""
        self.committed_index = -1
        """Entries up to here are committed, and were returned for dispatch."""
        self._committed_end = 0
        self._appended_end = 0
        self.tail = LogTail(0)

    # -- opening and closing ---------------------------------------------------------------------

    def load(self) -> None:
        """Recover the ledger; see `MessageLog`, also for the methods below."""
        self._ledger.open()
        self._old.load()

    def classify_files(self, checkpoint: Checkpoint) -> None:
        """Check the old log; on the first start with DLedger, start the ledger after it."""
        self._old.classify_files(-1, checkpoint.min_offset)
        self._old.drop_strays()
        if self._old.mapped_files and not self._ledger.data.mapped_files:
            self._start_after_old_log(checkpoint.log_end)
        self.committed_index = min(self._load_committed(), self._ledger.end_index)

    def _start_after_old_log(self, end: int) -> None:
        """End the old log with a blank record, and start the ledger in the next file.

        end: offset after the last record of the old log. Its store was stopped cleanly.
        """
        last = self._old.mapped_files[-1]
        ensure(last.start <= end <= last.end, f"the old log ends at {end}, its last file is {last.path}")
        rest = last.end - end
        if rest >= MIN_BLANK_BYTES:
            last.write(end - last.start, encode_blank_start(rest))
            last.flush()
        self._ledger.begin_at(last.end)
        logger.warning("the commit log ends at %d, and the ledger starts there", last.end)

    def first_record(self, file: MappedFile) -> RecordView | None:
        """Return the first record of a file of the old log, or of the first entry of a data file."""
        is_old = file in self._old.mapped_files
        return peek_message(file.read(0 if is_old else HEADER_BYTES, _HEAD_BYTES))

    def scan(self, start: int, dispatched: int, *, check_crc: bool, bulk: BulkReader | None) -> RecordScan:
        """Scan up to the known committed index; everything that was dispatched is committed too."""
        until = max(self._end_of(self.committed_index), dispatched)
        data = self._ledger.data
        return EntryRecordScan(self._old, data, start, until, check_crc=check_crc, bulk=bulk)

    def _end_of(self, index: int) -> int:
        ledger = self._ledger
        return ledger.get(index).end_pos if ledger.begin_index <= index and index >= 0 else ledger.start_pos

    def truncate_tail(
        self, scan: RecordScan, checkpoint: Checkpoint, config: RecoveryConfig, report: RecoveryReport
    ) -> None:
        """Keep uncommitted entries: the group decides whether they are committed."""
        self._committed_end = scan.end
        ledger = self._ledger
        expired = ledger.begin_index - 1
        self.committed_index = max(self.committed_index, ledger.index_before(scan.end), expired)

    def rewrite_unflushed(self, report: RecoveryReport, flushed_offset: int) -> None:
        """Do nothing: the recovery of the ledger has rewritten its files."""

    def start(self, tail: LogTail) -> None:
        """Continue after the recovered records."""
        self.tail = tail

    def finish(self) -> None:
        """Flush the ledger, and mark its stop as clean."""
        self._ledger.close()

    def close(self) -> None:
        """Close all files."""
        self._ledger.close()
        self._old.close()

    def no_op(self, physical_offset: int) -> bytes:
        """Return the record of the entry with which a leader begins its term; all have the same size.

        It is marked as rolled back, so neither RocketMQ 4.6.0 nor rocketpy puts it into a queue or the index.
        """
        now_ms, host = self._clock(), self._store_host
        flag = MessageSysFlag.TRANSACTION_ROLLBACK
        if self._store_flag:
            flag |= MessageSysFlag.STORE_HOST_V6 | MessageSysFlag.BORN_HOST_V6
        topic = NO_OP_TOPIC.encode()
        return encode_record(
            topic, 0, 0, 0, physical_offset, flag, now_ms, host, now_ms, host, 0, 0, b"", b""
        )

    # -- offsets ---------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """Start of the oldest record. In the ledger, the header of its entry comes before it."""
        return self.min_offset + (0 if self._old.mapped_files else HEADER_BYTES)

    @property
    def max_offset(self) -> int:
        """End of the last committed entry."""
        return max(self._committed_end, self.min_offset)

    @property
    def appended_offset(self) -> int:
        """End of the last entry that was appended here."""
        return max(self._appended_end, self.max_offset)

    @property
    def flushed_offset(self) -> int:
        """The committed offset: committed entries are durable, here or on other peers."""
        return self.max_offset

    # -- appending -------------------------------------------------------------------------------

    def set_appender(self, appender: Appender | None) -> None:
        """Accept messages from now on; None: reject them. Uncommitted messages may then be lost."""
        self._leader = appender
        self._uncommitted.clear()

    def append(self, message: MessageInner) -> AppendReceipt:
        """Append the entry of a message, which is stored once the group has committed it.

        Raises MessageTooLarge, TopicInvalid, MessageInvalid, PendingFull, DiskFull, StoreError (this broker
        does not lead); then nothing has changed.
        """
        return self._append(message, message.flag, message.body, message.properties)

    def append_batch(self, message: MessageInner) -> BatchReceipt:
        """Append one entry per message. If one is rejected, earlier ones stay, but none is acknowledged."""
        if message.sys_flag & MessageSysFlag.TRANSACTION_MASK:
            raise MessageInvalid("messages of a batch cannot be transactional")
        batch = decode_batch(message.body)
        fixed = FIXED_BYTES + len(message.topic.encode())
        total = sum([fixed + len(body) + len(properties) for _, body, properties in batch])
        if total > self._message_bytes_max:
            raise too_large(total, self._message_bytes_max, 0)
        first = self._table[message.topic, message.queue_id].next_offset
        receipts = [self._append(message, *entry) for entry in batch]
        return BatchReceipt([receipt.physical_offset for receipt in receipts], first)

    def _append(self, message: MessageInner, flag: int, body: bytes, properties: bytes) -> AppendReceipt:
        leader = self._leader
        if leader is None:
            raise StoreError("this broker does not lead its group")
        cursor = self._table[message.topic, message.queue_id]
        size = FIXED_BYTES + len(body) + len(cursor.topic_bytes) + len(properties)
        sys_flag, size = with_hosts(message.sys_flag, size, message.born_host, self._store_flag)
        if (size > self._message_bytes_max and not message.is_copy) or len(properties) > MAX_PROPERTIES_BYTES:
            raise too_large(size, self._message_bytes_max, len(properties))
        if HEADER_BYTES + size + MIN_BLANK_BYTES > self.files.file_bytes:
            raise MessageTooLarge(
                f"record of {size} bytes does not fit into a ledger file of {self.files.file_bytes} bytes "
                "(mappedFileSizeCommitLog)"
            )
        if b"\0" in properties:
            raise MessageInvalid(NUL_IN_PROPERTIES)
        pos = leader.next_entry_pos(size)
        now = self._clock()
        queue_offset = 0 if sys_flag & NOT_IN_QUEUE else cursor.next_offset
        record = encode_record(
            cursor.topic_bytes,
            message.queue_id,
            flag,
            queue_offset,
            pos + HEADER_BYTES,
            sys_flag,
            message.born_timestamp,
            message.born_host,
            now,
            self._store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            body,
            properties,
        )
        try:
            entry = leader.append(record)
        except NotEnoughReplicas as error:
            raise PendingFull(f"too many messages wait for a majority of the group: {error}") from error
        except NotLeader as error:
            raise StoreError(f"this broker does not lead its group: {error}") from error
        if entry.pos != pos:
            raise InvariantError(f"entry {entry.index} is at {entry.pos}, but its record is for {pos}")
        if not sys_flag & NOT_IN_QUEUE:
            cursor.next_offset = queue_offset + 1
        self._appended_end = pos + HEADER_BYTES + size
        physical_offset = pos + HEADER_BYTES
        piece = LogPiece(physical_offset, physical_offset + size, 1, now, (cursor,), record)
        self._uncommitted.append((entry.index, piece))
        return AppendReceipt(physical_offset, size, queue_offset, now)

    def write_out(self) -> list[LogPiece]:
        """Do nothing: the peer writes entries, and `commit` returns the records to dispatch."""
        return []

    def commit(self, index: int) -> list[LogPiece]:
        """Return the records of the entries up to `index`, which are committed now, for dispatch.

        Raises StoreError if an entry cannot be read.
        """
        ledger, uncommitted = self._ledger, self._uncommitted
        pieces: list[LogPiece] = []
        for number in range(self.committed_index + 1, min(index, ledger.end_index) + 1):
            if uncommitted and uncommitted[0][0] == number:
                piece: LogPiece | None = uncommitted.popleft()[1]
            else:
                piece = self._piece(entry := ledger.get(number))
            if piece is not None:
                pieces.append(piece)
                self._committed_end = piece.end
            else:
                self._committed_end = entry.end_pos
            self.committed_index = number
        if pieces:
            self.last_store_timestamp = pieces[-1].stored_ms
            self.tail.advance(self._committed_end)
        return pieces

    def _piece(self, entry: Entry) -> LogPiece | None:
        try:
            view = record_of(entry)
            cursor = self._table[view.topic, view.queue_id]
        except (RecordCorrupt, TopicInvalid) as error:
            logger.error("entry %d has no message record: %s", entry.index, error)
            return None
        if not view.sys_flag & NOT_IN_QUEUE:
            cursor.next_offset = max(cursor.next_offset, view.queue_offset + 1)
        begin = view.physical_offset
        return LogPiece(begin, begin + view.size, 1, view.store_timestamp, (cursor,), entry.body)

    @property
    def has_gap(self) -> bool:
        """Whether the ledger was reset and now starts after entries that were not dispatched here."""
        return self._ledger.begin_index > self.committed_index + 1

    def skip_gap(self) -> None:
        """Continue with the oldest entry of the ledger, and delete the old log."""
        self.committed_index = self._ledger.begin_index - 1
        self._committed_end = self._ledger.data.min_offset
        self.tail = LogTail(self._committed_end)
        while self._old.mapped_files:
            self._old.mapped_files.pop(0).delete()

    # -- reading ---------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes | None:
        """Return committed bytes within one file; None if some of them are not committed."""
        offset = offset or self.first_offset
        return self.files.read(offset, size) if offset + size <= self.max_offset else None

    def read_record(self, offset: int, size: int | None = None) -> bytes | None:
        """Return the bytes of the record at that offset; None unless all of them are committed."""
        if size is None:
            start = self.read(offset, MIN_BLANK_BYTES)
            size, magic = read_start(start) if start is not None else (0, 0)
            if magic != MESSAGE_MAGIC:  # no record starts at this offset
                return None
        return self.read(offset, size) if size > 0 else None

    # -- flushing, preallocation and retention ---------------------------------------------------

    def plan_flush(self, plan: FlushPlan) -> None:
        """Add nothing: the peer flushes the ledger."""

    def adopt_preallocated(self, file: MappedFile) -> None:
        """Do nothing: `preallocate_ahead` creates no file here."""

    def persist_min_offset(self) -> None:
        """Save the new start of the ledger."""
        self._ledger.persist_min_offset()

    def take_expired_side_files(self) -> list[MappedFile]:
        """Remove and return the index files of expired entries, and call `on_expired`."""
        if self.on_expired is not None and self._ledger.begin_index >= 0:
            self.on_expired(self._ledger.begin_index)
        return self._ledger.take_expired_index()
