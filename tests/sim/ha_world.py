"""A master and its slaves with real stores; a seed determines disks, clocks and network.

Two slaves are ours. In addition there are up to two that behave like RocketMQ's (`ha_plain`). The world has
these faults, which the design survives: connections break, and bytes are late and split anywhere. Machines
pause, and processes are killed between any two disk calls. Disks are full. A master fails permanently, and
the slave of the highest rank is promoted. The old master returns as its slave, at once or after it served its
own clients in isolation. Where masters and slaves flush before they acknowledge (`flushes`), any of them, or
all at once, lose power. Some other worlds have power loss too, and must converge without the lost data
(decision 0007).

A message is acknowledged when a SYNC_MASTER responds SEND_OK. The design does not cover two cases: a
promotion where only RocketMQ's slaves have a message, since they cannot be promoted; and a RocketMQ slave
with more data than a master that lost some: it is emptied, as the guide says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from rocketpy_broker.replication.ha.epochs import rank
from rocketpy_broker.replication.ha.log import StoreSource
from rocketpy_broker.replication.ha.master import Close, DataReceived, Effect, MasterSession, Poll, Send
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.replication.ha.slave import SlaveSession
from rocketpy_broker.store import MessageStore
from tests.sim.ha_node import Node, Sent
from tests.sim.ha_plain import PlainNode, PlainSession
from tests.unit.store.helpers import log_bytes

Slave = Node | PlainNode


@dataclass
class Wire:
    """One connection: bytes on their way, oldest first, with when they arrive."""

    slave: SlaveSession | PlainSession
    master: MasterSession
    to_master: deque[tuple[float, bytes]] = field(default_factory=deque)
    to_slave: deque[tuple[float, bytes]] = field(default_factory=deque)


def _is_copy(slave: Slave, wire: Wire) -> bool:
    """Whether a slave has exactly this master's log."""
    if isinstance(wire.slave, SlaveSession):
        return wire.slave.is_copying and wire.slave.is_joined
    return wire.slave.is_copying and isinstance(slave, PlainNode) and slave.parted_at is None


class World:
    """Everything that a seed decides."""

    def __init__(self, seed: int, *, steps: int = 250) -> None:
        self.rng = Random(seed)
        self.now = 1_000_000.0
        self.flushes = self.rng.random() < 0.5
        self.power_fails = self.flushes or self.rng.random() < 0.3
        self.settings = HaSettings(
            wants_flushed=self.flushes,
            batch_bytes=self.rng.choice((100, 1000, 32768)),
            secret=self.rng.choice(("", "secret")),
        )
        self.steps = steps
        self.burst_bytes = self.rng.choice((1, 2000, 1 << 20))
        self.rate = {
            name: self.rng.choice((0.0, low, 5 * low))
            for name, low in (
                ("break", 0.02),
                ("cut", 0.01),
                ("stand", 0.01),
                ("kill", 0.01),
                ("full", 0.01),
                ("lost", 0.006),
                ("empty", 0.01),
            )
        }
        self.texts = 0
        self.sends = 0
        self.acked: list[Sent] = []
        self.bodies: set[bytes] = set()
        self.wires: dict[Slave, Wire] = {}
        self.nodes = [Node(self, number) for number in range(3)]
        self.plain = [PlainNode(self, 3 + number) for number in range(self.rng.choice((0, 1, 2)))]
        self.all: list[Slave] = [*self.nodes, *self.plain]
        self.joined_only = self.rng.random() < 0.5
        """haHandshakeRequired: slaves of RocketMQ's make no message safe."""
        if self.plain and not self.joined_only:
            self.rate["lost"] = 0.0  # who may be promoted need not have what they have
        self.report_ms = self.rng.choice((20, 200))
        """haSendHeartbeatInterval of RocketMQ's slaves; 5 s is more than most worlds last."""
        self.behind_bytes_max = self.rng.choice((5000, 1 << 30))
        self.timeout_ms = self.rng.choice((300, 5000))
        self.master = self.nodes[0]
        self.alone: Node | None = None
        """A master that only its own clients can reach."""
        self.alone_until = 0.0
        self.promotions = 0
        for node in self.nodes:
            node.start()

    def text(self) -> str:
        self.texts += 1
        return f"text {self.texts}"

    # -- time ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Faults, then none: all nodes must converge."""
        for _ in range(self.steps):
            self.step(faults=True)
        self.rate = dict.fromkeys(self.rate, 0.0)
        if self.alone is not None:
            self.alone.die()
        for each in self.all:
            each.stands_until = each.cut_until = 0.0
        for node in self.nodes:
            node.full_until = 0.0
            node.crash_at = 0
        for _ in range(600):
            self.step(faults=False)
            if self._is_healed():
                return
        raise AssertionError(f"not healed: {[self._end_of(each) for each in self.all]}")

    def step(self, *, faults: bool) -> None:
        self.now += self.rng.choice((1, 5, 20, 100))
        if faults:
            self._fault()
        for each in self.all:
            if not each.is_running and (not faults or self.rng.random() < 0.1):
                each.start()
        if faults:
            self._clients()
        self._look_after_plain(always=not faults)
        for each in self.all:
            each.work()
        for each in self.all:
            if each not in (self.master, self.alone):
                self._replicate(each)
        self._check_slaves()
        for node in self.nodes:
            node.check_shown()

    def _clients(self) -> None:
        """Messages for the master, and for one that is left alone."""
        if self.master.is_awake:
            self.master.run(self.master.take_sends)
        if self.alone is not None and self.alone.is_awake:
            self.alone.run(self.alone.take_sends)
        if self.alone is not None and self.alone_until <= self.now:
            self.alone.die()

    def _end_of(self, each: Slave) -> int:
        if isinstance(each, PlainNode):
            return each.max_offset
        return each.store.max_physical_offset if each.store is not None else -1

    def _is_healed(self) -> bool:
        copies = self.nodes if self.settings.secret else self.all
        ends = {self._end_of(each) for each in copies}
        copying = [each for each, wire in self.wires.items() if wire.slave.is_copying]
        is_waiting = any(node.is_waiting for node in self.nodes)
        return len(ends) == 1 and len(copying) == len(copies) - 1 and not is_waiting

    def acknowledge(self, master: Node, sends: list[Sent]) -> None:
        """Clients get SEND_OK: a slave has the messages, and a slave of rocketpy where that is required."""
        assert master is self.master
        acked_offset = self.nodes if self.joined_only else self.all
        until = max(each.held_until for each in acked_offset if each is not master)
        assert all(sent.end <= until for sent in sends), "acknowledged, and no slave has it"
        self.acked += sends

    def _check_slaves(self) -> None:
        """No slave has, or shows, records that power loss can remove from its master (I5).

        One of ours that takes its master for RocketMQ's, because the handshake was lost, may have been master
        itself, and have more than this one; it is refused.
        """
        store = self.master.store
        if self.flushes and store is not None:
            copies = [slave for slave, wire in self.wires.items() if _is_copy(slave, wire)]
            ahead = [each.number for each in copies if self._end_of(each) > store.flushed_offset]
            assert not ahead, f"{ahead} have what the master has not flushed (I5)"

    # -- slaves of RocketMQ's -----------------------------------------------------------------

    def begins_to_lead(self, master: Node, end: int) -> None:
        """There is a master with this log: other records of the slaves may not be in its log."""
        for plain in self.plain:
            plain.part(master.epochs.state.epochs, end)

    def check_plain(self, master: MessageStore) -> None:
        """Each is a copy of the master's log as far as it can be; without the secret it has nothing."""
        log = log_bytes(master)
        for plain in self.plain:
            assert not (self.settings.secret and plain.log), "a slave without the secret was served"
            plain.check(log, master.min_physical_offset)

    def _look_after_plain(self, *, always: bool) -> None:
        """The operator empties the store of a slave whose log differs, and sometimes of another."""
        for plain in self.plain:
            if plain.parted_at is not None if always else self.rng.random() < self.rate["empty"]:
                if self.master.store is not None:
                    self.check_plain(self.master.store)
                plain.empty()

    # -- faults -------------------------------------------------------------------------------

    def _fault(self) -> None:
        happens = {name for name, rate in self.rate.items() if self.rng.random() < rate}
        each = self.rng.choice(self.all)
        later = self.now + self.rng.choice((50, 500, 3000, 25_000))
        if "break" in happens:
            self.forget_wires(each)
        if "cut" in happens:
            each.cut_until = later
        if "stand" in happens:
            each.stands_until = later
        if "full" in happens and isinstance(each, Node):
            each.full_until = self.now + 300
        if "kill" in happens and each.is_running:
            if isinstance(each, PlainNode) or self.rng.random() < 0.5:
                each.die()
            else:
                each.crash_at = each.disk.calls + self.rng.randrange(1, 12)
        if self.power_fails and self.rng.random() < self.rate["kill"] / 10:
            for one in self.all:
                one.die()
        if "lost" in happens:
            self.promote()

    def promote(self) -> None:
        """The master is gone; the operator checks all slaves and promotes the one of the highest rank."""
        slaves = [node for node in self.nodes if node is not self.master]
        if not any(node.epochs.state.epochs for node in slaves):
            return  # none has ever followed it: `promote` refuses that
        if self.alone is not None:
            self.alone.die()
        if self.master.store is None or self.rng.random() < 0.5:
            self.master.die()
        else:
            self.alone, self.alone_until = self.master, self.now + self.rng.choice((100, 2000))
            self.forget_wires(self.master)  # no slave is left to wait for
        for slave in slaves:
            slave.die()
            slave.full_until = 0.0
            slave.start()
        slaves = [slave for slave in slaves if slave.epochs.state.epochs]
        if not slaves:  # power loss took an empty store with its epochs: the old master starts again
            self.alone = None
            return
        self.master = max(slaves, key=self.rank_of)
        store = self.master.store
        assert store is not None
        self.master.epochs.promote(store.max_physical_offset, self.text(), int(self.now))
        self.master.begin_to_lead()
        self.promotions += 1

    def rank_of(self, node: Node) -> tuple[int, int]:
        assert node.store is not None
        return rank(node.epochs.state, node.store.max_physical_offset)

    # -- network ------------------------------------------------------------------------------

    def forget_wires(self, node: Slave) -> None:
        """Every connection of a node breaks."""
        for slave in [slave for slave in self.wires if node in (slave, self.master)]:
            self._forget(slave)

    def _forget(self, slave: Slave) -> None:
        self.master.connected.remove(self.wires.pop(slave).master)

    def _replicate(self, slave: Slave) -> None:
        master = self.master
        is_cut = max(slave.cut_until, master.cut_until) > self.now
        if is_cut or not slave.is_running or not master.is_running:
            if slave in self.wires and self.rng.random() < 0.05:
                self._forget(slave)
            return
        wire = self.wires.get(slave)
        if wire is None:
            if slave.is_awake and master.is_awake and slave.retry_at <= self.now:
                slave.retry_at = self.now + self.rng.choice((10, 200))
                self.wires[slave] = self._connect(slave)
            return
        if slave.is_awake:
            self._send_due(slave, slave, wire.to_slave, wire.slave.step, wire.to_master)
        if self.wires.get(slave) is wire and master.is_awake:
            self._send_due(master, slave, wire.to_master, wire.master.step, wire.to_slave)

    def _connect(self, slave: Slave) -> Wire:
        assert self.master.store is not None
        source = StoreSource(self.master.store, self.master.epochs)
        wire = Wire(slave.open_session(), MasterSession(source, self.settings, self.text(), self.now))
        self.master.connected.add(wire.master, str(slave.number))
        return wire

    def _arrived(self, arriving: deque[tuple[float, bytes]]) -> list[DataReceived]:
        """The bytes that have arrived, split at random."""
        events: list[DataReceived] = []
        while arriving and arriving[0][0] <= self.now:
            _, data = arriving.popleft()
            cut = self.rng.randrange(len(data) + 1)
            events += [DataReceived(piece) for piece in (data[:cut], data[cut:]) if piece]
        return events

    def _send_due(
        self,
        node: Slave,
        slave: Slave,
        arriving: deque[tuple[float, bytes]],
        step: Callable[[DataReceived | Poll, float], list[Effect]],
        leaving: deque[tuple[float, bytes]],
    ) -> None:
        """Let one end of a slave's connection read the arrived bytes, and send its responses."""
        events: list[DataReceived | Poll] = [
            Poll(self.rng.choice((0, 2000, 1 << 20))),
            *self._arrived(arriving),
        ]
        wire, message = self.wires[slave], bytearray()
        closed: list[Close] = []

        def work() -> None:
            for event in events:
                for effect in step(event, self.now):
                    if isinstance(effect, Send):
                        message.extend(effect.data)
                    elif isinstance(effect, Close):
                        closed.append(effect)
                    else:
                        node.acked()

        node.speak(work)
        for close in closed:
            assert not close.is_final, close.reason
        if closed:
            if self.wires.get(slave) is wire:
                self._forget(slave)
        elif message:
            leaving.append((self.now + self.rng.choice((0, 1, 10, 200)), bytes(message)))
