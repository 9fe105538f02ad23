"""Crashes a message store on a ledger at every change: `python -m tests.crash.ledger_store_sweep SEED COUNT`.

The group has one peer. Each crash leaves the disk of a killed process or of a power loss. Once its entries
are committed again, the recovered store must have every acknowledged message, and show no other. Queues and
index must match the ledger, and the store must accept messages. One seed in three begins with a store that
has a commit log.
"""

from __future__ import annotations

import sys
from random import Random

from rocketpy.errors import StoreError
from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.log_view import LedgerView
from rocketpy_broker.replication.dledger.core.raft_state import LedgerCheckpoint
from rocketpy_broker.replication.dledger.ledger_store import LedgerStore
from rocketpy_broker.replication.dledger.storage.state_files import StateFiles
from rocketpy_broker.store import MessageInner, MessageStore
from rocketpy_broker.store.files.store_lock import StoreLock
from rocketpy_broker.store.queue.consume_queue import UNIT_BYTES
from rocketpy_broker.store.upkeep.cleaner import Cleaner
from tests.crash.disk import Operation, RecordingDisk
from tests.crash.ledger_crashes import LedgerPass, crashing, run_seeds
from tests.crash.sweep import VARIANTS, image_of, stop_at
from tests.crash.verify import Violation, require
from tests.crash.writer import ROOT, Clock, kill, small_config
from tests.store_checks import check_store

_DIRECTORY = ROOT / "dledger-n0"
_INDEX_FILE_BYTES = 640
_STEPS = 40
_TOPICS = ("T", "U")


class _Writer:
    """Uses a store whose group has one peer, and records the acknowledged messages."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.clock = Clock()
        self.disk = RecordingDisk(self.clock)
        self.disk.make_dir(ROOT)
        self.disk.make_durable()
        self.config = small_config(retention_hours=0)
        self.acknowledged: dict[int, bytes] = {}
        """Records that the group has committed, by physical offset."""
        self.expired: dict[int, bytes] = {}
        """Acknowledged records that retention has deleted, by their physical offset."""
        self.acknowledged_index = -1
        self._waiting: dict[int, bytes] = {}
        self._number = 0

    def begin_plain(self) -> None:
        """Begin with a store that has a commit log."""
        store = MessageStore(self.config, clock=self.clock, disk=self.disk)
        store.open()
        for _ in range(self.random.randrange(1, 60)):
            receipt = store.put_message(self._message())
            store.flush()
            record = store.look_message(receipt.physical_offset)
            assert record is not None
            self.acknowledged[receipt.physical_offset] = record
        if self.random.random() < 0.5:
            store.close()
        else:
            kill(store)
        self.disk.make_durable()

    def open(self) -> None:
        """Open the store on its ledger, and lead."""
        self.store = open_store(self.disk, self.clock)
        self.view = LedgerView(self.store.ledger, self.config.commit_log.segment_bytes)
        self.store.log.on_expired = self._expire
        self.store.commit(self.view.end_index)
        self.store.become_leader(self)

    def _expire(self, index: int) -> None:
        self.view.expire(index)
        begin = self.store.log.min_offset
        for offset in [offset for offset in self.acknowledged if offset < begin]:
            self.expired[offset] = self.acknowledged.pop(offset)

    def next_entry_pos(self, body_bytes: int) -> int:
        """Where the next entry goes."""
        return self.view.next_entry_pos(body_bytes)

    def append(self, body: bytes) -> Entry:
        """Append an entry."""
        entry = Entry.of(self.view.end_index + 1, self.clock.now, self.view.next_entry_pos(len(body)), body)
        self.view.append(entry)
        return entry

    def _message(self) -> MessageInner:
        self._number += 1
        random = self.random
        return MessageInner(
            random.choice(_TOPICS),
            random.randrange(2),
            b"%d " % self._number * random.randrange(1, 40),
            b"KEYS\x01k%d\x02UNIQ_KEY\x01u%d\x02" % (self._number % 7, self._number),
            sys_flag=random.choice((0, 0, 0, 0x4)),
        )

    # -- steps --------------------------------------------------------------------------------

    def work(self) -> None:
        """Do a random sequence of the steps below."""
        actions = (self._append, self._append, self._append, self._commit, self._commit, self._flush,
                   self._save, self._cut, self._clean, self._restart)  # fmt: skip
        for _ in range(_STEPS):
            self.random.choice(actions)()

    def _append(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            receipt = self.store.append(self._message())
            self._waiting[receipt.physical_offset] = self.view.get(self.view.end_index).body
        if self.random.random() < 0.5:
            self._store_entries()

    def _store_entries(self) -> None:
        write = self.view.take()
        if write:
            self.store.ledger.apply(write)
            self.store.ledger.flush(thorough=self.random.random() < 0.3)
            self.view.written()

    def _commit(self) -> None:
        self._store_entries()
        self.acknowledged |= self._waiting
        self._waiting.clear()
        self.acknowledged_index = self.view.end_index
        self.store.commit(self.acknowledged_index)
        self.store.dispatch()

    def _flush(self) -> None:
        self.store.flush(thorough=True)

    def _save(self) -> None:
        self._commit()
        committed = LedgerCheckpoint(self.store.log.committed_index, self.view.end_index)
        StateFiles(self.disk, _DIRECTORY).save_checkpoint(committed)

    def _cut(self) -> None:
        """Lose the leadership with uncommitted entries, which are truncated, and regain it."""
        self._append()
        self.store.become_follower()
        self.view.truncate_after(self.store.log.committed_index)
        self._waiting.clear()
        self._store_entries()
        self.store.become_leader(self)

    def _clean(self) -> None:
        self._commit()
        self.store.flush(thorough=True)
        Cleaner(self.store, use=lambda _: 0.88).run(self.clock.now)

    def _restart(self) -> None:
        self._save()
        self.store.close()
        self.open()


def open_store(disk: RecordingDisk, clock: Clock) -> LedgerStore:
    """Recover a store from a disk."""
    StoreLock._held.clear()
    store = LedgerStore(
        small_config(retention_hours=0),
        _DIRECTORY,
        clock=clock,
        disk=disk,
        index_file_bytes=_INDEX_FILE_BYTES,
    )
    store.open()
    return store


def kill_store(store: LedgerStore) -> None:
    """End like a killed process: nothing more is written."""
    store.ledger.failure = StoreError("killed")
    kill(store)


def sweep(seed: int, *, stride: int = 1) -> LedgerPass:
    """Run one workload and crash it at every `stride`-th change of the disk."""
    writer, random, result = _Writer(Random(seed)), Random(f"crash {seed}"), LedgerPass()

    def crash(operation: Operation, where: str) -> None:
        kind = random.choice(VARIANTS)
        image, _ = image_of(writer.disk, operation, kind, random)
        what = f"{where}: {kind}"
        if random.random() < 0.3:
            image, what = _crash_recovery(image, random), what + ", and in recovery"
        result.recoveries += 1
        try:
            _check(writer, image, random)
        except (Violation, StoreError) as error:
            result.failures.append(f"{what}: {error}")

    if seed % 3 == 0:
        writer.begin_plain()
    with crashing(writer.disk, seed, stride, result, crash):
        writer.open()
        writer.work()
    return result


def _crash_recovery(image: RecordingDisk, random: Random) -> RecordingDisk:
    stopped = stop_at(image, random.randrange(1, 15), lambda: kill_store(open_store(image, Clock())))
    return image_of(image, stopped, random.choice(VARIANTS), random)[0] if stopped is not None else image


def _check(writer: _Writer, image: RecordingDisk, random: Random) -> None:
    clock = Clock(writer.clock.now + 60_000)
    store = open_store(image, clock)
    _check_content(writer, store)
    end = writer.acknowledged_index
    store.commit(end)
    store.dispatch()
    _check_content(writer, store)
    for offset, record in writer.acknowledged.items():
        if offset >= store.min_physical_offset:
            require(store.look_message(offset) == record, f"the acknowledged record at {offset} is gone")
    shown = _shown(store)
    if random.random() < 0.5:
        kill_store(store)
    else:
        store.close()
    store = open_store(image.after_power_loss(None) if store.failure is None else image, clock)
    store.commit(end)
    store.dispatch()
    require(_shown(store) == shown, "a second recovery shows other messages")
    kill_store(store)


def _check_content(writer: _Writer, store: LedgerStore) -> None:
    """Queues and index match the log, and all visible messages were sent."""
    report = check_store(store)
    require(not report.problems, "; ".join(report.problems[:3]))
    for offset, record in _shown(store).items():
        known = writer.acknowledged.get(offset) or writer.expired.get(offset)
        require(record == known, f"what is shown at {offset} is another, or the group does not have it")


def _shown(store: LedgerStore) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for (topic, queue_id), queue in store.queues.queues.items():
        # If all units have expired, the min offset stays 0 until the next cleanup, as in 4.6.0.
        at = max(queue.min_offset, queue.files.min_offset // UNIT_BYTES)
        while units := store.units(topic, queue_id, at, 100):
            for offset, size, _ in units:
                record = store.look_message(offset, size)
                if record is not None:
                    found[offset] = record
            at += len(units)
    return found


def main(arguments: list[str]) -> int:
    """Run COUNT seeds from SEED on; 0 when every promise held."""
    return run_seeds(arguments, sweep)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
