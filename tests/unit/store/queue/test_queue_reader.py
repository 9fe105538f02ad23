"""Reads of queues: offsets, limits, filters, damaged records, and searches by time or key."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy.errors import StoreDamaged
from rocketpy.protocol.java import string_hash
from rocketpy.protocol.message.record import decode_all
from rocketpy_broker.store import (
    CommitLogConfig,
    ConsumeQueueConfig,
    GetMessageStatus,
    IndexConfig,
    MessageInner,
    MessageStore,
    ReadConfig,
)
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.queue.dispatch import Arrivals
from rocketpy_broker.store.queue.log_fields import index_fields
from tests.unit.store.helpers import bodies, kill, message, put, small_config

S = GetMessageStatus


class CountingDisk(OsDisk):
    """Records the sizes of reads."""

    def __init__(self) -> None:
        self.reads: list[int] = []

    def pread(self, handle: int, size: int, position: int) -> bytes:
        """Read, and record the size."""
        self.reads.append(size)
        return super().pread(handle, size, position)


class Clock:
    """A clock that advances by ten milliseconds with each reading."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        self.now += 10
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    store = MessageStore(small_config(tmp_path), clock=Clock())
    store.open()
    return store


def status(store: MessageStore, offset: int) -> tuple[GetMessageStatus, int, int, int]:
    result = store.get_message("T", 0, offset, 32)
    return result.status, result.next_begin_offset, result.min_offset, result.max_offset


def test_statuses_and_next_offsets_are_those_of_4_6_0(store: MessageStore) -> None:
    """Consumers would restart at the wrong message when their offset is out of range."""
    assert status(store, 7) == (S.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    put(store, *range(5))
    assert status(store, 0)[:2] == (S.FOUND, 5)
    assert status(store, 5) == (S.OFFSET_OVERFLOW_ONE, 5, 0, 5)
    assert status(store, 6) == (S.OFFSET_OVERFLOW_BADLY, 0, 0, 5)
    queue = store.queues.queues["T", 0]
    queue.min_offset = 2
    assert status(store, 1) == (S.OFFSET_TOO_SMALL, 2, 2, 5)
    assert status(store, 9) == (S.OFFSET_OVERFLOW_BADLY, 5, 2, 5)
    assert status(store, -1) == (S.OFFSET_TOO_SMALL, 2, 2, 5)
    store.close()


def test_batches_end_at_counts_and_bytes(tmp_path: Path) -> None:
    """The response to one pull would have more than a client takes."""
    read = ReadConfig(memory_bytes_max=2000, memory_count_max=8)
    store = MessageStore(small_config(tmp_path, read=read))
    store.open()
    put(store, *range(20))
    for number in range(3):
        put(store, 100 + number, body=bytes(900))
    put(store, 200, body=bytes(5000))
    assert store.get_message("T", 0, 0, 3).count == 3
    assert store.get_message("T", 0, 0, 32).count == 8
    assert store.get_message("T", 0, 20, 32).count == 1
    assert store.get_message("T", 0, 0, 32, max_bytes=500).count == 3
    three = sum(unit[2] for unit in list(store.queues.queues["T", 0].units())[:3])
    for codes in (None, {string_hash(f"Tag{number}") for number in range(3)}):
        for size, count in ((three, 3), (three - 1, 2)):
            assert store.get_message("T", 0, 0, 32, max_bytes=size, tag_codes=codes).count == count
    big = store.get_message("T", 0, 23, 32)
    assert (big.status, big.count, len(big.body) > 5000) == (S.FOUND, 1, True)
    assert store.get_message("T", 0, 0, 0).count == 1, "4.6.0 gives the first one always"
    store.close()


@pytest.mark.parametrize("wanted", [0, -1, -(2**31)])
def test_a_pull_of_no_messages_gets_one(store: MessageStore, wanted: int) -> None:
    """As in 4.6.0: with maxMsgNums below 0 a consumer would be sent to the next file of its queue."""
    put(store, *range(5))
    for tag_codes in (None, {string_hash("Tag1")}):
        result = store.get_message("T", 0, 1, wanted, tag_codes=tag_codes)
        assert (result.status, result.next_begin_offset, result.count) == (S.FOUND, 2, 1)
    store.close()


def test_old_messages_are_read_in_smaller_batches_and_suggest_a_slave(tmp_path: Path) -> None:
    """A consumer far behind would displace the pages that others need."""
    read = ReadConfig(physical_memory_bytes=1000, memory_ratio_percent=50)
    store = MessageStore(small_config(tmp_path, read=read))
    store.open()
    put(store, *range(100))
    old = store.get_message("T", 0, 0, 32)
    new = store.get_message("T", 0, 99, 32)
    assert (old.count, old.suggest_slave, store.is_in_memory("T", 0, 0)) == (8, True, False)
    assert (new.count, new.suggest_slave, store.is_in_memory("T", 0, 99)) == (1, False, True)
    store.close()


def test_a_changed_share_of_memory_applies_to_the_next_read(tmp_path: Path) -> None:
    """A live change of accessMessageInMemoryMaxRatio would apply at the next start only."""
    read = ReadConfig(physical_memory_bytes=1 << 20, memory_ratio_percent=50)
    with MessageStore(small_config(tmp_path, read=read)) as store:
        put(store, *range(100))
        assert (store.get_message("T", 0, 0, 32).suggest_slave, store.is_in_memory("T", 0, 0)) == (
            False,
            True,
        )
        object.__setattr__(read, "memory_ratio_percent", 0)  # as `LiveConfig` does
        assert (store.get_message("T", 0, 0, 32).suggest_slave, store.is_in_memory("T", 0, 0)) == (
            True,
            False,
        )


@pytest.mark.parametrize("by_tag", [False, True])
def test_a_slave_is_suggested_far_from_the_end(tmp_path: Path, *, by_tag: bool) -> None:
    """A busy master would serve readers that belong to its slave, or send away those near the end."""
    read = ReadConfig(physical_memory_bytes=10_000, memory_ratio_percent=50)
    with MessageStore(small_config(tmp_path, read=read)) as store:
        put(store, *range(100))
        units = list(store.queues.queues["T", 0].units())
        tag_codes = frozenset(unit[3] for unit in units) if by_tag else None
        for number in range(100):
            result = store.get_message("T", 0, number, 1, tag_codes=tag_codes)
            assert result.count == 1
            looked_at = units[min(number + 1, 99)][1]  # as in 4.6.0, the one that ended the read
            assert result.suggest_slave is (store.max_physical_offset - looked_at > 5000), number


def damage_offset_3(store: MessageStore, damage: str) -> None:
    """Store six messages, and damage the record of the fourth, or its unit in the queue."""
    put(store, *range(6))
    store.queues.queues["T", 0].write_out()
    _, physical, size, _ = list(store.queues.queues["T", 0].units())[3]
    root = store.config.root
    file, at, value = (
        (root / "commitlog" / f"{0:020}", physical + 4, b"\0\0\0\0")
        if damage == "record"
        else (root / "consumequeue" / "T" / "0" / f"{0:020}", 3 * 20 + 8, (1 << 20).to_bytes(4, "big"))
    )
    assert size < 1000
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(value)


@pytest.mark.parametrize("filtered_by", ["", "tag", "properties"])
@pytest.mark.parametrize("damage", ["record", "unit"])
def test_a_damaged_record_does_not_hide_earlier_ones(
    store: MessageStore, damage: str, filtered_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One bad record would hide the good messages before it, or be skipped without an error."""
    damage_offset_3(store, damage)
    all_tags = frozenset(string_hash(f"Tag{number}") for number in range(3))
    codes = all_tags if filtered_by == "tag" else None
    accepts = (lambda properties: b"TAGS" in properties) if filtered_by == "properties" else None
    first = store.get_message("T", 0, 0, 32, tag_codes=codes, accepts=accepts)
    assert [record.flag for record in decode_all(first.body)] == [0, 1, 2]
    assert (first.status, first.next_begin_offset, first.count) == (S.FOUND, 3, 3)
    for _ in range(3):
        with pytest.raises(StoreDamaged, match=r"remove .* and restart"):
            store.get_message("T", 0, 3, 32, tag_codes=codes, accepts=accepts)
    assert store.stats.damaged_reads == 3
    assert caplog.text.count("queue T/0: a unit points to") == 1  # operators learn of it, once
    behind = store.get_message("T", 0, 4, 32, tag_codes=codes, accepts=accepts)
    assert [record.flag for record in decode_all(behind.body)] == [4, 5]
    store.close()


@pytest.mark.parametrize("filtered_by", ["tag", "properties"])
@pytest.mark.parametrize("damage", ["record", "unit"])
def test_a_damaged_record_is_reported_at_its_own_offset(
    store: MessageStore, damage: str, filtered_by: str
) -> None:
    """An operator would skip the offset of the pull, and the next pull would fail at the same record."""
    damage_offset_3(store, damage)
    codes = frozenset({string_hash("Tag0")}) if filtered_by == "tag" else None
    accepts = (lambda _: False) if filtered_by == "properties" else None
    before = store.get_message("T", 0, 1, 32, tag_codes=codes, accepts=accepts)
    assert (before.status, before.next_begin_offset, before.body) == (S.NO_MATCHED_MESSAGE, 3, b"")
    with pytest.raises(StoreDamaged):
        store.get_message("T", 0, 3, 32, tag_codes=codes, accepts=accepts)
    store.close()


def test_records_near_each_other_are_read_together(tmp_path: Path) -> None:
    """A pull of a busy queue would cost a disk read for each message, or read much that it does not need."""
    disk = CountingDisk()
    with MessageStore(small_config(tmp_path), disk=disk) as store:
        put(store, *range(10))
        put(store, 10, queue_id=1)
        put(store, *range(11, 15))
        put(store, 15, queue_id=1, body=bytes(30_000))
        put(store, *range(16, 18))
        disk.reads.clear()
        result = store.get_message("T", 0, 0, 32)
        assert [record.flag for record in decode_all(result.body)] == [*range(10), *range(11, 15), 16, 17]
        assert len(disk.reads) == 2
        assert sum(disk.reads) < 10_000


def test_a_log_file_that_became_shorter_ends_a_read(store: MessageStore) -> None:
    """A consumer would be moved past messages that a copy of the file still has."""
    put(store, *range(20))
    file = store.commit_log.files.mapped_files[0]
    third = store.units("T", 0, 3, 1)[0][0]
    with file.path.open("r+b") as opened:
        opened.truncate(third + 50)
    found = store.get_message("T", 0, 0, 32)
    assert ([record.flag for record in decode_all(found.body)], found.next_begin_offset) == ([0, 1, 2], 3)
    with pytest.raises(StoreDamaged, match=r"remove .* and restart"):
        store.get_message("T", 0, 3, 32)
    kill(store)


def test_a_queue_file_that_became_shorter_ends_a_read(store: MessageStore) -> None:
    """A consumer would be moved to the next file, past messages that the log has."""
    put(store, *range(20))
    store.dispatch()
    store.flush(thorough=True)
    file = store.queues.queues["T", 0].files.mapped_files[0]
    with file.path.open("r+b") as opened:
        opened.truncate(65)  # within unit 3
    found = store.get_message("T", 0, 0, 32)
    assert ([record.flag for record in decode_all(found.body)], found.next_begin_offset) == ([0, 1, 2], 3)
    assert len(store.units("T", 0, 0, 32)) == 3
    with pytest.raises(StoreDamaged, match=r"no unit 3.* remove .* and restart"):
        store.get_message("T", 0, 3, 32)
    kill(store)


def test_tags_are_filtered_by_code(store: MessageStore) -> None:
    """A consumer of one tag would get all messages."""
    put(store, *range(9))
    result = store.get_message("T", 0, 0, 32, tag_codes={string_hash("Tag1")})
    assert [record.body for record in decode_all(result.body)] == [
        b"body 1", b"body 4", b"body 7"
    ]  # fmt: skip
    assert (result.status, result.next_begin_offset, result.count) == (S.FOUND, 9, 3)
    for begin in range(9):
        result = store.get_message("T", 0, begin, 32, tag_codes={string_hash("Tag1"), string_hash("Tag2")})
        flags = [record.flag for record in decode_all(result.body)]
        assert flags == [number for number in range(begin, 9) if number % 3]
        assert (result.status, result.next_begin_offset) == (S.FOUND, 9)
    nothing = store.get_message("T", 0, 0, 32, tag_codes={12345})
    assert (nothing.status, nothing.next_begin_offset, nothing.body) == (S.NO_MATCHED_MESSAGE, 9, b"")
    store.close()


def test_filter_looks_at_no_more_than_a_file_and_800_units(tmp_path: Path) -> None:
    """One consumer with a rare tag would block all others."""
    store = MessageStore(small_config(tmp_path))
    store.open()
    put(store, *range(120))
    result = store.get_message("T", 0, 10, 32, tag_codes={12345})
    assert (result.status, result.next_begin_offset) == (S.NO_MATCHED_MESSAGE, 50)
    store.close()


def test_a_large_request_has_no_larger_scan(tmp_path: Path) -> None:
    """One request for a rare tag would stop the broker for a second: a file of a queue has 300,000 units."""
    store = MessageStore(small_config(tmp_path, consume_queue=ConsumeQueueConfig()))
    store.open()
    for number in range(1500):
        store.append(message(number))
    store.write_out()
    store.dispatch()
    for wanted, looked_at in (
        (1, 800), (32, 800), (900, 900), (1024, 1024), (1025, 1024), (2**31 - 1, 1024)
    ):  # fmt: skip
        result = store.get_message("T", 0, 0, wanted, tag_codes={12345})
        assert (result.status, result.next_begin_offset) == (S.NO_MATCHED_MESSAGE, looked_at)
        assert store.get_message("T", 0, 0, wanted).count == min(wanted, 1024)
    store.close()


def test_removed_records_are_skipped(tmp_path: Path) -> None:
    """A consumer would be stuck at a message whose file was deleted."""
    log = CommitLogConfig(segment_bytes=4096, reserve_bytes=0)
    store = MessageStore(small_config(tmp_path, commit_log=log))
    store.open()
    put(store, *range(40))
    store.commit_log.files.take_first().delete()
    result = store.get_message("T", 0, 0, 32)
    first = decode_all(result.body)[0]
    assert (result.status, first.physical_offset) == (S.FOUND, 4096)
    removing = store.get_message("T", 0, 0, 1)
    assert (removing.status, removing.next_begin_offset) == (S.MESSAGE_WAS_REMOVING, 2)
    store.close()


@pytest.mark.parametrize("tag_codes", [None, {string_hash(f"Tag{number}") for number in range(3)}])
def test_a_gap_in_a_queue_is_skipped(store: MessageStore, tag_codes: set[int] | None) -> None:
    """A consumer would be stuck at numbers that no message has, as if they were damaged."""
    put(store, *range(3))
    store.table["T", 0].next_offset = 7
    put(store, *range(7, 10))
    found: list[int] = []
    offset = 0
    while offset < 10:
        result = store.get_message("T", 0, offset, 32, tag_codes=tag_codes)
        found += [record.flag for record in decode_all(result.body)]
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset
    assert found == [0, 1, 2, 7, 8, 9]
    store.close()


def test_a_missing_queue_file_is_skipped(store: MessageStore) -> None:
    """A consumer would pull messages without units forever."""
    put(store, *range(120))
    store.flush(thorough=True)
    store.queues.queues["T", 0].files.take_first().delete()
    result = store.get_message("T", 0, 10, 32)
    assert (result.status, result.next_begin_offset) == (S.OFFSET_FOUND_NULL, 50)
    assert status(store, 50)[:2] == (S.FOUND, 82)
    store.close()


@pytest.mark.parametrize(
    ("delta", "number"), [(-100_000, 0), (0, 40), (1, 41), (9, 41), (10, 41), (100_000, 120)]
)
def test_messages_are_found_by_time(store: MessageStore, delta: int, number: int) -> None:
    """A consumer that is reset to a point in time would start at another message."""
    put(store, *range(120))
    store.flush(thorough=True)
    assert store.offset_by_time("T", 0, store.store_timestamp("T", 0, 40) + delta) == number
    assert store.offset_by_time("None", 0, 5) == 0
    store.close()


def test_messages_are_found_by_key_in_their_milliseconds(store: MessageStore) -> None:
    """The index has whole seconds: a query from the exact time of a message on would not find it."""
    put(store, *range(20))
    for number in range(20):
        stored_ms = store.store_timestamp("T", 0, number)
        found = store.query_message("T", "all", 64, stored_ms, stored_ms).records
        assert [record.queue_offset for record in decode_all(b"".join(found))] == [number]
        found = store.query_message("T", "all", 3, 0, stored_ms).records
        assert [record.queue_offset for record in decode_all(b"".join(found))] == [
            *range(max(0, number - 2), number + 1)
        ]
    store.close()


def test_messages_stored_while_the_clock_was_back_are_found_by_key(tmp_path: Path) -> None:
    """A query by key and time would miss them, and those stored before the clock was set back."""
    now = 1_700_000_000_000
    with MessageStore(small_config(tmp_path), clock=lambda: now) as store:
        stored: list[int] = []
        for hours in (0, 0.1, 5, 5.1, 2, 2.1, -24, -23.9, 4.9, 5.2):
            now = int(1_700_000_000_000 + hours * 3_600_000)
            put(store, len(stored))
            stored.append(now)
        for begin in sorted(stored):
            for end in sorted(stored):
                found = store.query_message("T", "all", 64, begin, end).records
                expected = [number for number, time in enumerate(stored) if begin <= time <= end]
                assert [record.queue_offset for record in decode_all(b"".join(found))] == expected


def test_places_and_times_of_messages(store: MessageStore) -> None:
    """Admin tools would show wrong offsets and times."""
    assert store.earliest_store_time() == -1
    put(store, *range(3))
    assert store.min_offset_in_queue("T", 0) == 0
    assert store.max_offset_in_queue("T", 0) == 3
    assert store.max_offset_in_queue("None", 0) == store.min_offset_in_queue("None", 0) == 0
    assert store.earliest_store_time() == store.earliest_store_time("T", 0) == 1_700_000_000_010
    assert store.store_timestamp("T", 0, 3) == -1
    assert store.physical_offset("T", 0, 1) == len(store.look_message(0) or b"")
    assert store.look_message(5) is None
    assert store.look_message(10**12) is None
    assert store.read_log(0, 10) == (store.look_message(0) or b"")[:10]
    store.close()


def test_records_of_any_size_are_found_by_place_and_by_key(tmp_path: Path) -> None:
    """A look-up would miss large messages, or the last one of the log, or after a restart all of them."""
    sizes = (0, 700, 800, 900, 1500, 30_000, 60_000, 20)  # the seventh begins a file
    with MessageStore(small_config(tmp_path)) as store:
        receipts = [store.put_message(message(number, body=bytes(size))) for number, size in enumerate(sizes)]
    with MessageStore(small_config(tmp_path)) as store:
        for number, (receipt, size) in enumerate(zip(receipts, sizes, strict=True)):
            record = store.look_message(receipt.physical_offset) or b""
            assert len(decode_all(record)[0].body) == size
            assert store.look_message(receipt.physical_offset, receipt.size) == record
            assert store.look_message(receipt.physical_offset, receipt.size - 1) is None
            assert store.query_message("T", f"{number:032X}", 10, 0, 1 << 62).records == [record]
        assert store.look_message(store.max_physical_offset) is None
        assert len(store.query_message("T", "all", 64, 0, 1 << 62).records) == len(sizes)


def test_an_offset_inside_a_message_costs_no_large_read(tmp_path: Path) -> None:
    """A mistyped message id would make the broker read hundreds of megabytes while every client waits."""
    disk = CountingDisk()
    config = small_config(tmp_path, commit_log=CommitLogConfig(segment_bytes=1 << 20))
    store = MessageStore(config, disk=disk)
    store.open()
    receipt = store.put_message(message(1, body=b"\x00\x07\x00\x07" * 130_000))  # reads as a size
    disk.reads.clear()
    body_at = receipt.physical_offset + 88
    for offset in range(body_at, body_at + 8):
        assert store.look_message(offset) is None
    assert max(disk.reads) <= 4096
    record = store.look_message(receipt.physical_offset)
    assert record is not None
    assert len(record) == receipt.size
    store.close()


def test_queries_of_a_store_without_index_find_nothing(tmp_path: Path) -> None:
    """A broker with messageIndexEnable=false would fail on a query."""
    store = MessageStore(small_config(tmp_path, index=IndexConfig(enabled=False)))
    store.open()
    put(store, 1)
    assert store.query_message("T", "all", 10, 0, 1 << 62).records == []
    assert not (tmp_path / "index").exists()
    store.close()


def test_the_listener_is_called_once_for_each_run(store: MessageStore) -> None:
    """Long-polling consumers would wait for their timeout, or be woken for every message."""
    arrivals: list[Arrivals] = []
    store.set_arrival_listener(arrivals.append)
    for number in range(6):
        store.append(message(number, queue_id=number % 2))
    store.append(MessageInner("T", 5, b"half", sys_flag=4))
    store.write_out()
    assert arrivals == []
    assert store.dispatch_behind_bytes == store.max_physical_offset
    assert store.dispatch() == 7
    assert store.dispatch_behind_bytes == 0
    assert arrivals == [{("T", 0): 3, ("T", 1): 3}]
    store.append(MessageInner("T", 5, b"half", sys_flag=4))
    store.write_out()
    assert store.dispatch() == 1
    assert len(arrivals) == 1  # no queue has new messages
    store.close()


def test_a_listener_that_reads_has_nothing_dispatched_twice(store: MessageStore) -> None:
    """A message that a held pull waits for would be in the key index twice, and be found twice."""
    ends: list[int] = []
    store.set_arrival_listener(
        lambda arrivals: ends.extend(store.max_offset_in_queue(*queue) for queue in arrivals)
    )
    receipts = [store.append(message(number)) for number in range(3)]
    store.write_out()
    assert store.dispatch() == 3
    assert store.index is not None
    found = store.index.find("T", "all", 0, 1 << 62, 10)
    assert sorted(found) == [receipt.physical_offset for receipt in receipts]
    assert ends
    store.close()


def test_dispatch_ends_before_the_first_record_that_must_wait(tmp_path: Path) -> None:
    """With SYNC_FLUSH, consumers would get a message of which power loss can still take the end."""
    with MessageStore(small_config(tmp_path)) as store:
        ends = []
        for number in range(40):
            receipt = store.put_message(message(number, body=b"x" * (7 * number)))
            ends.append(receipt.physical_offset + receipt.size)
        for number, end in enumerate(ends):
            store.dispatcher.run(end - 1)
            assert store.dispatcher.waiting == 40 - number
            assert store.dispatcher.run(end) == 1
        assert len(bodies(store)) == 40


def test_delayed_messages_have_their_due_time_in_the_queue(store: MessageStore) -> None:
    """Delayed messages would be delivered at once or never."""
    receipt = store.put_message(
        MessageInner("SCHEDULE_TOPIC_XXXX", 2, b"later", b"DELAY\x013\x02TAGS\x01A\x02")
    )
    store.put_message(MessageInner("SCHEDULE_TOPIC_XXXX", 2, b"no level", b"DELAY\x01x\x02TAGS\x01A\x02"))
    store.dispatch()
    units = [unit[3] for unit in store.queues.queues["SCHEDULE_TOPIC_XXXX", 2].units()]
    assert units == [receipt.store_timestamp + 10_000, string_hash("A")]
    assert bodies(store, "SCHEDULE_TOPIC_XXXX", 2) == [b"later", b"no level"]
    store.close()


@pytest.mark.parametrize(
    ("properties", "fields"),
    [
        (b"TAGS\x01A\x02KEYS\x01k l\x02UNIQ_KEY\x01u\x02", (b"A", b"k l", b"u")),
        (b"TAGS\x01A", (b"A", b"", b"")),
        (b"", (b"", b"", b"")),
        (b"TAGS\x01\x02KEYS\x01a\x01b\x02", (b"", b"", b"")),
        (b"TAGS\x01A\x02TAGS\x01B\x02", (b"B", b"", b"")),
        (b"TAGS\x01A\x02TAGS\x01\x02", (b"A", b"", b"")),
        (b"MYTAGS\x01A\x02UNIQ_KEYS\x01u\x02UNIQ_\x01x\x02", (b"", b"", b"")),
        (b"UNIQ_KEY\x01\x02KEYS\x01k\x02", (b"", b"k", b"")),
        (b"TAGS\x02TAGS", (b"", b"", b"")),
    ],
)
def test_properties_are_read_as_java_reads_them(
    properties: bytes, fields: tuple[bytes, bytes, bytes]
) -> None:
    """A message would be indexed under another key than in a Java broker."""
    assert index_fields(properties) == fields


def test_a_search_beyond_its_time_returns_the_offset_that_it_reached(store: MessageStore) -> None:
    """A slow filter would block other clients, or its consumer would filter the same messages twice."""
    put(store, *range(10))
    seen = 0

    def refuse(_: bytes) -> bool:
        nonlocal seen
        seen += 1
        return False

    result = store.get_message("T", 0, 0, 32, accepts=refuse, is_over=lambda: seen >= 4)
    assert (result.status, result.next_begin_offset, seen) == (S.NO_MATCHED_MESSAGE, 4, 4)
    result = store.get_message("T", 0, 4, 32, accepts=refuse, is_over=lambda: True)
    assert (result.status, result.next_begin_offset, seen) == (S.NO_MATCHED_MESSAGE, 5, 5)
    found = store.get_message("T", 0, 5, 32, accepts=lambda _: True, is_over=lambda: True)
    assert (found.status, found.next_begin_offset, found.count) == (S.FOUND, 6, 1)
