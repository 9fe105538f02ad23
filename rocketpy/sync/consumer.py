"""The blocking consumers; import them from `rocketpy.sync`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar, Unpack

from rocketpy import consumer
from rocketpy.consumer.config import LitePullConsumerOptions, PullConsumerOptions, PushConsumerOptions
from rocketpy.consumer.fetch.consumer_api import PullResponse
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.fetch.subscription import ALL, Expression
from rocketpy.consumer.outcomes import Handler
from rocketpy.errors import ClientClosed, RocketError
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.results import PullResult
from rocketpy.sync.blocking import Blocking
from rocketpy.sync.loop_thread import LoopThread, as_coroutine

C = TypeVar("C", consumer.PushConsumer, consumer.LitePullConsumer, consumer.PullConsumer)
M = TypeVar("M", consumer.PushConsumer, consumer.LitePullConsumer)


class _Consumer(Blocking[C]):
    """Base class of the blocking consumers."""

    def close(self) -> bool:
        """Close the consumer; return whether every handler ended in time."""
        return super().close() is not False


class _Member(_Consumer[M]):
    """Base class of the consumers that are members of a group."""

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """See `rocketpy.PushConsumer.subscribe`."""
        self._configure(lambda: self._inner.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """See `rocketpy.PushConsumer.unsubscribe`."""
        self._configure(lambda: self._inner.unsubscribe(topic))

    def assignment(self) -> tuple[MessageQueue, ...]:
        """See `rocketpy.PushConsumer.assignment`."""
        return self._loop_thread().run(as_coroutine(lambda: self._inner.assignment))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """See `rocketpy.PushConsumer.search_offset`."""
        return self._loop_thread().run(self._inner.search_offset(queue, timestamp_ms))


class PushConsumer(_Member[consumer.PushConsumer]):
    """`rocketpy.PushConsumer` for blocking code. Plain functions as handlers run on threads.

        consumer = PushConsumer("billing", "127.0.0.1:9876", handle)
        consumer.subscribe("Orders")
        with consumer:
            input("Enter to stop")

    The arguments are those of `rocketpy.PushConsumer`.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        handler: Handler | None = None,
        **options: Unpack[PushConsumerOptions],
    ) -> None:
        super().__init__(consumer.PushConsumer(group, namesrv, handler, **options))

    def pause(self) -> None:
        """See `rocketpy.PushConsumer.pause`."""
        self._loop_thread().run(as_coroutine(self._inner.pause))

    def resume(self) -> None:
        """See `rocketpy.PushConsumer.resume`."""
        self._loop_thread().run(as_coroutine(self._inner.resume))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """See `rocketpy.PushConsumer.seek`."""
        self._loop_thread().run(self._inner.seek(queue, offset))

    def progress(self) -> dict[MessageQueue, int]:
        """See `rocketpy.PushConsumer.progress`."""
        return self._loop_thread().run(as_coroutine(self._inner.progress))


class LitePullConsumer(_Member[consumer.LitePullConsumer]):
    """`rocketpy.LitePullConsumer` for blocking code: ``for message in consumer``. Same arguments.

    Several threads may poll at the same time; each gets other messages. The messages of a poll count as
    processed when the same thread polls or commits again, or at the next poll after the thread has ended.
    """

    def __init__(
        self, group: str, namesrv: str | None = None, **options: Unpack[LitePullConsumerOptions]
    ) -> None:
        super().__init__(consumer.LitePullConsumer(group, namesrv, **options))

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """See `rocketpy.LitePullConsumer.assign`."""
        (self._background or LoopThread.get()).run(self._inner.assign(queues))

    def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """See `rocketpy.LitePullConsumer.fetch_queues`."""
        return self._loop_thread().run(self._inner.fetch_queues(topic))

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """See `rocketpy.LitePullConsumer.pause`."""
        self._loop_thread().run(as_coroutine(lambda: self._inner.pause(queues)))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """See `rocketpy.LitePullConsumer.resume`."""
        self._loop_thread().run(as_coroutine(lambda: self._inner.resume(queues)))

    def poll(self, timeout_ms: int | None = None, *, max_count: int | None = None) -> list[MessageExt]:
        """See `rocketpy.LitePullConsumer.poll`."""
        found = self._poll(self._loop_thread(), timeout_ms, max_count)
        return [message for _, messages in found for message in messages]

    def getmany(
        self, timeout_ms: int | None = None, *, max_count: int | None = None
    ) -> dict[MessageQueue, list[MessageExt]]:
        """See `rocketpy.LitePullConsumer.getmany`."""
        found = self._poll(self._loop_thread(), timeout_ms, max_count)
        return {messages[0].queue: messages for _, messages in found}

    def _poll(
        self, background: LoopThread, timeout_ms: int | None = None, max_count: int | None = None
    ) -> list[tuple[Puller, list[MessageExt]]]:
        return background.run(self._inner.poll_queues(timeout_ms, max_count, threading.current_thread()))

    def __iter__(self) -> Iterator[MessageExt]:
        """Yield messages until the consumer is closed."""
        while True:
            background = self._loop_thread()  # raises before the start, and in a forked child
            try:
                found = self._poll(background)
            except ClientClosed:
                return
            for _, messages in found:
                yield from messages

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """See `rocketpy.LitePullConsumer.commit`.

        Without `offsets`, the messages of this thread's polls count as processed.
        """
        if offsets is not None:
            self._loop_thread().run(self._inner.commit(offsets))
        else:
            self._loop_thread().run(self._inner.commit_polled(threading.current_thread()))

    def committed(self, queue: MessageQueue) -> int | None:
        """See `rocketpy.LitePullConsumer.committed`."""
        return self._loop_thread().run(self._inner.committed(queue))

    def position(self, queue: MessageQueue) -> int:
        """See `rocketpy.LitePullConsumer.position`."""
        return self._loop_thread().run(as_coroutine(lambda: self._inner.position(queue)))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """See `rocketpy.LitePullConsumer.seek`."""
        self._loop_thread().run(self._inner.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """See `rocketpy.LitePullConsumer.seek_to_begin`."""
        self._loop_thread().run(self._inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """See `rocketpy.LitePullConsumer.seek_to_end`."""
        self._loop_thread().run(self._inner.seek_to_end(queue))


class PullConsumer(_Consumer[consumer.PullConsumer]):
    """`rocketpy.PullConsumer` for blocking code. Same arguments."""

    def __init__(
        self, group: str, namesrv: str | None = None, **options: Unpack[PullConsumerOptions]
    ) -> None:
        super().__init__(consumer.PullConsumer(group, namesrv, **options))

    def fetch_topics(self) -> tuple[str, ...]:
        """See `rocketpy.PullConsumer.fetch_topics`."""
        return self._loop_thread().run(self._inner.fetch_topics())

    def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """See `rocketpy.PullConsumer.fetch_queues`."""
        return self._loop_thread().run(self._inner.fetch_queues(topic))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        timeout_ms: int | None = None,
        *,
        expression: Expression = ALL,
    ) -> PullResult:
        """See `rocketpy.PullConsumer.pull`."""
        return self._loop_thread().run(
            self._inner.pull(queue, offset, max_count, timeout_ms, expression=expression)
        )

    def pull_async(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        timeout_ms: int | None = None,
        *,
        expression: Expression = ALL,
    ) -> Future[PullResult]:
        """Start a pull and return the future of its result. See `rocketpy.PullConsumer.pull`.

        An application can pull several queues or offsets at the same time.
        """
        return self._loop_thread().submit(
            self._inner.pull(queue, offset, max_count, timeout_ms, expression=expression)
        )

    def pull_records_async(
        self, queue: MessageQueue, ranges: Sequence[tuple[int, int]], *, expression: Expression = ALL
    ) -> Future[list[PullResponse | RocketError]]:
        """Start pulls and return the future of their responses. See `rocketpy.PullConsumer.pull_records`."""
        return self._loop_thread().submit(self._inner.pull_records(queue, ranges, expression=expression))

    def min_offset(self, queue: MessageQueue) -> int:
        """See `rocketpy.PullConsumer.min_offset`."""
        return self._loop_thread().run(self._inner.min_offset(queue))

    def max_offset(self, queue: MessageQueue, *, of_master: bool = False) -> int:
        """See `rocketpy.PullConsumer.max_offset`."""
        return self._loop_thread().run(self._inner.max_offset(queue, of_master=of_master))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """See `rocketpy.PullConsumer.search_offset`."""
        return self._loop_thread().run(self._inner.search_offset(queue, timestamp_ms))

    def check_filter(self, topic: str, expression: Expression) -> None:
        """See `rocketpy.PullConsumer.check_filter`."""
        self._loop_thread().run(self._inner.check_filter(topic, expression))

    def committed(self, queue: MessageQueue) -> int | None:
        """See `rocketpy.PullConsumer.committed`."""
        return self._loop_thread().run(self._inner.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """See `rocketpy.PullConsumer.commit`."""
        self._loop_thread().run(self._inner.commit(queue, offset))

    def view_message(self, offset_message_id: str) -> MessageExt:
        """See `rocketpy.PullConsumer.view_message`."""
        return self._loop_thread().run(self._inner.view_message(offset_message_id))
