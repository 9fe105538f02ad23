"""What a task does with its rows, whichever way they came: by the data source, or by `mapInArrow`.

Rows for one topic (and one queue, where the row says which) travel in batches; several batches are on their
way while the next is made. The task ends after the last acknowledgement.
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
"""What a broker answers that takes no batch (4.6 with DLedger), or not this one; nothing is stored then."""


_SAYS_NO: Final = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST})
"""What another producer would try at another broker; the SDK has done that already when it comes here."""
_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a task stands: names every row, the same in each attempt of the task and of the batch.

    run_id: the query's id, or that of one batch write. batch_id: of the micro-batch; 0 in a batch write.
    """

    run_id: str
    batch_id: int
    partition: int

    @property
    def prefix(self) -> str:
        """Of the ids of the task's rows; the row's number follows."""
        return f"{self.run_id}/{self.batch_id}/{self.partition}/"


@dataclass(frozen=True, slots=True)
class Report:
    """What a task has sent. body_bytes: of all messages together, before compression."""

    partition: int
    rows: int
    body_bytes: int


class _Flight(NamedTuple):
    """Rows on their way. numbers: theirs in the partition, rising. since, left: first and last start in s."""

    numbers: Sequence[int]
    messages: Sequence[Message]
    queue: MessageQueue | None
    future: Future[Any]
    since: float
    left: float


class _Open(NamedTuple):
    """Rows for one topic and queue that have not left. numbers: theirs in the partition."""

    numbers: list[int]
    messages: list[Message]


def send_rows(
    batches: Iterable[pa.RecordBatch], columns: Columns, options: SinkOptions, place: TaskPlace
) -> Report:
    """Send all rows of a task; return after the last acknowledgement.

    Raises RowNotSent, when nothing is on its way any more, for the first row that could not be sent.
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
        wait([flight.future for flight in task.flights])
    return Report(place.partition, rows, task.body_bytes)


class _Task:
    """The rows of one task that have not left, and those that wait for their answers."""

    def __init__(self, producer: Producer, options: SinkOptions, place: TaskPlace) -> None:
        self.flights: deque[_Flight] = deque()
        self.body_bytes = 0
        self._producer = producer
        self._options = options
        self._place = place
        self._open: dict[tuple[str, Any], _Open] = {}
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._singly: set[str] = set()
        self._in_flight = 0
        self._pause_s = _PAUSE_S
        self._paused_until = 0.0
        self._most = options.max_in_flight * options.batch_rows

    def send_batch(self, batch: pa.RecordBatch, columns: Columns, first_row: int) -> None:
        """Send the rows of one Arrow batch. Raises RowNotSent."""
        prefix = self._place.prefix
        if not columns.go_together:
            self._send_rows(columns.rows(batch, prefix, first_row), first_row)
            return
        for start in range(0, batch.num_rows, self._options.batch_rows):
            piece, row = batch.slice(start, self._options.batch_rows), first_row + start
            messages = columns.together(piece, prefix, row)
            if messages is None or len(messages) < 2 or messages.topic in self._singly:
                self._send_rows(columns.rows(piece, prefix, row), row)
            else:
                self.body_bytes += sum(map(len, messages.bodies))
                self._make_room(len(messages))
                self._fly(range(row, row + len(messages)), messages, None)

    def _send_rows(self, rows: Iterable[Row], first_row: int) -> None:
        """Send rows, each to where it wants to go."""
        options = self._options
        batch_rows, singly_above = options.batch_rows, options.sends_singly_above
        opened = self._open
        size = 0
        for number, (message, where) in enumerate(rows, first_row):
            key = (message.topic, where)
            length = len(message.body)
            size += length
            if length > singly_above or message.delay_level:
                self._leave(key)
                self._send_singly(message, self._queue(message.topic, where, number), number)
                continue
            batch = opened.get(key)
            if batch is None:
                batch = opened[key] = _Open([], [])
            batch.numbers.append(number)
            batch.messages.append(message)
            if len(batch.messages) >= batch_rows:
                self._leave(key)
        self.body_bytes += size
        for key in list(opened):
            self._leave(key)

    def finish(self) -> None:
        """Wait for all that is on its way. Raises RowNotSent."""
        while self.flights:
            self._land()

    # -- leaving ------------------------------------------------------------------------------

    def _leave(self, key: tuple[str, Any]) -> None:
        batch = self._open.pop(key, None)
        if batch is None:
            return
        queue = self._queue(key[0], key[1], batch.numbers[0])
        if len(batch.messages) == 1 or key[0] in self._singly:
            for number, message in zip(batch.numbers, batch.messages, strict=True):
                self._send_singly(message, queue, number)
        else:
            self._make_room(len(batch.messages))
            self._fly(batch.numbers, batch.messages, queue)

    def _send_singly(self, message: Message, queue: MessageQueue | None, number: int) -> None:
        self._make_room(1)
        self._fly((number,), (message,), queue)

    def _fly(
        self,
        numbers: Sequence[int],
        messages: Sequence[Message],
        queue: MessageQueue | None,
        since: float | None = None,
    ) -> None:
        """Hand rows to the producer. since: when they first left; None for now. Raises RowNotSent."""
        future: Future[Any]
        now = monotonic()
        try:
            if len(messages) == 1:
                future = self._producer.send_async(messages[0], queue=queue)
            else:
                future = self._producer.send_batch_async(messages, queue=queue)
        except RocketError as error:
            raise self._failed(numbers, messages[0].topic, error) from error
        self.flights.append(_Flight(numbers, messages, queue, future, now if since is None else since, now))
        self._in_flight += len(messages)

    def _make_room(self, count: int) -> None:
        while self.flights and self._in_flight + count > self._most:
            self._land()

    # -- landing ------------------------------------------------------------------------------

    def _land(self) -> None:
        """Wait for the oldest batch. Raises RowNotSent."""
        flight = self.flights.popleft()
        self._in_flight -= len(flight.messages)
        try:
            answer: SendResult | list[SendResult] = flight.future.result()
        except BatchIncomplete as error:
            stored = len(error.results)
            self._check(flight.numbers[:stored], error.results)
            rest = flight._replace(numbers=flight.numbers[stored:], messages=flight.messages[stored:])
            self._again(rest, error.cause)
        except RocketError as error:
            self._again(flight, error)
        else:
            self._pause_s = _PAUSE_S
            self._check(flight.numbers, answer if isinstance(answer, list) else [answer])

    def _again(self, flight: _Flight, error: RocketError) -> None:
        """Send rows again that were not taken. Raises RowNotSent where that does not help."""
        if len(flight.messages) > 1 and isinstance(error, BrokerError) and error.code in _NO_BATCHES:
            self._repeat_singly(flight)
        elif not self._is_patient(flight.since, error):
            raise self._failed(flight.numbers, flight.messages[0].topic, error) from error
        else:
            self._pause(flight)
            self._fly(flight.numbers, flight.messages, flight.queue, flight.since)

    def _is_patient(self, since: float, error: RocketError) -> bool:
        """Whether to try again: not what no repetition helps, nor what took all its time."""
        if error.retry is Retry.NONE or (isinstance(error, BrokerError) and error.code in _SAYS_NO):
            return False
        return monotonic() - since + self._pause_s < self._options.delivery_timeout_ms / 1000

    def _pause(self, failed: _Flight) -> None:
        """Leave the broker alone for a while, longer each time until it takes something.

        What left before the last pause failed for the same reason as what that was for.
        """
        if failed.left >= self._paused_until:
            self._sleep()
            self._paused_until = monotonic()

    def _sleep(self) -> None:
        sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _repeat_singly(self, flight: _Flight) -> None:
        """The broker refused a batch for being one, or for one row of it: send each row by itself."""
        self._singly.add(flight.messages[0].topic)
        for number, message in zip(flight.numbers, flight.messages, strict=True):
            self._send_singly(message, flight.queue, number)

    def _check(self, numbers: Sequence[int], results: Sequence[SendResult]) -> None:
        for number, result in zip(numbers, results, strict=True):
            if self._options.require_send_ok and result.status is not SendStatus.SEND_OK:
                error = RuntimeError(
                    f"{result.queue.broker_name} answered {result.status.value}: stored, but with less than "
                    "it promises; option requireSendOk=false takes that"
                )
                raise self._failed((number,), result.queue.topic, error)

    def _failed(self, numbers: Sequence[int], topic: str, error: BaseException) -> RowNotSent:
        rows = f"row {numbers[0]}" if len(numbers) == 1 else f"rows {numbers[0]} to {numbers[-1]}"
        return RowNotSent(f"{rows} of partition {self._place.partition}", topic, error)

    # -- queues -------------------------------------------------------------------------------

    def _queue(self, topic: str, where: tuple[str, int] | str | None, number: int) -> MessageQueue | None:
        """The queue that a row wants. Raises RowNotSent when there is none."""
        if where is None:
            return None
        if isinstance(where, tuple):
            return MessageQueue(topic, *where)
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = self._queues_of(topic, number)
        return by_hash(queues, _NO_MESSAGE, where)

    def _queues_of(self, topic: str, number: int) -> tuple[MessageQueue, ...]:
        """The queues of a topic; a name server that knows none is asked again. Raises RowNotSent."""
        since = monotonic()
        while True:
            try:
                queues = self._producer.fetch_publish_queues(topic)
                if queues:
                    return queues
                raise RouteNotFound(f"topic {topic} has no queue that may be written")
            except RocketError as error:
                if not self._is_patient(since, error):
                    raise self._failed((number,), topic, error) from error
            self._sleep()


_NO_MESSAGE: Final = Message("any", b"-")
"""`by_hash` looks at the key alone."""
