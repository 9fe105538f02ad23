"""Finished stores that are damaged: a byte flipped, a file cut short or removed.

Derived files must be rebuilt; a damaged commit log is rejected or, at its very end, truncated. In no case may
a message be served that was not sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from rocketpy.errors import StoreDamaged, StoreError
from rocketpy.protocol.message.record import decode
from rocketpy_broker.store import MessageStore
from tests.crash.disk import RecordingDisk
from tests.crash.sweep import make_writer
from tests.crash.verify import Violation, open_store, require, walk_log
from tests.crash.workloads import Workload
from tests.crash.writer import ROOT, Clock, Writer, kill
from tests.store_checks import check_store

_UNCHECKED = (
    *range(12, 28),  # queue id, flag, queue offset
    *range(36, 84),  # sysFlag, times, hosts, reconsume times, prepared offset
)
"""Bytes of a record without a checksum in 4.6.0's format. Topic and properties have none either."""


class Base(NamedTuple):
    """A store that was filled and stopped, and the bodies of its messages by topic and queue id."""

    writer: Writer
    bodies: dict[tuple[str, int], list[bytes]]


class Damage(NamedTuple):
    """A change of one file. kind: flip, cut, remove."""

    kind: str
    path: str
    position: int = 0
    mask: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.path} at {self.position} with {self.mask:#x}"


def _fill(writer: Writer, random: Random) -> None:
    for number in range(170):
        writer.put(writer.message(number % 3, size=random.randrange(20, 500)))
        if number % 9 == 0:
            writer.flush(thorough=number % 2 == 0)
            writer.dispatch()
    writer.flush(thorough=True)


@cache
def base(*, clean: bool) -> Base:
    """64 KiB of messages in one commit log file and a little more, stopped cleanly or killed."""
    settings = {"segment_bytes": 65536, "queue_units": 40, "index": (32, 200)}
    writer = make_writer(Workload("damage", _fill, settings), 1)
    writer.open()
    _fill(writer, Random(1))
    if clean:
        writer.close()
    else:
        kill(writer.store)
    bodies: dict[tuple[str, int], list[bytes]] = {}
    for sent in writer.expected.stored.values():
        bodies.setdefault(sent.key, []).append(decode(sent.record).body)
    return Base(writer, bodies)


def damages(image: RecordingDisk, random: Random) -> Iterator[Damage]:
    """Every flipped byte of the log's first file and of every small file, every length, every removal."""
    files = image.files()
    for path, data in files.items():
        used = len(data.rstrip(b"\0"))
        for position in range(used):
            yield Damage("flip", path, position, random.randrange(1, 256))
        for length in range(used + 1):
            yield Damage("cut", path, length)
        yield Damage("remove", path)


def apply(disk: RecordingDisk, damage: Damage) -> None:
    """Damage a file of a disk."""
    path = Path(damage.path)
    if damage.kind == "remove":
        disk.unlink(path)
    else:
        data = bytearray(disk.files(damage.path)[damage.path])
        if damage.kind == "flip":
            data[damage.position] ^= damage.mask
        else:
            del data[damage.position :]
        disk.put_file(path, bytes(data))
    disk.make_durable()


def outcome_of(stored: Base, damage: Damage) -> str:
    """Damage a copy, open it: "repaired" or "refused". Raises Violation when a promise is broken."""
    writer = stored.writer
    disk = writer.disk.copy()
    disk.make_durable()
    apply(disk, damage)
    clock = Clock(writer.clock.now + 60_000)
    try:
        store, _ = open_store(writer.config, disk, clock)
    except StoreDamaged:
        return "refused"
    except StoreError as error:
        raise Violation(f"{damage}: {error}") from error
    try:
        return _served(store, stored, damage)
    except StoreDamaged:
        return "refused"
    finally:
        kill(store)


def _served(store: MessageStore, stored: Base, damage: Damage) -> str:
    """Check the messages that a damaged store serves; return "repaired", or raise Violation."""
    if _is_unchecked(stored, damage):
        return "unchecked"
    for key, bodies in stored.bodies.items():
        found: list[bytes] = []
        offset = 0
        end = store.max_offset_in_queue(*key)
        require(end == len(bodies), f"{damage}: {key} has {end} of {len(bodies)} messages")
        while offset < end:
            result = store.get_message(*key, offset, 32)
            require(result.next_begin_offset > offset, f"{damage}: {key} cannot be read from {offset}")
            found += [decode(record).body for record in _records(result.body)]
            offset = result.next_begin_offset
        require(found == bodies, f"{damage}: {key} serves other messages")
    walk_log(store, stored.writer.expected, stored.writer.expected.flushed_end)
    problems = check_store(store).problems
    require(not problems or damage.kind == "flip", f"{damage}: {problems[:2]}")
    return "repaired"


def _records(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        yield body[at : at + size]
        at += size


def _is_unchecked(stored: Base, damage: Damage) -> bool:
    """Whether the damaged byte belongs to a record and has no checksum."""
    if damage.kind != "flip" or "/commitlog/" not in damage.path:
        return False
    place = int(damage.path[-20:]) + damage.position
    for offset, sent in stored.writer.expected.stored.items():
        if offset <= place < offset + len(sent.record):
            at = place - offset
            body_end = 88 + len(decode(sent.record).body)
            return at in _UNCHECKED or at >= body_end
    return True  # between the last record and the file's end


COMMIT_LOG = str(ROOT / "commitlog")
