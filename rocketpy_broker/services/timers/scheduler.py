"""Runs the timers of one broker: enqueues, delivers when messages are due, and saves the checkpoint.

Without timers it has no task and no timer of its own. Source: TimerMessageStore of RocketMQ 5.3.3. Differs:
that polls every 100 ms.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final

from rocketpy.errors import DiskFull, StoreError
from rocketpy.protocol.bodies import DataVersion, TimerCount, TimerMetricsSerializeWrapper
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.services.delay.due_calls import DueCalls
from rocketpy_broker.services.timers.files import TimerFiles, TimerFilesDamaged
from rocketpy_broker.services.timers.formats import PRECISION_MS, TimerCheckpoint
from rocketpy_broker.services.timers.timers import Timers
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.busy import Reason
from rocketpy_broker.store.files.disk import Clock, Disk, OsDisk, system_clock
from rocketpy_broker.store.files.state_file import load_state, save_in_thread, save_state
from rocketpy_broker.store.upkeep.driver import StoreDriver

log = logging.getLogger("rocketpy.broker.timers")

_SAVE: Final = "save of the timer checkpoint"
_MESSAGES: Final = 250
"""Maximum number of messages that one iteration of the event loop enqueues, and delivers, which takes some
milliseconds. In slices of 100, each message takes a tenth more CPU time."""


@dataclass(eq=False)
class TimerService:
    """The timers of one broker. Call `load`, and then `start` on a master."""

    store: MessageStore
    driver: StoreDriver
    root: Path
    """Directory of the store."""
    tasks: Tasks
    _: KW_ONLY
    queue_to_deliver: Callable[[str, int, int], int]
    """See `TopicTable.queue_to_deliver`."""
    window_slots: Callable[[], int]
    """Returns after how many seconds a message rolls."""
    log_file_bytes: int
    """Size of a file of the timer log."""
    save_interval_ms: int
    """How often the checkpoint is saved while it changes."""
    clock: Clock = system_clock
    disk: Disk = field(default_factory=OsDisk)

    def __post_init__(self) -> None:
        self._files = TimerFiles(self.disk, self.root, self.log_file_bytes)
        self._timers = Timers(self.store, self._files, self.window_slots, self.queue_to_deliver)
        self._metrics_path = self.root / "config" / "timermetrics"
        self._calls = DueCalls(self.tasks, self.driver, self._now, self._deliver, "timers")
        self._is_loaded = self._is_master = False
        self._has_delivered = False
        """Whether the state has deliveries of this broker that a DLedger group may not have committed."""
        self._is_disk_full = False
        """Whether the last messages could not be delivered because of that."""
        self._save_timer: asyncio.TimerHandle | None = None
        self._saving = asyncio.Lock()
        self._copied: tuple[TimerCheckpoint, Mapping[str, int] | None] | None = None
        """Checkpoint and counts of the master that wait until this slave has all records before it."""
        self.on_delivered: Callable[[], None] = self.driver.schedule_dispatch
        """Called after messages were delivered to their real topics, to dispatch them."""

    @property
    def waiting(self) -> int:
        """Number of timers that are enqueued and not delivered, whole seconds together; 0 on a slave."""
        return max(self._timers.waiting, 0) if self._is_master else 0

    @property
    def late_ms(self) -> int:
        """For how long a message has been due; 0 if none is."""
        return self._timers.late_ms(self.clock()) if self._is_master else 0

    def needs_files(self) -> bool:
        """Whether the log of a master must keep expired files; see `Timers.needs_files`.

        Not if the disk is full: then no message can be stored again, and no other files would be deleted.
        """
        store = self.store
        is_full = self._is_disk_full or store.disk_full is not None
        cannot_store = is_full or store.rejection(Reason.SLAVE) is not None
        return self._is_loaded and not cannot_store and self._timers.needs_files

    def waiting_for(self, topic: str) -> int:
        """Return the number of timers that wait to be delivered to a topic."""
        return max(self._timers.counts[topic], 0)

    def waiting_in_slot(self, time_ms: int) -> int:
        """Return the number of timers of the slot of a time. Raises StoreError."""
        return self._files.wheel.slot(time_ms // PRECISION_MS).timers

    def runtime_info(self) -> dict[str, str]:
        """Return what tools of RocketMQ 5 show about timers, with its names. Rates are not measured."""
        return {
            "timerReadBehind": str(self.late_ms // 1000),
            "timerOffsetBehind": str(self._timers.not_enqueued if self._is_loaded else 0),
            "timerCongestNum": str(self.waiting),
        }

    def load(self) -> None:
        """Load the checkpoint, and recover the files. The store must be dispatched.

        Raises StoreError, StoreDamaged.
        """
        self._load()
        self._is_loaded = True

    def _load(self) -> None:
        self._load_counts()
        self._timers.load(self.clock())

    def start(self) -> None:
        """Start to deliver, on a master; nothing if it was started. Raises StoreError; try again then."""
        if self._is_master:
            return
        self._copied = None
        try:
            self._timers.begin(self.clock())
        except StoreError:
            self._timers.end()
            raise
        self._is_master = self._has_delivered = True
        self._calls.start()

    def arrived(self) -> None:
        """Enqueue soon: the consume queue of the timer topic has grown."""
        self._calls.wake_at(self.clock())

    def recall_appended(self, due_ms: int) -> None:
        """Note that a recall was appended for a message that is due at this time."""
        self._timers.enqueue_first(due_ms)

    async def stop(self, *, saves: bool = True) -> None:
        """Stop delivering. Raises StoreError; try again then.

        saves: whether to save the checkpoint. Otherwise the state is that of the last one: a former leader
        does not know which of its messages the group keeps.
        """
        if not self._is_master:
            return
        self._calls.stop()
        if saves:
            self._timers.finish_slot()
            await self._save()
            self._timers.end()
        else:
            async with self._saving:  # one that is under way uses the files
                self._load()
            self._has_delivered = False
        self._is_master = False

    async def close(self) -> None:
        """Close the files; after `stop` on a master. The store must still be open."""
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None
        if self._is_loaded:
            self._is_loaded = False
            await self._save()
        self._files.close()

    # -- master and slave ---------------------------------------------------------------------

    def checkpoint(self) -> bytes:
        """Return the checkpoint for slaves, the response to GET_TIMER_CHECK_POINT.

        In a DLedger group it is the saved one, before which all messages are committed.
        """
        if self._is_master and self.driver.wait_for_commit is None:
            return self._timers.progress(self.clock()).encode()
        return self._timers.checkpoint.encode()

    def metrics(self) -> bytes:
        """Return how many timers topics have, the response to GET_TIMER_METRICS."""
        return self._encode_counts({topic: max(count, 0) for topic, count in self._timers.counts.items()})

    def _encode_counts(self, counts: Mapping[str, int]) -> bytes:
        now_ms, checkpoint = self.clock(), self._timers.checkpoint
        return TimerMetricsSerializeWrapper(
            data_version=DataVersion(counter=checkpoint.counter, timestamp=checkpoint.timestamp),
            timing_count={
                topic: TimerCount(count=count, time_stamp=now_ms) for topic, count in counts.items()
            },
        ).encode()

    def _load_counts(self) -> None:
        self._timers.load_counts({})
        try:
            saved = load_state(self.disk, self._metrics_path, TimerMetricsSerializeWrapper.decode).value
        except StoreError as error:
            log.warning("counts of timers begin at 0: %s", error)
            return
        if saved is not None:
            self._timers.load_counts({topic: one.count for topic, one in saved.timing_count.items()})

    def adopt(self, data: bytes, metrics: bytes = b"") -> None:
        """Take over the checkpoint of a master, on a slave. Raises RemoteProtocolError.

        metrics: its response to GET_TIMER_METRICS. The checkpoint counts once this slave has a record that
        was stored later: then it has all copies of messages that the master delivered before. Until the next
        call it uses an earlier one.
        """
        if self._is_master:
            return
        copied, counts = TimerCheckpoint.decode(data), None
        if metrics:
            table = TimerMetricsSerializeWrapper.decode(metrics).timing_count
            counts = {topic: one.count for topic, one in table.items()}
        stored_ms = self.store.dispatcher.last_store_timestamp
        if self._copied is None or self._copied[0].timestamp <= stored_ms:
            if self._copied is not None:
                self._timers.adopt(*self._copied)
            self._copied = copied, counts
        if copied.timestamp <= stored_ms:
            self._timers.adopt(copied, counts)
        self._follow()

    def _follow(self) -> None:
        """Enqueue on a slave what its master has enqueued."""
        if self._is_master:
            return
        count = 0
        try:
            try:
                count = self._timers.enqueue(self.clock(), _MESSAGES)
            except TimerFilesDamaged as error:
                self._timers.rebuild(self.clock(), str(error))
        except StoreError as error:
            log.error("cannot enqueue timers, trying again with the next checkpoint: %s", error)
            return
        self._changed()
        if count:
            self.tasks.call_soon(self._follow)

    # -- delivering ---------------------------------------------------------------------------

    def _now(self) -> int:
        return self.clock()

    def _deliver(self, now_ms: int) -> int | None:
        timers, slots = self._timers, self._timers.slots
        try:
            enqueued = timers.enqueue(now_ms, _MESSAGES)
            count, due_ms = timers.deliver(now_ms, _MESSAGES)
        except TimerFilesDamaged as error:
            timers.rebuild(now_ms, str(error))
            return now_ms
        except DiskFull:
            self._is_disk_full = True
            raise
        self._is_disk_full = False
        if count:
            self.on_delivered()
        if enqueued or count or timers.slots != slots:  # not for each second without timers
            self._changed()
        return now_ms if enqueued else due_ms

    # -- saving -------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Save the checkpoint soon."""
        if self._save_timer is None:
            self._save_timer = self.tasks.call_later(self.save_interval_ms / 1000, self._save_soon)

    def _save_soon(self) -> None:
        self._save_timer = None
        self.tasks.spawn(self._save(), _SAVE)

    async def _save(self) -> None:
        """Save the checkpoint. An error is logged."""
        async with self._saving:
            try:
                await self._save_now()
                self.driver.jobs.ended(_SAVE)
            except StoreError as error:
                self.driver.jobs.ended(_SAVE, error)
                log.error("cannot save the timer checkpoint: %s", error)
                if self._is_master:
                    self._changed()

    async def _save_now(self) -> None:
        files, progress = self._files, self._timers.progress(self.clock())
        if progress == self._timers.checkpoint:
            return
        metrics = self._encode_counts(self._timers.counts)  # of the same moment
        # Delivered messages, before the checkpoint says so. A slave has delivered none since its master's
        # checkpoint, and enqueues only messages that are committed.
        await self.driver.flush(commits=self._has_delivered)
        deletions = files.log.delete_expired(self.store.min_physical_offset)

        def save() -> None:
            files.flush()
            files.checkpoint_file.save(progress)
            save_state(self.disk, self._metrics_path, metrics)
            for delete in deletions:
                delete()

        await save_in_thread(save)
        self._timers.checkpoint = progress
