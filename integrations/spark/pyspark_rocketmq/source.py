"""What a task does to read its range of a queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from time import monotonic, sleep
from typing import Final

import pyarrow as pa

from pyspark_rocketmq.clients import consumer_for
from pyspark_rocketmq.offsets import QueueRange
from pyspark_rocketmq.options import SourceOptions
from pyspark_rocketmq.planner import complain
from pyspark_rocketmq.rows import to_batch
from rocketpy import MessageExt, MessageQueue, PullResult, PullStatus, Retry, RocketError
from rocketpy.errors import RecordCorrupt
from rocketpy.sync import PullConsumer

_ARROW_ROWS: Final = 2000
_ARROW_BYTES: Final = 8 << 20
_AHEAD: Final = 16
"""Pulls on their way at a time."""
_PAUSE_S: Final = 0.2
_NOTHING: Final = frozenset({PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL})


def read_range(part: QueueRange, names: Sequence[str], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The messages of a range as Arrow batches with these columns, in the order of their offsets.

    A broker that is away is asked again for `pullTimeoutMs`. Raises RocketError after that, and DataLoss for
    offsets that are no longer there and for messages that cannot be decoded.
    """
    gathered: list[MessageExt] = []
    size = 0
    read = _chosen if options.tags and options.pushdown else _messages
    for message in read(consumer_for(options), part, options):
        if message.decode_error is not None and _may_be_wanted(message, options):
            where = f"{part.queue} offset {message.queue_offset}"
            text = f"message {message.message_id} at {where} cannot be decoded: {message.decode_error}"
            complain(options, text)
            continue
        if options.tags and message.tags not in options.tags:
            continue
        gathered.append(message)
        size += len(message.body)
        if len(gathered) >= _ARROW_ROWS or size >= _ARROW_BYTES:
            yield to_batch(gathered, names)
            gathered, size = [], 0
    if gathered:
        yield to_batch(gathered, names)


def _may_be_wanted(message: MessageExt, options: SourceOptions) -> bool:
    """Whether a message has one of the tags, or none that could be read."""
    return not options.tags or message.tags is None or message.tags in options.tags


def _messages(consumer: PullConsumer, part: QueueRange, options: SourceOptions) -> Iterator[MessageExt]:
    """All messages of a range, read ahead: offsets are dense, so it is known where each pull begins."""
    queue, step = MessageQueue(*part.queue), options.pull_rows
    begins = iter(range(part.start, part.end, step))
    ahead = deque((begin, consumer.pull_async(queue, begin, step)) for begin in islice(begins, _AHEAD))
    try:
        while ahead:
            begin, first = ahead.popleft()
            if (after := next(begins, None)) is not None:
                ahead.append((after, consumer.pull_async(queue, after, step)))
            piece = QueueRange(part.queue, begin, min(begin + step, part.end))
            yield from _piece(consumer, piece, first, options)
    finally:
        for _, future in ahead:
            future.cancel()


def _chosen(consumer: PullConsumer, part: QueueRange, options: SourceOptions) -> Iterator[MessageExt]:
    """The messages of a range that the broker finds to have a wanted tag, or one with the same hash.

    Where a pull ends only its answer says, so one follows the other; the next is on its way meanwhile.
    """
    queue, offset = MessageQueue(*part.queue), part.start
    begun: Future[PullResult] | None = None
    while offset < part.end:
        result = _pull(consumer, queue, offset, options.pull_rows, options, begun)
        passed = result.status in {PullStatus.FOUND, PullStatus.NO_MATCHED_MSG}
        if passed and result.next_offset > offset:
            offset = result.next_offset
        else:
            offset = _past_a_gap(part, offset, result, options)
        begun = _ask(consumer, queue, offset, options.pull_rows, options) if offset < part.end else None
        yield from (message for message in result.messages if message.queue_offset < part.end)


def _ask(
    consumer: PullConsumer, queue: MessageQueue, offset: int, count: int, options: SourceOptions
) -> Future[PullResult]:
    expression = " || ".join(sorted(options.tags)) if options.pushdown and options.tags else "*"
    return consumer.pull_async(queue, offset, count, expression=expression)


def _piece(
    consumer: PullConsumer, part: QueueRange, first: Future[PullResult], options: SourceOptions
) -> Iterator[MessageExt]:
    """The messages of one pull's worth of offsets; a broker may need several pulls for large ones."""
    queue, offset = MessageQueue(*part.queue), part.start
    answer: Future[PullResult] | None = first
    while offset < part.end:
        result = _pull(consumer, queue, offset, part.end - offset, options, answer)
        answer = None
        for message in result.messages:
            if offset < message.queue_offset < part.end:
                complain(options, f"{part.queue} has no messages {offset} to {message.queue_offset - 1}")
            if offset <= message.queue_offset < part.end:
                yield message
                offset = message.queue_offset + 1
        if not result.messages:
            offset = _past_a_gap(part, offset, result, options)


def _past_a_gap(part: QueueRange, offset: int, result: PullResult, options: SourceOptions) -> int:
    """Where to go on when there is no message at an offset, though there should be one. Raises DataLoss."""
    after = min(part.end, result.next_offset)
    if result.status is PullStatus.NO_NEW_MSG or after <= offset:
        # The queue ends before the range does: a broker that came back with less than it had.
        after = part.end
    complain(options, f"{part.queue} has no messages {offset} to {after - 1} ({result.status.value})")
    return after


def _pull(
    consumer: PullConsumer,
    queue: MessageQueue,
    offset: int,
    count: int,
    options: SourceOptions,
    begun: Future[PullResult] | None,
) -> PullResult:
    """One pull, which may have begun already, and as many more as it takes to get an answer.

    That there is nothing at an offset is believed once there is a master to ask: a slave may be behind, or
    have deleted more. Raises RocketError while there is none. A record whose length cannot be trusted raises
    DataLoss, or is left out.
    """
    until = monotonic() + options.pull_timeout_ms / 1000
    has_master = False
    while True:
        try:
            result = (begun or _ask(consumer, queue, offset, count, options)).result()
            # What a slave of 4.6 says that does not have the offset.
            again = result.status is PullStatus.NO_MATCHED_MSG and result.next_offset <= offset
            begun = None
            if (again or result.status in _NOTHING) and not has_master:
                consumer.max_offset(queue, of_master=True)
                has_master = True
                continue
        except RecordCorrupt as error:
            complain(options, f"{queue} cannot be read at offset {offset}: {error}")
            return PullResult(PullStatus.NO_MATCHED_MSG, offset + 1, 0, 0, [])
        except RocketError as error:
            if error.retry is Retry.NONE or monotonic() > until:
                raise
        else:
            # A consume queue is written a moment after the log, so an end may be early; a hole stays one.
            early = result.status is PullStatus.NO_NEW_MSG
            if not (early or again) or monotonic() > until:
                return result
        begun = None
        sleep(_PAUSE_S)
