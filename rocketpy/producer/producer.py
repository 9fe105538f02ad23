"""Producer: the asyncio producer that applications use.

Source: RocketMQ 4.6 DefaultMQProducer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, TypeVar

from rocketpy.client.admin import AdminApi
from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import wrap
from rocketpy.client.routing.selectors import QueueSelector
from rocketpy.config import (
    COMPRESSION_TYPES,
    ClientConfig,
    ProducerConfig,
    check_number,
    check_timeout,
    config_of,
)
from rocketpy.errors import ClientClosed
from rocketpy.hooks import SendCheck, SendListener
from rocketpy.message.message import Message, MessageExt, check_group, check_message
from rocketpy.producer.listeners import Listeners
from rocketpy.producer.request_reply import Requests
from rocketpy.producer.send.dispatcher import SendDispatcher, kind_of
from rocketpy.producer.send.pending import OnewaySend, UnbatchedSend
from rocketpy.producer.send.sender import Sender
from rocketpy.producer.transaction import (
    LocalTransaction,
    TransactionCheck,
    Transactions,
    TransactionSendResult,
)
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.compression import compress
from rocketpy.results import Health, SendResult, Unfinished
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import joined
from rocketpy.telemetry.message_trace import SENDING, TRACE_GROUP, MessageTrace
from rocketpy.telemetry.plugin import TelemetryChoice, failure_counter, find_telemetry

log = logging.getLogger("rocketpy.producer")

P = TypeVar("P")


class Producer(AdminApi):
    """Sends messages. One serves a whole event loop: share it between tasks.

        async with Producer("orders", "127.0.0.1:9876") as producer:
            result = await producer.send(Message("Orders", b"..."))

    group: name of the producer group. namesrv: addresses of name servers, ``host:port;host:port``, or
    ``embedded:``; without it that of `client`, then the environment's NAMESRV_ADDR. config: how it sends.
    client: how it connects; producers and consumers with equal settings share connections. listeners,
    checks: see `rocketpy.hooks`. telemetry: None for what is installed, see `rocketpy.telemetry`.

    May be made outside of an event loop; `start` (or `async with`) binds it to the running one. In any other
    event loop or thread it raises ClientClosed: make one for each, or take `rocketpy.sync`.
    Raises GroupInvalid, ConfigInvalid.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: ProducerConfig | None = None,
        client: ClientConfig | None = None,
        listeners: Iterable[SendListener] = (),
        checks: Iterable[SendCheck] = (),
        telemetry: TelemetryChoice = None,
    ) -> None:
        self.group: Final = check_group(group)
        self.config: Final = config_of("config", config, ProducerConfig)
        self._client_config: Final = config_of("client", client, ClientConfig).at(namesrv)
        self._listeners = tuple(listeners)
        self._telemetry = telemetry
        self._checks = tuple(checks)
        self._sends: SendDispatcher | None = None
        self._closing: asyncio.Task[list[Unfinished]] | None = None
        self._wire_group = self.group
        self._transactions: Transactions | None = None
        self._requests: Requests | None = None
        self._check: TransactionCheck | None = None
        self._trace: MessageTrace | None = None
        self._limited_log = RateLimitedLog(log)

    # -- life ---------------------------------------------------------------------------------

    async def start(self, *, wait: bool = True) -> None:
        """Start, once.

        wait: until a name server answers, at most `ClientConfig.request_timeout_ms`. Without it `start`
        returns at once; sends find a name server within their time-out, and `health` tells if none answers.

        Raises TransportError when no name server answers (`start` can be called again), ConfigInvalid, and
        for ``embedded:`` what starting a broker raises (StoreLocked, …).
        """
        telemetry = find_telemetry(self._telemetry)
        compress(b"", COMPRESSION_TYPES[self.config.compression.type])  # is its package here?
        client = await self._connect(self._client_config, f"producer {self.group}", wait=wait)
        self._wire_group = wrap(client.config.namespace, self.group)
        client.add_producer(self._wire_group)
        try:
            await self._start_trace(wait=wait)
        except BaseException:
            try:
                await client.remove_producer(self._wire_group)
            finally:
                await client.release()
            raise
        listeners = Listeners(self._listeners, self.group, client.client_id)
        listeners.observe(telemetry, client.config.namespace)
        self._count_failure = failure_counter(telemetry, f"producer {self.group}")
        client.tasks.on_failure.append(self._count_failure)
        sender = Sender(client, self._wire_group, self.config, listeners, self._checks)
        gathers = self.config.batching and not self._checks
        self._sends = sends = SendDispatcher(sender, client, self.config, gathers=gathers)
        self._transactions = Transactions(
            client, self._wire_group, sends.send_half, listeners.settle_listeners, self.config.send_timeout_ms
        )
        self._requests = Requests(client)
        if self._check is not None:
            self._transactions.check_with(self._check)

    async def _start_trace(self, *, wait: bool) -> None:
        """Begin to report what is sent, if that is wanted."""
        if self.config.message_trace is not None:
            sender = Producer(
                TRACE_GROUP,
                config=SENDING,
                client=replace(self._client_config, namespace=""),
                telemetry=False,
            )
            self._trace = MessageTrace(self.config.message_trace, sender)
            await self._trace.start(wait=wait)
            self._listeners += (self._trace,)

    async def close(self, timeout_ms: int | None = None) -> list[Unfinished]:
        """Accept no more, wait for the answers to what was accepted, then disconnect.

        timeout_ms: how long to wait; `ProducerConfig.close_timeout_ms` when None. Returns the messages whose
        answers had not come by then, each with whether a broker may have it; their futures fail with
        ClientClosed, which says the same. Safe to call again: the second call waits for the first.
        """
        if self._sends is None or self._client is None or self._client.is_forked_copy:
            return []
        if self._closing is not None and self._closing.done():
            return self._closing.result()
        self._client.check_loop()
        wait_ms = self.config.close_timeout_ms if timeout_ms is None else timeout_ms
        check_number("timeout_ms", wait_ms, 0)
        if self._closing is None:
            sender = self._sends.sender
            sender.refuse()
            self.transactions.close()
            _started(self._requests).close()
            self._closing = joined(self._close(sender, self._client, wait_ms), f"close producer {self.group}")
        return await asyncio.shield(self._closing)

    async def _close(self, sender: Sender, client: ClientInstance, wait_ms: int) -> list[Unfinished]:
        try:
            client.tasks.on_failure.remove(self._count_failure)
            unfinished = await sender.close(wait_ms)
            sender.listeners.close()
            if unfinished:
                log.warning("producer %s closed with %d messages unanswered", self.group, len(unfinished))
            await client.remove_producer(self._wire_group)
            if self._trace is not None:
                await self._trace.close()
        finally:
            await client.release()
        return unfinished

    def health(self) -> Health:
        """How the producer and its connections are doing. Raises ClientClosed when it was not started."""
        sends = _started(self._sends)
        limiter = sends.limiter
        health = _started(self._client).health()
        problem = (str(limiter.closed),) if limiter.closed is not None else ()
        return replace(
            health,
            ok=health.ok and not problem,
            problems=health.problems + problem,
            in_flight=limiter.count,
            in_flight_bytes=limiter.bytes,
            rejecting_batches=sends.sender.rejecting_batches,
        )

    # -- sending ------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send one message and wait for the broker's answer.

        queue: where to; then it is tried once. selector, arg: the same with a queue that the selector
        chooses, called with the topic's queues, the message and `arg` (see
        `rocketpy.client.routing.selectors`).
        Without either the topic's queues take turns, and failed attempts are repeated (`RetryConfig`).
        timeout_ms: for all attempts together, waiting included; `ProducerConfig.send_timeout_ms` when None.

        Returns the result, whose status may be other than SEND_OK. Raises a RocketError that tells by
        `outcome` whether the message may be stored: UsageErrors and RouteNotFound mean NOT_SENT, BrokerError
        and TransportError say. Waits while too much is in flight; FlowControlled if that takes all the time.
        Cancelling it does not call the message back: it may be stored.
        """
        sends = self._sends or _started(self._sends)
        kind = kind_of(message)
        if sends.limiter.refuses(len(message.body)):
            return await sends.send(kind, message, queue, selector, arg, timeout_ms)
        return await sends.hand_over(kind, message, queue, selector, arg, timeout_ms)

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """Hand over one message; return the future of its result. RocketMQ's asynchronous send.

        Messages of one queue handed over one after the other are sent in that order. One that finds nothing
        in flight leaves at once, the others of that turn of the event loop in one write. The future fails as
        `send` raises. Raises at once what the caller did wrong (UsageErrors), among them FlowControlled when
        too much is in flight: `await drain()` in loops.
        """
        sends = self._sends or _started(self._sends)
        kind = kind_of(message)
        if sends.limiter.refuses(len(message.body)):
            sends.limiter.check(len(message.body))
        return sends.hand_over(kind, message, queue, selector, arg, timeout_ms)

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> None:
        """Hand over one message that nobody answers: it is not repeated, and may be lost without a word.

        Raises UsageErrors, among them FlowControlled: `await drain()` in loops.
        """
        sends = _started(self._sends)
        check_message(message)
        sends.limiter.check(len(message.body))
        future = sends.hand_over(OnewaySend, message, queue, selector, arg, None)
        future.add_done_callback(self._oneway_ended)

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in few requests; return a result for each, in order.

        All go to one queue, one behind the other: `queue`, or the one whose turn it is. A list too long for
        one request (`BatchConfig.max_bytes`) is cut into several, sent one after the other, each with its
        own time-out. Bodies are not compressed.

        Raises MessageInvalid for what a batch cannot hold (several topics, delays, differing wait_store),
        MessageTooLarge, and what `send` raises. When some requests were stored before one failed, the
        error is BatchIncomplete, with the results there are.
        """
        return await self._here().send_batch(messages, queue, timeout_ms)

    async def drain(self) -> None:
        """Wait until there is room for another message, and the connections have taken what was written.

        For loops of `send_nowait`. `flush` waits for the answers.
        """
        await self._here().sender.drain()

    async def flush(self) -> None:
        """Wait until every message accepted so far has ended: stored, failed, or its send cancelled.

        What was gathered for a batch leaves at once. Messages accepted during the wait are not waited for.
        Ends when the last time-out does. Never raises for a failed send: its future or `send` does.
        """
        await self._here().sender.flush()

    async def fetch_publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Short for `fetch_publish_message_queues`."""
        return await self.fetch_publish_message_queues(topic)

    # -- transactions and requests ------------------------------------------------------------

    def check_transactions(self, check: TransactionCheck) -> None:
        """Register what says how transactions of this group ended.

        check: gets a half message whose end the broker has not heard of (`MessageExt.transaction_id`), also
        one that another producer of the group sent, before a restart, say. Returns, or is awaited for, a
        `LocalTransactionState`; UNKNOWN, or an exception, makes the broker ask again later. A plain function
        runs in the event loop and must not block. May be called before `start`.
        """
        if self._client is not None:
            self._client.check_loop()
        self._check = check
        if self._transactions is not None:
            self._transactions.check_with(check)

    async def send_in_transaction(
        self,
        message: Message,
        *,
        local_transaction: LocalTransaction,
        check: TransactionCheck | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionSendResult:
        """Send a message that consumers see only when your own transaction commits.

        The broker keeps the message unseen (*half*). Then `local_transaction` is called with it, its
        `transaction_id` set, and returns, or is awaited for, a `LocalTransactionState`: COMMIT shows the
        message to consumers, ROLLBACK drops it, UNKNOWN leaves it to `check`. When it raises, the state is
        UNKNOWN: the error is logged, and does not come out of here. When the broker stored the half message
        with less than SEND_OK, nothing is called and the state is ROLLBACK.
        `end_delivered` of the result says whether the end was sent; if not, the broker asks `check` later.
        check: registered as by `check_transactions`; the group needs one. timeout_ms: for the half message,
        and again for its end; `ProducerConfig.send_timeout_ms` when None.

        Raises what `send` raises for the half message, ConfigInvalid without a check, MessageInvalid for a
        message with a delay.
        """
        self._here()
        transactions = self.transactions
        if check is not None:
            self.check_transactions(check)
        return await transactions.run(message, local_transaction, timeout_ms)

    @property
    def transactions(self) -> Transactions:
        """The parts of `send_in_transaction`, for shells of their own. Raises ClientClosed."""
        return _started(self._transactions)

    async def request(
        self,
        message: Message,
        *,
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> MessageExt:
        """Send a message and wait for the reply that one of its consumers sends.

        timeout_ms: for both ways together; it travels with the request, as its TTL. queue, selector, arg: as
        in `send`.
        Returns the reply. Raises ReplyTimeout when the request is stored but nobody replied in time, and
        what `send` raises. A reply that comes later is dropped, with a line in the log.
        The consumer replies by `create_reply_message` and `send`.
        """
        ttl_ms = round(check_timeout(timeout_ms))
        sends = self._here()
        check_message(message)

        async def send_singly(request: Message, left_ms: int) -> SendResult:
            return await sends.send(UnbatchedSend, request, queue, selector, arg, left_ms)

        return await _started(self._requests).request(message, ttl_ms, send_singly)

    def request_nowait(
        self,
        message: Message,
        *,
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> asyncio.Future[MessageExt]:
        """`request` as a future, for callbacks or to have several on their way. Raises ClientClosed."""
        self._here()
        asking = self.request(message, timeout_ms=timeout_ms, queue=queue, selector=selector, arg=arg)
        return joined(asking, f"request of producer {self.group}")

    # -- inside -------------------------------------------------------------------------------

    def _running(self) -> ClientInstance:
        if self._client is None or self._closing is not None:
            raise ClientClosed("the producer was not started, or is closed")
        self._client.check_loop()
        return self._client

    def _left_open(self) -> str | None:
        if self._client is None or self._client.is_forked_copy:
            return None
        if self._sends is None or self._closing is not None:
            return None
        count = self._sends.limiter.count
        return f"producer {self.group}" + (f", with {count} messages unanswered," if count else "")

    def _here(self) -> SendDispatcher:
        """What sends. Raises ClientClosed before the start, and in another event loop than the producer's."""
        sends = _started(self._sends)
        _started(self._client).check_loop()
        return sends

    def _oneway_ended(self, future: asyncio.Future[None]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._limited_log.info(type(error).__name__, "a oneway message was not sent: %s", error)


def _started(part: P | None) -> P:
    """What is there once the producer was started. Raises ClientClosed."""
    if part is None:
        raise ClientClosed("the producer was not started: use `async with`, or `await producer.start()`")
    return part
