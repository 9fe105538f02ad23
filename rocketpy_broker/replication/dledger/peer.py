"""One peer of a group, running: a `RaftNode` between sockets, a clock and files.

The node belongs to the event loop's thread. What it wants stored is written there and flushed in a thread of
its own; whatever comes meanwhile waits for the next flush, so one flush serves many entries. Pushes and
heartbeats leave before anything is written: they promise nothing of this peer's own disk, so the disks of a
group work at the same time. All other calls, and every answer, leave after the flush.

Source: DLedgerServer of DLedger 0.1. Differs: 0.1 flushes every 10 ms, whatever it has answered by then.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rocketpy.errors import DiskFull, InvariantError, NotEnoughReplicas, NotLeader, RocketError, StoreError
from rocketpy.runtime.tasks import Tasks, close_all
from rocketpy.transport import Address, Channel, ChannelOptions, Server, serve
from rocketpy_broker.replication.dledger.authentication import PeerAuthenticator, authenticate
from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.events import Event, Expire, Ready, ResponseReceived, Tick
from rocketpy_broker.replication.dledger.core.log_view import StoredLedger, Write
from rocketpy_broker.replication.dledger.core.messages import RaftMessage
from rocketpy_broker.replication.dledger.core.node import RaftNode
from rocketpy_broker.replication.dledger.core.raft_state import LedgerCheckpoint, Role, TermState
from rocketpy_broker.replication.dledger.core.settings import RaftSettings
from rocketpy_broker.replication.dledger.disk_thread import DiskThread
from rocketpy_broker.replication.dledger.peer_transport import RaftClient, RaftEndpoint
from rocketpy_broker.replication.dledger.storage.state_files import StateFiles
from rocketpy_broker.store.files.disk import Disk
from rocketpy_broker.store.log.flush import Flushable, FlushPlan, flush_failure, flush_now
from rocketpy_broker.store.log.mapped_file import MappedFile

log = logging.getLogger("rocketpy.broker.dledger")

_TICK_S: Final = 0.01
_CHECKPOINT_S: Final = 3.0
_FLUSH_S: Final = 0.01
"""How often a ledger that nobody waits for is flushed."""
_INLINE_FLUSH_S_MAX: Final = 0.003
"""A flush that takes no longer than this may hold up the loop."""
_INLINE_FLUSH_PAUSE_FACTOR: Final = 20
"""After one that took longer, so many times as long none may."""
_THOROUGH_FLUSH_S: Final = 1.0
_DISK_FULL_RETRY_S: Final = 0.5


class Ledger(StoredLedger, Flushable, Protocol):
    """The files of a ledger. All but `run_flush` and `preallocate_ahead` is called in the loop's thread.

    A flush that fails ends the peer.
    """

    def apply(self, write: Write) -> None:
        """Make a change; from then on entries can be read.

        Raises DiskFull: nothing has changed, it is tried again. Raises StoreError: the peer stops for good.
        """

    def plan_flush(self, *, thorough: bool) -> FlushPlan:
        """What is to be flushed: entries, and if `thorough` what can be made anew from them, too."""

    def needs_preallocation(self) -> bool:
        """Whether blocks or the next file should be reserved now."""

    def preallocate_ahead(self) -> MappedFile | None:
        """Reserve them; for a thread. Raises DiskFull, StoreError."""

    def adopt_preallocated(self, file: MappedFile | None) -> None:
        """Take what was reserved."""


@dataclass(frozen=True, slots=True)
class PeerState:
    """Where a peer is. leader_id: None while nobody leads, as far as it knows."""

    role: Role
    term: int
    leader_id: str | None


@dataclass(frozen=True, slots=True)
class PeerHealth:
    """How a peer is. lags: how many entries each of the others lacks, as a leader knows it; else empty.

    leader_changes: how often another began to lead. problem: why it takes no part; empty if it does.
    """

    role: Role
    term: int
    leader_id: str | None
    end_index: int
    committed_index: int
    leader_changes: int
    lags: dict[str, int]
    problem: str


class PeerListener(Protocol):
    """Whom a peer tells, in the loop's thread."""

    def committed(self, index: int) -> None:
        """The ledger is committed up to here, which is more than before; entries up to it can be read."""

    def changed(self, state: PeerState) -> None:
        """Role, term or leader is another."""

    def failed(self, error: StoreError | InvariantError) -> None:
        """It has stopped for good: disk and memory may differ."""


class Peer:
    """Runs from `start` to `close`.

    directory: for term and vote. committed: returns the index up to which entries are known to be committed,
    beside what the checkpoint says. listen: where the others reach it. names: one of them must be
    in a peer's certificate; empty: any certificate, or none, will do. flush: whether entries are durable
    before they are acknowledged; without, they are flushed every 10 ms, as in 0.1.
    """

    def __init__(
        self,
        settings: RaftSettings,
        ledger: Ledger,
        directory: Path,
        disk: Disk,
        listener: PeerListener,
        *,
        committed: Callable[[], int] = lambda: -1,
        listen: Address,
        listen_options: ChannelOptions | None = None,
        connect_options: ChannelOptions | None = None,
        names: frozenset[str] = frozenset(),
        flush: bool = True,
    ) -> None:
        self.settings = settings
        self._ledger = ledger
        self._files = StateFiles(disk, directory)
        self._known_committed = committed
        self._listen = listen
        self._listen_options = listen_options
        self._connect_options = connect_options or ChannelOptions()
        self._flushes = flush
        self._listener = listener
        self._server: Server | None = None
        self._thread: DiskThread | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._process_handle: asyncio.Handle | None = None
        self._is_storing = False
        self._tasks = Tasks(f"peer {settings.self_id}", self._fail_with)
        gate = PeerAuthenticator(settings, names, self._tasks) if settings.secret or names else None
        self._endpoint = RaftEndpoint(self._step, self.process_ready, gate)
        self._checkpoint_task: asyncio.Task[None] | None = None
        self._preallocation_task: asyncio.Task[None] | None = None
        self._is_flushing = False
        self._stalled: Ready | None = None
        """What could not be written because the disk is full."""
        self._thorough_at = self._slow_until = 0.0
        self._notified = (PeerState(Role.CANDIDATE, -1, None), -1)
        self._saved = LedgerCheckpoint()
        self._is_unflushed = False
        self._wants_push = False
        """Has something been appended, or answered, since the node last pushed?"""
        self._is_running = False
        self._readable = -1
        self._leader_changes = 0
        self.failure: StoreError | InvariantError | None = None
        """Why it stopped for good; None while it runs."""
        self.disk_full: DiskFull | None = None
        """Why it takes part no more until there is room on its disk."""

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read term and vote, listen, and take part. Raises StoreDamaged, StoreError, OSError."""
        self._loop = loop = asyncio.get_running_loop()
        settings, ledger = self.settings, self._ledger
        state = self._files.load_term(has_entries=ledger.end_index >= 0)
        self._saved = self._files.load_checkpoint()
        known = LedgerCheckpoint(max(self._saved.committed_index, self._known_committed()), ledger.end_index)
        self._node = RaftNode(settings, ledger, state, known, random.random, self._now_ms())
        others = {peer: Address.parse(settings.peers[peer]) for peer in settings.others}
        self._client = RaftClient(
            others,
            self._connect_options,
            self._on_response,
            self.process_ready,
            self._tasks,
            self._authenticate,
        )
        self._is_running = True
        self._server = await serve(self._listen, self._endpoint, self._listen_options, self._tasks.fail_with)
        self._tick()
        self._timers["checkpoint"] = loop.call_later(_CHECKPOINT_S, self._tasks.run, self._save_checkpoint)
        if not self._flushes:
            log.warning("peer %s acknowledges entries before they are flushed", settings.self_id)
            self._timers["flush"] = loop.call_later(_FLUSH_S, self._tasks.run, self._flush_periodically)

    async def _authenticate(self, channel: Channel, peer: str) -> None:
        settings = self.settings
        if settings.secret:
            await authenticate(channel, settings.secret, settings.group, settings.self_id, peer)

    async def close(self) -> None:
        """Take part no more; what is being stored is stored. Ledger and files are left to their owner."""
        self._stop()
        client = None if self._server is None else self._client
        await close_all(client, self._server, self._thread, self._tasks.wait, self._save_last_checkpoint)

    async def _save_last_checkpoint(self) -> None:
        if self._server is not None and self.failure is None:
            await self._save(self._checkpoint())

    def _stop(self) -> None:
        self._is_running = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._process_handle is not None:
            self._process_handle.cancel()
            self._process_handle = None

    def _fail_with(self, error: BaseException) -> None:
        """Stop for good; an error that nobody expects is a broken invariant."""
        if isinstance(error, StoreError | InvariantError):
            self._fail(error)
            return
        failure = InvariantError(str(error) if isinstance(error, RocketError) else repr(error))
        failure.__cause__ = error
        self._fail(failure)

    def _fail(self, error: StoreError | InvariantError) -> None:
        """Say nothing more to anybody: what was promised might not hold."""
        if self.failure is not None:
            return
        self.failure = error
        log.critical("peer %s stops: %s", self.settings.self_id, error, exc_info=error)
        self._stop()
        self._client.close()
        if self._server is not None:
            self._tasks.spawn(self._server.close(), "close after a failure")
        self._listener.failed(error)

    # -- what its owner asks ------------------------------------------------------------------

    @property
    def state(self) -> PeerState:
        """Role, term and leader now."""
        raft = self._node.state
        return PeerState(raft.role, raft.term, raft.leader_id)

    @property
    def committed_index(self) -> int:
        """The group has the entries up to here, and this peer can read them; -1: none."""
        raft = self._node.state
        if raft.role is Role.LEADER:  # it cuts nothing, so what is in its files stays
            return max(self._readable, min(raft.committed_index, self._ledger.end_index))
        return self._readable

    @property
    def end_index(self) -> int:
        """Of the newest entry, appended just now even; -1: there is none."""
        return self._node.view.end_index

    @property
    def lags(self) -> dict[str, int]:
        """How many entries each of the others lacks, as its leader knows it; empty on any other peer."""
        end = self.end_index
        return {follower.peer: end - follower.match_index for follower in self._node.followers}

    def health(self) -> PeerHealth:
        """How it is now."""
        state, problem = self.state, self.failure or self.disk_full
        return PeerHealth(
            state.role,
            state.term,
            state.leader_id,
            self.end_index,
            self.committed_index,
            self._leader_changes,
            self.lags,
            "" if problem is None else str(problem) or repr(problem),
        )

    def expire(self, begin_index: int) -> None:
        """The ledger's owner is about to delete what is older than this entry, which is committed."""
        self._step(Expire(begin_index))

    @property
    def address(self) -> Address:
        """Where the others reach it, with the real port."""
        return self._listen if self._server is None else self._server.address

    def append(self, body: bytes) -> Entry:
        """Append an entry, as the leader, and return it: where it lies and in which term is settled.

        It is committed when `committed_index` has reached it while the term is still the same; after that
        term it may be there or not. All that is appended in one turn of the loop, or until `turn`, goes out
        and to disk together. Raises NotLeader, NotEnoughReplicas (too much waits), DiskFull.
        """
        if not self._is_running:
            raise NotLeader(f"peer {self.settings.self_id} does not run")
        if self.disk_full is not None:
            raise self.disk_full
        entry = self._node.append(body)
        if entry is None:
            raise NotEnoughReplicas(f"{self.settings.pending_max} entries wait for a majority")
        self._wants_push = True
        self._process_soon()
        return entry

    def next_entry_pos(self, body_bytes: int) -> int:
        """Return where the next entry will lie, with a body of so many bytes."""
        return self._node.view.next_entry_pos(body_bytes)

    # -- events -------------------------------------------------------------------------------

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def _tick(self) -> None:
        self._timers["tick"] = self._loop.call_later(_TICK_S, self._tasks.run, self._tick)
        self._step(Tick())
        self.process_ready()

    def _on_response(self, number: int, message: RaftMessage | None) -> None:
        self._step(ResponseReceived(number, message))
        self._wants_push = True
        if message is None:  # an answer ends with its socket buffer, and that with a turn
            self._process_soon()

    def _step(self, event: Event) -> None:
        if not self._is_running:
            return
        try:
            self._node.step(event, self._now_ms())
        except Exception as error:  # noqa: BLE001 - whatever it is, the peer must not go on
            self._fail_with(error)

    # -- doing what is ready ------------------------------------------------------------------

    def _process_soon(self) -> None:
        if self._process_handle is None and self._is_running:
            self._process_handle = self._loop.call_soon(self._tasks.run, self.process_ready)

    def process_ready(self) -> None:
        """Send, store and answer what is ready now, not only when the loop's turn ends."""
        if self._process_handle is not None:
            self._process_handle.cancel()
            self._process_handle = None
        if not self._is_running:
            return
        try:
            if self._stalled is None:  # else what others say is heard all the same
                self._process_all_ready()
            self._notify_listener()
        except Exception as error:  # noqa: BLE001 - whatever it is, the peer must not go on
            self._fail_with(error)

    def _process_all_ready(self) -> None:
        if self._wants_push:
            self._wants_push = False
            self._node.push(self._now_ms())
        while not self._is_storing and self._stalled is None:
            ready = self._node.take_ready()
            if not ready:
                self._readable = ready.committed_index
                break
            self._start_ready(ready)

    def _start_ready(self, ready: Ready) -> None:
        """Let go what may leave early, and see to the rest."""
        if ready.term_state is not None and ready.write:
            # In this order: a ledger from a later term than the vote is damaged.
            rest = dataclasses.replace(ready, term_state=None)
            self._store(ready.term_state, None, lambda: self._start_ready(rest))
            return
        if ready.requests:
            for request in ready.requests_before_write:
                self._client.send(request)
            self._client.flush()  # others begin before this peer's own disk does
        self._write(ready)

    def _write(self, ready: Ready) -> None:
        """Write what is to be written, and flush if something has to be durable before the rest is done."""
        if ready.write:
            try:
                self._ledger.apply(ready.write)
            except DiskFull as error:
                self._stall(ready, error)
                return
            self._is_unflushed = True
            self._preallocate_if_needed()
        self._readable = ready.committed_index
        plan = self._plan_flush() if self._flushes and ready.write else None
        if ready.term_state is None and (plan is None or self._flush_inline(plan, ready.write)):
            self._finish_ready(ready)
        else:
            self._store(ready.term_state, plan, lambda: self._finish_ready(ready))

    def _flush_inline(self, plan: FlushPlan, write: Write) -> bool:
        """Flush a lone entry in the loop's thread, while the disk is quick; False: not done.

        Two changes of threads take longer than such a flush, and a client waits for them. Raises FlushFailed.
        """
        begin = time.monotonic()
        is_little = len(write.entries) == len(plan.targets) == 1 and not plan.directories
        if not is_little or plan.checkpoint is not None or begin < self._slow_until:
            return False
        flush_now(self._ledger, plan)
        took = time.monotonic() - begin
        if took > _INLINE_FLUSH_S_MAX:
            self._slow_until = begin + _INLINE_FLUSH_PAUSE_FACTOR * took
        return True

    def _store(self, state: TermState | None, plan: FlushPlan | None, then: Callable[[], None]) -> None:
        """Make term and vote durable, then the ledger, in the thread; then go on."""

        def store() -> None:
            if state is not None:
                self._files.save_term(state)
            if plan is not None:
                self._ledger.run_flush(plan)

        def stored(error: BaseException | None) -> None:
            self._is_storing = False
            if self._on_flush_done(plan, error) and self._is_running:
                try:
                    then()
                except Exception as failure:  # noqa: BLE001 - whatever it is, the peer must not go on
                    self._fail_with(failure)
                else:
                    self.process_ready()

        self._is_storing = True
        self._run_on_disk_thread(store, stored)

    def _on_flush_done(self, plan: FlushPlan | None, error: BaseException | None) -> bool:
        """Take note of what was done in the thread; False: it failed, and the peer with it."""
        if plan is not None:
            self._ledger.finish_flush(plan, None if error is None else flush_failure(error))
        if error is not None:
            self._fail_with(error)
        return error is None

    def _run_on_disk_thread(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        if self._thread is None:
            self._thread = DiskThread(f"dledger-{self.settings.self_id}")
        self._thread.run(work, lambda error: self._tasks.run(done, error))

    def _plan_flush(self) -> FlushPlan:
        now = self._loop.time()
        thorough = now - self._thorough_at > _THOROUGH_FLUSH_S
        if thorough:
            self._thorough_at = now
        self._is_unflushed = False
        return self._ledger.plan_flush(thorough=thorough)

    def _stall(self, ready: Ready, error: DiskFull) -> None:
        """Say nothing until there is room: the others go on without this peer."""
        if self.disk_full is None:
            log.error("peer %s waits for room on its disk: %s", self.settings.self_id, error)
        self.disk_full = error
        self._stalled = ready
        self._timers["stall"] = self._loop.call_later(
            _DISK_FULL_RETRY_S, self._tasks.run, self._retry_stalled
        )

    def _retry_stalled(self) -> None:
        ready, self._stalled = self._stalled, None
        if ready is None:
            return
        try:
            self._write(ready)
        except Exception as error:  # noqa: BLE001 - whatever it is, the peer must not go on
            self._fail_with(error)
            return
        if self._stalled is None:
            self.disk_full = None
            self.process_ready()

    def _finish_ready(self, ready: Ready) -> None:
        for request in ready.requests_after_write:
            self._client.send(request)
        for response in ready.responses:
            self._endpoint.respond(response)
        self._endpoint.flush()
        self._node.advance(self._now_ms())

    def _notify_listener(self) -> None:
        """Tell the owner what has changed; not what was told before."""
        state, committed = self.state, self.committed_index
        notified_state, notified_committed = self._notified
        self._notified = state, committed
        # The role first: what another leader has committed is no answer to what this one has taken.
        if state != notified_state:
            if state.leader_id is not None and state.leader_id != notified_state.leader_id:
                self._leader_changes += 1
            log.info("peer %s is %s of term %d", self.settings.self_id, state.role.value, state.term)
            self._listener.changed(state)
        if committed != notified_committed:
            self._listener.committed(committed)

    # -- now and then -------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        """Save how far the group is: a peer that starts again may read up to there at once."""
        self._timers["checkpoint"] = self._loop.call_later(
            _CHECKPOINT_S, self._tasks.run, self._save_checkpoint
        )
        if self._checkpoint() != self._saved and (
            self._checkpoint_task is None or self._checkpoint_task.done()
        ):
            self._checkpoint_task = self._tasks.spawn(self._save(self._checkpoint()), "checkpoint")

    def _checkpoint(self) -> LedgerCheckpoint:
        return LedgerCheckpoint(self.committed_index, self._ledger.end_index)

    async def _save(self, checkpoint: LedgerCheckpoint) -> None:
        try:
            await asyncio.to_thread(self._files.save_checkpoint, checkpoint)
        except StoreError as error:
            log.error("the checkpoint is not saved: %s", error)
        else:
            self._saved = checkpoint

    def _flush_periodically(self) -> None:
        """Without `flush` only: nothing waits for it, so it must not hold up what is ready."""
        self._timers["flush"] = self._loop.call_later(_FLUSH_S, self._tasks.run, self._flush_periodically)
        if self._is_unflushed and not self._is_flushing:
            plan = self._plan_flush()

            def flushed(error: BaseException | None) -> None:
                self._is_flushing = False
                self._on_flush_done(plan, error)

            self._is_flushing = True
            self._run_on_disk_thread(lambda: self._ledger.run_flush(plan), flushed)

    def _preallocate_if_needed(self) -> None:
        if self._preallocation_task is None and self._ledger.needs_preallocation():
            self._preallocation_task = self._tasks.spawn(self._preallocate(), "room ahead")

    async def _preallocate(self) -> None:
        try:
            while self._is_running and self._ledger.needs_preallocation():
                self._ledger.adopt_preallocated(await asyncio.to_thread(self._ledger.preallocate_ahead))
        except StoreError as error:
            log.error("no room ahead of the ledger: %s", error)
            await asyncio.sleep(_DISK_FULL_RETRY_S)
        finally:
            self._preallocation_task = None
