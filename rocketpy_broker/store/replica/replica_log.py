"""A store's commit log as a copy of another's: bytes are written as received, and dispatched here.

Pieces may end anywhere. An incomplete record is held in memory, and so is the blank record at a file's end
until a record follows it: the log on disk always ends with a record, as recovery expects. Consume queues and
index are made here. Source: DefaultMessageStore.appendToCommitLog of RocketMQ
4.6.0. Differs: it writes bytes at once; rocketpy checks every record before it is written.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from rocketpy.errors import StoreError
from rocketpy.protocol.message.record import MIN_BLANK_BYTES
from rocketpy_broker.store.files.state_file import save_state
from rocketpy_broker.store.log.log_scan import LogScan, LogTail
from rocketpy_broker.store.log.mapped_file_queue import MappedFileQueue, read_across
from rocketpy_broker.store.message_store import MessageStore
from rocketpy_broker.store.replica.backlog import Backlog
from rocketpy_broker.store.replica.copied_records import ParsedRecords, RecordParser

logger = logging.getLogger("rocketpy_broker.store.replica")


class ReplicaLog:
    """The commit log of an open store, written with a master's bytes. The store must not append meanwhile.

    backlog: takes what comes too fast to be dispatched at once; None: nothing does.
    """

    def __init__(self, store: MessageStore, backlog: Backlog | None = None) -> None:
        files = store.commit_log.files
        if not isinstance(files, MappedFileQueue):
            raise StoreError("a store on a ledger copies no other store: the ledger is replicated")
        self._store = store
        self._backlog = backlog
        self._files = files
        self._held = bytearray()
        """Received bytes that are not on disk yet: the last record is incomplete."""
        self._wanted = MIN_BLANK_BYTES
        """Bytes that must be held before another record can be complete."""
        self._records = RecordParser(store)

    @property
    def is_empty(self) -> bool:
        """Whether there is no file yet."""
        return not self._files.mapped_files

    @property
    def max_offset(self) -> int:
        """Just after the last received byte; 0 in an empty log."""
        return self._files.max_offset + len(self._held)

    def append(self, offset: int, data: bytes) -> None:
        """Append bytes at `offset`, which must be the end of the log.

        An empty log begins with the file that starts there.

        Complete records survive the end of this process, and are queued for dispatch, here or by the backlog.
        Raises DiskFull, StoreError: then nothing was taken. After StoreDamaged (an invalid record) the store
        accepts nothing more.
        """
        if self._store.failure is not None:
            raise StoreError(f"the store takes no messages: {self._store.failure}")
        if self.is_empty:
            self._begin(offset)
        if offset != self.max_offset:
            raise StoreError(f"bytes for offset {offset}, but the log ends at {self.max_offset}")
        held = self._held
        if len(held) + len(data) < self._wanted:
            held += data
            return
        whole = b"".join((held, data)) if held else data
        base = self._files.max_offset
        backlog = self._backlog if self._backlog is not None and self._backlog.wants(len(data)) else None
        found = self._records.take(whole, base, only_check=backlog is not None)
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
                f"a copy cannot begin at {offset}: files here have {self._files.file_bytes} bytes; set "
                "mappedFileSizeCommitLog as the master has it"
            )
        self._files.add_file(offset)
        self._store.dispatcher.offset = offset
        self._store.commit_log.start(LogTail(offset))

    def _write(self, data: bytes) -> None:
        """Write at the log's end, into as many files as it takes; all of it, or nothing."""
        before = self._files.max_offset
        try:
            for _ in self._files.append(data):
                pass
        except StoreError:
            self._undo(before)
            raise

    def _undo(self, end: int) -> None:
        try:
            if self._files.truncate(end) and self._files.last is not None:
                # Power loss could restore the erased records after those that are written there next.
                self._files.last.flush()
        except StoreError as failure:
            self._store.failure = failure

    def _publish(self, found: ParsedRecords) -> None:
        store, end = self._store, self._files.max_offset
        store.commit_log.start(store.commit_log.tail)
        store.commit_log.tail.advance(end)
        store.commit_log.last_store_timestamp = found.timestamp
        found.hand_over(store)

    # -- cutting ------------------------------------------------------------------------------

    def cut(self, end: int, saved_to: Path) -> None:
        """Cut the log at `end`, where a record ends, and everything that was made of the records after it.

        saved_to: where the bytes that are cut off are saved first. Blocks; no flush may run meanwhile. Raises
        StoreError, FlushFailed. A crash in between leaves the log as it was, or cut.
        """
        store, files = self._store, self._files
        logger.warning("commit log: cut from %d to %d; the rest is in %s", files.max_offset, end, saved_to)
        self._save_tail(end, saved_to)
        self._held.clear()
        if self._backlog is not None:
            self._backlog.drain()
            self._backlog.forget(end)
        store.flush(thorough=True)
        store.dispatch()
        store.checkpoint = dataclasses.replace(
            store.checkpoint,
            flushed_offset=min(end, store.checkpoint.flushed_offset),
            dispatched_offset=min(end, store.checkpoint.dispatched_offset),
            tail_offset=min(end, store.checkpoint.tail_offset),
            progress=None,
        )
        store.checkpoint_file.save(store.checkpoint)
        for queue in store.queues.queues.values():
            if queue.max_physical_offset > end:
                queue.truncate(end)
        files.delete_preallocated()
        files.truncate(end)
        store.dispatcher.offset = end
        self._rebuild_index_after(end)
        for cursor in store.table.values():
            cursor.next_offset = 0
        store.queues.fill(store.table, files.min_offset)
        tail = store.commit_log.tail.offset
        store.commit_log.start(LogTail(tail if tail <= end else files.min_offset))
        store.flush(thorough=True)

    def _save_tail(self, end: int, saved_to: Path) -> None:
        save_state(self._store.disk, saved_to, read_across(self._files, end, self._files.max_offset) or b"")

    def _rebuild_index_after(self, end: int) -> None:
        """Delete index files with records that were cut at `end`; index the others of those files again."""
        index = self._store.index
        if index is None or index.cut_from(end):
            return
        begin = max(index.end_offset if index.files else 0, self._files.min_offset)
        file = self._files.find(begin)
        if file is not None:
            requests = [self._records.request_of(view) for view in LogScan(self._files, file.start)]
            self._store.dispatcher.put([request for request in requests if request[1] >= begin])
