"""Reads the ranges of one task from their queues."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import pairwise
from time import monotonic, sleep
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.clients import consumer_for, freeze_modules
from pyspark_rocketmq.messages_to_rows import Column, QueueMessages, to_batch
from pyspark_rocketmq.offsets import QueueName, QueueRange
from pyspark_rocketmq.options import SourceOptions
from pyspark_rocketmq.planner import queue_name, report_loss
from pyspark_rocketmq.record_arrays import Ints, RecordArrays, read_field, scan
from rocketpy import ConsumerConfig, MessageExt, MessageQueue, PullStatus, Retry, RocketError
from rocketpy.client.namespace import wrap
from rocketpy.consumer.fetch.consumer_api import PullResponse
from rocketpy.errors import RecordCorrupt, RemoteProtocolError
from rocketpy.message.decode import check_offsets, decode_message, decode_pull
from rocketpy.protocol.message.checksum import PROPERTY_BODY_CHECKSUM, verify_body_checksum
from rocketpy.protocol.message.compression import decompress
from rocketpy.protocol.message.properties import PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from rocketpy.protocol.message.record import read_start
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.sync import PullConsumer

_ARROW_ROWS: Final = 2000
_ARROW_BYTES: Final = 8 << 20
_PULLS: Final = 64
"""Maximum number of pulls in a round: with RocketMQ's limit of 32 messages they fill an Arrow batch."""
_ROUNDS: Final = 2
"""Maximum number of rounds in flight: the broker works on one while the other is decoded."""
_PULLED_BYTES: Final = 4 << 20
"""Approximate maximum of bytes that a round returns."""
_PAUSE_S: Final = 0.2
_EMPTY_STATUSES: Final = frozenset({PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL})
_DAMAGED: Final = -1
"""Stands for the start of a record that cannot be read."""
_BODY_BYTES: Final = ConsumerConfig().max_body_bytes
"""Limit of a decompressed body."""
_CHECKSUM_NAME: Final = PROPERTY_BODY_CHECKSUM.encode()


class Pulled(NamedTuple):
    """The records of one pull."""

    status: PullStatus
    next_offset: int
    data: bytes
    starts: Sequence[int] | Ints
    """Where each begins."""
    offsets: Sequence[int]
    """Their queue offsets, ascending."""

    def between(self, begin: int, end: int) -> Pulled:
        """Return the records with offsets from `begin` to before `end`."""
        offsets = self.offsets
        if not offsets or (begin <= offsets[0] and offsets[-1] < end):
            return self
        chosen = [row for row, offset in enumerate(offsets) if begin <= offset < end]
        return self._replace(
            next_offset=min(self.next_offset, end),
            starts=[self.starts[row] for row in chosen],
            offsets=[offsets[row] for row in chosen],
        )


def read_ranges(
    parts: Iterable[QueueRange], columns: Sequence[Column], options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges, one range after the other, as Arrow batches, in offset order.

    Pulls are retried for `deliveryTimeoutMs` while a broker is unavailable. Raises RocketError after that,
    and DataLoss for missing offsets and for messages that cannot be decoded, unless failOnDataLoss is false.
    """
    consumer, limits = consumer_for(options), _Limits(options.pull_rows)
    for part in parts:
        yield from _Reader(consumer, part, options, limits).batches(columns)
    freeze_modules()


class _Round(NamedTuple):
    """Concurrent pulls."""

    ranges: Sequence[tuple[int, int]]
    """Begin and end of each, in order."""
    counts: Sequence[int]
    """Messages requested by each."""
    responses: Future[list[PullResponse | RocketError]]

    @property
    def begin(self) -> int:
        """The first offset."""
        return self.ranges[0][0]

    @property
    def end(self) -> int:
        """The offset after the last range."""
        return self.ranges[-1][1]


class _Learned(NamedTuple):
    """One pull: the number of messages requested, and the messages and bytes returned."""

    asked: int
    rows: int
    size: int


class _Limits:
    """The sizes of pulls and rounds, learned from responses.

    A broker limits the messages and bytes of a response, however many a pull requests. The first pull of a
    task shows how many messages that is. In each round the last pull requests more, to detect a higher
    limit.
    """

    def __init__(self, most: int) -> None:
        self.most: Final = most
        """Maximum number of messages that a pull requests, from option pullBatchSize."""
        self.step = 0
        """Number of messages that a pull returns; 0 until it is known."""
        self.pulls = 1
        """Number of pulls in a round."""

    def learn(self, learned: Sequence[_Learned]) -> None:
        """Adapt to the responses of a round."""
        most = self.most
        limits = [rows for asked, rows, _ in learned if rows < asked or asked == most]
        if limits:
            self.step = max(1, min(limits))
        if self.step:
            size = max((size for _, _, size in learned), default=_PULLED_BYTES)
            self.pulls = max(1, min(_PULLS, _PULLED_BYTES // max(1, size)))


class _Reader:
    """Pulls the records of one range."""

    def __init__(
        self, consumer: PullConsumer, part: QueueRange, options: SourceOptions, limits: _Limits
    ) -> None:
        self._consumer = consumer
        self._part = part
        self._queue = MessageQueue(*part.queue)
        self._options = options
        self._limits = limits

    def batches(self, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        """Yield the messages as Arrow batches."""
        waiting: list[Pulled] = []
        rows = size = 0
        for each in self.every_offset() if self._options.broker_filter == "*" else self.selected():
            waiting.append(each)
            rows += len(each.starts)
            size += len(each.data)
            if rows >= _ARROW_ROWS or size >= _ARROW_BYTES:
                yield from to_batches(waiting, self._part.queue, columns, self._options)
                waiting, rows, size = [], 0, 0
        if rows:
            yield from to_batches(waiting, self._part.queue, columns, self._options)

    def every_offset(self) -> Iterator[Pulled]:
        """Yield all records. Offsets are dense, so the first offset of each pull is known in advance."""
        offset = reached = self._part.start
        end = self._part.end
        ahead: deque[_Round] = deque()
        try:
            while offset < end:
                is_first = not self._limits.step
                while reached < end and len(ahead) < (1 if is_first else _ROUNDS):
                    ahead.append(self._start_round(max(offset, reached)))
                    reached = ahead[-1].end
                current = ahead[0]
                responses = current.responses.result()
                learned: list[_Learned] = []
                whole = _whole(current, responses, learned) if current.begin == offset else None
                if whole is not None:
                    yield whole
                    offset = current.end
                for (begin, stop), count, response in zip(
                    current.ranges, current.counts, responses, strict=True
                ):
                    first = response if begin == offset else None  # a gap may end after its begin
                    while offset < stop:
                        pulled = self._pull(offset, stop - offset, first)
                        if first is not None and pulled.status is PullStatus.FOUND:
                            learned.append(_Learned(count, len(pulled.offsets), len(pulled.data)))
                        first = None
                        pulled = pulled.between(offset, stop)
                        if pulled.offsets:
                            self._report_gaps(offset, pulled.offsets)
                            offset = pulled.offsets[-1] + 1
                            yield pulled
                        else:
                            offset = self._skip_gap(offset, pulled)
                        if is_first:
                            reached = offset
                            break
                ahead.popleft()
                self._limits.learn(learned)
        finally:
            for each in ahead:
                each.responses.cancel()

    def selected(self) -> Iterator[Pulled]:
        """Yield the records that the broker selects: by the hashes of their tags, or by a condition.

        Only the response says where a pull ended, so pulls are sequential; the next one starts before the
        yield.
        """
        offset, end = self._part.start, self._part.end
        response = self._start([(offset, self._limits.most)])
        try:
            while offset < end:
                pulled = self._pull(offset, self._limits.most, response.result()[0])
                passed = pulled.status in {PullStatus.FOUND, PullStatus.NO_MATCHED_MSG}
                found = pulled.between(offset, end)
                if passed and pulled.next_offset > offset:
                    offset = pulled.next_offset
                else:
                    offset = self._skip_gap(offset, pulled)
                if offset < end:
                    response = self._start([(offset, self._limits.most)])
                yield found
        finally:
            response.cancel()

    def _start(self, pulls: Sequence[tuple[int, int]]) -> Future[list[PullResponse | RocketError]]:
        return self._consumer.pull_records_async(self._queue, pulls, expression=self._options.broker_filter)

    def _start_round(self, begin: int) -> _Round:
        end, most = self._part.end, self._limits.most
        step = self._limits.step or most
        begins = range(begin, end, step)[: self._limits.pulls]
        ranges = [(at, min(at + step, end)) for at in begins]
        counts = [stop - at for at, stop in ranges]
        counts[-1] = min(most, end - begins[-1])
        return _Round(ranges, counts, self._start(list(zip(begins, counts, strict=True))))

    def _pull(self, offset: int, count: int, response: PullResponse | RocketError | None) -> Pulled:
        """Pull, retrying until there is a result. response: of the first pull, if it was made already.

        An empty result is accepted only after the master responded: a slave may lag, or have deleted more.
        Raises RocketError without a master. A record with an invalid length raises DataLoss, or is skipped.
        """
        options = self._options
        until = monotonic() + options.delivery_timeout_ms / 1000
        has_master = False
        while True:
            try:
                if response is None:
                    (response,) = self._start([(offset, count)]).result()
                if isinstance(response, RocketError):
                    raise response
                pulled = self._parse(response, offset)
                response = None
                # The status from a slave of 4.6 that does not have the offset.
                retry = pulled.status is PullStatus.NO_MATCHED_MSG and pulled.next_offset <= offset
                if (retry or pulled.status in _EMPTY_STATUSES) and not has_master:
                    self._consumer.max_offset(self._queue, of_master=True)
                    has_master = True
                    until = min(until, monotonic() + options.pull_timeout_ms / 1000)
                    continue
            except RecordCorrupt as error:
                report_loss(options, f"{self._part.queue} cannot be read at offset {offset}: {error}")
                return Pulled(PullStatus.NO_MATCHED_MSG, offset + 1, b"", (), ())
            except RocketError as error:
                if error.retry is Retry.NONE or monotonic() > until:
                    raise
            else:
                # The consume queue is written after the log, so its end may lag; a gap is permanent.
                early = pulled.status is PullStatus.NO_NEW_MSG
                if not (early or retry) or monotonic() > until:
                    return pulled
            response = None
            sleep(_PAUSE_S)

    def _parse(self, response: PullResponse, offset: int) -> Pulled:
        """Find the records of a response. Raises RecordCorrupt and RemoteProtocolError, as a pull does."""
        status, header, data = response
        following = header.next_begin_offset
        if status is not PullStatus.FOUND:
            return Pulled(status, following, b"", (), ())
        found = scan(data)
        if found is None:
            return self._parse_damaged(data, offset, following)
        offsets = read_field(data, "queue_offset", found).tolist()
        check_offsets(offsets, self._queue, offset, following)
        return Pulled(status, following, data, found.tolist(), offsets)

    def _parse_damaged(self, data: bytes, offset: int, following: int) -> Pulled:
        """Find the records of a response in which a length or a magic number is invalid."""
        found = decode_pull(
            data,
            self._queue,
            offset,
            following,
            topic=wrap(self._options.connection.namespace, self._queue.topic),
            max_body_bytes=_BODY_BYTES,
            max_total_bytes=_BODY_BYTES,
            verify=True,
        )
        starts, at = [], 0
        for message in found.messages:
            starts.append(at if message.decode_error is None else _DAMAGED)
            if message.decode_error is not None:
                _report_damaged(message, self._options)
            at += message.store_size
        offsets = [message.queue_offset for message in found.messages]
        return Pulled(PullStatus.FOUND, found.next_offset, data, starts, offsets)

    def _report_gaps(self, offset: int, offsets: Sequence[int]) -> None:
        if offsets[0] == offset and offsets[-1] - offset == len(offsets) - 1:
            return
        for before, after in pairwise((offset - 1, *offsets)):
            if after > before + 1:
                loss = f"{self._part.queue} has no messages {before + 1} to {after - 1}"
                report_loss(self._options, loss)

    def _skip_gap(self, offset: int, pulled: Pulled) -> int:
        """Return the next offset to read after a missing message. Raises DataLoss."""
        end = self._part.end
        after = min(end, pulled.next_offset)
        if pulled.status is PullStatus.NO_NEW_MSG or after <= offset:
            # The queue ends before the range: the broker lost messages in a restart.
            after = end
        loss = f"{self._part.queue} has no messages {offset} to {after - 1} ({pulled.status.value})"
        report_loss(self._options, loss)
        return after


def _whole(
    current: _Round, responses: Sequence[PullResponse | RocketError], learned: list[_Learned]
) -> Pulled | None:
    """Return the records of a round as one pull; None unless they are exactly the requested ones."""
    found = [
        response.body
        for response in responses
        if not isinstance(response, RocketError) and response.status is PullStatus.FOUND
    ]
    if len(found) < len(responses):
        return None
    data = b"".join(found)
    starts = scan(data)
    if starts is None:
        return None
    offsets = read_field(data, "queue_offset", starts)
    if current.begin + len(offsets) < current.end or (np.diff(offsets, prepend=current.begin - 1) != 1).any():
        return None
    reached = int(offsets[-1]) + 1  # the last pull asked for more
    for (begin, stop), asked, body in zip(current.ranges, current.counts, found, strict=True):
        rows = (reached if stop == current.end else stop) - begin
        learned.append(_Learned(asked, rows, len(body)))
    wanted = range(current.begin, current.end)
    return Pulled(PullStatus.FOUND, current.end, data, starts[: len(wanted)], wanted)


def to_batches(
    waiting: Sequence[Pulled], queue: QueueName, columns: Sequence[Column], options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Make Arrow batches of records. Raises DataLoss for a record that cannot be decoded."""
    data = b"".join(pulled.data for pulled in waiting)
    record_starts, base = [], 0
    for pulled in waiting:
        starts = np.array(pulled.starts, np.int64)
        record_starts.append(starts[starts != _DAMAGED] + base)
        base += len(pulled.data)
    starts = np.concatenate(record_starts)
    try:
        records = RecordArrays(data, starts)
    except RecordCorrupt:
        intact = _intact(data, starts.tolist(), queue, options)
        records = RecordArrays(data, np.array(intact, np.int64))
    _check_queue(records, queue, options)
    if options.tags:
        (tags,) = records.properties([PROPERTY_TAGS])
        is_wanted = pc.is_in(tags, pa.array(options.tags, pa.string()))
        records = records.select(np.flatnonzero(is_wanted.to_numpy(zero_copy_only=False)))
    if not len(records):
        return
    if all(column.field != "body" for column in columns):
        yield to_batch(QueueMessages(records, queue, None), columns)
        return
    for some, bodies in _with_bodies(records, queue, options):
        yield to_batch(QueueMessages(some, queue, bodies), columns)


def _check_queue(records: RecordArrays, queue: QueueName, options: SourceOptions) -> None:
    """Raise RemoteProtocolError if a record is of another topic or queue."""
    topic = wrap(options.connection.namespace, queue.topic)
    ids = records.field("queue_id")
    if any(found != topic for found in records.topics) or (ids != queue.queue_id).any():
        raise RemoteProtocolError(
            f"broker {queue.broker} responded to a pull of {queue} with records of topics {records.topics} "
            f"and queues {np.unique(ids).tolist()}"
        )


def _intact(data: bytes, starts: Sequence[int], queue: QueueName, options: SourceOptions) -> list[int]:
    """Return the starts of the records that the decoder accepts; report the others as lost."""
    intact = []
    for start in starts:
        size, _ = read_start(data, start)
        message = decode_message(data[start : start + size], queue.broker, _BODY_BYTES, verify=True)
        if isinstance(message.decode_error, RecordCorrupt):
            _report_damaged(message, options)
        else:
            intact.append(start)
    return intact


def _with_bodies(
    records: RecordArrays, queue: QueueName, options: SourceOptions
) -> Iterator[tuple[RecordArrays, pa.Array]]:
    """Yield records with their decompressed bodies, about `_ARROW_BYTES` at a time. Raises DataLoss."""
    if not (records.sys_flags & MessageSysFlag.COMPRESSED).any() and _CHECKSUM_NAME not in records.data:
        yield records, records.bodies()
        return
    unique_ids, checksum_texts = records.properties([PROPERTY_UNIQ_KEY, PROPERTY_BODY_CHECKSUM])
    checksums = checksum_texts.to_pylist()
    ends, flags = records.body_ends.tolist(), records.sys_flags.tolist()
    rows: list[int] = []
    bodies: list[bytes] = []
    size = 0
    for row, (at, end) in enumerate(zip(records.body_at.tolist(), ends, strict=True)):
        try:
            body = decompress(records.data[at:end], flags[row], max_bytes=_BODY_BYTES)
            if checksums[row] is not None and verify_body_checksum(checksums[row], body) is False:
                raise RecordCorrupt(at, f"body does not match its producer's {checksums[row]!r}")
        except RocketError as error:
            offset = records.field("queue_offset")[row]
            _report_undecodable(options, records.message_ids(unique_ids)[row], queue, offset, error)
            continue
        rows.append(row)
        bodies.append(body)
        size += len(body)
        if size >= _ARROW_BYTES:
            yield records.select(rows), pa.array(bodies, pa.binary())
            rows, bodies, size = [], [], 0
    if rows:
        yield records.select(rows), pa.array(bodies, pa.binary())


def _report_damaged(message: MessageExt, options: SourceOptions) -> None:
    """Report a message that cannot be decoded, unless it has a readable tag that was not selected."""
    if options.tags and message.tags is not None and message.tags not in options.tags:
        return
    queue = queue_name(message.queue)
    _report_undecodable(options, message.message_id, queue, message.queue_offset, message.decode_error)


def _report_undecodable(
    options: SourceOptions, message_id: object, queue: QueueName, offset: int, error: object
) -> None:
    report_loss(options, f"message {message_id} at {queue} offset {offset} cannot be decoded: {error}")
