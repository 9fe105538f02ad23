"""Plans a read on the driver: asks the servers for offsets and returns ranges for the executors.

Tasks get fixed ranges, so that one that Spark repeats reads the same messages again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic, sleep
from typing import Final, TypeVar

from pyspark_rocketmq.offsets import EARLIEST, LATEST, Offsets, Position, QueueName, QueueRange
from pyspark_rocketmq.options import SourceOptions
from rocketpy import MessageQueue, Retry, Sql
from rocketpy.errors import BrokerError, ConfigInvalid, RocketError, TransportError
from rocketpy.sync import PullConsumer

_PAGE: Final = 32
"""Messages per pull, when messages are searched by time."""
_RETRY_PAUSE_S: Final = 0.2
_CONCURRENCY: Final = 16
"""Maximum number of concurrent requests about queues: a topic may have hundreds."""

T = TypeVar("T")

log = logging.getLogger("pyspark_rocketmq")


class DataLoss(RuntimeError):
    """Option failOnDataLoss is true, and messages would be missing from the result without a notice.

    They were deleted, cannot be decoded, or are on a broker that is not available.
    """


class Planner:
    """Looks up queues and their offsets.

    Methods raise RocketError if a server stays unavailable for `deliveryTimeoutMs`, as tasks do. Those that
    raise DataLoss for an unavailable broker leave out its queues if option failOnDataLoss is false.
    `available_ends` and `commit` do not retry; they log a warning for each unavailable queue.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._consumer = PullConsumer(
            options.group, config=options.consumer_config(), client=options.connection.client_config()
        )
        self._consumer.start(wait=False)  # requests are retried for `deliveryTimeoutMs`
        self._reported: AbstractSet[QueueName] = frozenset()

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def starting_offsets(self) -> Offsets:
        """Return the starting offsets of a stream, resolved from the options.

        Raises ConfigInvalid, DataLoss.
        """
        self._check_filter()
        return self._starting_offsets(self._queues())

    def batch_ranges(self) -> list[QueueRange]:
        """Return the ranges of a batch read. Raises ConfigInvalid, DataLoss."""
        self._check_filter()
        # List queues once, so that each has both a start and an end.
        queues = self._queues()
        start = self._starting_offsets(queues)
        end = self._resolve(self._options.ending, queues, among=start)
        reversed_ = [queue for queue, stop in end.items() if stop < start[queue]]
        for queue, last in self._each(self._consumer.max_offset, reversed_).items():
            # The end precedes the start: the range is empty, and no message is lost.
            if start[queue] <= last:
                end[queue] = start[queue]
        return self.ranges(start, end)

    def latest_offsets(self) -> Offsets:
        """Return the current end of every queue. Raises DataLoss."""
        return self._resolve(Position("", LATEST), self._queues())

    def ends_of(self, known: Mapping[QueueName, int]) -> Offsets:
        """Return the current ends of these queues, which were read up to these offsets. Raises DataLoss."""
        return self._each(lambda queue: self._end(queue, known[queue_name(queue)]), known, may_omit=True)

    def available_ends(self, known: Mapping[QueueName, int]) -> Offsets:
        """Return the current ends of the available queues.

        Queues of a broker that does not respond, or is not registered, are omitted. known: the next offset to
        read of each queue; if a slave reports a lower end, the master is asked. If the queues of a topic
        cannot be looked up, the topic is omitted. Raises RocketError instead if no pattern selects the topic
        and `known` has no queue of it.
        """
        queues: list[QueueName] = []
        for topic in self._topics_or_known(known):
            try:
                queues += self._queues_of(topic)
            except RocketError as error:
                if self._options.pattern is None and all(queue.topic != topic for queue in known):
                    raise
                log.warning("topic %s is not read until its queues can be looked up again: %s", topic, error)
        if missing := known.keys() - queues - self._reported:
            log.warning("%s: not read until a name server lists a broker that has them", _names(missing))
        self._reported = known.keys() - queues
        unavailable: set[str] = set()

        def end(queue: QueueName) -> int | None:
            if queue.broker in unavailable:
                return None
            try:
                return self._end(_queue(queue), known.get(queue, 0))
            except RocketError as error:
                log.warning("%s is not read until its broker responds again: %s", queue, error)
                if isinstance(error, TransportError):
                    unavailable.add(queue.broker)
                return None

        with ThreadPoolExecutor(_CONCURRENCY) as threads:
            ends = zip(queues, threads.map(end, queues), strict=True)
            return {queue: offset for queue, offset in ends if offset is not None}

    def _end(self, queue: MessageQueue, read: int) -> int:
        end = self._consumer.max_offset(queue)
        # A slave may lag behind the master; only the master's end proves a loss.
        return end if end >= read else self._consumer.max_offset(queue, of_master=True)

    def earliest_offsets(self, queues: Collection[QueueName]) -> Offsets:
        """Return the oldest offsets of queues."""
        return self._each(self._consumer.min_offset, queues)

    def commit(self, offsets: Mapping[QueueName, int]) -> None:
        """Commit the group's offsets, for monitoring tools. Failures are logged."""
        for queue, offset in offsets.items():
            try:
                self._consumer.commit(_queue(queue), offset)
            except RocketError as error:
                log.warning(
                    "%s: the offset of group %s was not committed: %s", queue, self._options.group, error
                )

    def ranges(self, start: Mapping[QueueName, int], end: Mapping[QueueName, int]) -> list[QueueRange]:
        """Return the ranges between two sets of offsets.

        A new queue starts at its oldest message. Tasks report messages that were deleted before they were
        read. Raises DataLoss for a queue that ends before its start.
        """
        shrunk = [queue for queue, stop in end.items() if start.get(queue, stop) > stop]
        for queue in shrunk:
            report_loss(
                self._options,
                f"{queue} ends at {end[queue]}, but was read up to {start[queue]}; "
                "was the topic deleted and created again?",
            )
        begins = {**start, **self.earliest_offsets([*(end.keys() - start.keys()), *shrunk])}
        return [
            QueueRange(queue, begins[queue], max(begins[queue], stop)) for queue, stop in sorted(end.items())
        ]

    def _starting_offsets(self, queues: Collection[QueueName]) -> Offsets:
        options = self._options
        return self._resolve(options.starting, queues, needs_match=options.needs_match)

    def _resolve(
        self,
        position: Position,
        queues: Collection[QueueName],
        *,
        needs_match: bool = False,
        among: Collection[QueueName] | None = None,
    ) -> Offsets:
        """Return the offsets of a position, of all queues or of those in `among`.

        needs_match: a time without a message raises ConfigInvalid. Queues are missing from the result if
        their broker is unavailable and option failOnDataLoss is false.
        """
        option, wanted, is_time = position
        if isinstance(wanted, dict):
            self._check_names(
                option, wanted, set(queues), hint="" if is_time else "; -2 is earliest, -1 latest"
            )
        else:
            wanted = dict.fromkeys(queues, wanted)
        if among is not None:
            queues = among
        if is_time:

            def first_since(queue: MessageQueue) -> int:
                time_ms = wanted[queue_name(queue)]
                offset, is_match = self._first_since(queue, time_ms)
                if needs_match and not is_match:
                    raise ConfigInvalid(
                        f"option {option}: {queue_name(queue)} has no message stored at or after {time_ms}; "
                        "set startingOffsetsByTimestampStrategy to latest to begin with its next message"
                    )
                return offset

            return self._each(first_since, queues, may_omit=True)
        oldest, last = (
            self._each(request, [queue for queue in queues if wanted[queue] == end], may_omit=True)
            for request, end in ((self._consumer.min_offset, EARLIEST), (self._consumer.max_offset, LATEST))
        )
        return {queue: wanted[queue] for queue in queues if wanted[queue] >= 0} | oldest | last

    def _first_since(self, queue: MessageQueue, time_ms: int) -> tuple[int, bool]:
        """Return (offset, True) of the first message stored at or after a time, or (end of the queue, False).

        The search of a broker of RocketMQ before 5.1.1 may return an earlier message.
        """
        offset = max(self._consumer.min_offset(queue), self._consumer.search_offset(queue, time_ms))
        while page := self._consumer.pull(queue, offset, _PAGE).messages:
            for message in page:
                if message.store_timestamp >= time_ms:
                    return message.queue_offset, True
            offset = page[-1].queue_offset + 1
        return offset, False

    def _check_names(self, name: str, wanted: Offsets, queues: set[QueueName], hint: str) -> None:
        """Require a value for every queue and for no other, as Spark's Kafka source does.

        `_queues` has reported the queues of absent brokers.
        """
        brokers = _brokers(queues)
        if missing := queues - wanted.keys():
            raise ConfigInvalid(f"option {name} lacks {_names(missing)}{hint}")
        unknown = {
            queue
            for queue in wanted.keys() - queues
            if queue not in self._options.named_queues or (queue.topic, queue.broker) in brokers
        }
        if unknown:
            raise ConfigInvalid(f"option {name} has {_names(unknown)}, which the topic does not have")

    # -- requests -----------------------------------------------------------------------------

    def _check_filter(self) -> None:
        """Let brokers compile the condition: an invalid one would fail every task. Raises ConfigInvalid."""
        sql = self._options.sql
        deadline = self._deadline()
        for topic in _with_retries(self._topics, deadline) if sql else ():
            try:
                _with_retries(partial(self._consumer.check_filter, topic, Sql(sql)), deadline)
            except BrokerError as error:
                raise ConfigInvalid(
                    f"option subExpression is {sql!r}, which {error.broker} does not accept: {error.remark} "
                    "(brokers filter by SQL92 only with enablePropertyFilter=true)"
                ) from None

    def _topics(self) -> Sequence[str]:
        """Return the topics to read: those of the options, or the present ones that match the pattern."""
        if self._options.pattern is None:
            return self._options.topics
        return list(filter(self._options.selects, self._consumer.fetch_topics()))

    def _topics_or_known(self, known: Mapping[QueueName, int]) -> Sequence[str]:
        try:
            return self._topics()
        except RocketError as error:
            log.warning("new topics are not found until a name server responds again: %s", error)
            return sorted({queue.topic for queue in known})

    def _queues_of(self, topic: str) -> list[QueueName]:
        assigned = self._options.assigned
        queues = map(queue_name, self._consumer.fetch_queues(topic))
        return [queue for queue in queues if not assigned or queue in assigned]

    def _queues(self) -> list[QueueName]:
        """Return the queues to read.

        Waits for the brokers that the options name: a name server forgets a broker that stops. Raises
        ConfigInvalid if a broker lacks a queue that option `assign` names, and DataLoss.
        """
        deadline = self._deadline()
        topics = _with_retries(self._topics, deadline)
        while True:
            queues = [
                queue
                for topic in topics
                for queue in _with_retries(partial(self._queues_of, topic), deadline)
            ]
            brokers = _brokers(queues)
            absent = {
                queue for queue in self._options.named_queues if (queue.topic, queue.broker) not in brokers
            }
            if not absent or monotonic() > deadline:
                break
            log.info("waiting until a name server lists a broker that has %s", _names(absent))
            sleep(_RETRY_PAUSE_S)
        if missing := self._options.assigned.difference(queues, absent):
            raise ConfigInvalid(f"option assign has {_names(missing)}, which no running broker has")
        if absent:
            report_loss(self._options, f"no name server lists a broker that has {_names(absent)}")
        return queues

    def _each(
        self,
        request: Callable[[MessageQueue], int],
        queues: Collection[QueueName],
        *,
        may_omit: bool = False,
    ) -> Offsets:
        """Make a request about each queue, several at the same time, with retries. Raises RocketError.

        may_omit: report the queues of unavailable brokers as a loss instead, and omit them.
        """
        deadline = self._deadline()
        unavailable: dict[str, RocketError] = {}

        def request_one(queue: QueueName) -> int | None:
            if queue.broker in unavailable:
                return None
            try:
                return _with_retries(partial(request, _queue(queue)), deadline)
            except RocketError as error:
                if error.retry is Retry.NONE or not may_omit:
                    raise
                unavailable[queue.broker] = error
                return None

        with ThreadPoolExecutor(_CONCURRENCY) as threads:
            found = dict(zip(queues, threads.map(request_one, queues), strict=True))
        for broker, error in sorted(unavailable.items()):
            left_out = [queue for queue, offset in found.items() if offset is None and queue.broker == broker]
            report_loss(
                self._options,
                f"broker {broker} was not available for {self._options.delivery_timeout_ms} ms "
                f"(deliveryTimeoutMs), so {_names(left_out)} cannot be read: {error}",
            )
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def _deadline(self) -> float:
        """Return the monotonic time after which the requests of a call are not retried, in seconds."""
        return monotonic() + self._options.delivery_timeout_ms / 1000


def _with_retries(request: Callable[[], T], deadline: float) -> T:
    """Make a request, with retries until the deadline. Raises RocketError then, or if a retry cannot help."""
    while True:
        try:
            return request()
        except RocketError as error:
            if error.retry is Retry.NONE or monotonic() > deadline:
                raise
            log.info("retrying: %s", error)
        sleep(_RETRY_PAUSE_S)


def report_loss(options: SourceOptions, loss: str) -> None:
    """Report lost messages: raise DataLoss, or log a warning if option failOnDataLoss is false."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{loss} (set failOnDataLoss=false to continue with the available messages)")
    log.warning("%s; continuing with the available messages", loss)


def _brokers(queues: Iterable[QueueName]) -> set[tuple[str, str]]:
    """Return topic and broker of each queue."""
    return {(queue.topic, queue.broker) for queue in queues}


def _names(queues: Iterable[QueueName]) -> str:
    return ", ".join(map(str, sorted(queues)))


def queue_name(queue: MessageQueue) -> QueueName:
    """Return the name of a queue."""
    return QueueName(queue.topic, queue.broker_name, queue.queue_id)


def _queue(name: QueueName) -> MessageQueue:
    return MessageQueue(*name)
