"""Stops a DLedger peer's files at every change of the disk: `python -m tests.crash.ledger_sweep SEED COUNT`.

Each crash leaves the disk of a killed process or of a power loss, sometimes with a second crash inside the
recovery. Every recovered ledger must hold what was flushed, or was written if only the process died; be the
beginning of something that was written; be the same when it is recovered again; and go on.
"""

from __future__ import annotations

import errno
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rocketpy.errors import StoreError
from rocketpy_broker.dledger.entry import Entry
from rocketpy_broker.dledger.ledger_files import LedgerFiles
from rocketpy_broker.dledger.ledger_view import LedgerView
from tests.crash.disk import Crash, Operation, RecordingDisk
from tests.crash.ledger_writer import LedgerWriter, kill_ledger, open_ledger
from tests.crash.sweep import VARIANTS, image_of
from tests.crash.verify import Violation, require

__all__ = ["LedgerPass", "damage_all", "fail_calls", "sweep"]

_CODES = (errno.ENOSPC, errno.EIO)


@dataclass(slots=True)
class LedgerPass:
    """What a run gave. failures: which crash broke what."""

    recoveries: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)


def sweep(seed: int, *, stride: int = 1) -> LedgerPass:
    """Run one workload and crash it at every `stride`-th change of the disk."""
    writer, random, result = LedgerWriter(Random(seed)), Random(f"crash {seed}"), LedgerPass()
    changes = 0

    def before(operation: Operation) -> None:
        nonlocal changes
        changes += 1
        if (changes + seed) % stride or len(result.failures) > 4:
            return
        writer.disk.before = None
        for kind in VARIANTS:
            image, power = image_of(writer.disk, operation, kind, random)
            what = f"{kind} at {operation.kind} {operation.path[7:]}"
            if random.random() < 0.4:
                image, lost = _crash_recovery(writer, image, random)
                power, what = power or lost, what + ", and in recovery"
            _check(writer, image, f"seed {seed}, change {changes}, {what}", result, power=power)
        writer.disk.before = before

    writer.disk.before = before
    writer.open()
    writer.work()
    writer.disk.before = None
    return result


def fail_calls(seed: int) -> LedgerPass:
    """Let each change of the disk fail in turn, once or from there on; then crash."""
    result, calls = LedgerPass(), 0
    while True:
        calls += 1
        writer, random = LedgerWriter(Random(seed)), Random(f"fail {seed} {calls}")
        code, is_lasting = random.choice(_CODES), random.random() < 0.3
        failed = _fail(writer, calls, code, lasting=is_lasting)
        if not failed:
            return result
        what = f"seed {seed}, {errno.errorcode[code]} at call {calls}, {failed}"
        images = [(writer.disk.copy(), False), (writer.disk.after_power_loss(None), True)]
        images.append((writer.disk.after_power_loss(random), True))
        for image, power in images:
            # What a failed flush dropped is gone though only the process died.
            _check(writer, image, what, result, power=power or failed.startswith("fdatasync"))


def _fail(writer: LedgerWriter, at: int, code: int, *, lasting: bool) -> str:
    """Work until the disk has failed for good; return what failed, empty if nothing did."""
    writer.open()
    calls, failed = 0, ""

    def before(operation: Operation) -> None:
        nonlocal calls, failed
        calls += 1
        if calls < at or (calls > at and not lasting):
            return
        if operation.kind == "pwrite":
            writer.disk.fail_pwrite(operation, len(operation.data) // 2)
        elif operation.kind == "fdatasync":
            writer.disk.fail_fdatasync(operation)
        failed = failed or f"{operation.kind} {operation.path[7:]}"
        raise OSError(code, f"planned failure of {operation.kind}")

    writer.disk.before = before
    try:
        writer.work(25)
    except StoreError:
        pass
    finally:
        writer.disk.before = None
        kill_ledger(writer.files)
    return failed


def damage_all(seed: int, *, stride: int = 1) -> LedgerPass:
    """Flip bits of a stored ledger, here and there: it must be as it was, or be refused, never another.

    Bodies are left out: they are records, with a checksum of their own. So is the newest entry's term, which
    a peer holds against its own when it starts.
    """
    writer, random, result = LedgerWriter(Random(seed)), Random(f"damage {seed}"), LedgerPass()
    writer.open()
    writer.work(25)
    writer.flush(thorough=True)
    kill_ledger(writer.files)
    for path, data in writer.disk.files().items():
        for at in range(random.randrange(stride), len(data), stride):
            image = writer.disk.copy()
            handle = image.open(Path(path))
            image.pwrite(handle, bytes([data[at] ^ 1 << random.randrange(8)]), at)
            result.recoveries += 1
            try:
                files = open_ledger(writer.config, image, writer.bodies)
                held = _places(_held(files))
                kill_ledger(files)
            except StoreError:
                result.refused += 1
                continue
            if held != _places(writer.written):
                result.failures.append(f"seed {seed}, {path} at {at}: another ledger is served")
    return result


def _places(entries: list[Entry]) -> list[tuple[int, int, int, int]]:
    places = [(entry.index, entry.term, entry.pos, entry.size) for entry in entries]
    return [*places[:-1], *((index, -1, pos, size) for index, _, pos, size in places[-1:])]


def _crash_recovery(writer: LedgerWriter, image: RecordingDisk, random: Random) -> tuple[RecordingDisk, bool]:
    left, stopped = random.randrange(1, 12), list[Operation]()

    def stop(operation: Operation) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            stopped.append(operation)
            raise Crash

    image.before = stop
    try:
        kill_ledger(open_ledger(writer.config, image, writer.bodies))
    except (Crash, StoreError):
        pass
    finally:
        image.before = None
    return image_of(image, stopped[0], random.choice(VARIANTS), random) if stopped else (image, False)


def _check(
    writer: LedgerWriter,
    image: RecordingDisk,
    what: str,
    result: LedgerPass,
    *,
    power: bool,
) -> None:
    result.recoveries += 1
    must = writer.durable if power else writer.written
    try:
        files = open_ledger(writer.config, image, writer.bodies)
        held = _held(files)
        again = image.copy()
        kill_ledger(files)
        require(held[: len(must)] == must, f"{len(must)} entries must be there, {_told(held, must)}")
        known = any(held == one[: len(held)] for one in writer.possible)
        require(known, f"{_told(held, writer.written)}: nothing that was written begins like that")
        _go_on(writer, again, held)
    except (Violation, StoreError) as error:
        result.failures.append(f"{what}: {error}")


def _go_on(writer: LedgerWriter, image: RecordingDisk, held: list[Entry]) -> None:
    """Recover once more, append, lose power, recover."""
    files = open_ledger(writer.config, image, writer.bodies)
    require(_held(files) == held, "a second recovery found another ledger")
    view = LedgerView(files, writer.config.segment_bytes)
    for body in list(writer.bodies)[:2]:
        view.append(Entry.of(view.end_index + 1, 1 << 20, view.place(len(body)), body))
    write = view.take()
    files.apply(write)
    files.flush()
    image = image.after_power_loss(None)
    files = open_ledger(writer.config, image, writer.bodies)
    require(_held(files) == [*held, *write.entries], "what was appended after the recovery is lost")
    files.close()
    files = open_ledger(writer.config, image, writer.bodies)
    require(_held(files) == [*held, *write.entries], "a clean stop lost something")
    kill_ledger(files)


def _held(files: LedgerFiles) -> list[Entry]:
    if files.end_index < 0:
        return []
    return [files.get(index) for index in range(files.begin_index, files.end_index + 1)]


def _told(held: list[Entry], must: list[Entry]) -> str:
    def span(entries: list[Entry]) -> str:
        return f"{entries[0].index} to {entries[-1].index}" if entries else "nothing"

    return f"held {span(held)}, written {span(must)}"


def main(arguments: list[str]) -> int:
    """Run COUNT seeds from SEED on; 0 when every promise held."""
    seed, count = (int(argument) for argument in arguments)
    logging.disable(logging.CRITICAL)
    total = LedgerPass()
    for number in range(seed, seed + count):
        for one in (sweep(number), fail_calls(number), damage_all(number, stride=16)):
            total.recoveries += one.recoveries
            total.refused += one.refused
            for failure in one.failures:
                print(failure, flush=True)
            total.failures += one.failures
    failed = len(total.failures)
    print(f"{count} seeds, {total.recoveries} recoveries, {total.refused} refused, {failed} failures")
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
