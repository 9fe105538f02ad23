"""Settings of a DLedger group: its peers, timings and limits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from rocketpy.errors import ConfigInvalid


@dataclass(frozen=True, kw_only=True, slots=True)
class RaftSettings:
    """Settings of one peer, with the defaults of DLedger 0.1. Raises ConfigInvalid."""

    group: str
    self_id: str
    peers: dict[str, str]
    """Address by id, including this peer's."""
    heartbeat_ms: int = 2000
    """heartBeatTimeIntervalMs: interval of a leader's heartbeats."""
    heartbeats_missed_max: int = 3
    """maxHeartBeatLeak: after so many intervals (6 s) without a heartbeat a follower starts an election, and
    without a quorum of responses a leader steps down."""
    vote_interval_ms_min: int = 300
    """minVoteIntervalMs: minimum wait of a candidate between two rounds of votes."""
    vote_interval_ms_max: int = 1000
    """maxVoteIntervalMs: maximum wait; the wait is random in between."""
    vote_wait_ms: int = 3000
    """A round of votes ends after this time, with the votes received until then."""
    push_timeout_ms: int = 1000
    """maxPushTimeOutMs: time after which a leader repeats a push that has no response, and a follower rejects
    a push whose previous entry is missing."""
    commit_push_ms: int = 1000
    """Interval in which idle followers receive the committed index."""
    retry_ms: int = 500
    """Wait before a failed COMPARE or TRUNCATE is repeated."""
    pending_max: int = 10_000
    """maxPendingRequestsNum: limit of uncommitted entries; more are rejected with LEADER_PENDING_FULL."""
    in_flight_max: int = 1000
    """Limit of unacknowledged pushes to one follower, and of its pushes that wait for a missing entry."""
    in_flight_bytes_max: int = 4 << 20
    """Limit of the bytes of unacknowledged pushes to one follower; a single entry may be larger."""
    file_bytes: int = 1 << 30
    """mappedFileSizeForEntryData: must be the same on every peer, as positions of entries depend on it."""
    no_op: Callable[[int], bytes] | None = None
    """Returns the body of a new leader's first entry for its position; the length is constant. None: entries
    of earlier terms are committed with the first appended entry (openmessaging/dledger #305)."""
    secret: str = field(default="", repr=False)
    """dLegerSecret, a setting of rocketpy: all peers must have the same. Empty: no authentication."""
    log: logging.Logger = field(default=logging.getLogger("rocketpy.broker.dledger"), repr=False)
    """Gets the changes of role, term and vote at INFO, and those of the committed index at DEBUG."""

    def __post_init__(self) -> None:
        if self.self_id not in self.peers:
            raise ConfigInvalid(f"dLegerSelfId {self.self_id!r} is not among the peers {sorted(self.peers)}")
        if not 0 < self.vote_interval_ms_min < self.vote_interval_ms_max:
            raise ConfigInvalid(
                f"invalid vote interval: {self.vote_interval_ms_min} to {self.vote_interval_ms_max} ms; the "
                "minimum must be positive, and less than the maximum"
            )

    @property
    def election_timeout_ms(self) -> int:
        """Time after which a follower without a heartbeat starts an election.

        A leader without a quorum of responses for this time steps down.
        """
        return self.heartbeats_missed_max * self.heartbeat_ms

    @property
    def quorum(self) -> int:
        """Number of peers that are a majority."""
        return len(self.peers) // 2 + 1

    @property
    def others(self) -> list[str]:
        """Ids of all other peers, sorted."""
        return sorted(self.peers.keys() - {self.self_id})
