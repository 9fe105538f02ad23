"""ProcessQueue: the messages of one queue from their pull until they are handled. No I/O.

    pulled --add--> cached --finish--> removed        concurrent: in any order
    pulled --add--> cached, waiting --take--> cached --finish--> removed, or --put_back--> waiting    orderly

The messages of a pull are one batch, and most batches are finished in order, some messages at a time. Only a
batch that is finished in another order needs a dict of its messages, which costs an entry for each
(tools.bench.push).

The offset to commit is that of the first cached message. If no message is cached, it is the next offset to
pull: every message before it was handled, or did not match the subscription.

Source: RocketMQ 4.6 ProcessQueue. Differs: RocketMQ commits nothing before the first message of a queue was
handled or a pull found nothing. Here the offset where consumption began is committed immediately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from rocketpy.consumer.config import MemberConfig
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue, ProcessQueueInfo
from rocketpy.runtime.progress import Progress

LOCK_ALIVE_MS: Final = 30_000
"""How long a lock is valid after the broker granted it; the broker itself keeps it for 60 s.
RocketMQ: rocketmq.client.rebalance.lockMaxLiveTime."""
LOCK_INTERVAL_MS: Final = 20_000
"""How often locks are renewed. RocketMQ: the system property rocketmq.client.rebalance.lockInterval."""


class Limits:
    """Limits above which pulls wait. count: messages. size: bytes of bodies. span: offsets, or None."""

    __slots__ = ("count", "size", "span")

    def __init__(self, count: int, size: int, span: int | None) -> None:
        self.count: int = count
        self.size: int = size
        self.span: int | None = span


def limits_of(config: MemberConfig, count: int, span_max: int | None) -> Limits:
    """Return the limits of each of a member's `count` queues."""
    messages, size = config.queue_messages_max, config.queue_bytes_max
    if config.topic_messages_max is not None:
        messages = max(1, config.topic_messages_max // max(1, count))
    if config.topic_bytes_max is not None:
        size = max(1, config.topic_bytes_max // max(1, count))
    return Limits(messages, size, span_max)


class _PulledBatch:
    """The messages of one pull.

    messages: in the order of offsets.
    """

    __slots__ = ("done", "last", "left", "messages")

    def __init__(self, messages: Sequence[MessageExt]) -> None:
        self.messages: Final = messages
        self.last: Final = messages[-1].queue_offset
        """The highest offset."""
        self.done: int = 0
        """How many messages are finished, in order."""
        self.left: dict[int, MessageExt] | None = None
        """Unfinished messages by offset; None while messages are finished in order."""

    @property
    def first(self) -> int:
        """The lowest unfinished offset."""
        return self.messages[self.done].queue_offset if self.left is None else next(iter(self.left))


class ProcessQueue:
    """The cached messages of a queue.

    queue: with its namespace. next_offset: where the next pull begins. Times are in ms of a monotonic clock.
    """

    __slots__ = (
        "_batches",
        "_last",
        "_locked_ms",
        "_waiting",
        "consumed_ms",
        "count",
        "dropped",
        "lock",
        "next_offset",
        "pulled_ms",
        "queue",
        "size",
    )  # fmt: skip

    def __init__(self, queue: MessageQueue, next_offset: int, now_ms: int) -> None:
        self.queue: Final = queue
        self.next_offset: int = next_offset
        self.count: int = 0
        """Number of cached messages."""
        self.size: int = 0
        """Bytes of their bodies."""
        self.dropped: bool = False
        """Whether the queue was revoked; then no handler call begins any more."""
        self._locked_ms: int | None = None
        self.lock: Final = Progress(now_ms)  # without a lock, of the assignment, as in RocketMQ
        """The progress of its lock, for orderly consumption."""
        self.pulled_ms: int = now_ms
        """When the last pull began."""
        self.consumed_ms: int = now_ms
        """When messages were last finished."""
        self._batches: deque[_PulledBatch] = deque()
        self._waiting: deque[MessageExt] = deque()
        self._last = next_offset

    @property
    def span(self) -> int:
        """The distance between the first and the last cached offset."""
        return self._last - self._batches[0].first if self._batches else 0

    @property
    def position(self) -> int:
        """The offset of the next message that `take` returns, or where the next pull begins."""
        return self._waiting[0].queue_offset if self._waiting else self.next_offset

    @property
    def commit_offset(self) -> int:
        """The offset where the queue's next owner begins."""
        return self._batches[0].first if self._batches else self.next_offset

    def is_full(self, limits: Limits) -> bool:
        """Return whether pulls have to wait for handlers."""
        return (
            self.count > limits.count
            or self.size > limits.size
            or (limits.span is not None and self.span > limits.span)
        )

    def will_be_full(self, limits: Limits, next_offset: int, size: int) -> bool:
        """Return whether pulls have to wait after messages of `size` bytes are added.

        It counts every offset up to `next_offset` as a message: an upper bound.
        """
        return (
            self.count + next_offset - self.next_offset > limits.count
            or self.size + size > limits.size
            or (limits.span is not None and next_offset - self.commit_offset > limits.span)
        )

    @property
    def locked_ms(self) -> int | None:
        """When the broker last granted the lock, for orderly consumption; None without the lock."""
        return self._locked_ms

    @locked_ms.setter
    def locked_ms(self, locked_ms: int | None) -> None:
        self._locked_ms = locked_ms
        if locked_ms is not None:
            self.lock.succeeded(locked_ms)

    def is_locked(self, now_ms: int) -> bool:
        """Return whether the broker's lock is still valid."""
        return self._locked_ms is not None and now_ms - self._locked_ms <= LOCK_ALIVE_MS

    def add(self, messages: Sequence[MessageExt], next_offset: int) -> None:
        """Add the messages of a pull, in the order of offsets. The sequence must not change afterwards."""
        if messages:
            batch = _PulledBatch(messages)
            self._batches.append(batch)
            self.count += len(messages)
            self.size += _size_of(messages)
            self._last = batch.last
        self.next_offset = next_offset

    def _grow(self, messages: Sequence[MessageExt], sign: int) -> None:
        """Count messages that were added (1) or removed (-1)."""
        self.count += sign * len(messages)
        self.size += sign * _size_of(messages)

    def enqueue(self, messages: Iterable[MessageExt]) -> None:
        """Let added messages wait for `take`."""
        self._waiting.extend(messages)

    def take(self, count: int) -> list[MessageExt]:
        """Remove and return the next waiting messages in order, at most `count`."""
        waiting = self._waiting
        return [waiting.popleft() for _ in range(min(count, len(waiting)))]

    def put_back(self, messages: Sequence[MessageExt]) -> None:
        """Put taken messages back to the front."""
        self._waiting.extendleft(reversed(messages))

    def finish(self, messages: Sequence[MessageExt], now_ms: int) -> None:
        """Remove messages, in any order. Messages that were removed before are ignored.

        The next messages of a pull, in their order, are removed in one step.
        """
        self.consumed_ms = now_ms
        batch = self._batch_of(messages[0].queue_offset) if messages else None
        if batch is not None and batch.left is None:
            done = batch.done + len(messages)
            if batch.messages[batch.done : done] == messages:
                batch.done = done
                self.count -= len(messages)
                self.size -= _size_of(messages)
                if done == len(batch.messages):
                    self._batches.remove(batch)
                return
        for message in messages:
            self._finish_one(message.queue_offset)

    def _finish_one(self, offset: int) -> None:
        batch = self._batch_of(offset)
        if batch is None:
            return
        if batch.left is None:
            batch.left = {message.queue_offset: message for message in batch.messages[batch.done :]}
        message = batch.left.pop(offset, None)
        if message is not None:
            self.count -= 1
            self.size -= len(message.body)
            if not batch.left:
                self._batches.remove(batch)

    def _batch_of(self, offset: int) -> _PulledBatch | None:
        """Return the first batch that ends at an offset or after it; None without such a batch."""
        for batch in self._batches:
            if offset <= batch.last:
                return batch
        return None

    def drop(self) -> None:
        """Mark the queue as revoked."""
        self.dropped = True
        self._waiting.clear()

    def info(self, now_ms: int, wall_ms: int) -> ProcessQueueInfo:
        """Return the state for administration tools. wall_ms: the time at `now_ms`, in ms since 1970."""
        since_1970_ms = wall_ms - now_ms  # when the monotonic clock was 0
        return ProcessQueueInfo(
            commit_offset=self.commit_offset,
            cached_msg_min_offset=self._batches[0].first if self._batches else 0,
            cached_msg_max_offset=self._last if self._batches else 0,
            cached_msg_count=self.count,
            cached_msg_size_in_mib=self.size >> 20,
            locked=self.is_locked(now_ms),
            last_lock_timestamp=since_1970_ms + int(self.lock.since_ms),
            droped=self.dropped,
            last_pull_timestamp=since_1970_ms + self.pulled_ms,
            last_consume_timestamp=since_1970_ms + self.consumed_ms,
        )


def _size_of(messages: Sequence[MessageExt]) -> int:
    """Return the bytes of all bodies."""
    return sum([len(message.body) for message in messages])
