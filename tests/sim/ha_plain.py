"""A slave that behaves like RocketMQ 4.6.0's: no handshake, no epochs, and all received bytes are appended.

Written from what HAClient does: a report when time has passed since the last one, another whenever the log
has grown; a frame that does not continue the log ends the connection, to an empty log everything does. Its
log is bytes here. Recovery keeps whole records up to the first bytes that are none.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

from rocketpy.errors import RecordCorrupt, TornTail
from rocketpy.protocol.message.record import BLANK_MAGIC, peek, read_start
from rocketpy_broker.replication.ha.epochs import Epoch, common_end
from rocketpy_broker.replication.ha.master import Close, DataReceived, Effect, Poll, Send
from tests.sim.ha_node import SEGMENT_BYTES

if TYPE_CHECKING:
    from tests.sim.ha_world import World

_REPORT = Struct(">q")
_HEADER = Struct(">qi")


class PlainNode:
    """A slave of RocketMQ's."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.base = 0
        self.log = bytearray()
        self.is_running = True
        self.held_until = 0
        """Records before this offset have been in the log here."""
        self.parted_at: int | None = None
        """From here on its log may differ from its master's: no master made it truncate anything."""
        self.stands_until = 0.0
        self.cut_until = 0.0
        self.retry_at = 0.0
        self._flushed = 0
        self._epochs: tuple[Epoch, ...] = ()
        """Always empty: RocketMQ's slaves do not know epochs."""

    @property
    def is_awake(self) -> bool:
        return self.is_running and self.stands_until <= self.world.now

    @property
    def max_offset(self) -> int:
        return self.base + len(self.log)

    def open_session(self) -> PlainSession:
        """A connection to the master."""
        return PlainSession(self, self.world.now)

    def speak(self, work: Callable[[], None]) -> None:
        """Call `work` if the slave is running."""
        if self.is_running:
            work()

    def append(self, offset: int, data: bytes) -> None:
        """Append all received bytes."""
        if not self.log and not self.base:
            assert offset % SEGMENT_BYTES == 0, "the master begins within a file (QUIRKS 53)"
            self.base = offset
        assert offset == self.max_offset
        assert offset % SEGMENT_BYTES + len(data) <= SEGMENT_BYTES, "a frame across a file's end (QUIRKS 55)"
        self.log += data
        self.held_until = max(self.held_until, self.max_offset)

    def work(self) -> None:
        """The periodic work of a broker."""
        if self.is_awake and self.world.rng.random() < 0.3:
            self._flushed = len(self.log)

    def acked(self) -> None:
        """Do nothing: no slave copies from this one."""

    def die(self) -> None:
        """The process ends at once, or power is lost with it."""
        if self.is_running:
            self.is_running = False
            if self.world.power_fails and self.world.rng.random() < 0.5:
                del self.log[self.world.rng.randint(self._flushed, len(self.log)) :]
            self.world.forget_wires(self)

    def start(self) -> None:
        """Recover."""
        self.is_running = True
        del self.log[self._end_of_records() :]
        self._flushed = min(self._flushed, len(self.log))

    def _end_of_records(self) -> int:
        position = end = 0
        while len(self.log) - position >= 8:
            size, magic = read_start(self.log, position)
            if magic == BLANK_MAGIC:
                position += SEGMENT_BYTES - position % SEGMENT_BYTES
                continue
            try:
                peek(self.log, position, check_crc=True)
            except (RecordCorrupt, TornTail):
                break
            position += size
            end = position
        return end

    def part(self, epochs: tuple[Epoch, ...], end: int) -> None:
        """Its master's log now has these epochs, and this end; other records may be missing."""
        common = common_end(self._epochs, self.max_offset, epochs, end) or 0
        if common < self.max_offset:
            self.parted_at = common if self.parted_at is None else min(self.parted_at, common)
        self._epochs = epochs

    def empty(self) -> None:
        """An operator deletes its store and restarts it."""
        self.world.forget_wires(self)
        self.base = self._flushed = self.held_until = 0
        self.log.clear()
        self.is_running, self.parted_at = True, None

    def check(self, log: bytes, begin: int) -> None:
        """Is it a copy of that log, which begins at `begin`, as far as it must be?"""
        end = self.max_offset if self.parted_at is None else self.parted_at
        mine = bytes(self.log[: max(0, end - self.base)])
        assert mine == log[self.base - begin :][: len(mine)], f"plain slave {self.number} differs (I7)"


class PlainSession:
    """A connection of a plain slave to its master."""

    def __init__(self, node: PlainNode, now_ms: float) -> None:
        self._node = node
        self._data = b""
        self._last_received_ms = self._sent_ms = now_ms
        self._reported = node.max_offset
        self.is_copying = False

    def step(self, event: DataReceived | Poll, now_ms: float) -> list[Effect]:
        """As `SlaveSession.step`."""
        effects: list[Effect] = []
        if isinstance(event, DataReceived):
            self._last_received_ms = now_ms
            self._data += event.data
            effects += self._take(now_ms)
        if now_ms - self._sent_ms > self._node.world.report_ms:
            effects.append(self._report(now_ms))
        if now_ms - self._last_received_ms > self._node.world.settings.silence_ms:
            effects.append(Close("silent"))
        return effects

    def _report(self, now_ms: float) -> Send:
        self._sent_ms, self._reported = now_ms, self._node.max_offset
        return Send(_REPORT.pack(self._reported))

    def _take(self, now_ms: float) -> list[Effect]:
        effects: list[Effect] = []
        while len(self._data) >= _HEADER.size:
            offset, size = _HEADER.unpack_from(self._data)
            here = self._node.max_offset
            if here and offset != here:
                return [*effects, Close(f"{offset} does not follow {here}")]
            body = self._data[_HEADER.size : _HEADER.size + size]
            if len(body) < size:
                break
            self._data = self._data[_HEADER.size + size :]
            self._node.append(offset, body)
            self.is_copying = True
            if self._node.max_offset > self._reported:
                effects.append(self._report(now_ms))
        return effects
