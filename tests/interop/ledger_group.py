"""A DLedger group of brokers of either make, as processes.

with LedgerGroup(run, namesrv.address, ["java", "java", "our"], peer) as group: ...
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from rocketpy import AdminClient
from rocketpy.errors import RocketError
from rocketpy_broker.replication.dledger.core.entry import Blank, Entry, decode_entry
from tests.interop import probe
from tests.interop.cluster import Make, new_broker, stopping
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import HOST, BrokerProcess, free_port

GROUP: Final = "RaftNode00"
_FILE_BYTES: Final = 4 << 20


class NewBroker(Protocol):
    """Makes a broker, not started."""

    def __call__(
        self, *, make: Make, run: Path, namesrv: str, conf: Mapping[str, object]
    ) -> BrokerProcess: ...


_BOOT_S: Final = 240


class LedgerGroup:
    """Peers `n0`, `n1`, … of the given makes, in this order; the brokers have the name GROUP.

    peer: the RocketMQ version of Java's brokers. conf: broker.conf of every peer. new: creates the brokers
    instead of `new_broker`.
    """

    def __init__(
        self,
        run: Path,
        namesrv: str,
        makes: Sequence[Make],
        peer: JavaPeer | None = None,
        *,
        conf: Mapping[str, object] | None = None,
        file_bytes: int = _FILE_BYTES,
        new: NewBroker | None = None,
    ) -> None:
        self.namesrv = namesrv
        self.file_bytes = file_bytes
        self.makes: dict[str, Make] = {f"n{number}": make for number, make in enumerate(makes)}
        self._raft = {peer_id: f"{HOST}:{free_port()}" for peer_id in self.makes}
        peers = ";".join(f"{peer_id}-{address}" for peer_id, address in self._raft.items())
        ledger = {
            "brokerName": GROUP,
            "enableDLegerCommitLog": "true",
            "dLegerGroup": GROUP,
            "dLegerPeers": peers,
            "mappedFileSizeCommitLog": file_bytes,
            **(conf or {}),
        }
        self.brokers: dict[str, BrokerProcess] = {
            peer_id: (new or partial(new_broker, peer=peer))(
                make=make, run=run / peer_id, namesrv=namesrv, conf={**ledger, "dLegerSelfId": peer_id}
            )
            for peer_id, make in self.makes.items()
        }

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(stopping(list(self.brokers.values())))
        try:
            for broker in self.brokers.values():
                broker.start(_BOOT_S)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def leader(self) -> str | None:
        """The peer that reports itself as the leader; None if no peer or several do."""
        leading = []
        for peer_id, broker in self.brokers.items():
            with contextlib.suppress(OSError):
                if broker.is_running and probe.raft_leader(self._raft[peer_id], GROUP, peer_id) == peer_id:
                    leading.append(peer_id)
        return leading[0] if len(leading) == 1 else None

    def master(self) -> str | None:
        """The running peer that the name server has as the master; None if there is none."""
        address = probe.master(self.namesrv, GROUP)
        running = (name for name, broker in self.brokers.items() if broker.is_running)
        return next((name for name in running if self.brokers[name].address == address), None)

    async def make_topic(self, topic: str, queues: int) -> None:
        """Create a topic at the leader; repeat it if the leader changed before name servers knew it."""
        until = time.monotonic() + _BOOT_S
        while True:
            try:
                async with AdminClient(self.namesrv) as admin:
                    await admin.create_topic(topic, queues)
                    return
            except RocketError:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(0.5)

    def entries(self, peer_id: str) -> list[Entry]:
        """The present content of a peer's data files."""
        return entries_of(self.brokers[peer_id].store / f"dledger-{peer_id}" / "data", self.file_bytes)

    def are_equal(self) -> bool:
        """Whether all peers hold the same entries; a peer may still be writing."""
        ledgers = [self.entries(peer_id) for peer_id in self.brokers]
        return bool(ledgers[0]) and all(ledger == ledgers[0] for ledger in ledgers[1:])

    def logs(self) -> str:
        """Return the last log lines of every peer."""
        return "\n".join(broker.logs() for broker in self.brokers.values())


def entries_of(data: Path, file_bytes: int) -> list[Entry]:
    """Read the entries of data files up to the end of the ledger. Raises RecordCorrupt."""
    entries: list[Entry] = []
    for path in sorted(data.glob("0*")):
        held, start, at = path.read_bytes(), int(path.name), 0
        while at + 8 <= file_bytes and any(held[at : at + 8]):
            found = decode_entry(held, at, start + at)
            if isinstance(found, Blank):
                break
            entries.append(found)
            at += found.size
        else:
            break
    return entries
