"""Settings of the replication, and the logs at both ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rocketpy_broker.replication.ha.epochs import EpochState


@dataclass(frozen=True, kw_only=True, slots=True)
class HaSettings:
    """Settings of both ends of a connection, with the defaults of RocketMQ 4.6.0."""

    heartbeat_ms: int = 5000
    """haSendHeartbeatInterval: each end sends something at least this often."""
    silence_ms: int = 20_000
    """haHousekeepingInterval: a connection without received bytes for this long is closed."""
    batch_bytes: int = 32 * 1024
    """haTransferBatchSize: maximum body of a frame."""
    secret: str = ""
    """haSecret, a setting of rocketpy: both ends must have the same. Empty: no authentication."""
    join_ms: int = 3000
    """Time for the handshake, after which a connection is closed; see `first_ms`."""
    wants_flushed: bool = False
    """Slaves with a handshake acknowledge what they have flushed, not what they have received."""
    handshake: bool = True
    """Whether a slave asks its master for the handshake."""
    hello_wait_ms: int = 1000
    """Without a response after this time, a slave treats its master as RocketMQ's."""

    @property
    def first_ms(self) -> int:
        """How long a master waits for a slave's first report.

        RocketMQ's slaves send it one heartbeat interval after they connected. rocketpy's send it at once, and
        only they can know a secret.
        """
        return self.join_ms if self.secret else self.heartbeat_ms + self.join_ms


class LogSource(Protocol):
    """A log to copy from."""

    @property
    def min_offset(self) -> int:
        """Start of the log."""

    @property
    def max_offset(self) -> int:
        """End of the log."""

    @property
    def ready_offset(self) -> int:
        """End of the part that may be sent: a slave must not have bytes that power loss may remove here."""

    @property
    def segment_bytes(self) -> int:
        """Size of the files."""

    @property
    def epochs(self) -> EpochState:
        """The epochs of the log."""

    def read(self, offset: int, size_max: int) -> bytes:
        """Return bytes from `offset` on: at least one, and none of the next file. Raises StoreError."""


class LogTarget(Protocol):
    """A log to copy to."""

    @property
    def is_empty(self) -> bool:
        """Whether the log has no file yet."""

    @property
    def max_offset(self) -> int:
        """End of the log; 0 while it is empty."""

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
        """Truncate the log at `end`, saving a copy of the rest, and take over a master's epochs, durably.

        Raises StoreError.
        """
