"""One broker of the replication world: a store on its own disk, and its work as a master."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rocketpy.errors import FlushFailed, StoreError
from rocketpy.protocol.codes import ResponseCode
from rocketpy_broker.replication.ha.connected_slaves import ConnectedSlaves
from rocketpy_broker.replication.ha.log import EpochFile, StoreTarget
from rocketpy_broker.replication.ha.slave import SlaveSession
from rocketpy_broker.replication.ha.sync_waiters import ReplicationResult, SyncWaiters
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
from rocketpy_broker.store.files.store_lock import StoreLock
from rocketpy_broker.store.replica.backlog import Backlog
from tests.crash.disk import Crash, Operation, RecordingDisk

if TYPE_CHECKING:
    from tests.sim.ha_world import World

ROOT = Path("/store")
SEGMENT_BYTES = 8192
CONFIG = StoreConfig(
    root=ROOT,
    commit_log=CommitLogConfig(segment_bytes=SEGMENT_BYTES, reserve_bytes=0),
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
        self.connected = ConnectedSlaves(behind_bytes_max=0)
        self.waiting: SyncWaiters[Sent] | None = None
        """Of a master: sends that wait for a slave, and …"""
        self.unflushed: list[tuple[list[Sent], int]] = []
        """… those that wait for the disk before that, with the log offset after them."""
        self.unanswered: set[Sent] = set()
        """The sends of `waiting` and `unflushed`."""
        self._held_before = 0

    @property
    def is_running(self) -> bool:
        return self.store is not None

    @property
    def is_awake(self) -> bool:
        return self.store is not None and self.stands_until <= self.world.now

    @property
    def is_waiting(self) -> bool:
        """Whether a sender has no response, or something is not shown yet."""
        return bool(self.unflushed) or (self.waiting is not None and self.waiting.deadline_ms is not None)

    @property
    def held_until(self) -> int:
        """Records before this offset are as durable here as this world's brokers promise."""
        if self.store is None:
            return self._held_before
        return self.store.flushed_offset if self.world.flushes else self.store.max_physical_offset

    def start(self) -> None:
        """Open the store after any kind of end; recovery may crash, too, and is restarted."""
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
                    end, now_ms = store.max_physical_offset, int(self.world.now)
                    epochs.become_master(end, self.world.text(), now_ms, is_clean=report.clean)
                else:
                    epochs.become_slave()
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
            self.backlog = Backlog(store, burst_bytes=self.world.burst_bytes)
            if self.world.master is self:
                self.begin_to_lead()
            return
        raise AssertionError("a store that cannot be opened")

    def _before(self, operation: Operation) -> None:
        if self.crash_at and self.disk.calls >= self.crash_at:
            raise Crash
        if operation.kind == "pwrite" and self.world.now < self.full_until:
            raise OSError(errno.ENOSPC, "the simulated disk is full")

    def _lose(self) -> None:
        """The disk after a kill; with power loss, less of it."""
        if self.world.power_fails and self.world.rng.random() < 0.5:
            self.disk = self.disk.after_power_loss(self.world.rng)
        else:
            self.disk = self.disk.copy()

    def die(self) -> None:
        """End the process without a clean stop."""
        if self.store is not None:
            self._held_before = self.held_until
            self.store = self.waiting = None
            self.unflushed = []
            self.unanswered = set()  # their senders never get a response
            self.crash_at = 0
            self._lose()
            if self.world.alone is self:
                self.world.alone = None
            self.world.forget_wires(self)

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

    def speak(self, work: Callable[[], None]) -> None:
        """Do something with a connection, which may write; see `run`."""
        self.run(lambda _: work())

    def work(self) -> None:
        """The periodic work of a broker, in random order."""
        rng = self.world.rng
        if self.is_awake and rng.random() < 0.3:
            self.run(self.flush)
        if self.is_awake and rng.random() < 0.3:
            self.run(self.dispatch)
        if self.is_awake and rng.random() < 0.5:
            self.run(self.hand_on)
        if self.is_awake and self.waiting is not None:
            self.respond(self.waiting.expire(self.world.now))

    def dispatch(self, store: MessageStore) -> None:
        """Bring queues and index up to the written or copied records."""
        store.dispatch()
        if self.backlog is not None:
            self.backlog.dispatch_piece()

    def flush(self, store: MessageStore) -> None:
        """Flush."""
        store.flush(thorough=self.world.rng.random() < 0.2)

    def open_session(self) -> SlaveSession:
        """A connection to the master, as its slave."""
        assert self.store is not None
        return SlaveSession(
            StoreTarget(self.store, self.epochs, self.backlog),
            self.world.settings,
            broker_name="b",
            broker_id=self.number + 1,
            nonce=self.world.text(),
            now_ms=self.world.now,
        )

    # -- as a master --------------------------------------------------------------------------

    def begin_to_lead(self) -> None:
        """Slaves and clients may connect."""
        assert self.store is not None
        world = self.world
        self.connected = ConnectedSlaves(
            behind_bytes_max=world.behind_bytes_max, joined_only=world.joined_only
        )
        self.waiting = SyncWaiters(
            self.connected, timeout_ms=world.timeout_ms, has_unflushed=lambda: bool(self.unflushed)
        )
        self.store.dispatcher.limit = self.waiting.limit
        world.begins_to_lead(self, self.store.max_physical_offset)

    def take_sends(self, store: MessageStore) -> None:
        """Clients send; those that need no slave do not wait."""
        rng, world = self.world.rng, self.world
        placed = []
        for _ in range(rng.randrange(4)):
            world.sends += 1
            body = b"%d " % world.sends + bytes(rng.randrange(1, 2000))
            queue_id = rng.randrange(2)
            properties = b"KEYS\x01k%d\x02UNIQ_KEY\x01u%d\x02" % (world.sends % 5, world.sends)
            message = MessageInner("T", queue_id, body, properties, born_host=bytes(8))
            receipt = store.append(message)
            end = receipt.physical_offset + receipt.size
            world.bodies.add(body)
            if rng.random() < 0.9:
                placed.append(Sent(body, queue_id, receipt.queue_offset, receipt.physical_offset, end))
        try:
            store.write_out()
        except StoreError:
            return
        self.unanswered.update(placed)
        self.unflushed.append((placed, store.max_physical_offset))
        if not world.flushes:
            self.hand_on(store)

    def hand_on(self, store: MessageStore) -> None:
        """Sends that waited for the disk now wait for a slave."""
        until = store.flushed_offset if self.world.flushes else store.max_physical_offset
        while self.unflushed and self.unflushed[0][1] <= until and self.waiting is not None:
            self.respond(self.waiting.park(*self.unflushed.pop(0), self.world.now))

    def acked(self) -> None:
        """A slave may have more than before."""
        if self.waiting is not None:
            self.respond(self.waiting.release_acked())

    def respond(self, results: list[ReplicationResult[Sent]]) -> None:
        """Respond to the sends."""
        for sends, code in results:
            self.unanswered.difference_update(sends)
            if code == ResponseCode.SUCCESS:
                self.world.acknowledge(self, sends)

    def check_shown(self) -> None:
        """Readers get no record that power loss can remove, or whose sender still waits (I5)."""
        store = self.store
        if store is None:
            return
        shown = store.dispatcher.offset
        assert not self.world.flushes or shown <= store.flushed_offset, f"{self.number} shows too much (I5)"
        early = [sent for sent in self.unanswered if sent.end <= shown]
        assert not early, f"{self.number} shows {len(early)} messages without a response (I5)"
