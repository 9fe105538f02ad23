"""Stops a workload at every call that changes the disk, and recovers from each kind of crash."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from random import Random

from rocketpy.errors import StoreError
from rocketpy_broker.store import StoreConfig
from tests.crash.disk import Crash, Operation, RecordingDisk
from tests.crash.verify import Violation, open_store, recover_and_verify
from tests.crash.workloads import Workload, golden_files
from tests.crash.writer import Clock, Writer, kill, small_config

VARIANTS = ("clean cut", "all lost", "random subset", "torn write")
_RECOVERY_CRASHES_MAX = 3


@dataclass(slots=True)
class Failure:
    """Which crash broke which promise; workload and seed replay it."""

    workload: str
    seed: int
    boundary: int
    what: str
    problem: str

    def __str__(self) -> str:
        return f"{self.workload}, seed {self.seed}, boundary {self.boundary}, {self.what}: {self.problem}"


@dataclass(slots=True)
class Pass:
    """The result of one run of a workload."""

    boundaries: int = 0
    recoveries: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(slots=True)
class _Sweeper:
    workload: Workload
    config: StoreConfig
    seed: int
    stride: int
    offset: int
    recoveries_max: int
    random: Random
    writer: Writer
    variants: int
    result: Pass = field(default_factory=Pass)
    failures_max: int = 5

    def before(self, operation: Operation) -> None:
        """Crash copies of the disk before the store changes it."""
        self.result.boundaries += 1
        if (self.result.boundaries + self.offset) % self.stride or self._is_enough():
            return
        variants = range(8) if self.variants >= 8 else self.random.sample(range(8), self.variants)
        for variant in variants:
            kind, nested = VARIANTS[variant % 4], variant >= 4
            if kind == "torn write" and operation.kind != "pwrite":
                continue
            self._crash(operation, kind, nested=nested)

    def _is_enough(self) -> bool:
        return self.result.recoveries >= self.recoveries_max or len(self.result.failures) >= self.failures_max

    def _crash(self, operation: Operation, kind: str, *, nested: bool) -> None:
        disk = self.writer.disk
        hook, disk.before = disk.before, None
        what = f"{kind} at {operation.kind} {operation.path[7:]}"
        try:
            image, power = image_of(disk, operation, kind, self.random)
            if nested:
                image, lost, description = self._crash_recovery(image)
                power, what = power or lost, what + description
            self.result.recoveries += 1
            clock = Clock(self.writer.clock.now + 60_000)
            recover_and_verify(self.config, image, self.writer.expected, power=power, clock=clock)
        except Violation as violation:
            self.result.failures.append(
                Failure(self.workload.name, self.seed, self.result.boundaries, what, str(violation))
            )
        finally:
            disk.before = hook

    def _crash_recovery(self, image: RecordingDisk) -> tuple[RecordingDisk, bool, str]:
        """Crash inside recovery, up to three times in sequence."""
        power, description = False, ""
        for _ in range(self.random.choice((1, 1, 1, 2, _RECOVERY_CRASHES_MAX))):
            at = self.random.randrange(1, 12)
            operation = stop_at(image, at, partial(self._recover, image))
            if operation is None:
                break
            kind = self.random.choice(VARIANTS)
            image, lost = image_of(image, operation, kind, self.random)
            power = power or lost
            description += f", {kind} in recovery at {operation.kind} {operation.path[7:]}"
        return image, power, description

    def _recover(self, image: RecordingDisk) -> None:
        try:
            store, _ = open_store(self.config, image, Clock(self.writer.clock.now + 30_000))
        except StoreError as error:
            raise Violation(f"not opened: {error}") from error
        kill(store)


def stop_at(disk: RecordingDisk, at: int, recover: Callable[[], object]) -> Operation | None:
    """Recover up to the `at`-th change of the disk; return the change not made, None if all were made."""
    stopped: list[Operation] = []

    def stop(operation: Operation) -> None:
        nonlocal at
        at -= 1
        if at == 0:
            stopped.append(operation)
            raise Crash

    disk.before = stop
    try:
        recover()
    except Crash:
        pass
    finally:
        disk.before = None
    return stopped[0] if stopped else None


def image_of(
    disk: RecordingDisk, operation: Operation, kind: str, random: Random
) -> tuple[RecordingDisk, bool]:
    """Return the disk after a crash of this kind, and whether unflushed data may be missing."""
    if kind == "clean cut":
        return disk.copy(), False
    if kind == "torn write" and operation.kind == "pwrite":
        return disk.torn(operation, random.randrange(len(operation.data) + 1)), False
    if kind == "all lost":
        return disk.after_power_loss(None), True
    return disk.after_power_loss(random, operation), True


@cache
def _recorded(name: str) -> dict[Path, bytes]:
    with tempfile.TemporaryDirectory(prefix="rocketpy-crash-") as directory:
        return golden_files(name, Path(directory))


def make_writer(workload: Workload, seed: int, *, sync: bool | None = None) -> Writer:
    """A writer on a fresh disk, not opened; odd seeds run with SYNC_FLUSH."""
    settings = dict(workload.settings)
    random = Random(f"{workload.name} sizes {seed}")
    if "pending_bytes" not in settings:
        settings["pending_bytes"] = random.choice((20, 60, 4096))
    config = small_config(sync=bool(seed % 2) if sync is None else sync, **settings)
    clock = Clock()
    disk = RecordingDisk(clock)
    if workload.prepare:
        clock.now = 1_900_000_000_000
        for path, data in _recorded(workload.prepare).items():
            disk.put_file(path, data)
    else:
        disk.make_dir(Path("/store"))
        disk.make_durable()
    return Writer(config, disk, clock)


def run_pass(
    workload: Workload,
    seed: int,
    *,
    stride: int = 1,
    variants: int = 8,
    recoveries_max: int = 1 << 60,
    failures_max: int = 5,
) -> Pass:
    """Run a workload once and crash it at every `stride`-th boundary in `variants` of the eight ways."""
    started = time.monotonic()
    writer = make_writer(workload, seed)
    random = Random(f"{workload.name} {seed}")
    sweeper = _Sweeper(
        workload, writer.config, seed, stride, seed % stride, recoveries_max, Random(seed), writer, variants,
        failures_max=failures_max,
    )  # fmt: skip
    if workload.prepare:
        writer.open()
        writer.disk.before = sweeper.before
    else:
        writer.disk.before = sweeper.before
        writer.open()
    with _closing(writer):
        workload.run(writer, random)
    sweeper.result.seconds = time.monotonic() - started
    return sweeper.result


@contextlib.contextmanager
def _closing(writer: Writer) -> Iterator[None]:
    try:
        yield
    finally:
        writer.disk.before = None
        kill(writer.store)
