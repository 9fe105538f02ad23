"""A message store on a ledger: a `MessageStore` whose messages are kept when a majority of a group has them.

The peer writes the ledger's files and says what is committed; the store reads them. A store that began
without DLedger goes on behind its old commit log.
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
    """One store directory with a ledger in it.

    directory: of the peer, `dledger-<id>`. Messages are taken between `lead` and `follow`. index_file_bytes:
    other than Java's for tests only.
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
        """For the peer, once the store is open."""
        self._state = StateFiles(disk, directory)
        self._wanted_index = -1
        self._ended: dict[tuple[str, int], int] = {}
        """Next numbers of the queues that were forgotten, by topic and queue."""
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
        """Recover ledger and queues; the first time, the commit log from before. See `MessageStore`."""
        if self._is_undivided():
            logger.warning("%s gets a ledger; its commit log is recovered first", self.config.root)
            with MessageStore(self.config, clock=self.clock, disk=self.disk):
                pass
        return super().open()

    def _is_undivided(self) -> bool:
        """Is there a commit log, and no ledger yet?"""
        has_log = bool(self.disk.list_dir(self.config.commit_log_directory))
        return has_log and not self.disk.list_dir(self.ledger.data.directory)

    # -- roles -----------------------------------------------------------------------------------

    def lead(self, appender: Appender) -> None:
        """Take messages from now on. All entries are committed: then queues say which number comes next."""
        self.dispatch()
        for cursor in self.table.values():
            cursor.next_offset = 0
        self.queues.fill(self.table, self.commit_log.min_offset)
        for (topic, queue_id), number in self._ended.items():
            self.begin_queue(topic, queue_id, number)
        self.log.lead(appender)

    def begin_queue(self, topic: str, queue_id: int, number: int) -> None:
        """Let the messages of a queue go on with this number, unless some are here: its older ones were not.

        To be called when all entries are in their queues. Raises TopicInvalid, StoreError.
        """
        queue = self.queues.get_or_add(topic, queue_id)
        if queue.max_physical_offset < 0 and queue.next_offset < number:
            queue.begin_at(number)
            self.table[topic, queue_id].next_offset = number

    def follow(self) -> None:
        """Take no more messages."""
        self.log.lead(None)

    def commit(self, index: int) -> None:
        """Entries up to this one are committed: what they hold is to be dispatched. Raises StoreError.

        After a gap, with the next flush: the queues go then, and one that is under way may have their files.
        """
        self._wanted_index = index
        if self.log.has_gap:
            return
        requests = self.log.commit(index)
        if requests:
            self.publish(requests)

    def plan_flush(self, *, thorough: bool, new_files: bool = True) -> FlushPlan:
        """See `MessageStore`; no flush is under way now."""
        if self.log.has_gap:
            self._begin_anew()
            self.commit(self._wanted_index)
        return super().plan_flush(thorough=thorough, new_files=new_files)

    def _begin_anew(self) -> None:
        """Forget all messages: the leader has deleted what this one lacked, and sent what it still has."""
        self.dispatch()
        for key, queue in list(self.queues.queues.items()):
            self._ended[key] = queue.next_offset
            self.drop_queue(*key)
        if self.index is not None:
            self.index.destroy()
        self.checkpoint = dataclasses.replace(self.checkpoint, progress=None)
        self.log.skip_gap()
        self.dispatcher.offset = self.log.max_offset

    # -- how far it is ---------------------------------------------------------------------------

    @property
    def committed_offset(self) -> int:
        """Just behind the last entry that is committed: as far as anybody may read."""
        return self.log.max_offset

    @property
    def appended_offset(self) -> int:
        """Just behind the last entry appended here, committed or not."""
        return self.log.appended_offset

    @property
    def is_dispatched(self) -> bool:
        """Is all that is committed in its queue? Not while old messages wait for a flush to drop them."""
        return not self.log.has_gap and not self.dispatcher.waiting
