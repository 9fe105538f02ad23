"""Sends the rows of one task, from the data source or `mapInArrow`.

Rows for one topic, or for one queue if the row names it, are sent in batches. Several batches are in flight
while the next one is built. The task ends after the last acknowledgement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pyspark_rocketmq.clients import producer_for
from pyspark_rocketmq.columns import Columns, Row, RowNotSent
from pyspark_rocketmq.options import SinkOptions
from rocketpy import Message, MessageQueue, Retry, RocketError, SendResult, SendStatus, by_hash
from rocketpy.errors import BatchIncomplete, BrokerError, RouteNotFound
from rocketpy.protocol.codes import ResponseCode
from rocketpy.sync import Producer
from rocketpy.telemetry import continued

_NO_BATCHES: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})
"""Response codes of a broker that rejects batches (4.6 with DLedger), or this batch; nothing is stored."""
_FINAL_CODES: Final = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST})
"""Codes that a retry here cannot fix: the SDK already tried other brokers."""
_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Identifies the rows of a task; the same for every attempt of the task and the batch.

    run_id: the id of the query or of one batch write. batch_id: the micro-batch; 0 in a batch write.
    """

    run_id: str
    batch_id: int
    partition: int

    @property
    def prefix(self) -> str:
        """Prefix of the row ids; the row number follows."""
        return f"{self.run_id}/{self.batch_id}/{self.partition}/"


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a task. body_bytes: the total of all messages, before compression."""

    partition: int
    rows: int
    body_bytes: int


class _InFlight(NamedTuple):
    """Rows that are being sent. numbers: row numbers in the partition, ascending.

    first_sent, last_sent: monotonic times of the first and of the last attempt, in seconds.
    """

    numbers: Sequence[int]
    messages: Sequence[Message]
    queue: MessageQueue | None
    future: Future[Any]
    first_sent: float
    last_sent: float


class _Open(NamedTuple):
    """Rows for one topic and queue that are not sent yet. numbers: row numbers in the partition."""

    numbers: list[int]
    messages: list[Message]


def send_rows(
    batches: Iterable[pa.RecordBatch], columns: Columns, options: SinkOptions, place: TaskPlace
) -> Report:
    """Send all rows of a task; return after the last acknowledgement.

    Raises RowNotSent for the first row that could not be sent, after all sends in flight have ended.
    """
    task = _Task(producer_for(options), options, place)
    rows = 0
    try:
        with continued(dict(options.trace_context)):
            for batch in batches:
                task.send_batch(batch, columns, rows)
                rows += batch.num_rows
            task.finish()
    except RowNotSent as error:
        error.add_note(f"partition {place.partition} of batch {place.batch_id}, run {place.run_id}")
        raise
    finally:
        wait([sent.future for sent in task.in_flight])
    return Report(place.partition, rows, task.body_bytes)


class _Task:
    """The rows of one task that are not sent yet, and those in flight."""

    def __init__(self, producer: Producer, options: SinkOptions, place: TaskPlace) -> None:
        self.in_flight: deque[_InFlight] = deque()
        self.body_bytes = 0
        self._producer = producer
        self._options = options
        self._place = place
        self._open: dict[tuple[str, Any], _Open] = {}
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._unbatched_topics: set[str] = set()
        self._rows_in_flight = 0
        self._pause_s = _PAUSE_S
        self._paused_until = 0.0
        self._rows_in_flight_max = options.max_in_flight * options.batch_rows

    def send_batch(self, batch: pa.RecordBatch, columns: Columns, first_row: int) -> None:
        """Send the rows of one Arrow batch. Raises RowNotSent."""
        prefix = self._place.prefix
        if not columns.can_batch:
            self._send_rows(columns.rows(batch, prefix, first_row), first_row)
            return
        for start in range(0, batch.num_rows, self._options.batch_rows):
            piece, row = batch.slice(start, self._options.batch_rows), first_row + start
            messages = columns.message_columns(piece, prefix, row)
            if messages is None or len(messages) < 2 or messages.topic in self._unbatched_topics:
                self._send_rows(columns.rows(piece, prefix, row), row)
            else:
                self.body_bytes += sum(map(len, messages.bodies))
                self._make_room(len(messages))
                self._submit(range(row, row + len(messages)), messages, None)

    def _send_rows(self, rows: Iterable[Row], first_row: int) -> None:
        """Send rows, each to its queue."""
        options = self._options
        batch_rows, single_above = options.batch_rows, options.sends_singly_above
        opened = self._open
        size = 0
        for number, (message, where) in enumerate(rows, first_row):
            key = (message.topic, where)
            length = len(message.body)
            size += length
            if length > single_above or message.delay_level:
                self._send_open(key)
                self._send_single(message, self._queue(message.topic, where, number), number)
                continue
            batch = opened.get(key)
            if batch is None:
                batch = opened[key] = _Open([], [])
            batch.numbers.append(number)
            batch.messages.append(message)
            if len(batch.messages) >= batch_rows:
                self._send_open(key)
        self.body_bytes += size
        for key in list(opened):
            self._send_open(key)

    def finish(self) -> None:
        """Wait for all sends in flight. Raises RowNotSent."""
        while self.in_flight:
            self._await_oldest()

    # -- sending ------------------------------------------------------------------------------

    def _send_open(self, key: tuple[str, Any]) -> None:
        batch = self._open.pop(key, None)
        if batch is None:
            return
        queue = self._queue(key[0], key[1], batch.numbers[0])
        if len(batch.messages) == 1 or key[0] in self._unbatched_topics:
            for number, message in zip(batch.numbers, batch.messages, strict=True):
                self._send_single(message, queue, number)
        else:
            self._make_room(len(batch.messages))
            self._submit(batch.numbers, batch.messages, queue)

    def _send_single(self, message: Message, queue: MessageQueue | None, number: int) -> None:
        self._make_room(1)
        self._submit((number,), (message,), queue)

    def _submit(
        self,
        numbers: Sequence[int],
        messages: Sequence[Message],
        queue: MessageQueue | None,
        first_sent: float | None = None,
    ) -> None:
        """Pass rows to the producer. first_sent: time of the first attempt; None: now. Raises RowNotSent."""
        future: Future[Any]
        now = monotonic()
        try:
            if len(messages) == 1:
                future = self._producer.send_async(messages[0], queue=queue)
            else:
                future = self._producer.send_batch_async(messages, queue=queue)
        except RocketError as error:
            raise self._failed(numbers, messages[0].topic, error) from error
        first = now if first_sent is None else first_sent
        self.in_flight.append(_InFlight(numbers, messages, queue, future, first, now))
        self._rows_in_flight += len(messages)

    def _make_room(self, count: int) -> None:
        while self.in_flight and self._rows_in_flight + count > self._rows_in_flight_max:
            self._await_oldest()

    # -- results and retries ------------------------------------------------------------------

    def _await_oldest(self) -> None:
        """Wait for the oldest send. Raises RowNotSent."""
        sent = self.in_flight.popleft()
        self._rows_in_flight -= len(sent.messages)
        try:
            result: SendResult | list[SendResult] = sent.future.result()
        except BatchIncomplete as error:
            stored = len(error.results)
            self._check(sent.numbers[:stored], error.results)
            rest = sent._replace(numbers=sent.numbers[stored:], messages=sent.messages[stored:])
            self._retry(rest, error.cause)
        except RocketError as error:
            self._retry(sent, error)
        else:
            self._pause_s = _PAUSE_S
            self._check(sent.numbers, result if isinstance(result, list) else [result])

    def _retry(self, sent: _InFlight, error: RocketError) -> None:
        """Send rejected rows again. Raises RowNotSent if a retry cannot help."""
        if len(sent.messages) > 1 and isinstance(error, BrokerError) and error.code in _NO_BATCHES:
            self._resend_singly(sent)
        elif not self._may_retry(sent.first_sent, error):
            raise self._failed(sent.numbers, sent.messages[0].topic, error) from error
        else:
            self._pause(sent)
            self._submit(sent.numbers, sent.messages, sent.queue, sent.first_sent)

    def _may_retry(self, first_sent: float, error: RocketError) -> bool:
        """Return whether to retry: the error is retryable and the delivery timeout has not passed."""
        if error.retry is Retry.NONE or (isinstance(error, BrokerError) and error.code in _FINAL_CODES):
            return False
        return monotonic() - first_sent + self._pause_s < self._options.delivery_timeout_ms / 1000

    def _pause(self, failed: _InFlight) -> None:
        """Wait before a retry, doubling until a send succeeds.

        Sends started before the last pause need no further one.
        """
        if failed.last_sent >= self._paused_until:
            self._sleep()
            self._paused_until = monotonic()

    def _sleep(self) -> None:
        sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)

    def _resend_singly(self, sent: _InFlight) -> None:
        """The broker rejected batches, or one row: send each row separately."""
        self._unbatched_topics.add(sent.messages[0].topic)
        for number, message in zip(sent.numbers, sent.messages, strict=True):
            self._send_single(message, sent.queue, number)

    def _check(self, numbers: Sequence[int], results: Sequence[SendResult]) -> None:
        for number, result in zip(numbers, results, strict=True):
            if self._options.require_send_ok and result.status is not SendStatus.SEND_OK:
                error = RuntimeError(
                    f"{result.queue.broker_name} answered {result.status.value}: stored without the "
                    "configured durability; set requireSendOk=false to accept this"
                )
                raise self._failed((number,), result.queue.topic, error)

    def _failed(self, numbers: Sequence[int], topic: str, error: BaseException) -> RowNotSent:
        rows = f"row {numbers[0]}" if len(numbers) == 1 else f"rows {numbers[0]} to {numbers[-1]}"
        return RowNotSent(f"{rows} of partition {self._place.partition}", topic, error)

    # -- queues -------------------------------------------------------------------------------

    def _queue(self, topic: str, where: tuple[str, int] | str | None, number: int) -> MessageQueue | None:
        """The queue of a row; None for any. Raises RowNotSent if the topic has no queues."""
        if where is None:
            return None
        if isinstance(where, tuple):
            return MessageQueue(topic, *where)
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = self._queues_of(topic, number)
        return by_hash(queues, _ANY_MESSAGE, where)

    def _queues_of(self, topic: str, number: int) -> tuple[MessageQueue, ...]:
        """The queues of a topic; retries while the name server knows none. Raises RowNotSent."""
        first_asked = monotonic()
        while True:
            try:
                queues = self._producer.fetch_publish_queues(topic)
                if queues:
                    return queues
                raise RouteNotFound(f"topic {topic} has no writable queue")
            except RocketError as error:
                if not self._may_retry(first_asked, error):
                    raise self._failed((number,), topic, error) from error
            self._sleep()


_ANY_MESSAGE: Final = Message("any", b"-")
"""`by_hash` uses only the key."""
