"""A `MessageStore` on a ledger, whose messages are stored once a majority of a group has them.

The peer writes the ledger's files and reports what is committed; the store reads the files. A store that was
created without DLedger continues after its old commit log.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from rocketpy_broker.replication.dledger.core.entry import INDEX_FILE_BYTES
from rocketpy_broker.replication.dledger.ledger_log import Appender, LedgerLog
from rocketpy_broker.replication.dledger.storage.entry_records import check_record
from rocketpy_broker.replication.dledger.storage.ledger_files import LedgerFiles
from rocketpy_broker.replication.dledger.storage.state_files import StateFiles
from rocketpy_broker.store.config import StoreConfig
from rocketpy_broker.store.files.disk import Clock, Disk, OsDisk, system_clock
from rocketpy_broker.store.log.flush import FlushPlan
from rocketpy_broker.store.log.message_log import RecoveryReport
from rocketpy_broker.store.log.messages import QueueTable
from rocketpy_broker.store.message_store import MessageStore

logger = logging.getLogger("rocketpy_broker.dledger.ledger_store")


class LedgerStore(MessageStore):
    """A store directory with a ledger. It accepts messages between `become_leader` and `become_follower`.

    directory: of the peer, `dledger-<id>`. index_file_bytes: differs from Java's in tests only.
    """

    log: LedgerLog

    def __init__(
        self,
        config: StoreConfig,
        directory: Path,
        *,
        clock: Clock = system_clock,
        disk: Disk | None = None,
        index_file_bytes: int = INDEX_FILE_BYTES,
    ) -> None:
        disk = OsDisk() if disk is None else disk
        self.ledger = LedgerFiles(
            directory, config.commit_log, disk=disk, check=check_record, index_file_bytes=index_file_bytes
        )
        """The files that the peer writes; open while the store is open."""
        self._state = StateFiles(disk, directory)
        self._wanted_index = -1
        self._dropped_queues: dict[tuple[str, int], int] = {}
        """Next offsets of the queues that were dropped, by topic and queue id."""
        super().__init__(config, clock=clock, disk=disk, make_log=self._make_log)

    def _make_log(self, config: StoreConfig, table: QueueTable, clock: Clock, disk: Disk) -> LedgerLog:
        self.log = LedgerLog(
            config,
            table,
            clock,
            disk,
            ledger=self.ledger,
            committed=lambda: self._state.load_checkpoint().committed_index,
        )
        return self.log

    def open(self) -> RecoveryReport:
        """Recover ledger and queues; the first time, the old commit log. See `MessageStore`."""
        if self._needs_ledger():
            logger.warning(
                "recovering the commit log in %s; a ledger will continue after it", self.config.root
            )
            with MessageStore(self.config, clock=self.clock, disk=self.disk):
                pass
        return super().open()

    def _needs_ledger(self) -> bool:
        """Whether there is a commit log, and no ledger yet."""
        has_log = bool(self.disk.list_dir(self.config.commit_log_directory))
        return has_log and not self.disk.list_dir(self.ledger.data.directory)

    # -- roles -----------------------------------------------------------------------------------

    def become_leader(self, appender: Appender) -> None:
        """Accept messages from now on. All entries must be committed, since they determine queue offsets."""
        self.dispatch()
        for cursor in self.table.values():
            cursor.next_offset = 0
        self.queues.fill(self.table, self.commit_log.min_offset)
        for (topic, queue_id), offset in self._dropped_queues.items():
            self.begin_queue(topic, queue_id, offset)
        self.log.set_appender(appender)

    def begin_queue(self, topic: str, queue_id: int, offset: int) -> None:
        """Start an empty queue at this queue offset: its older messages have expired on other peers.

        Must be called when all entries are dispatched. Raises TopicInvalid, StoreError.
        """
        queue = self.queues.get_or_add(topic, queue_id)
        if queue.max_physical_offset < 0 and queue.next_offset < offset:
            queue.begin_at(offset)
            self.table[topic, queue_id].next_offset = offset

    def become_follower(self) -> None:
        """Reject messages from now on."""
        self.log.set_appender(None)

    def commit(self, index: int) -> None:
        """Dispatch the entries up to this one, which are committed. Raises StoreError.

        After a gap, the entries are dispatched with the next `plan_flush`. It first drops the queues, whose
        files a running flush may use now.
        """
        self._wanted_index = index
        if self.log.has_gap:
            return
        pieces = self.log.commit(index)
        if pieces:
            self.publish(pieces)

    def plan_flush(self) -> FlushPlan:
        """Plan a flush; see `MessageStore`. No other flush may be running."""
        if self.log.has_gap:
            self._thorough_flushes += 1  # one that has begun must not save its checkpoint
            self._restart_after_gap()
            self.commit(self._wanted_index)
        return super().plan_flush()

    def _restart_after_gap(self) -> None:
        """Drop all messages: the missing entries have expired on the leader, which sent the newer ones."""
        self.dispatch()
        for key, queue in list(self.queues.queues.items()):
            self._dropped_queues[key] = queue.next_offset
            self.drop_queue(*key)
        if self.index is not None:
            self.index.destroy()
        self.checkpoint = dataclasses.replace(self.checkpoint, progress=None)
        self.log.skip_gap()
        self.dispatcher.offset = self.log.max_offset

    # -- offsets ---------------------------------------------------------------------------------

    @property
    def committed_offset(self) -> int:
        """End of the last committed entry, up to which messages may be read."""
        return self.log.max_offset

    @property
    def appended_offset(self) -> int:
        """End of the last entry that was appended here, committed or not."""
        return self.log.appended_offset

    @property
    def is_dispatched(self) -> bool:
        """Whether all committed messages are in queues. False while a flush has yet to drop old ones."""
        return not self.log.has_gap and not self.dispatcher.waiting
