"""The slaves that are connected to a master, and the offsets that they have acknowledged. No I/O.

Source: HAService.isSlaveOK, notifyTransferSome of RocketMQ 4.6.0. Differs: a slave counts once it is
copying, and only while it is connected.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketpy_broker.replication.ha.master import MasterSession


@dataclass(frozen=True, slots=True)
class SlaveState:
    """The state of one slave for operators, as `ha status --json` prints it."""

    address: str
    broker_id: int | None
    """None for a slave of RocketMQ, which does not send it."""
    received: int
    """The end of the bytes that it has acknowledged as received; -1: not reported."""
    flushed: int
    """The end of the bytes that it has acknowledged as flushed; -1: not reported."""
    lag_bytes: int
    """Missing bytes of the master's log."""


class ConnectedSlaves:
    """The slaves of one master.

    behind_bytes_max: haSlaveFallbehindMax. joined_only: slaves without a handshake do not count.
    """

    def __init__(self, *, behind_bytes_max: int, joined_only: bool = False) -> None:
        self._behind_bytes_max = behind_bytes_max
        self._joined_only = joined_only
        self._sessions: dict[MasterSession, str] = {}

    def add(self, session: MasterSession, address: str) -> None:
        """Add a connection."""
        self._sessions[session] = address

    def remove(self, session: MasterSession) -> None:
        """Remove a closed connection."""
        self._sessions.pop(session, None)

    @property
    def connections(self) -> int:
        """Number of connected slaves."""
        return len(self._sessions)

    @property
    def acked(self) -> int:
        """The highest offset up to which a slave has the log; -1 without a slave that counts."""
        return max((session.acked_offset for session in self._sessions if self._counts(session)), default=-1)

    def is_slave_ok(self, offset: int) -> bool:
        """Whether a send may wait until a slave has the log up to `offset`.

        False if every slave that counts is `behind_bytes_max` or more behind that offset.
        """
        acked = self.acked
        return acked >= 0 and offset - acked < self._behind_bytes_max

    def states(self, max_offset: int) -> list[SlaveState]:
        """Return the state of each slave. max_offset: of the master's log."""
        return [
            SlaveState(
                address,
                session.slave.broker_id if session.slave is not None else None,
                session.received,
                session.flushed,
                max(0, max_offset - max(session.received, 0)),
            )
            for session, address in self._sessions.items()
        ]

    def _counts(self, session: MasterSession) -> bool:
        return session.is_copying and (session.slave is not None or not self._joined_only)
