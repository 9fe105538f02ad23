"""The commit log of a store as both ends of the replication see it, and its epochs: haEpochs.json."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from rocketpy.errors import StoreDamaged, StoreError
from rocketpy_broker.replication.ha.epochs import NO_EPOCHS, EpochState, begin_epoch
from rocketpy_broker.store import FlushDiskType, MessageStore
from rocketpy_broker.store.files.disk import Disk, disk_errors
from rocketpy_broker.store.files.state_file import load_state, save_state
from rocketpy_broker.store.replica.backlog import Backlog
from rocketpy_broker.store.replica.replica_log import ReplicaLog

log = logging.getLogger("rocketpy.broker.ha")


class EpochFile:
    """Saves the epochs of a broker durably."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self.state = NO_EPOCHS
        self.is_older = False
        """Whether `load` used the `.bak`, which may lack the newest epoch."""

    def load(self, *, is_slave: bool = False) -> None:
        """Read the file, if there is one. Raises StoreDamaged.

        is_slave: reject a damaged file, and an older copy: without the newest epoch, a slave might follow a
        stale master, and truncate acknowledged messages. A master starts a new epoch in both cases.
        """
        try:
            state, self.is_older = load_state(self._disk, self._path, _decode)
        except StoreDamaged as error:
            if is_slave:
                raise
            log.warning("%s; starting without these epochs, and keeping the file as .damaged", error)
            with disk_errors("rename", self._path):
                self._disk.rename(self._path, self._path.with_name(f"{self._path.name}.damaged"))
            state, self.is_older = None, True
        self.state = state or NO_EPOCHS
        if self.is_older and is_slave:
            raise StoreDamaged(
                f"{self._path} is missing or damaged, and its older copy may lack the newest epoch, so this "
                "slave could follow a stale master. Restore the file, or start with an empty store: the "
                "slave copies all messages"
            )

    def save(self, state: EpochState) -> None:
        """Replace the file. Raises StoreError, and then nothing has changed."""
        if state != self.state:
            save_state(self._disk, self._path, msgspec.json.format(msgspec.json.encode(state), indent=2))
            self.state = state

    def become_master(self, end: int, identity: str, now_ms: int, *, is_clean: bool) -> None:
        """Start as a master whose log ends at `end`. Raises StoreError.

        is_clean: the last stop was clean. After a crash a master may lack bytes that its slaves have, so it
        starts a new epoch. identity: a unique string.
        """
        epochs, own = self.state.epochs, self.state.own
        if not epochs or epochs[-1].id != own:
            self.promote(end, identity, now_ms)
        elif not is_clean:
            self.save(begin_epoch(self.state, end, identity, 0))

    def promote(self, end: int, identity: str, now_ms: int) -> None:
        """Take over from another master; see `become_master`. Raises StoreError."""
        self.save(begin_epoch(self.state, end, identity, now_ms))

    def become_slave(self) -> None:
        """Start as a slave. Raises StoreError."""
        self.save(msgspec.structs.replace(self.state, own=""))


def _decode(data: bytes) -> EpochState:
    try:
        return msgspec.json.decode(data, type=EpochState)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


class StoreSource:
    """The LogSource of an open store."""

    def __init__(self, store: MessageStore, epochs: EpochFile) -> None:
        self._store = store
        self._epochs = epochs
        self.segment_bytes = store.config.commit_log.segment_bytes
        self._is_flushed_first = store.config.flush.disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def min_offset(self) -> int:
        """See `LogSource`."""
        return self._store.min_physical_offset

    @property
    def max_offset(self) -> int:
        """See `LogSource`."""
        return self._store.max_physical_offset

    @property
    def ready_offset(self) -> int:
        """See `LogSource`."""
        store = self._store
        return store.flushed_offset if self._is_flushed_first else store.max_physical_offset

    @property
    def epochs(self) -> EpochState:
        """See `LogSource`."""
        return self._epochs.state

    def read(self, offset: int, size_max: int) -> bytes:
        """See `LogSource`."""
        size = min(size_max, self.segment_bytes - offset % self.segment_bytes)
        data = self._store.read_log(offset, size)
        if not data:
            raise StoreError(f"the commit log does not have {size} bytes at offset {offset}")
        return data


class StoreTarget(ReplicaLog):
    """The LogTarget of an open store. Each connection has its own, since it keeps an incomplete record."""

    def __init__(self, store: MessageStore, epochs: EpochFile, backlog: Backlog | None = None) -> None:
        super().__init__(store, backlog)
        self._epochs = epochs

    @property
    def flushed_offset(self) -> int:
        """See `LogTarget`."""
        return self._store.flushed_offset

    @property
    def epochs(self) -> EpochState:
        """See `LogTarget`."""
        return self._epochs.state

    def tail(self, size_max: int) -> bytes:
        """See `LogTarget`."""
        end = self._store.max_physical_offset
        begin = max(self._store.min_physical_offset, end - size_max)
        begin = max(begin, (end - 1) - (end - 1) % self._store.config.commit_log.segment_bytes)
        return self._store.read_log(begin, end - begin) or b"" if end > begin else b""

    def adopt(self, epochs: EpochState, end: int) -> None:
        """See `LogTarget`. Truncated bytes are saved in ``cut/<epoch>-<offset>`` below the store's root."""
        if self.is_empty:
            self.append(end, b"")
        elif end < self._store.max_physical_offset:
            self.truncate(end, self._store.config.root / "cut" / f"{epochs.seen}-{end:020d}")
        self._epochs.save(epochs)
