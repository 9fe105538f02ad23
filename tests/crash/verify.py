"""Properties of a store that was recovered after a crash."""

from __future__ import annotations

from collections import defaultdict

from rocketpy.errors import StoreError
from rocketpy.protocol.java import utf8_hash
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC, DelayLevels
from rocketpy.protocol.message.properties import PROPERTY_TAGS, find
from rocketpy.protocol.message.record import BLANK_MAGIC, read_start
from rocketpy_broker.store import MessageInner, MessageStore, RecoveryReport, StoreConfig
from rocketpy_broker.store.files.state_file import load_state
from rocketpy_broker.store.files.store_lock import StoreLock
from rocketpy_broker.store.log.mapped_file import mapped_file_name
from rocketpy_broker.store.queue.consume_queue import UNIT
from tests.crash.disk import SECTOR, RecordingDisk
from tests.crash.writer import ROOT, Clock, Expectation, Sent, kill, parse, sent_as
from tests.store_checks import check_store

LEVELS = DelayLevels(StoreConfig(root=ROOT).delay_levels)


class Violation(AssertionError):
    """A guarantee was violated."""


def require(condition: object, problem: str) -> None:
    """Raises Violation unless the condition holds."""
    if not condition:
        raise Violation(problem)


def open_store(config: StoreConfig, disk: RecordingDisk, clock: Clock) -> tuple[MessageStore, RecoveryReport]:
    """Open a store on that disk."""
    StoreLock._held.clear()
    store = MessageStore(config, clock=clock, disk=disk)
    return store, store.open()


def recover_and_verify(
    config: StoreConfig, disk: RecordingDisk, expected: Expectation, *, power: bool, clock: Clock
) -> RecoveryReport:
    """Recover, check all promises, crash, recover a second time, continue, stop, start.

    power: whether unflushed data may be missing. Raises Violation.
    """
    try:
        store, report = open_store(config, disk, clock)
    except StoreError as error:
        raise Violation(f"not opened: {error}") from error
    try:
        verify(store, disk, expected, power=power)
        again = disk.copy()
    finally:
        kill(store)
    verify_idempotence(config, again, report, clock, expected)
    verify_going_on(config, again, clock)
    return report


# -- one recovered store ------------------------------------------------------------------------------


def verify(store: MessageStore, disk: RecordingDisk, expected: Expectation, *, power: bool) -> None:
    """Check an open store against the sent messages."""
    must_end = expected.flushed_end if power else expected.written_end
    log = walk_log(store, expected, must_end)
    problems = check_store(store).problems
    require(not problems, f"checker: {problems[:3]}")
    verify_queues(store, disk, log, expected, power=power)
    verify_states(disk, expected)


def walk_log(store: MessageStore, expected: Expectation, must_end: int) -> dict[int, Sent]:
    """The log's records; each must have been sent, and equal the acknowledged one."""
    found: dict[int, Sent] = {}
    end = store.max_physical_offset
    at = store.min_physical_offset
    first = expected.first_offset
    require(at <= first or not expected.stored, f"the log starts at {at}, nothing behind {first} expired")
    require(end >= must_end, f"the log ends at {end}; what was acknowledged reaches {must_end}")
    require(store.flushed_offset == end, f"recovered to {end}, flushed to {store.flushed_offset}")
    while at < end:
        file = store.commit_log.files.find(at)
        require(file is not None, f"no file for {at}")
        assert file is not None
        start = file.read(at - file.start, 8)
        size, magic = read_start(start)
        if magic == BLANK_MAGIC:
            require(at + size == file.end, f"blank of {size} bytes at {at} does not end its file")
            at = file.end
            continue
        record = store.commit_log.read(at, size)
        candidates = (
            [expected.stored[at]] if at in expected.stored and at < must_end else expected.attempts[at]
        )
        sent = next((sent for sent in candidates if sent.record == record), None)
        known = [len(one.record) for one in candidates]
        problem = f"of {size} bytes, known are {known}; acknowledged reaches {must_end}"
        require(sent is not None, f"the record at {at} was not sent, or another acknowledged: {problem}")
        assert sent is not None
        found[at] = sent
        at += size
    for offset in expected.stored:
        kept = store.min_physical_offset <= offset < must_end
        require(not kept or offset in found, f"the acknowledged record at {offset} is gone")
    return found


def verify_queues(
    store: MessageStore, disk: RecordingDisk, log: dict[int, Sent], expected: Expectation, *, power: bool
) -> None:
    """Queues are dense, contain exactly the log's messages, and all that consumers have read."""
    units: dict[tuple[str, int], list[tuple[int, bytes]]] = defaultdict(list)
    for offset, sent in log.items():
        if sent.number is not None:
            units[sent.key].append((sent.number, unit_of(offset, sent)))
    for key, queue in store.queues.queues.items():
        numbers = [number for number, _ in units.get(key, [])]
        first = numbers[0] if numbers else queue.next_offset
        require(numbers == list(range(first, first + len(numbers))), f"{key}: not dense: {numbers}")
        require(store.min_physical_offset > 0 or first == 0 or not numbers, f"{key}: begins with {first}")
        require(queue.next_offset == first + len(numbers), f"{key}: next is {queue.next_offset}")
        require(store.table[key].next_offset == queue.next_offset, f"{key}: the log would go on elsewhere")
        queue.write_out()
        verify_queue_bytes(store, disk, key, units.get(key, []))
    keep_seen = store._is_sync_flush or not power
    for key, seen in expected.seen.items() if keep_seen else ():
        here = dict(units.get(key, []))
        for number, offset in seen.items():
            if offset < store.min_physical_offset:
                continue
            unit = here.get(number)
            require(unit is not None and UNIT.unpack(unit)[0] == offset, f"{key}: {number} was seen, is gone")
    total = sum(len(queue) for queue in units.values())
    held = sum(min(queue.next_offset, len(units.get(key, []))) for key, queue in store.queues.queues.items())
    require(total == held, f"{total} messages for queues, the queues have {held}")


def unit_of(offset: int, sent: Sent) -> bytes:
    """The consume queue unit that this record must have."""
    view = parse(sent.record)
    code = utf8_hash(find(view.properties, PROPERTY_TAGS.encode()) or b"")
    if view.topic == SCHEDULE_TOPIC:
        level = int(view.properties.partition(b"DELAY\x01")[2].partition(b"\x02")[0] or 0)
        due = LEVELS.due_time(level, view.store_timestamp)
        code = code if due is None else due
    return UNIT.pack(offset, len(sent.record), code)


def verify_queue_bytes(
    store: MessageStore, disk: RecordingDisk, key: tuple[str, int], units: list[tuple[int, bytes]]
) -> None:
    """A queue's files contain its units, and zeros after them."""
    directory = store.config.consume_queue_directory / key[0] / str(key[1])
    size = store.config.consume_queue.segment_bytes
    content = disk.files(f"{directory}/")
    for path, data in content.items():
        start = int(path[-20:])
        expected = bytearray(size)
        lowest = units[0][0] * 20 if units else (start + size if store.min_physical_offset else start)
        for number, unit in units:
            if start <= number * 20 < start + size:
                expected[number * 20 - start : number * 20 - start + 20] = unit
        skip = max(0, min(size, lowest - start))  # units of expired records may remain
        if bytes(expected[skip:]) != data[skip:]:
            at = next(n for n in range(skip, size) if expected[n] != data[n])
            raise Violation(
                f"queue {key}: file {mapped_file_name(start)} differs from a rebuilt one at byte {at}"
            )


def verify_states(disk: RecordingDisk, expected: Expectation) -> None:
    """State files have the content that was saved last, or was being saved."""
    for name, contents in expected.states.items():
        saved = expected.states_saved.get(name, 0)
        allowed = contents[max(0, saved - 1) :]
        try:
            loaded = load_state(disk, ROOT / "config" / name, _strict).value
        except StoreError as error:
            raise Violation(f"{name}: {error}") from error
        require(loaded in allowed or (loaded is None and not saved), f"{name} is {loaded!r}")


def _strict(data: bytes) -> bytes:
    if not (data.startswith(b"{") and data.endswith(b"}")):
        raise ValueError(f"torn: {data!r}")
    return data


# -- after the first recovery -------------------------------------------------------------------------


def content_of(store: MessageStore) -> tuple[int, object, object]:
    """The content that must be equal after another recovery: end of the log, queues and index."""
    queues = {key: queue.next_offset for key, queue in store.queues.queues.items() if queue.next_offset}
    index = store.index.files if store.index is not None else []
    entries = sorted({(entry[0], entry[1]) for file in index for entry in file.entries()})
    return store.max_physical_offset, queues, entries


def verify_idempotence(
    config: StoreConfig, disk: RecordingDisk, report: RecoveryReport, clock: Clock, expected: Expectation
) -> None:
    """A second recovery changes nothing: the disk is as the first recovery left it.

    Then a message of the same size replaces the first lost one: records behind it must not return.
    """
    before = {path: data for path, data in disk.files().items() if "/index/" not in path}
    after_power = disk.after_power_loss(None)
    kept = after_power.files(str(config.commit_log_directory))
    written = disk.files(str(config.commit_log_directory))
    require(kept == written, "a recovered log was not flushed")
    store, second = open_store(config, disk, clock)
    try:
        require(second.cut_bytes == 0, f"a second recovery cuts {second.cut_bytes} bytes")
        require(second.rebuilt == 0, f"a second recovery adds {second.rebuilt} units")
        require(
            second.end == report.end, f"a second recovery ends at {second.end}, the first at {report.end}"
        )
        after = {path: data for path, data in disk.files().items() if "/index/" not in path}
        changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
        changed = [path for path in changed if not path.endswith("/checkpoint")]
        require(not changed, f"a second recovery changes {changed}")
        lost = expected.attempts.get(second.end, [])
        message = _probe("T", 0)
        room = len(lost[0].record) - len(message.properties) - 91 - len("T") if lost else 0
        message.body = b"p" * max(5, room)
        receipt = store.put_message(message)
        end = receipt.physical_offset + receipt.size
    finally:
        kill(store)
    store, third = open_store(config, disk, clock)
    kill(store)
    require(third.end == end, f"one message was written up to {end}, recovery ends at {third.end}")


def verify_going_on(config: StoreConfig, disk: RecordingDisk, clock: Clock) -> None:
    """The store accepts messages at its end, stops cleanly, and starts with them."""
    store, _ = open_store(config, disk, clock)
    keys = sorted(store.queues.queues)[:3] or [("T", 0)]
    try:
        for topic, queue_id in keys:
            before = store.max_offset_in_queue(topic, queue_id)
            message = _probe(topic, queue_id)
            if (topic, queue_id) == keys[-1]:
                _fill_sector(store, message)
            receipt = store.put_message(message)
            require(receipt.queue_offset == before, f"{topic}/{queue_id}: number {receipt.queue_offset}")
            store.flush()
            result = store.get_message(topic, queue_id, before, 1)
            require(result.count == 1, f"{topic}/{queue_id}: {result.status} for a new message")
            record = result.body
            require(sent_as(parse(record), record).number == before, "another message is read")
        end = store.max_physical_offset
        lost = disk.after_power_loss(None)
        store.close()
    finally:
        kill(store)
    store, report = open_store(config, disk, clock)
    try:
        require(report.clean, "a clean stop is not recognised")
        require(store.max_physical_offset == end, f"closed at {end}, opened at {store.max_physical_offset}")
        require(report.cut_bytes == 0, f"a clean start cuts {report.cut_bytes} bytes")
        require(report.rebuilt == 0, f"a clean start adds {report.rebuilt} units")
    finally:
        kill(store)
    store, report = open_store(config, lost, clock)
    kill(store)
    require(report.end == end, f"flushed up to {end}, after power loss it ends at {report.end}")


def _fill_sector(store: MessageStore, message: MessageInner) -> None:
    """Make the record end at a sector boundary, so that no write touches the bytes after it."""
    size = 91 + len(message.body) + len(message.topic) + len(message.properties)
    message.body += b"p" * (-(store.max_physical_offset + size) % SECTOR)


def _probe(topic: str, queue_id: int) -> MessageInner:
    return MessageInner(topic, queue_id, b"probe", b"UNIQ_KEY\x01probe\x02KEYS\x01again\x02")
