"""Records that are copied faster than they can be dispatched: they wait in the log.

A slave that returns after a while receives its master's log as fast as the network allows. So missing
messages are safe sooner. Queues and index follow after the rush, as with RocketMQ's dispatcher.
"""

from __future__ import annotations

from typing import Final

from rocketpy.errors import StoreDamaged
from rocketpy_broker.store.log.mapped_file_queue import read_across
from rocketpy_broker.store.message_store import MessageStore
from rocketpy_broker.store.replica.copied_records import RecordParser

_PIECE_BYTES: Final = 1 << 20
_WAITING_MAX: Final = 10_000


class Backlog:
    """The part of a copied log that is not dispatched and not queued in memory for it.

    rush_bytes: a received piece of at least this size means that much more will follow.
    bytes_max: a backlog of this size is dispatched even during a rush.
    """

    def __init__(self, store: MessageStore, *, rush_bytes: int = 128 << 10, bytes_max: int = 4 << 30) -> None:
        self._store = store
        self._records = RecordParser(store)
        self._rush_bytes = rush_bytes
        self._bytes_max = bytes_max
        self._begin = self._end = 0
        self._grew = False

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self._end - self._begin

    def wants(self, size: int) -> bool:
        """Return whether a piece of `size` bytes that has just arrived belongs in the backlog."""
        return self.size > 0 or size >= self._rush_bytes

    def add(self, begin: int, end: int, size: int) -> None:
        """Add the part of the log between these offsets. size: of the piece that arrived."""
        if not self.size:
            self._begin = begin
        self._end = end
        self._grew = self._grew or size >= self._rush_bytes

    def is_rushing(self) -> bool:
        """Return whether a burst arrived since the last call, and dispatch may wait for its end."""
        grew, self._grew = self._grew, False
        return grew and self.size < self._bytes_max

    def work(self) -> None:
        """Dispatch a piece. Raises StoreError, and StoreDamaged when the log holds anything but a record."""
        store = self._store
        if self.size and store.dispatcher.waiting < _WAITING_MAX:
            self._take()
        store.dispatch()

    def drain(self) -> None:
        """Give all of it to the dispatcher, which with SYNC_FLUSH dispatches up to the flushed offset."""
        while self.size:
            self._take()
            self._store.dispatch()

    def forget(self, end: int) -> None:
        """The log was cut at `end`, and everything before it is dispatched."""
        self._begin = self._end = end

    def _take(self) -> None:
        store = self._store
        self._begin = max(self._begin, store.min_physical_offset)
        size = _PIECE_BYTES
        while self.size:
            found = self._records.take(self._read(size), self._begin)
            if found.end:
                found.hand_over(store)
                self._begin += found.end
                return
            if size >= self.size:
                raise StoreDamaged(f"no record at {self._begin} of the copied log")
            size = found.wanted

    def _read(self, size: int) -> bytes:
        data = read_across(self._store.commit_log.files, self._begin, min(self._end, self._begin + size))
        if data is None:
            raise StoreDamaged(f"cannot read the copied log at {self._begin}")
        return data
