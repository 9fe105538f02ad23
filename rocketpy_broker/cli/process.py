"""Starts and stops a server's process as a service manager expects: signals, a bounded stop, sd_notify.

The first SIGTERM or SIGINT stops the server cleanly. A second one, or a stop that takes too long, ends the
process at once with the status 3, and a line says what had not ended. A thread sees to that, because a disk
that hangs may block the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Final, Protocol

log = logging.getLogger("rocketpy.broker")

STOP_TIMEOUT_S: Final = 25.0
"""Below the 30 s that Kubernetes waits before it kills."""
EXIT_STOP_TIMEOUT: Final = 3
"""The exit status of a process that did not stop cleanly in time."""
_COLLECT_AFTER: Final = (2_000, 10, 50)
"""New objects after which the youngest are searched for cyclic garbage, and searches before one of the older.

10,000 new objects stopped the event loop for 5 ms. With CPython's 700, 10 and 10 a flood of heartbeats causes
full searches all the time.
"""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class HasPhase(Protocol):
    """A server that says what it is doing."""

    @property
    def phase(self) -> str | None:
        """What it does before and after it serves; None while it serves."""


class ShutdownGuard:
    """Turns signals into a stop that ends within a bound. To be made in the main thread, in the event loop.

    timeout_s: the bound.
    """

    def __init__(self, timeout_s: float) -> None:
        self.requested: Final = asyncio.Event()
        """Set by the first signal."""
        self._timeout_s = timeout_s
        self._servers: Sequence[HasPhase] = ()
        self._loop = asyncio.get_running_loop()
        self._begun = threading.Lock()
        # Blocked in this and all later threads: only `_wait` takes them, even if the main thread hangs.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        threading.Thread(target=self._wait, name="signals", daemon=True).start()

    def watch(self, *servers: HasPhase) -> None:
        """Name the phases of these servers if their stop is cut short."""
        self._servers = servers

    def begin(self) -> None:
        """The server stops, for whatever reason: from now on the bound counts. May be called twice."""
        if self._begun.acquire(blocking=False):
            notify("STOPPING=1")
            timer = threading.Timer(self._timeout_s, self._end, [f"the stop took {self._timeout_s:g} s"])
            timer.daemon = True
            timer.start()

    def _wait(self) -> None:
        signal.sigwait(_SIGNALS)
        self.begin()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends already
            self._loop.call_soon_threadsafe(self.requested.set)
        self._end(f"{signal.Signals(signal.sigwait(_SIGNALS)).name} came again")

    def _end(self, reason: str) -> None:
        """End the process without a clean-up: what was acknowledged is in the files, as after a kill."""
        phases = [server.phase or "serving" for server in self._servers if server.phase != "closed"]
        waited = "; ".join(phases) or "waiting for its threads"
        line = f"rocketpy-broker: not stopped cleanly: {reason}; it was still {waited}\n"
        with contextlib.suppress(OSError):  # also if nobody reads it
            os.set_blocking(sys.stderr.fileno(), False)
            os.write(sys.stderr.fileno(), line.encode())
        os._exit(EXIT_STOP_TIMEOUT)


def tune_garbage_collection() -> None:
    """Search for cyclic garbage seldom, and never in what the start of the servers has made.

    A full search stops the event loop, for 60 ms after modules and configuration alone. A heartbeat with
    3,000 groups caused one in each eight. To be called once the servers have started.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def notify(state: str) -> None:
    """Tell systemd a state, such as ``READY=1``, where it asks for that (``Type=notify``).

    Source: sd_notify(3).
    """
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
            notifier.sendto(state.encode(), address)
    except OSError as error:
        log.warning("cannot tell systemd %s at %s: %s", state, path, error)
