"""Consumers that are reset to a point in time must get every message stored from then on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from rocketpy_broker.store.files.disk import OsDisk
from rocketpy_broker.store.log.message_log import MessageLog
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue
from rocketpy_broker.store.queue.queue_reader import offset_by_time


class Log:
    """The methods of a commit log that the search uses: its first offset, and the store time of a record."""

    def __init__(self, times: Mapping[int, int], min_offset: int = 0) -> None:
        self.min_offset = min_offset
        self._times = times

    def store_timestamp(self, offset: int) -> int:
        return self._times[offset]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ConsumeQueue]:
    """Ten messages, whose records begin at 0, 100, …, 900."""
    queue = ConsumeQueue(OsDisk(), tmp_path, "T", 0, 1000)
    for number in range(10):
        queue.put(number * 100, 100, 0, number)
    yield queue
    queue.files.close()


def search(queue: ConsumeQueue, timestamp: int, min_offset: int = 0, **unreadable: Any) -> int:
    """The result where message n was stored at 1000 + 10 n ms; unreadable: times that differ."""
    times = {number * 100: 1000 + 10 * number for number in range(10)}
    times |= unreadable.get("times", {})
    return offset_by_time(queue, cast(MessageLog, Log(times, min_offset)), timestamp)


@pytest.mark.parametrize(
    ("timestamp", "number"),
    [(0, 0), (999, 0), (1000, 0), (1040, 4), (1041, 5), (1049, 5), (1050, 5), (1090, 9), (1091, 10)],
)
def test_the_first_message_from_a_time_on_is_found(queue: ConsumeQueue, timestamp: int, number: int) -> None:
    """A consumer would begin too late and miss messages, or repeat more than needed."""
    assert search(queue, timestamp) == number


@pytest.mark.parametrize(("timestamp", "number"), [(0, 6), (1040, 6), (1060, 6), (1070, 7), (5000, 10)])
def test_messages_below_the_logs_start_are_not_found(
    queue: ConsumeQueue, timestamp: int, number: int
) -> None:
    """A consumer would begin at messages that were deleted."""
    assert search(queue, timestamp, min_offset=600) == number


def test_the_log_begins_with_a_record(queue: ConsumeQueue) -> None:
    """The oldest message that is left would be skipped."""
    assert search(queue, 1040, min_offset=400) == 4


def test_a_record_that_cannot_be_read_ends_the_search(queue: ConsumeQueue) -> None:
    """A consumer would skip messages."""
    assert search(queue, 1070, times={500: -1}) == 0
    queue.correct_min_offset(200)
    assert search(queue, 1070, times={600: -1}) == 2


def test_the_first_of_messages_with_equal_times_is_found(queue: ConsumeQueue) -> None:
    """A reset to the time of a batch would skip half of its messages."""
    for first in range(10):
        for last in range(first, 10):
            times = {number * 100: 5000 for number in range(first, last + 1)}
            times |= {number * 100: 6000 for number in range(last + 1, 10)}
            assert search(queue, 5000, times=times) == first


def test_the_times_of_file_writes_do_not_matter(tmp_path: Path) -> None:
    """After a copy of the store, a search would end in the wrong file of the queue."""
    queue = ConsumeQueue(OsDisk(), tmp_path, "T", 0, 60)  # 3 messages a file
    for number in range(10):
        queue.put(number * 100, 100, 0, number)
    queue.write_out()
    for ages in (1, 10**12):
        for file in queue.files.mapped_files:
            os.utime(file.path, ns=(ages, ages))
        assert [search(queue, 1000 + 10 * number) for number in range(11)] == [*range(11)]
    queue.files.close()


def test_a_gap_has_the_time_of_the_message_after_it(tmp_path: Path) -> None:
    """Units without a message have no store time: the search would read offset 0 of the log for them."""
    queue = ConsumeQueue(OsDisk(), tmp_path, "T", 0, 1000)
    queue.put(0, 100, 0, 3)
    queue.put(100, 100, 0, 7)
    assert [search(queue, time) for time in (0, 1000, 1001, 1011)] == [3, 3, 4, 8]
    queue.files.close()
