"""The open transactions: half messages without a commit or rollback, and whether to check one of them.

Half messages are in RMQ_SYS_TRANS_HALF_TOPIC. The end of a transaction is an op record in
RMQ_SYS_TRANS_OP_HALF_TOPIC, whose body is the queue offset of its half message as text (QUIRKS 28). Each
check of a transaction appends a copy of the half message, which replaces the one before (QUIRKS 27).

The progress consists of two offsets. Transactions below the first one in the half queue have ended. Their op
records are below the second one in the op queue. As in 4.6.0, these are the offsets of the consumer group
CID_RMQ_SYS_TRANS. After a restart, both queues are read from these offsets. No I/O.

Source: TransactionalMessageServiceImpl of RocketMQ 4.6.0. Differs: 4.6.0 reads both queues at each check,
and a transaction can end twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from rocketpy.protocol.message import properties as props
from rocketpy_broker.config.model import TransactionConfig


@dataclass(slots=True)
class HalfMessage:
    """One open half message."""

    physical_offset: int
    size: int
    earlier: list[int] = field(default_factory=list)
    """Queue offsets of the copies that it replaces."""


class _OpRecord(NamedTuple):
    """Ends a transaction."""

    offset: int
    """Its queue offset."""
    half_offset: int
    """Queue offset of the half message."""


class HalfMessageTable:
    """Open half messages by queue offset."""

    def __init__(self, half_offset: int = 0, op_offset: int = 0) -> None:
        self.next_half = half_offset
        """Next offset to read in the half queue."""
        self.next_op = op_offset
        """Next offset to read in the op queue."""
        self.open: dict[int, HalfMessage] = {}
        self._newest: dict[int, int] = {}
        """Queue offset of an earlier copy -> queue offset of the newest copy, which is open."""
        self._ended_unseen: set[int] = set()
        """Offsets of transactions that ended before their half message was read."""
        self._ops: deque[_OpRecord] = deque()
        """The op records that a restart needs."""

    # -- reading the queues -------------------------------------------------------------------

    def add_half(self, physical_offset: int, size: int) -> None:
        """Add the next entry of the half queue."""
        offset = self.next_half
        self.next_half = offset + 1
        if offset in self._ended_unseen:
            self._ended_unseen.remove(offset)
        elif offset not in self.open:  # `replace` may have added this copy already
            self.open[offset] = HalfMessage(physical_offset, size)

    def add_op(self, offset: int, half_offset: int) -> None:
        """Add an op record written before a restart. Must be called before any `add_half`."""
        self.next_op = offset + 1
        self._ops.append(_OpRecord(offset, half_offset))
        self._drop(half_offset)

    def add_earlier_copy(self, offset: int, earlier: int) -> None:
        """Record that an open half message replaces an earlier one. End it if the earlier one has ended."""
        half = self.open[offset]
        half.earlier.append(earlier)
        self._newest[earlier] = offset
        if any(ended == earlier for _, ended in self._ops):
            self._ops = deque(_OpRecord(op, offset if ended == earlier else ended) for op, ended in self._ops)
            self._drop(offset)

    # -- ends and copies ----------------------------------------------------------------------

    @property
    def unseen_ends(self) -> int:
        """Number of transactions that ended before their half message was read."""
        return len(self._ended_unseen)

    def is_open(self, half_offset: int) -> bool:
        """Whether the transaction has not ended; True for one that was not read yet."""
        current = self._current(half_offset)
        return current in self.open or (current >= self.next_half and current not in self._ended_unseen)

    def end(self, half_offset: int) -> tuple[int, HalfMessage | None]:
        """End an open transaction.

        Returns the queue offset of its newest copy, for the op record, and the half message, for `reopen`.
        """
        current = self._current(half_offset)
        return current, self._drop(current)

    def record_end(self, op_offset: int, half_offset: int) -> None:
        """Record the queue offset of an op record. half_offset: as `end` returned it."""
        self.next_op = max(self.next_op, op_offset + 1)
        self._ops.append(_OpRecord(op_offset, half_offset))

    def reopen(self, half_offset: int, half: HalfMessage | None) -> None:
        """Undo an `end` that could not be written. half_offset, half: as `end` returned them."""
        self._ops = deque(op for op in self._ops if op.half_offset != half_offset)
        self._ended_unseen.discard(half_offset)
        if half is not None:
            self._open(half_offset, half)

    def replace(self, old: int, new: int, half: HalfMessage) -> None:
        """Replace an open half message by its copy with the offset `new`, which may be open already."""
        half.earlier += [*self.open.pop(old).earlier, old]
        if old >= self.next_half:
            self._ended_unseen.add(old)
        self._open(new, half)

    def discard(self, offset: int) -> None:
        """Remove an open half message that is discarded or unreadable."""
        self._drop(offset)

    def progress(self) -> tuple[int, int]:
        """Return the first offsets that a restart needs: half offset, op offset."""
        half_offset = min(min(self.open, default=self.next_half), self.next_half)
        while self._ops and self._ops[0].half_offset < half_offset:
            self._ops.popleft()
        return half_offset, self._ops[0].offset if self._ops else self.next_op

    def _current(self, half_offset: int) -> int:
        return self._newest.get(half_offset, half_offset)

    def _open(self, offset: int, half: HalfMessage) -> None:
        self.open[offset] = half
        for earlier in half.earlier:
            self._newest[earlier] = offset

    def _drop(self, offset: int) -> HalfMessage | None:
        if offset >= self.next_half:
            self._ended_unseen.add(offset)
        half = self.open.pop(offset, None)
        if half is not None:
            for earlier in half.earlier:
                self._newest.pop(earlier, None)
        return half


class CheckAction(Enum):
    """The decision of a check about an open half message."""

    WAIT = "too young, and so are the later ones"
    RENEW = "copy it without a check: its producer delays checks"
    CHECK = "copy it and send a check to its producer"
    DISCARD = "checked often enough, or too old"


def check_action(
    properties: Mapping[str, str], born_ms: int, now_ms: int, config: TransactionConfig, reserved_ms: int
) -> CheckAction:
    """Return what to do with a half message.

    born_ms: by the producer's clock, so it may be in the future. reserved_ms: age at which it is discarded.
    """
    age_ms = now_ms - born_ms
    if check_count(properties) >= config.check_max or age_ms > reserved_ms:
        return CheckAction.DISCARD
    immunity = properties.get(props.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS)
    if immunity is not None:
        return CheckAction.RENEW if age_ms < _immunity_ms(immunity, config.timeout_ms) else CheckAction.CHECK
    return CheckAction.WAIT if 0 <= age_ms < config.timeout_ms else CheckAction.CHECK


def check_count(properties: Mapping[str, str]) -> int:
    """Return how often a half message was checked."""
    return _parse_number(properties.get(props.PROPERTY_TRANSACTION_CHECK_TIMES), 0)


def _immunity_ms(text: str, default_ms: int) -> int:
    """Return the time without checks in ms; -1 and invalid numbers mean `default_ms`."""
    seconds = _parse_number(text, -1)
    return default_ms if seconds == -1 else seconds * 1000


def _parse_number(text: str | None, default: int) -> int:
    try:
        return int(text or "")
    except ValueError:
        return default
