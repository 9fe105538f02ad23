"""Sends the rows of one task, from the data source or `mapInArrow`.

Rows for one topic, or for one queue if the row names it, are sent in batches. Several batches are in flight
while the next one is built, bounded by requests and by bytes. A queue that rows name has one request in
flight: brokers from 4.9 on may store pipelined requests in another order. The timeout of a request starts
when it is written. The task ends after the last acknowledgement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pyspark_rocketmq.clients import freeze_modules, producer_for
from pyspark_rocketmq.options import SinkOptions
from pyspark_rocketmq.rows_to_messages import Columns, Ids, QueueChoice, RowNotSent
from rocketpy import Message, MessageQueue, Retry, RocketError, SendResult, SendStatus, by_hash
from rocketpy.client.client_ids import ip_of
from rocketpy.errors import (
    BatchIncomplete,
    BrokerError,
    MessageInvalid,
    MessageTooLarge,
    RouteNotFound,
)
from rocketpy.message.encoded import EncodedBatch
from rocketpy.protocol.codes import ResponseCode
from rocketpy.results import BatchResults
from rocketpy.sync import Producer
from rocketpy.telemetry import continued

_NO_BATCHES: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})
"""Response codes of a broker that rejects batches (4.6 with DLedger), or this batch; nothing is stored."""
_INVALID: Final = (MessageInvalid, MessageTooLarge)
"""Errors of the producer for one message of a batch, of which it has sent nothing."""
_FINAL_CODES: Final = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST})
"""Codes that a retry here cannot fix: the producer already tried other brokers."""
_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 3.0
_SINGLES_PER_REQUEST: Final = 16
"""Number of single rows in flight that count as one request, since a batch has many rows."""


@dataclass(frozen=True, slots=True)
class TaskId:
    """Identifies the rows of a task; the same for every attempt of the task and the batch."""

    run_id: str
    """The id of the query or of one batch write."""
    batch_id: int
    """The micro-batch; 0 in a batch write."""
    partition: int

    @property
    def prefix(self) -> str:
        """Prefix of the row ids; the row number follows."""
        return f"{self.run_id}/{self.batch_id}/{self.partition}/"


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a task."""

    partition: int
    rows: int
    body_bytes: int
    """The total of all messages, before compression."""
    retried: int = 0
    """Rows that were sent again, counted for each retry; at most this number of duplicates may be stored."""


class _InFlight(NamedTuple):
    """Rows that are being sent."""

    numbers: Sequence[int]
    """Row numbers in the partition, ascending."""
    messages: Sequence[Message]
    queue: MessageQueue | None
    size: int
    """Bytes of the bodies."""
    future: Future[Any]
    first_sent: float
    """Monotonic time of the first attempt, in seconds."""
    last_sent: float
    """Monotonic time of the last attempt, in seconds."""


def send_rows(
    batches: Iterable[pa.RecordBatch], columns: Columns, options: SinkOptions, task_id: TaskId
) -> Report:
    """Send all rows of a task; return after the last acknowledgement.

    Raises RowNotSent for the first row that could not be sent, after all sends in flight have ended.
    """
    task = _Task(producer_for(options), options, task_id)
    rows = 0
    try:
        with continued(dict(options.trace_context)):
            for batch in batches:
                task.send_batch(batch, columns, rows)
                rows += batch.num_rows
                del batch  # before the next one is read: each may have 64 MiB
            task.finish()
    except RowNotSent as error:
        error.add_note(f"partition {task_id.partition} of batch {task_id.batch_id}, run {task_id.run_id}")
        raise
    finally:
        wait([sent.future for sent in task.in_flight])
    freeze_modules()
    return Report(task_id.partition, rows, task.body_bytes, task.retried)


class _Task:
    """The rows of one task that are in flight, bounded by requests and bytes."""

    def __init__(self, producer: Producer, options: SinkOptions, task_id: TaskId) -> None:
        self.in_flight: deque[_InFlight] = deque()
        self.body_bytes = 0
        self.retried = 0
        self._producer = producer
        self._options = options
        self._task_id = task_id
        host = producer.health().client_id.partition("@")[0]
        self._ids = Ids(task_id.prefix, ip_of(f"{host}:0"))
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._unbatched_topics: set[str] = set()
        self._bytes_in_flight = 0
        self._load = 0
        self._load_max = options.max_in_flight * _SINGLES_PER_REQUEST
        self._pause_s = _PAUSE_S
        self._paused_until = 0.0

    def send_batch(self, batch: pa.RecordBatch, columns: Columns, first_row: int) -> None:
        """Send the rows of one Arrow batch. Raises RowNotSent."""
        for request in columns.split_into_requests(batch, first_row, self._find_queue):
            # Wait before the bodies are copied, to bound the memory.
            self._await_room(len(request.numbers), request.size, request.queue)
            messages = columns.messages(request, self._ids)
            self.body_bytes += request.size
            if request.is_delayed or request.topic in self._unbatched_topics:
                self._send_singly(request.numbers, messages, request.queue)
            else:
                self._submit(request.numbers, messages, request.queue, request.size)

    def finish(self) -> None:
        """Wait for all sends in flight. Raises RowNotSent."""
        while self.in_flight:
            self._await_oldest()

    # -- sending ------------------------------------------------------------------------------

    def _await_room(self, count: int, size: int, queue: MessageQueue | None) -> None:
        """Wait until the bounds allow a request of this many rows and bytes. Raises RowNotSent.

        queue: the queue that the rows name; no other request may be in flight for it.
        """
        load = _load_of(count)
        bytes_max = self._options.max_in_flight_bytes
        while self.in_flight and (
            self._load + load > self._load_max
            or self._bytes_in_flight + size > bytes_max
            or (queue is not None and any(sent.queue == queue for sent in self.in_flight))
        ):
            self._await_oldest()

    def _send_singly(
        self, numbers: Sequence[int], messages: Sequence[Message], queue: MessageQueue | None
    ) -> None:
        for number, message in zip(numbers, messages, strict=True):
            is_delayed = message.delay_level or message.deliver_at is not None
            self._await_room(1, len(message.body), None if is_delayed else queue)
            self._submit((number,), (message,), queue, len(message.body))

    def _submit(
        self,
        numbers: Sequence[int],
        messages: Sequence[Message],
        queue: MessageQueue | None,
        size: int,
        first_sent: float | None = None,
    ) -> None:
        """Pass rows to the producer. first_sent: time of the first attempt; None: now. Raises RowNotSent."""
        future: Future[Any]
        now = monotonic()
        first = now if first_sent is None else first_sent
        options = self._options
        left_ms = options.delivery_timeout_ms - int((now - first) * 1000)
        timeout_ms = max(left_ms, options.send_timeout_ms)
        try:
            if len(messages) == 1:
                future = self._producer.send_async(messages[0], queue=queue, timeout_ms=timeout_ms)
            elif isinstance(messages, EncodedBatch):
                future = self._producer.send_encoded_async(messages, queue=queue, timeout_ms=timeout_ms)
            else:
                future = self._producer.send_batch_async(messages, queue=queue, timeout_ms=timeout_ms)
        except _INVALID as error:
            if len(messages) == 1:
                raise self._failed(numbers, messages[0].topic, error) from error
            self._send_singly(numbers, messages, queue)
            return
        except RocketError as error:
            raise self._failed(numbers, messages[0].topic, error) from error
        self.in_flight.append(_InFlight(numbers, messages, queue, size, future, first, now))
        self._load += _load_of(len(messages))
        self._bytes_in_flight += size

    # -- results and retries ------------------------------------------------------------------

    def _await_oldest(self) -> None:
        """Wait for the oldest send. Raises RowNotSent."""
        sent = self.in_flight.popleft()
        self._load -= _load_of(len(sent.messages))
        self._bytes_in_flight -= sent.size
        try:
            result: SendResult | Sequence[SendResult] = sent.future.result()
        except BatchIncomplete as error:
            stored = len(error.results)
            self._check(sent.numbers[:stored], error.results)
            messages = sent.messages[stored:]
            size = sum(len(message.body) for message in messages)
            rest = sent._replace(numbers=sent.numbers[stored:], messages=messages, size=size)
            self._retry(rest, error.cause)
        except RocketError as error:
            self._retry(sent, error)
        else:
            self._pause_s = _PAUSE_S
            self._check(sent.numbers, [result] if isinstance(result, SendResult) else result)

    def _retry(self, sent: _InFlight, error: RocketError) -> None:
        """Send rejected rows again. Raises RowNotSent if a retry cannot help."""
        self.retried += (error.attempts - 1) * len(sent.messages)
        if len(sent.messages) > 1 and isinstance(error, _INVALID):
            # A single send of each row names the invalid one, or has what a batch cannot have.
            self._send_singly(sent.numbers, sent.messages, sent.queue)
        elif len(sent.messages) > 1 and isinstance(error, BrokerError) and error.code in _NO_BATCHES:
            self._resend_singly(sent)
        elif not self._may_retry(sent.first_sent, error):
            raise self._failed(sent.numbers, sent.messages[0].topic, error) from error
        else:
            self._pause(sent)
            self.retried += len(sent.messages)
            self._submit(sent.numbers, sent.messages, sent.queue, sent.size, sent.first_sent)

    def _may_retry(self, first_sent: float, error: RocketError) -> bool:
        """Return whether to retry: the error is retryable and the delivery timeout has not passed."""
        if error.retry is Retry.NONE or (isinstance(error, BrokerError) and error.code in _FINAL_CODES):
            return False
        return monotonic() - first_sent + self._pause_s < self._options.delivery_timeout_ms / 1000

    def _pause(self, failed: _InFlight) -> None:
        """Wait before a retry. The pause doubles until a send succeeds.

        A send that started before the end of the last pause is retried without another one.
        """
        if failed.last_sent >= self._paused_until:
            self._sleep()
            self._paused_until = monotonic()

    def _sleep(self) -> None:
        sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)

    def _resend_singly(self, sent: _InFlight) -> None:
        """Send each row separately, after the broker rejected batches or one of the rows."""
        self._unbatched_topics.add(sent.messages[0].topic)
        self._send_singly(sent.numbers, sent.messages, sent.queue)

    def _check(self, numbers: Sequence[int], results: Sequence[SendResult]) -> None:
        """Count the producer's retries. With requireSendOk, raise RowNotSent unless all are SEND_OK."""
        if isinstance(results, BatchResults):
            self.retried += (results.attempts - 1) * len(results)
            if results.status is SendStatus.SEND_OK:
                return
        else:
            self.retried += sum([result.attempts for result in results]) - len(results)
        if not self._options.require_send_ok:
            return
        bad = [index for index, result in enumerate(results) if result.status is not SendStatus.SEND_OK]
        if bad:
            result = results[bad[0]]
            error = RuntimeError(
                f"{result.queue.broker_name} responded {result.status.value}: stored without the "
                "configured durability; set requireSendOk=false to accept this"
            )
            raise self._failed((numbers[bad[0]],), result.queue.topic, error)

    def _failed(self, numbers: Sequence[int], topic: str, error: BaseException) -> RowNotSent:
        rows = f"row {numbers[0]}" if len(numbers) == 1 else f"rows {numbers[0]} to {numbers[-1]}"
        return RowNotSent(f"{rows} of partition {self._task_id.partition}", topic, error)

    # -- queues -------------------------------------------------------------------------------

    def _find_queue(self, topic: str, choice: QueueChoice, number: int) -> MessageQueue | None:
        """Return the queue of a row; None for any. Raises RowNotSent if the topic has no queues."""
        if choice is None or not topic:
            return None
        if isinstance(choice, tuple):
            return MessageQueue(topic, *choice)
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = self._queues_of(topic, number)
        return by_hash(queues, _ANY_MESSAGE, choice)

    def _queues_of(self, topic: str, number: int) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic; retries while the name server knows none. Raises RowNotSent."""
        first_asked = monotonic()
        while True:
            try:
                queues = self._producer.fetch_publish_message_queues(topic)
                if queues:
                    return queues
                raise RouteNotFound(f"topic {topic} has no writable queue")
            except RocketError as error:
                if not self._may_retry(first_asked, error):
                    raise self._failed((number,), topic, error) from error
            self._sleep()


def _load_of(count: int) -> int:
    """Return the load of a request with this number of messages, in units of single messages."""
    return 1 if count == 1 else _SINGLES_PER_REQUEST


_ANY_MESSAGE: Final = Message("any", b"-")
"""`by_hash` uses only the key."""
