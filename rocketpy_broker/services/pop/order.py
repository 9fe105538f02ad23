"""Pops in order: a queue gives no more messages until those of the last pop are acknowledged, or visible.

The file consumerOrderInfo.json has the last pop of each queue. It is saved with the offsets; after a crash,
groups get what was in flight again. Source: ConsumerOrderInfoManager of RocketMQ 5.3.3. Differs: entries of
deleted topics are removed with the offsets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from pathlib import Path
from typing import Final

import msgspec

from rocketpy.errors import StoreError
from rocketpy.protocol.bodies import Body
from rocketpy.protocol.headers import Int32, Int64
from rocketpy.runtime.progress import Jobs
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.store.files.disk import Clock, Disk, OsDisk, system_clock
from rocketpy_broker.store.files.state_file import (
    format_table,
    keys_in_parts,
    load_state,
    save_in_thread,
    save_state,
)

log = logging.getLogger("rocketpy.broker.pop")

_SAVE: Final = "save of the order of pops"
_UNUSED_MS: Final = 24 * 3_600_000
"""An entry that is not used for so long is removed, as in 5.3.3."""


class OrderInfo(Body, kw_only=True):
    """The last pop of a queue. Immutable. Source: ConsumerOrderInfoManager.OrderInfo of RocketMQ 5.3.3."""

    pop_time: Int64 = 0
    invisible_time: Int64 | None = msgspec.field(name="i", default=None)
    offset_list: list[Int64] = msgspec.field(name="o", default_factory=list)
    """The first offset, and the distances of the others from it."""
    next_visible: dict[int, Int64] | None = msgspec.field(name="ot", default=None)
    """Offset -> time from which it is visible, where a consumer has changed that."""
    counts: dict[int, Int32] | None = msgspec.field(name="oc", default=None)
    """Offset -> how often it was delivered before this pop, if it was."""
    last_ms: Int64 = msgspec.field(name="l", default=0)
    """When this pop was made."""
    acknowledged: Int64 = msgspec.field(name="cm", default=0)
    """Bits of the acknowledged offsets, by their place in the list."""
    attempt_id: str | None = msgspec.field(name="a", default=None)
    """Id of the attempt; another pop with it gets the same messages."""

    @property
    def offsets(self) -> list[int]:
        """The offsets of the messages."""
        first, *distances = self.offset_list
        return [first, *(first + distance for distance in distances)]

    @property
    def unacknowledged(self) -> list[int]:
        """Those offsets that are not acknowledged."""
        return [offset for place, offset in enumerate(self.offsets) if not self.acknowledged >> place & 1]

    @property
    def next_offset(self) -> int:
        """The first offset that is not acknowledged, or that behind the pop."""
        return next(iter(self.unacknowledged), self.offsets[-1] + 1)

    @property
    def free_ms(self) -> int:
        """When all messages that are not acknowledged are visible again; 0 if all are acknowledged."""
        changed = self.next_visible or {}
        usual_ms = self.pop_time + (self.invisible_time or 0)
        return max((changed.get(offset, usual_ms) for offset in self.unacknowledged), default=0)


class OrderInfoTable(Body, kw_only=True):
    """consumerOrderInfo.json."""

    table: dict[str, dict[int, OrderInfo]] = msgspec.field(default_factory=dict)
    """``topic@group`` -> queue id -> the last pop."""


@dataclass(eq=False)
class PopOrder:
    """The last pops in order, by topic, group and queue."""

    path: Path
    offsets: ConsumerOffsets
    """Get the offset of the first message that is not acknowledged."""
    _: KW_ONLY
    clock: Clock = system_clock
    disk: InitVar[Disk | None] = None

    def __post_init__(self, disk: Disk | None) -> None:
        self._disk = disk or OsDisk()
        self._table: dict[str, dict[int, OrderInfo]] = {}
        self._is_changed = False
        self._saving = asyncio.Lock()
        self.jobs: Jobs = Jobs()

    def load(self) -> None:
        """Read the file, if there is one. Raises StoreDamaged."""
        saved, _ = load_state(self._disk, self.path, OrderInfoTable.decode)
        if saved is not None:
            self._table = {key: _used(queues, 0) for key, queues in saved.table.items()}

    def has(self, topic: str, group: str) -> bool:
        """Whether a group has popped a topic in order."""
        return bool(self._table.get(f"{topic}@{group}"))

    def find(self, topic: str, group: str, queue_id: int) -> OrderInfo | None:
        """Return the last pop of a queue. A committed offset that is not that of the pop is a reset."""
        info = self._table.get(f"{topic}@{group}", {}).get(queue_id)
        if info is not None and self.offsets.get(group, topic, queue_id) != info.next_offset:
            self.remove(topic, group, queue_id)
            return None
        return info

    def free_ms(self, topic: str, group: str, queue_id: int, attempt_id: str | None = None) -> int:
        """Return the time from which a queue gives messages again; 0 if it does so now.

        attempt_id: of the new pop. The same as that of the last pop gets its messages again.
        """
        info = self.find(topic, group, queue_id)
        if info is None or (attempt_id is not None and attempt_id == info.attempt_id):
            return 0
        return info.free_ms if info.free_ms > self.clock() else 0

    def in_flight(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many messages of a queue are popped, not acknowledged and not visible again."""
        info = self.find(topic, group, queue_id)
        return 0 if info is None or info.free_ms <= self.clock() else len(info.unacknowledged)

    def popped(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: Sequence[int],
        *,
        pop_ms: int,
        invisible_ms: int,
        attempt_id: str | None,
    ) -> Mapping[int, int]:
        """Note a pop, and commit the offset of its first message.

        Returns offset -> how often it was delivered before, for those that were. offsets: of its messages, at
        least one. Raises GroupInvalid at the limit of offsets.
        """
        last = self.find(topic, group, queue_id)
        counts: dict[int, int] = {}
        if last is not None:
            known = last.counts or {}
            if attempt_id is not None and attempt_id == last.attempt_id:
                counts = known
            else:
                delivered = set(last.offsets)
                counts = {offset: known.get(offset, 0) + 1 for offset in offsets if offset in delivered}
        first = offsets[0]
        self.offsets.commit(group, topic, queue_id, first)
        self._put(
            topic,
            group,
            queue_id,
            OrderInfo(
                pop_time=pop_ms,
                invisible_time=invisible_ms,
                offset_list=[first, *(offset - first for offset in offsets[1:])],
                counts=counts or None,
                last_ms=self.clock(),
                attempt_id=attempt_id,
            ),
        )
        return counts

    def acknowledge(self, topic: str, group: str, queue_id: int, offset: int, pop_ms: int) -> bool:
        """Acknowledge a message of the last pop, and commit up to the first one that is not acknowledged.

        Returns whether the message was in flight by this pop. In 5.3.3, a pop that is not known commits the
        offset behind the message, so messages before it may be lost.
        """
        info = self.find(topic, group, queue_id)
        if info is None or pop_ms != info.pop_time or offset not in info.unacknowledged:
            return False
        bit = 1 << info.offsets.index(offset)
        info = msgspec.structs.replace(info, acknowledged=info.acknowledged | bit)
        self._put(topic, group, queue_id, info)
        self.offsets.commit(group, topic, queue_id, info.next_offset)
        return True

    def set_visible(
        self, topic: str, group: str, queue_id: int, offset: int, *, pop_ms: int, visible_ms: int
    ) -> bool:
        """Set when a message of the last pop is visible again. False if the receipt is not that of it."""
        info = self.find(topic, group, queue_id)
        if info is None or pop_ms != info.pop_time or offset not in info.unacknowledged:
            return False
        changed = {**(info.next_visible or {}), offset: visible_ms}
        self._put(topic, group, queue_id, msgspec.structs.replace(info, next_visible=changed))
        return True

    def remove(self, topic: str, group: str, queue_id: int) -> None:
        """Forget the last pop of a queue, whose offset is reset."""
        if self._table.get(f"{topic}@{group}", {}).pop(queue_id, None) is not None:
            self._is_changed = True

    def remove_topic(self, topic: str) -> None:
        """Forget the pops of a deleted topic."""
        for key in [key for key in self._table if key.startswith(f"{topic}@")]:
            del self._table[key]
            self._is_changed = True

    def _put(self, topic: str, group: str, queue_id: int, info: OrderInfo) -> None:
        self._table.setdefault(f"{topic}@{group}", {})[queue_id] = info
        self._is_changed = True

    async def save(self) -> None:
        """Write the file if something has changed. A failure is logged, and the next call tries again."""
        async with self._saving:
            if not self._is_changed:
                return
            self._is_changed = False
            since_ms = self.clock() - _UNUSED_MS
            saved = OrderInfoTable(table={})
            # Pops that change meanwhile are saved now or by the next call.
            async for key in keys_in_parts(self._table):
                used = _used(self._table[key], since_ms)
                if used:
                    self._table[key], saved.table[key] = used, used.copy()
                else:
                    del self._table[key]
            try:
                await save_in_thread(lambda: save_state(self._disk, self.path, format_table(saved, "table")))
            except StoreError as error:
                self._is_changed = True
                self.jobs.ended(_SAVE, error)
                log.error("cannot save the order of pops: %s", error)
            else:
                self.jobs.ended(_SAVE)


def _used(queues: Mapping[int, OrderInfo], since_ms: int) -> dict[int, OrderInfo]:
    return {
        queue_id: info for queue_id, info in queues.items() if info.offset_list and info.last_ms >= since_ms
    }
