"""The workloads of RELIABILITY section 6: what a store does when it is crashed.

Each is a function of a writer and a source of randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store.files.state_file import save_state
from rocketpy_broker.store.message_store import finish
from rocketpy_broker.store.upkeep.cleaner import Cleaner, DiskUse
from tests import golden_data
from tests.crash.writer import ROOT, Writer


@dataclass(frozen=True, slots=True)
class Workload:
    """run: uses the open store. settings: arguments of `small_config`.

    weight: share of the recoveries; slow workloads get fewer. prepare: recorded store to begin with, if any.
    """

    name: str
    run: Callable[[Writer, Random], None]
    settings: dict[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    prepare: str = ""


def _settle(writer: Writer, random: Random) -> None:
    """Do the periodic work of a broker at random."""
    what = random.random()
    if what < 0.4:
        writer.dispatch()
    elif what < 0.65:
        writer.flush()
    elif what < 0.8:
        writer.flush(thorough=True)
        writer.dispatch()
    if random.random() < 0.2:
        _make_room(writer)


def _make_room(writer: Writer) -> None:
    while writer.store.needs_preallocation():
        before = writer.disk.calls
        writer.store.adopt_preallocated(writer.store.preallocate_ahead())
        if writer.disk.calls == before:
            break


def _single(writer: Writer, random: Random) -> None:
    for number in range(28):
        writer.put(writer.message(number % 2, size=random.randrange(0, 300)))
        _settle(writer, random)
    writer.close()


def _batch(writer: Writer, random: Random) -> None:
    for number in range(12):
        bodies = [b"%d/%d " % (number, n) * random.randrange(1, 12) for n in range(random.randrange(1, 6))]
        writer.append_batch(writer.message(number % 2), bodies)
        if random.random() < 0.5:
            writer.append(writer.message(0))
        writer.write_out()
        _settle(writer, random)
    writer.close()


def _runs(writer: Writer, random: Random) -> None:
    """Runs of several messages, and flushes that run while more arrive."""
    for _ in range(14):
        writer.put(*(writer.message(random.randrange(3), size=random.randrange(90)) for _ in range(4)))
        for plan in writer.plans(thorough=random.random() < 0.4):
            writer.put(*(writer.message(random.randrange(3), size=random.randrange(600)) for _ in range(2)))
            writer.dispatch()
            writer.finish(plan)
            writer.dispatch()
    writer.close()


def _parts(writer: Writer, random: Random) -> None:
    """Queues are created, and other flushes run, between the parts of thorough flushes; some are given up."""
    queues = 2
    for _ in range(8):
        for _ in range(random.randrange(1, 5)):
            writer.put(writer.message(random.randrange(queues), size=random.randrange(300), keys=2))
        queues += 1
        _settle(writer, random)
        for plan in writer.plans(thorough=True):
            if random.random() < 0.6:
                writer.put(writer.message(random.randrange(queues + 2), size=random.randrange(200)))
                writer.dispatch()
            writer.finish(plan)
            _settle(writer, random)
            if random.random() < 0.04:
                break
    writer.close()


def _large(writer: Writer, random: Random) -> None:
    """Messages of 4 MiB, the largest that a broker accepts."""
    limit = writer.config.commit_log.message_bytes_max
    writer.put(writer.message(0, size=50))
    writer.flush(thorough=True)
    writer.put(writer.message(0, size=limit - 300))
    writer.dispatch()
    writer.flush()
    writer.put(writer.message(1, size=limit - 300), writer.message(0, size=100))
    writer.flush(thorough=True)


def _roll(writer: Writer, random: Random) -> None:
    """Files that end after a few messages; the next one is created then, or ahead by the preallocator."""
    for number in range(20):
        count = random.randrange(1, 4)
        writer.put(*(writer.message(number % 2, size=random.choice((400, 900, 1100))) for _ in range(count)))
        _settle(writer, random)
    writer.close()


def _delay(writer: Writer, random: Random) -> None:
    for number in range(20):
        level = random.randrange(1, 19)
        writer.put(
            writer.message(level - 1, topic=SCHEDULE_TOPIC, size=60, extra=f"DELAY\x01{level}\x02"),
            writer.message(number % 2, size=60),
        )
        _settle(writer, random)
    writer.close()


def _transaction(writer: Writer, random: Random) -> None:
    """Half messages, then their commit or rollback."""
    for number in range(12):
        writer.put(writer.message(number % 2, size=80, sys_flag=MessageSysFlag.TRANSACTION_PREPARED))
        _settle(writer, random)
        outcome = random.choice((MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK))
        writer.put(writer.message(number % 2, size=80, sys_flag=outcome))
        _settle(writer, random)
    writer.close()


def _index(writer: Writer, random: Random) -> None:
    """Messages with so many keys that an index file holds only a few messages."""
    for number in range(24):
        writer.put(writer.message(number % 2, size=30, keys=random.randrange(0, 9)))
        writer.dispatch()
        if random.random() < 0.3:
            writer.flush(thorough=True)
    writer.close()


def _queue_roll(writer: Writer, random: Random) -> None:
    for number in range(30):
        writer.put(*(writer.message(random.randrange(2), size=8, keys=0) for _ in range(3)))
        writer.dispatch()
        if number % 5 == 4:
            writer.flush(thorough=True)
    writer.close()


def _states(writer: Writer, random: Random) -> None:
    """Topics, offsets and the like are saved while messages arrive."""
    for number in range(12):
        name = random.choice(("topics.json", "consumerOffset.json"))
        content = b'{"n": %d, "text": "%s"}' % (number, b"x" * random.randrange(1500))
        expected = writer.expected
        expected.states[name].append(content)
        save_state(writer.disk, ROOT / "config" / name, content)
        expected.states_saved[name] = len(expected.states[name])
        writer.put(writer.message(0))
    writer.flush(thorough=True)


def _restarts(writer: Writer, random: Random) -> None:
    """Clean and unclean stops in between, and a clock that jumps an hour."""
    for number in range(24):
        writer.put(writer.message(number % 2, size=random.randrange(500)))
        _settle(writer, random)
        if random.random() < 0.15:
            writer.clock.now += random.choice((-3_600_000, 3_600_000))
        what = random.random()
        if what < 0.1:
            writer.reopen()
        elif what < 0.2:
            writer.kill_and_reopen()
    writer.close()


def _retention(writer: Writer, random: Random) -> None:
    """Old files expire while messages arrive, then those of queues and index."""
    cleaner = Cleaner(writer.store)
    for number in range(26):
        writer.put(*(writer.message(n, size=random.choice((300, 900)), keys=2) for n in range(2)))
        _settle(writer, random)
        if number % 6 == 5:
            writer.flush(thorough=True)
            writer.put(writer.message(0))
            writer.dispatch()
            plans = writer.plans(thorough=True)
            writer.finish(next(plans))  # the last part saves a checkpoint from before the deletions
            for step in finish(cleaner.choose(DiskUse(0.8, 0.8), writer.clock.now)):
                # From here on the records of the file may be missing, whether it still exists or not.
                writer.expected.first_offset = writer.store.min_physical_offset
                step()
            for plan in plans:
                writer.finish(plan)
    writer.close()


def _reference(writer: Writer, random: Random) -> None:
    """A directory that RocketMQ 4.6.0 wrote is continued."""
    for number in range(8):
        writer.put(writer.message(number % 2, topic="StoreTopic", size=random.randrange(3000)))
        _settle(writer, random)
    writer.close()


def _workloads() -> Iterable[Workload]:
    yield Workload("single", _single)
    yield Workload("batch", _batch)
    yield Workload("runs", _runs)
    yield Workload("parts", _parts, {"queue_units": 3})
    yield Workload("large", _large, {"segment_bytes": 5 << 20, "index": (8, 24)}, weight=0.02)
    yield Workload("file-roll", _roll, {"reserve_bytes": 2048})
    yield Workload("delay", _delay)
    yield Workload("transaction", _transaction)
    yield Workload("index", _index, {"index": (4, 12)})
    yield Workload("queue-roll", _queue_roll, {"queue_units": 4, "pending_bytes": 100})
    yield Workload("state-files", _states)
    yield Workload("restarts", _restarts)
    yield Workload("retention", _retention, {"queue_units": 4, "index": (4, 24), "retention_hours": 0})
    for name in ("clean", "unclean", "torn"):
        yield Workload(
            f"reference-{name}",
            _reference,
            {"segment_bytes": 65536, "queue_units": 50, "index": (100, 400)},
            weight=0.1,
            prepare=name,
        )


WORKLOADS = {workload.name: workload for workload in _workloads()}


def golden_files(name: str, directory: Path) -> dict[Path, bytes]:
    """Files of a recorded store, by where they belong on the recording disk."""
    root = golden_data.extract_store(name, directory)
    return {ROOT / path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
