"""The commit log of a slave: a byte-for-byte copy of its master's, with consume queues and index of its own.

Received pieces may end inside a record. An incomplete record is kept in memory; so is the blank record at the
end of a file, until a record follows it. So the log on disk always ends with a record, as recovery expects.
Source: RocketMQ 4.6 DefaultMessageStore appendToCommitLog. Differs: every record is checked before it is
written.
"""

from __future__ import annotations

import dataclasses
import logging
from operator import attrgetter
from pathlib import Path

from rocketpy.errors import StoreError
from rocketpy.protocol.message.record import MIN_BLANK_BYTES
from rocketpy_broker.store.files.state_file import save_state
from rocketpy_broker.store.log.log_scan import LogScan, LogTail
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue, read_across
from rocketpy_broker.store.message_store import MessageStore
from rocketpy_broker.store.queue.log_fields import fields_of
from rocketpy_broker.store.replica.backlog import Backlog
from rocketpy_broker.store.replica.copied_records import ParsedRecords, RecordParser

logger = logging.getLogger("rocketpy_broker.store.replica")


class ReplicaLog:
    """Appends the bytes of a master to the commit log of an open store. The store itself must not append.

    backlog: takes records that arrive too fast to be dispatched immediately. None: all records are queued for
    dispatch as they arrive.
    """

    def __init__(self, store: MessageStore, backlog: Backlog | None = None) -> None:
        files = store.commit_log.files
        if not isinstance(files, MappedFileQueue):
            raise StoreError("a store on a DLedger log cannot copy a master: DLedger replicates its log")
        self._store = store
        self._backlog = backlog
        self._files = files
        self._held = bytearray()
        """Received bytes that are not on disk yet: the last record is incomplete."""
        self._wanted = MIN_BLANK_BYTES
        """Number of bytes that `_held` needs for a complete record."""
        self._records = RecordParser(store)

    @property
    def is_empty(self) -> bool:
        """Whether there is no file yet."""
        return not self._files.mapped_files

    @property
    def max_offset(self) -> int:
        """Offset just after the last received byte; 0 in an empty log."""
        return self._files.max_offset + len(self._held)

    def append(self, offset: int, data: bytes) -> None:
        """Append bytes at `offset`, the end of the log. An empty log starts at `offset`, the start of a file.

        Complete records survive the end of this process, and are queued for dispatch, here or by the backlog.
        Raises DiskFull, StoreError; then nothing was appended. After StoreDamaged (an invalid record) the
        store rejects everything.
        """
        if self._store.failure is not None:
            raise StoreError(f"the store rejects messages: {self._store.failure}")
        if self.is_empty:
            self._begin(offset)
        if offset != self.max_offset:
            raise StoreError(
                f"the master sent bytes for offset {offset}, but this log ends at {self.max_offset}"
            )
        held = self._held
        if len(held) + len(data) < self._wanted:
            held += data
            return
        whole = b"".join((held, data)) if held else data
        base = self._files.max_offset
        backlog = self._backlog if self._backlog is not None and self._backlog.accepts(len(data)) else None
        found = self._records.parse(whole, base, only_check=backlog is not None)
        if found.end:
            self._write(whole[: found.end])
        self._wanted = found.wanted
        self._held = bytearray(whole[found.end :])
        if not found.end:
            return
        self._publish(found)
        if backlog is not None:
            backlog.add(base, self._files.max_offset, len(data))

    def _begin(self, offset: int) -> None:
        if offset % self._files.file_bytes:
            raise StoreError(
                f"a copy cannot start at {offset}, inside a file of {self._files.file_bytes} bytes; set "
                "mappedFileSizeCommitLog to the value of the master"
            )
        self._files.add_file(offset)
        self._store.dispatcher.offset = offset
        self._store.commit_log.start(LogTail(offset))

    def _write(self, data: bytes) -> None:
        """Write at the end of the log, to one or more files. A failed write is rolled back."""
        before = self._files.max_offset
        try:
            for _ in self._files.append(data):
                pass
        except StoreError:
            self._roll_back(before)
            raise

    def _roll_back(self, end: int) -> None:
        try:
            if self._files.truncate(end) and self._files.last is not None:
                # Without this flush, power loss could restore zeroed records behind the next ones.
                self._files.last.flush()
        except StoreError as failure:
            self._store.failure = failure

    def _publish(self, found: ParsedRecords) -> None:
        store, end = self._store, self._files.max_offset
        store.commit_log.start(store.commit_log.tail)
        store.commit_log.tail.advance(end)
        store.commit_log.last_store_timestamp = found.timestamp
        found.hand_over(store)

    # -- truncating ---------------------------------------------------------------------------

    def truncate(self, end: int, saved_to: Path) -> None:
        """Truncate the log at `end`, where a record ends; also consume queues, index and checkpoint.

        saved_to: file that gets a copy of the truncated bytes first. Blocks; no flush may run at the same
        time. Raises StoreError, FlushFailed. After a crash the log is either unchanged or truncated.
        """
        store, files = self._store, self._files
        logger.warning(
            "truncating the commit log from %d to %d; the truncated bytes are saved in %s",
            files.max_offset, end, saved_to,
        )  # fmt: skip
        self._save_tail(end, saved_to)
        self._held.clear()
        if self._backlog is not None:
            self._backlog.drain()
            self._backlog.clear(end)
        store.flush(thorough=True)
        store.dispatch()
        store.checkpoint = dataclasses.replace(
            store.checkpoint,
            flushed_offset=min(end, store.checkpoint.flushed_offset),
            dispatched_offset=min(end, store.checkpoint.dispatched_offset),
            tail_offset=min(end, store.checkpoint.tail_offset),
            progress=None,
        )
        store.checkpoint_file.truncate(store.checkpoint)
        for queue in store.queues.queues.values():
            if queue.max_physical_offset > end:
                queue.truncate(end)
        files.delete_preallocated()
        files.truncate(end)
        store.truncations += 1
        store.dispatcher.offset = end
        store.dispatcher.clock.start(end, self._last_stored_ms())
        self._rebuild_index_after(end)
        for cursor in store.table.values():
            cursor.next_offset = 0
        store.queues.fill(store.table, files.min_offset)
        tail = store.commit_log.tail.offset
        store.commit_log.start(LogTail(tail if tail <= end else files.min_offset))
        store.flush(thorough=True)

    def _last_stored_ms(self) -> int:
        """Return the store time of the last record of all queues; 0 without one."""
        queues = self._store.queues.queues.values()
        last = max(queues, key=attrgetter("max_physical_offset"), default=None)
        unit = None if last is None else last.unit(last.next_offset - 1)
        return 0 if unit is None else self._store.commit_log.store_timestamp(unit.physical_offset)

    def _save_tail(self, end: int, saved_to: Path) -> None:
        save_state(self._store.disk, saved_to, read_across(self._files, end, self._files.max_offset) or b"")

    def _rebuild_index_after(self, end: int) -> None:
        """Delete index files with truncated records, and index the remaining records of those files again."""
        index = self._store.index
        if index is None or index.delete_from(end):
            return
        begin = max(index.end_offset if index.files else 0, self._files.min_offset)
        file = self._files.find(begin)
        if file is not None:
            dispatcher = self._store.dispatcher
            for view in LogScan(self._files, file.start):
                dispatcher.index(fields_of(view, dispatcher.delays_ms), begin)
