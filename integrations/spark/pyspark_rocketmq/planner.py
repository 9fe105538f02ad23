"""Plans a read on the driver: asks the servers for offsets and returns ranges for the executors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic, sleep
from typing import Final, TypeVar

from pyspark_rocketmq.offsets import EARLIEST, LATEST, Offsets, QueueName, QueueRange
from pyspark_rocketmq.options import SourceOptions
from rocketpy import MessageExt, MessageQueue, Retry
from rocketpy.errors import ConfigInvalid, RocketError
from rocketpy.sync import PullConsumer

_PAGE: Final = 32
_PAUSE_S: Final = 0.2

T = TypeVar("T")

log = logging.getLogger("pyspark_rocketmq")


class DataLoss(RuntimeError):
    """Messages were deleted or cannot be decoded, and option failOnDataLoss is true."""


class Planner:
    """Looks up queues and their offsets.

    Every method raises RocketError if a server is unavailable. All methods except `ends` retry for
    `pullTimeoutMs`, as tasks do.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._consumer = PullConsumer(
            options.group, config=options.consumer_config(), client=options.connection.client_config()
        )
        self._consumer.start(wait=False)  # requests are retried for `pullTimeoutMs`

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def starting(self) -> Offsets:
        """The starting offsets of a stream, resolved from the options."""
        return self._starting(self._queues())

    def batch_ranges(self) -> list[QueueRange]:
        """The ranges of a batch read. Raises DataLoss."""
        # List queues once, so that each has both a start and an end.
        queues = self._queues()
        options = self._options
        start = self._starting(queues)
        end = self._resolve("endingOffsets", options.ending, options.ending_ms, queues)
        for queue, stop in end.items():
            # The end precedes the start: the range is empty, and no message is lost.
            if stop < start[queue] <= self._last(_queue(queue)):
                end[queue] = start[queue]
        return self.ranges(start, end)

    def now(self) -> Offsets:
        """The current end of every queue."""
        return self._resolve("", LATEST, 0, self._queues())

    def ends(self, known: Mapping[QueueName, int]) -> Offsets:
        """The current ends of the available queues, and the known offsets of the others.

        If a broker is unavailable, or only a lagging slave responds, its queue keeps the known offset. A new
        queue is omitted until its broker responds. Raises RocketError for a topic without known queues.
        """
        found = dict(known)
        for topic in self._options.topics:
            try:
                queues = self._consumer.fetch_queues(topic)
            except RocketError as error:
                if all(queue.topic != topic for queue in known):
                    raise
                log.warning("topic %s is not read until its broker responds again: %s", topic, error)
                continue
            for queue in queues:
                try:
                    found[_name(queue)] = self._end(queue, known.get(_name(queue), 0))
                except RocketError as error:
                    log.warning("%s is not read until its broker responds again: %s", _name(queue), error)
        return found

    def _end(self, queue: MessageQueue, read: int) -> int:
        end = self._consumer.max_offset(queue)
        # A slave may lag behind the master; only the master's end proves a loss.
        return end if end >= read else self._consumer.max_offset(queue, of_master=True)

    def first(self, queue: QueueName) -> int:
        """The oldest offset of a queue."""
        return self._oldest(_queue(queue))

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
        """Return the ranges between two sets of offsets, without lost messages.

        A new queue starts at its oldest message. Raises DataLoss.
        """
        ranges = []
        for queue, stop in sorted(end.items()):
            begin = start.get(queue)
            if begin is None:
                begin = self.first(queue)
            elif begin > stop:
                report_loss(
                    self._options,
                    f"{queue} ends at {stop}, but was read up to {begin}; "
                    "was the topic deleted and created again?",
                )
                begin = self.first(queue)
            elif begin < stop and begin < (oldest := self.first(queue)):
                lost = min(oldest, stop)
                loss = f"{queue} lost offsets {begin} to {lost - 1}: its oldest is {oldest}"
                report_loss(self._options, loss)
                begin = lost
            ranges.append(QueueRange(queue, begin, max(begin, stop)))
        return ranges

    def _starting(self, queues: Sequence[MessageQueue]) -> Offsets:
        options = self._options
        return self._resolve("startingOffsets", options.starting, options.starting_ms, queues)

    def _resolve(
        self, name: str, wanted: int | Offsets, time_ms: int, queues: Sequence[MessageQueue]
    ) -> Offsets:
        found: Offsets = {}
        if isinstance(wanted, dict) and not time_ms:
            self._check_names(name, wanted, {_name(queue) for queue in queues})
        for queue in queues:
            if time_ms:
                found[_name(queue)] = self._first_since(queue, time_ms)
                continue
            offset = wanted if isinstance(wanted, int) else wanted[_name(queue)]
            if offset == EARLIEST:
                offset = self._oldest(queue)
            elif offset == LATEST:
                offset = self._last(queue)
            found[_name(queue)] = offset
        return found

    def _first_since(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the first message stored at or after a time; the queue's end if there is none.

        A broker's search returns the nearest message on either side, and any of several in one millisecond.
        """
        oldest = self._oldest(queue)
        offset = max(oldest, self._with_retries(partial(self._consumer.search_offset, queue, time_ms)))
        while page := self._pull(queue, offset, _PAGE):
            later = [message.queue_offset for message in page if message.store_timestamp >= time_ms]
            if later:
                offset = later[0]
                break
            offset = page[-1].queue_offset + 1
        while offset > oldest:
            page = self._between(queue, max(oldest, offset - _PAGE), offset)
            later = [message.queue_offset for message in page if message.store_timestamp >= time_ms]
            if not later:
                break
            offset = later[0]
        return offset

    def _between(self, queue: MessageQueue, begin: int, end: int) -> list[MessageExt]:
        """The messages of a range; a broker may need several pulls for large ones."""
        found: list[MessageExt] = []
        while begin < end and (page := self._pull(queue, begin, end - begin)):
            begin = page[-1].queue_offset + 1
            found += [message for message in page if message.queue_offset < end]
        return found

    def _check_names(self, name: str, wanted: Offsets, queues: set[QueueName]) -> None:
        """Require an offset for every queue and for no other, as Spark's Kafka source does."""
        if missing := sorted(queues - wanted.keys()):
            raise ConfigInvalid(
                f"option {name} lacks {', '.join(map(str, missing))}; -2 is earliest, -1 latest"
            )
        if unknown := sorted(wanted.keys() - queues):
            raise ConfigInvalid(
                f"option {name} has {', '.join(map(str, unknown))}, which the topic does not have"
            )

    # -- requests -----------------------------------------------------------------------------

    def _with_retries(self, request: Callable[[], T]) -> T:
        """Retry while a server restarts."""
        until = monotonic() + self._options.pull_timeout_ms / 1000
        while True:
            try:
                return request()
            except RocketError as error:
                if error.retry is Retry.NONE or monotonic() > until:
                    raise
                log.info("retrying: %s", error)
            sleep(_PAUSE_S)

    def _queues(self) -> list[MessageQueue]:
        fetch = self._consumer.fetch_queues
        topics = self._options.topics
        return [queue for topic in topics for queue in self._with_retries(partial(fetch, topic))]

    def _oldest(self, queue: MessageQueue) -> int:
        return self._with_retries(partial(self._consumer.min_offset, queue))

    def _last(self, queue: MessageQueue) -> int:
        return self._with_retries(partial(self._consumer.max_offset, queue))

    def _pull(self, queue: MessageQueue, offset: int, count: int) -> list[MessageExt]:
        return self._with_retries(partial(self._consumer.pull, queue, offset, count)).messages


def report_loss(options: SourceOptions, loss: str) -> None:
    """Report lost messages: raise DataLoss, or log a warning if option failOnDataLoss is false."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{loss} (set failOnDataLoss=false to continue with the available messages)")
    log.warning("%s; continuing with the available messages", loss)


def _name(queue: MessageQueue) -> QueueName:
    return QueueName(queue.topic, queue.broker_name, queue.queue_id)


def _queue(name: QueueName) -> MessageQueue:
    return MessageQueue(*name)
