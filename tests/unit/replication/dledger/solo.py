"""A group of one peer, without a clock: the test decides when entries are stored and committed."""

from __future__ import annotations

from pathlib import Path

from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.log_view import LedgerView
from rocketpy_broker.replication.dledger.core.raft_state import LedgerCheckpoint
from rocketpy_broker.replication.dledger.ledger_store import LedgerStore
from rocketpy_broker.replication.dledger.storage.state_files import StateFiles
from rocketpy_broker.store import StoreConfig
from rocketpy_broker.store.files.disk import Clock, system_clock
from tests.unit.store.helpers import message, small_config


class Solo:
    """An open store that leads its group of one."""

    def __init__(
        self, root: Path, config: StoreConfig | None = None, *, term: int = 0, clock: Clock = system_clock
    ) -> None:
        self.directory = root / "dledger-n0"
        config = small_config(root) if config is None else config
        self.store = LedgerStore(config, self.directory, clock=clock)
        self.report = self.store.open()
        self.view = LedgerView(self.store.ledger, self.store.ledger.data.file_bytes)
        self.term = term
        self.store.failure = None
        self.store.become_leader(self)
        self.store.log.on_expired = self.view.expire

    def next_entry_pos(self, body_bytes: int) -> int:
        """Where the next entry goes."""
        return self.view.next_entry_pos(body_bytes)

    def append(self, body: bytes) -> Entry:
        """Append an entry; it is neither stored nor committed yet."""
        entry = Entry.of(self.view.end_index + 1, self.term, self.view.next_entry_pos(len(body)), body)
        self.view.append(entry)
        return entry

    def store_entries(self) -> None:
        """Make the appended messages durable."""
        write = self.view.take()
        if write:
            self.store.ledger.apply(write)
            self.store.ledger.flush()
            self.view.written()

    def commit(self) -> None:
        """Make the appended messages durable, commit them, and dispatch them."""
        self.store_entries()
        self.store.commit(self.view.end_index)
        self.store.dispatch()

    def put(self, *numbers: int, **where: object) -> None:
        """Append messages with these numbers (see `message`), commit them, and dispatch them."""
        for number in numbers:
            self.store.append(message(number, **where))  # type: ignore[arg-type]
        self.store.write_out()
        self.commit()

    def save_checkpoint(self) -> None:
        """Save the commit index, as a peer does every three seconds."""
        committed = self.store.log.committed_index
        StateFiles(self.store.disk, self.directory).save_checkpoint(
            LedgerCheckpoint(committed, self.view.end_index)
        )

    def close(self) -> None:
        """Stop cleanly."""
        self.save_checkpoint()
        self.store.close()

    def kill(self) -> None:
        """End like a killed process: nothing more is written."""
        self.store.ledger.failure = self.store.failure = RuntimeError("killed")  # type: ignore[assignment]
        self.store.close()
