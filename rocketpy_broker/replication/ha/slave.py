"""The slave's end of the connection to its master. No I/O: bytes and `now_ms` in, effects out.

Source: HAClient of RocketMQ 4.6.0. Differs: the first report is sent immediately, not after 5 s. Frames that
arrive together are written together and reported once. There is a handshake, see `wire`.
"""

from __future__ import annotations

import enum
import zlib
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Protocol

from rocketpy.errors import RemoteProtocolError, StoreError
from rocketpy_broker.replication.ha.epochs import EpochState
from rocketpy_broker.replication.ha.master import Close, DataReceived, Effect, Poll, Send
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.replication.ha.wire import (
    CONTROL,
    OFFSET_MAX,
    REPORT,
    ControlMessage,
    Frame,
    FrameReader,
    Hello,
    Join,
    Refused,
    Welcome,
    ack,
    encode_control,
    is_proof,
    proof,
)

_TAIL_BYTES = 4096
_TLS_ALERT = b"\x15\x03"
"""Start of a TLS alert, the response to bytes that are not TLS. It is not the start of a valid frame."""


class LogTarget(Protocol):
    """The slave's log, to which it copies."""

    @property
    def is_empty(self) -> bool:
        """Whether the log has no file yet."""

    @property
    def max_offset(self) -> int:
        """End offset of the log; 0 while it is empty."""

    @property
    def flushed_offset(self) -> int:
        """End of the part that survives power loss."""

    @property
    def epochs(self) -> EpochState:
        """The epochs of the log."""

    def tail(self, size_max: int) -> bytes:
        """Return the last bytes of the log, of its last file only."""

    def append(self, offset: int, data: bytes) -> None:
        """Append at the end of the log, which is `offset`; an empty log starts there. Raises StoreError."""

    def adopt(self, epochs: EpochState, end: int) -> None:
        """Truncate the log at `end` and save the epochs of a master, durably. Raises StoreError.

        The truncated bytes are saved in a file first.
        """


class _State(enum.Enum):
    HELLO = "waits for the hello message"
    JOIN = "waits for the welcome message"
    COPIES = "copies"
    CLOSED = "closed"


@dataclass(eq=False)
class SlaveSession:
    """One new connection to a master."""

    log: LogTarget
    settings: HaSettings
    _: KW_ONLY
    broker_name: InitVar[str]
    broker_id: InitVar[int]
    nonce: str
    """A unique string."""
    now_ms: InitVar[float]

    def __post_init__(self, broker_name: str, broker_id: int, now_ms: float) -> None:
        self._name, self._id = broker_name, broker_id
        self._hello_nonce = ""
        self._reader = FrameReader()
        self._state = _State.HELLO
        self._last_received_ms = self._opened_ms = now_ms
        self._sent_ms = float("-inf")
        self._reported = (-1, -1)
        """Received and flushed offset of the last report."""
        self._pieces: list[memoryview] = []
        """Bodies of received frames, which are written together."""
        self._pieces_at = 0
        """Offset of the first of them."""
        self._pieces_bytes = 0
        self.is_joined = False
        """Whether the master did the handshake and accepted this slave."""
        self.wants_flushed = False
        """Whether the master waits until messages are flushed here."""
        self.master_offset = -1
        """Last known end of the master's log; -1: unknown."""

    @property
    def is_closed(self) -> bool:
        """Whether a Close was returned."""
        return self._state is _State.CLOSED

    @property
    def is_copying(self) -> bool:
        """Whether the slave was accepted, or the master is RocketMQ's."""
        return self._state is _State.COPIES

    def step(self, event: DataReceived | Poll, now_ms: float) -> list[Effect]:
        """Handle an event; return the effects in order. After a Close there are none."""
        if self.is_closed:
            return []
        effects: list[Effect] = []
        try:
            if isinstance(event, DataReceived):
                self._last_received_ms = now_ms
                effects += self._receive(event.data)
            effects += self._send_due(now_ms)
        except (RemoteProtocolError, StoreError) as error:
            effects.append(self._close(str(error)))
        return effects

    def _close(self, reason: str, *, is_final: bool = False) -> Close:
        self._state = _State.CLOSED
        return Close(reason, is_final)

    # -- receiving ----------------------------------------------------------------------------

    def _receive(self, data: bytes) -> list[Effect]:
        if self._state is _State.HELLO and data.startswith(_TLS_ALERT):
            return [self._close("the master's HA port speaks TLS, and this slave does not (tls://host:port)")]
        effects: list[Effect] = []
        try:
            for message in self._reader.feed(data):
                effects += (
                    self._on_frame(message) if isinstance(message, Frame) else self._on_control(message)
                )
                if self.is_closed:
                    break
        finally:
            self._write()
        return effects

    def _on_frame(self, message: Frame) -> list[Effect]:
        """Handle a frame. Its body is written together with those of the frames after it."""
        if self._state is not _State.COPIES:
            return [self._close("received a frame before the welcome message")]
        log = self.log
        expected = self._pieces_at + self._pieces_bytes if self._pieces else log.max_offset
        if message.offset != expected and (self._pieces or not log.is_empty):
            return [self._close(f"the master sends from {message.offset}, but this log ends at {expected}")]
        if message.body is None:
            return []
        self.master_offset = max(self.master_offset, message.offset + len(message.body))
        if not message.body:
            if log.is_empty and not self._pieces:
                log.append(message.offset, b"")
            return []
        if not self._pieces:
            self._pieces_at = message.offset
        self._pieces.append(message.body)
        self._pieces_bytes += len(message.body)
        return []

    def _write(self) -> None:
        if self._pieces:
            pieces, self._pieces, self._pieces_bytes = self._pieces, [], 0
            self.log.append(self._pieces_at, b"".join(pieces))

    def _on_control(self, message: ControlMessage) -> list[Effect]:
        if isinstance(message, Hello):
            return self._on_hello(message)
        if isinstance(message, Refused):
            return [self._close(f"the master rejects this slave: {message.reason}", is_final=True)]
        if isinstance(message, Welcome) and self._state is _State.JOIN:
            return self._on_welcome(message)
        return [self._close(f"unexpected control message: {type(message).__name__}")]

    def _on_hello(self, hello: Hello) -> list[Effect]:
        if self._state is not _State.HELLO:
            return []  # too late: the master is already treated as RocketMQ's
        self._state, self._hello_nonce = _State.JOIN, hello.nonce
        log = self.log
        tail = log.tail(_TAIL_BYTES)
        join = Join(
            broker_name=self._name,
            broker_id=self._id,
            epochs=log.epochs.epochs,
            epoch_seen=log.epochs.seen,
            max_offset=log.max_offset,
            tail_bytes=len(tail),
            tail_crc=zlib.crc32(tail),
            nonce=self.nonce,
            proof=proof(self.settings.secret, "slave", hello.nonce, self.nonce),
        )
        return [Send(encode_control(join))]

    def _on_welcome(self, welcome: Welcome) -> list[Effect]:
        log, epochs = self.log, welcome.epochs
        expected = proof(self.settings.secret, "master", self.nonce, self._hello_nonce)
        if not is_proof(welcome.proof, expected):
            return [self._close("the master does not know the secret (haSecret)", is_final=True)]
        newest = epochs[-1].number if epochs else 0
        if newest < log.epochs.seen:
            reason = f"the master has epoch {newest}, but epoch {log.epochs.seen} has started since"
            return [self._close(reason, is_final=True)]
        if not 0 <= welcome.start <= (OFFSET_MAX if log.is_empty else log.max_offset):
            return [
                self._close(f"the master sends from {welcome.start}, but this log ends at {log.max_offset}")
            ]
        log.adopt(EpochState(epochs=epochs, seen=newest), welcome.start)
        self._state, self.is_joined, self.wants_flushed = _State.COPIES, True, welcome.wants_flushed
        return []

    # -- sending ------------------------------------------------------------------------------

    def _send_due(self, now_ms: float) -> list[Effect]:
        if self._state is not _State.CLOSED and now_ms - self._last_received_ms > self.settings.silence_ms:
            return [self._close(f"silent for {now_ms - self._last_received_ms:.0f} ms")]
        if self._state is _State.HELLO:
            if self.settings.handshake and self._sent_ms < self._opened_ms:
                return self._send(REPORT.pack(CONTROL), now_ms)
            if self.settings.handshake and now_ms - self._opened_ms < self.settings.hello_timeout_ms:
                return []
            if self.settings.secret:
                return [self._close("the master does not do the handshake that haSecret requires")]
            self._state = _State.COPIES
        if self._state is not _State.COPIES:
            return []
        flushed = self.log.flushed_offset if self.wants_flushed else 0
        offsets = (self.log.max_offset, flushed)
        if offsets == self._reported and self._sent_ms + self.settings.heartbeat_ms >= now_ms:
            return []
        self._reported = offsets
        return self._send(ack(*offsets) if self.is_joined else REPORT.pack(offsets[0]), now_ms)

    def _send(self, data: bytes, now_ms: float) -> list[Effect]:
        self._sent_ms = now_ms
        return [Send(data)]
