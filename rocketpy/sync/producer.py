"""The blocking producer and admin client; import them from `rocketpy.sync`.

All blocking clients of a process run on one event loop in one background thread, so they share connections
as the asyncio clients do. Their methods are those of the asyncio classes, and wait for the result. They may
be called from any thread without an event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, TypedDict, TypeVar, Unpack

from rocketpy.client.routing.selectors import QueueSelector
from rocketpy.config import check_timeout
from rocketpy.errors import ClientClosed, FlowControlled
from rocketpy.message.encoded import EncodedBatch
from rocketpy.message.message import Message, MessageExt
from rocketpy.producer.transaction import (
    LocalTransactionState,
    TransactionCheck,
    TransactionSendResult,
    outcome_of,
)
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.results import SendResult, SendStatus, Unfinished
from rocketpy.runtime.application import check_callable, ends_program, name_of
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import subtask
from rocketpy.sync import methods
from rocketpy.sync.loop_thread import as_coroutine

SyncLocalTransaction = Callable[[Message], LocalTransactionState]
SyncCheck = Callable[[MessageExt], LocalTransactionState]


class QueueOptions(TypedDict, total=False):
    """The queue of a message, as in `rocketpy.Producer.send`."""

    queue: MessageQueue | None
    selector: QueueSelector | None
    arg: object


class SendOptions(QueueOptions, total=False):
    """Keyword arguments of `rocketpy.Producer.send`."""

    timeout_ms: int | None


class RequestOptions(QueueOptions, total=False):
    """Keyword arguments of `rocketpy.Producer.request`."""

    timeout_ms: int


log: Final = logging.getLogger("rocketpy.producer")

T = TypeVar("T")


class Producer(methods.Producer):
    """`rocketpy.Producer` for blocking code.

        with Producer("orders", "127.0.0.1:9876") as producer:
            result = producer.send(Message("Orders", b"..."))

    The arguments are those of `rocketpy.Producer`. One producer serves all threads. Selectors, checks and
    listeners are called in the background thread.
    """

    def _prepare(self) -> None:
        self._slots = threading.BoundedSemaphore(self._inner.config.max_in_flight)
        self._in_flight: set[Future[Any]] = set()
        self._callback_log = RateLimitedLog(log, 1.0)

    def start(self, *, wait: bool = True) -> None:
        """See `rocketpy.Producer.start`. The interpreter's exit closes a producer that is still open."""
        super().start(wait=wait)
        _started.add(self)

    def close(self, timeout_ms: int | None = None) -> list[Unfinished]:
        """See `rocketpy.Producer.close`."""
        unfinished = self._close(self._inner.close(timeout_ms))
        _started.discard(self)
        return unfinished

    def begin_close(self) -> Future[list[Unfinished]] | None:
        """Start a close without waiting, when the interpreter exits; return its future.

        Returns None if the producer was not started, and in a forked child, which must not close it.
        """
        background = self._background
        if background is None or background.is_forked_copy:
            return None
        return background.submit(self._inner.close())

    def send_async(
        self,
        message: Message,
        callback: Callable[[Future[SendResult]], object] | None = None,
        **how: Unpack[SendOptions],
    ) -> Future[SendResult]:
        """Send one message without waiting for its result. See `rocketpy.Producer.send_nowait`.

        It blocks while `ProducerConfig.max_in_flight` messages of this method are in flight, for at most the
        timeout.

        Args:
            message: The message.
            callback: Called with the future when it is done, in the background thread; it must not block.
            **how: `queue`, `selector`, `arg` and `timeout_ms` as in `rocketpy.Producer.send`.

        Returns:
            The future of the result. It fails with all errors of the message.

        Raises:
            FlowControlled: Too many messages were in flight for the timeout. A callback does not wait.
        """
        background = self._loop_thread()
        self._acquire_slot(how.get("timeout_ms"))
        future: Future[SendResult] = Future()
        self._track(future, callback)

        def send() -> None:
            try:
                pending = self._inner.send_nowait(message, **how)
            except FlowControlled:  # by bytes; `send` waits
                pending = subtask(self._inner.send(message, **how), "send")
            except Exception as error:  # noqa: BLE001 - the caller gets it
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
                return
            pending.add_done_callback(lambda done: _copy(done, future))

        try:
            background.call_soon(send)
        except ClientClosed:
            future.cancel()
            raise
        return future

    def flush(self) -> None:
        """Wait until every send that any thread has started so far has ended. See `rocketpy.Producer.flush`.

        Their futures are done then. The callbacks of these may still run in the background thread.
        """
        self._run(self._inner.flush())
        wait(self._in_flight.copy())

    def send_oneway(self, message: Message, **options: Unpack[QueueOptions]) -> None:
        """See `rocketpy.Producer.send_oneway`. Before that, it waits as `rocketpy.Producer.drain` does."""

        async def drain_and_send() -> None:
            await self._inner.drain()
            self._inner.send_oneway(message, **options)

        self._run(drain_and_send())

    def send_batch_async(
        self,
        messages: Iterable[Message],
        callback: Callable[[Future[list[SendResult]]], object] | None = None,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> Future[list[SendResult]]:
        """Send a batch without waiting for its results. See `rocketpy.Producer.send_batch`.

        It is the fastest way to send many messages from blocking code: the next batch is prepared while
        others are in flight. A batch counts as one message of `send_async`, and blocks in the same way.

        Args:
            messages: The messages.
            callback: Called with the future when it is done, in the background thread. It must not block.
            queue: As in `rocketpy.Producer.send_batch`.
            timeout_ms: As in `rocketpy.Producer.send_batch`.

        Returns:
            The future of the results.

        Raises:
            FlowControlled: Too many messages were in flight for the timeout. A callback does not wait.
        """
        self._acquire_slot(timeout_ms)
        return self._start(self._inner.send_batch(messages, queue=queue, timeout_ms=timeout_ms), callback)

    def send_encoded_async(
        self, batch: EncodedBatch, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> Future[Sequence[SendResult]]:
        """Do what `send_batch_async` does with messages that are already encoded, for integrations."""
        self._acquire_slot(timeout_ms)
        return self._start(self._inner.send_encoded(batch, queue=queue, timeout_ms=timeout_ms), None)

    def check_transactions(self, check: SyncCheck) -> None:
        """See `rocketpy.Producer.check_transactions`. The check is called on a thread and may block."""
        self._configure(as_coroutine(self._inner.check_transactions, _on_thread(check)))

    def send_in_transaction(
        self,
        message: Message,
        *,
        local_transaction: SyncLocalTransaction,
        check: SyncCheck | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionSendResult:
        """See `rocketpy.Producer.send_in_transaction`. `local_transaction` runs in the caller's thread."""
        background = self._loop_thread()
        if check is not None:
            self.check_transactions(check)

        transactions = self._inner.transactions
        half = background.run(transactions.begin(message, timeout_ms))
        state, error = LocalTransactionState.ROLLBACK, None
        if half.result.status is SendStatus.SEND_OK:
            state, error = outcome_of(local_transaction, half.message)
        return background.run(transactions.end(half, state, error))

    def request_async(
        self,
        message: Message,
        callback: Callable[[Future[MessageExt]], object] | None = None,
        **how: Unpack[RequestOptions],
    ) -> Future[MessageExt]:
        """Send a request without waiting for its reply. See `rocketpy.Producer.request`.

        Args:
            message: The request.
            callback: Called with the future when it is done, in the background thread; it must not block.
            **how: As in `rocketpy.Producer.request`.

        Returns:
            The future of the reply.
        """
        future = self._loop_thread().submit(self._inner.request(message, **how))
        if callback is not None:
            future.add_done_callback(partial(self._call_back, callback))
        return future

    def _start(
        self, send: Coroutine[Any, Any, T], callback: Callable[[Future[T]], object] | None
    ) -> Future[T]:
        """Start a send for which a slot is taken."""
        try:
            future = self._loop_thread().submit(send)
        except BaseException:  # no send was started
            self._slots.release()
            raise
        self._track(future, callback)
        return future

    def _track(self, future: Future[T], callback: Callable[[Future[T]], object] | None) -> None:
        """Count a future as in flight until it is done, and call the callback then."""
        self._in_flight.add(future)
        future.add_done_callback(self._untrack)
        if callback is not None:
            future.add_done_callback(partial(self._call_back, callback))

    def _call_back(self, callback: Callable[[Future[T]], object], future: Future[T]) -> None:
        """Call the application's callback, usually in the background thread, which no exception may end."""
        try:
            callback(future)
        except BaseException as error:  # the application's code
            if ends_program(error):
                raise
            text = "callback %s of a send failed"
            self._callback_log.exception("callbacks of sends failed", text, name_of(callback), error=error)

    def _untrack(self, future: Future[Any]) -> None:
        self._in_flight.discard(future)
        self._slots.release()

    def _acquire_slot(self, timeout_ms: int | None) -> None:
        """Wait until one more message may be in flight. Raises FlowControlled after the timeout."""
        time_ms = self._inner.config.send_timeout_ms if timeout_ms is None else check_timeout(timeout_ms)
        timeout_s = 0 if self._loop_thread().is_current else min(time_ms / 1000, threading.TIMEOUT_MAX)
        if not self._slots.acquire(timeout=timeout_s):
            raise FlowControlled(
                f"the message was not sent: after {timeout_s} s, {self._inner.config.max_in_flight} messages "
                "are still in flight. Wait for their futures, or increase ProducerConfig.max_in_flight"
            )


class AdminClient(methods.AdminClient):
    """`rocketpy.AdminClient` for blocking code. Same arguments."""


_started: set[Producer] = set()
"""Producers that are not closed. Not weak references: messages of a dropped producer must be sent, too."""
_DISCONNECT_S: Final = 3.0
"""Maximum time of a close after its timeout, to unregister from brokers and end the connections."""


@atexit.register
def _close_all() -> None:
    """Close producers that are still open. Otherwise their messages would be lost with the thread."""
    closings: dict[Future[list[Unfinished]], Producer] = {}
    for left in list(_started):
        if (closing := left.begin_close()) is not None:
            closings[closing] = left
    waits_ms = [left.config.close_timeout_ms for left in closings.values()]
    wait(closings, max(waits_ms, default=0) / 1000 + _DISCONNECT_S)
    for left in closings.values():
        text = f"producer {left.group} was not closed: use `with`, or `close()`"
        warnings.warn(text, ResourceWarning, stacklevel=1, source=left)


def _on_thread(check: SyncCheck) -> TransactionCheck:
    check_callable("the transaction check", check, "message")

    async def check_on_thread(message: MessageExt) -> LocalTransactionState:
        return await asyncio.to_thread(check, message)

    return check_on_thread


def _copy(done: asyncio.Future[SendResult], future: Future[SendResult]) -> None:
    """Copy the result of the loop's future to the caller's future."""
    if not future.set_running_or_notify_cancel():  # cancelled; this wakes its waiters
        if not done.cancelled():
            done.exception()
    elif done.cancelled():
        future.set_exception(ClientClosed("the send was cancelled"))
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())
