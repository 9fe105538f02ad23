"""``rocketpy-broker stop``: stops the broker that has a store open, and waits until its process has ended.

Run it on the broker's machine, as the same user. The process is the one that holds the lock of the store.
With ``--drain`` it first moves producers to other brokers: name servers hide it from them. It continues to
serve until they have fetched new routes (drainWaitMs, 30 s), no send arrives, and its slaves have all
messages. Producers may write to it again after its next start. A DLedger group elects another leader after
the stop. RocketMQ's own brokers are drained by ``rocketpy broker drain``. Exit status 0: stopped. 1: not
stopped, or stopped without a complete drain.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rocketpy.errors import StoreError
from rocketpy_broker.cli.process import DRAIN_SIGNAL
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.store.files.disk import lock_holder

_DRAIN_TIMEOUT_S: Final = 120.0
"""Enough for drainWaitMs, and producers that refresh their routes twice."""
_BLOCKED: Final = re.compile(r"^SigBlk:\s*([0-9a-f]+)$", re.MULTILINE)


def add_stop_command(commands: Any, seconds: Callable[[str], float]) -> None:
    """Add ``stop`` to the subparsers of ``rocketpy-broker``. seconds: reads a number of seconds."""
    stop = commands.add_parser("stop", help="stop a broker of this machine", description=__doc__)
    target = stop.add_mutually_exclusive_group(required=True)
    target.add_argument("--store", metavar="DIR", type=Path, help="directory of its store")
    target.add_argument(
        "-c", "--config", metavar="FILE", type=Path, help="its broker.conf, which names the store"
    )
    stop.add_argument(
        "--drain", action="store_true", help="first move producers to other brokers, as for a rolling restart"
    )
    stop.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=_DRAIN_TIMEOUT_S,
        help="limit of the drain, and then of the stop; beyond it, exit status 1 (default: %(default)g)",
    )
    stop.set_defaults(action=_run)


def _run(options: argparse.Namespace) -> int:
    store = options.store or load_broker_config(options.config).store.root
    process, handle = _find_process(store)
    try:
        return _stop(process, handle, options)
    finally:
        os.close(handle)


def _find_process(store: Path) -> tuple[int, int]:
    """Return id and pidfd of the process that has the store open. Raises StoreError, OSError."""
    try:
        process = lock_holder(store / "lock")
    except FileNotFoundError:
        raise StoreError(f"there is no store in {store}") from None
    if process is None:
        raise StoreError(f"no broker has {store} open")
    if process <= 0:
        raise StoreError(
            f"{store} is open in a process of another machine or container; run the command there"
        )
    handle = os.pidfd_open(process)
    # The pidfd keeps this process, even if another one gets its id.
    if lock_holder(store / "lock") != process:
        os.close(handle)
        raise StoreError(f"process {process} has closed {store} just now")
    return process, handle


def _stop(process: int, handle: int, options: argparse.Namespace) -> int:
    status = 0
    if options.drain:
        _check_drains(process)
        signal.pidfd_send_signal(handle, DRAIN_SIGNAL)
        if _has_ended(handle, options.timeout):
            return 0
        print(
            f"rocketpy-broker stop: process {process} was not drained within {options.timeout:g} s; stopping "
            "it anyway",
            file=sys.stderr,
        )
        status = 1
    signal.pidfd_send_signal(handle, signal.SIGTERM)
    if not _has_ended(handle, options.timeout):
        raise StoreError(f"process {process} has not ended within {options.timeout:g} s after SIGTERM")
    return status


def _check_drains(process: int) -> None:
    """Raise StoreError unless a process waits for the signal. The signal would kill any other process."""
    found = _BLOCKED.search(Path(f"/proc/{process}/status").read_text("ascii"))
    if found is None or not int(found[1], 16) >> (DRAIN_SIGNAL - 1) & 1:
        raise StoreError(
            f"process {process} cannot drain: it is RocketMQ's own broker, or an old version of rocketpy. "
            "Run rocketpy broker drain, then stop it without --drain"
        )


def _has_ended(handle: int, timeout_s: float) -> bool:
    """Wait for the end of the process of a pidfd; return False after the timeout."""

    async def wait() -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(handle, ended.set)
        async with asyncio.timeout(timeout_s):
            await ended.wait()

    try:
        asyncio.run(wait())
    except TimeoutError:
        return False
    return True
