"""Crashes a DLedger peer's files at every disk change: `python -m tests.crash.ledger_sweep SEED COUNT`.

Each crash leaves the disk of a killed process or of a power loss, sometimes with a second crash inside the
recovery. Every recovered ledger must have all flushed entries, after a kill all written ones. It must be a
prefix of a written ledger, stay the same in a second recovery, and accept entries.
"""

from __future__ import annotations

import errno
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

from rocketpy.errors import StoreError
from rocketpy_broker.replication.dledger.core.entry import HEADER_BYTES, Entry
from rocketpy_broker.replication.dledger.core.log_view import LedgerView
from rocketpy_broker.replication.dledger.storage.ledger_files import LedgerFiles
from tests.crash.disk import SECTOR, Operation, RecordingDisk
from tests.crash.ledger_crashes import LedgerPass, crashing, run_seeds
from tests.crash.ledger_writer import LedgerWriter, kill_ledger, open_ledger
from tests.crash.sweep import VARIANTS, image_of, stop_at
from tests.crash.verify import Violation, require

_CODES = (errno.ENOSPC, errno.EIO)


def sweep(seed: int, *, stride: int = 1) -> LedgerPass:
    """Run one workload and crash it at every `stride`-th change of the disk."""
    writer, random, result = LedgerWriter(Random(seed)), Random(f"crash {seed}"), LedgerPass()

    def crash(operation: Operation, where: str) -> None:
        for kind in VARIANTS:
            image, power = image_of(writer.disk, operation, kind, random)
            what = f"{where}: {kind}"
            if random.random() < 0.4:
                image, lost = _crash_recovery(writer, image, random)
                power, what = power or lost, what + ", and in recovery"
            _check(writer, image, what, result, power=power)

    with crashing(writer.disk, seed, stride, result, crash):
        writer.open()
        writer.work()
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
            # Data that a failed flush dropped are missing after a kill, too.
            _check(writer, image, what, result, power=power or failed.startswith("fdatasync"))


def _fail(writer: LedgerWriter, at: int, code: int, *, lasting: bool) -> str:
    """Work until the disk fails permanently; return the failed call, empty if none failed."""
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
    """Flip bits of a stored ledger: it must be rejected, or be read without a change.

    Bodies are not flipped, since records have their own checksum. Nor is the newest entry's term, which a
    peer compares with its own term at the start.
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
    def recover() -> None:
        with suppress(StoreError):
            kill_ledger(open_ledger(writer.config, image, writer.bodies))

    stopped = stop_at(image, random.randrange(1, 12), recover)
    if stopped is None:
        return image, False
    return image_of(image, stopped, random.choice(VARIANTS), random)


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
        _go_on(writer, again, held, Random(what))
    except (Violation, StoreError) as error:
        result.failures.append(f"{what}: {error}")


def _go_on(writer: LedgerWriter, image: RecordingDisk, held: list[Entry], random: Random) -> None:
    """Recover once more, append, lose power, recover: the ledger must have all entries."""
    bodies = dict(writer.bodies)
    files = open_ledger(writer.config, image, bodies)
    require(_held(files) == held, "a second recovery found another ledger")
    view = LedgerView(files, writer.config.segment_bytes)
    for body in random.sample(list(bodies), min(len(bodies), random.randrange(3))):
        _append(view, body)
    bodies[filler := _to_sector_end(view)] = None
    _append(view, filler)
    write = view.take()
    files.apply(write)
    files.flush()
    image = image.after_power_loss(None)
    files = open_ledger(writer.config, image, bodies)
    require(_held(files) == [*held, *write.entries], "what was appended after the recovery is lost")
    files.close()
    files = open_ledger(writer.config, image, bodies)
    require(_held(files) == [*held, *write.entries], "a clean stop lost something")
    kill_ledger(files)


def _append(view: LedgerView, body: bytes) -> None:
    view.append(Entry.of(view.end_index + 1, 1 << 20, view.next_entry_pos(len(body)), body))


def _to_sector_end(view: LedgerView) -> bytes:
    """A body whose entry ends at a sector boundary, so that no write touches the bytes after it."""
    size = -(view.next_entry_pos(0) + HEADER_BYTES) % SECTOR
    if view.next_entry_pos(size) != view.next_entry_pos(0):  # in the next file
        size = SECTOR - HEADER_BYTES
    return b"." * size


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
    return run_seeds(arguments, sweep, fail_calls, partial(damage_all, stride=16))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
