"""Which message of a queue was stored about when. Source: RocketMQ ConsumeQueue getOffsetInQueueByTime."""

from __future__ import annotations

from rocketpy_broker.store.log.message_log import MessageLog
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue


def offset_by_time(queue: ConsumeQueue, log: MessageLog, timestamp: int) -> int:
    """Queue offset of the message stored at `timestamp` (ms), else of the nearest in the same file.

    The file is the first that was written to at or after that time, else the last. Of two that are equally
    near the earlier one; 0 without messages, and when a record cannot be read, as 4.6.0 answers.
    """
    numbers = queue.range_by_time(timestamp)
    if not numbers:
        return 0
    low, high = max(queue.min_offset, numbers.start), numbers.stop - 1
    before: tuple[int, int] | None = None
    after: tuple[int, int] | None = None
    while low <= high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is None or unit[0] < log.min_offset:
            before, low = before or (-1, middle), middle + 1
            continue
        time = log.store_timestamp(unit[0])
        if time < 0:
            return 0
        if time == timestamp:
            return middle
        if time > timestamp:
            after, high = (time, middle), middle - 1
        else:
            before, low = (time, middle), middle + 1
    return _nearest(before, after, timestamp, numbers.start)


def _nearest(
    before: tuple[int, int] | None, after: tuple[int, int] | None, timestamp: int, first: int
) -> int:
    if before is None or (before[0] < 0 and after is not None):
        return after[1] if after is not None else first
    if after is None or timestamp - before[0] <= after[0] - timestamp:
        return before[1]
    return after[1]
