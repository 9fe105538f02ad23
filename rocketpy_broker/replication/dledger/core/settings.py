"""Times and sizes of a group, and who is in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rocketpy.errors import ConfigInvalid


@dataclass(frozen=True, kw_only=True, slots=True)
class RaftSettings:
    """What a peer goes by; defaults of DLedger 0.1. Raises ConfigInvalid.

    peers: address by id, this peer's own among them.
    """

    group: str
    self_id: str
    peers: dict[str, str]
    heartbeat_ms: int = 2000
    """heartBeatTimeIntervalMs: how often a leader says that it leads."""
    heartbeats_missed_max: int = 3
    """maxHeartBeatLeak: after so many intervals of silence (6 s) a follower, or a leader, gives up."""
    vote_interval_ms_min: int = 300
    """minVoteIntervalMs: a candidate waits at least this long between two rounds."""
    vote_interval_ms_max: int = 1000
    """maxVoteIntervalMs: … and at most this long; where in between, chance decides."""
    vote_wait_ms: int = 3000
    """A round of votes ends after this, with what was heard until then."""
    push_timeout_ms: int = 1000
    """maxPushTimeOutMs: a push that was not answered is sent again; a gap is reported to the leader."""
    commit_push_ms: int = 1000
    """An idle follower is told how far the group is at least this often."""
    retry_ms: int = 500
    """After a COMPARE or TRUNCATE that failed, the next try waits this long."""
    append_wait_ms: int = 3000
    """How long an append waits for a majority (0.1: 2.5 s, and RocketMQ's commit log 3 s for that answer)."""
    pending_max: int = 10_000
    """maxPendingRequestsNum: appends that may wait; more are refused, LEADER_PENDING_FULL."""
    in_flight_max: int = 1000
    """Pushes to one follower that may be unanswered; as many may wait there for one that is missing."""
    in_flight_bytes_max: int = 4 << 20
    """… and so many bytes of entries, or one entry."""
    file_bytes: int = 1 << 30
    """mappedFileSizeForEntryData: the same on every peer, since it decides where entries lie."""
    no_op: Callable[[int], bytes] | None = None
    """Makes the body of the entry with which a new leader begins its term (D#305), of one length, from the
    body's position. None: what older terms left is committed with the first entry of a client."""
    secret: str = field(default="", repr=False)
    """dLegerSecret (ours): every peer must know it. Empty: nobody is asked."""
    takes_appends: bool = True
    """Whether clients may append over the wire. A broker's ledger takes messages only, through the broker."""

    def __post_init__(self) -> None:
        if self.self_id not in self.peers:
            raise ConfigInvalid(f"dLegerSelfId {self.self_id!r} is not among the peers {sorted(self.peers)}")
        if not 0 < self.vote_interval_ms_min < self.vote_interval_ms_max:
            raise ConfigInvalid(
                f"vote interval: {self.vote_interval_ms_min} to {self.vote_interval_ms_max} ms"
            )

    @property
    def silence_ms(self) -> int:
        """How long a leader may be silent, or alone."""
        return self.heartbeats_missed_max * self.heartbeat_ms

    @property
    def quorum(self) -> int:
        """How many peers are a majority."""
        return len(self.peers) // 2 + 1

    @property
    def others(self) -> list[str]:
        """Every peer but this one, in order of their ids."""
        return sorted(self.peers.keys() - {self.self_id})
