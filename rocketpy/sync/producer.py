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
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, TypedDict, TypeVar, Unpack

from rocketpy import producer
from rocketpy.admin import admin_client
from rocketpy.admin.dead_letters import DeadLetters
from rocketpy.client.message_index import FOREVER_MS, QueryResult
from rocketpy.client.routing.selectors import QueueSelector
from rocketpy.client.topic_configs import TopicSettings
from rocketpy.config import ClientConfig, ProducerConfig, check_timeout
from rocketpy.errors import ClientClosed, FlowControlled
from rocketpy.hooks import SendCheck, SendListener
from rocketpy.message.message import DEFAULT_TOPIC, Message, MessageExt
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
from rocketpy.sync import admin
from rocketpy.sync.blocking import Blocking
from rocketpy.telemetry.plugin import TelemetryChoice

SyncLocalTransaction = Callable[[Message], LocalTransactionState]
SyncCheck = Callable[[MessageExt], LocalTransactionState]


class ProducerOptions(TypedDict, total=False):
    """Keyword arguments of `rocketpy.Producer`."""

    config: ProducerConfig | None
    client: ClientConfig | None
    listeners: Iterable[SendListener]
    checks: Iterable[SendCheck]
    telemetry: TelemetryChoice


class Where(TypedDict, total=False):
    """The queue of a message, as in `rocketpy.Producer.send`."""

    queue: MessageQueue | None
    selector: QueueSelector | None
    arg: object


class SendOptions(Where, total=False):
    """Keyword arguments of `rocketpy.Producer.send`."""

    timeout_ms: int | None


class RequestOptions(Where, total=False):
    """Keyword arguments of `rocketpy.Producer.request`."""

    timeout_ms: int


log: Final = logging.getLogger("rocketpy.producer")

T = TypeVar("T")
L = TypeVar("L", producer.Producer, admin_client.AdminClient)


class _AdminApi(Blocking[L]):
    """The methods that producer and admin client share."""

    def fetch_publish_message_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """See `rocketpy.AdminClient.fetch_publish_message_queues`."""
        return self._loop_thread().run(self._inner.fetch_publish_message_queues(topic))

    def create_topic(
        self, topic: str, queue_count: int = 4, *, key: str = DEFAULT_TOPIC, topic_sys_flag: int = 0
    ) -> dict[str, TopicSettings]:
        """See `rocketpy.AdminClient.create_topic`."""
        return self._loop_thread().run(
            self._inner.create_topic(topic, queue_count, key=key, topic_sys_flag=topic_sys_flag)
        )

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """See `rocketpy.AdminClient.search_offset`."""
        return self._loop_thread().run(self._inner.search_offset(queue, timestamp_ms))

    def max_offset(self, queue: MessageQueue) -> int:
        """See `rocketpy.AdminClient.max_offset`."""
        return self._loop_thread().run(self._inner.max_offset(queue))

    def min_offset(self, queue: MessageQueue) -> int:
        """See `rocketpy.AdminClient.min_offset`."""
        return self._loop_thread().run(self._inner.min_offset(queue))

    def earliest_message_store_time(self, queue: MessageQueue) -> int:
        """See `rocketpy.AdminClient.earliest_message_store_time`."""
        return self._loop_thread().run(self._inner.earliest_message_store_time(queue))

    def view_message(self, message_id: str, topic: str | None = None) -> MessageExt:
        """See `rocketpy.AdminClient.view_message`."""
        return self._loop_thread().run(self._inner.view_message(message_id, topic))

    def query_message(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> QueryResult:
        """See `rocketpy.AdminClient.query_message`."""
        return self._loop_thread().run(
            self._inner.query_message(topic, key, max_count, begin_ms=begin_ms, end_ms=end_ms)
        )


class Producer(_AdminApi[producer.Producer]):
    """`rocketpy.Producer` for blocking code.

        with Producer("orders", "127.0.0.1:9876") as producer:
            result = producer.send(Message("Orders", b"..."))

    The arguments are those of `rocketpy.Producer`. One producer serves all threads.
    """

    def __init__(self, group: str, namesrv: str | None = None, **options: Unpack[ProducerOptions]) -> None:
        super().__init__(producer.Producer(group, namesrv, **options))
        self.group: Final = self._inner.group
        self.config: Final = self._inner.config
        self._slots = threading.BoundedSemaphore(self.config.max_in_flight)
        self._in_flight: set[Future[Any]] = set()
        self._callback_log = RateLimitedLog(log, 1.0)

    def start(self, *, wait: bool = True) -> None:
        """See `rocketpy.Producer.start`. The interpreter's exit closes a producer that is still open."""
        super().start(wait=wait)
        _started.add(self)

    def close(self, timeout_ms: int | None = None) -> list[Unfinished]:
        """See `rocketpy.Producer.close`."""
        if (background := self._own_loop_thread()) is None:
            return []
        unfinished = background.run(self._inner.close(timeout_ms))
        _started.discard(self)
        return unfinished

    def begin_close(self) -> Future[list[Unfinished]] | None:
        """Start a close without waiting, when the interpreter exits; return its future.

        Returns None if the producer was not started, and in a forked child, which must not close it.
        """
        background = self._own_loop_thread()
        return background.submit(self._inner.close()) if background is not None else None

    def send(self, message: Message, **how: Unpack[SendOptions]) -> SendResult:
        """See `rocketpy.Producer.send`. A selector is called in the background thread."""
        return self._loop_thread().run(self._inner.send(message, **how))

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
        self._loop_thread().run(self._inner.flush())
        wait(self._in_flight.copy())

    def send_oneway(self, message: Message, **where: Unpack[Where]) -> None:
        """See `rocketpy.Producer.send_oneway`. Before that, it waits as `rocketpy.Producer.drain` does."""

        async def drain_and_send() -> None:
            await self._inner.drain()
            self._inner.send_oneway(message, **where)

        self._loop_thread().run(drain_and_send())

    def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """See `rocketpy.Producer.send_batch`."""
        return self._loop_thread().run(self._inner.send_batch(messages, queue=queue, timeout_ms=timeout_ms))

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
        try:
            future = self._loop_thread().submit(
                self._inner.send_batch(messages, queue=queue, timeout_ms=timeout_ms)
            )
        except BaseException:  # no send was started
            self._slots.release()
            raise
        self._track(future, callback)
        return future

    def check_transactions(self, check: SyncCheck) -> None:
        """See `rocketpy.Producer.check_transactions`. The check is called on a thread and may block."""
        self._configure(partial(self._inner.check_transactions, _on_thread(check)))

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

    def request(self, message: Message, **how: Unpack[RequestOptions]) -> MessageExt:
        """See `rocketpy.Producer.request`."""
        return self._loop_thread().run(self._inner.request(message, **how))

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


class AdminClient(_AdminApi[admin_client.AdminClient]):
    """`rocketpy.AdminClient` for blocking code. Same arguments."""

    def __init__(self, namesrv: str | None = None, *, client: ClientConfig | None = None) -> None:
        super().__init__(admin_client.AdminClient(namesrv, client=client))
        self.topics: admin.Topics = admin.Topics(self._inner.topics, self._loop_thread)
        self.messages: admin.Messages = admin.Messages(self._inner.messages, self._loop_thread)
        self.dead_letters: admin.DeadLetterQueues = admin.DeadLetterQueues(
            self._inner.dead_letters, self._loop_thread
        )
        self.brokers: admin.Brokers = admin.Brokers(self._inner.brokers, self._loop_thread)
        self.name_servers: admin.NameServers = admin.NameServers(self._inner.name_servers, self._loop_thread)
        self.accounts: admin.Accounts = admin.Accounts(self._inner.accounts, self._loop_thread)
        self.groups: admin.Groups = admin.Groups(self._inner.groups, self._loop_thread)

    def fetch_dead_letters(
        self, group: str, max_count: int = 1000, *, offsets: Mapping[MessageQueue, int] | None = None
    ) -> DeadLetters:
        """See `rocketpy.AdminClient.fetch_dead_letters`."""
        return self._loop_thread().run(self._inner.fetch_dead_letters(group, max_count, offsets=offsets))

    def resend_dead_letter(self, message: MessageExt) -> SendResult:
        """See `rocketpy.AdminClient.resend_dead_letter`."""
        return self._loop_thread().run(self._inner.resend_dead_letter(message))

    def close(self) -> None:
        """See `rocketpy.AdminClient.close`."""
        super().close()


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
