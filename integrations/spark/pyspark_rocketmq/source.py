"""Reads the range of one task from its queue."""

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
from pyspark_rocketmq.planner import report_loss
from pyspark_rocketmq.rows import to_batch
from rocketpy import MessageExt, MessageQueue, PullResult, PullStatus, Retry, RocketError
from rocketpy.errors import RecordCorrupt
from rocketpy.sync import PullConsumer

_ARROW_ROWS: Final = 2000
_ARROW_BYTES: Final = 8 << 20
_PULLS_AHEAD: Final = 16
"""Maximum number of concurrent pulls."""
_PAUSE_S: Final = 0.2
_EMPTY_STATUSES: Final = frozenset({PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL})


def read_range(part: QueueRange, names: Sequence[str], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The messages of a range as Arrow batches with these columns, in offset order.

    Pulls are retried for `pullTimeoutMs` while a broker is unavailable. Raises RocketError after that, and
    DataLoss for missing offsets and for messages that cannot be decoded.
    """
    rows: list[MessageExt] = []
    size = 0
    read = _filtered if options.tags and options.pushdown else _messages
    for message in read(consumer_for(options), part, options):
        if message.decode_error is not None and _may_match(message, options):
            where = f"{part.queue} offset {message.queue_offset}"
            text = f"message {message.message_id} at {where} cannot be decoded: {message.decode_error}"
            report_loss(options, text)
            continue
        if options.tags and message.tags not in options.tags:
            continue
        rows.append(message)
        size += len(message.body)
        if len(rows) >= _ARROW_ROWS or size >= _ARROW_BYTES:
            yield to_batch(rows, names)
            rows, size = [], 0
    if rows:
        yield to_batch(rows, names)


def _may_match(message: MessageExt, options: SourceOptions) -> bool:
    """Whether a message has one of the tags, or its tag cannot be decoded."""
    return not options.tags or message.tags is None or message.tags in options.tags


def _messages(consumer: PullConsumer, part: QueueRange, options: SourceOptions) -> Iterator[MessageExt]:
    """All messages of a range, read ahead: offsets are dense, so the start of each pull is known."""
    queue, step = MessageQueue(*part.queue), options.pull_rows
    begins = iter(range(part.start, part.end, step))
    ahead = deque((begin, consumer.pull_async(queue, begin, step)) for begin in islice(begins, _PULLS_AHEAD))
    try:
        while ahead:
            begin, first = ahead.popleft()
            if (after := next(begins, None)) is not None:
                ahead.append((after, consumer.pull_async(queue, after, step)))
            piece = QueueRange(part.queue, begin, min(begin + step, part.end))
            yield from _read_piece(consumer, piece, first, options)
    finally:
        for _, future in ahead:
            future.cancel()


def _filtered(consumer: PullConsumer, part: QueueRange, options: SourceOptions) -> Iterator[MessageExt]:
    """The messages of a range that the broker selects: their tag, or its hash, is one of the tags.

    Only the response says where a pull ended, so pulls are sequential; the next one starts before the yield.
    """
    queue, offset = MessageQueue(*part.queue), part.start
    started: Future[PullResult] | None = None
    while offset < part.end:
        result = _pull(consumer, queue, offset, options.pull_rows, options, started)
        passed = result.status in {PullStatus.FOUND, PullStatus.NO_MATCHED_MSG}
        if passed and result.next_offset > offset:
            offset = result.next_offset
        else:
            offset = _skip_gap(part, offset, result, options)
        started = None
        if offset < part.end:
            started = _start_pull(consumer, queue, offset, options.pull_rows, options)
        yield from (message for message in result.messages if message.queue_offset < part.end)


def _start_pull(
    consumer: PullConsumer, queue: MessageQueue, offset: int, count: int, options: SourceOptions
) -> Future[PullResult]:
    expression = " || ".join(sorted(options.tags)) if options.pushdown and options.tags else "*"
    return consumer.pull_async(queue, offset, count, expression=expression)


def _read_piece(
    consumer: PullConsumer, part: QueueRange, first: Future[PullResult], options: SourceOptions
) -> Iterator[MessageExt]:
    """The messages of the offsets of one pull; a broker may need several pulls if they are large."""
    queue, offset = MessageQueue(*part.queue), part.start
    started: Future[PullResult] | None = first
    while offset < part.end:
        result = _pull(consumer, queue, offset, part.end - offset, options, started)
        started = None
        for message in result.messages:
            if offset < message.queue_offset < part.end:
                report_loss(options, f"{part.queue} has no messages {offset} to {message.queue_offset - 1}")
            if offset <= message.queue_offset < part.end:
                yield message
                offset = message.queue_offset + 1
        if not result.messages:
            offset = _skip_gap(part, offset, result, options)


def _skip_gap(part: QueueRange, offset: int, result: PullResult, options: SourceOptions) -> int:
    """Return the next offset to read after a missing message. Raises DataLoss."""
    after = min(part.end, result.next_offset)
    if result.status is PullStatus.NO_NEW_MSG or after <= offset:
        # The queue ends before the range: the broker lost messages in a restart.
        after = part.end
    report_loss(options, f"{part.queue} has no messages {offset} to {after - 1} ({result.status.value})")
    return after


def _pull(
    consumer: PullConsumer,
    queue: MessageQueue,
    offset: int,
    count: int,
    options: SourceOptions,
    started: Future[PullResult] | None,
) -> PullResult:
    """Pull, retrying until there is a result. started: the first pull, if it was started already.

    An empty result is accepted only after the master responded: a slave may lag, or have deleted more.
    Raises RocketError without a master. A record with an invalid length raises DataLoss, or is skipped.
    """
    until = monotonic() + options.pull_timeout_ms / 1000
    has_master = False
    while True:
        try:
            result = (started or _start_pull(consumer, queue, offset, count, options)).result()
            # A slave of 4.6 answers this if it does not have the offset.
            retry = result.status is PullStatus.NO_MATCHED_MSG and result.next_offset <= offset
            started = None
            if (retry or result.status in _EMPTY_STATUSES) and not has_master:
                consumer.max_offset(queue, of_master=True)
                has_master = True
                continue
        except RecordCorrupt as error:
            report_loss(options, f"{queue} cannot be read at offset {offset}: {error}")
            return PullResult(PullStatus.NO_MATCHED_MSG, offset + 1, 0, 0, [])
        except RocketError as error:
            if error.retry is Retry.NONE or monotonic() > until:
                raise
        else:
            # The consume queue is written after the log, so its end may lag; a gap is permanent.
            early = result.status is PullStatus.NO_NEW_MSG
            if not (early or retry) or monotonic() > until:
                return result
        started = None
        sleep(_PAUSE_S)
