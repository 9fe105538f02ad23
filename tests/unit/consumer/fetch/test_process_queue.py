"""Which messages of a queue a member holds, and the offset at which its successor begins."""

from __future__ import annotations

import random

from rocketpy.consumer.fetch.process_queue import LOCK_ALIVE_MS, Limits, ProcessQueue
from rocketpy.consumer.fetch.puller import next_offset_after_illegal
from rocketpy.message import MessageExt, MessageQueue
from rocketpy.protocol.message.record import Record

QUEUE = MessageQueue("T", "broker-a", 0)


def message(offset: int, body: bytes = b"12345", tags: str | None = None, times: int = 0) -> MessageExt:
    """A received message."""
    properties = b"TAGS\x01%b\x02" % tags.encode() if tags else b""
    record = Record(
        topic="T", queue_id=0, flag=0, queue_offset=offset, physical_offset=0, sys_flag=0, born_timestamp=0,
        born_host=b"", store_timestamp=0, store_host=b"", reconsume_times=times,
        prepared_transaction_offset=0, body=body, properties=properties,
    )  # fmt: skip
    return MessageExt(record, QUEUE, body)


def held(*offsets: int, start: int = 0) -> tuple[ProcessQueue, dict[int, MessageExt]]:
    """A queue with these messages, pulled up to the offset after the last one."""
    queue = ProcessQueue(QUEUE, start, 0)
    messages = {offset: message(offset) for offset in offsets}
    queue.add(list(messages.values()), max(offsets, default=start - 1) + 1)
    return queue, messages


def test_no_offset_passes_an_unfinished_message() -> None:
    """A message whose handler was running at a crash would not be delivered again."""
    chance = random.Random(6)
    queue, messages = held(*range(100, 160), start=100)
    left = dict(messages)
    while left:
        assert queue.commit_offset == min(left)
        some = chance.sample(sorted(left), min(3, len(left)))
        queue.finish([left.pop(offset) for offset in some], 1)
    assert (queue.commit_offset, queue.count, queue.size, queue.span) == (160, 0, 0, 0)


def test_pulls_are_finished_in_any_order() -> None:
    """Offsets of one pull would count for another, or freed capacity would not be used."""
    chance = random.Random(6)
    queue = ProcessQueue(QUEUE, 0, 0)
    pulls = [[message(offset) for offset in range(at, at + 8, 2)] for at in range(0, 80, 8)]
    for pull in pulls:
        queue.add(pull, pull[-1].queue_offset + 2)
    queue.finish([pulls[1][2]], 1)
    left = {one.queue_offset for pull in pulls for one in pull} - {pulls[1][2].queue_offset}
    for pull in chance.sample(pulls, len(pulls)):
        assert (queue.commit_offset, queue.count, queue.size) == (min(left), len(left), 5 * len(left))
        queue.finish(pull, 1)
        left -= {one.queue_offset for one in pull}
    assert (queue.commit_offset, queue.count, queue.size, queue.span) == (80, 0, 0, 0)


def test_parts_of_a_pull_are_finished_in_order_and_out_of_order() -> None:
    """A message that was finished in order would be committed twice, or keep its capacity."""
    chance = random.Random(6)
    for _ in range(50):
        queue, messages = held(*range(10))
        left = list(messages)
        while left:
            first = chance.choice([0, 0, 0, chance.randrange(len(left))])
            some = left[first : first + chance.randint(1, 4)]
            queue.finish([messages[offset] for offset in some], 1)
            left = [offset for offset in left if offset not in some]
            queue.finish(
                [messages[offset] for offset in chance.sample(range(10), 3) if offset not in left], 1
            )
            expected = (min(left, default=10), len(left), 5 * len(left))
            assert (queue.commit_offset, queue.count, queue.size) == expected
        assert queue.span == 0


def test_filtered_messages_count_as_finished() -> None:
    """A group that filters by a rare tag would read the messages of other tags again after each restart."""
    queue, messages = held(7, 9, start=5)
    queue.finish(list(messages.values()), 1)
    queue.next_offset = 40
    assert queue.commit_offset == 40


def test_a_new_queue_counts_from_its_start() -> None:
    """A consumer that stops before its first message would lose the messages sent before its next start."""
    assert ProcessQueue(QUEUE, 17, 0).commit_offset == 17


def test_finishing_twice_counts_once() -> None:
    """A handler that ends after its message was sent back would let more be pulled than allowed."""
    queue, messages = held(0, 1)
    queue.finish([messages[0]], 1)
    queue.finish([messages[0]], 2)
    assert (queue.count, queue.size, queue.consumed_ms) == (1, 5, 2)


def test_each_limit_makes_a_queue_full() -> None:
    """A slow handler would let the whole topic into memory."""
    queue, _ = held(10, 11, 60, start=10)
    assert not queue.is_full(Limits(3, 15, 50))
    assert queue.is_full(Limits(2, 15, 50))
    assert queue.is_full(Limits(3, 14, 50))
    assert queue.is_full(Limits(3, 15, 49))
    assert not queue.is_full(Limits(3, 15, None))
    offset = queue.next_offset + 2
    assert not queue.will_be_full(Limits(5, 20, None), offset, 5)
    assert queue.will_be_full(Limits(4, 20, None), offset, 5)
    assert queue.will_be_full(Limits(5, 19, None), offset, 5)
    assert queue.will_be_full(Limits(5, 20, 10), offset, 5)


def test_order_survives_a_failure() -> None:
    """An orderly handler would get a later message before the one that has to be retried."""
    queue, messages = held(*range(6))
    queue.enqueue(messages.values())
    first = queue.take(3)
    queue.finish(first[:1], 1)
    queue.put_back(first[1:])
    assert [m.queue_offset for m in queue.take(10)] == [1, 2, 3, 4, 5]
    assert queue.take(1) == []


def test_a_dropped_queue_hands_out_nothing() -> None:
    """A handler would begin on a queue that another member has by now."""
    queue, messages = held(0, 1)
    queue.enqueue(messages.values())
    queue.drop()
    assert queue.dropped
    assert queue.take(2) == []


def test_a_lock_counts_for_a_while() -> None:
    """A member without connection to its broker would continue after the lock went to another member."""
    queue, _ = held(0)
    assert not queue.is_locked(0)
    queue.locked_ms = 1000
    assert queue.is_locked(1000 + LOCK_ALIVE_MS)
    assert not queue.is_locked(1001 + LOCK_ALIVE_MS)


def test_the_state_shown_to_operators() -> None:
    """An operator would see a queue that is not there, or the wrong end of it."""
    queue, _ = held(3, 4, 9)
    info = queue.info(5, 1_005)
    assert (info.cached_msg_min_offset, info.cached_msg_max_offset, info.cached_msg_count) == (3, 9, 3)
    assert (info.commit_offset, info.locked, info.droped) == (3, False, False)


def test_the_times_shown_to_operators_are_since_1970() -> None:
    """The tool consumerStatus would show pulls of the year 1970."""
    queue, _ = held(3)
    queue.pulled_ms, queue.consumed_ms = 20, 30
    info = queue.info(100, 5_000_100)
    assert (info.last_pull_timestamp, info.last_consume_timestamp) == (5_000_020, 5_000_030)
    assert info.last_lock_timestamp == 5_000_000  # the assignment of the queue, as in RocketMQ
    queue.locked_ms = 40
    queue.locked_ms = None  # the lock was lost
    assert queue.info(100, 5_000_100).last_lock_timestamp == 5_000_040


def test_an_offset_beyond_the_end_never_leads_to_the_start() -> None:
    """When a broker lost its last messages, a group would process all of its messages again (QUIRKS 34)."""
    assert next_offset_after_illegal(100, 0, 0, 90) == 90
    assert next_offset_after_illegal(100, 90, 10, 90) == 90
    assert next_offset_after_illegal(5, 10, 10, 90) == 10
