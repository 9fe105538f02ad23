"""A master and two slaves with real stores on disks, clocks and a network that a seed makes up.

What the design survives, and the world does: connections that break, and bytes that come late and cut
anywhere; machines that stand still; processes killed between any two calls to the disk; full disks; the
master gone for good, with the slave of the highest rank promoted and the old master back as its slave, at
once or after it went on with clients of its own, out of everybody else's sight. Where masters and slaves
flush before they acknowledge (`flushes`), also power loss of any, and of all at once.

A message counts as acknowledged as a SYNC_MASTER answers it. Beyond this design: the power loss of a master
that does not flush and comes back as the master (decision 0007).
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from rocketpy.errors import FlushFailed, StoreError
from rocketpy_broker.ha.epochs import rank
from rocketpy_broker.ha.log import EpochFile, StoreSource, StoreTarget
from rocketpy_broker.ha.master import Close, Effect, MasterLink, Poll, Received, Send
from rocketpy_broker.ha.progress import Progress
from rocketpy_broker.ha.settings import LinkSettings
from rocketpy_broker.ha.slave import SlaveLink
from rocketpy_broker.store import (
    CommitLogConfig,
    ConsumeQueueConfig,
    FlushConfig,
    FlushDiskType,
    IndexConfig,
    MessageInner,
    MessageStore,
    StoreConfig,
)
from rocketpy_broker.store.backlog import Backlog
from rocketpy_broker.store.store_lock import StoreLock
from tests.crash.disk import Crash, Operation, RecordingDisk

ROOT = Path("/store")
CONFIG = StoreConfig(
    root=ROOT,
    commit_log=CommitLogConfig(segment_bytes=8192, reserve_bytes=0),
    consume_queue=ConsumeQueueConfig(segment_bytes=1000),
    index=IndexConfig(slots=16, entries=64),
)
FLUSHES = replace(CONFIG, flush=FlushConfig(disk_type=FlushDiskType.SYNC_FLUSH))


class Sent(NamedTuple):
    """A message and where its master put it."""

    body: bytes
    queue_id: int
    queue_offset: int
    position: int
    end: int


@dataclass
class Wire:
    """One connection: bytes on their way, oldest first, with when they arrive."""

    slave: SlaveLink
    master: MasterLink
    to_master: deque[tuple[float, bytes]] = field(default_factory=deque)
    to_slave: deque[tuple[float, bytes]] = field(default_factory=deque)


class Node:
    """One broker: a disk, and a store while it runs."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.disk = RecordingDisk(lambda: int(world.now))
        self.store: MessageStore | None = None
        self.epochs = EpochFile(self.disk, ROOT / "config" / "haEpochs.json")
        self.backlog: Backlog | None = None
        self.stands_until = 0.0
        self.cut_until = 0.0
        self.full_until = 0.0
        self.crash_at = 0
        """Number of the disk call before which the process dies; 0: none."""
        self.retry_at = 0.0

    @property
    def is_awake(self) -> bool:
        return self.store is not None and self.stands_until <= self.world.now

    def start(self) -> None:
        """Open the store, whatever the last end left; recovery may die too, and is started again."""
        for _ in range(20):
            StoreLock._held.clear()  # the other nodes' directories have the same name
            self.disk.before = self._before
            config = FLUSHES if self.world.flushes else CONFIG
            store = MessageStore(config, clock=lambda: int(self.world.now), disk=self.disk)
            epochs = EpochFile(self.disk, ROOT / "config" / "haEpochs.json")
            try:
                report = store.open()
                epochs.load()
                if self.world.master is self:
                    epochs.lead(
                        store.max_physical_offset,
                        self.world.text(),
                        int(self.world.now),
                        is_clean=report.clean,
                    )
                else:
                    epochs.follow()
            except Crash:
                self.crash_at = 0
                self._lose()
                continue
            except StoreError:
                if not self.full_until:
                    raise
                self.full_until = 0.0
                self._lose()
                continue
            self.store, self.epochs = store, epochs
            self.backlog = Backlog(store, rush_bytes=self.world.rush_bytes)
            return
        raise AssertionError("a store that cannot be opened")

    def _before(self, operation: Operation) -> None:
        if self.crash_at and self.disk.calls >= self.crash_at:
            raise Crash
        if operation.kind == "pwrite" and self.world.now < self.full_until:
            raise OSError(errno.ENOSPC, "the simulated disk is full")

    def _lose(self) -> None:
        """What a dead process leaves; with power loss, less."""
        if self.world.flushes and self.world.chance.random() < 0.5:
            self.disk = self.disk.after_power_loss(self.world.chance)
        else:
            self.disk = self.disk.copy()

    def dispatch(self, store: MessageStore) -> None:
        """Bring queues and index up to what was written or copied."""
        store.dispatch()
        if self.backlog is not None:
            self.backlog.work()

    def die(self) -> None:
        """The process ends at once."""
        if self.store is not None:
            self.store = None
            self.crash_at = 0
            self._lose()
            if self.world.alone is self:
                self.world.alone = None
            self.world.forget_wires(self)
            if self.world.master is self:
                self.world.pending.clear()  # their senders are never answered

    def run(self, work: Callable[[MessageStore], object]) -> None:
        """Do something with the store, in which the process may die or its disk fail."""
        work_store = self.store
        if work_store is None:
            return
        try:
            work(work_store)
        except Crash:
            self.die()
            return
        except FlushFailed:
            self.die()
            return
        except StoreError:  # a queue that could not be written: not final
            assert self.full_until
        failure = work_store.failure
        if failure is not None:
            assert self.full_until, f"node {self.number}: {failure}"
            self.die()


class World:
    """Everything that a seed decides."""

    def __init__(self, seed: int, *, steps: int = 250) -> None:
        self.chance = Random(seed)
        self.now = 1_000_000.0
        self.flushes = self.chance.random() < 0.5
        self.settings = LinkSettings(
            wants_flushed=self.flushes,
            batch_bytes=self.chance.choice((100, 1000, 32768)),
            secret=self.chance.choice(("", "secret")),
        )
        self.steps = steps
        self.rush_bytes = self.chance.choice((1, 2000, 1 << 20))
        self.rate = {
            name: self.chance.choice((0.0, low, 5 * low))
            for name, low in (
                ("break", 0.02),
                ("cut", 0.01),
                ("stand", 0.01),
                ("kill", 0.01),
                ("full", 0.01),
                ("lost", 0.006),
            )
        }
        self.texts = 0
        self.sends = 0
        self.pending: list[Sent] = []
        self.acked: list[Sent] = []
        self.bodies: set[bytes] = set()
        self.wires: dict[Node, Wire] = {}
        self.progress = Progress(behind_bytes_max=1 << 30)
        self.nodes = [Node(self, number) for number in range(3)]
        self.master = self.nodes[0]
        self.alone: Node | None = None
        """A master that nobody but its own clients sees any more."""
        self.alone_until = 0.0
        self.promotions = 0
        for node in self.nodes:
            node.start()

    def text(self) -> str:
        self.texts += 1
        return f"text {self.texts}"

    # -- time ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Faults, then none: everything must come together again."""
        for _ in range(self.steps):
            self.step(faults=True)
        self.rate = dict.fromkeys(self.rate, 0.0)
        if self.alone is not None:
            self.alone.die()
        for node in self.nodes:
            node.stands_until = node.cut_until = node.full_until = 0.0
            node.crash_at = 0
        for _ in range(600):
            self.step(faults=False)
            if self._is_healed():
                return
        raise AssertionError(
            f"not healed: {[node.store and node.store.max_physical_offset for node in self.nodes]}"
        )

    def step(self, *, faults: bool) -> None:
        self.now += self.chance.choice((1, 5, 20, 100))
        if faults:
            self._fault()
        for node in self.nodes:
            if node.store is None and (not faults or self.chance.random() < 0.1):
                node.start()
        if faults:
            self._clients()
        for node in self.nodes:
            if node.is_awake and self.chance.random() < 0.3:
                node.run(self._flush)
            if node.is_awake and self.chance.random() < 0.3:
                node.run(node.dispatch)
        for node in self.nodes:
            if node not in (self.master, self.alone):
                self._replicate(node)
        self._acknowledge()
        self._check_shown()

    def _clients(self) -> None:
        """Messages for the master, and for one that is left alone."""
        if self.master.is_awake:
            self.master.run(self._send)
        if self.alone is not None and self.alone.is_awake:
            self.alone.run(self._place)
        if self.alone is not None and self.alone_until <= self.now:
            self.alone.die()

    def _check_shown(self) -> None:
        """Nobody may read what power loss may take (I5)."""
        for node in self.nodes if self.flushes else ():
            store = node.store
            assert store is None or store.dispatcher.offset <= store.flushed_offset, f"{node.number}: I5"

    def _flush(self, store: MessageStore) -> None:
        store.flush(thorough=self.chance.random() < 0.2)

    def _is_healed(self) -> bool:
        ends = {node.store.max_physical_offset if node.store is not None else -1 for node in self.nodes}
        copying = all(wire.slave.is_copying for wire in self.wires.values())
        return len(ends) == 1 and len(self.wires) == 2 and copying and not self.pending

    # -- clients ------------------------------------------------------------------------------

    def _send(self, store: MessageStore) -> None:
        self.pending += self._place(store)

    def _place(self, store: MessageStore) -> list[Sent]:
        """Let clients send to a master, which does not answer yet."""
        placed = []
        for _ in range(self.chance.randrange(4)):
            self.sends += 1
            body = b"%d " % self.sends + bytes(self.chance.randrange(1, 2000))
            queue_id = self.chance.randrange(2)
            properties = b"KEYS\x01k%d\x02UNIQ_KEY\x01u%d\x02" % (self.sends % 5, self.sends)
            message = MessageInner("T", queue_id, body, properties, born_host=bytes(8))
            receipt = store.append(message)
            end = receipt.physical_offset + receipt.size
            placed.append(Sent(body, queue_id, receipt.queue_offset, receipt.physical_offset, end))
            self.bodies.add(body)
        try:
            store.write_out()
        except StoreError:
            return []
        return placed

    def _acknowledge(self) -> None:
        """As a SYNC_MASTER: answered once a slave has it; and once it is flushed here, too, if that is so."""
        if self.master.store is None:
            return
        until = self.progress.acked
        if self.flushes:
            until = min(until, self.master.store.flushed_offset)
        self.acked += [sent for sent in self.pending if sent.end <= until]
        self.pending = [sent for sent in self.pending if sent.end > until]

    # -- faults -------------------------------------------------------------------------------

    def _fault(self) -> None:
        happens = {name for name, rate in self.rate.items() if self.chance.random() < rate}
        node = self.chance.choice(self.nodes)
        later = self.now + self.chance.choice((50, 500, 3000, 25_000))
        if "break" in happens:
            self.forget_wires(node)
        if "cut" in happens:
            node.cut_until = later
        if "stand" in happens:
            node.stands_until = later
        if "full" in happens:
            node.full_until = self.now + 300
        if "kill" in happens and node.store is not None:
            if self.chance.random() < 0.5:
                node.die()
            else:
                node.crash_at = node.disk.calls + self.chance.randrange(1, 12)
        if self.flushes and self.chance.random() < self.rate["kill"] / 10:
            for each in self.nodes:
                each.die()
        if "lost" in happens:
            self.promote()

    def promote(self) -> None:
        """The master is gone; the operator looks at all slaves and takes the one of the highest rank."""
        slaves = [node for node in self.nodes if node is not self.master]
        if not any(node.epochs.state.epochs for node in slaves):
            return  # none has ever followed it: `promote` refuses that
        if self.alone is not None:
            self.alone.die()
        if self.master.store is None or self.chance.random() < 0.5:
            self.master.die()
        else:
            self.alone, self.alone_until = self.master, self.now + self.chance.choice((100, 2000))
            self.pending.clear()  # nobody is left to wait for
            self.forget_wires(self.master)
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
        self.forget_wires(self.master)
        self.promotions += 1

    def rank_of(self, node: Node) -> tuple[int, int]:
        assert node.store is not None
        return rank(node.epochs.state, node.store.max_physical_offset)

    # -- network ------------------------------------------------------------------------------

    def forget_wires(self, node: Node) -> None:
        """Every connection of a node breaks."""
        for slave in [slave for slave in self.wires if node in (slave, self.master)]:
            self.progress.remove(self.wires.pop(slave).master)

    def _replicate(self, slave: Node) -> None:
        master = self.master
        if max(slave.cut_until, master.cut_until) > self.now or slave.store is None or master.store is None:
            if slave in self.wires and self.chance.random() < 0.05:
                self.progress.remove(self.wires.pop(slave).master)
            return
        wire = self.wires.get(slave)
        if wire is None:
            if slave.is_awake and master.is_awake and slave.retry_at <= self.now:
                slave.retry_at = self.now + self.chance.choice((10, 200))
                self.wires[slave] = self._connect(slave)
            return
        if slave.is_awake:
            self._speak(slave, wire, wire.to_slave, wire.slave.step, wire.to_master)
        if self.wires.get(slave) is wire and master.is_awake:
            self._speak(master, wire, wire.to_master, wire.master.step, wire.to_slave)

    def _connect(self, slave: Node) -> Wire:
        assert slave.store is not None
        assert self.master.store is not None
        link = SlaveLink(
            StoreTarget(slave.store, slave.epochs, slave.backlog),
            self.settings,
            broker_name="b",
            broker_id=slave.number + 1,
            nonce=self.text(),
            now_ms=self.now,
        )
        source = StoreSource(self.master.store, self.master.epochs)
        wire = Wire(link, MasterLink(source, self.settings, self.text(), self.now))
        self.progress.add(wire.master, str(slave.number))
        return wire

    def _speak(
        self,
        node: Node,
        wire: Wire,
        arriving: deque[tuple[float, bytes]],
        step: Callable[[Received | Poll, float], list[Effect]],
        leaving: deque[tuple[float, bytes]],
    ) -> None:
        """Let one end of a connection read what has arrived, and say what it has to say."""
        events: list[Received | Poll] = [Poll(self.chance.choice((0, 2000, 1 << 20)))]
        while arriving and arriving[0][0] <= self.now:
            _, data = arriving.popleft()
            cut = self.chance.randrange(len(data) + 1)
            events += [Received(piece) for piece in (data[:cut], data[cut:]) if piece]
        said = bytearray()
        closed: list[Close] = []

        def work(_: MessageStore) -> None:
            for event in events:
                for effect in step(event, self.now):
                    if isinstance(effect, Send):
                        said.extend(effect.data)
                    elif isinstance(effect, Close):
                        closed.append(effect)

        node.run(work)
        for close in closed:
            assert not close.is_final, close.reason
        if closed:
            self.forget_wires_of(wire)
        elif said:
            leaving.append((self.now + self.chance.choice((0, 1, 10, 200)), bytes(said)))

    def forget_wires_of(self, wire: Wire) -> None:
        for slave, other in list(self.wires.items()):
            if other is wire:
                self.progress.remove(self.wires.pop(slave).master)
