"""Producer: the asyncio producer that applications use.

Source: RocketMQ 4.6 DefaultMQProducer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from rocketpy.client.admin import AdminApi
from rocketpy.client.broker_api import BrokerApi
from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import wrap
from rocketpy.client.routing.selectors import QueueSelector
from rocketpy.config import (
    COMPRESSION_TYPES,
    ClientConfig,
    MessageTraceConfig,
    ProducerConfig,
    check_number,
    check_timeout,
    config_of,
    resolve,
)
from rocketpy.errors import ClientClosed, UsageError
from rocketpy.hooks import SendCheck, SendListener
from rocketpy.message.encoded import EncodedBatch
from rocketpy.message.message import Message, MessageExt, check_group, check_message
from rocketpy.producer.listeners import Listeners
from rocketpy.producer.recall import recall
from rocketpy.producer.request_reply import Requester
from rocketpy.producer.send.accumulator import Accumulator
from rocketpy.producer.send.encoder import MessageEncoder
from rocketpy.producer.send.flow_control import InFlightLimiter
from rocketpy.producer.send.pending import ONEWAY, SINGLE, UNBATCHED
from rocketpy.producer.send.publish_info import PublishInfoTable
from rocketpy.producer.send.sender import Sender
from rocketpy.producer.send.submitter import Submitter, kind_of
from rocketpy.producer.transaction import (
    LocalTransaction,
    TransactionCheck,
    Transactions,
    TransactionSendResult,
)
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.compression import compress
from rocketpy.results import Health, SendResult, Unfinished
from rocketpy.runtime.application import check_callable
from rocketpy.runtime.progress import Jobs
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import close_all, subtask
from rocketpy.telemetry.message_trace import SENDING, TRACE_GROUP, MessageTrace
from rocketpy.telemetry.plugin import Telemetry, TelemetryChoice, failure_counter, find_telemetry

log: Final = logging.getLogger("rocketpy.producer")

_ONEWAY: Final = "oneway sending"

P = TypeVar("P")


class Producer(AdminApi):
    """Sends messages. One producer serves a whole event loop: share it between tasks.

        async with Producer("orders", "127.0.0.1:9876") as producer:
            result = await producer.send(Message("Orders", b"..."))

    A producer may be created outside of an event loop; `start` (or `async with`) binds it to the running one.
    In another event loop or thread its methods raise ClientClosed: create one for each, or use
    `rocketpy.sync`.

    Args:
        group: Name of the producer group.
        namesrv: Addresses of name servers, ``host:port;host:port``, or ``embedded:``. Without it that of
            `client` is used, then the environment variables ROCKETPY_NAMESRV and NAMESRV_ADDR.
        config: How to send.
        client: How to connect; producers and consumers with equal settings share connections.
        listeners: Called for each send; see `rocketpy.hooks`.
        checks: Called for each message before each attempt; see `rocketpy.hooks`. They turn batching off.
        telemetry: None for the installed one; see `rocketpy.telemetry`.

    Raises:
        GroupInvalid: The group's name is not valid.
        ConfigInvalid: An argument is not valid.
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
        self._send_listeners = tuple(listeners)
        self._telemetry = telemetry
        self._checks = tuple(checks)
        for check in self._checks:
            check_callable(f"a check of producer {group}", check, "message", "queue", "group")
        self._listeners: Listeners | None = None
        self._publish_infos: PublishInfoTable | None = None
        self._sender: Sender | None = None
        self._submitter: Submitter | None = None
        self._transactions: Transactions | None = None
        self._requester: Requester | None = None
        self._closing: asyncio.Task[list[Unfinished]] | None = None
        self._wire_group = self.group
        self._check: TransactionCheck | None = None
        self._trace: MessageTrace | None = None
        self._limited_log = RateLimitedLog(log)
        self._jobs = Jobs()

    # -- start and close ----------------------------------------------------------------------

    async def start(self, *, wait: bool = True) -> None:
        """Connect and start. A producer can be started once.

        Args:
            wait: Wait until a name server responds, at most `ClientConfig.request_timeout_ms`. Without it
                `start` returns immediately, sends wait for a name server until their timeout, and `health`
                reports when none responds.

        Raises:
            TransportError: No name server responded; `start` can be called again.
            ConfigInvalid: The producer was started before, or a setting is not valid.
            RocketError: With ``embedded:``, the servers cannot start (StoreLocked, …).
        """
        telemetry = find_telemetry(self._telemetry)
        compress(b"", COMPRESSION_TYPES[self.config.compression.type])  # raises if its package is missing
        client = await self._connect(self._client_config, f"producer {self.group}", wait=wait)
        self._wire_group = wrap(client.config.namespace, self.group)
        client.add_producer(self._wire_group)
        try:
            await self._start_trace(wait=wait)
        except BaseException:  # also when cancelled
            try:
                await client.remove_producer(self._wire_group)
            finally:
                await client.release()
            raise
        self._count_failure = failure_counter(telemetry, f"producer {self.group}")
        client.tasks.on_failure.append(self._count_failure)
        self._connect_parts(client, telemetry)
        if self._check is not None:
            self.transactions.set_check(self._check)

    def _connect_parts(self, client: ClientInstance, telemetry: Telemetry | None) -> None:
        """Create the objects of the send path from its end, the sender, to its start, the submitter."""
        config, group, namespace = self.config, self._wire_group, client.config.namespace
        self._publish_infos = publish_infos = PublishInfoTable(client, group, config)
        limiter = InFlightLimiter(config.max_in_flight, config.max_in_flight_bytes)
        self._listeners = listeners = Listeners(
            self._send_listeners,
            self.group,
            client.client_id,
            publish_infos.address,
            client.tasks,
            telemetry,
            namespace,
        )
        self._sender = Sender(client, group, config, limiter, publish_infos, listeners, self._checks)
        encoder = MessageEncoder(config, client.address, namespace)
        accumulator = Accumulator(
            config.batch, limiter, encoder, self._sender, client.check_loop, client.tasks
        )
        batching = config.batching and not self._checks
        self._submitter = Submitter(
            client,
            config,
            limiter,
            publish_infos,
            listeners,
            accumulator,
            encoder,
            self._sender,
            batching=batching,
        )
        self._transactions = Transactions(
            client,
            group,
            self._submitter.send_half,
            listeners.settle_listeners,
            config.send_timeout_ms,
            require_send_ok=config.require_send_ok,
        )
        self._requester = Requester(client)

    async def _start_trace(self, *, wait: bool) -> None:
        """Start the message trace if the configuration asks for one."""
        if self.config.message_trace is not None:
            self._trace = create_trace(self.config.message_trace, self._client_config)
            await self._trace.start(wait=wait)
            self._send_listeners += (self._trace,)

    async def close(self, timeout_ms: int | None = None) -> list[Unfinished]:
        """Reject new sends, wait for the responses to the accepted ones and for checks, then disconnect.

        It is safe to call this again: the second call waits for the first. In a transaction check of this
        producer, it returns immediately, and the close continues after the check.

        Args:
            timeout_ms: How long to wait; `ProducerConfig.close_timeout_ms` if None.

        Returns:
            The messages without a response by then, each with whether a broker may have stored it. Their
            futures fail with ClientClosed and the same outcome.
        """
        if self._submitter is None or self._client is None or self._client.is_forked_copy:
            return []
        if self._closing is not None and self._closing.done():
            return self._closing.result()
        self._client.check_loop()
        wait_ms = self.config.close_timeout_ms if timeout_ms is None else timeout_ms
        check_number("timeout_ms", wait_ms, 0)
        if self._closing is None:
            self._submitter.close(ClientClosed("the producer is closed"))
            self.transactions.close()
            _started(self._requester).close()
            self._closing = subtask(self._close(self._client, wait_ms), f"close producer {self.group}")
        if self.transactions.is_checking():
            return []  # the close waits for this check
        return await asyncio.shield(self._closing)

    async def _close(self, client: ClientInstance, wait_ms: int) -> list[Unfinished]:
        try:
            client.tasks.on_failure.remove(self._count_failure)
            unfinished = await _started(self._sender).close(wait_ms)
            await _started(self._transactions).wait_checks(wait_ms)
            _started(self._listeners).close()
            if unfinished:
                log.warning("producer %s closed with %d messages unanswered", self.group, len(unfinished))
        finally:
            await close_all(partial(client.remove_producer, self._wire_group), self._trace, client.release)
        return unfinished

    def health(self) -> Health:
        """Return the state of the producer and its connections.

        Raises:
            ClientClosed: The producer was not started.
        """
        limiter = _started(self._submitter).limiter
        health = _started(self._client).health()
        problems = [] if limiter.closed is None else [str(limiter.closed)]
        problems += self._failing()
        return replace(
            health,
            ok=health.ok and not problems,
            problems=(*health.problems, *problems),
            in_flight=limiter.count,
            in_flight_bytes=limiter.bytes,
            rejecting_batches=_started(self._sender).rejecting_batches,
            less_durable=_started(self._sender).less_durable.messages,
        )

    def _failing(self) -> list[str]:
        """Return what has failed for a time, and still does: look-ups for sends, oneway sends, trace reports.

        What is not tried any more is left out: an application may send to a topic once that does not exist.
        """
        limit_ms = self._client_config.stalled_after_ms
        jobs = [_started(self._publish_infos).jobs, self._jobs, *([self._trace.jobs] if self._trace else [])]
        return [text for one in jobs for text in one.problems(limit_ms, limit_ms)]

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
        """Send one message and wait for the broker's response.

        Without `queue` and `selector`, messages go to the topic's queues in turn, and failed attempts are
        repeated (`RetryConfig`). While too much is in flight, the call waits. After a cancellation the
        message may still be stored.

        Args:
            message: The message.
            queue: The queue to send it to, with one attempt.
            selector: Chooses the queue, also with one attempt. It is called with the topic's queues, the
                message and `arg`; see `rocketpy.client.routing.selectors`.
            arg: Passed to the selector.
            timeout_ms: For all attempts and waiting together; `ProducerConfig.send_timeout_ms` if None.

        Returns:
            The result, whose status may be other than SEND_OK unless `ProducerConfig.require_send_ok` is set.

        Raises:
            UsageError: An argument is not valid, or FlowControlled: too much was in flight until the
                timeout.
            NotDurable: The status is not SEND_OK, and `ProducerConfig.require_send_ok` is set.
            RouteNotFound: The topic has no queue to send to.
            BrokerError: The broker rejected the message.
            TransportError: A connection failed, or the timeout has passed.

        The `outcome` of an error tells whether the message may be stored.
        """
        submitter = self._submitter or _started(self._submitter)  # saves a call per message
        kind = SINGLE if type(message) is Message else kind_of(message)
        if submitter.limiter.would_block(len(message.body)):
            timeout_ms = await submitter.wait_for_limiter(message, timeout_ms)
        return await submitter.submit(kind, message, queue, selector, arg, timeout_ms)

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """Send one message without waiting. RocketMQ's asynchronous send.

        Messages for one queue are sent in the order of the calls. While nothing is in flight, a message is
        sent immediately; others are sent together at the end of the event loop iteration. In loops, call
        `await drain()`. See `send` for the arguments.

        Returns:
            The future of the result. It fails with what `send` raises.

        Raises:
            UsageError: An argument is not valid, or FlowControlled: too much is in flight.
        """
        submitter = self._submitter or _started(self._submitter)  # saves a call per message
        kind = SINGLE if type(message) is Message else kind_of(message)
        size = len(message.body)
        if submitter.limiter.would_block(size):
            submitter.limiter.check(size)
        return submitter.submit(kind, message, queue, selector, arg, timeout_ms)

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> None:
        """Send one message without a response. It is not repeated and may be lost without an error.

        In loops, call `await drain()`. See `send` for the arguments.

        Raises:
            UsageError: An argument is not valid, or FlowControlled: too much is in flight.
        """
        submitter = _started(self._submitter)
        check_message(message)
        submitter.limiter.check(len(message.body))
        future = submitter.submit(ONEWAY, message, queue, selector, arg, None)
        future.add_done_callback(self._oneway_ended)

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in few requests.

        All go to one queue, in their order. A list too long for one request (`BatchConfig.max_bytes`) is sent
        as several requests one after the other. In a request either all bodies are compressed or none. Long
        bodies are compressed unless that takes more requests. Without `queue`, a large batch is compressed in
        a thread, and a later batch may overtake it.

        Args:
            messages: The messages.
            queue: The queue to send them to; the next one in turn if None.
            timeout_ms: For each request; `ProducerConfig.send_timeout_ms` if None.

        Returns:
            A result for each message, in order.

        Raises:
            MessageInvalid: The messages cannot be one batch (several topics, delays, differing wait_store).
            MessageTooLarge: A message is above the limit.
            BatchIncomplete: Some requests were stored before one failed. The error has their results.
            NotDurable: A status is not SEND_OK, and `ProducerConfig.require_send_ok` is set. All are stored.
            RocketError: What `send` raises.
        """
        return list(await self._running_submitter().send_batch(messages, queue, timeout_ms))

    async def send_encoded(
        self, batch: EncodedBatch, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> Sequence[SendResult]:
        """Do what `send_batch` does with messages that are already encoded, for integrations.

        The results of one request are made on access.
        """
        return await self._running_submitter().send_batch(batch, queue, timeout_ms)

    async def drain(self) -> None:
        """Wait until another message would be accepted, and the connections have taken what was written.

        Call it in loops of `send_nowait`. It does not wait for responses, as `flush` does.
        """
        self._running_submitter()
        await _started(self._sender).drain()

    async def flush(self) -> None:
        """Wait until every message accepted so far has ended: stored, failed, or cancelled.

        Open batches are sent immediately. Messages accepted during the wait are not waited for. The wait ends
        at the latest with the last timeout. A failed send does not make it raise.
        """
        self._running_submitter().flush()
        await _started(self._sender).flush()

    async def recall(self, topic: str, handle: str) -> str:
        """Take a message back that is not due yet: consumers will not get it.

        The call can be repeated. A message that is due within the next second may be delivered nevertheless.
        Brokers of RocketMQ 5 also accept the handle of a message that they do not have; rocketpy's refuse it.

        Args:
            topic: The topic of the message.
            handle: `SendResult.recall_handle`, which messages with `deliver_at` or `delay` have.

        Returns:
            The id of the message (`SendResult.message_id`).

        Raises:
            MessageInvalid: The text is not a handle, or one of another topic.
            BrokerError: The message is due already, or the broker cannot recall messages.
            RouteNotFound: The broker of the message is unknown to the name servers.
            TransportError: A connection failed, or `ProducerConfig.send_timeout_ms` has passed.
        """
        self._running_submitter()
        api = BrokerApi(self._running_client(), self.config.send_timeout_ms)
        return await recall(api, self._wire_group, topic, handle)

    # -- transactions and requests ------------------------------------------------------------

    def check_transactions(self, check: TransactionCheck) -> None:
        """Register the function that reports the state of transactions whose end the broker does not know.

        It may be called before `start`.

        Args:
            check: Called with a half message (`MessageExt.transaction_id`). Another producer of the group may
                have sent it, for instance before a restart. Returns a `LocalTransactionState` or an awaitable
                of one; after UNKNOWN or an exception the broker asks again later. A plain function runs in
                the event loop and must not block.
        """
        if self._client is not None:
            self._client.check_loop()
        self._check = check
        if self._transactions is not None:
            self._transactions.set_check(check)

    async def send_in_transaction(
        self,
        message: Message,
        *,
        local_transaction: LocalTransaction,
        check: TransactionCheck | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionSendResult:
        """Send a message that consumers see only when your own transaction commits.

        The broker keeps the message invisible (*half*). Then `local_transaction` is called: COMMIT makes the
        message visible to consumers, ROLLBACK drops it, UNKNOWN leaves the decision to `check`. If it raises,
        the error is logged and the state is UNKNOWN. If the status of the half message is not SEND_OK,
        `local_transaction` is not called and the state is ROLLBACK; with `ProducerConfig.require_send_ok`
        NotDurable is raised then.

        Args:
            message: The message.
            local_transaction: Called with the message, whose `transaction_id` is set. Returns a
                `LocalTransactionState` or an awaitable of one.
            check: Registered as by `check_transactions`; the group needs one.
            timeout_ms: For the half message, and again for its end; `ProducerConfig.send_timeout_ms` if None.

        Returns:
            The result. If the end was not sent (`end_delivered`), the broker asks `check` later.

        Raises:
            ConfigInvalid: The group has no check.
            MessageInvalid: The message has a delay.
            RocketError: What `send` raises, for the half message.
        """
        self._running_submitter()
        if check is not None:
            self.check_transactions(check)
        return await self.transactions.run(message, local_transaction, timeout_ms)

    @property
    def transactions(self) -> Transactions:
        """The steps of `send_in_transaction`, for wrappers. Raises ClientClosed."""
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
        """Send a message and wait for the reply of a consumer, which uses `create_reply_message`.

        A reply that comes after the timeout is dropped and logged.

        Args:
            message: The request.
            timeout_ms: For the request and its reply together; it is sent with the request as its TTL.
            queue: As in `send`.
            selector: As in `send`.
            arg: As in `send`.

        Returns:
            The reply.

        Raises:
            ReplyTimeout: The request is stored, but no reply came in time.
            RequestTimeout: Neither a response of the broker nor a reply came in time.
            ClientClosed: The producer was closed meanwhile; the request may be stored.
            RocketError: What `send` raises.
        """
        ttl_ms = round(check_timeout(timeout_ms))
        submitter = self._running_submitter()
        check_message(message)

        async def send(request: Message, left_ms: int | None) -> SendResult:
            left_ms = await submitter.wait_for_limiter(request, left_ms)
            return await submitter.submit(UNBATCHED, request, queue, selector, arg, left_ms)

        return await _started(self._requester).request(message, ttl_ms, send)

    def request_nowait(
        self,
        message: Message,
        *,
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> asyncio.Future[MessageExt]:
        """Do the same as `request` without waiting, for callbacks or several requests at a time.

        Returns:
            The future of the reply.

        Raises:
            ClientClosed: The producer was not started, or is used in another event loop.
        """
        self._running_submitter()
        request = self.request(message, timeout_ms=timeout_ms, queue=queue, selector=selector, arg=arg)
        return subtask(request, f"request of producer {self.group}")

    # -- internals ----------------------------------------------------------------------------

    def _running_client(self) -> ClientInstance:
        if self._client is None or self._closing is not None:
            raise ClientClosed("the producer was not started, or is closed")
        self._client.check_loop()
        return self._client

    def _left_open(self) -> str | None:
        if self._client is None or self._client.is_forked_copy:
            return None
        if self._submitter is None or self._closing is not None:
            return None
        count = self._submitter.limiter.count
        return f"producer {self.group}" + (f", with {count} messages unanswered," if count else "")

    def _running_submitter(self) -> Submitter:
        """Return the submitter. Raises ClientClosed before the start, and in another event loop."""
        submitter = _started(self._submitter)
        _started(self._client).check_loop()
        return submitter

    def _oneway_ended(self, future: asyncio.Future[SendResult]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            if self._jobs.failing:
                self._jobs.ended(_ONEWAY)
        else:
            self._jobs.ended(_ONEWAY, error)
            # Without a response, only the log shows that the message itself is wrong.
            write = self._limited_log.warning if isinstance(error, UsageError) else self._limited_log.info
            write(type(error).__name__, "a oneway message was not sent: %s", error)


def create_trace(config: MessageTraceConfig, client: ClientConfig) -> MessageTrace:
    """Return a message trace with a producer of its own. client: of the traced producer or consumer."""
    own = replace(resolve(client), namespace="")
    return MessageTrace(config, Producer(TRACE_GROUP, config=SENDING, client=own, telemetry=False))


def _started(part: P | None) -> P:
    """Return a part that exists once the producer was started. Raises ClientClosed."""
    if part is None:
        raise ClientClosed("the producer was not started: use `async with`, or `await producer.start()`")
    return part
