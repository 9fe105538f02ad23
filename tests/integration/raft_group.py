"""A group of DLedger peers in this process, on sockets. Entries are kept in memory, or in files.

The election timeout is a minute: see `ledger_group`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rocketpy.errors import FlushFailed, InvariantError, StoreError
from rocketpy.transport import Address, ChannelOptions
from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.events import Tick
from rocketpy_broker.replication.dledger.core.log_view import Write
from rocketpy_broker.replication.dledger.core.raft_state import Role
from rocketpy_broker.replication.dledger.core.settings import RaftSettings
from rocketpy_broker.replication.dledger.peer import Peer, PeerState
from rocketpy_broker.replication.dledger.storage.entry_scan import accept_any
from rocketpy_broker.replication.dledger.storage.ledger_files import LedgerFiles
from rocketpy_broker.store.config import CommitLogConfig
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.log.flush import FlushPlan
from rocketpy_broker.store.log.mapped_file import MappedFile
from tests.interop.processes import free_port
from tests.sim.raft_disk import RaftDisk
from tests.waiting import until

FILE_BYTES = 65536
FAST: Mapping[str, int] = {
    "heartbeat_ms": 100,
    "heartbeats_missed_max": 15,
    "vote_interval_ms_min": 50,
    "vote_interval_ms_max": 250,
    "vote_wait_ms": 500,
    "push_timeout_ms": 200,
    "commit_push_ms": 100,
    "retry_ms": 50,
    "file_bytes": FILE_BYTES,
}


class MemoryLedger(RaftDisk):
    """Entries in memory. on_apply, on_flush: called before the operation."""

    def __init__(self) -> None:
        super().__init__()
        self.on_apply: Callable[[Write], object] = bool
        self.on_flush: Callable[[], object] = bool
        self.flushes = 0

    def apply(self, write: Write) -> None:
        self.on_apply(write)
        self.write(None, write)

    def plan_flush(self, *, thorough: bool) -> FlushPlan:
        return FlushPlan()

    def run_flush(self, plan: FlushPlan) -> None:
        self.on_flush()
        self.flushes += 1

    def finish_flush(self, plan: FlushPlan, error: FlushFailed | None = None) -> None:
        pass

    def needs_preallocation(self) -> bool:
        return False

    def preallocate_ahead(self) -> MappedFile | None:
        raise AssertionError

    def adopt_preallocated(self, file: MappedFile | None) -> None:
        raise AssertionError


class Member:
    """One peer, which can be stopped and restarted with its entries."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.ledger = MemoryLedger()
        self.files: LedgerFiles | None = None
        """Holds the entries instead of `ledger`; None: they are in memory."""
        self.root = root / name
        self.peer: Peer | None = None
        self.committed_index = -1
        self.leapt_ms = 0.0
        self.states: list[PeerState] = []
        self.failures: list[StoreError | InvariantError] = []

    def now_ms(self) -> float:
        """Return the member's time, which a test can move ahead."""
        return asyncio.get_running_loop().time() * 1000 + self.leapt_ms

    def committed(self, index: int) -> None:
        assert index > self.committed_index or self.committed_index == -1
        self.committed_index = index

    def changed(self, state: PeerState) -> None:
        self.states.append(state)

    def failed(self, error: StoreError | InvariantError) -> None:
        self.failures.append(error)

    def bodies(self) -> list[bytes]:
        ledger = self.ledger if self.files is None else self.files
        return [
            ledger.get(index).body for index in range(ledger.end_index + 1) if index <= self.committed_index
        ]


@dataclass
class PeerTls:
    """TLS of peers: contexts of servers and of clients, and the names in their certificates."""

    listen: ChannelOptions
    connect: ChannelOptions
    names: frozenset[str]


class Group:
    """size peers; `settings` go to each."""

    def __init__(
        self,
        root: Path,
        size: int,
        *,
        with_files: bool,
        flush: bool,
        tls: PeerTls | None = None,
        **settings: object,
    ) -> None:
        self.with_files = with_files
        self.flush = flush
        self.tls = tls
        scheme = "tcp" if tls is None else "tls"
        self.addresses = {
            f"n{number}": str(Address(scheme, "127.0.0.1", free_port())) for number in range(size)
        }
        self.members = {name: Member(name, root) for name in self.addresses}
        self.settings: dict[str, object] = {**FAST, "heartbeats_missed_max": 600, **settings}

    async def start(self, name: str) -> Member:
        member = self.members[name]
        settings = RaftSettings(group="g", self_id=name, peers=self.addresses, **self.settings)  # type: ignore[arg-type]
        member.committed_index = -1
        if self.with_files:
            member.files = LedgerFiles(
                member.root, CommitLogConfig(segment_bytes=FILE_BYTES), check=accept_any
            )
            member.files.open()
        member.peer = Peer(
            settings,
            member.files or member.ledger,
            member.root,
            OsDisk(),
            member,
            listen=Address.parse(self.addresses[name]),
            listen_options=self.tls.listen if self.tls else None,
            connect_options=self.tls.connect if self.tls else None,
            allowed_names=self.tls.names if self.tls else frozenset(),
            flush=self.flush,
        )
        member.peer._now_ms = member.now_ms  # type: ignore[method-assign] # a clock that can jump
        await member.peer.start()
        return member

    async def stop(self, name: str) -> None:
        """Stop a peer. If it is the leader, the others elect a new one at once."""
        peer = self.members[name].peer
        is_leader = peer is not None and peer._is_running and peer.state.role is Role.LEADER
        await self._stop(name)
        if is_leader:
            await self.end_silence(*self.running)

    async def end_silence(self, *members: Member) -> None:
        """Move the clocks of these past the election timeout, and a leader's wait for its majority."""
        for _ in range(100):  # until pushes of a stopped leader have arrived
            await asyncio.sleep(0)
        peers = [(member, member.peer) for member in members if member.peer is not None]
        for member, peer in peers:
            member.leapt_ms += peer.settings.election_timeout_ms + 1
        for _, peer in peers:  # all at once: a peer that still follows would refuse its vote
            peer._step(Tick())

    async def close(self) -> None:
        """Stop all peers, without an election in between."""
        for name in self.members:
            await self._stop(name)

    async def _stop(self, name: str) -> None:
        member = self.members[name]
        if member.peer is not None:
            await member.peer.close()
            member.peer = None
            if member.files is not None:
                member.files.close()

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members.values() if member.peer is not None]

    def leaders(self) -> list[Member]:
        return [member for member in self.running if member.peer and member.peer.state.role is Role.LEADER]

    async def leader(self) -> tuple[Member, Peer]:
        """The leader, once all running peers agree."""
        await until(lambda: self._agreed() is not None)
        member = self._agreed()
        assert member is not None
        assert member.peer is not None
        return member, member.peer

    def _agreed(self) -> Member | None:
        names = {member.peer.state.leader_id for member in self.running if member.peer}
        (name,) = names if len(names) == 1 else (None,)
        found = None if name is None else self.members[name]
        return found if found in self.leaders() else None

    async def append(self, peer: Peer, *bodies: bytes) -> Entry:
        """Append at a leader; return the last entry, once it is committed."""
        entry = [peer.append(body) for body in bodies][-1]
        await until(lambda: peer.committed_index >= entry.index)
        return entry


@asynccontextmanager
async def group(
    root: Path,
    size: int = 3,
    *,
    with_files: bool = False,
    flush: bool = True,
    tls: PeerTls | None = None,
    **settings: object,
) -> AsyncIterator[Group]:
    """A running group."""
    made = Group(root, size, with_files=with_files, flush=flush, tls=tls, **settings)
    try:
        for name in made.members:
            await made.start(name)
        yield made
    finally:
        await made.close()
