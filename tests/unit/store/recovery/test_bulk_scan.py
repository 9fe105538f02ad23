"""Recovery's fast path must write the files that live dispatch writes; else queries fail after a crash."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from rocketpy.protocol.java import utf8_hash
from rocketpy.protocol.message.delays import DelayLevels
from rocketpy_broker.store import CommitLogConfig, IndexConfig, MessageInner, MessageStore, RecoveryConfig
from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.index.index_hash import key_hashes, positive_hash
from rocketpy_broker.store.log.log_scan import LogScan
from rocketpy_broker.store.log.messages import QueueCursor
from rocketpy_broker.store.queue.clock_steps import ClockSteps
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue
from rocketpy_broker.store.queue.dispatch import Dispatcher
from rocketpy_broker.store.queue.queue_table import ConsumeQueueTable
from rocketpy_broker.store.recovery.bulk_scan import BulkScan
from tests.store_checks import check_store
from tests.unit.store.helpers import index_content, kill, message, put, queue_content, small_config

_V4 = b"\x7f\x00\x00\x01\x00\x00\x12\x34"
_PROPERTIES = (
    b"KEYS\x01k%d\x02UNIQ_KEY\x01C000020200004E0E2F2A6903%08X\x02WAIT\x01true\x02TAGS\x01TagA\x02",
    b"KEYS\x01a%d b%d  c\x02TAGS\x01TagB\x02",
    b"UNIQ_KEY\x01%032X\x02",
    "KEYS\x01ключ%d\x02".encode(),
    b"KEYS\x01" + b"long" * 40 + b"%d\x02",
    b"TAGS\x01x\x01y\x02KEYS\x01%d\x02",
    b"TAGS\x01none%d\x02",
    b"",
)


def _mixed(count: int, *, plain: bool = False) -> list[MessageInner]:
    """Messages of many kinds. plain: without delayed and transactional ones."""
    chooser = random.Random(7)
    topics = ["T", "Тема"] if plain else ["T", "Тема", "SCHEDULE_TOPIC_XXXX"]
    flags = [0] if plain else [0] * 30 + [4, 8, 12]
    messages = []
    for number in range(count):
        properties = chooser.choice(_PROPERTIES[:1] * 12 + _PROPERTIES)
        messages.append(
            MessageInner(
                chooser.choice(topics),
                number % 3,
                b"x" * chooser.randrange(200),
                properties.replace(b"%d", b"%d" % number).replace(b"%032X", b"%032X" % number)
                .replace(b"%08X", b"%08X" % number),
                sys_flag=chooser.choice(flags),
                born_host=chooser.choice([_V4] * 20 + [bytes(20)]),
            )
        )  # fmt: skip
    return messages


def _put_in_runs(store: MessageStore, messages: list[MessageInner], run: int) -> None:
    """Write and dispatch the messages in runs of this many."""
    for start in range(0, len(messages), run):
        for inner in messages[start : start + run]:
            store.append(inner)
        store.write_out()
        store.dispatch()


@pytest.mark.parametrize("run", [1, 5, 64])
def test_rebuilt_files_equal_those_written_live(tmp_path: Path, run: int) -> None:
    """After a crash, consumers would miss messages, or queries by key would find other ones."""
    config = small_config(tmp_path, index=IndexConfig(slots=50, entries=3000))
    store = MessageStore(config)
    store.open()
    messages = _mixed(3000)
    _put_in_runs(store, messages, run)
    assert store.index is not None
    live = queue_content(store), [index_content(file) for file in store.index.files]
    kill(store)
    (tmp_path / "checkpoint").unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    with MessageStore(config) as store:
        assert queue_content(store) == live[0]
        assert store.index is not None
        assert [index_content(file) for file in store.index.files] == live[1]
        assert check_store(store).problems == []


@pytest.mark.parametrize("slots", [50, 50_000])
def test_a_run_leaves_the_files_that_single_messages_leave(tmp_path: Path, slots: int) -> None:
    """The result of a query would depend on the load at the time of the dispatch."""
    messages = _mixed(2000, plain=True)
    contents = []
    for run in (1, 64, 500):
        config = small_config(tmp_path / str(run), index=IndexConfig(slots=slots, entries=1500))
        with MessageStore(config, clock=lambda: 1_700_000_000_000) as store:
            _put_in_runs(store, messages, run)
            assert store.index is not None
            contents.append((queue_content(store), [index_content(file) for file in store.index.files]))
    assert contents[1] == contents[0]
    assert contents[2] == contents[0]


@pytest.mark.parametrize("run", [1, 64])
def test_messages_without_a_queue_create_none(tmp_path: Path, run: int) -> None:
    """A topic without readable messages would be shown with a queue."""
    with MessageStore(small_config(tmp_path)) as store:
        _put_in_runs(store, [MessageInner("T", 0, b"x", sys_flag=12)] * 64, run)
        assert store.queues.queues == {}


def test_a_damaged_body_stops_the_fast_path(tmp_path: Path) -> None:
    """A damaged message would get a place in its queue after a crash."""
    config = small_config(tmp_path, recovery=RecoveryConfig(cut_damage=True))
    store = MessageStore(config)
    store.open()
    receipts = [store.put_message(message(number)) for number in range(20)]
    kill(store)
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(receipts[11].physical_offset + 90)
        file.write(b"?")
    with MessageStore(config) as store:
        assert store.max_physical_offset == receipts[11].physical_offset
        assert store.max_offset_in_queue("T", 0) == 11


def _one_by_one(store: MessageStore, numbers: range) -> tuple[bytes, list[int]]:
    """A log of these messages, put into two queues in turn, and where each of its records starts."""
    starts = [store.put_message(message(n, queue_id=n % 2)).physical_offset for n in numbers]
    store.dispatch()
    return store.read_log(0, store.max_physical_offset) or b"", starts


def _learned(store: MessageStore, root: Path) -> tuple[BulkScan, list[ConsumeQueue]]:
    """A scan that knows both queues, which are empty."""
    table = ConsumeQueueTable(OsDisk(), root, store.config.consume_queue)
    clock = ClockSteps(OsDisk(), root / "clocksteps")
    dispatcher = Dispatcher(table, None, DelayLevels(store.config.delay_levels), clock, store.read_log)
    bulk = BulkScan(table, dispatcher, 0, check_crc=True)
    for queue_id in range(2):
        bulk.add_queue(QueueCursor("T", queue_id))
    return bulk, list(table.queues.values())


def test_plain_records_are_all_taken_at_once(tmp_path: Path) -> None:
    """The start after a crash would take three times as long."""
    with MessageStore(small_config(tmp_path)) as store:
        data, _ = _one_by_one(store, range(100))
        bulk, queues = _learned(store, tmp_path / "again")
        assert bulk.take(data, 0, 0)[0] == len(data)
        for queue in queues:
            assert list(queue.units()) == list(store.queues.queues["T", queue.queue_id].units())
            queue.files.close()
        assert (bulk.records, bulk.rebuilt) == (100, 100)


def test_plain_records_are_taken_wherever_they_are_in_a_file(tmp_path: Path) -> None:
    """Behind the first four megabytes of each file, recovery would take three times as long."""
    config = small_config(tmp_path, commit_log=CommitLogConfig(segment_bytes=7 << 20, reserve_bytes=0))
    with MessageStore(config) as store:
        for number in range(200):
            put(store, number, queue_id=number % 2, body=bytes(50_000))
        bulk, queues = _learned(store, tmp_path / "again")
        assert list(LogScan(store.commit_log.files, 0, bulk=bulk.take)) == []
        assert bulk.records == 200
        for queue in queues:
            assert list(queue.units()) == list(store.queues.queues["T", queue.queue_id].units())
            queue.files.close()


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"\x7f\xff\xff\xff"), (0, bytes(4)), (4, b"?"), (8, b"?"), (12, b"\0\0\0\2"), (27, b"\xff"),
        (35, b"\xff"), (39, b"\x10"), (39, b"\x3c"),
        (84, b"\xff\xff\xff\xff"), (84, b"\0\0\xff\xff"),
        (88, b"?"), (95, b"\x02"), (96, b"U"), (97, b"\xff"), (100, b"\0"),
    ],
)  # fmt: skip
def test_the_fast_path_stops_at_unusual_records(tmp_path: Path, at: int, value: bytes) -> None:
    """Recovery would put a damaged record, or one of no queue, into a queue without looking at it."""
    with MessageStore(small_config(tmp_path)) as store:
        data, starts = _one_by_one(store, range(30))
        start = starts[20]
        assert data[start + 95 : start + 97] == b"\1T"  # behind the body
        place = start + at
        bulk, queues = _learned(store, tmp_path / "again")
        assert bulk.take(data[:place] + value + data[place + len(value) :], 0, 0)[0] == start
        assert [queue.next_offset for queue in queues] == [10, 10]
        for queue in queues:
            queue.files.close()


def test_hashes_of_many_keys_are_java_s_of_each() -> None:
    """A query would not find a key that was indexed together with others."""
    chooser, printable = random.Random(1), range(33, 127)
    for _ in range(400):
        count, length = chooser.randint(1, 50), chooser.randint(1, 110)
        shared = bytes(chooser.choices(printable, k=chooser.randint(0, length)))
        same = chooser.random() < 0.5
        keys = [
            (shared + bytes(chooser.choices(printable, k=length)))[
                : length if same else chooser.randint(0, length)
            ]
            for _ in range(count)
        ]
        if chooser.random() < 0.1:
            keys[0] = "ключ😀".encode()
        topics = [chooser.choice([b"Topic#", b"B#"]) for _ in keys]
        if chooser.random() < 0.5:
            topics = topics[:1] * count
        expected = [positive_hash(utf8_hash(topic + key)) for topic, key in zip(topics, keys, strict=True)]
        assert key_hashes([utf8_hash(topic) for topic in topics], keys) == expected


def test_the_hash_without_a_positive_counterpart() -> None:
    """One key in four billion could not be stored, and would stop the dispatch of all messages."""
    key = b"polygenelubricants"
    assert utf8_hash(key) == -(2**31)
    for count in (1, 2, 30):
        assert key_hashes([0] * count, [key] * count) == [0] * count
        for other in (b"other", b"long" * 50):
            assert key_hashes([0] * (count + 1), [*[key] * count, other])[:count] == [0] * count
