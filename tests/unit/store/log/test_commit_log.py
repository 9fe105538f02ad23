"""The commit log: where records go, their limits, and what a closed store does."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rocketpy.errors import MessageInvalid, MessageTooLarge, StoreError, TopicInvalid
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.record import HEAD_BYTES, decode
from rocketpy_broker.store import CommitLogConfig, MessageInner, MessageStore
from rocketpy_broker.store.files.disk import OsDisk
from tests.unit.store.helpers import bodies, message, put, small_config

IPV6_HOST = bytes(range(16)) + b"\0\0\x27\x0f"


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    store = MessageStore(small_config(tmp_path), clock=lambda: 1_700_000_000_123)
    store.open()
    return store


def test_a_receipt_has_the_place_of_the_record(store: MessageStore) -> None:
    """The message id that the producer got would not lead to the message."""
    first = store.append(message(1))
    second = store.append(message(2))
    assert store.look_message(first.physical_offset) is None
    store.write_out()
    record = decode(store.look_message(second.physical_offset) or b"")
    assert record.physical_offset == second.physical_offset == first.size
    assert (record.queue_offset, record.body) == (second.queue_offset, b"body 2") == (1, b"body 2")
    assert record.store_timestamp == second.store_timestamp == 1_700_000_000_123
    store.close()


def test_limits_are_those_of_4_6_0(tmp_path: Path) -> None:
    """A producer would be rejected where the real broker accepts its message, or the reverse."""
    config = small_config(tmp_path, commit_log=CommitLogConfig(segment_bytes=65536, message_bytes_max=1024))
    store = MessageStore(config)
    store.open()
    room = 1024 - 91 - len("T")
    store.put_message(MessageInner("T", 0, bytes(room)))
    with pytest.raises(MessageTooLarge, match="record of 1025 bytes; the limit is 1024"):
        store.append(MessageInner("T", 0, bytes(room + 1)))
    with pytest.raises(TopicInvalid, match="128 bytes"):
        store.append(MessageInner("T" * 128, 0, b""))
    with pytest.raises(TopicInvalid, match="cannot name a directory"):
        store.append(MessageInner("../T", 0, b""))
    with pytest.raises(TopicInvalid, match="negative"):
        store.append(MessageInner("T", -1, b""))
    with pytest.raises(MessageTooLarge, match="properties of 32768 bytes"):
        store.append(MessageInner("T", 0, b"", bytes(32768)))
    with pytest.raises(MessageInvalid, match="born host of 7"):
        store.append(MessageInner("T", 0, b"", born_host=bytes(7)))
    store.write_out()
    store.dispatch()
    assert store.max_offset_in_queue("T", 0) == 1
    store.close()


def test_record_leaves_eight_bytes_for_the_blank_one(tmp_path: Path) -> None:
    """A Java broker would run over the end of the file."""
    store = MessageStore(small_config(tmp_path, commit_log=CommitLogConfig(segment_bytes=4096)))
    store.open()
    rest = 4096 - 8 - 91 - 1
    assert store.put_message(MessageInner("T", 0, bytes(rest))).physical_offset == 0
    assert store.put_message(MessageInner("T", 0, bytes(rest - 1))).physical_offset == 4096
    store.put_message(MessageInner("T", 0, b""))
    files = sorted((tmp_path / "commitlog").iterdir())
    assert files[0].read_bytes()[-8:] == (8).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    assert files[1].read_bytes()[-9:-1] == (9).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    with pytest.raises(MessageTooLarge, match="does not fit into a commit log file of 4096 bytes"):
        store.append(MessageInner("T", 0, bytes(rest + 1)))
    store.close()


def test_transactional_records_take_no_queue_offset(store: MessageStore) -> None:
    """Consumers would find holes where half messages are, or see them."""
    put(store, 1)
    half = MessageInner("T", 0, b"half", sys_flag=4)
    rollback = MessageInner("T", 0, b"rollback", sys_flag=12)
    commit = MessageInner("T", 0, b"commit", sys_flag=8)
    assert [store.put_message(kind).queue_offset for kind in (half, rollback, commit)] == [0, 0, 1]
    store.dispatch()
    assert bodies(store) == [b"body 1", b"commit"]
    store.close()


def test_ipv6_hosts_are_marked_and_stored_whole(tmp_path: Path) -> None:
    """A broker or client on IPv6 would write records that cannot be read."""
    store = MessageStore(small_config(tmp_path, store_host=IPV6_HOST))
    store.open()
    receipt = store.put_message(MessageInner("T", 0, b"six", born_host=IPV6_HOST))
    store.append_batch(MessageInner("T", 0, encode_batch([(7, b"batch", b"")]), born_host=bytes(8)))
    store.write_out()
    store.dispatch()
    record = decode(store.look_message(receipt.physical_offset) or b"")
    assert (record.sys_flag, record.born_host, record.store_host) == (0x30, IPV6_HOST, IPV6_HOST)
    assert receipt.size == record.size
    assert bodies(store) == [b"six", b"batch"]
    assert store.store_timestamp("T", 0, 0) == record.store_timestamp
    store.close()


def test_batch_is_separate_records_of_one_time_in_one_file(store: MessageStore) -> None:
    """A consumer of a Java broker's store would not get the messages of a batch."""
    put(store, *range(430))
    entries = [(number, b"%d" % number * 100, b"KEYS\x01b%d\x02" % number) for number in range(20)]
    receipt = store.append_batch(MessageInner("B", 1, encode_batch(entries)))
    store.write_out()
    store.dispatch()
    assert {offset // 65536 for offset in receipt.physical_offsets} == {1}
    assert receipt.queue_offset == 0
    assert bodies(store, "B", 1) == [body for _, body, _ in entries]
    records = [decode(store.look_message(offset) or b"") for offset in receipt.physical_offsets]
    assert [record.queue_offset for record in records] == list(range(20))
    assert [record.flag for record in records] == list(range(20))
    assert len(store.query_message("B", "b7", 10, 0, 1 << 62).records) == 1
    with pytest.raises(MessageInvalid, match="transactional"):
        store.append_batch(MessageInner("B", 1, encode_batch(entries), sys_flag=4))
    assert store.append_batch(MessageInner("B", 1, b"")).physical_offsets == ()
    store.close()


def test_closed_store_takes_nothing(store: MessageStore) -> None:
    """A message sent during a shutdown would be acknowledged and lost."""
    store.close()
    with pytest.raises(StoreError, match="the store is closed"):
        store.append(message(1))
    store.close()


@pytest.mark.parametrize(
    ("offset", "following"), [(0, 65536), (1, 65536), (65535, 65536), (65536, 131072), (200_000, 262_144)]
)
def test_the_next_file_begins_at_a_multiple_of_its_size(
    store: MessageStore, offset: int, following: int
) -> None:
    """A consumer whose messages were deleted would be sent to an offset inside a record."""
    assert store.commit_log.roll_next_file(offset) == following


class UnreadableDisk(OsDisk):
    """Counts reads; one place of the commit log cannot be read."""

    def __init__(self) -> None:
        self.reads = 0
        self.bad: range = range(0)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        self.reads += 1
        if position < self.bad.stop and self.bad.start < position + size:
            raise OSError(errno.EIO, "planned failure")
        return super().pread(handle, size, position)


def test_neighbours_are_looked_up_together(tmp_path: Path) -> None:
    """Each record would cost a call of the kernel, or a damaged one would hide its neighbours."""
    disk = UnreadableDisk()
    with MessageStore(small_config(tmp_path), disk=disk) as store:
        for number in range(40):
            put(store, number, topic="T" if number % 10 else "Other")
        places = [(physical, size) for physical, size, _ in store.units("T", 0, 0, 36)]
        damaged = places[20][0]
        handle = store.commit_log.files.mapped_files[0].handle
        disk.pwrite(handle, b"!", damaged + HEAD_BYTES)
        asked = [*places, (3, 100), (places[-1][0], 10_000), (places[0][0], 0)]
        alone = [store.look_message(*place) for place in asked]
        assert alone.count(None) == 4
        disk.reads = 0
        assert list(store.look_messages(asked)) == alone
        assert disk.reads <= 8
        disk.bad = range(places[30][0], places[31][0])
        found = store.look_messages(places)
        assert [next(found) for _ in range(30)] == alone[:30]
        with pytest.raises(StoreError, match="planned failure"):
            next(found)
