"""Process control for service managers: signals, a stop with a time limit, sd_notify.

SIGUSR1 drains a broker and then stops it; see `rocketpy_broker.broker.drain`. It stops other servers
immediately.

The first SIGTERM or SIGINT stops the server cleanly. A later one, or a stop that takes too long, prints the
current step and ends the process immediately with exit status 3. Repetitions of the first within half a
second are ignored (`rocketpy.runtime.signals`). Signals and the time limit are handled in
threads, because a hanging disk may block the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
from asyncio.sslproto import SSLProtocol
from collections.abc import Sequence
from contextvars import Context
from typing import Final, Protocol

from rocketpy.runtime.signals import StopSignals

log = logging.getLogger("rocketpy.broker")

STOP_TIMEOUT_S: Final = 25.0
"""Less than the 30 s after which Kubernetes kills a process."""
EXIT_STOP_TIMEOUT: Final = 3
"""Exit status of a process that did not stop cleanly in time."""
_GC_THRESHOLDS: Final = (2_000, 10, 50)
"""Thresholds of the garbage collector's generations.

A collection of 10,000 new objects blocks the event loop for 5 ms. With CPython's thresholds of 700, 10 and
10, many heartbeats cause continuous full collections.
"""
_MALLOC_OPTIONS: Final = {-3: 1 << 20, -1: 2 << 20}
"""M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of mallopt(3), in bytes.

glibc raises both, up to 32 and 64 MiB, when a large buffer is freed. Later frames then share the heap with
small objects, and their memory does not return to the system. Fixed values turn that off. With glibc's
initial 128 KiB, each copy of a 900 KB frame takes 0.5 ms instead of 0.02 ms: the kernel zeroes its pages.
"""
_TRIM_INTERVAL_S: Final = 30.0
_TLS_BUFFER_BYTES: Final = 64 << 10
"""Size of the read buffer of each TLS connection, also during its handshake. asyncio's is 256 KiB, which is
2 GiB for maxConnections=8192. A TLS record has at most 16 KiB."""
DRAIN_SIGNAL: Final = signal.SIGUSR1
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, DRAIN_SIGNAL)


class HasPhase(Protocol):
    """A server that reports its current step."""

    @property
    def phase(self) -> str | None:
        """Current step of start or stop; None while it serves."""


class ShutdownGuard:
    """Requests a stop on a signal, with a time limit. Create it in the main thread, in the event loop."""

    def __init__(self, timeout_s: float) -> None:
        self.requested: Final = asyncio.Event()
        """Set by the first SIGTERM or SIGINT."""
        self.drain_requested: Final = asyncio.Event()
        """Set by SIGUSR1."""
        self._timeout_s = timeout_s
        self._servers: Sequence[HasPhase] = ()
        self._loop = asyncio.get_running_loop()
        self._begun = threading.Lock()
        # Signals are blocked in this and all later threads; only `_wait` receives them.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        threading.Thread(target=self._wait, name="signals", daemon=True).start()

    def report_phases_of(self, *servers: HasPhase) -> None:
        """Set the servers whose phases are printed if the stop takes too long."""
        self._servers = servers

    def start_time_limit(self) -> None:
        """Start the time limit of the stop. Later calls do nothing."""
        if self._begun.acquire(blocking=False):
            notify("STOPPING=1")
            timer = threading.Timer(self._timeout_s, self._end, [f"the stop took {self._timeout_s:g} s"])
            timer.daemon = True
            timer.start()

    def _wait(self) -> None:
        while signal.sigwait(_SIGNALS) == DRAIN_SIGNAL:
            self._set(self.drain_requested)
        stop = StopSignals()
        stop.is_repetition()  # records the first one
        self.start_time_limit()
        self._set(self.requested)
        while (number := signal.sigwait(_SIGNALS)) == DRAIN_SIGNAL or stop.is_repetition():
            pass
        self._end(f"received {signal.Signals(number).name} during the stop")

    def _set(self, event: asyncio.Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(event.set, context=Context())

    def _end(self, reason: str) -> None:
        """End the process without clean-up. As after a kill, acknowledged messages are in the files."""
        phases = [server.phase or "serving" for server in self._servers if server.phase != "closed"]
        step = "; ".join(phases) or "waiting for its threads"
        line = f"rocketpy-broker: not stopped cleanly: {reason}. Its last step was: {step}\n"
        with contextlib.suppress(OSError):  # stderr may be closed
            os.set_blocking(sys.stderr.fileno(), False)
            os.write(sys.stderr.fileno(), line.encode())
        os._exit(EXIT_STOP_TIMEOUT)


def tune_memory() -> None:
    """Make garbage collections rare, and return the memory of large buffers to the system.

    A full collection blocks the event loop for 60 ms. With CPython's thresholds, every eighth heartbeat with
    3,000 groups caused one. Call this function after the start: it excludes existing objects from
    collections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    SSLProtocol.max_size = _TLS_BUFFER_BYTES
    with contextlib.suppress(AttributeError, OSError):  # another C library than glibc has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC_OPTIONS.items():
            mallopt(option, value)


async def trim_memory(interval_s: float = _TRIM_INTERVAL_S) -> None:
    """Return unused memory to the system, again and again; end immediately without glibc.

    glibc keeps free memory below a block in use: 480 TLS handshakes a second left 25 MB. It takes 2 ms to
    return them, and 0.1 ms if there is nothing to return.
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return
    while True:
        await asyncio.sleep(interval_s)
        malloc_trim(0)


def notify(state: str) -> None:
    """Send a state such as ``READY=1`` to systemd, for units with ``Type=notify``. Source: sd_notify(3)."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
            notifier.sendto(state.encode(), address)
    except OSError as error:
        log.warning("cannot send %s to systemd at %s: %s", state, path, error)
