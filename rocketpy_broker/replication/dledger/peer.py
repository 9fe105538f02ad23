"""One running peer of a group: drives a `RaftNode` with sockets, a clock and files.

The node belongs to the event loop's thread. Changes are written there and flushed in a thread. Whatever is
appended or received meanwhile waits for the next flush, so one flush serves many entries. Pushes and
heartbeats are sent before the write: they do not depend on this peer's disk, so the disks of a group work in
parallel. All other requests, and all responses, are sent after the flush.

Source: DLedgerServer of DLedger 0.1. Differs: 0.1 flushes every 10 ms, after it has acknowledged the entries.
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
from rocketpy.runtime.tasks import PeriodicCall, Tasks, close_all
from rocketpy.transport import Address, Channel, ChannelOptions, Server, serve
from rocketpy_broker.replication.dledger.authentication import PeerAuthenticator, authenticate
from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.events import (
    EntriesExpiring,
    Event,
    Ready,
    ResponseReceived,
    Tick,
)
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
"""Interval of flushes with `flush` off."""
_INLINE_FLUSH_S_MAX: Final = 0.003
"""A flush may block the event loop for this long."""
_INLINE_FLUSH_PAUSE_FACTOR: Final = 20
"""After a slower flush, none blocks the event loop for this many times its duration."""
_THOROUGH_FLUSH_S: Final = 1.0
_DISK_FULL_RETRY_S: Final = 0.5


class Ledger(StoredLedger, Flushable, Protocol):
    """The files of a ledger. All methods except `run_flush` and `preallocate_ahead` run in the loop's thread.

    A failed flush stops the peer.
    """

    def apply(self, write: Write) -> None:
        """Make a change, after which its entries can be read.

        Raises:
            DiskFull: Nothing has changed; the peer tries again.
            StoreError: The peer stops for good.
        """

    def plan_flush(self, *, thorough: bool) -> FlushPlan:
        """Plan a flush of the entries; with `thorough`, also of what can be rebuilt from them."""

    def needs_preallocation(self) -> bool:
        """Whether blocks or the next file should be reserved now."""

    def preallocate_ahead(self) -> MappedFile | None:
        """Reserve them; runs in a thread. Raises DiskFull, StoreError."""

    def adopt_preallocated(self, file: MappedFile | None) -> None:
        """Take over what `preallocate_ahead` returned."""


@dataclass(frozen=True, slots=True)
class PeerState:
    """Role, term and leader of a peer."""

    role: Role
    term: int
    leader_id: str | None
    """None while the peer knows no leader."""


@dataclass(frozen=True, slots=True)
class PeerHealth:
    """The state of a peer for operators."""

    role: Role
    term: int
    leader_id: str | None
    end_index: int
    committed_index: int
    leader_changes: int
    """How often the leader has changed."""
    lags: dict[str, int]
    """Missing entries by follower, on the leader only."""
    lags_ms: dict[str, int]
    """For how long each has lacked entries."""
    problem: str
    """Why the peer is not active; empty if it is."""
    silent: tuple[str, ...]
    """Followers that do not respond to heartbeats, on the leader only."""


class PeerListener(Protocol):
    """Receives the events of a peer, in the loop's thread."""

    def committed(self, index: int) -> None:
        """More entries are committed: those up to `index`, which can be read."""

    def changed(self, state: PeerState) -> None:
        """Role, term or leader have changed."""

    def failed(self, error: StoreError | InvariantError) -> None:
        """The peer has stopped for good, as disk and memory may differ."""


class Peer:
    """One peer; it runs from `start` to `close`.

    directory: for term and vote. committed: returns an index up to which entries are known to be committed,
    besides the checkpoint. listen: the peer's own address. allowed_names: names in certificates of peers;
    empty allows any certificate, or none. flush: whether to make entries durable before they are
    acknowledged. If False, they are flushed every 10 ms, as in 0.1.
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
        allowed_names: frozenset[str] = frozenset(),
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
        self._periodic: list[PeriodicCall] = []
        self._stall_timer: asyncio.TimerHandle | None = None
        self._process_handle: asyncio.Handle | None = None
        self._is_storing = False
        self._tasks = Tasks(f"peer {settings.self_id}", self._fail_with)
        authenticator = None
        if settings.secret or allowed_names:
            authenticator = PeerAuthenticator(settings, allowed_names, self._tasks)
        self._endpoint = RaftEndpoint(self._step, self.process_ready, authenticator)
        self._preallocation_task: asyncio.Task[None] | None = None
        self._is_flushing = False
        self._stalled: Ready | None = None
        """A Ready that could not be written because the disk is full."""
        self._thorough_at = self._inline_flush_at = 0.0
        self._notified = (PeerState(Role.CANDIDATE, -1, None), -1)
        self._saved = LedgerCheckpoint()
        self._is_unflushed = False
        self._wants_push = False
        """Whether anything was appended or acknowledged since the node's last push."""
        self._is_running = False
        self._readable = -1
        """Index of the newest committed entry that the files have."""
        self._leader_changes = 0
        self.failure: StoreError | InvariantError | None = None
        """Why the peer has stopped for good; None while it runs."""
        self.disk_full: DiskFull | None = None
        """Set while the peer pauses because its disk is full."""

    # -- start and close ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read term and vote, listen, and join the group. Raises StoreDamaged, StoreError, OSError."""
        self._loop = asyncio.get_running_loop()
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
        every = self._tasks.every
        self._periodic = [
            every(_TICK_S, self._tick, "tick"),
            every(_CHECKPOINT_S, self._save_checkpoint, "save of the checkpoint"),
        ]
        if not self._flushes:
            log.warning("peer %s acknowledges entries before they are flushed", settings.self_id)
            self._periodic.append(every(_FLUSH_S, lambda: self._guard(self._flush_periodically), "flush"))

    async def _authenticate(self, channel: Channel, peer: str) -> None:
        settings = self.settings
        if settings.secret:
            await authenticate(channel, settings.secret, settings.group, settings.self_id, peer)

    async def close(self) -> None:
        """Leave the group, after pending writes. The ledger is left open for its owner."""
        self._stop()
        client = None if self._server is None else self._client
        await close_all(client, self._server, self._thread, self._tasks.wait, self._save_last_checkpoint)

    async def _save_last_checkpoint(self) -> None:
        if self._server is not None and self.failure is None:
            await self._save(self._checkpoint())

    def _stop(self) -> None:
        self._is_running = False
        for periodic in self._periodic:
            periodic.stop()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._cancel_processing()

    def _guard(self, step: Callable[[], None]) -> bool:
        """Run a step. An exception stops the peer, and False is returned."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - a peer must not continue after an unexpected error
            self._fail_with(error)
            return False
        return True

    def _fail_with(self, error: BaseException) -> None:
        """Stop for good. An unexpected error counts as a broken invariant."""
        if isinstance(error, StoreError | InvariantError):
            self._fail(error)
            return
        failure = InvariantError(str(error) if isinstance(error, RocketError) else repr(error))
        failure.__cause__ = error
        self._fail(failure)

    def _fail(self, error: StoreError | InvariantError) -> None:
        """Stop the peer, since later acknowledgements might not be durable."""
        if self.failure is not None:
            return
        self.failure = error
        log.critical("peer %s stops: %s", self.settings.self_id, error, exc_info=error)
        self._stop()
        self._client.close()
        if self._server is not None:
            self._tasks.spawn(self._server.close(), "close after a failure")
        self._listener.failed(error)

    # -- called by the owner ---------------------------------------------------------------------

    @property
    def state(self) -> PeerState:
        """Current role, term and leader."""
        raft = self._node.state
        return PeerState(raft.role, raft.term, raft.leader_id)

    @property
    def committed_index(self) -> int:
        """Index of the newest entry that is committed and can be read here; -1: none."""
        raft = self._node.state
        if raft.role is Role.LEADER:  # a leader truncates nothing, so its files keep all written entries
            return max(self._readable, min(raft.committed_index, self._ledger.end_index))
        return self._readable

    @property
    def end_index(self) -> int:
        """Index of the newest entry, written or not; -1: none."""
        return self._node.view.end_index

    @property
    def lags(self) -> dict[str, int]:
        """Number of missing entries by follower; empty unless this peer leads."""
        end = self.end_index
        return {follower.peer: end - follower.match_index for follower in self._node.followers}

    def health(self) -> PeerHealth:
        """Return the state for operators."""
        state, problem = self.state, self.failure or self.disk_full
        end, now_ms = self.end_index, self._now_ms()
        return PeerHealth(
            state.role,
            state.term,
            state.leader_id,
            end,
            self.committed_index,
            self._leader_changes,
            self.lags,
            {follower.peer: int(follower.lag_ms(end, now_ms)) for follower in self._node.followers},
            "; ".join(self._tasks.failing.values()) if problem is None else str(problem) or repr(problem),
            self._node.silent_peers(now_ms),
        )

    def expire(self, begin_index: int) -> None:
        """Forget the entries before `begin_index`, which is committed. The owner deletes them next."""
        self._step(EntriesExpiring(begin_index))

    @property
    def address(self) -> Address:
        """The peer's own address, with the real port."""
        return self._listen if self._server is None else self._server.address

    def append(self, body: bytes) -> Entry:
        """Append an entry as the leader; its position and term are final.

        The entry is committed once `committed_index` has reached it in the same term. After that term it may
        be in the ledger or not. Entries appended until the next `process_ready`, or in one iteration of the
        event loop, are sent and written together.

        Raises:
            NotLeader: This peer does not lead.
            NotEnoughReplicas: Too many entries wait for a majority.
            DiskFull: The disk of this peer is full.
        """
        if not self._is_running:
            raise NotLeader(f"peer {self.settings.self_id} has stopped; its log says why")
        if self.disk_full is not None:
            raise self.disk_full
        entry = self._node.append(body)
        if entry is None:
            raise NotEnoughReplicas(
                f"{self.settings.pending_max} entries wait for a majority of the peers; send later"
            )
        self._wants_push = True
        self._process_soon()
        return entry

    def next_entry_pos(self, body_bytes: int) -> int:
        """Return the position of the next entry, if its body has this size."""
        return self._node.view.next_entry_pos(body_bytes)

    # -- events -------------------------------------------------------------------------------

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def _tick(self) -> None:
        self._step(Tick())
        self.process_ready()

    def _on_response(self, number: int, message: RaftMessage | None) -> None:
        self._step(ResponseReceived(number, message))
        self._wants_push = True
        if message is None:  # a response is processed at the end of its buffer, a failure has none
            self._process_soon()

    def _step(self, event: Event) -> None:
        if self._is_running:
            self._guard(lambda: self._node.step(event, self._now_ms()))

    # -- processing a Ready -------------------------------------------------------------------

    def _process_soon(self) -> None:
        if self._process_handle is None and self._is_running:
            self._process_handle = self._tasks.call_soon(self.process_ready)

    def _cancel_processing(self) -> None:
        if self._process_handle is not None:
            self._process_handle.cancel()
            self._process_handle = None

    def process_ready(self) -> None:
        """Process the node's Ready now, not at the end of the loop's iteration."""
        self._cancel_processing()
        if self._is_running and (self._stalled is not None or self._guard(self._process_all_ready)):
            self._guard(self._notify_listener)

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
        """Send the requests that may be sent before the write, then write."""
        if ready.term_state is not None and ready.write:
            # The vote first: recovery rejects a ledger with a later term than the vote.
            rest = dataclasses.replace(ready, term_state=None)
            self._store(ready.term_state, None, lambda: self._start_ready(rest))
            return
        if ready.requests:
            for request in ready.requests_before_write:
                self._client.send(request)
            self._client.flush()  # the followers' disks work in parallel with this peer's
        self._write(ready)

    def _write(self, ready: Ready) -> None:
        """Write the entries. Flush them, and save the vote, before the rest of the Ready is done."""
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
        """Flush a single entry in the loop's thread while the disk is fast; False: nothing was flushed.

        Two thread switches take longer than such a flush, as tools/bench/dledger.py shows with one client.
        Raises FlushFailed.
        """
        begin = time.monotonic()
        is_small = len(write.entries) == len(plan.targets) == 1 and not plan.directories
        if not is_small or plan.checkpoint is not None or begin < self._inline_flush_at:
            return False
        flush_now(self._ledger, plan)
        took = time.monotonic() - begin
        if took > _INLINE_FLUSH_S_MAX:
            self._inline_flush_at = begin + _INLINE_FLUSH_PAUSE_FACTOR * took
        return True

    def _store(self, state: TermState | None, plan: FlushPlan | None, then: Callable[[], None]) -> None:
        """Make term and vote durable, then the ledger, in the thread; then continue with `then`."""

        def store() -> None:
            if state is not None:
                self._files.save_term(state)
            if plan is not None:
                self._ledger.run_flush(plan)

        def stored(error: BaseException | None) -> None:
            self._is_storing = False
            if self._on_flush_done(plan, error) and self._is_running and self._guard(then):
                self.process_ready()

        self._is_storing = True
        self._run_on_disk_thread(store, stored)

    def _on_flush_done(self, plan: FlushPlan | None, error: BaseException | None) -> bool:
        """Finish a flush that ran in the thread. A failure stops the peer, and False is returned."""
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
        """Send nothing until the disk has free space. The group continues without this peer."""
        if self.disk_full is None:
            log.error("peer %s pauses until its disk has free space: %s", self.settings.self_id, error)
        self.disk_full = error
        self._stalled = ready
        self._stall_timer = self._tasks.call_later(_DISK_FULL_RETRY_S, self._retry_stalled)

    def _retry_stalled(self) -> None:
        ready, self._stalled = self._stalled, None
        if ready is not None and self._guard(lambda: self._write(ready)) and self._stalled is None:
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
        """Notify the listener of changes since the last call."""
        state, committed = self.state, self.committed_index
        notified_state, notified_committed = self._notified
        self._notified = state, committed
        # The role first: entries that another leader committed must not acknowledge sends to this peer.
        if state != notified_state:
            if state.leader_id is not None and state.leader_id != notified_state.leader_id:
                self._leader_changes += 1
            self._listener.changed(state)
        if committed != notified_committed:
            self._listener.committed(committed)

    # -- periodic work ------------------------------------------------------------------------

    async def _save_checkpoint(self) -> None:
        """Save the committed index, so that a restarted peer can serve reads up to it immediately."""
        if self._checkpoint() != self._saved:
            await self._save(self._checkpoint())

    def _checkpoint(self) -> LedgerCheckpoint:
        return LedgerCheckpoint(self.committed_index, self._ledger.end_index)

    async def _save(self, checkpoint: LedgerCheckpoint) -> None:
        try:
            await asyncio.to_thread(self._files.save_checkpoint, checkpoint)
        except StoreError as error:
            log.error("cannot save the checkpoint of peer %s: %s", self.settings.self_id, error)
        else:
            self._saved = checkpoint

    def _flush_periodically(self) -> None:
        """Flush in the background; used only with `flush` off."""
        if self._is_unflushed and not self._is_flushing:
            plan = self._plan_flush()

            def flushed(error: BaseException | None) -> None:
                self._is_flushing = False
                self._on_flush_done(plan, error)

            self._is_flushing = True
            self._run_on_disk_thread(lambda: self._ledger.run_flush(plan), flushed)

    def _preallocate_if_needed(self) -> None:
        if self._preallocation_task is None and self._ledger.needs_preallocation():
            self._preallocation_task = self._tasks.spawn(self._preallocate(), "preallocation")

    async def _preallocate(self) -> None:
        try:
            while self._is_running and self._ledger.needs_preallocation():
                self._ledger.adopt_preallocated(await asyncio.to_thread(self._ledger.preallocate_ahead))
        except StoreError as error:
            log.error("peer %s cannot preallocate: %s", self.settings.self_id, error)
            await asyncio.sleep(_DISK_FULL_RETRY_S)
        finally:
            self._preallocation_task = None
