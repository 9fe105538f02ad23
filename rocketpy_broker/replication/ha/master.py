"""The master's end of one connection to a slave. No I/O: bytes and `now_ms` in, effects out.

Source: HAConnection of RocketMQ 4.6.0. Differs: a slave whose offset is outside the log is disconnected
(apache/rocketmq #3015); with SYNC_FLUSH only flushed bytes are sent; there is a handshake, see `wire`.
"""

from __future__ import annotations

import enum
import zlib
from dataclasses import dataclass
from typing import Final, Protocol

from rocketpy.errors import RemoteProtocolError, StoreError
from rocketpy_broker.replication.ha.epochs import EpochState, common_end
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.replication.ha.wire import (
    CONTROL,
    ControlMessage,
    Hello,
    Join,
    Refused,
    ReportReader,
    Welcome,
    encode_control,
    frame,
    frames,
    is_proof,
    proof,
)


@dataclass(frozen=True, slots=True)
class DataReceived:
    """Bytes were received."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Poll:
    """Time has passed, the log has grown, or the socket accepts more bytes."""

    bytes_max: int = 1 << 20
    """How many bytes may be sent now."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class AckReceived:
    """The slave has acknowledged these offsets."""

    received: int
    flushed: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection."""

    reason: str
    is_final: bool = False
    """A new connection would fail the same way until an operator acts."""


Effect = Send | AckReceived | Close
_TLS_HANDSHAKE: Final = b"\x16\x03"
_TAIL_BYTES_MAX: Final = 1 << 16
"""Limit of the compared tail, which is read in the event loop; rocketpy's slaves send 4096 bytes."""
_JOIN_FACTOR: Final = 3
"""The timeout of the join message is this multiple of the handshake timeout."""


class LogSource(Protocol):
    """The master's log, from which slaves copy."""

    @property
    def min_offset(self) -> int:
        """Start offset of the log."""

    @property
    def max_offset(self) -> int:
        """End offset of the log."""

    @property
    def ready_offset(self) -> int:
        """End of the part that may be sent. With SYNC_FLUSH, it is flushed: a crash cannot lose it here."""

    @property
    def segment_bytes(self) -> int:
        """Size of one file of the log."""

    @property
    def epochs(self) -> EpochState:
        """The epochs of the log."""

    def read(self, offset: int, size_max: int) -> bytes:
        """Return 1 to `size_max` bytes from `offset` on, of one file. Raises StoreError."""


class _State(enum.Enum):
    FIRST_REPORT = "first report"
    JOIN = "join message"
    SENDING = "sending"
    CLOSED = "closed"


class MasterSession:
    """One connection. nonce: a unique string, for the slave's proof."""

    def __init__(self, log: LogSource, settings: HaSettings, nonce: str, now_ms: float) -> None:
        self._log = log
        self._settings = settings
        self._nonce = nonce
        self._reader = ReportReader()
        self._state = _State.FIRST_REPORT
        self._last_received_ms = now_ms
        self._sent_ms = float("-inf")
        self._join_deadline_ms = now_ms + settings.first_report_timeout_ms
        """Time (ms) at which the connection is closed if the slave has not joined."""
        self.next_offset = -1
        """The next offset to send; -1 before the slave has joined."""
        self.received = -1
        """Last reported end of the slave's log."""
        self.flushed = -1
        """Last reported flushed offset; -1 for a slave without a handshake."""
        self.slave: Join | None = None
        """The join message of a slave with a handshake."""

    @property
    def is_closed(self) -> bool:
        """Whether a Close was returned."""
        return self._state is _State.CLOSED

    @property
    def is_copying(self) -> bool:
        """Whether the slave has joined."""
        return self._state is _State.SENDING

    @property
    def acked_offset(self) -> int:
        """The offset up to which this slave has acknowledged the log."""
        return self.flushed if self._settings.wants_flushed and self.slave is not None else self.received

    def step(self, event: DataReceived | Poll, now_ms: float) -> list[Effect]:
        """Handle an event; return the effects in order. After a Close there are none."""
        if self.is_closed:
            return []
        effects: list[Effect] = []
        try:
            if isinstance(event, DataReceived):
                self._last_received_ms = now_ms
                if self._state is _State.FIRST_REPORT and event.data.startswith(_TLS_HANDSHAKE):
                    return [self._close("the slave speaks TLS, and this HA port does not (tls.server.mode)")]
                for message in self._reader.feed(event.data):
                    effects += self._on_message(message, now_ms)
                    if self.is_closed:
                        return effects
            else:
                effects += self._send(event.bytes_max, now_ms)
        except (RemoteProtocolError, StoreError) as error:
            return [*effects, self._close(str(error))]
        if now_ms - self._last_received_ms > self._settings.silence_ms:
            effects.append(self._close(f"silent for {now_ms - self._last_received_ms:.0f} ms"))
        elif self._state is not _State.SENDING and now_ms > self._join_deadline_ms:
            why = "; RocketMQ's slaves cannot join a master with haSecret" if self._settings.secret else ""
            effects.append(self._close(f"no {self._state.value} in time{why}"))
        return effects

    def _close(self, reason: str) -> Close:
        self._state = _State.CLOSED
        return Close(reason)

    # -- receiving ----------------------------------------------------------------------------

    def _on_message(self, message: tuple[int, int] | ControlMessage, now_ms: float) -> list[Effect]:
        if isinstance(message, Join) and self._state is _State.JOIN:
            return self._join(message)
        if not isinstance(message, tuple):
            return [self._close(f"unexpected control message: {type(message).__name__}")]
        if self._state is _State.FIRST_REPORT and message[0] == CONTROL:
            self._state, self._reader.uses_handshake = _State.JOIN, True
            # The slave reads the end of its log first, and its disk may be busy.
            self._join_deadline_ms = now_ms + _JOIN_FACTOR * self._settings.handshake_timeout_ms
            return [Send(encode_control(Hello(self._nonce, bool(self._settings.secret))))]
        if self._state is _State.JOIN:
            return [self._close("received an acknowledgement before the join message")]
        return self._report(*message)

    def _report(self, received: int, flushed: int) -> list[Effect]:
        if self._state is _State.FIRST_REPORT:
            rejection = self._check_plain_slave(received)
            if rejection is not None:
                return [rejection]
            self._begin(received or self._last_file_start())
        if not max(flushed, 0) <= received <= self._log.max_offset:
            return [
                self._close(
                    f"the slave reports {received} received and {flushed} flushed, but this log ends at "
                    f"{self._log.max_offset}"
                )
            ]
        self.received, self.flushed = received, flushed
        return [AckReceived(received, flushed)]

    def _last_file_start(self) -> int:
        """Return where an empty slave starts: it gets the last file only (QUIRKS 53)."""
        end = self._log.ready_offset
        return end - end % self._log.segment_bytes

    def _check_plain_slave(self, offset: int) -> Close | None:
        if self._settings.secret:
            return self._close("the slave does not do the handshake that haSecret requires")
        if 0 < offset < self._log.min_offset:
            begin = self._log.min_offset
            return self._close(
                f"the slave's log ends at {offset}, but this one starts at {begin}; empty its store"
            )
        return None

    def _begin(self, offset: int) -> None:
        self.next_offset = offset
        self._state = _State.SENDING

    def _join(self, join: Join) -> list[Effect]:
        secret = self._settings.secret
        if not is_proof(join.proof, proof(secret, "slave", self._nonce, join.nonce)):
            return self._reject("the slave does not know the secret of this master (haSecret)")
        start = self._start_offset(join)
        if isinstance(start, str):
            return self._reject(start)
        self.slave = join
        self._begin(start)
        self.received, self.flushed = start, -1
        welcome = Welcome(
            epochs=self._log.epochs.epochs,
            start=start,
            wants_flushed=self._settings.wants_flushed,
            proof=proof(secret, "master", join.nonce, self._nonce),
        )
        return [Send(encode_control(welcome))]

    def _reject(self, reason: str) -> list[Effect]:
        return [Send(encode_control(Refused(reason))), self._close(reason)]

    def _start_offset(self, join: Join) -> int | str:
        """Return where the slave must start, or why it cannot."""
        log = self._log
        if join.max_offset < 0 or not 0 <= join.tail_bytes <= min(join.max_offset, _TAIL_BYTES_MAX):
            return (
                f"invalid join message: a tail of {join.tail_bytes} bytes in a log that ends at "
                f"{join.max_offset}"
            )
        newest = log.epochs.epochs[-1].number if log.epochs.epochs else 0
        if join.epoch_seen > newest:
            return (
                f"the slave has followed a master of epoch {join.epoch_seen}, but this one has epoch "
                f"{newest}: another broker was promoted since"
            )
        if join.max_offset == 0:
            return log.min_offset
        start = common_end(join.epochs, join.max_offset, log.epochs.epochs, log.max_offset)
        if start is None:
            if join.epochs or join.max_offset > log.max_offset:
                return "the slave's log is not a copy of this one; empty its store"
            start = join.max_offset
        if start < log.min_offset:
            begin = log.min_offset
            return f"the slave's log is equal up to {start}, but this one starts at {begin}; empty its store"
        if start == join.max_offset and not self._has_same_tail(join):
            return (
                f"the last {join.tail_bytes} bytes of the slave's log, before offset {start}, differ from "
                "this log; empty its store"
            )
        return start

    def _has_same_tail(self, join: Join) -> bool:
        begin = join.max_offset - join.tail_bytes
        if not join.tail_bytes or begin < self._log.min_offset:
            return True
        return zlib.crc32(self._log.read(begin, join.tail_bytes)) == join.tail_crc

    # -- sending ------------------------------------------------------------------------------

    def _send(self, bytes_max: int, now_ms: float) -> list[Effect]:
        if self._state is not _State.SENDING:
            return []
        log, settings = self._log, self._settings
        if not log.min_offset <= self.next_offset <= log.max_offset:
            return [
                self._close(
                    f"the next offset, {self.next_offset}, is outside the log: {log.min_offset} to "
                    f"{log.max_offset}"
                )
            ]
        pieces: list[bytes] = []
        if self._sent_ms + settings.heartbeat_ms < now_ms:
            pieces.append(frame(self.next_offset, b""))
        end = log.ready_offset
        while self.next_offset < end and bytes_max > 0:
            wanted = max(1, bytes_max // settings.batch_bytes) * settings.batch_bytes
            body = log.read(self.next_offset, min(wanted, end - self.next_offset))
            pieces.append(frames(self.next_offset, body, settings.batch_bytes))
            self.next_offset += len(body)
            bytes_max -= len(body)
        if not pieces:
            return []
        self._sent_ms = now_ms
        return [Send(b"".join(pieces))]
