"""Runs the check points of one broker: reads the revive topic, revives what is due, and commits offsets.

Without pops it has no task and no timer of its own. Source: PopReviveService of RocketMQ 5.3.3. Differs: that
has a thread for each revive queue, which looks for due check points every second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from rocketpy.errors import RocketError, StoreError
from rocketpy.protocol.bodies import PERM_READ, PERM_WRITE, SubscriptionGroupConfig
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.config.model import PopConfig
from rocketpy_broker.services.delay.due_calls import DueCalls
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.topics import TopicTable, own_topic
from rocketpy_broker.services.pop.check_points import CheckPoints
from rocketpy_broker.services.pop.formats import revive_topic
from rocketpy_broker.services.timers.scheduler import TimerService
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.files.disk import Clock, system_clock
from rocketpy_broker.store.queue.dispatch import Arrivals
from rocketpy_broker.store.upkeep.driver import StoreDriver

log = logging.getLogger("rocketpy.broker.pop")

_COMMIT: Final = "commit of popped offsets"
_READ_RECORDS: Final = 250
_REVIVE_MESSAGES: Final = 64
_RENEW_POINTS: Final = 200
_REMOVE_POINTS: Final = 5000
"""Maximum numbers in one iteration of the event loop, each taking some milliseconds."""
_IDLE_S: Final = 60.0
"""How often old check points are looked for while nothing else happens."""


@dataclass(eq=False)
class PopService:
    """The check points of one broker. Call `start` on a master, and `stop` when it is none any more."""

    store: MessageStore
    driver: StoreDriver
    offsets: ConsumerOffsets
    topics: TopicTable
    tasks: Tasks
    _: KW_ONLY
    cluster_name: str
    broker_name: str
    config: PopConfig
    find_group: Callable[[str], SubscriptionGroupConfig | None]
    timers: TimerService
    """Delivers the check points and acknowledgements that RocketMQ has stored."""
    clock: Clock = system_clock

    def __post_init__(self) -> None:
        self.points = CheckPoints(
            self.store,
            self.offsets,
            revive_topic(self.cluster_name),
            queues=self.config.revive_queues,
            broker_name=self.broker_name,
            find_topic=self.topics.get,
            find_group=self.find_group,
            ensure_topic=self._ensure_topic,
            uses_retry_v2=lambda: self.config.retry_v2,
            timers_late=lambda: self.timers.late_ms > 0,
            timers_wait=lambda: self.timers.waiting_for(revive_topic(self.cluster_name)) > 0,
        )
        self.revive_topic = self.points.topic
        self._calls = DueCalls(self.tasks, self.driver, self._now, self._run, "revived messages")
        self._is_master = False
        self._commit_timer: asyncio.TimerHandle | None = None
        self._commits_soon = False
        self._committing = asyncio.Lock()
        self.on_revived: Callable[[], None] = self.driver.schedule_dispatch
        """Called after messages were appended to retry topics, to dispatch them."""

    @property
    def is_ready(self) -> bool:
        """Whether groups may pop: this broker is a master, and has read its check points."""
        return self._is_master and not self.points.is_loading

    @property
    def late_ms(self) -> int:
        """For how long a message waits to be revived; 0 if none does."""
        due_ms = self.points.in_flight.due_ms() if self._is_master else None
        return 0 if due_ms is None else max(self.clock() - due_ms, 0)

    def start(self) -> None:
        """Start on a master: read the revive topic, then revive messages when they are due.

        Does nothing if it was started. Raises StoreError; try again then.
        """
        if self._is_master:
            return
        self.points.load()
        self._is_master = True
        self._calls.start()

    async def stop(self, *, saves: bool = True) -> None:
        """Stop. saves: whether to commit offsets; see `TimerService.stop`."""
        if not self._is_master:
            return
        self._calls.stop()
        self._is_master = False
        if self._commit_timer is not None:
            self._commit_timer.cancel()
            self._commit_timer, self._commits_soon = None, False
        self.driver.jobs.ended(_COMMIT)
        if saves and not self.points.is_loading:
            await self._commit(is_last=True)
        self.points.clear()

    def changed(self) -> None:
        """Note that a request has changed check points: commit offsets soon, and revive in time."""
        if self._is_master and not self._commits_soon:
            self._commits_soon = True
            self._commit_in(self.config.save_interval_ms / 1000)
        due_ms = self.points.in_flight.due_ms()
        if due_ms is not None:
            self._calls.wake_at(due_ms)

    def arrived(self, arrivals: Arrivals) -> None:
        """Read the revive topic soon, if records have arrived there that this process has not appended."""
        if self._is_master and self.points.is_behind_any(arrivals):
            self._calls.wake_at(self.clock())

    def written(self, error: StoreError | None) -> None:
        """Read everything again if appended records were not stored.

        In a DLedger group, a record that is not committed in time may be committed later, so it counts. A
        peer that leads no more forgets everything.
        """
        if error is not None and self._is_master and self.driver.wait_for_commit is None:
            self.points.load()
            self._calls.wake_at(self.clock())

    async def remove_topic(self, topic: str) -> None:
        """Forget the check points of a deleted topic; not those of a new one of this name."""
        self.points.forget_topic(topic)
        store, in_flight = self.store, self.points.in_flight
        if not any(name == topic for name, *_ in in_flight.counts):
            return
        for number, point in enumerate(list(in_flight.points.values()), 1):
            queue = point.key.topic, point.key.queue_id
            if point.key.topic == topic and (
                queue not in store.queues.queues or point.end_offset <= store.min_offset_in_queue(*queue)
            ):
                in_flight.remove(point)
            if number % _REMOVE_POINTS == 0:
                await asyncio.sleep(0)
        self.changed()

    def _now(self) -> int:
        return self.clock()

    def _ensure_topic(self, name: str) -> None:
        if self.topics.get(name) is None:
            self.topics.add([own_topic(name, 1, PERM_READ | PERM_WRITE)])

    def _run(self, now_ms: int) -> int | None:
        points = self.points
        was_loading = points.is_loading
        if points.is_behind:
            points.read(_READ_RECORDS)
            if was_loading and not points.is_loading:
                self.changed()
            if points.is_behind:
                return now_ms
        revived = 1  # some messages, if it raises
        try:
            revived = points.revive(now_ms, _REVIVE_MESSAGES)
        finally:
            if revived:
                self.on_revived()
                self.changed()
        return points.in_flight.due_ms()

    # -- committing ---------------------------------------------------------------------------

    def _commit_in(self, delay_s: float) -> None:
        when = asyncio.get_running_loop().time() + delay_s
        if self._commit_timer is not None:
            if self._commit_timer.when() <= when:
                return
            self._commit_timer.cancel()
        self._commit_timer = self.tasks.call_at(when, self._commit_soon)

    def _commit_soon(self) -> None:
        self._commit_timer, self._commits_soon = None, False
        self.tasks.spawn(self._commit(), _COMMIT)

    async def _commit(self, *, is_last: bool = False) -> None:
        """Commit up to where groups have popped, once the check points are flushed. An error is logged."""
        async with self._committing:
            points = self.points
            if points.is_loading:
                return
            try:
                renewed = points.renew(self.clock(), _RENEW_POINTS)
                progress = points.progress()
                await self.driver.flush()
                for _ in points.committing(progress, is_last=is_last):
                    await asyncio.sleep(0)
            except RocketError as error:
                self.driver.jobs.ended(_COMMIT, error)
                log.error("cannot commit popped offsets: %s", error)
                self.changed()
                return
            self.driver.jobs.ended(_COMMIT)
            if renewed:
                self.on_revived()
            if self._is_master and (renewed or points.is_uncommitted):
                self.changed()
            elif self._is_master and points.in_flight:
                self._commit_in(_IDLE_S)  # to store old check points again
