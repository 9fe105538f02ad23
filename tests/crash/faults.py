"""Every disk call fails once: because of a full disk, an I/O error, or a flush that drops its data."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from random import Random

from rocketpy.errors import StoreError
from tests.crash.disk import Operation
from tests.crash.sweep import Failure, make_writer
from tests.crash.verify import Violation, recover_and_verify
from tests.crash.workloads import Workload
from tests.crash.writer import Clock, Writer, kill


@dataclass(slots=True)
class FaultResult:
    """The number of recovered disk images after runs in which a call failed, and the failures."""

    recoveries: int = 0
    failures: list[Failure] = field(default_factory=list)


class _Fault:
    """Lets one call fail, and all later ones if `lasting`."""

    def __init__(self, writer: Writer, at: int, code: int, *, lasting: bool) -> None:
        self._disk = writer.disk
        self._at = at
        self._code = code
        self._lasting = lasting
        self._calls = 0
        self.failed = ""

    def before(self, operation: Operation) -> None:
        self._calls += 1
        if self._calls < self._at or (self._calls > self._at and not self._lasting):
            return
        if operation.kind == "pwrite":
            self._disk.fail_pwrite(operation, len(operation.data) // 2)
        if operation.kind == "fdatasync":
            self._disk.fail_fdatasync(operation)
        elif operation.kind in {"unlink", "remove_dir"} and self._code == errno.ENOSPC:
            return
        self.failed = self.failed or f"{operation.kind} {operation.path[7:]}"
        raise OSError(self._code, f"planned failure of {operation.kind}")


def _work(writer: Writer, random: Random) -> None:
    """Use the store like a broker under load, which continues after every rejection."""
    for number in range(14):
        for _ in range(random.randrange(1, 4)):
            writer.try_append(writer.message(number % 2, size=random.randrange(700), keys=2))
        writer.attempt("write_out", "dispatch")
        if number % 3 == 2:
            writer.attempt("flush")
        if number % 5 == 4:
            writer.attempt("flush_thoroughly")
    writer.attempt("close")


WORKLOAD = Workload("faults", _work, {"index": (8, 24), "reserve_bytes": 2048})


def count_calls(seed: int) -> int:
    """The number of disk calls in a run without failures."""
    writer = make_writer(WORKLOAD, seed)
    writer.open()
    start = writer.disk.calls
    _work(writer, Random(seed))
    return writer.disk.calls - start


def run_fault(seed: int, at: int, code: int, *, lasting: bool) -> FaultResult:
    """One run in which the `at`-th call fails; then the process is killed, or power fails."""
    writer = make_writer(WORKLOAD, seed)
    writer.open()
    fault = _Fault(writer, at, code, lasting=lasting)
    writer.disk.before = fault.before
    try:
        _work(writer, Random(seed))
    finally:
        writer.disk.before = None
        kill(writer.store)
    result = FaultResult()
    random = Random(f"{seed} {at}")
    images = [
        (writer.disk.copy(), False),
        (writer.disk.after_power_loss(None), True),
        (writer.disk.after_power_loss(random), True),
    ]
    for image, power in images:
        result.recoveries += 1
        clock = Clock(writer.clock.now + 60_000)
        try:
            recover_and_verify(writer.config, image, writer.expected, power=power, clock=clock)
        except (Violation, StoreError) as error:
            what = f"{errno.errorcode[code]}{' for good' if lasting else ''} at {fault.failed}, power {power}"
            result.failures.append(Failure("faults", seed, at, what, str(error)))
    return result
