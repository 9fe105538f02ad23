"""The formats of RocketMQ 5.x's timer files. No I/O. Numbers are big-endian, times are ms since 1970.

A slot of `timerwheel`, 32 bytes, for the second with the number `time // precision`:

| offset | size | field                                                            |
|--------|------|------------------------------------------------------------------|
|      0 |    8 | number of the second since 1970; other numbers: the slot is free |
|      8 |    8 | position of its first unit in the timer log                      |
|     16 |    8 | position of its last unit                                        |
|     24 |    4 | number of its timers, less those that were recalled              |
|     28 |    4 | 0                                                                |

A unit of `timerlog/`, 52 bytes:

| offset | size | field                                                                 |
|--------|------|-----------------------------------------------------------------------|
|      0 |    4 | 52                                                                    |
|      4 |    8 | position of the previous unit of its slot; -1 for the first           |
|     12 |    4 | kind: 1, +2 if the message rolls, +4 if it recalls another            |
|     16 |    8 | time of the enqueue                                                   |
|     24 |    4 | ms from there to the time of the slot; may be negative                |
|     28 |    8 | physical offset of the message in the commit log                      |
|     36 |    4 | size of its record                                                    |
|     40 |    4 | Java's hash of its real topic                                         |
|     44 |    8 | 0 in RocketMQ; here, the time when the message is due (QUIRKS 73)       |

A file of the timer log ends with a blank unit: i32 bytes left, i64 0, i32 `BLANK_MAGIC`.
Source: TimerWheel, Slot, TimerLog, TimerCheckpoint of RocketMQ 5.3.3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

from rocketpy.errors import RemoteProtocolError

PRECISION_MS: Final = 1000
"""Time of one slot. RocketMQ has it as timerPrecisionMs; its files do not contain it."""
WHEEL_SLOTS: Final = 2 * 7 * 24 * 3600
"""Slots of a wheel: 14 days, of which timers use the next 7."""
SLOT: Final = struct.Struct(">qqqii")
WHEEL_MS: Final = WHEEL_SLOTS * PRECISION_MS
WHEEL_BYTES: Final = WHEEL_SLOTS * SLOT.size
UNIT: Final = struct.Struct(">iqiqiqiiq")
_PREVIOUS: Final = struct.Struct(">q")
NO_UNIT: Final = -1
"""Position of the unit before the first one of a slot."""
BLANK_BYTES: Final = 16
"""Bytes that a unit must leave free at the end of a file."""
_BLANK: Final = struct.Struct(">iqi")
BLANK_MAGIC: Final = (0xBBCCDDEE ^ (1880681586 + 8)) - (1 << 32)
"""As in Java: the precedence there adds 8 first."""
KIND: Final = 1
KIND_ROLL: Final = 2
KIND_RECALL: Final = 4
_DELAY_MAX_MS: Final = 2**31 - 1
_CHECKPOINT: Final = struct.Struct(">7q")
CHECKPOINT_BYTES: Final = _CHECKPOINT.size
CHECKPOINT_FILE_BYTES: Final = 4096
"""RocketMQ maps a whole page."""
_WINDOW: Final = struct.Struct(">qq")
"""At the end of the page: `window_ms`, and a copy of `log_flushed`, which RocketMQ does not change."""


class Slot(NamedTuple):
    """The timers of one second."""

    second: int = -1
    """Number of the second since 1970."""
    first: int = NO_UNIT
    """Position of the first unit in the timer log."""
    last: int = NO_UNIT
    """Position of the last unit, from which each unit leads to the one before."""
    timers: int = 0
    """Number of timers, less those that were recalled."""
    magic: int = 0

    def with_last(self, second: int, position: int, *, recalls: bool) -> Slot:
        """Return the slot of a second with one more unit, at this position of the timer log."""
        first = position if self.first == NO_UNIT else self.first
        return Slot(second, first, position, self.timers + (-1 if recalls else 1))


EMPTY_SLOT: Final = Slot()


class Unit(NamedTuple):
    """One timer, or one recall of a timer."""

    previous: int
    """Position of the previous unit of its slot; `NO_UNIT` for the first."""
    kind: int
    enqueued_ms: int
    slot_ms: int
    """Time of its slot."""
    physical_offset: int
    """Of the message in the commit log."""
    size: int
    """Of its record."""
    topic_hash: int
    """Java's hash of its real topic."""
    due_ms: int = 0
    """When it is due; 0 if Java wrote the unit."""

    def encode(self) -> bytes:
        """Return the 52 bytes."""
        # The delay has 32 bits, so the time of the enqueue may be moved: the slot must be right.
        enqueued_ms = min(max(self.enqueued_ms, self.slot_ms - _DELAY_MAX_MS), self.slot_ms + _DELAY_MAX_MS)
        return UNIT.pack(
            UNIT.size, self.previous, self.kind, enqueued_ms, self.slot_ms - enqueued_ms,
            self.physical_offset, self.size, self.topic_hash, self.due_ms,
        )  # fmt: skip

    @classmethod
    def decode(cls, data: bytes, at: int = 0) -> Self | None:
        """Decode the unit at `at`; None if there is no unit."""
        if len(data) - at < UNIT.size:
            return None
        size, previous, kind, enqueued_ms, delay_ms, physical, record_size, topic_hash, due_ms = (
            UNIT.unpack_from(data, at)
        )
        if size != UNIT.size or kind & ~0xF or not kind & KIND or physical < 0 or record_size <= 0:
            return None
        return cls(
            previous, kind, enqueued_ms, enqueued_ms + delay_ms, physical, record_size, topic_hash, due_ms
        )

    @property
    def rolls(self) -> bool:
        """Whether the message is stored again in its slot, since it is due later."""
        return self.kind & KIND_ROLL != 0

    @property
    def recalls(self) -> bool:
        """Whether the message recalls another one of its slot."""
        return self.kind & KIND_RECALL != 0


def set_previous(units: bytearray, at: int, previous: int) -> None:
    """Set the position of the unit before the encoded one at `at`."""
    _PREVIOUS.pack_into(units, at + 4, previous)


def encode_blank(size: int) -> bytes:
    """Return the start of the blank unit that fills the last `size` bytes of a file."""
    return _BLANK.pack(size, 0, BLANK_MAGIC)


def is_blank(data: bytes, at: int = 0) -> bool:
    """Whether a blank unit is at `at`."""
    return len(data) - at >= BLANK_BYTES and _BLANK.unpack_from(data, at)[2] == BLANK_MAGIC


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """How far timers are enqueued and delivered. Also the response to GET_TIMER_CHECK_POINT."""

    read_ms: int = 0
    """Time of the slot that is read next; the timers of all earlier slots are delivered."""
    log_flushed: int = 0
    """End of the flushed units in the timer log."""
    queue_offset: int = 0
    """Queue offset of the first message that is not enqueued."""
    master_queue_offset: int = 0
    """The same of the master."""
    state_version: int = 0
    timestamp: int = 0
    """Time of the last change."""
    counter: int = 0
    """Number of changes."""
    window_ms: int = 0
    """Longest time from the store time of a waiting message to its slot; 0 if RocketMQ wrote the file. Not in
    responses."""

    def encode(self) -> bytes:
        """Return the 56 bytes that a master sends to a slave."""
        return _CHECKPOINT.pack(
            self.read_ms, self.log_flushed, self.queue_offset, self.master_queue_offset,
            self.state_version, self.timestamp, self.counter,
        )  # fmt: skip

    def encode_file(self) -> bytes:
        """Return the content of the file `timercheck`."""
        window = _WINDOW.pack(self.window_ms, self.log_flushed) if self.window_ms else b""
        return self.encode().ljust(CHECKPOINT_FILE_BYTES - len(window), b"\0") + window

    @classmethod
    def decode_file(cls, data: bytes) -> Self:
        """Decode a file. Raises RemoteProtocolError."""
        found = cls.decode(data)
        if len(data) == CHECKPOINT_FILE_BYTES:
            window_ms, log_flushed = _WINDOW.unpack_from(data, len(data) - _WINDOW.size)
            if window_ms > 0 and log_flushed == found.log_flushed:
                return replace(found, window_ms=window_ms)
        return found

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a response, or a file without the window. Raises RemoteProtocolError.

        The last three fields may be missing: RocketMQ 5.0 does not have them.
        """
        if len(data) < 32:
            raise RemoteProtocolError(f"a timer checkpoint has 32 bytes or more, not {len(data)}")
        found = cls(*_CHECKPOINT.unpack(data[:CHECKPOINT_BYTES].ljust(CHECKPOINT_BYTES, b"\0")))
        if min(found.read_ms, found.log_flushed, found.queue_offset, found.master_queue_offset) < 0:
            raise RemoteProtocolError(f"a timer checkpoint has negative fields: {found}")
        return found
