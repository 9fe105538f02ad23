"""A name server and a broker in a process of their own, so that a fuzzer can measure their memory.

`python -m tests.fuzz.servers FOLDER` prints their addresses as a JSON line, and for each line of its
input the unexpected errors so far. It ends with its input.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from rocketpy_broker import Broker, NameServer, load_broker_config, load_namesrv_config
from tests.fuzz.engine import memory_of

_START_SECONDS = 30
_STALL_SECONDS = 5
STALLS = "stalls.txt"


@dataclass(slots=True)
class ServerProcess:
    """The servers, seen from outside."""

    process: Process
    stall_file: Path
    addresses: dict[str, str]
    """Of all ports, by their names."""

    @property
    def namesrv(self) -> str:
        """Address of the name server."""
        return self.addresses["namesrv"]

    @property
    def broker(self) -> str:
        """Address of the broker."""
        return self.addresses["broker"]

    def stalls(self) -> str:
        """Where their event loop stood still for seconds, if it did."""
        return self.stall_file.read_text(encoding="utf-8")[:4000]

    def memory(self) -> tuple[int, int]:
        """(resident now, the most it ever was) in bytes."""
        return memory_of(self.process.pid)

    async def unexpected_errors(self) -> list[str]:
        """Every exception that was logged, or left to the event loop, with its traceback."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        return cast(list[str], await _line(self.process))


@asynccontextmanager
async def running_servers(
    folder: Path, module: str = "tests.fuzz.servers", *arguments: str
) -> AsyncIterator[ServerProcess]:
    """Servers on free ports of 127.0.0.1 that end with the block. module: serves them."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, str(folder), *arguments, stdin=PIPE, stdout=PIPE, limit=1 << 24
    )
    assert process.stdin is not None
    try:
        addresses = await asyncio.wait_for(_line(process), _START_SECONDS)
        yield ServerProcess(process, folder / STALLS, addresses)
    finally:
        process.stdin.close()
        await process.wait()


async def _line(process: Process) -> Any:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise AssertionError(f"the server process ended with {await process.wait()}")
    return json.loads(line)


# -- inside the process -------------------------------------------------------------------------


class UnexpectedErrors(logging.Handler):
    """Records logged exceptions that no code expects."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        # Being too busy for a while is logged too, without a traceback, and is expected.
        unexpected = record.exc_info is not None or record.name == "asyncio"
        if unexpected and len(self.found) < 20:
            self.found.append(self.format(record)[-4000:])


async def _serve(folder: str) -> None:
    errors = UnexpectedErrors()
    logging.basicConfig(level=logging.ERROR, handlers=[errors])
    loop = asyncio.get_running_loop()
    with (Path(folder) / STALLS).open("w") as stalls:
        watch_for_stalls(loop, stalls)
        await _serve_both(Path(folder) / "store", errors)
        faulthandler.cancel_dump_traceback_later()


def watch_for_stalls(loop: asyncio.AbstractEventLoop, file: TextIO) -> None:
    """Log the stack of the loop when it does not return here in time."""
    faulthandler.dump_traceback_later(_STALL_SECONDS, file=file)
    loop.call_later(1, watch_for_stalls, loop, file)


async def _serve_both(store: Path, errors: UnexpectedErrors) -> None:
    loop = asyncio.get_running_loop()
    namesrv = NameServer(load_namesrv_config(overrides={"listen": "127.0.0.1:0"}))
    await namesrv.start()
    settings = {**_SETTINGS, "namesrvAddr": str(namesrv.address), "storePathRootDir": str(store)}
    broker = Broker(load_broker_config(overrides=settings))
    await broker.start()
    print_json({"namesrv": str(namesrv.address), "broker": str(broker.address)})
    while await loop.run_in_executor(None, sys.stdin.readline):
        print_json(errors.found)
    await broker.close()
    await namesrv.close()


_SETTINGS = {
    # The recorded frames register and unregister a broker-a; this one is to be left alone.
    "brokerName": "fuzzed",
    "brokerClusterName": "Fuzzed",
    "listen": "127.0.0.1:0",
    # Mutated topics become real ones, each with files of its own.
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
}


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
