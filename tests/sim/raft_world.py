"""A group of simulated peers: clock, network, disks and random choices come from one seed.

A peer's shell does what `rocketpy_broker.replication.dledger.core.node` says: write, flush, then send.
Every fault is drawn from the seed, at rates that the seed draws too. `heal` ends all faults; from then on the
group must make progress.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rocketpy_broker.replication.dledger.core.events import (
    EntriesExpiring,
    Event,
    Ready,
    RequestReceived,
    ResponseReceived,
    SendRequest,
    Tick,
)
from rocketpy_broker.replication.dledger.core.messages import (
    GetEntriesRequest,
    GetEntriesResponse,
    RaftMessage,
)
from rocketpy_broker.replication.dledger.core.node import RaftNode
from rocketpy_broker.replication.dledger.core.raft_state import Role
from rocketpy_broker.replication.dledger.core.settings import RaftSettings
from tests.sim.proposals import ProposalResult, Proposals, Propose
from tests.sim.raft_check import Checker
from tests.sim.raft_disk import RaftDisk

TICK_MS = 50
CALL_TIMEOUT_MS = 3000
FAST = {
    "heartbeat_ms": 400,
    "vote_interval_ms_min": 100,
    "vote_interval_ms_max": 500,
    "vote_wait_ms": 1000,
    "push_timeout_ms": 300,
}
"""Shorter times than DLedger's: elections are frequent, so that a short run has many."""


@dataclass
class Faults:
    """Probabilities of faults in one world, per tick or per message."""

    drop: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.0
    partition: float = 0.0
    crash: float = 0.0
    pause: float = 0.0
    expire: float = 0.0

    @classmethod
    def drawn(cls, random: Random) -> Faults:
        """Swarm testing: each kind of fault is off in half of the worlds."""

        def rate(most: float) -> float:
            return random.random() * most if random.random() < 0.5 else 0.0

        return cls(rate(0.2), rate(0.1), rate(0.2), rate(0.01), rate(0.004), rate(0.004), rate(1.0))


@dataclass
class Peer:
    """One process and its disk. skew: speed of its clock. life: number of starts."""

    name: str
    disk: RaftDisk = field(default_factory=RaftDisk)
    node: RaftNode | None = None
    skew: float = 1.0
    skew_ms: float = 0.0
    paused_until: float = -1.0
    down_until: float = -1.0
    life: int = 0
    inbox: list[Event | Propose] = field(default_factory=list)
    proposals: Proposals = field(default_factory=Proposals)
    flushing: tuple[Ready, list[ProposalResult]] | None = None
    """The Ready that is being flushed, and the results that clients get afterwards."""


class World:
    """A simulated group. size: number of peers. settings: fields of every peer's RaftSettings."""

    def __init__(self, seed: int, size: int = 3, *, faults: Faults | None = None, **settings: Any) -> None:
        self.random = Random(seed)
        self.faults = faults or Faults()
        self.now = 0.0
        self.peers = {f"n{number}": Peer(f"n{number}") for number in range(size)}
        self.checker = Checker(size)
        self.cut: set[tuple[str, str]] = set()
        self.trace: list[str] = []
        self.settings: dict[str, Any] = {"file_bytes": 4096, "no_op": lambda pos: b"no-op", **settings}
        self.proposed: dict[int, tuple[str, int]] = {}
        """The peer that got a proposal, and its number of starts then, by proposal id."""
        self.ticking: set[str] | None = None
        """Scenarios: the only peers for which time passes."""
        self._queue: list[tuple[float, int, str, int, Event]] = []
        self._count = itertools.count()
        self._request_ids: dict[int, tuple[str, int, int]] = {}
        self._proposal_ids = itertools.count()
        for peer in self.peers.values():
            peer.skew = 1.0 + (self.random.random() - 0.5) * 0.1 if faults else 1.0
            peer.skew_ms = (self.random.random() - 0.5) * 7_200_000 if faults else 0.0
            self.start(peer.name)

    # -- processes ----------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a peer from its disk."""
        peer = self.peers[name]
        settings = RaftSettings(
            group="g", self_id=name, peers={other: f"{other}:1" for other in self.peers}, **self.settings
        )
        peer.life += 1
        peer.inbox, peer.proposals, peer.flushing = [], Proposals(), None
        peer.node = RaftNode(
            settings, peer.disk, peer.disk.state, peer.disk.checkpoint, self.random.random, self.clock(peer)
        )

    def crash(self, name: str, *, power: bool = True, for_ms: float = 0.0) -> None:
        """Kill a peer; with `power`, all or some of its unflushed entries are lost."""
        peer = self.peers[name]
        peer.node = None
        peer.down_until = self.now + for_ms
        self.trace.append(f"{self.now:.0f} crash {name}")
        if power:
            peer.disk.cut_power(self.random)

    def clock(self, peer: Peer) -> float:
        """Return the time on a peer's own clock, which may run fast or slow."""
        return self.now * peer.skew + peer.skew_ms

    def leader(self) -> Peer | None:
        """The leader of the newest term."""
        leading = [peer for peer in self.running() if peer.node and peer.node.role is Role.LEADER]
        return max(leading, key=lambda peer: peer.node.state.term if peer.node else -2, default=None)

    def running(self) -> Iterator[Peer]:
        """Every running peer."""
        return (peer for peer in self.peers.values() if peer.node is not None)

    # -- time ---------------------------------------------------------------------------------

    def run(self, ticks: int, load: float = 0.0) -> None:
        """Let time pass. load: how likely a client appends something in a tick."""
        for _ in range(ticks):
            self.now += TICK_MS
            self._break_things()
            while self._queue and self._queue[0][0] <= self.now:
                _, _, name, life, event = heapq.heappop(self._queue)
                if self.peers[name].node is not None and self.peers[name].life == life:
                    self.peers[name].inbox.append(event)
            if load and self.random.random() < load:
                self.propose()
                self._get()
            for peer in self.peers.values():
                self._turn(peer)

    def propose(self, name: str | None = None, body: bytes | None = None) -> int | None:
        """Propose an entry at a peer, by default at a random one that believes it leads; return its id."""
        leading = [peer for peer in self.running() if peer.node and peer.node.role is Role.LEADER]
        peer = self.peers[name] if name else (self.random.choice(leading) if leading else None)
        if peer is None:
            return None
        proposal_id = next(self._proposal_ids)
        body = body or self.checker.history.body(proposal_id, self.random)
        self.checker.sent(proposal_id, body)
        self.proposed[proposal_id] = peer.name, peer.life
        peer.inbox.append(Propose(proposal_id, body))
        return proposal_id

    def _get(self) -> None:
        """A client asks some peer for an entry near its end."""
        peer = self.random.choice(list(self.peers.values()))
        if peer.node is not None:
            index = peer.node.view.end_index - self.random.randrange(3)
            message = GetEntriesRequest(group="g", remote_id=peer.name, begin_index=index)
            peer.inbox.append(RequestReceived(next(self._count), message))

    def _turn(self, peer: Peer) -> None:
        node = peer.node
        if node is None or peer.paused_until > self.now:
            return
        if peer.flushing is not None:
            self._flushed(peer, *peer.flushing)
        events, peer.inbox = peer.inbox, []
        if self.ticking is None or peer.name in self.ticking:
            events.append(Tick())
        is_idle = len(events) < 2 and peer.flushing is None
        for event in events:
            self._step(peer, node, event)
        # Half of the flushes end in the same tick; the others are cut short by a crash, if there is one.
        while peer.flushing is None:
            ready = node.take_ready()
            peer.proposals.look(node)
            results = peer.proposals.take()
            if not (ready or results):
                break
            self._send(peer, ready.requests_before_write)
            peer.disk.write(ready.term_state, ready.write)
            peer.flushing, is_idle = (ready, results), False
            if self.random.random() < 0.5:
                self._flushed(peer, ready, results)
        if not is_idle:
            self.checker.look(peer.name, peer.life, node, peer.disk, is_stored=peer.flushing is None)

    def _step(self, peer: Peer, node: RaftNode, event: Event | Propose) -> None:
        now_ms = self.clock(peer)
        if isinstance(event, Propose):
            peer.proposals.propose(node, event, now_ms)
            return
        node.step(event, now_ms)
        if isinstance(event, Tick):
            peer.proposals.tick(node, now_ms)
        else:
            peer.proposals.look(node)

    def _flushed(self, peer: Peer, ready: Ready, results: list[ProposalResult]) -> None:
        peer.disk.flush()
        peer.flushing = None
        node = peer.node
        if node is None:
            return
        if self.random.random() < 0.05:
            peer.disk.checkpoint = peer.disk.checkpoint._replace(committed_index=node.state.committed_index)
        self._send(peer, ready.requests_after_write)
        for response in ready.responses:
            if response.request_id in self._request_ids:
                self._return(peer, response.request_id, response.message)
        self.checker.look(peer.name, peer.life, node, peer.disk)
        for response in ready.responses:
            if isinstance(response.message, GetEntriesResponse):
                for entry in response.message.entries:
                    self.checker.served(entry)
        for result in results:
            self.checker.ended(result, node.view.find)
        if ready:
            node.advance(self.clock(peer))
        else:
            node.push(self.clock(peer))
        peer.proposals.look(node)

    # -- the network --------------------------------------------------------------------------

    def _send(self, peer: Peer, requests: Sequence[SendRequest]) -> None:
        for request in requests:
            self.trace.append(f"{self.now:.0f} {peer.name}>{request.peer} {_describe(request.message)}")
            self._carry(peer, request.peer, request.number, request.message)

    def _carry(self, sender: Peer, receiver: str, number: int, message: RaftMessage) -> None:
        life = sender.life
        self._post(self.now + CALL_TIMEOUT_MS, sender.name, life, ResponseReceived(number, None))
        for _ in range(2 if self.random.random() < self.faults.duplicate else 1):
            if not self._gets_through(sender.name, receiver):
                continue
            request_id = next(self._count)
            self._request_ids[request_id] = sender.name, life, number
            self._post(
                self._delay(), receiver, self.peers[receiver].life, RequestReceived(request_id, message)
            )

    def push(self, receiver: str, message: RaftMessage) -> None:
        """Deliver a message from outside the simulation, such as a late copy."""
        self.peers[receiver].inbox.append(RequestReceived(next(self._count), message))

    def _return(self, responder: Peer, request_id: int, message: RaftMessage) -> None:
        name, life, number = self._request_ids.pop(request_id)
        if self._gets_through(responder.name, name):
            self._post(self._delay(), name, life, ResponseReceived(number, message))

    def _gets_through(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) not in self.cut and self.random.random() >= self.faults.drop

    def _delay(self) -> float:
        slow = self.random.random() < self.faults.slow
        return self.now + self.random.random() * (4000 if slow else 20)

    def _post(self, at: float, name: str, life: int, event: Event) -> None:
        heapq.heappush(self._queue, (at, next(self._count), name, life, event))

    # -- faults -------------------------------------------------------------------------------

    def _break_things(self) -> None:
        random, faults = self.random, self.faults
        for peer in self.peers.values():
            if peer.node is None and 0 <= peer.down_until <= self.now:
                if random.random() < faults.expire:
                    peer.disk.expire(peer.disk.checkpoint.committed_index)
                self.start(peer.name)
        if random.random() < faults.partition:
            self.cut = set() if self.cut else self._some_cut()
        for peer in self.peers.values():
            if peer.node is not None and random.random() < faults.crash:
                self.crash(peer.name, power=random.random() < 0.7, for_ms=random.random() * 10_000)
            if peer.node is not None and random.random() < faults.expire / 100:
                self._expire(peer, peer.node)
            if random.random() < faults.pause:
                peer.paused_until = self.now + random.random() * 12_000

    def _expire(self, peer: Peer, node: RaftNode) -> None:
        """Delete old entries while the peer runs."""
        oldest, newest = node.view.begin_index, min(node.view.durable_index, node.state.committed_index)
        if peer.flushing is None and 0 <= oldest < newest:
            begin = self.random.randint(oldest, newest)
            node.step(EntriesExpiring(begin), self.clock(peer))
            peer.disk.expire(begin)

    def _some_cut(self) -> set[tuple[str, str]]:
        side = {name for name in self.peers if self.random.random() < 0.5}
        pairs = [(a, b) for a in self.peers for b in self.peers if (a in side) != (b in side)]
        one_way = self.random.random() < 0.3
        return {(a, b) for a, b in pairs if not one_way or a in side}

    def heal(self) -> None:
        """End all faults, and start the stopped peers."""
        self.faults = Faults()
        self.cut = set()
        for peer in self.peers.values():
            peer.paused_until = -1.0
            if peer.node is None:
                self.start(peer.name)

    def settle(self, load: float = 0.0, ticks_max: int = 1200) -> bool:
        """Wait until one peer leads and all have the acknowledged entries; return whether that happened."""
        for _ in range(ticks_max // 20):
            self.run(20, load)
            if self._is_settled():
                return True
        return False

    def unreported(self) -> list[int]:
        """Ids of proposals whose peer has run since, but has not reported their results."""
        results = self.checker.results
        return [
            proposal_id
            for proposal_id, (name, life) in self.proposed.items()
            if proposal_id not in results and self.peers[name].life == life
        ]

    def _is_settled(self) -> bool:
        leader = self.leader()
        if leader is None or leader.node is None:
            return False
        nodes = [peer.node for peer in self.peers.values() if peer.node is not None]
        end = min(node.view.end_index for node in nodes)
        return (
            all(node.state.leader_id == leader.name for node in nodes)
            and end >= self.checker.acked_index
            and min(node.state.committed_index for node in nodes) >= self.checker.acked_index
        )


def _describe(message: RaftMessage) -> str:
    kind = getattr(message, "type", None)
    entry = getattr(message, "entry", None)
    parts = [type(message).__name__.removesuffix("Request"), f"term={message.term}"]
    if kind is not None:
        parts.append(kind.value)
    if entry is not None:
        parts.append(f"entry={entry.index}/{entry.term}")
    return " ".join(parts)
