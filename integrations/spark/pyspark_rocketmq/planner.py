"""Which offsets a read covers: asked of the servers by the driver, cut into partitions for the executors."""

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
    """Messages are no longer there or cannot be decoded, and option failOnDataLoss is true."""


class Planner:
    """Asks for queues and their ends.

    Every method raises RocketError when a server cannot be asked. But for `ends` it is asked again for
    `pullTimeoutMs`, as by tasks.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._consumer = PullConsumer(
            options.group, config=options.consumer_config(), client=options.connection.client_config()
        )
        self._consumer.start(wait=False)  # the questions are asked again for `pullTimeoutMs`

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def starting(self) -> Offsets:
        """Where a stream begins: the options, resolved."""
        return self._starting(self._queues())

    def whole(self) -> list[QueueRange]:
        """What a batch read covers. Raises DataLoss."""
        # Listed once: a broker that is leaving must not have a beginning and no end.
        queues = self._queues()
        options = self._options
        start = self._starting(queues)
        end = self._resolve("endingOffsets", options.ending, options.ending_ms, queues)
        for queue, stop in end.items():
            # Between two places that the queue has in another order lies nothing; nothing is lost.
            if stop < start[queue] <= self._last(_queue(queue)):
                end[queue] = start[queue]
        return self.ranges(start, end)

    def now(self) -> Offsets:
        """The current end of every queue."""
        return self._resolve("", LATEST, 0, self._queues())

    def ends(self, known: Mapping[QueueName, int]) -> Offsets:
        """The current ends of the queues that can be asked, and the known ones of the others.

        A queue whose broker is away, or has but a slave that is behind, keeps its known offset, and a new one
        is left out: what it has will be read when the broker is back. Raises RocketError for a topic of which
        nothing is known.
        """
        found = dict(known)
        for topic in self._options.topics:
            try:
                queues = self._consumer.fetch_queues(topic)
            except RocketError as error:
                if all(queue.topic != topic for queue in known):
                    raise
                log.warning("topic %s is not read further for now: %s", topic, error)
                continue
            for queue in queues:
                try:
                    found[_name(queue)] = self._end(queue, known.get(_name(queue), 0))
                except RocketError as error:
                    log.warning("%s is not read further for now: %s", _name(queue), error)
        return found

    def _end(self, queue: MessageQueue, read: int) -> int:
        end = self._consumer.max_offset(queue)
        # A slave may be behind what was read from its master; only that can say that messages are lost.
        return end if end >= read else self._consumer.max_offset(queue, of_master=True)

    def first(self, queue: QueueName) -> int:
        """The oldest offset that a queue still has."""
        return self._oldest(_queue(queue))

    def commit(self, offsets: Mapping[QueueName, int]) -> None:
        """Store the group's offsets, for whoever watches them. What cannot be stored is logged."""
        for queue, offset in offsets.items():
            try:
                self._consumer.commit(_queue(queue), offset)
            except RocketError as error:
                log.warning("%s: group %s has no newer offset: %s", queue, self._options.group, error)

    def ranges(self, start: Mapping[QueueName, int], end: Mapping[QueueName, int]) -> list[QueueRange]:
        """What lies between two sets of offsets, less what is lost.

        A new queue begins with its oldest message. Raises DataLoss.
        """
        ranges = []
        for queue, stop in sorted(end.items()):
            begin = start.get(queue)
            if begin is None:
                begin = self.first(queue)
            elif begin > stop:
                complain(
                    self._options,
                    f"{queue} ends at {stop}, and was read up to {begin} before; was the topic made anew?",
                )
                begin = self.first(queue)
            elif begin < stop and begin < (oldest := self.first(queue)):
                lost = min(oldest, stop)
                complain(self._options, f"{queue} lost offsets {begin} to {lost - 1}: its oldest is {oldest}")
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
        """The offset of the first message stored at a time or later; the queue's end when there is none.

        A broker's search gives the nearest message, on either side, and any of several of one millisecond.
        """
        oldest = self._oldest(queue)
        offset = max(oldest, self._patiently(partial(self._consumer.search_offset, queue, time_ms)))
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
        """As Spark's Kafka source: offsets are given for each queue or for none."""
        if missing := sorted(queues - wanted.keys()):
            raise ConfigInvalid(
                f"option {name} lacks {', '.join(map(str, missing))}; -2 is earliest, -1 latest"
            )
        if unknown := sorted(wanted.keys() - queues):
            raise ConfigInvalid(f"option {name} has {', '.join(map(str, unknown))}, which the topic has not")

    # -- asking -------------------------------------------------------------------------------

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask until there is an answer, while a broker or name server restarts."""
        until = monotonic() + self._options.pull_timeout_ms / 1000
        while True:
            try:
                return ask()
            except RocketError as error:
                if error.retry is Retry.NONE or monotonic() > until:
                    raise
                log.info("asking again: %s", error)
            sleep(_PAUSE_S)

    def _queues(self) -> list[MessageQueue]:
        ask = self._consumer.fetch_queues
        return [queue for topic in self._options.topics for queue in self._patiently(partial(ask, topic))]

    def _oldest(self, queue: MessageQueue) -> int:
        return self._patiently(partial(self._consumer.min_offset, queue))

    def _last(self, queue: MessageQueue) -> int:
        return self._patiently(partial(self._consumer.max_offset, queue))

    def _pull(self, queue: MessageQueue, offset: int, count: int) -> list[MessageExt]:
        return self._patiently(partial(self._consumer.pull, queue, offset, count)).messages


def complain(options: SourceOptions, loss: str) -> None:
    """Messages are lost: raise DataLoss, or log it where option failOnDataLoss is false."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{loss} (failOnDataLoss=false reads on from what there is)")
    log.warning("%s; reading on from what there is", loss)


def _name(queue: MessageQueue) -> QueueName:
    return QueueName(queue.topic, queue.broker_name, queue.queue_id)


def _queue(name: QueueName) -> MessageQueue:
    return MessageQueue(*name)
