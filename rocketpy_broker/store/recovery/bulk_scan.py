"""The fast way through a commit log: takes the records that are like most, a buffer at a time.

Recovery reads every record once. One that is plain (IPv4 hosts, no transaction, the next of a queue that is
known, properties as they are written) is checked, put into its consume queue and indexed here, in one loop.
At anything else the loop stops, and `LogScan` looks at that record with all care.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final
from zlib import crc32

from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy.protocol.message.properties import MAX_PROPERTIES_BYTES
from rocketpy.protocol.message.record import MESSAGE_MAGIC
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store.index.index_service import IndexRow, IndexService
from rocketpy_broker.store.log.queue_table import QueueCursor
from rocketpy_broker.store.queue.consume_queue import UNIT, ConsumeQueue
from rocketpy_broker.store.queue.dispatch import Dispatcher

# size, magic, crc, queue id, queue offset, physical offset, sysFlag, store timestamp, body length
PLAIN_HEAD: Final = Struct(">iIIi4xqqi16xq20xi")
PLAIN_HEAD_BYTES: Final = PLAIN_HEAD.size
_CRC_MASK: Final = 0x7FFFFFFF
_CARE: Final = MessageSysFlag.TRANSACTION_MASK | MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6
_ROWS_MAX: Final = 8192
_pack_unit = UNIT.pack


class _Queue:
    """A queue as the scan meets it. present: its units reach to this physical offset already."""

    __slots__ = ("cursor", "first", "head", "next", "present", "queue", "units")

    def __init__(self, cursor: QueueCursor, queue: ConsumeQueue, head: int) -> None:
        self.cursor = cursor
        self.queue = queue
        self.head = head
        self.present = queue.max_physical_offset
        self.next = self.first = max(cursor.next_offset, queue.next_offset)
        self.units: list[bytes] = []


class BulkScan:
    """Takes plain records from buffers and dispatches them.

    index_from: records from that physical offset on are indexed. before: called before what was taken is
    dispatched, and whenever the first record is about to be taken: what waits elsewhere comes first.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        index: IndexService | None,
        index_from: int,
        *,
        check_crc: bool,
        before: Callable[[], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._index = index
        self._index_from = index_from
        self._check_crc = check_crc
        self._before = before
        self._queues: dict[tuple[bytes, int], _Queue] = {}
        self._rows: list[IndexRow] = []
        self._taken = 0
        self.records = 0
        """Taken so far."""
        self.rebuilt = 0
        """Units put into queues."""
        self.last_store_timestamp = 0
        self.indexed_until = 0
        """Physical offset behind the last record that was indexed."""

    def learn(self, cursor: QueueCursor, queue: ConsumeQueue) -> None:
        """Know a queue from now on; its newest record was looked at with care."""
        topic = cursor.topic_bytes
        if cursor.topic == SCHEDULE_TOPIC:
            return
        key = (bytes([len(topic)]) + topic, cursor.queue_id)
        state = self._queues.get(key)
        if state is None:
            head = self._index.topic_hash(topic) if self._index is not None else 0
            self._queues[key] = _Queue(cursor, queue, head)
        else:
            state.next = state.first = max(cursor.next_offset, queue.next_offset)

    def take(self, window: bytes, at: int, base: int) -> int:
        """Take records from `window[at:]` on; returns where the first stands that was not taken.

        base: physical offset of the window's first byte. Raises DiskFull, StoreError.
        """
        start = at
        end = len(window) - PLAIN_HEAD_BYTES
        queues = self._queues
        check_crc = self._check_crc
        unpack = PLAIN_HEAD.unpack_from
        fields = self._dispatcher.fields
        tag_codes, tags_code = self._dispatcher.tag_codes, self._dispatcher.tags_code
        add_row = self._rows.append
        index_from = self._index_from if self._index is not None else 1 << 62
        timestamp = self.last_store_timestamp
        taken = 0
        while at <= end:
            size, magic, crc, queue_id, queue_offset, offset, sys_flag, time, body_bytes = unpack(window, at)
            stop = at + size
            topic_at = at + 88 + body_bytes
            if (
                magic != MESSAGE_MAGIC
                or offset != base + at
                or sys_flag & _CARE
                or body_bytes < 0
                or not topic_at < stop <= end + 88
                or (check_crc and crc32(window[at + 88 : topic_at]) & _CRC_MASK != crc)
            ):
                break
            topic_stop = topic_at + 1 + window[topic_at]
            state = queues.get((window[topic_at:topic_stop], queue_id))
            if state is None or topic_stop + 2 > stop:
                break
            properties = window[topic_stop + 2 : stop]
            length = len(properties)
            if length != window[topic_stop] << 8 | window[topic_stop + 1] or (
                length and (properties[-1] != 2 or length > MAX_PROPERTIES_BYTES or b"\0" in properties)
            ):
                break
            end_offset = offset + size
            if end_offset > state.present:
                if queue_offset != state.next:
                    break
                state.next = queue_offset + 1
                tags, keys, unique_key = fields(properties)
                code = tag_codes.get(tags)
                state.units.append(_pack_unit(offset, size, tags_code(tags) if code is None else code))
            elif offset >= index_from:
                _, keys, unique_key = fields(properties)
            else:
                keys = unique_key = b""
            if (unique_key or keys) and offset >= index_from:
                add_row((state.head, unique_key, keys, offset, time))
            timestamp = time
            at = stop
            taken += 1
        if at > start:
            self._note(taken, base + at, timestamp)
        return at

    def _note(self, taken: int, end_offset: int, timestamp: int) -> None:
        self.records += taken
        self._taken += taken
        self.last_store_timestamp = timestamp
        if end_offset > self._index_from:
            self.indexed_until = end_offset
        if self._taken >= _ROWS_MAX:
            self.flush()

    def flush(self) -> None:
        """Dispatch what was taken. Raises DiskFull, StoreError."""
        if not self._taken:
            return
        self._before()
        for state in self._queues.values():
            if state.units:
                state.queue.put_many(state.units, state.first)
                state.cursor.next_offset = state.first = state.next
                self.rebuilt += len(state.units)
                state.units = []
        if self._index is not None and self._rows:
            self._index.put_many(*zip(*self._rows, strict=True))
            self._rows.clear()
        self._taken = 0
