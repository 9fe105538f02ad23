"""Standard input and output in an event loop.

Both may block for any time: a terminal until its user types, a pipe until its reader reads. asyncio joins its
own threads at the end, so Ctrl-C would wait for them. The daemon thread here is not joined.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import Context
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from rocketpy.errors import MessageTooLarge
from rocketpy.runtime.tasks import subtask

T = TypeVar("T")

_READ_BYTES: Final = 1 << 18
_FILE_PIECE_BYTES: Final = 1 << 20
_INPUT_BYTES_MAX: Final = 16 << 20
"""Limit of a line, or of an input that is one message: larger than any message that a broker accepts."""


async def read_all(descriptor: int) -> bytes:
    """Read a file descriptor to its end. Raises MessageTooLarge and OSError."""
    thread = _DaemonThread()
    chunks: list[bytes] = []
    size = 0
    while chunk := await thread.call(partial(os.read, descriptor, _READ_BYTES)):
        chunks.append(chunk)
        size += len(chunk)
        if size > _INPUT_BYTES_MAX:
            raise MessageTooLarge(f"the input has more than {_INPUT_BYTES_MAX} bytes")
    return b"".join(chunks)


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yield lists of lines without line ends; each list holds the lines completed by one read.

    Raises:
        MessageTooLarge: A line has no end within 16 MiB.
        OSError: The input cannot be read.
    """
    thread = _DaemonThread()
    rest = b""
    while chunk := await thread.call(partial(os.read, descriptor, _READ_BYTES)):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
        if len(rest) > _INPUT_BYTES_MAX:
            raise MessageTooLarge(f"a line has more than {_INPUT_BYTES_MAX} bytes")
    if rest:
        yield [rest]


class Output:
    """Writes to a file descriptor without blocking the event loop.

    What can be written without blocking is written immediately: to a pipe as much as fits, to a file all.
    The thread writes the rest, and all data for terminals and sockets. Immediate writes reduce the CPU time
    of `rocketpy consume --follow` by 40 % (`tools/bench/cli.py`).
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._piece = _piece_without_block(descriptor)
        if self._piece:
            self._room = select.poll()
            self._room.register(descriptor, select.POLLOUT)
        self._waiting: list[bytes] = []
        self._writing = asyncio.Lock()
        self._thread = _DaemonThread()
        self._running: asyncio.Task[None] | None = None
        """The write of the thread. It goes on when the call that began it is cancelled."""

    async def write(self, data: bytes) -> None:
        """Write bytes after those of earlier calls; return when they are written.

        Data of concurrent calls is combined into one write.

        Raises:
            BrokenPipeError: The reader has closed the pipe.
        """
        if not self._waiting and not self._writing.locked() and self._running is None:
            data = self._write_now(data)
            if not data:
                return
        self._waiting.append(data)
        async with self._writing:
            await self._wait_written()
            if self._waiting:
                whole = b"".join(self._waiting)
                self._waiting.clear()
                work = self._thread.call(partial(_write, self._descriptor, whole))
                self._running = subtask(work, "write")
                self._running.add_done_callback(_retrieve_error, context=Context())
                await self._wait_written()

    async def _wait_written(self) -> None:
        if self._running is not None:
            try:
                await asyncio.shield(self._running)
            finally:
                if self._running.done():
                    self._running = None

    def _write_now(self, data: bytes) -> bytes:
        """Write what can be written without blocking; return the rest."""
        rest = memoryview(data)
        while self._piece and rest and self._room.poll(0):
            rest = rest[os.write(self._descriptor, rest[: self._piece]) :]
        return bytes(rest)


def _retrieve_error(write: asyncio.Task[None]) -> None:
    """Retrieve the error of a write, which asyncio would log if all calls that wait for it were cancelled."""
    if not write.cancelled():
        write.exception()


def _piece_without_block(descriptor: int) -> int:
    """Return how many bytes never block while a descriptor is ready to write; 0 if that is not known."""
    if not hasattr(select, "poll"):  # Windows
        return 0
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode):
        return select.PIPE_BUF
    return 0 if os.isatty(descriptor) or stat.S_ISSOCK(mode) else _FILE_PIECE_BYTES


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class _DaemonThread:
    """Makes blocking calls, one after the other, on a thread that does not keep the process from exiting.

    One thread serves all calls, because `Thread.start` blocks until the new thread runs.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._is_started = False

    async def call(self, work: Callable[[], T]) -> T:
        """Call a function; return its result, or raise its exception."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def report(set_end: Callable[[Any], None], value: object) -> None:
            if not done.done():
                set_end(value)

        def run() -> None:
            try:
                end: tuple[Callable[[Any], None], object] = (done.set_result, work())
            except BaseException as error:  # noqa: BLE001 - raised again in the caller
                end = (done.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(report, *end, context=Context())

        if not self._is_started:
            self._is_started = True
            threading.Thread(target=self._run, name="standard streams", daemon=True).start()
        self._calls.put(run)
        return await done

    def _run(self) -> None:
        while True:
            self._calls.get()()
