"""The consumers of `rocketpy.sync`; import them from there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Generic, Self, TypeVar

from rocketpy import consumer
from rocketpy.background import Background, later
from rocketpy.client import Health
from rocketpy.config import ClientConfig, ConsumerConfig
from rocketpy.consumer.outcomes import BatchHandler, Handler
from rocketpy.consumer.settings import LitePullConfig, PushConfig
from rocketpy.consumer.subscription import ALL, Expression
from rocketpy.errors import ClientClosed
from rocketpy.hooks import ProcessListener, ReceiveListener
from rocketpy.message import MessageExt, MessageQueue
from rocketpy.results import PullResult
from rocketpy.telemetry import TelemetryChoice

__all__ = ["LitePullConsumer", "PullConsumer", "PushConsumer"]

C = TypeVar("C", consumer.PushConsumer, consumer.LitePullConsumer, consumer.PullConsumer)
M = TypeVar("M", consumer.PushConsumer, consumer.LitePullConsumer)


class _Blocking(Generic[C]):
    """A consumer in the background loop, and its life."""

    def __init__(self, inner: C) -> None:
        self._inner: C = inner
        self._background: Background | None = None

    def start(self) -> None:
        """See `start` of the class of the same name in `rocketpy`."""
        self._background = Background.get()
        self._background.run(self._inner.start())

    def close(self) -> bool:
        """See `close` there. Returns whether every handler ended in time."""
        return self._background is None or self._background.run(self._inner.close()) is not False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def health(self) -> Health:
        """See `health` there."""
        return self._loop().run(later(self._inner.health))

    def _loop(self) -> Background:
        if self._background is None:
            raise ClientClosed("the consumer was not started: use `with`, or `consumer.start()`")
        return self._background


class _Member(_Blocking[M]):
    """One that joins a group."""

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """See `subscribe` of the class of the same name in `rocketpy`."""
        if self._background is None:
            self._inner.subscribe(topic, expression)
        else:
            self._background.run(later(lambda: self._inner.subscribe(topic, expression)))

    def unsubscribe(self, topic: str) -> None:
        """See `unsubscribe` there."""
        if self._background is None:
            self._inner.unsubscribe(topic)
        else:
            self._background.run(later(lambda: self._inner.unsubscribe(topic)))

    def assignment(self) -> tuple[MessageQueue, ...]:
        """See `assignment` there."""
        return self._loop().run(later(lambda: self._inner.assignment))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """See `search_offset` there."""
        return self._loop().run(self._inner.search_offset(queue, timestamp_ms))


class PushConsumer(_Member[consumer.PushConsumer]):
    """`rocketpy.PushConsumer` for blocking code: handlers run on threads, and nobody has to wait for them.

        consumer = PushConsumer("billing", "127.0.0.1:9876", handle)
        consumer.subscribe("Orders")
        with consumer:
            input("Enter to stop")

    Arguments as there.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        handler: Handler | None = None,
        *,
        batch_handler: BatchHandler | None = None,
        config: PushConfig | None = None,
        client: ClientConfig | None = None,
        listeners: Iterable[ProcessListener] = (),
        telemetry: TelemetryChoice = None,
    ) -> None:
        super().__init__(
            consumer.PushConsumer(
                group,
                namesrv,
                handler,
                batch_handler=batch_handler,
                config=config,
                client=client,
                listeners=listeners,
                telemetry=telemetry,
            )
        )

    def pause(self) -> None:
        """See `rocketpy.PushConsumer.pause`."""
        self._loop().run(later(self._inner.pause))

    def resume(self) -> None:
        """See `rocketpy.PushConsumer.resume`."""
        self._loop().run(later(self._inner.resume))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """See `rocketpy.PushConsumer.seek`."""
        self._loop().run(self._inner.seek(queue, offset))

    def progress(self) -> dict[MessageQueue, int]:
        """See `rocketpy.PushConsumer.progress`."""
        return self._loop().run(later(self._inner.progress))


class LitePullConsumer(_Member[consumer.LitePullConsumer]):
    """`rocketpy.LitePullConsumer` for blocking code: ``for message in consumer``. Arguments as there."""

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: LitePullConfig | None = None,
        client: ClientConfig | None = None,
        telemetry: TelemetryChoice = None,
    ) -> None:
        super().__init__(
            consumer.LitePullConsumer(group, namesrv, config=config, client=client, telemetry=telemetry)
        )

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """See `rocketpy.LitePullConsumer.assign`."""
        (self._background or Background.get()).run(self._inner.assign(queues))

    def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """See `rocketpy.LitePullConsumer.fetch_queues`."""
        return self._loop().run(self._inner.fetch_queues(topic))

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """See `rocketpy.LitePullConsumer.pause`."""
        self._loop().run(later(lambda: self._inner.pause(queues)))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """See `rocketpy.LitePullConsumer.resume`."""
        self._loop().run(later(lambda: self._inner.resume(queues)))

    def poll(self, timeout_ms: int | None = None) -> list[MessageExt]:
        """See `rocketpy.LitePullConsumer.poll`."""
        return self._loop().run(self._inner.poll(timeout_ms))

    def __iter__(self) -> Iterator[MessageExt]:
        """Messages, one after the other, until the consumer is closed."""
        while True:
            try:
                messages = self.poll()
            except ClientClosed:
                return
            yield from messages

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """See `rocketpy.LitePullConsumer.commit`."""
        self._loop().run(self._inner.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """See `rocketpy.LitePullConsumer.committed`."""
        return self._loop().run(self._inner.committed(queue))

    def position(self, queue: MessageQueue) -> int:
        """See `rocketpy.LitePullConsumer.position`."""
        return self._loop().run(later(lambda: self._inner.position(queue)))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """See `rocketpy.LitePullConsumer.seek`."""
        self._loop().run(self._inner.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """See `rocketpy.LitePullConsumer.seek_to_begin`."""
        self._loop().run(self._inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """See `rocketpy.LitePullConsumer.seek_to_end`."""
        self._loop().run(self._inner.seek_to_end(queue))


class PullConsumer(_Blocking[consumer.PullConsumer]):
    """`rocketpy.PullConsumer` for blocking code. Arguments as there."""

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: ConsumerConfig | None = None,
        client: ClientConfig | None = None,
        listeners: Iterable[ReceiveListener] = (),
        telemetry: TelemetryChoice = None,
    ) -> None:
        super().__init__(
            consumer.PullConsumer(
                group, namesrv, config=config, client=client, listeners=listeners, telemetry=telemetry
            )
        )

    def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """See `rocketpy.PullConsumer.fetch_queues`."""
        return self._loop().run(self._inner.fetch_queues(topic))

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
        return self._loop().run(self._inner.pull(queue, offset, max_count, timeout_ms, expression=expression))

    def pull_async(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        timeout_ms: int | None = None,
        *,
        expression: Expression = ALL,
    ) -> Future[PullResult]:
        """Begin a pull; return the future of its result. See `rocketpy.PullConsumer.pull`.

        For reading ahead: offsets of a queue follow each other, so the next pull need not wait for this one.
        """
        return self._loop().begin(
            self._inner.pull(queue, offset, max_count, timeout_ms, expression=expression)
        )

    def min_offset(self, queue: MessageQueue) -> int:
        """See `rocketpy.PullConsumer.min_offset`."""
        return self._loop().run(self._inner.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """See `rocketpy.PullConsumer.max_offset`."""
        return self._loop().run(self._inner.max_offset(queue))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """See `rocketpy.PullConsumer.search_offset`."""
        return self._loop().run(self._inner.search_offset(queue, timestamp_ms))

    def committed(self, queue: MessageQueue) -> int | None:
        """See `rocketpy.PullConsumer.committed`."""
        return self._loop().run(self._inner.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """See `rocketpy.PullConsumer.commit`."""
        self._loop().run(self._inner.commit(queue, offset))

    def view_message(self, offset_message_id: str) -> MessageExt:
        """See `rocketpy.PullConsumer.view_message`."""
        return self._loop().run(self._inner.view_message(offset_message_id))
