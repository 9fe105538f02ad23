"""A slave's connection to its master: drives a `SlaveSession`, and reconnects when it ends.

The session has the protocol and does no I/O, so that simulations can replay it. Connection, disk and clock
are here.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import secrets
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass

from rocketpy.errors import ConnectionLost, FlushFailed, RocketError, StoreError
from rocketpy.runtime.progress import Jobs
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address, ChannelOptions, StreamProtocol, connect_raw, ending_hint
from rocketpy_broker.replication.ha.log import EpochFile, StoreTarget
from rocketpy_broker.replication.ha.master import Close, DataReceived, Effect, Poll, Send
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.replication.ha.slave import SlaveSession
from rocketpy_broker.store.replica.backlog import Backlog
from rocketpy_broker.store.upkeep.driver import StoreDriver

log = logging.getLogger("rocketpy.broker.ha")

_TICK_S = 0.2
_BACKLOG_INTERVAL_S = 0.02
"""Interval at which a part of the backlog is dispatched, unless the log still arrives fast."""
_RETRY_S = 1.0
_BUFFER_MAX = 4 << 20
"""Limit of the received bytes that are not written yet; above it, reading is paused."""


class HaClientState(enum.Enum):
    """The state of a slave."""

    WAITS = "has no master, or waits to reconnect"
    CONNECTS = "connects"
    COPIES = "copies"
    REFUSED = "was rejected by the master, or rejects it: an operator is needed"


@dataclass(eq=False)
class HaClient:
    """Copies a master's log into a store, between `start` and `close`."""

    driver: StoreDriver
    epochs: EpochFile
    settings: HaSettings
    tasks: Tasks
    _: KW_ONLY
    name: InitVar[str]
    """Of this broker."""
    broker_id: InitVar[int]
    """Of this broker."""
    reconnect_ms: InitVar[int]
    on_copied: Callable[[], None]
    """Called when more of the log was received."""
    options: ChannelOptions | None = None
    """Of the connection, with the TLS context if the master requires TLS."""

    def __post_init__(self, name: str, broker_id: int, reconnect_ms: int) -> None:
        self._name, self._id = name, broker_id
        self._reconnect_s = reconnect_ms / 1000
        self._address: Address | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._backlog = Backlog(self.driver.store)
        self._backlog_handle: asyncio.Handle | None = None
        self.state = HaClientState.WAITS
        self.problem = ""
        """Why the last connection ended; empty while copying."""
        self.jobs: Jobs = Jobs()
        self.master_offset = -1
        """Last known end of the master's log; -1: unknown."""

    @property
    def address(self) -> Address | None:
        """The master's HA port, if known."""
        return self._address

    def set_master(self, address: Address) -> None:
        """Follow this master from now on."""
        if address != self._address:
            log.info("HA master of %s is %s (was %s)", self._name, address, self._address)
            self._address = address
            self._changed.set()

    def start(self) -> None:
        """Start copying."""
        self._task = self.tasks.spawn(self._run(), "HA copy")

    async def close(self) -> None:
        """Stop copying."""
        await self.tasks.cancel(self._task, self._flushing)
        self._task = None
        if self._backlog_handle is not None:
            self._backlog_handle.cancel()
        with contextlib.suppress(StoreError):  # the next start dispatches the rest from the log
            while self._backlog.size and self.driver.store.failure is None:
                before = self._backlog.size
                self._backlog.dispatch_piece()
                if self._backlog.size == before:  # with SYNC_FLUSH, only flushed records are dispatched
                    await self.driver.flush()
                await asyncio.sleep(0)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            if self._address is not None:
                try:
                    await self._copy_from(self._address)
                except RocketError as error:
                    self._log_failure(error)
            if self.state is not HaClientState.REFUSED:
                self.state = HaClientState.WAITS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._reconnect_s if self._address is not None else None):
                    await self._changed.wait()

    def _log_failure(self, error: RocketError) -> None:
        level = logging.DEBUG if str(error) == self.problem else logging.WARNING
        self.problem = str(error)
        self.jobs.ended("copy of messages from the master", error)
        log.log(level, "HA: %s does not follow %s: %s", self._name, self._address, error)

    async def _copy_from(self, address: Address) -> None:
        """Copy until the connection ends. Always raises RocketError."""
        if self.state is not HaClientState.REFUSED:
            self.state = HaClientState.CONNECTS
        connection = _MasterConnection()
        await connect_raw(address, lambda: connection, self.options)
        loop = asyncio.get_running_loop()
        session = SlaveSession(
            StoreTarget(self.driver.store, self.epochs, self._backlog),
            self.settings,
            broker_name=self._name,
            broker_id=self._id,
            nonce=secrets.token_hex(16),
            now_ms=loop.time() * 1000,
        )
        try:
            self._step(session, connection, Poll())
            while not self._changed.is_set():
                data = await connection.read(_TICK_S)
                if not data:
                    self._step(session, connection, Poll())
                elif session.is_copying:
                    self._step(session, connection, DataReceived(data))
                else:  # the welcome message may truncate the log
                    async with self.driver.paused():
                        self._step(session, connection, DataReceived(data))
                if session.is_copying:
                    connection.set_receiver(lambda data: self._step(session, connection, DataReceived(data)))
        finally:
            connection.abort()
        raise ConnectionLost(f"{address} is no longer the master")

    def _step(self, session: SlaveSession, connection: _MasterConnection, event: DataReceived | Poll) -> None:
        """Step the session. Raises ConnectionLost if the connection must end."""
        self._apply_effects(connection, session.step(event, asyncio.get_running_loop().time() * 1000))
        if session.is_closed:
            raise ConnectionLost("the master does not respond; check haMasterAddress and its HA port")
        if isinstance(event, DataReceived):
            self._on_received(session, connection)

    def _apply_effects(self, connection: _MasterConnection, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                connection.write(effect.data)
            elif isinstance(effect, Close):
                if effect.is_final:
                    self.state = HaClientState.REFUSED
                raise ConnectionLost(effect.reason)

    def _on_received(self, session: SlaveSession, connection: _MasterConnection) -> None:
        if session.is_copying:
            self.state, self.problem = HaClientState.COPIES, ""
            self.jobs.ended("copy of messages from the master")
        self.master_offset = session.master_offset
        self.on_copied()
        if self._backlog.size and self._backlog_handle is None:
            self._schedule_backlog(_BACKLOG_INTERVAL_S)
        if session.wants_flushed and self._flushing is None:
            self._flushing = self.tasks.spawn(self._flush(session, connection), "HA flush")

    def _schedule_backlog(self, wait_s: float) -> None:
        self._backlog_handle = self.tasks.call_later(wait_s, self._dispatch_backlog)

    def _dispatch_backlog(self) -> None:
        """Dispatch a part of the backlog, unless the log still arrives fast."""
        self._backlog_handle = None
        before, wait_s = self._backlog.size, _BACKLOG_INTERVAL_S
        if not self._backlog.check_burst():
            try:
                self._backlog.dispatch_piece()
                wait_s = _BACKLOG_INTERVAL_S if self._backlog.size == before else 0
            except StoreError as error:
                log.error("HA: copied messages cannot be dispatched, trying again: %s", error)
                wait_s = _RETRY_S
        if self._backlog.size and self.driver.store.failure is None:
            self._schedule_backlog(wait_s)

    async def _flush(self, session: SlaveSession, connection: _MasterConnection) -> None:
        """Flush the received bytes, and report that immediately, since the master waits for it."""
        store = self.driver.store
        try:
            while store.flushed_offset < store.max_physical_offset:
                await self.driver.flush()
                for effect in session.step(Poll(), asyncio.get_running_loop().time() * 1000):
                    if isinstance(effect, Send):
                        connection.write(effect.data)
        except FlushFailed as error:
            log.critical("HA: the flush failed, so no more bytes are acknowledged to the master: %s", error)
        finally:
            self._flushing = None


class _MasterConnection(StreamProtocol):
    """One connection to a master. `read` returns received bytes, unless `set_receiver` set a receiver.

    The receiver is called directly, without a switch to a task for each chunk (tools/bench/ha.py).
    """

    def __init__(self) -> None:
        self._receiver: Callable[[bytes], None] | None = None
        self._data: list[bytes] = []
        self._size = 0
        self._changed = asyncio.Event()
        self._lost: Exception | None = None
        self._has_received = False

    def set_receiver(self, receiver: Callable[[bytes], None]) -> None:
        """Pass received bytes to `receiver` from now on. If it raises ConnectionLost, so does `read`."""
        self._receiver = receiver

    def data_received(self, data: bytes) -> None:
        self._has_received = True
        if self._receiver is not None and not self._data:
            try:
                self._receiver(data)
            except ConnectionLost as error:
                self.connection_lost(error)
                self.abort()
            return
        self._data.append(data)
        self._size += len(data)
        self._changed.set()
        if self._size > _BUFFER_MAX and self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost is None:
            hint = "" if self._has_received else ending_hint(self._transport)
            self._lost = ConnectionLost(f"{exc or 'the master closed the connection'}{hint}")
        self._changed.set()

    async def read(self, timeout_s: float) -> bytes:
        """Return the received bytes; empty after the timeout. Raises ConnectionLost after the last bytes."""
        if not self._data and self._lost is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
        self._changed.clear()
        if not self._data and self._lost is not None:
            raise ConnectionLost(str(self._lost))
        data = b"".join(self._data)
        self._data.clear()
        self._size = 0
        if len(data) > _BUFFER_MAX and self._transport is not None and self._lost is None:
            self._transport.resume_reading()
        return data

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._transport is not None:
            self._transport.write(data)
