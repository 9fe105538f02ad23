"""Power cuts of a whole DLedger group: `python -m tests.crash.group_power --cuts 20`.

Three peers use sockets, and disks that record which data were flushed. Entries are appended at the leader
until power fails for all peers at once. Each disk keeps its flushed data and some of the rest. After the
restart, the next leader must have every acknowledged entry at its index.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import sys
import threading
from collections.abc import Container
from pathlib import Path
from random import Random
from typing import Any

from rocketpy.errors import InvariantError, ReplicationError, StoreError
from rocketpy.transport import Address
from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.raft_state import Role
from rocketpy_broker.replication.dledger.core.settings import RaftSettings
from rocketpy_broker.replication.dledger.peer import Peer, PeerState
from rocketpy_broker.replication.dledger.storage.ledger_files import LedgerFiles
from rocketpy_broker.store import CommitLogConfig
from tests.crash.disk import RecordingDisk
from tests.integration.raft_group import FAST
from tests.interop.processes import free_port
from tests.waiting import until

_DIRECTORY = Path("/store/dledger")
_FILE_BYTES = 16_384
_SENDERS = 6
_NO_OP = b"no-op"


class _SharedDisk(RecordingDisk):
    """A disk with a lock, because the event loop and the flush thread of a peer use it at the same time."""

    def __init__(self, image: RecordingDisk | None = None) -> None:
        super().__init__()
        self.mutex = threading.RLock()
        if image is not None:
            self._nodes, self._next_inode, self._token = image._nodes, image._next_inode, image._token

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name in {"mutex", "before", "calls"}:
            return found
        mutex = super().__getattribute__("mutex")

        def locked(*arguments: Any, **keywords: Any) -> Any:
            with mutex:
                return found(*arguments, **keywords)

        return locked


class _Member:
    """One peer between two power cuts."""

    def __init__(self, name: str, peers: dict[str, str], disk: _SharedDisk, bodies: Container[bytes]) -> None:
        self.name, self.disk = name, disk
        config = CommitLogConfig(segment_bytes=_FILE_BYTES, reserve_bytes=0)

        def check(entry: Entry) -> str:
            return "" if entry.body in bodies else "a body that nobody appended"

        self.files = LedgerFiles(_DIRECTORY, config, disk=disk, check=check, index_file_bytes=32 * 64)
        self.files.open()
        timings: dict[str, Any] = {**FAST, "file_bytes": _FILE_BYTES, "no_op": lambda _: _NO_OP}
        settings = RaftSettings(group="g", self_id=name, peers=peers, **timings)
        listen = Address.parse(peers[name])
        self.peer = Peer(settings, self.files, _DIRECTORY, disk, self, listen=listen)

    def committed(self, index: int) -> None:
        """Do nothing: the code that waits checks the committed index."""

    def changed(self, state: PeerState) -> None:
        """Do nothing: the code that waits checks the state."""

    def failed(self, error: StoreError | InvariantError) -> None:
        raise error


class PowerCuts:
    """acked: body by index. problems: descriptions of violated promises."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.acked: dict[int, bytes] = {}
        self.problems: list[str] = []
        self.torn = 0
        """Number of disks that lost data."""
        self._numbers = itertools.count()
        self._bodies = {_NO_OP}
        """All bodies ever appended: recovery accepts no other, like records with a wrong checksum."""
        self._peers = {f"n{number}": f"127.0.0.1:{free_port()}" for number in range(3)}
        self._disks = {name: _SharedDisk() for name in self._peers}
        for disk in self._disks.values():
            disk.make_dir(_DIRECTORY.parent)
            disk.make_durable()

    async def run(self, *, cut: bool = True) -> None:
        """One round: start, check earlier acknowledged entries, and with `cut` append, then cut all power."""
        self._members = {
            name: _Member(name, self._peers, disk, self._bodies) for name, disk in self._disks.items()
        }
        for member in self._members.values():
            await member.peer.start()
        try:
            await until(lambda: self._ready() is not None)
            self._look()
            if not cut:
                return
            load = [asyncio.create_task(self._append()) for _ in range(_SENDERS)]
            count = len(self.acked) + self.random.randrange(1, 400)
            await until(lambda: len(self.acked) >= count or any(task.done() for task in load))
            self._cut()
            for task in load:
                task.cancel()
            for end in await asyncio.gather(*load, return_exceptions=True):
                if isinstance(end, Exception):
                    raise end
        finally:
            for member in self._members.values():
                await member.peer.close()

    def _leader(self) -> _Member | None:
        members = self._members.values()
        return next((member for member in members if member.peer.state.role is Role.LEADER), None)

    def _ready(self) -> _Member | None:
        """The leader, once it has committed all entries that it had at its start."""
        leader = self._leader()
        if leader is None or leader.peer.committed_index < leader.peer.end_index:
            return None
        return leader

    def _look(self) -> None:
        leader = self._ready()
        assert leader is not None
        for index, body in self.acked.items():
            held = leader.files.get(index).body if index <= leader.files.end_index else None
            if held != body:
                self.problems.append(f"{leader.name} leads, and has {held!r:.40} at {index} for {body!r:.40}")

    async def _append(self) -> None:
        """Append one entry after the other, and record those acknowledged before the power failed."""
        disks = self._disks
        while self._disks is disks:
            leader = self._leader()
            if leader is None:
                await asyncio.sleep(0.005)
                continue
            body = b"entry %d " % next(self._numbers) + b"." * self.random.choice((0, 100, 1000, 3000))
            self._bodies.add(body)
            state = leader.peer.state
            with contextlib.suppress(ReplicationError):
                entry = leader.peer.append(body)
                while leader.peer.state == state and leader.peer.committed_index < entry.index:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                if leader.peer.state == state and self._disks is disks:
                    self.acked[entry.index] = body

    def _cut(self) -> None:
        images = {}
        for name, disk in self._disks.items():
            with disk.mutex:
                image = disk.after_power_loss(self.random if self.random.random() < 0.8 else None)
                self.torn += image.files() != disk.files()
            images[name] = _SharedDisk(image)
        self._disks = images


async def _run(cuts: int, seed: int) -> PowerCuts:
    rounds = PowerCuts(Random(seed))
    for number in range(cuts + 1):
        await rounds.run(cut=number < cuts)
    return rounds


def main() -> int:
    """Run; 0 when every promise held."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.group_power", description=__doc__)
    parser.add_argument("--cuts", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rounds = asyncio.run(_run(options.cuts, options.seed))
    for problem in rounds.problems[:20]:
        print(problem)
    print(
        f"{options.cuts} power cuts of 3 peers, {rounds.torn} disks lost something, "
        f"{len(rounds.acked)} entries acknowledged, {len(rounds.problems)} lost"
    )
    return 1 if rounds.problems or not rounds.acked else 0


if __name__ == "__main__":
    sys.exit(main())
