"""Times and sizes of replication, and who is at each end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rocketpy_broker.replication.ha.epochs import EpochState


@dataclass(frozen=True, kw_only=True, slots=True)
class HaSettings:
    """What both ends of a connection go by; defaults of 4.6.0."""

    heartbeat_ms: int = 5000
    """haSendHeartbeatInterval: each end says something at least this often."""
    silence_ms: int = 20_000
    """haHousekeepingInterval: a peer that was silent for so long is gone."""
    batch_bytes: int = 32 * 1024
    """haTransferBatchSize: largest body of a frame."""
    secret: str = ""
    """haSecret (ours): both ends must know it. Empty: nobody is asked."""
    join_ms: int = 3000
    """A peer that has not introduced itself this long after it connected is disconnected; see `first_ms`."""
    wants_flushed: bool = False
    """Slaves of ours acknowledge what they flushed, not what they received."""
    handshake: bool = True
    """Whether a slave asks its master for our handshake."""
    hello_wait_ms: int = 1000
    """How long a slave waits for an answer to that before it takes its master for RocketMQ's."""

    @property
    def first_ms(self) -> int:
        """How long a master waits for a slave's first report.

        RocketMQ's slaves send it one heartbeat interval after they connected. Ours send it at once, and only
        they know a secret.
        """
        return self.join_ms if self.secret else self.heartbeat_ms + self.join_ms


class LogSource(Protocol):
    """A log to copy from."""

    @property
    def min_offset(self) -> int:
        """Where it begins."""

    @property
    def max_offset(self) -> int:
        """Where it ends."""

    @property
    def ready_offset(self) -> int:
        """Where what may be sent ends: a slave must not have what power loss may take here."""

    @property
    def segment_bytes(self) -> int:
        """Size of its files."""

    @property
    def epochs(self) -> EpochState:
        """Whose bytes it holds."""

    def read(self, offset: int, size_max: int) -> bytes:
        """Bytes from `offset` on, at least one, none from behind the end of that file. Raises StoreError."""


class LogTarget(Protocol):
    """A log to copy to."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no file yet."""

    @property
    def max_offset(self) -> int:
        """Where it ends; 0 while it is empty."""

    @property
    def flushed_offset(self) -> int:
        """Everything below survives power loss."""

    @property
    def epochs(self) -> EpochState:
        """Whose bytes it holds."""

    def tail(self, size_max: int) -> bytes:
        """The last bytes before its end, of its last file only."""

    def append(self, offset: int, data: bytes) -> None:
        """Write at its end, which is `offset`; an empty log begins there. Raises StoreError."""

    def adopt(self, epochs: EpochState, end: int) -> None:
        """Cut what is behind `end`, keeping a copy aside, and take over a master's epochs: durable when it
        returns. Raises StoreError.
        """
