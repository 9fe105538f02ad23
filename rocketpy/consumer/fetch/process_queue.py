"""ProcessQueue: what a member holds of one queue, from the pull to the end of the last handler. Pure values.

    pulled --add--> held --finish--> gone        concurrent: in any order
    pulled --add--> held, waiting --take--> held --finish--> gone, or --put_back--> waiting    orderly

What a pull brought is one run, and mostly goes as it came: in one piece. Only the runs of which a part is
done with are kept message by message.

The offset to commit is that of the first message held; when none is held, the place up to which the
queue was pulled: what lies before was handled, or did not match the subscription.

Source: RocketMQ 4.6 ProcessQueue. Differs: RocketMQ commits nothing before the first message of a queue was
handled or a pull found nothing; here the place where consumption began counts at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue, ProcessQueueInfo

LOCK_ALIVE_MS: Final = 30_000
"""How long a lock counts after the broker granted it; the broker itself keeps it for 60 s.
RocketMQ: rocketmq.client.rebalance.lockMaxLiveTime."""


class Limits:
    """When a queue is full, so that pulls wait. count: messages; size: bytes of bodies; span: offsets."""

    __slots__ = ("count", "size", "span")

    def __init__(self, count: int, size: int, span: int | None) -> None:
        self.count = count
        self.size = size
        self.span = span


class _PulledBatch:
    """What one pull brought, of which something is held still.

    messages: all of it, in order; last: the highest of their offsets. size: bytes of all bodies. left: those
    held, by offset; None while all are.
    """

    __slots__ = ("last", "left", "messages", "size")

    def __init__(self, messages: Sequence[MessageExt]) -> None:
        self.messages: Final = messages
        self.last: Final = messages[-1].queue_offset
        self.size: Final = sum([len(message.body) for message in messages])
        self.left: dict[int, MessageExt] | None = None

    @property
    def first(self) -> int:
        """The lowest offset held."""
        return self.messages[0].queue_offset if self.left is None else next(iter(self.left))


class ProcessQueue:
    """See the module. queue: as on the wire. next_offset: where to pull next. All times are in ms.

    count: messages held. size: bytes of their bodies. dropped: the queue is another member's now: nothing new
    of it is handled, nothing of it is committed.
    locked_ms: when the broker last granted its lock, for orderly consumption.
    """

    __slots__ = (
        "_batches",
        "_last",
        "_waiting",
        "consumed_ms",
        "count",
        "dropped",
        "locked_ms",
        "next_offset",
        "pulled_ms",
        "queue",
        "size",
    )  # fmt: skip

    def __init__(self, queue: MessageQueue, next_offset: int, now_ms: int) -> None:
        self.queue: Final = queue
        self.next_offset = next_offset
        self.count = 0
        self.size = 0
        self.dropped = False
        self.locked_ms: int | None = None
        self.pulled_ms = now_ms
        self.consumed_ms = now_ms
        self._batches: deque[_PulledBatch] = deque()
        self._waiting: deque[MessageExt] = deque()
        self._last = next_offset

    @property
    def span(self) -> int:
        """From the offset of the first message held to that of the last."""
        return self._last - self._batches[0].first if self._batches else 0

    @property
    def position(self) -> int:
        """The offset of the next message that `take` returns, or where the next pull begins."""
        return self._waiting[0].queue_offset if self._waiting else self.next_offset

    @property
    def commit_offset(self) -> int:
        """Where a successor has to begin."""
        return self._batches[0].first if self._batches else self.next_offset

    def is_full(self, limits: Limits) -> bool:
        """Whether pulls have to wait."""
        return (
            self.count > limits.count
            or self.size > limits.size
            or (limits.span is not None and self.span > limits.span)
        )

    def will_be_full(self, limits: Limits, next_offset: int, size: int) -> bool:
        """Whether pulls have to wait once what lies before an offset, `size` bytes of it, is added."""
        return (
            self.count + next_offset - self.next_offset > limits.count
            or self.size + size > limits.size
            or (limits.span is not None and next_offset - self.commit_offset > limits.span)
        )

    def is_locked(self, now_ms: int) -> bool:
        """Whether the broker's lock can still be relied on."""
        return self.locked_ms is not None and now_ms - self.locked_ms <= LOCK_ALIVE_MS

    def add(self, messages: Sequence[MessageExt], next_offset: int) -> None:
        """Take in what a pull brought, in the order of offsets. The sequence must not change any more."""
        if messages:
            run = _PulledBatch(messages)
            self._batches.append(run)
            self.count += len(messages)
            self.size += run.size
            self._last = run.last
        self.next_offset = next_offset

    def wait(self, messages: Iterable[MessageExt]) -> None:
        """Let messages that were added wait for `take`."""
        self._waiting.extend(messages)

    def take(self, count: int) -> list[MessageExt]:
        """The next messages in order, at most `count`."""
        waiting = self._waiting
        return [waiting.popleft() for _ in range(min(count, len(waiting)))]

    def put_back(self, messages: Sequence[MessageExt]) -> None:
        """Put taken messages in front again."""
        self._waiting.extendleft(reversed(messages))

    def finish(self, messages: Sequence[MessageExt], now_ms: int) -> None:
        """Be done with messages, in any order. Those that are gone already do not count twice.

        The very sequence that `add` took goes in one piece.
        """
        self.consumed_ms = now_ms
        run = self._batch_of(messages[0].queue_offset) if messages else None
        if run is not None and run.messages is messages and run.left is None:
            self._batches.remove(run)
            self.count -= len(messages)
            self.size -= run.size
            return
        for message in messages:
            self._finish_one(message.queue_offset)

    def _finish_one(self, offset: int) -> None:
        run = self._batch_of(offset)
        if run is None:
            return
        if run.left is None:
            run.left = {message.queue_offset: message for message in run.messages}
        message = run.left.pop(offset, None)
        if message is not None:
            self.count -= 1
            self.size -= len(message.body)
            if not run.left:
                self._batches.remove(run)

    def _batch_of(self, offset: int) -> _PulledBatch | None:
        """The run that an offset may be in: one of the first, as queues are handled in about that order."""
        for run in self._batches:
            if offset <= run.last:
                return run
        return None

    def drop(self) -> None:
        """Be done with the whole queue."""
        self.dropped = True
        self._waiting.clear()

    def info(self, now_ms: int) -> ProcessQueueInfo:
        """What operators are shown."""
        return ProcessQueueInfo(
            commit_offset=self.commit_offset,
            cached_msg_min_offset=self._batches[0].first if self._batches else 0,
            cached_msg_max_offset=self._last if self._batches else 0,
            cached_msg_count=self.count,
            cached_msg_size_in_mib=self.size >> 20,
            locked=self.is_locked(now_ms),
            last_lock_timestamp=self.locked_ms or 0,
            droped=self.dropped,
            last_pull_timestamp=self.pulled_ms,
            last_consume_timestamp=self.consumed_ms,
        )
