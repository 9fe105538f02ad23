"""Runs a message store in an asyncio program: schedules flush, dispatch, preallocation and retention.

The store's state belongs to the event loop's thread; only blocking disk calls (flush, preallocation) go to
threads, one of each kind at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

from rocketpy.errors import FlushFailed, RocketError, StoreError
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.store.busy import Reason
from rocketpy_broker.store.log.flush import FlushPlan, flush_failure
from rocketpy_broker.store.log.message_log import RecoveryReport
from rocketpy_broker.store.message_store import MessageStore
from rocketpy_broker.store.queue.queue_table import make_files
from rocketpy_broker.store.upkeep.cleaner import Cleaner, Deletion

logger = logging.getLogger("rocketpy_broker.store.driver")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_RETRY_S = 1.0
_FILES_AT_ONCE = 64
"""New files of queues that are made before another flush has its turn."""
_FILE_ROUNDS_MAX = 10
"""How often a thorough flush looks for queues that became new while it made the files of others."""
_REPEAT_S = 60.0
"""A failure that lasts is logged again so long after the last time."""
_DISPATCH_DELAY_S = 0.001
_DISPATCH_AT_ONCE = 200
"""Records that wait above which dispatch is not put off any longer."""


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """How the store is. failure: why it takes no messages, None while it does."""

    failure: str | None
    dispatch_waiting: int
    """Records written that are not in their queues yet."""
    unflushed_bytes: int
    flushes: int
    flush_seconds: float
    """Of all flushes together."""
    flush_seconds_max: float
    flushing_seconds: float
    """For how long the flush that runs now has been running; 0 while none does."""


class StoreDriver:
    """Owns the tasks and threads of one store.

    on_failure: called once when the store stops taking messages, with the reason.
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
        self._flush_lock = asyncio.Lock()
        self._dispatch_handle: asyncio.Handle | None = None
        self._dispatch_at_once = False
        self._checked_for_polls = 0
        self.polled_queues: Collection[tuple[str, int]] = ()
        """(topic, queue id) of the queues with long-polling consumers; read live."""
        self.on_written: Callable[[], None] | None = None
        """Called after each write, before the messages are dispatched."""
        self.wait_for_commit: Callable[[], Awaitable[None]] | None = None
        """Waits until a majority has what was appended; raises StoreError. None without a group."""
        self._preallocating: asyncio.Task[None] | None = None
        self._marking: asyncio.Task[None] | None = None
        self.cleaner = Cleaner(store)
        self._undeleted: list[Deletion] = []
        """Files that retention took out of the store and could not delete yet."""
        self._failure_reported = False
        self._limited_log = RateLimitedLog(logger, _REPEAT_S)
        self._flushes = 0
        self._flushed_at = 0.0
        self._flush_began: float | None = None
        self._flush_seconds = 0.0
        self._flush_seconds_max = 0.0

    async def start(self) -> RecoveryReport:
        """Open the store in a thread and start the tasks. Raises what `MessageStore.open` raises.

        Also raises this process's limit of open files as far as it may: each queue being written has one.
        """
        _raise_file_limit()
        self._loop = asyncio.get_running_loop()
        try:
            report = await self._in_thread(self._flush_thread, self.store.open)
        except BaseException:  # a cancelled start must end its threads, too
            self._shut_executors()
            raise
        flush = self.store.config.flush
        self._is_running = True
        spawn = self.tasks.spawn
        spawn(self._flush_periodically(flush.commit_log_interval_ms, thorough=False), "flush of the log")
        spawn(self._flush_periodically(flush.consume_queue_interval_ms, thorough=True), "flush of all")
        spawn(self._clean_periodically(), "retention")
        spawn(self._watch(), "watch")
        return report

    async def close(self) -> None:
        """Stop the tasks, then stop the store cleanly. Raises StoreError when that fails; it is closed then.

        After a failure the store is closed without a last flush: the next start recovers it.
        """
        self._stopping.set()
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
        """Return the store's state and the figures of its flushes."""
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
            flushing_seconds=0.0 if began is None or self._loop is None else self._loop.time() - began,
        )

    # -- dispatch --------------------------------------------------------------------------------

    def schedule_dispatch(self, delay_s: float = _DISPATCH_DELAY_S) -> None:
        """Dispatch soon, after the responses that wait to be sent, and preallocate files.

        Dispatch runs within a millisecond, as RocketMQ's dispatcher does, or in the loop's next turn once
        many records wait: a run costs about as much as dispatching three records. Reading a queue dispatches
        first, so readers never see the delay. Queues with long-polling consumers are dispatched in the next
        turn.
        """
        if self.on_written is not None:
            self.on_written()
        if self._loop is None or self._dispatch_at_once:
            return
        dispatcher = self.store.dispatcher
        if dispatcher.is_stuck:
            if self._dispatch_handle is None:
                self._dispatch_handle = self._loop.call_later(_RETRY_S, self.tasks.run, self._dispatch)
        elif dispatcher.waiting > _DISPATCH_AT_ONCE or (self.polled_queues and self._is_polled()):
            self._dispatch_at_once = True
            if self._dispatch_handle is not None:
                self._dispatch_handle.cancel()
            self._dispatch_handle = self._loop.call_soon(self.tasks.run, self._dispatch)
        elif self._dispatch_handle is None:
            self._dispatch_handle = self._loop.call_later(delay_s, self.tasks.run, self._dispatch)

    def _is_polled(self) -> bool:
        """Whether a record since the last check is for a queue with long-polling consumers."""
        fresh = self.store.dispatcher.waiting_since(self._checked_for_polls)
        self._checked_for_polls += len(fresh)
        polled = self.polled_queues
        return any((cursor.topic, cursor.queue_id) in polled for cursor, *_ in fresh)

    def _dispatch(self) -> None:
        self._dispatch_handle = None
        self._dispatch_at_once = False
        self._checked_for_polls = 0
        try:
            self.store.dispatch()
        except StoreError as error:
            if self._is_running:
                self._limited_log.error(
                    "dispatch", "dispatch failed and is tried again in %s s: %s", _RETRY_S, error
                )
                self.schedule_dispatch()
        if self._preallocating is None and self.store.needs_preallocation():
            self._preallocating = self.tasks.spawn(self._preallocate(), "preallocation")

    async def _preallocate(self) -> None:
        """Reserve blocks and create the next file, off the loop."""
        store = self.store
        try:
            while store.needs_preallocation():
                store.adopt_preallocated(await self._in_thread(self._file_thread, store.preallocate_ahead))
        except StoreError as error:
            self._limited_log.error("preallocation", "cannot preallocate the commit log: %s", error)
            await asyncio.sleep(0 if self._stopping.is_set() else _RETRY_S)
        finally:
            self._preallocating = None

    # -- watching --------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Measure how late the loop is, report a failed store, sample the counters once a second."""
        store, interval_ms = self.store, self.store.overload_detector.interval_ms
        clock = asyncio.get_running_loop().time
        sampled = clock()
        while True:
            due = clock() + interval_ms / 1000
            if await self._stops_within(interval_ms):
                return
            now = clock()
            store.reject(Reason.BUSY, store.overload_detector.sample((now - due) * 1000))
            self._report_failure()  # a write may fail permanently, too
            if now - sampled >= 1:
                sampled = now
                store.stats.sample(store.clock())

    # -- retention -------------------------------------------------------------------------------

    async def _clean_periodically(self) -> None:
        retention = self.store.config.retention
        while not await self._stops_within(retention.interval_ms):
            try:
                await self.clean(pause_ms=retention.file_pause_ms)
            except StoreError as error:
                logger.error("old files are not deleted: %s", error)

    async def clean(self, *, pause_ms: int = 0) -> int:
        """Delete expired files once; returns how many. Raises StoreError when one cannot be deleted yet."""
        if not self._is_running or self.store.failure is not None:
            return 0
        use = await self._in_thread(self._file_thread, self.cleaner.measure)
        # The store does not know these files any more: whatever is not deleted now must be remembered.
        steps, self._undeleted = self._undeleted + self.cleaner.choose(use, self.store.clock()), []
        left, failure = deque(steps), None
        try:
            if steps:
                await self._in_thread(self._file_thread, self.store.persist_min_offset)
            while left:
                failure = await self._delete(left.popleft()) or failure
                if pause_ms and await self._stops_within(pause_ms):
                    pause_ms = 0
        finally:
            self._undeleted += left
        if failure is not None:
            raise failure
        return len(steps)

    async def _delete(self, step: Deletion) -> StoreError | None:
        """Delete a file, or return why it stays; then the next pass tries it again."""
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

    async def flush(self) -> int:
        """Make what was appended until now durable; returns the flushed offset. Raises StoreError.

        In a group, durable means that a majority has it.
        """
        if self.wait_for_commit is not None:
            await self.wait_for_commit()
        return await self._flush(thorough=False)

    async def _flush(self, *, thorough: bool, new_files: bool = True) -> int:
        store, clock = self.store, asyncio.get_running_loop().time
        async with self._flush_lock:
            if store.failure is not None:
                raise FlushFailed(f"the store is not flushed: {store.failure}")
            self._flush_began = begin = clock()
            try:
                is_flushed = await self._run_flush(thorough=thorough, new_files=new_files)
            finally:
                self._flush_began = None
            if is_flushed:
                if self._marking is None:
                    self._marking = self.tasks.spawn(self._mark_flushed(), "flush mark")
                self._flushes += 1
                self._flushed_at = begin
                seconds = clock() - begin
                self._flush_seconds += seconds
                self._flush_seconds_max = max(self._flush_seconds_max, seconds)
        if store.dispatcher.waiting:
            self.schedule_dispatch()
        return store.flushed_offset

    async def _run_flush(self, *, thorough: bool, new_files: bool) -> bool:
        """Plan, run and finish a flush; False: there was nothing to flush. Raises StoreError.

        A StoreError from planning may be tried again. Any other failure is final, because it leaves unknown
        what is durable.
        """
        store = self.store
        plan: FlushPlan | None = None
        try:
            plan = store.plan_flush(thorough=thorough, new_files=new_files)
            if plan.is_empty:
                return False
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
        return True

    async def _make_queue_files(self) -> bool:
        """Make the files of new queues in a thread: thousands of them would block the loop for seconds.

        Returns False when one cannot be made. Queues that are still new after some rounds wait for the next
        flush: clients may make topics faster than this disk makes files.
        """
        queues = self.store.queues
        for _ in range(_FILE_ROUNDS_MAX):
            waiting = queues.without_file()
            if not waiting:
                break
            while waiting:
                batch, waiting = waiting[:_FILES_AT_ONCE], waiting[_FILES_AT_ONCE:]
                async with self._flush_lock:  # other flushes run between two batches
                    made = await self._in_thread(self._flush_thread, make_files, batch)
                    for queue, file in made:
                        queues.adopt_file(queue, file)
                if len(made) < len(batch):
                    return False
        return True

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Keep threads off the store's files while the loop's own thread changes more than it appends."""
        async with self._flush_lock:
            working = {task for task in (self._preallocating, self._marking) if task is not None}
            if working:
                await asyncio.wait(working)
            yield

    async def _mark_flushed(self) -> None:
        """Write the flushed offset to the checkpoint during the next flush; no response waits for it."""
        marked = -1
        try:
            while marked < self.store.flushed_offset:
                marked = self.store.flushed_offset
                await self._in_thread(self._checkpoint_thread, self.store.mark_flushed, marked)
        except FlushFailed:
            self._report_failure()
        finally:
            self._marking = None

    async def _flush_periodically(self, interval_ms: int, *, thorough: bool) -> None:
        while self.store.failure is None:
            if await self._stops_within(interval_ms):
                return
            if not thorough and self._may_wait():
                continue
            try:
                # Where a file could not be made, the flush meets the same error, and reports it.
                new_files = thorough and not await self._make_queue_files()
                await self._flush(thorough=thorough, new_files=new_files)
            except FlushFailed:
                return  # final; `_report_failure` reported it
            except StoreError as error:
                what = "flush of queues and index" if thorough else "flush"
                self._limited_log.error(
                    what, "%s failed and is tried again in %d ms: %s", what, interval_ms, error
                )

    def _may_wait(self) -> bool:
        """Whether so little is written that the log's flush may wait (flushCommitLogLeastPages)."""
        flush = self.store.config.flush
        if not flush.commit_log_least_pages or self._loop is None:
            return False
        written = self.store.max_physical_offset - self.store.flushed_offset
        late = self._loop.time() - self._flushed_at >= flush.commit_log_thorough_ms / 1000
        return written < flush.commit_log_least_pages * 4096 and not late

    def _task_failed(self, failure: RocketError) -> None:
        """Take no more messages: a task that the store depends on has ended."""
        self.store.fail(StoreError(f"{failure}. The store takes no more messages; restart it"))
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
