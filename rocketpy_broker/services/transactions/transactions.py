"""The open transactions of a broker: reads `HalfMessageTable` from the store and saves its progress.

The progress is saved as the offsets of the consumer group CID_RMQ_SYS_TRANS.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, NamedTuple

from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.record import Record, decode
from rocketpy_broker.services.delay.topic_rewrite import HALF_TOPIC, OP_TOPIC
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.transactions.half_messages import HalfMessage, HalfMessageTable
from rocketpy_broker.store import AppendReceipt, MessageInner, MessageStore

log = logging.getLogger("rocketpy.broker.transactions")

_GROUP: Final = "CID_RMQ_SYS_TRANS"
_QUEUE: Final = 0
"""Each of the two topics has one queue, as in 4.6.0."""
_UNITS: Final = 1000
_OFFSET_DIGITS_MAX: Final = 19
_UNSEEN_MAX: Final = 1000
_OP_PROPERTIES: Final = b"WAIT\x01true\x02TAGS\x01d\x02"


class OpenHalfMessage(NamedTuple):
    """An open half message."""

    offset: int
    """Queue offset of its newest copy."""
    record: Record


@dataclass(eq=False)
class TransactionService:
    """Open transactions of one store. Call `load` before use, and when the log was replaced."""

    store: MessageStore
    offsets: ConsumerOffsets
    store_host: bytes
    """This broker's address, as in records."""

    def __post_init__(self) -> None:
        self.table = HalfMessageTable()

    def load(self) -> None:
        """Read all open transactions from the store. Raises StoreError."""
        half_offset, op_offset = self._saved(HALF_TOPIC), self._saved(OP_TOPIC)
        self.table = table = HalfMessageTable(half_offset, op_offset)
        for offset, physical, size in self._units(OP_TOPIC, op_offset):
            self._take_op(offset, physical, size)
        self.catch_up()
        self._connect_copies()
        if table.open:
            log.info("%d transactions are open", len(table.open))

    def catch_up(self) -> None:
        """Read the half messages that were stored since the last call. Raises StoreError."""
        for _, physical, size in self._units(HALF_TOPIC, self.table.next_half):
            self.table.add_half(physical, size)

    def catch_up_if_many(self) -> None:
        """Call `catch_up` if many transactions ended before their half messages were read.

        This bounds the memory for these ends between two checks.
        """
        if self.table.unseen_ends > _UNSEEN_MAX:
            self.catch_up()

    def read(self, offset: int) -> OpenHalfMessage | None:
        """Return an open half message. One that cannot be read is removed, and the result is None."""
        half = self.table.open.get(offset)
        if half is None:
            return None
        data = self.store.look_message(half.physical_offset, half.size)
        if data is None:
            log.error("half message %d cannot be read at offset %d; it is lost", offset, half.physical_offset)
            self.table.discard(offset)
            return None
        return OpenHalfMessage(offset, decode(data, check_crc=False))

    def op_message(self, half_offset: int, now_ms: int) -> MessageInner:
        """Return the op record that ends a transaction (QUIRKS 28)."""
        return MessageInner(
            OP_TOPIC,
            _QUEUE,
            b"%d" % half_offset,
            _OP_PROPERTIES,
            born_timestamp=now_ms,
            born_host=self.store_host,
        )

    def replaced(self, old: int, receipt: AppendReceipt) -> None:
        """Record that a copy of an open half message was written."""
        half = HalfMessage(receipt.physical_offset, receipt.size)
        self.table.replace(old, receipt.queue_offset, half)

    async def save_progress(self, progress: tuple[int, int]) -> None:
        """Save `table.progress()` with the consumer offsets. The messages before these must be flushed."""
        for topic, offset in zip((HALF_TOPIC, OP_TOPIC), progress, strict=True):
            if self.offsets.get(_GROUP, topic, _QUEUE) is not None or offset:
                self.offsets.commit(_GROUP, topic, _QUEUE, offset, is_own=True)
        await self.offsets.save()

    def _saved(self, topic: str) -> int:
        """Return the saved offset of one of the two queues, limited to its range after recovery."""
        first = self.store.min_offset_in_queue(topic, _QUEUE)
        end = self.store.appended_in_queue(topic, _QUEUE)
        saved = self.offsets.get(_GROUP, topic, _QUEUE)
        return first if saved is None else min(max(saved, first), end)

    def _units(self, topic: str, offset: int) -> list[tuple[int, int, int]]:
        """Return (queue offset, physical offset, size) of all entries from `offset` on."""
        found: list[tuple[int, int, int]] = []
        while units := self.store.units(topic, _QUEUE, offset, _UNITS):
            found += [(offset + n, physical, size) for n, (physical, size, _) in enumerate(units)]
            offset += len(units)
        return found

    def _take_op(self, offset: int, physical: int, size: int) -> None:
        data = self.store.look_message(physical, size)
        body = decode(data, check_crc=False).body if data is not None else b""
        try:
            self.table.add_op(offset, int(body))
        except ValueError:
            log.error(
                "op record %d at offset %d contains %r instead of a queue offset", offset, physical, body[:50]
            )

    def _connect_copies(self) -> None:
        """Find the open half messages that are copies of earlier ones.

        After a crash, a replaced half message is open again beside its copy: both have the same topic,
        producer group, unique id and born time. A copy made for CHECK_IMMUNITY_TIME_IN_SECONDS contains the
        offset that its producer knows.
        """
        table = self.table
        newest: dict[tuple[bytes | None, int, bytes | None, bytes | None], int] = {}
        for offset in sorted(table.open):
            found = self.read(offset)
            if found is None:
                continue
            properties, born_ms = found.record.properties, found.record.born_timestamp
            key = (
                props.find(properties, props.PROPERTY_UNIQ_KEY.encode()),
                born_ms,
                props.find(properties, props.PROPERTY_REAL_TOPIC.encode()),
                props.find(properties, props.PROPERTY_PRODUCER_GROUP.encode()),
            )
            if key in newest and key[0] is not None:
                table.replace(newest[key], offset, table.open[offset])
            newest[key] = offset
            known = props.find(properties, props.PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET.encode())
            if known is not None and known.isdigit() and len(known) <= _OFFSET_DIGITS_MAX:
                table.add_earlier_copy(offset, int(known))
                if offset not in table.open:
                    del newest[key]
