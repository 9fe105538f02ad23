"""Producer: the asyncio producer that applications use.

Source: RocketMQ 4.6 DefaultMQProducer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from rocketpy.admin import Lookups
from rocketpy.client import ClientInstance, Health
from rocketpy.config import COMPRESSION_TYPES, ClientConfig, ProducerConfig
from rocketpy.errors import (
    BatchIncomplete,
    ClientClosed,
    ConfigInvalid,
    FlowControlled,
    MessageInvalid,
    MessageTooLarge,
    RocketError,
)
from rocketpy.hooks import SendCheck, SendEvent, SendListener
from rocketpy.lifecycle import Lifecycle
from rocketpy.message import Message, MessageExt, check_group
from rocketpy.message_trace import SENDING, TRACE_GROUP, MessageTrace
from rocketpy.namespace import wrap
from rocketpy.producer.batching import check_batch
from rocketpy.producer.listening import Listeners
from rocketpy.producer.pending import LoneSend, OneMessage, OnewaySend, SingleSend
from rocketpy.producer.preparing import BatchPart
from rocketpy.producer.publisher import Publisher
from rocketpy.producer.request_reply import ReplyMessage, ReplySend, Requests
from rocketpy.producer.selecting import submit_selected
from rocketpy.producer.sending import Engine
from rocketpy.producer.transaction import (
    HalfSend,
    LocalTransaction,
    TransactionCheck,
    Transactions,
    TransactionSendResult,
)
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.compression import compress, compress_if_worth
from rocketpy.repeated import RepeatedLog
from rocketpy.results import SendResult, Unfinished
from rocketpy.routing.selectors import QueueSelector
from rocketpy.telemetry import TelemetryChoice, find_telemetry

__all__ = ["Producer"]

log = logging.getLogger("rocketpy.producer")

R = TypeVar("R")


class Producer(Lookups, Lifecycle):
    """Sends messages. One serves a whole event loop: share it between tasks.

        async with Producer("orders", "127.0.0.1:9876") as producer:
            result = await producer.send(Message("Orders", b"..."))

    group: name of the producer group. namesrv: addresses of name servers, ``host:port;host:port``, or
    ``embedded:``; without it that of `client`, then the environment's NAMESRV_ADDR. config: how it sends.
    client: how it connects; producers and consumers with equal settings share connections. listeners,
    checks: see `rocketpy.hooks`. telemetry: None for what is installed, see `rocketpy.telemetry`.

    May be made outside of an event loop; `start` (or `async with`) binds it to the running one.
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
        self.config: Final = config or ProducerConfig()
        self._client_config: Final = (client or ClientConfig()).at(namesrv)
        self._listeners = tuple(listeners)
        self._telemetry = telemetry
        self._checks = tuple(checks)
        self._gathers = self.config.batching and not self._checks
        self._client: ClientInstance | None = None
        self._engine: Engine | None = None
        self._compress_above = self.config.compression.above_bytes
        self._gather_up_to = min(self._compress_above, self.config.max_message_bytes) if self._gathers else -1
        self._closing: asyncio.Task[list[Unfinished]] | None = None
        self._wire_group = self.group
        self._transactions: Transactions | None = None
        self._requests: Requests | None = None
        self._check: TransactionCheck | None = None
        self._trace: MessageTrace | None = None
        self._trouble = RepeatedLog(log)

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, once. A name server that does not answer yet is no error; see `health`.

        Raises ConfigInvalid, and for ``embedded:`` what starting a broker raises (StoreLocked, …).
        """
        if self._client is not None:
            raise ConfigInvalid(f"producer {self.group} was started before; make a new one")
        telemetry = find_telemetry(self._telemetry)
        compress(b"", COMPRESSION_TYPES[self.config.compression.type])  # is its package here?
        self._client = client = await ClientInstance.acquire(self._client_config)
        self._wire_group = wrap(client.config.namespace, self.group)
        client.add_producer(self._wire_group)
        if self.config.message_trace is not None:
            sender = Producer(
                TRACE_GROUP,
                config=SENDING,
                client=replace(self._client_config, namespace=""),
                telemetry=False,
            )
            self._trace = MessageTrace(self.config.message_trace, sender)
            await self._trace.start()
            self._listeners += (self._trace,)
        listeners = Listeners(self._listeners, self.group, client.client_id)
        listeners.observe(telemetry, client.config.namespace)
        self._engine = Engine(client, self._wire_group, self.config, listeners, self._checks)
        self._transactions = Transactions(client, self._wire_group, self._send_half, listeners.settlers)
        self._requests = Requests(client)
        if self._check is not None:
            self._transactions.check_with(self._check)

    async def close(self, timeout_ms: int | None = None) -> list[Unfinished]:
        """Accept no more, wait for the answers to what was accepted, then disconnect.

        timeout_ms: how long to wait; `ProducerConfig.close_timeout_ms` when None. Returns the messages whose
        answers had not come by then, each with whether a broker may have it; their futures fail with
        ClientClosed, which says the same. Safe to call again: the second call waits for the first.
        """
        if self._engine is None or self._client is None or self._client.is_foreign:
            return []
        if self._closing is None:
            self._engine.refuse()
            self.transactions.close()
            self._requests_of_ours().close()
            wait_ms = self.config.close_timeout_ms if timeout_ms is None else timeout_ms
            self._closing = asyncio.create_task(self._close(self._engine, self._client, wait_ms))
        return await asyncio.shield(self._closing)

    async def _close(self, engine: Engine, client: ClientInstance, wait_ms: int) -> list[Unfinished]:
        try:
            unfinished = await engine.close(wait_ms)
            engine.listeners.close()
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
        engine = self._running()
        if self._client is None:
            raise ClientClosed("the producer was not started")
        health = self._client.health()
        problem = (str(engine.room.closed),) if engine.room.closed is not None else ()
        return replace(
            health,
            ok=health.ok and not problem,
            problems=health.problems + problem,
            in_flight=engine.room.count,
            in_flight_bytes=engine.room.bytes,
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
        chooses, called with the topic's queues, the message and `arg` (see `rocketpy.routing.selectors`).
        Without either the topic's queues take turns, and failed attempts are repeated (`RetryConfig`).
        timeout_ms: for all attempts together, waiting included; `ProducerConfig.send_timeout_ms` when None.

        Returns the result, whose status may be other than SEND_OK. Raises a RocketError that tells by
        `outcome` whether the message may be stored: UsageErrors and RouteNotFound mean NOT_SENT, BrokerError
        and TransportError say. Waits while too much is in flight; FlowControlled if that takes all the time.
        Cancelling it does not call the message back: it may be stored.
        """
        try:
            return await self.send_nowait(
                message, queue=queue, selector=selector, arg=arg, timeout_ms=timeout_ms
            )
        except FlowControlled:
            engine = self._running()
        left_ms = await engine.room.wait(len(message.body), timeout_ms or self.config.send_timeout_ms)
        future: asyncio.Future[SendResult] = engine.new_future()
        if selector is not None:
            self._select(_kind_of(message), engine, message, future, queue, selector, arg, left_ms)
        else:
            self._submit(_kind_of(message), engine, message, future, queue, left_ms)
        return await future

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
        engine = self._engine or self._running()
        if engine.room.refuses(len(message.body)):
            engine.room.check(len(message.body))
        future: asyncio.Future[SendResult] = engine.new_future()
        kind = SingleSend if type(message) is Message else _kind_of(message)
        if selector is None:
            self._submit(kind, engine, message, future, queue, timeout_ms)
        else:
            self._select(kind, engine, message, future, queue, selector, arg, timeout_ms)
        return future

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
        engine = self._running()
        engine.room.check(len(message.body))
        future: asyncio.Future[None] = engine.new_future()
        future.add_done_callback(self._oneway_ended)
        if selector is not None:
            self._select(OnewaySend, engine, message, future, queue, selector, arg, None)
        else:
            self._submit(OnewaySend, engine, message, future, queue, None)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in few requests; return a result for each, in order.

        All go to one queue, one behind the other: `queue`, or the one whose turn it is. A list too long for
        one request (`BatchConfig.max_bytes`) is cut into several, sent one after the other, each with its
        own time-out. Bodies are not compressed.

        Raises MessageInvalid for what a batch cannot hold (several topics, delays, differing wait_store),
        MessageTooLarge, and what `send` raises. When some requests were stored before one failed, the
        error is BatchIncomplete, with the results there are.
        """
        check_batch(messages)
        engine = self._running()
        listeners = engine.listeners
        listeners.look()
        event = listeners.announce(messages) if listeners.all else None
        results: list[SendResult] = []
        try:
            for part in engine.preparer.batch_parts(messages, event):
                try:
                    results += await self._send_part(engine, part, queue, timeout_ms, event)
                except RocketError as error:
                    if not results:
                        raise
                    raise BatchIncomplete(results, len(messages), error) from error
                queue = results[-1].queue  # the rest follows to the same place
        except BaseException as error:
            if event is not None:
                engine.listeners.ended(event, error)
            raise
        if event is not None:
            engine.listeners.ended(event, results)
        return results

    async def drain(self) -> None:
        """Wait until there is room for another message, and the connections have taken what was written."""
        await self._running().drain()

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
        check: registered as by `check_transactions`; the group needs one. timeout_ms: for the half message.

        Raises what `send` raises for the half message, ConfigInvalid without a check, MessageInvalid for a
        message with a delay.
        """
        transactions = self.transactions
        if check is not None:
            self.check_transactions(check)
        return await transactions.run(message, local_transaction, timeout_ms)

    @property
    def transactions(self) -> Transactions:
        """The parts of `send_in_transaction`, for shells of their own. Raises ClientClosed."""
        if self._transactions is None:
            raise ClientClosed("the producer was not started: use `async with`, or `await producer.start()`")
        return self._transactions

    async def request(
        self,
        message: Message,
        *,
        timeout: float = 3.0,  # noqa: ASYNC109 - it travels with the request, as its TTL
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> MessageExt:
        """Send a message and wait for the reply that one of its consumers sends.

        timeout: in seconds, for both ways together. queue, selector, arg: as in `send`.
        Returns the reply. Raises ReplyTimeout when the request is stored but nobody replied in time, and
        what `send` raises. A reply that comes later is dropped, with a line in the log.
        The consumer replies by `create_reply_message` and `send`.
        """
        timeout_ms = max(1, round(timeout * 1000))

        async def send_singly(request: Message, left_ms: int) -> SendResult:
            return await self._send_single(SingleSend, request, queue, selector, arg, left_ms)

        return await self._requests_of_ours().request(message, timeout_ms, send_singly)

    def request_nowait(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> asyncio.Future[MessageExt]:
        """`request` as a future, for callbacks or to have several on their way. Raises ClientClosed."""
        loop = self._running().loop
        return loop.create_task(
            self.request(message, timeout=timeout, queue=queue, selector=selector, arg=arg)
        )

    # -- inside -------------------------------------------------------------------------------

    def _asking(self) -> ClientInstance:
        if self._client is None or self._closing is not None:
            raise ClientClosed("the producer was not started, or is closed")
        return self._client

    def _requests_of_ours(self) -> Requests:
        if self._requests is None:
            raise ClientClosed("the producer was not started: use `async with`, or `await producer.start()`")
        return self._requests

    async def _send_half(
        self, message: Message, timeout_ms: int | None
    ) -> tuple[SendResult, Mapping[str, str]]:
        engine = self._running()
        timeout_ms = await self._room_for(message, timeout_ms)
        future: asyncio.Future[SendResult] = engine.new_future()
        event = self._submit(HalfSend, engine, message, future, None, timeout_ms)
        return await future, event.extra_properties[0] if event is not None else {}

    async def _send_single(
        self,
        kind: type[SingleSend],
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        arg: object,
        timeout_ms: int | None,
    ) -> SendResult:
        """Send a message that must never travel in a batch."""
        kind = LoneSend if kind is SingleSend else kind
        engine = self._running()
        timeout_ms = await self._room_for(message, timeout_ms)
        future: asyncio.Future[SendResult] = engine.new_future()
        if selector is not None:
            self._select(kind, engine, message, future, queue, selector, arg, timeout_ms)
        else:
            self._submit(kind, engine, message, future, queue, timeout_ms)
        return await future

    async def _room_for(self, message: Message, timeout_ms: int | None) -> int | None:
        """Wait until a message would be accepted; what is left of the time-out."""
        room = self._running().room
        if room.refuses(len(message.body)):
            return await room.wait(len(message.body), timeout_ms or self.config.send_timeout_ms)
        return timeout_ms

    def _select(
        self,
        kind: type[OneMessage[R]],
        engine: Engine,
        message: Message,
        future: asyncio.Future[R],
        queue: MessageQueue | None,
        selector: QueueSelector,
        arg: object,
        timeout_ms: int | None,
    ) -> None:
        """Submit one message to the queue that a selector chooses."""
        if queue is not None:
            raise MessageInvalid(f"both queue={queue} and a selector were given; a message goes to one queue")

        def submit(chosen: MessageQueue, left_ms: int) -> None:
            self._submit(kind, engine, message, future, chosen, left_ms)

        submit_selected(
            engine, message, future, selector, arg, timeout_ms or self.config.send_timeout_ms, submit
        )

    def _running(self) -> Engine:
        if self._engine is None:
            raise ClientClosed("the producer was not started: use `async with`, or `await producer.start()`")
        return self._engine

    def _oneway_ended(self, future: asyncio.Future[None]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._trouble.info(type(error).__name__, "a oneway message was not sent: %s", error)

    def _submit(
        self,
        kind: type[OneMessage[Any]],
        engine: Engine,
        message: Message,
        future: asyncio.Future[Any],
        queue: MessageQueue | None,
        timeout_ms: int | None,
    ) -> SendEvent | None:
        """Check one message, accept it, and send it as far as that goes without waiting.

        Returns what listeners follow, unless it was gathered.
        """
        size = len(message.body)
        publisher = engine.publishers[message.topic]
        config = self.config
        listeners = engine.listeners
        if listeners.dormant and not engine.room.count:
            listeners.look()
        if (
            kind is SingleSend
            and size <= self._gather_up_to
            and not message.delay_level
            and publisher.takes_batches
            and (engine.room.count or not engine.accumulator.is_calm)
        ):
            timeout_ms = timeout_ms or config.send_timeout_ms
            if listeners.all:
                _gather_announced(engine, publisher, message, future, queue, timeout_ms)
            else:
                engine.accumulator.add(publisher, message, future, None, queue, timeout_ms)
            return None
        if size > config.max_message_bytes:
            raise MessageTooLarge(f"a body of {size} bytes, {config.max_message_bytes} are allowed")
        event = listeners.announce((message,), oneway=kind is OnewaySend) if listeners.all else None
        try:
            send = engine.preparer.single(kind, publisher, message, future, queue, event)
        except RocketError as error:
            if event is not None:
                listeners.ended(event, error)
            raise
        send.deadline_ms = send.accepted_ms + (timeout_ms or config.send_timeout_ms)
        if self._gathers:
            engine.accumulator.flush_topic(publisher)
        engine.accept(send)
        if size <= self._compress_above:
            engine.begin(send)
        else:
            self._compress(engine, send)
        return event

    def _compress(self, engine: Engine, send: OneMessage[R]) -> None:
        """Compress its body, then begin. On a thread when it is long and no order would be lost by that."""
        config = self.config.compression
        if send.given is not None or send.size <= config.off_loop_above_bytes:
            send.body, send.sys_flag = compress_if_worth(
                send.body, COMPRESSION_TYPES[config.type], config.level
            )
            engine.begin(send)
        elif self._client is not None:
            self._client.tasks.spawn(self._compress_on_thread(engine, send), "compression")

    async def _compress_on_thread(self, engine: Engine, send: OneMessage[R]) -> None:
        try:
            send.body, send.sys_flag = await engine.loop.run_in_executor(
                None,
                compress_if_worth,
                send.body,
                COMPRESSION_TYPES[self.config.compression.type],
                self.config.compression.level,
            )
        finally:
            # Also when that failed: the body is then as it was, and goes like that.
            engine.begin_late(send)

    async def _send_part(
        self,
        engine: Engine,
        part: BatchPart,
        queue: MessageQueue | None,
        timeout_ms: int | None,
        event: SendEvent | None,
    ) -> Sequence[SendResult]:
        """Send one request of a batch."""
        timeout_ms = timeout_ms or self.config.send_timeout_ms
        if engine.room.refuses(len(part.body)):
            timeout_ms = await engine.room.wait(len(part.body), timeout_ms)
        future: asyncio.Future[Sequence[SendResult]] = engine.new_future()
        send = engine.preparer.batch(engine.publishers[part.messages[0].topic], part, future, queue, event)
        send.deadline_ms = send.accepted_ms + timeout_ms
        engine.accept(send)
        engine.begin(send)
        return await future


def _gather_announced(
    engine: Engine,
    publisher: Publisher,
    message: Message,
    future: asyncio.Future[SendResult],
    queue: MessageQueue | None,
    timeout_ms: int,
) -> None:
    """Accept a message that travels with others, should there be any, and tell the listeners."""
    event = engine.listeners.announce((message,))
    try:
        engine.accumulator.add(publisher, message, future, event, queue, timeout_ms)
    except RocketError as error:
        engine.listeners.ended(event, error)
        raise


def _kind_of(message: Message) -> type[SingleSend]:
    if type(message) is Message:
        return SingleSend
    return ReplySend if isinstance(message, ReplyMessage) else SingleSend
