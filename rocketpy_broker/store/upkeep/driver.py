"""Runs a message store in an asyncio program: schedules flush, dispatch, preallocation and retention.

Only the thread of the event loop changes the state of the store. Blocking disk calls (flush, preallocation,
deletion) run in worker threads, one of each kind at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
)
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, TypeVarTuple

from rocketpy.errors import FlushFailed, RocketError, StoreError
from rocketpy.runtime.progress import Jobs
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import PeriodicCall, Tasks
from rocketpy_broker.store.busy import Reason
from rocketpy_broker.store.log.flush import FlushPlan, PlanLimits, flush_failure
from rocketpy_broker.store.log.mapped_file_queue import Deletion
from rocketpy_broker.store.log.message_log import RecoveryReport
from rocketpy_broker.store.message_store import MessageStore
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue
from rocketpy_broker.store.upkeep.cleaner import Cleaner

logger = logging.getLogger("rocketpy_broker.store.driver")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_RETRY_S = 1.0
_QUEUES_MIN = 16
_QUEUES_MAX = 256
"""Limits of the number of queues in a part of a thorough flush."""
_PART_S = 0.02
"""If a part takes less time, the next one has twice as many queues. Sends that wait for a flush wait for the
part that runs."""
_PAUSE_FACTOR = 60
_PAUSE_MAX_S = 60.0
"""The pause after a flush of all files is this many times as long as the flush was, up to the maximum, or
flushIntervalConsumeQueue. With 20,000 queues, flushes would else take a third of the processor time. With
4,000 queues and 20 times, they took 3 % of it."""
_PLANNING_S = 0.005
"""Time limit of the event loop for one part."""
_LOG_INTERVAL_S = 60.0
"""A repeated failure is logged again after this time."""
_DISPATCH_DELAY_S = 0.001
_DISPATCH_WAITING_MAX = 200
"""Number of waiting records above which dispatch runs in the next turn of the loop, without the delay."""


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """State of a store, and statistics of its flushes."""

    failure: str | None
    """Why the store rejects messages; None while it accepts them."""
    dispatch_waiting: int
    """Number of written records that are not dispatched yet."""
    unflushed_bytes: int
    flushes: int
    """Number of flushes since the start."""
    flush_seconds: float
    """Total duration of these flushes."""
    flush_seconds_max: float
    """Duration of the longest one."""
    current_flush_seconds: float
    """Duration of the running flush so far; 0 while none is running."""
    stalled: tuple[str, ...] = ()
    """Jobs that have failed for a minute, such as a flush, the deletion of files or delayed delivery."""


class StoreDriver:
    """Owns the tasks and threads of one store.

    on_failure: called once, with the reason, when the store fails and rejects messages from then on.
    """

    def __init__(
        self, store: MessageStore, *, on_failure: Callable[[StoreError], None] | None = None
    ) -> None:
        self.store = store
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flush_thread = ThreadPoolExecutor(1, "store-flush")
        self._file_thread = ThreadPoolExecutor(1, "store-files")
        """Preallocates files and deletes expired ones."""
        self._checkpoint_thread = ThreadPoolExecutor(1, "store-checkpoint")
        self.tasks = Tasks("the store", self._task_failed)
        self._is_running = False
        self._stopping = asyncio.Event()
        self._periodic: list[PeriodicCall] = []
        self._monitored_s = 0.0
        """When the last call of `_monitor` ended."""
        self._sampled_s = 0.0
        self._flush_lock = asyncio.Lock()
        self._dispatch_handle: asyncio.Handle | None = None
        self._dispatches_next_turn = False
        self._checked_for_polls = 0
        """Number of waiting records that were checked against `polled_queues`."""
        self.polled_queues: Collection[tuple[str, int]] = ()
        """(topic, queue id) of the queues with long-polling consumers. Its owner updates it."""
        self.polled_topics: Collection[str] = ()
        """The topics for which consumers wait without naming a queue. Its owner updates it."""
        self.on_written: Callable[[], None] | None = None
        """Called after each write, before the messages are dispatched."""
        self.wait_for_commit: Callable[[], Awaitable[None]] | None = None
        """Waits until a majority of a DLedger group has all appended messages; raises StoreError."""
        self._preallocating: asyncio.Task[None] | None = None
        self._saving_flushed_offset: asyncio.Task[None] | None = None
        self.cleaner = Cleaner(store)
        self._cleaning = asyncio.Lock()
        self._undeleted: list[Deletion] = []
        """Deletions of files that retention removed from the store, and that failed or did not run yet."""
        self.jobs: Jobs = Jobs()
        """The jobs that try again after an error, also those of delayed messages and transactions."""
        self._failure_reported = False
        self._limited_log = RateLimitedLog(logger, _LOG_INTERVAL_S)
        self._flushes = 0
        self._flushed_at = 0.0
        self._flush_began: float | None = None
        self._flush_seconds = 0.0
        self._flush_seconds_max = 0.0

    async def start(self) -> RecoveryReport:
        """Open the store in a thread and start the tasks. Raises the errors of `MessageStore.open`.

        It also sets the soft limit of open files (RLIMIT_NOFILE) to the hard limit, since each queue that is
        being written has an open file.
        """
        _raise_file_limit()
        self._loop = asyncio.get_running_loop()
        try:
            report = await self._in_thread(self._flush_thread, self.store.open)
        except BaseException:  # a cancelled start must end its threads, too
            self._shut_executors()
            raise
        config = self.store.config
        log_s = config.flush.commit_log_interval_ms / 1000
        queue_s = config.flush.consume_queue_interval_ms / 1000
        monitor_s = self.store.overload_detector.interval_ms / 1000
        self._is_running = True
        self._monitored_s = self._sampled_s = self._loop.time()
        every = self.tasks.every
        flushing_all = every(queue_s, partial(self._flush_all_periodically, queue_s), "flush of all files")
        # Only files below the checkpoint are deleted, and a flush of all files saves it.
        self.cleaner.on_deletion = flushing_all.wake
        self._periodic = [
            flushing_all,
            every(log_s, partial(self._flush_periodically, log_s, thorough=False), "flush of the log"),
            every(lambda: config.retention.interval_ms / 1000, self._clean_periodically, "retention"),
            every(monitor_s, partial(self._monitor, self._loop.time, monitor_s), "monitor"),
        ]
        return report

    async def close(self) -> None:
        """Stop the tasks, then close the store; see `MessageStore.close`. Raises StoreError.

        A store that has failed is closed without a last flush; the next start recovers it.
        """
        self._stopping.set()
        for periodic in self._periodic:
            periodic.stop()
        was_running, self._is_running = self._is_running, False
        if self._dispatch_handle is not None:
            self._dispatch_handle.cancel()
        await self.tasks.wait()
        if not was_running:
            return
        try:
            async with self._flush_lock:
                await self._in_thread(self._flush_thread, self.store.close)
        finally:
            self._shut_executors()

    def _shut_executors(self) -> None:
        for executor in (self._flush_thread, self._file_thread, self._checkpoint_thread):
            executor.shutdown(wait=False)

    @staticmethod
    async def _in_thread(executor: ThreadPoolExecutor, work: Callable[[*Ts], T], *args: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, work, *args)

    def health(self) -> StoreHealth:
        """Return the state of the store and the statistics of its flushes."""
        store = self.store
        reason = store.failure or store.disk_full
        began = self._flush_began
        return StoreHealth(
            failure=None if reason is None else str(reason),
            dispatch_waiting=store.dispatcher.waiting,
            unflushed_bytes=store.max_physical_offset - store.flushed_offset,
            flushes=self._flushes,
            flush_seconds=self._flush_seconds,
            flush_seconds_max=self._flush_seconds_max,
            stalled=tuple(self.jobs.problems()),
            current_flush_seconds=0.0 if began is None or self._loop is None else self._loop.time() - began,
        )

    # -- dispatch --------------------------------------------------------------------------------

    def schedule_dispatch(self, delay_s: float = _DISPATCH_DELAY_S) -> None:
        """Dispatch soon, after the responses that wait to be sent, and preallocate files.

        Dispatch runs after `delay_s`, since each run has the overhead of about three records. It runs in the
        next turn of the loop if many records wait, or if one is for a queue with long-polling consumers.
        Other readers do not notice the delay: reading a queue dispatches first.
        """
        if self.on_written is not None:
            self.on_written()
        if self._loop is None or self._dispatches_next_turn:
            return
        dispatcher = self.store.dispatcher
        if dispatcher.is_stuck:
            if self._dispatch_handle is None:
                self._dispatch_handle = self.tasks.call_later(_RETRY_S, self._dispatch)
        elif dispatcher.waiting > _DISPATCH_WAITING_MAX or self._is_polled():
            self._dispatches_next_turn = True
            if self._dispatch_handle is not None:
                self._dispatch_handle.cancel()
            self._dispatch_handle = self.tasks.call_soon(self._dispatch)
        elif self._dispatch_handle is None:
            self._dispatch_handle = self.tasks.call_later(delay_s, self._dispatch)

    def _is_polled(self) -> bool:
        """Whether a record since the last check is for a queue with long-polling consumers."""
        polled, topics = self.polled_queues, self.polled_topics
        if not polled and not topics:
            return False
        unchecked = self.store.dispatcher.waiting_since(self._checked_for_polls)
        self._checked_for_polls += len(unchecked)
        cursors = {cursor for piece in unchecked for cursor in piece.queues}
        return any((cursor.topic, cursor.queue_id) in polled or cursor.topic in topics for cursor in cursors)

    def _dispatch(self) -> None:
        self._dispatch_handle = None
        self._dispatches_next_turn = False
        self._checked_for_polls = 0
        try:
            self.store.dispatch()
            self.jobs.ended("dispatch")
        except StoreError as error:
            self.jobs.ended("dispatch", error)
            if self._is_running:
                self._limited_log.error(
                    "dispatch", "dispatch failed, trying again in %s s: %s", _RETRY_S, error
                )
                self.schedule_dispatch()
        if self._preallocating is None and self.store.needs_preallocation():
            self._preallocating = self.tasks.spawn(self._preallocate(), "preallocation")

    async def _preallocate(self) -> None:
        """Reserve blocks and create the next file, in a thread."""
        store = self.store
        try:
            while store.needs_preallocation():
                store.adopt_preallocated(await self._in_thread(self._file_thread, store.preallocate_ahead))
            self.jobs.ended("preallocation of the log")
        except StoreError as error:
            self.jobs.ended("preallocation of the log", error)
            self._limited_log.error("preallocation", "cannot preallocate the commit log: %s", error)
            await self._stops_within(round(_RETRY_S * 1000))
        finally:
            self._preallocating = None

    # -- monitoring ------------------------------------------------------------------------------

    def _monitor(self, clock: Callable[[], float], interval_s: float) -> None:
        """Measure the delay of the loop, report a failed store, and sample the counters every second."""
        store, now_s = self.store, clock()
        delay_s = now_s - self._monitored_s - interval_s
        store.reject(Reason.BUSY, store.overload_detector.sample(delay_s * 1000))
        self._report_failure()  # a failed write does not report itself
        if now_s - self._sampled_s >= 1:
            self._sampled_s = now_s
            store.stats.sample(store.clock())
        self._monitored_s = clock()

    # -- retention -------------------------------------------------------------------------------

    async def _clean_periodically(self) -> None:
        try:
            await self.clean(pause_ms=self.store.config.retention.file_pause_ms)
            self.jobs.ended("deletion of expired files")
        except StoreError as error:
            self.jobs.ended("deletion of expired files", error)
            logger.error("cannot delete expired files, trying again at the next check: %s", error)

    async def clean(self, *, pause_ms: int = 0) -> int:
        """Delete the files that have expired. Raises StoreError if a deletion failed.

        pause_ms: pause after each file. A failed deletion is tried again by the next call. Returns the number
        of steps (see `Deletion`), 0 if nothing has expired.
        """
        async with self._cleaning:
            return await self._clean(pause_ms)

    async def clean_now(self) -> int:
        """Delete files that have expired without waiting for the hour of deleteWhen; else as `clean`.

        The next periodic passes continue, since one pass deletes only a few files.
        """
        self.cleaner.is_requested = True
        return await self.clean()

    async def _clean(self, pause_ms: int) -> int:
        if not self._is_running or self.store.failure is not None:
            return 0
        if self.store.rejection(Reason.NOT_MARKED) is not None:
            await self._in_thread(self._file_thread, self.store.mark_open)
            self.store.reject(Reason.NOT_MARKED, None)
            logger.warning("messages are accepted: the disk has space again")
        use = await self._in_thread(self._file_thread, self.cleaner.measure)
        # The store has no reference to these files, so those that are not deleted now must be kept here.
        chosen = await self.in_slices(self.cleaner.choose(use, self.store.clock()))
        self._undeleted += chosen
        if self._undeleted:
            await self._in_thread(self._file_thread, self.store.persist_min_offset)
        steps, self._undeleted = self._undeleted, []
        await self._delete_all(steps, pause_ms=pause_ms)
        return len(steps)

    async def drop_queues(self, is_unwanted: Callable[[ConsumeQueue], bool]) -> int:
        """Delete queues; return their number. The event loop deletes no file: see `MessageStore.take_queues`.

        Raises StoreError. After a failed deletion, the next call of `clean` tries it again.
        """
        taken = await self.in_slices(self.store.take_queues(is_unwanted))
        await self._delete_all(taken)
        return len(taken)

    async def _delete_all(self, steps: Iterable[Deletion], *, pause_ms: int = 0) -> None:
        """Delete files, in a thread. Raises StoreError; the next call of `clean` tries these again."""
        left, failure = deque(steps), None
        try:
            while left:
                failure = await self._delete(left.popleft()) or failure
                if pause_ms and await self._stops_within(pause_ms):
                    pause_ms = 0
        finally:
            self._undeleted += left
        if failure is not None:
            raise failure

    async def in_slices(self, work: Generator[None, None, T]) -> T:
        """Do work in the event loop. After `_PLANNING_S`, others have a turn."""
        clock = asyncio.get_running_loop().time
        end = clock() + _PLANNING_S
        while True:
            try:
                next(work)
            except StopIteration as result:
                found: T = result.value
                return found
            if clock() >= end:
                await asyncio.sleep(0)
                end = clock() + _PLANNING_S

    async def _delete(self, step: Deletion) -> StoreError | None:
        """Delete a file. Return the error if that fails; the next call of `clean` tries it again."""
        try:
            await self._in_thread(self._file_thread, step)
        except StoreError as error:
            self._undeleted.append(step)
            return error
        return None

    async def _stops_within(self, wait_ms: int) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), wait_ms / 1000)
        except TimeoutError:
            return False
        return True

    # -- flush -----------------------------------------------------------------------------------

    async def flush(self, *, commits: bool = True) -> int:
        """Make all appended messages durable; return the flushed offset. Raises StoreError.

        commits: in a DLedger group, first wait until a majority of the peers has them; False on a follower.
        """
        if commits and self.wait_for_commit is not None:
            await self.wait_for_commit()
        return await self._flush()

    async def _flush(self) -> int:
        """Flush the log; return the flushed offset. Raises StoreError."""
        await self._run_plan(self.store.plan_flush, has_log=True)
        return self.store.flushed_offset

    async def _flush_thoroughly(self) -> None:
        """Flush all files in parts, between which other clients are served, and other flushes run.

        Clients may create queues by the thousand, and each needs a call of the disk. Raises StoreError.
        """
        clock = asyncio.get_running_loop().time
        begin = 0.0
        limits = PlanLimits(_QUEUES_MIN, lambda: clock() >= begin + _PLANNING_S)
        plans = self.store.thorough_plans(limits)

        def next_plan() -> FlushPlan | None:
            nonlocal begin
            begin = clock()
            return next(plans, None)

        has_log = True
        while await self._run_plan(next_plan, has_log=has_log):
            has_log = False
            is_fast = clock() < begin + _PART_S
            limits.queues_max = min(2 * limits.queues_max, _QUEUES_MAX) if is_fast else _QUEUES_MIN
            await asyncio.sleep(0)

    async def _run_plan(self, make_plan: Callable[[], FlushPlan | None], *, has_log: bool) -> bool:
        """Make a plan, run and finish it; return False if there is none. Raises StoreError.

        has_log: whether it flushes the log.
        """
        store, clock = self.store, asyncio.get_running_loop().time
        async with self._flush_lock:
            if store.failure is not None:
                raise FlushFailed(f"the store is not flushed: {store.failure}")
            self._flush_began = begin = clock()
            try:
                plan, is_flushed = await self._run_flush(make_plan)
            finally:
                self._flush_began = None
            if is_flushed:
                self._count_flush(clock() - begin)
                if has_log:
                    self._log_was_flushed(begin)
        if has_log and store.dispatcher.waiting:
            self.schedule_dispatch()
        return plan is not None

    def _count_flush(self, seconds: float) -> None:
        self._flushes += 1
        self._flush_seconds += seconds
        self._flush_seconds_max = max(self._flush_seconds_max, seconds)

    def _log_was_flushed(self, begin: float) -> None:
        self._flushed_at = begin
        if self._saving_flushed_offset is None:
            save = self._save_flushed_offset()
            self._saving_flushed_offset = self.tasks.spawn(save, "save of the flushed offset")

    async def _run_flush(self, make_plan: Callable[[], FlushPlan | None]) -> tuple[FlushPlan | None, bool]:
        """Make, run and finish a plan; return it, and whether there was anything to flush. Raises StoreError.

        After a StoreError from planning, the caller may try again. Any other failure is final, because it is
        unknown what is durable.
        """
        store = self.store
        plan: FlushPlan | None = None
        try:
            plan = make_plan()
            if plan is None or plan.is_empty:
                return plan, False
            await self._in_thread(self._flush_thread, store.run_flush, plan)
            store.finish_flush(plan)
        except Exception as error:  # any failure of a flush is final, and raised as FlushFailed
            if plan is None and isinstance(error, StoreError):
                raise
            failure = flush_failure(error)
            store.fail(failure)
            self._report_failure()
            if plan is not None:
                store.finish_flush(plan, failure)
            raise failure from failure.__cause__
        return plan, True

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Pause flushes, preallocation and saves of the flushed offset, so that files can be truncated.

        Deletions of expired files continue.
        """
        async with self._flush_lock:
            tasks = (self._preallocating, self._saving_flushed_offset)
            working = {task for task in tasks if task is not None}
            if working:
                await asyncio.wait(working)
            yield

    async def _save_flushed_offset(self) -> None:
        """Save the flushed offset in the checkpoint, while the next flush runs. No response waits for it."""
        saved = -1
        try:
            while saved < self.store.flushed_offset:
                saved = self.store.flushed_offset
                await self._in_thread(self._checkpoint_thread, self.store.mark_flushed, saved)
        except FlushFailed:
            self._report_failure()
        finally:
            self._saving_flushed_offset = None

    async def _flush_all_periodically(self, interval_s: float) -> float:
        """Flush all files; return the pause before the next flush."""
        clock = asyncio.get_running_loop().time
        begin = clock()
        await self._flush_periodically(interval_s, thorough=True)
        return max(interval_s, min(_PAUSE_FACTOR * (clock() - begin), _PAUSE_MAX_S))

    async def _flush_periodically(self, interval_s: float, *, thorough: bool) -> None:
        if self.store.failure is not None or (not thorough and self._can_skip_flush()):
            return
        what = "flush of queues and index" if thorough else "flush"
        try:
            if thorough:
                self.store.check_in_place()
            await (self._flush_thoroughly() if thorough else self._flush())
            self.jobs.ended(what)
        except FlushFailed:
            return  # final; `_report_failure` reported it
        except StoreError as error:
            self.jobs.ended(what, error)
            self._limited_log.error(what, "%s failed, trying again in %g s: %s", what, interval_s, error)

    def _can_skip_flush(self) -> bool:
        """Whether fewer pages than flushCommitLogLeastPages are unflushed, and the last flush was recent."""
        flush = self.store.config.flush
        if not flush.commit_log_least_pages or self._loop is None:
            return False
        unflushed = self.store.max_physical_offset - self.store.flushed_offset
        is_overdue = self._loop.time() - self._flushed_at >= flush.commit_log_thorough_ms / 1000
        return unflushed < flush.commit_log_least_pages * 4096 and not is_overdue

    def _task_failed(self, failure: RocketError) -> None:
        """Fail the store, because one of its tasks has ended."""
        self.store.fail(StoreError(f"{failure}. The store rejects all messages; restart the broker"))
        self._report_failure()

    def _report_failure(self) -> None:
        if not self._failure_reported and self.store.failure is not None:
            self._failure_reported = True
            if self._on_failure is not None:
                self._on_failure(self.store.failure)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft not in (hard, resource.RLIM_INFINITY):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
