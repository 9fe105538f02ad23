"""Logs of bytes in memory, for replication without a store."""

from collections.abc import Sequence

from rocketpy_broker.replication.ha.epochs import NO_EPOCHS, EpochState
from rocketpy_broker.replication.ha.master import Close, DataReceived, Effect, MasterSession, Poll, Send
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.replication.ha.slave import SlaveSession


class MemoryLog:
    """A LogSource and LogTarget. data: its bytes from `min_offset` on."""

    def __init__(
        self,
        data: bytes = b"",
        *,
        min_offset: int = 0,
        segment_bytes: int = 4096,
        epochs: EpochState = NO_EPOCHS,
    ) -> None:
        self.data = bytearray(data)
        self.min_offset = min_offset
        self.segment_bytes = segment_bytes
        self.epochs = epochs
        self.flushed_offset = min_offset
        self.is_empty = not data and not min_offset
        self.cut_off: list[bytes] = []

    @property
    def max_offset(self) -> int:
        return self.min_offset + len(self.data)

    @property
    def ready_offset(self) -> int:
        return self.max_offset

    def read(self, offset: int, size_max: int) -> bytes:
        assert self.min_offset <= offset < self.max_offset
        size = min(size_max, self.segment_bytes - offset % self.segment_bytes)
        begin = offset - self.min_offset
        return bytes(self.data[begin : begin + size])

    def tail(self, size_max: int) -> bytes:
        size = min(
            size_max, (self.max_offset - self.min_offset) and (self.max_offset - 1) % self.segment_bytes + 1
        )
        return bytes(self.data[len(self.data) - size :])

    def append(self, offset: int, data: bytes) -> None:
        if self.is_empty:
            self.min_offset, self.is_empty = offset, False
        assert offset == self.max_offset
        self.data += data

    def adopt(self, epochs: EpochState, end: int) -> None:
        if self.is_empty:
            self.min_offset, self.is_empty = end, False
        elif end < self.max_offset:
            self.cut_off.append(bytes(self.data[end - self.min_offset :]))
            del self.data[end - self.min_offset :]
        self.epochs = epochs


class Pair:
    """A master and a slave and the wire between them. chunk: bytes that arrive at once."""

    def __init__(
        self,
        source: MemoryLog,
        target: MemoryLog,
        settings: HaSettings | None = None,
        slave_settings: HaSettings | None = None,
        *,
        chunk: int = 1 << 20,
    ) -> None:
        settings = settings or HaSettings()
        self.now = 0.0
        self.source, self.target, self.chunk = source, target, chunk
        self.master = MasterSession(source, settings, "master-nonce", self.now)
        self.slave = SlaveSession(
            target, slave_settings or settings, broker_name="b", broker_id=1, nonce="slave-nonce", now_ms=0
        )
        self.closed: list[Close] = []

    def run(self, seconds: int = 3) -> None:
        """Let that much time pass, in steps of 100 ms."""
        for _ in range(10 * seconds):
            self.now += 100
            self.exchange()

    def exchange(self) -> None:
        """Exchange messages until no side has any."""
        to_master = self._sent(self.slave.step(Poll(), self.now))
        to_slave = self._sent(self.master.step(Poll(), self.now))
        while to_master or to_slave:
            responses = b"".join(
                self._sent(self.master.step(DataReceived(piece), self.now))
                for piece in self._pieces(to_master)
            )
            to_master = b"".join(
                self._sent(self.slave.step(DataReceived(piece), self.now)) for piece in self._pieces(to_slave)
            )
            to_slave = responses + self._sent(self.master.step(Poll(), self.now))

    def _pieces(self, data: bytes) -> Sequence[bytes]:
        return [data[at : at + self.chunk] for at in range(0, len(data), self.chunk)]

    def _sent(self, effects: list[Effect]) -> bytes:
        self.closed += [effect for effect in effects if isinstance(effect, Close)]
        return sent(effects)


def sent(effects: list[Effect]) -> bytes:
    """The bytes that effects send."""
    return b"".join(effect.data for effect in effects if isinstance(effect, Send))
