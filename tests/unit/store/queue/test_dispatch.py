"""Dispatch of runs: where it stops, what waits in memory, and which properties it reads."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy.errors import StoreDamaged
from rocketpy.native import FORMS
from rocketpy.protocol.message.properties import decode
from rocketpy.protocol.message.record import encode_record
from rocketpy_broker.store import CommitLogConfig, MessageStore
from rocketpy_broker.store.log.messages import LogPiece
from rocketpy_broker.store.queue.log_fields import LogFields, index_fields
from tests.store_checks import check_store
from tests.unit.store.helpers import bodies, message, small_config

LOG = CommitLogConfig(segment_bytes=2 << 20, reserve_bytes=0)
PIECES = st.sampled_from(
    [b"TAGS\x01a\x02", b"TAGS\x01b\x02", b"KEYS\x01k l\x02", b"UNIQ_KEY\x01u\x02", b"UNIQ_KEY\x01v\x01\x02",
     b"A\x01b\x02", b"TAGS\x01\x02", b"\x01\x02", b"\x02", b"\x01", b"b", b"TAGS\x01a", b"TAGS\x01x\x01y\x02",
     b"KEY\x01\x01\x02", b"BAGS\x01a\x02", b"KEYS\x01\x01\x02"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=5).map(b"".join))
def test_fields_are_those_of_the_decoded_properties(properties: bytes) -> None:
    """A message would be indexed under another key, or filtered by another tag, than consumers see."""
    decoded = decode(properties)
    names = ("TAGS", "KEYS", "UNIQ_KEY")
    assert index_fields(properties) == tuple(decoded.get(name, "").encode() for name in names)


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_run_is_dispatched_up_to_any_of_its_records(tmp_path: Path, size: int) -> None:
    """With SYNC_FLUSH, consumers would get a message of which power loss can still take the end."""
    with MessageStore(small_config(tmp_path, commit_log=LOG)) as store:
        receipts = [store.append(message(number, body=b"x" * (size + number))) for number in range(40)]
        store.write_out()
        for number, receipt in enumerate(receipts):
            end = receipt.physical_offset + receipt.size
            assert store.dispatcher.run(end - 1) == 0
            assert store.dispatcher.waiting == 40 - number
            assert store.dispatcher.run(end) == 1
            assert store.dispatcher.offset == end
            assert store.queues.queues["T", 0].next_offset == number + 1
        assert check_store(store).problems == []


@pytest.mark.parametrize("run", [1, 8])
def test_records_that_wait_long_do_not_fill_the_memory(tmp_path: Path, run: int) -> None:
    """A broker whose slave is slow would need memory for all messages that the slave has not got yet."""
    with MessageStore(small_config(tmp_path, commit_log=LOG)) as store:
        store.dispatcher.limit = lambda: 0
        for first in range(0, 48, run):
            for number in range(first, first + run):
                store.append(message(number, body=bytes(200_000)))
            store.write_out()
            assert store.dispatch() == 0
        held = [len(piece.data) for piece in store.dispatcher.waiting_since(0) if piece.data is not None]
        assert 2 << 20 < sum(held) <= 4 << 20
        store.dispatcher.limit = None
        assert store.dispatch() == 48
        assert bodies(store) == [bytes(200_000)] * 48
        assert check_store(store).problems == []
        store.dispatcher.add([])
        store.append(message(48))
        store.write_out()
        assert all(piece.data for piece in store.dispatcher.waiting_since(0))


def test_records_that_expire_while_they_wait_do_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker whose disk is full would dispatch nothing until it is restarted."""
    with MessageStore(small_config(tmp_path, commit_log=LOG)) as store:
        store.dispatcher.limit = lambda: 0
        for number in range(48):
            store.append(message(number, body=bytes(200_000)))
            store.write_out()
        missing = next(piece for piece in store.dispatcher.waiting_since(0) if piece.data is None)
        files = store.commit_log.files.mapped_files
        while files[0].start <= missing.begin:
            store.commit_log.files.take_first().delete()
        store.dispatcher.limit = None
        assert store.dispatch() == 48
        assert store.dispatcher.waiting == 0
        assert store.max_offset_in_queue("T", 0) == 48
        assert f"the records from {missing.begin} to" in caplog.text


def test_records_at_the_start_of_the_log_expire_like_others(tmp_path: Path) -> None:
    """Offset 0 means the oldest record in RocketMQ's requests, but that one is not the record that waits."""
    log = CommitLogConfig(segment_bytes=8 << 20, reserve_bytes=0)
    with MessageStore(small_config(tmp_path, commit_log=log)) as store:
        for count in (30, 45):  # the second run ends in the second file
            for _ in range(count):
                store.append(message(0, body=bytes(200_000 + count)))
            store.write_out()
        first, _, last = store.dispatcher.waiting_since(0)
        assert (first.begin, first.records, first.data, last.records) == (0, 30, None, 34)
        store.commit_log.files.take_first().delete()
        assert store.dispatch() == 75
        assert store.max_offset_in_queue("T", 0) == 75
        assert store.min_offset_in_queue("T", 0) == 41


def test_a_long_backlog_is_not_read_into_the_memory_at_once(tmp_path: Path) -> None:
    """A broker that cannot write its index tries again each second, with all messages since then."""
    with MessageStore(small_config(tmp_path, commit_log=LOG)) as store:
        store.dispatcher.limit = lambda: 0
        for number in range(120):
            store.append(message(number, body=bytes(200_000)))
            store.write_out()
        store.dispatcher.limit = None
        tracemalloc.start()
        assert store.dispatch() == 120
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 12 << 20  # of 24 MB
        assert check_store(store).problems == []


@pytest.mark.parametrize("rest", [b"", b"\0"])
def test_a_record_without_the_length_of_its_properties_is_not_read(rest: bytes) -> None:
    """A slave would store a record of a damaged master that no other program can read."""
    whole = encode_record(b"abc", 0, 0, 0, 0, 0, 1, bytes(8), 1, bytes(8), 0, 0, b"body", b"")
    damaged = (len(whole) - 2 + len(rest)).to_bytes(4, "big") + whole[4:-2] + rest
    for form in FORMS["read_log_fields"]:
        if form is not None:
            assert LogFields(*form(whole, 0, 0, True, [], None)).records == 1
            assert LogFields(*form(damaged, 0, 0, True, [], None)).records == 0


def test_bytes_that_are_no_records_are_an_error(tmp_path: Path) -> None:
    """Their messages would be missing in their queues, and nobody would know."""
    with MessageStore(small_config(tmp_path)) as store:
        store.dispatcher.add([LogPiece(0, 100, 1, 0, (), bytes(100))])
        with pytest.raises(StoreDamaged, match="cannot be read"):
            store.dispatch()
        assert store.dispatcher.is_stuck
        store.dispatcher._pieces.clear()


def test_a_read_dispatches_only_what_waits_for_its_queue(tmp_path: Path) -> None:
    """A pop would dispatch the records of each acknowledgement by themselves; or a reader would miss some."""
    with MessageStore(small_config(tmp_path)) as store:
        store.put_message(message(0, queue_id=0))
        store.put_message(message(1, queue_id=1))
        assert (store.max_offset_in_queue("T", 2), store.dispatcher.waiting) == (0, 2)
        assert (store.max_offset_in_queue("T", 0), store.dispatcher.waiting) == (1, 0)
        store.put_message(message(2, queue_id=1))
        assert (store.max_offset_in_queue("T", 0), store.dispatcher.waiting) == (1, 1)
        assert (store.max_offset_in_queue("T", 1), store.dispatcher.waiting) == (2, 0)
