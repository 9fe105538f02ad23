"""Uses a store, and records the data that it must have after a crash."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rocketpy.errors import StoreDamaged, StoreError
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.record import RecordView, peek, record_size
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
from rocketpy_broker.store.config import RetentionConfig
from rocketpy_broker.store.files.store_lock import StoreLock
from rocketpy_broker.store.log.commit_log import CommitLog
from rocketpy_broker.store.log.flush import FlushPlan, PlanLimits, flush_now
from rocketpy_broker.store.log.log_scan import LogScan
from tests.crash.disk import RecordingDisk

ROOT = Path("/store")
NOT_IN_QUEUE = 0x4


class Clock:
    """A clock that advances with each reading; `now` may be set."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        self.now += 7
        return self.now


def small_config(
    *,
    sync: bool = False,
    segment_bytes: int = 4096,
    queue_units: int = 10,
    index: tuple[int, int] = (8, 24),
    pending_bytes: int = 60,
    reserve_bytes: int = 0,
    retention_hours: int = 72,
) -> StoreConfig:
    """Sizes at which everything rolls after a few messages."""
    kind = FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH
    return StoreConfig(
        root=ROOT,
        commit_log=CommitLogConfig(segment_bytes=segment_bytes, reserve_bytes=reserve_bytes),
        consume_queue=ConsumeQueueConfig(segment_bytes=queue_units * 20, pending_bytes_max=pending_bytes),
        index=IndexConfig(slots=index[0], entries=index[1]),
        flush=FlushConfig(disk_type=kind),
        retention=RetentionConfig(reserved_hours=retention_hours),
    )


class Sent(NamedTuple):
    """A record passed to the store: its bytes, its queue, its queue offset (None: it is in no queue)."""

    record: bytes
    key: tuple[str, int]
    number: int | None


@dataclass(slots=True)
class Expectation:
    """The sent messages, and those of them that a crash must not remove.

    attempts: by physical offset, all records ever placed there. stored: the record written there last.
    written_end, flushed_end: physical offsets up to which the log was written and flushed.
    """

    attempts: dict[int, list[Sent]] = field(default_factory=lambda: defaultdict(list))
    stored: dict[int, Sent] = field(default_factory=dict)
    written_end: int = 0
    flushed_end: int = 0
    first_offset: int = 0
    """Physical offset at which the log begins."""
    seen: dict[tuple[str, int], dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """By queue: physical offset of the message that a consumer saw at each queue offset."""
    states: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """State files by name: every content that was saved or was being saved, newest last."""
    states_saved: dict[str, int] = field(default_factory=dict)
    """How many of the saves in `states` had returned, by the name of the file."""


class Writer:
    """A store on a recording disk, and its expected content.

    All background work of store and broker runs here in one thread, so that a flush can be stopped between
    its steps while messages arrive.
    """

    def __init__(
        self, config: StoreConfig, disk: RecordingDisk, clock: Clock, expected: Expectation | None = None
    ) -> None:
        self.config = config
        self.disk = disk
        self.clock = clock
        self.expected = Expectation() if expected is None else expected
        self.store = MessageStore(config, clock=clock, disk=disk)
        self._placed: list[tuple[int, Sent]] = []
        self._numbers = itertools.count()
        self.refusals = 0

    # -- life ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the store; its content now counts as stored and flushed."""
        StoreLock._held.clear()
        self.store.open()
        self._take_over()

    def _take_over(self) -> None:
        expected = self.expected
        store = self.store
        stored: dict[int, Sent] = {}
        for view in LogScan(store.commit_log.files, store.min_physical_offset):
            record = store.commit_log.read(view.physical_offset, view.size)
            assert record is not None
            sent = stored[view.physical_offset] = sent_as(view, record)
            if sent not in expected.attempts[view.physical_offset]:
                expected.attempts[view.physical_offset].append(sent)
        expected.stored = stored
        expected.first_offset = store.min_physical_offset
        expected.written_end = store.max_physical_offset
        expected.flushed_end = store.flushed_offset

    def close(self) -> None:
        """Stop cleanly."""
        failed = self.store.failure is not None
        self.store.close()
        if not failed:
            self.expected.flushed_end = self.expected.written_end

    def reopen(self) -> None:
        """Stop cleanly and restart."""
        self.close()
        self.store = MessageStore(self.config, clock=self.clock, disk=self.disk)
        self.open()

    def kill_and_reopen(self) -> None:
        """End the process and restart."""
        kill(self.store)
        self._placed.clear()
        self.store = MessageStore(self.config, clock=self.clock, disk=self.disk)
        self.open()

    # -- sending ---------------------------------------------------------------------------------

    def message(
        self,
        queue_id: int = 0,
        *,
        topic: str = "T",
        size: int = 20,
        keys: int = 1,
        sys_flag: int = 0,
        extra: str = "",
    ) -> MessageInner:
        """The next message; each one is unique."""
        number = next(self._numbers)
        names = " ".join(f"k{number}.{key}" for key in range(keys))
        properties = f"{extra}KEYS\x01{names}\x02UNIQ_KEY\x01{number:08X}\x02TAGS\x01Tag{number % 3}\x02"
        body = b"%d " % number
        return MessageInner(
            topic=topic,
            queue_id=queue_id,
            body=(body * (size // len(body) + 1))[:size],
            properties=properties.encode(),
            flag=number,
            sys_flag=sys_flag,
            born_timestamp=self.clock.now,
            born_host=b"\x7f\x00\x00\x01\x00\x00\x12\x34",
        )

    def append(self, message: MessageInner) -> None:
        """Place a message in the run."""
        receipt = self.store.append(message)
        record = self._records([(receipt.physical_offset, receipt.size)])[0]
        number = None if message.sys_flag & NOT_IN_QUEUE else receipt.queue_offset
        self._place(receipt.physical_offset, Sent(record, (message.topic, message.queue_id), number))

    def append_batch(self, message: MessageInner, bodies: Sequence[bytes]) -> None:
        """Place a batch in the run."""
        entries = [(0, body, b"UNIQ_KEY\x01%d.%d\x02" % (message.flag, n)) for n, body in enumerate(bodies)]
        message.body = encode_batch(entries)
        offsets, first = self.store.append_batch(message)
        topic = len(message.topic.encode())
        sizes = [record_size(len(body), topic, len(text), message.sys_flag) for _, body, text in entries]
        records = self._records(list(zip(offsets, sizes, strict=True)))
        for number, (offset, record) in enumerate(zip(offsets, records, strict=True), first):
            self._place(offset, Sent(record, (message.topic, message.queue_id), number))

    def _records(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """The last records of the run. places: physical offset and size of each."""
        log = self.store.commit_log
        assert isinstance(log, CommitLog)
        run = b"".join(log._run)
        start = len(run) - sum(places[-1])  # of the log's first byte
        return [run[start + offset :][:size] for offset, size in places]

    def _place(self, offset: int, sent: Sent) -> None:
        self.expected.attempts[offset].append(sent)
        self._placed.append((offset, sent))

    def write_out(self) -> None:
        """Write the run: from now on a kill does not lose it."""
        placed, self._placed = self._placed, []
        self.store.write_out()
        expected = self.expected
        for offset, sent in placed:
            expected.stored[offset] = sent
            expected.written_end = max(expected.written_end, offset + len(sent.record))

    def put(self, *messages: MessageInner) -> None:
        """One run of these messages."""
        for message in messages:
            self.append(message)
        self.write_out()

    def dispatch(self) -> None:
        """Dispatch, then let a consumer read everything."""
        self.store.dispatch()
        self.consume()

    def consume(self) -> None:
        """Read all messages that consumers can read: with SYNC_FLUSH they must survive a crash."""
        for (topic, queue_id), queue in self.store.queues.queues.items():
            seen = self.expected.seen[topic, queue_id]
            start = max(seen, default=-1) + 1
            for number in range(max(start, queue.min_offset), queue.next_offset):
                unit = queue.unit(number)
                assert unit is not None
                seen[number] = unit[0]

    # -- flushing --------------------------------------------------------------------------------

    def flush(self, *, thorough: bool = False) -> None:
        """Flush synchronously."""
        for plan in self.plans(thorough=thorough):
            self.finish(plan)

    def plans(self, *, thorough: bool) -> Iterator[FlushPlan]:
        """Begin a flush; messages may be stored before each `finish`. A part has two queues."""
        if thorough:
            yield from self.store.thorough_plans(PlanLimits(2))
        else:
            yield self.store.plan_flush()

    def finish(self, plan: FlushPlan) -> None:
        """Run a flush and record its end: with SYNC_FLUSH, messages before it may be acknowledged."""
        if not plan.is_empty:
            flush_now(self.store, plan)
        self.expected.flushed_end = max(self.expected.flushed_end, self.store.flushed_offset)
        self.store.mark_flushed()

    # -- after failures --------------------------------------------------------------------------

    def try_append(self, message: MessageInner) -> None:
        """Place a message in the run, unless the store refuses it."""
        try:
            self.append(message)
        except StoreDamaged:
            raise
        except StoreError:
            self.refusals += 1

    def flush_thoroughly(self) -> None:
        """Flush queues, index and checkpoint too."""
        self.flush(thorough=True)

    def attempt(self, *steps: str) -> None:
        """Call these methods; a store may refuse each of them."""
        for step in steps:
            try:
                getattr(self, step)()
            except StoreDamaged:
                raise
            except StoreError:
                self.refusals += 1


def sent_as(view: RecordView, record: bytes) -> Sent:
    """The sent message, from a stored record."""
    number = None if view.sys_flag & NOT_IN_QUEUE else view.queue_offset
    return Sent(record, (view.topic, view.queue_id), number)


def parse(record: bytes) -> RecordView:
    """A record's fields."""
    return peek(record, check_crc=True)


def kill(store: MessageStore) -> None:
    """Stop a store like a killed process: nothing more is written, and the lock is released."""
    store._is_open = False
    store._close_files()
    StoreLock._held.clear()
