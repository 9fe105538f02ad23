"""One run: good clients beside harmless connections, then beside as many hostile ones."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.servers import ServerProcess, running_servers
from tools.attack.kinds import HOSTILE, RawConnection, harmless
from tools.attack.servers import TABLES
from tools.attack.turns import TURNS

_SERVERS_CORE, _OTHERS_CORE = 0, 1
_OPEN_MAX = 500
"""Number of concurrent connections of this client."""
_CALM_S = 60
"""How long the servers' memory may take to shrink."""
_GROWTH_MAX = 64 << 20
"""Of a server's memory, besides its tables."""
_CONNECTIONS_MAX = 512 << 20
"""`maxTotalBytes`."""
_P99_TIMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """connections: hostile ones, and harmless ones before. rate: of them a second. budget_s: of each
    phase. p99_floor_ms: a 99th percentile below this is never too high, for machines that do other things
    too. failed_share_max: of the good clients' sends. turn_ms_max: processor time of one callback in the
    servers' event loop, which depends little on what else the machine does. kinds: of the hostile ones; all
    when empty. niceness: of this process, so that good clients get the processor that both share.
    """

    connections: int
    rate: float
    seed: int
    budget_s: float
    p99_floor_ms: float = 0.0
    failed_share_max: float = 0.01
    turn_ms_max: float = 250.0
    kinds: tuple[str, ...] = ()
    niceness: int = 0


@dataclass(slots=True)
class Outcome:
    """The figures of a run. problems: the conditions that failed."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def require(self, holds: bool, problem: str) -> None:
        """Note a condition that fails."""
        if not holds:
            self.problems.append(problem)


async def attack(plan: Plan, folder: Path) -> Outcome:
    """Run the plan. Raises AssertionError when servers or clients cannot be started."""
    cores = os.sched_getaffinity(0)
    _pin(0, _OTHERS_CORE, cores)
    async with running_servers(folder, "tools.attack.servers") as servers:
        _pin(servers.process.pid, _SERVERS_CORE, cores)
        (console_folder := folder / "console").mkdir()
        async with (
            running_servers(console_folder, "tools.attack.console", servers.namesrv) as console,
            _good_clients(servers.namesrv, console.addresses["console"]) as clients,
        ):
            os.nice(plan.niceness)
            return await _phases(plan, servers, console, clients)


def _pin(process: int, core: int, cores: set[int]) -> None:
    """Bind a process to a core; do nothing on a machine with one core, or without affinity."""
    if core in cores:
        os.sched_setaffinity(process, {core})


@asynccontextmanager
async def _good_clients(namesrv: str, console: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tools.attack.clients", namesrv, console, stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None
    try:
        async with asyncio.timeout(60):
            assert await _line(process) == "ready"
        yield process
    finally:
        process.stdin.close()
        await process.wait()


async def _line(process: Process) -> Any:
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, "the good clients' process has ended"
    return json.loads(line)


async def _figures(clients: Process) -> Any:
    assert clients.stdin is not None
    clients.stdin.write(b"\n")
    return await _line(clients)


async def _phases(plan: Plan, servers: ServerProcess, console: ServerProcess, clients: Process) -> Outcome:
    outcome = Outcome()
    addresses = servers.addresses | console.addresses
    processes = {"servers": servers, "console": console}
    await _figures(clients)  # without the start
    started_s = _processor_s(servers)
    await _open_connections(plan, addresses, outcome, {"harmless": harmless}, "harmless")
    calm = await _figures(clients)
    before = _memory(processes)
    calm_s = _processor_s(servers)
    kinds = {name: act for name, act in HOSTILE.items() if not plan.kinds or name in plan.kinds}
    await _open_connections(plan, addresses, outcome, kinds, "hostile")
    attacked = await _figures(clients)
    used = f"{calm_s - started_s:.1f}", f"{_processor_s(servers) - calm_s:.1f}"
    outcome.rows.append(("servers' processor time, s", *used))
    during = {name: process.memory() for name, process in processes.items()}
    after = await _settled(processes, before)
    await _figures(clients)
    assert clients.stdin is not None
    clients.stdin.close()
    end = await _line(clients)
    _judge(plan, outcome, calm, attacked, end)
    errors = [error for process in processes.values() for error in await process.unexpected_errors()]
    allowed = dict(before)
    allowed["servers"] += int((servers.stall_file.parent / TABLES).read_text(encoding="utf-8"))
    for name in processes:
        _judge_memory(outcome, name, (before[name], *during[name], after[name]), allowed[name] + _GROWTH_MAX)
    ms, _, what = (servers.stall_file.parent / TURNS).read_text(encoding="utf-8").partition(" ")
    outcome.rows.append(("longest turn, processor ms", "", ms))
    outcome.require(float(ms) <= plan.turn_ms_max, f"one turn of the servers' loop took {ms} ms: {what}")
    outcome.rows.append(("tracebacks logged", "0", str(len(errors))))
    outcome.problems += [f"logged: {text}" for text in errors[:3]]
    return outcome


async def _open_connections(
    plan: Plan, addresses: dict[str, str], outcome: Outcome, kinds: Any, what: str
) -> None:
    """Make the connections at the plan's rate, each of a kind that is drawn for its number."""
    started = time.monotonic()
    names = list(kinds)
    room = asyncio.Semaphore(_OPEN_MAX)

    async def open_one(name: str, rng: random.Random) -> None:
        one = RawConnection(addresses, rng)
        act: Callable[[RawConnection], Awaitable[None]] = kinds[name]
        try:
            await act(one)
        except OSError:  # TimeoutError too: refused, cut off, or no longer read from
            outcome.kinds[f"{name}, cut off"] += 1
        finally:
            one.close()
            room.release()
        outcome.kinds[name] += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(plan.connections):
            late = started + number / plan.rate - time.monotonic()
            if late > 0:
                await asyncio.sleep(late)
            if time.monotonic() - started > plan.budget_s:
                break
            await room.acquire()
            rng = random.Random(f"{plan.seed}-{number}")
            tasks.create_task(open_one(names[number % len(names)], rng))
    made = sum(outcome.kinds[name] for name in names)
    seconds = time.monotonic() - started
    outcome.rows.append((f"{what} connections", f"{plan.connections:,}", f"{made:,} in {seconds:.0f} s"))
    outcome.require(made >= plan.connections * 0.99, f"only {made:,} {what} connections were made in time")


def _processor_s(servers: ServerProcess) -> float:
    """Processor time that the servers have used."""
    fields = Path(f"/proc/{servers.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(processes: dict[str, ServerProcess]) -> dict[str, int]:
    return {name: process.memory()[0] for name, process in processes.items()}


async def _settled(processes: dict[str, ServerProcess], before: dict[str, int]) -> dict[str, int]:
    """The memory of each process once it is back, or after a minute."""
    deadline = time.monotonic() + _CALM_S
    while True:
        now = _memory(processes)
        is_back = all(now[name] <= before[name] + _GROWTH_MAX for name in processes)
        if is_back or time.monotonic() > deadline:
            return now
        await asyncio.sleep(1)


def _judge(plan: Plan, outcome: Outcome, calm: Any, attacked: Any, end: Any) -> None:
    for what in ("send", "delivery"):
        one, two = calm[f"{what}_ms"], attacked[f"{what}_ms"]
        limit = max(_P99_TIMES * one["p99"], plan.p99_floor_ms)
        for name in ("p50", "p99", "max"):
            outcome.rows.append((f"{what} {name}, ms", f"{one[name]:.1f}", f"{two[name]:.1f}"))
        outcome.require(
            two["p99"] <= limit, f"the p99 of a {what} is {two['p99']} ms; at most {limit:.1f} is allowed"
        )
    outcome.rows.append(("sends", f"{calm['sends']:,}", f"{attacked['sends']:,}"))
    outcome.rows.append(("failed sends", str(calm["failed"]), str(attacked["failed"])))
    if attacked["failed"] > plan.failed_share_max * (attacked["sends"] + attacked["failed"]):
        outcome.problems += [f"a good client's send failed: {text}" for text in attacked["failures"]]
    for name in ("p50", "p99", "max"):
        one, two = calm["page_ms"][name], attacked["page_ms"][name]
        outcome.rows.append((f"console page {name}, ms", f"{one:.1f}", f"{two:.1f}"))
    failed = calm["page_failures"] + attacked["page_failures"]
    outcome.rows.append(("console pages", f"{calm['pages']:,}", f"{attacked['pages']:,}"))
    outcome.require(not failed, f"{len(failed)} pages of the console failed: {failed[:3]}")
    outcome.rows.append(("acknowledged, lost", "", f"{end['acknowledged']:,}, {sum(end['lost'])}"))
    outcome.require(not any(end["lost"]), f"acknowledged messages that a consumer lacks: {end['lost']}")


def _judge_memory(outcome: Outcome, name: str, sizes: tuple[int, int, int, int], allowed: int) -> None:
    """sizes: before the hostile connections, at their end, at most, and a minute later. allowed: then."""
    before, end, most, after = (size / (1 << 20) for size in sizes)
    text = f"{end:.0f}, then {after:.0f}"
    outcome.rows.append((f"memory of the {name}, MiB", f"{before:.0f}", text))
    outcome.rows.append(("  the most at any time", "", f"{most:.0f}"))
    outcome.require(
        sizes[-1] <= allowed,
        f"the memory of the {name} stays at {after:.0f} MiB; {allowed / (1 << 20):.0f} are allowed",
    )
    peak = allowed + _CONNECTIONS_MAX
    outcome.require(
        sizes[2] <= peak, f"the memory of the {name} was {most:.0f} MiB; {peak / (1 << 20):.0f} are allowed"
    )
