"""Delivers delayed messages when they are due, and saves the progress in delayOffset.json.

`DelayQueues` finds the due messages, `DueCalls` has a timer for the next one. Source: ScheduleMessageService
of RocketMQ 4.6.0. Differs: 4.6.0 polls every 100 ms, and saves offsets of messages that are not flushed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final

from rocketpy.errors import StoreError
from rocketpy.protocol.bodies import DelayOffsetSerializeWrapper
from rocketpy.protocol.message.delays import DelayLevels
from rocketpy.runtime.tasks import PeriodicCall, Tasks
from rocketpy_broker.services.delay.due_calls import DueCalls
from rocketpy_broker.services.delay.queues import DelayQueues
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.files.disk import Clock, Disk, OsDisk, system_clock
from rocketpy_broker.store.files.state_file import load_state, save_state, save_state_in_thread
from rocketpy_broker.store.message_store import finish
from rocketpy_broker.store.upkeep.driver import StoreDriver

log = logging.getLogger("rocketpy.broker.delay")

_SAVE: Final = "save of delay offsets"
_BATCH_MESSAGES: Final = 200
"""Maximum number of messages delivered in one iteration of the event loop, which takes some milliseconds."""


@dataclass(eq=False)
class DelayService:
    """Delivers the delayed messages of one broker."""

    store: MessageStore
    driver: StoreDriver
    path: Path
    tasks: Tasks
    _: KW_ONLY
    queue_to_deliver: Callable[[str, int, int], int]
    """See `TopicTable.queue_to_deliver`."""
    interval_ms: int
    """How often offsets are saved."""
    clock: Clock = system_clock
    disk: Disk = field(default_factory=OsDisk)

    def __post_init__(self) -> None:
        self.levels = DelayLevels(self.store.config.delay_levels)
        self._queues = DelayQueues(self.store, self.levels, self.queue_to_deliver)
        self.is_missing = False
        """Whether delayOffset.json was missing at `load`."""
        self.is_older = False
        """Whether `load` used the `.bak`, so that messages delivered since are found again."""
        self._saved: dict[int, int] = {}
        self._calls = DueCalls(self.tasks, self.driver, self._now, self._deliver, "delayed messages")
        self._saving: PeriodicCall | None = None
        self.on_delivered: Callable[[], None] = self.driver.schedule_dispatch
        """Called after messages were delivered to their real topics, to dispatch them."""

    def load(self) -> None:
        """Read delayOffset.json, if it exists. Raises StoreDamaged."""
        saved, self.is_older = load_state(self.disk, self.path, DelayOffsetSerializeWrapper.decode)
        self.is_missing = saved is None
        self._saved = {} if saved is None else saved.offset_table
        self._queues.load(self._saved)

    def create(self) -> None:
        """Create delayOffset.json at the first start. An error is logged."""
        try:
            save_state(self.disk, self.path, _encode(self._saved))
        except StoreError as error:
            log.error("cannot save delay offsets: %s", error)

    def skip_delivered(self) -> None:
        """Skip the messages that were delivered since the loaded offsets were saved, and save the offsets.

        A master calls it after `load`. Offsets are older than the last deliveries after a kill, in a `.bak`,
        and on a slave that was promoted. Messages whose copies are not found are delivered again.
        """
        self._note_skipped(finish(self._queues.skip_delivered()))
        if self._queues.offsets() != self._saved:
            self._saved = self._queues.offsets()
            self.create()

    def _note_skipped(self, found: Mapping[int, tuple[int, int]]) -> None:
        """Log what `DelayQueues.skip_delivered` has returned."""
        for level, (skipped, waiting) in found.items():
            if self.is_older:
                log.warning(
                    "%s is an older copy: delay level %d: skipped %d delivered messages, %d of the others "
                    "are delivered, some perhaps again",
                    self.path, level, skipped, waiting,
                )  # fmt: skip
            elif skipped:
                log.info("delay level %d: skipped %d messages that were delivered before", level, skipped)

    async def load_as_leader(self) -> None:
        """Load the offsets, and skip the messages that the former leader of a DLedger group has delivered.

        This broker copied the offsets up to some seconds ago. All entries of the log must be committed and
        dispatched. Raises StoreError, StoreDamaged.
        """
        self.load()
        self._note_skipped(await self.driver.in_slices(self._queues.skip_delivered()))
        self._saved = self._queues.offsets()

    def start(self) -> None:
        """Start delivering due messages; nothing if it was started."""
        if self._saving is not None:
            return
        self._saving = self.tasks.every(self.interval_ms / 1000, self._save, _SAVE)
        self._calls.start()

    def offsets(self) -> dict[int, int]:
        """Return the next offset of each level, for slaves.

        In a DLedger group these are the saved offsets, before which all messages are committed. A new leader
        has these messages, but it may lack later ones.
        """
        is_dledger = self.driver.wait_for_commit is not None
        return dict(self._saved) if is_dledger or self._saving is None else self._queues.offsets()

    async def adopt(self, text: bytes) -> None:
        """Save the offsets of a master. Raises StoreError. text: content of the master's delayOffset.json.

        Only a slave may call it. When it becomes the master, `load` applies the offsets.
        """
        offsets = DelayOffsetSerializeWrapper.decode(text).offset_table
        if offsets != self._saved:
            await save_state_in_thread(self.disk, self.path, text)
            self._saved = offsets

    def waiting(self) -> dict[int, int]:
        """Return the number of undelivered messages of each level; 0 on a slave, which delivers none."""
        waiting = self._queues.waiting()
        return waiting if self._saving is not None else dict.fromkeys(waiting, 0)

    def message_appended(self, level: int) -> None:
        """Set the timer for a message of this level that has just been appended."""
        self._calls.wake_at(self.clock() + self.levels.delays_ms[level - 1])

    async def close(self, *, saves: bool = True) -> None:
        """Stop delivering, and save the offsets. An error is logged. The store must still be open.

        saves: False if this broker is no longer the master.
        """
        if self._saving is None:
            return
        self._calls.stop()
        await self.tasks.cancel(self._saving.task)
        self._saving = None
        self.driver.jobs.ended(_SAVE)
        if saves:
            await self._save()

    # -- delivering ---------------------------------------------------------------------------

    def _now(self) -> int:
        return self.clock()

    def _deliver(self, now_ms: int) -> int | None:
        count = 1  # some messages, if it raises
        try:
            count, due_ms = self._queues.deliver(now_ms, _BATCH_MESSAGES)
        finally:
            if count:
                self.on_delivered()
        return due_ms

    # -- saving -------------------------------------------------------------------------------

    async def _save(self) -> None:
        """Flush the delivered messages, then save the offsets, so that power loss cannot lose a message."""
        offsets = self._queues.offsets()
        if offsets == self._saved:
            return
        try:
            await self.driver.flush()
            await save_state_in_thread(self.disk, self.path, _encode(offsets))
        except StoreError as error:
            self.driver.jobs.ended(_SAVE, error)
            log.error("cannot save delay offsets: %s", error)
            return
        self.driver.jobs.ended(_SAVE)
        self._saved = offsets


def _encode(offsets: dict[int, int]) -> bytes:
    """Encode delayOffset.json. Levels are numbers without quotes, as in Java (QUIRKS 8)."""
    return b'{\n\t"offsetTable":{%b\n\t}\n}' % b",".join(
        [b"%d:%d" % pair for pair in sorted(offsets.items())]
    )
