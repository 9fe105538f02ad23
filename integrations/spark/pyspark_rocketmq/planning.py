"""Which offsets a read covers: asked of the servers by the driver, cut into partitions for the executors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from pyspark_rocketmq.offsets import EARLIEST, LATEST, Offsets, QueueName, QueueRange
from pyspark_rocketmq.options import SourceOptions
from rocketpy import MessageQueue
from rocketpy.errors import ConfigInvalid, RocketError
from rocketpy.sync import PullConsumer

__all__ = ["DataLoss", "Planner", "complain"]

_PAGE: Final = 32

log = logging.getLogger("pyspark_rocketmq")


class DataLoss(RuntimeError):
    """Messages that were to be read are no longer there, and option failOnDataLoss is true."""


class Planner:
    """Asks for queues and their ends.

    Every method raises RocketError when a server cannot be asked.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._consumer = PullConsumer(
            options.group, config=options.consumer_config(), client=options.connection.client_config()
        )
        self._consumer.start()

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def starting(self) -> Offsets:
        """Where the read begins: the options, resolved."""
        options = self._options
        return self._resolve("startingOffsets", options.starting, options.starting_ms)

    def ending(self) -> Offsets:
        """Where a batch read ends."""
        options = self._options
        return self._resolve("endingOffsets", options.ending, options.ending_ms)

    def ends(self, known: Mapping[QueueName, int]) -> Offsets:
        """The current end of every queue, those of `known` included.

        A queue whose broker is away keeps its known offset: what it has will be read when it is back.
        """
        found = dict(known)
        for queue in self._queues():
            try:
                found[_name(queue)] = self._consumer.max_offset(queue)
            except RocketError as error:
                if _name(queue) not in known:
                    raise
                log.warning("%s is not read further for now: %s", queue, error)
        return found

    def first(self, queue: QueueName) -> int:
        """The oldest offset that a queue still has."""
        return self._consumer.min_offset(_queue(queue))

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

    def _queues(self) -> list[MessageQueue]:
        return [queue for topic in self._options.topics for queue in self._consumer.fetch_queues(topic)]

    def _resolve(self, name: str, wanted: int | Offsets, time_ms: int) -> Offsets:
        found: Offsets = {}
        queues = self._queues()
        if isinstance(wanted, dict) and not time_ms:
            self._check_names(name, wanted, {_name(queue) for queue in queues})
        for queue in queues:
            if time_ms:
                found[_name(queue)] = self._first_since(queue, time_ms)
                continue
            offset = wanted if isinstance(wanted, int) else wanted[_name(queue)]
            if offset == EARLIEST:
                offset = self._consumer.min_offset(queue)
            elif offset == LATEST:
                offset = self._consumer.max_offset(queue)
            found[_name(queue)] = offset
        return found

    def _first_since(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the first message stored at a time or later; the queue's end when there is none.

        A broker's search gives the nearest message, on either side, and any of several of one millisecond.
        """
        oldest = self._consumer.min_offset(queue)
        offset = max(oldest, self._consumer.search_offset(queue, time_ms))
        while page := self._consumer.pull(queue, offset, _PAGE).messages:
            later = [message.queue_offset for message in page if message.store_timestamp >= time_ms]
            if later:
                offset = later[0]
                break
            offset = page[-1].queue_offset + 1
        while offset > oldest:
            begin = max(oldest, offset - _PAGE)
            page = self._consumer.pull(queue, begin, offset - begin).messages
            later = [m.queue_offset for m in page if m.store_timestamp >= time_ms and m.queue_offset < offset]
            if not later:
                break
            offset = later[0]
        return offset

    def _check_names(self, name: str, wanted: Offsets, queues: set[QueueName]) -> None:
        """As Spark's Kafka source: offsets are given for each queue or for none."""
        if missing := sorted(queues - wanted.keys()):
            raise ConfigInvalid(
                f"option {name} lacks {', '.join(map(str, missing))}; -2 is earliest, -1 latest"
            )
        if unknown := sorted(wanted.keys() - queues):
            raise ConfigInvalid(f"option {name} has {', '.join(map(str, unknown))}, which the topic has not")


def complain(options: SourceOptions, loss: str) -> None:
    """Messages are lost: raise DataLoss, or log it where option failOnDataLoss is false."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{loss} (failOnDataLoss=false reads on from what there is)")
    log.warning("%s; reading on from what there is", loss)


def _name(queue: MessageQueue) -> QueueName:
    return QueueName(queue.topic, queue.broker_name, queue.queue_id)


def _queue(name: QueueName) -> MessageQueue:
    return MessageQueue(*name)
