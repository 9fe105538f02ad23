"""Settings of a replication connection.

Master and slave each have their own, from their broker.conf. The keys of broker.conf are in the field
descriptions. A field without a key has a fixed value.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class HaSettings:
    """Settings of one end of a connection, with the defaults of RocketMQ 4.6.0."""

    heartbeat_ms: int = 5000
    """haSendHeartbeatInterval: maximum time without sending anything."""
    silence_ms: int = 20_000
    """haHousekeepingInterval: a connection is closed if no bytes are received for this long."""
    batch_bytes: int = 32 * 1024
    """haTransferBatchSize: maximum size of a frame's body."""
    secret: str = ""
    """haSecret, a setting of rocketpy: both ends must have the same. Empty: no authentication."""
    handshake_timeout_ms: int = 3000
    """Maximum duration of the handshake; see `first_report_timeout_ms`."""
    wants_flushed: bool = False
    """Whether slaves with a handshake acknowledge flushed bytes. False: they acknowledge received bytes."""
    handshake: bool = True
    """Whether a slave starts the handshake."""
    hello_timeout_ms: int = 1000
    """Time that a slave waits for the Hello message. Then it treats its master as a broker of RocketMQ."""

    @property
    def first_report_timeout_ms(self) -> int:
        """Maximum time that a master waits for the first report of a slave.

        RocketMQ's slaves send it one heartbeat interval after they have connected. rocketpy's slaves send it
        immediately, and only they can know a secret.
        """
        return self.handshake_timeout_ms if self.secret else self.heartbeat_ms + self.handshake_timeout_ms
