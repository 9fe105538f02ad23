"""The blocking consumers; import them from `rocketpy.sync`."""

from __future__ import annotations

from collections.abc import Iterator

from rocketpy.errors import ClientClosed
from rocketpy.message.message import MessageExt
from rocketpy.sync import methods
from rocketpy.sync.loop_thread import calling_thread


class PushConsumer(methods.PushConsumer):
    """`rocketpy.PushConsumer` for blocking code. Plain functions as handlers run on threads.

        consumer = PushConsumer("billing", "127.0.0.1:9876", handle)
        consumer.subscribe("Orders")
        with consumer:
            input("Enter to stop")

    The arguments are those of `rocketpy.PushConsumer`.
    """


class LitePullConsumer(methods.LitePullConsumer):
    """`rocketpy.LitePullConsumer` for blocking code: ``for message in consumer``. Same arguments.

    Several threads may poll at the same time; each gets other messages. The messages of a poll count as
    processed when the same thread polls, seeks or commits again, or at the next poll after the thread has
    ended. A `commit` without offsets finishes the messages of the calling thread's polls.
    """

    def _prepare(self) -> None:
        self._inner.calling_thread = calling_thread

    def __iter__(self) -> Iterator[MessageExt]:
        """Yield messages until the consumer is closed."""
        while True:
            self._loop_thread()  # raises before the start, and in a forked child
            try:
                messages = self.poll()
            except ClientClosed:
                return
            yield from messages


class SimpleConsumer(methods.SimpleConsumer):
    """`rocketpy.SimpleConsumer` for blocking code: ``for message in consumer``. Same arguments.

    Several threads may receive at the same time.
    """

    def _prepare(self) -> None:
        self._inner.calling_thread = calling_thread

    def __iter__(self) -> Iterator[MessageExt]:
        """Yield messages until the consumer is closed; each is acknowledged with the next step."""
        return self._iterate(self._inner.__aiter__())


class PullConsumer(methods.PullConsumer):
    """`rocketpy.PullConsumer` for blocking code. Same arguments."""
