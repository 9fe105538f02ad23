"""Records that a slave receives faster than it can dispatch them, and that wait in the log.

A slave that was stopped for a while receives the log of its master as fast as the network allows. So it soon
has all messages. Consume queues and index follow after the burst, as with RocketMQ's dispatcher.
"""

from __future__ import annotations

from typing import Final

from rocketpy.errors import StoreDamaged
from rocketpy_broker.store.log.mapped_file_queue import read_across
from rocketpy_broker.store.message_store import MessageStore
from rocketpy_broker.store.replica.copied_records import RecordParser

_PIECE_BYTES: Final = 1 << 20
_WAITING_MAX: Final = 10_000
"""At this number of records that are queued for dispatch, the backlog queues no more."""


class Backlog:
    """The part of a copied log that is neither dispatched nor queued in memory for dispatch.

    burst_bytes: a received piece of at least this size begins or continues a burst. bytes_max: from this size
    on, the backlog is dispatched even during a burst.
    """

    def __init__(
        self, store: MessageStore, *, burst_bytes: int = 128 << 10, bytes_max: int = 4 << 30
    ) -> None:
        self._store = store
        self._records = RecordParser(store)
        self._burst_bytes = burst_bytes
        self._bytes_max = bytes_max
        self._begin = self._end = 0
        self._grew = False

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._end - self._begin

    def accepts(self, size: int) -> bool:
        """Return whether a received piece of `size` bytes goes to the backlog."""
        return self.size > 0 or size >= self._burst_bytes

    def add(self, begin: int, end: int, size: int) -> None:
        """Add the part of the log between two offsets. size: bytes of the received piece."""
        if not self.size:
            self._begin = begin
        self._end = end
        self._grew = self._grew or size >= self._burst_bytes

    def check_burst(self) -> bool:
        """Return whether dispatch should wait, since a burst went on after the last call of this method.

        False once the backlog has `bytes_max` bytes.
        """
        grew, self._grew = self._grew, False
        return grew and self.size < self._bytes_max

    def dispatch_piece(self) -> None:
        """Dispatch one piece. Raises StoreError, and StoreDamaged if the log has no record there."""
        store = self._store
        if self.size and store.dispatcher.waiting < _WAITING_MAX:
            self._queue_piece()
        store.dispatch()

    def drain(self) -> None:
        """Pass all records to the dispatcher, which with SYNC_FLUSH dispatches up to the flushed offset."""
        while self.size:
            self._queue_piece()
            self._store.dispatch()

    def clear(self, end: int) -> None:
        """Empty the backlog: the log is truncated at `end`, and all records before that are dispatched."""
        self._begin = self._end = end

    def _queue_piece(self) -> None:
        """Queue the records of the next piece for dispatch; a longer piece if no record fits into it."""
        store = self._store
        self._begin = max(self._begin, store.min_physical_offset)
        size = _PIECE_BYTES
        while self.size:
            found = self._records.parse(self._read(size), self._begin)
            if found.end:
                found.hand_over(store)
                self._begin += found.end
                return
            if size >= self.size:
                raise self._damaged("has no record")
            size = found.wanted

    def _read(self, size: int) -> bytes:
        data = read_across(self._store.commit_log.files, self._begin, min(self._end, self._begin + size))
        if data is None:
            raise self._damaged("cannot be read")
        return data

    def _damaged(self, problem: str) -> StoreDamaged:
        return StoreDamaged(
            f"the log in {self._store.commit_log.files.directory}, copied from the master, {problem} at "
            f"{self._begin}; restart this slave to check its log"
        )
