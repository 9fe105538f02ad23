r"""Plays a text of `tests/scenarios` in a world without faults. One command a line, `#` begins a comment.

| command | does |
|---|---|
| ``group SIZE [no-op]`` | makes the group; with `no-op`, leaders begin their terms with an entry |
| ``holds PEER term T TERM:BODY …`` | restarts that peer in that term and with that ledger |
| ``elect PEER`` | lets time pass for that peer only, until it leads |
| ``campaign PEER`` | lets time pass for that peer only, for 20 s |
| ``run PEER`` | lets time pass for that peer only, for 3 s: a leader pushes, nobody else stands |
| ``run-until PEER INDEX`` | lets messages travel until that peer holds an entry |
| ``append PEER BODY`` | a client appends |
| ``cut PEER from PEER …`` / ``heal`` | nothing goes between them / everything gets through |
| ``crash PEER`` / ``start PEER`` | power fails / comes back |
| ``push PEER from PEER term T TYPE [INDEX] commit C`` | a push arrives late; the entry is the sender's |
| ``expect PEER TERM:BODY … \\| committed INDEX`` | what its ledger holds |
| ``expect-not-leading PEER`` | it does not lead |
| ``expect-leading PEER TERM`` | it leads that term |
"""

from __future__ import annotations

from pathlib import Path

from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.log_view import Write
from rocketpy_broker.replication.dledger.core.messages import PushEntryRequest, PushType
from rocketpy_broker.replication.dledger.core.raft_state import Role, TermState
from tests.sim.raft_check import Violation
from tests.sim.raft_world import TICK_MS, World


def play(path: Path) -> World:
    """Play a scenario. Raises Violation naming the line that failed."""
    script = _Script()
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        command, *words = line.split("#", 1)[0].split() or [""]
        if not command:
            continue
        try:
            getattr(script, command.replace("-", "_"))(*words)
        except Exception as error:
            raise Violation(f"{path.name}:{number}: {line}: {error!r}") from error
    return script.world


class _Script:
    """The commands of a scenario; each is a method."""

    world: World

    def group(self, size: str, no_op: str = "") -> None:
        self.world = World(1, int(size), no_op=(lambda pos: no_op.encode()) if no_op else None)
        self.world.ticking = set()

    def holds(self, name: str, _term: str, term: str, *words: str) -> None:
        disk = self.world.peers[name].disk
        entries: list[Entry] = []
        for index, (of, body) in enumerate(word.split(":") for word in words):
            pos = entries[-1].end_pos if entries else 0
            entries.append(Entry.of(index, int(of), pos, body.encode()))
            self.world.checker.known.add(body.encode())
        disk.write(TermState(int(term)), Write(is_reset=True, truncate_after=None, entries=tuple(entries)))
        disk.flush()
        self.world.start(name)

    def elect(self, name: str) -> None:
        self.world.ticking = {name}
        for _ in range(40_000 // TICK_MS):
            self.world.run(1)
            node = self.world.peers[name].node
            if node is not None and node.role is Role.LEADER:
                return
        raise Violation(f"{name} was not elected")

    def campaign(self, name: str) -> None:
        self._pass(name, 20_000)

    def run(self, name: str) -> None:
        self._pass(name, 3000)

    def _pass(self, name: str, milliseconds: int) -> None:
        self.world.ticking = {name}
        self.world.run(milliseconds // TICK_MS)

    def run_until(self, name: str, index: str) -> None:
        for _ in range(100):
            self.world.run(1)
            if self.world.peers[name].disk.end_index >= int(index):
                return
        raise Violation(f"{name} has no entry {index}")

    def append(self, name: str, body: str) -> None:
        self.world.propose(name, body.encode())
        self.world.ticking = set()
        self.world.run(2)

    def cut(self, name: str, _from: str, *others: str) -> None:
        for other in others:
            self.world.cut |= {(name, other), (other, name)}

    def heal(self) -> None:
        self.world.cut = set()

    def crash(self, name: str) -> None:
        self.world.crash(name)
        self.world.peers[name].down_until = -1.0

    def start(self, name: str) -> None:
        self.world.start(name)

    def push(self, name: str, _from: str, sender: str, _term: str, term: str, kind: str, *words: str) -> None:
        *index, _commit, commit = words
        request = PushEntryRequest(
            commit_index=int(commit),
            entry=self.world.peers[sender].disk.get(int(index[0])) if index else None,
            group="g",
            leader_id=sender,
            remote_id=name,
            term=int(term),
            type=PushType(kind),
        )
        self.world.push(name, request)
        self.world.ticking = set()
        self.world.run(4)

    def expect(self, name: str, *words: str) -> None:
        peer = self.world.peers[name]
        held = [f"{entry.term}:{entry.body.decode()}" for entry in peer.disk.entries]
        committed = peer.node.state.committed_index if peer.node is not None else -1
        seen = " ".join([*held, "| committed", str(committed)])
        if seen != " ".join(words):
            raise Violation(f"{name} holds {seen}")

    def expect_not_leading(self, name: str) -> None:
        node = self.world.peers[name].node
        if node is not None and node.role is Role.LEADER:
            raise Violation(f"{name} leads term {node.state.term}")

    def expect_leading(self, name: str, term: str) -> None:
        node = self.world.peers[name].node
        if node is None or node.role is not Role.LEADER or node.state.term != int(term):
            raise Violation(f"{name} does not lead term {term}")
