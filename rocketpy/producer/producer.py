"""Producer: the asyncio producer that applications use.

Source: RocketMQ 4.6 DefaultMQProducer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, Self, TypeVar

from rocketpy.client import ClientInstance, Health
from rocketpy.config import ClientConfig, ProducerConfig
from rocketpy.errors import (
    BatchIncomplete,
    ClientClosed,
    ConfigInvalid,
    FlowControlled,
    MessageTooLarge,
    RocketError,
)
from rocketpy.hooks import SendListener
from rocketpy.message import Message, check_group
from rocketpy.producer.batching import check_batch
from rocketpy.producer.pending import OnewaySend, Pending, SingleSend
from rocketpy.producer.preparing import BatchPart
from rocketpy.producer.sending import Engine
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.compression import compress_if_worth
from rocketpy.results import SendResult, Unfinished
from rocketpy.routing import publish_route

__all__ = ["Producer"]

log = logging.getLogger("rocketpy.producer")

R = TypeVar("R")


class Producer:
    """Sends messages. One serves a whole event loop: share it between tasks.

        async with Producer("orders", "127.0.0.1:9876") as producer:
            result = await producer.send(Message("Orders", b"..."))

    group: name of the producer group. namesrv: addresses of name servers, ``host:port;host:port``, or
    ``embedded:``; without it that of `client`, then the environment's NAMESRV_ADDR. config: how it sends.
    client: how it connects; producers and consumers with equal settings share connections. listeners:
    see `rocketpy.hooks`.

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
    ) -> None:
        self.group: Final = check_group(group)
        self.config: Final = config or ProducerConfig()
        client = client or ClientConfig()
        self._client_config = replace(client, namesrv=namesrv) if namesrv is not None else client
        self._listeners = tuple(listeners)
        self._client: ClientInstance | None = None
        self._engine: Engine | None = None
        self._compress_above = self.config.compression.above_bytes
        self._closing: asyncio.Task[list[Unfinished]] | None = None

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, once. A name server that does not answer yet is no error; see `health`.

        Raises ConfigInvalid, and for ``embedded:`` what starting a broker raises (StoreLocked, …).
        """
        if self._client is not None:
            raise ConfigInvalid(f"producer {self.group} was started before; make a new one")
        self._client = client = await ClientInstance.acquire(self._client_config)
        client.add_producer(self.group)
        self._engine = Engine(client, self.group, self.config, self._listeners)

    async def close(self, timeout_ms: int | None = None) -> list[Unfinished]:
        """Accept no more, wait for the answers to what was accepted, then disconnect.

        timeout_ms: how long to wait; `ProducerConfig.close_timeout_ms` when None. Returns the messages whose
        answers had not come by then, each with whether a broker may have it; their futures fail with
        ClientClosed, which says the same. Safe to call again: the second call waits for the first.
        """
        if self._engine is None or self._client is None:
            return []
        if self._closing is None:
            self._engine.refuse()
            wait_ms = self.config.close_timeout_ms if timeout_ms is None else timeout_ms
            self._closing = asyncio.create_task(self._close(self._engine, self._client, wait_ms))
        return await asyncio.shield(self._closing)

    async def _close(self, engine: Engine, client: ClientInstance, wait_ms: int) -> list[Unfinished]:
        try:
            unfinished = await engine.close(wait_ms)
            if unfinished:
                log.warning("producer %s closed with %d messages unanswered", self.group, len(unfinished))
            await client.remove_producer(self.group)
        finally:
            await client.release()
        return unfinished

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

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
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send one message and wait for the broker's answer.

        queue: where to; then it is tried once. Without it the topic's queues take turns, and failed
        attempts are repeated (`RetryConfig`). timeout_ms: for all attempts together, waiting included;
        `ProducerConfig.send_timeout_ms` when None.

        Returns the result, whose status may be other than SEND_OK. Raises a RocketError that tells by
        `outcome` whether the message may be stored: UsageErrors and RouteNotFound mean NOT_SENT, BrokerError
        and TransportError say. Waits while too much is in flight; FlowControlled if that takes all the time.
        Cancelling it does not call the message back: it may be stored.
        """
        try:
            return await self.send_nowait(message, queue=queue, timeout_ms=timeout_ms)
        except FlowControlled:
            engine = self._running()
        left_ms = await engine.room.wait(len(message.body), timeout_ms or self.config.send_timeout_ms)
        future: asyncio.Future[SendResult] = engine.loop.create_future()
        self._submit(SingleSend, engine, message, future, queue, left_ms)
        return await future

    def send_nowait(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> asyncio.Future[SendResult]:
        """Hand over one message; return the future of its result. RocketMQ's asynchronous send.

        Messages of one queue handed over one after the other are sent in that order. Those of one turn of
        the event loop leave in one write. The future fails as `send` raises. Raises at once what the
        caller did wrong (UsageErrors), among them FlowControlled when too much is in flight: `await
        drain()` in loops.
        """
        engine = self._engine or self._running()
        if engine.room.refuses(len(message.body)):
            engine.room.check(len(message.body))
        future: asyncio.Future[SendResult] = engine.loop.create_future()
        self._submit(SingleSend, engine, message, future, queue, timeout_ms)
        return future

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Hand over one message that nobody answers: it is not repeated, and may be lost without a word.

        Raises UsageErrors, among them FlowControlled: `await drain()` in loops.
        """
        engine = self._running()
        engine.room.check(len(message.body))
        future: asyncio.Future[None] = engine.loop.create_future()
        future.add_done_callback(_log_oneway)
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
        event = engine.announce(messages)
        results: list[SendResult] = []
        try:
            for part in engine.preparer.batch_parts(messages, event):
                try:
                    results += await self._send_part(engine, part, queue, timeout_ms)
                except RocketError as error:
                    if not results:
                        raise
                    raise BatchIncomplete(results, len(messages), error) from error
                queue = results[-1].queue  # the rest follows to the same place
        except BaseException as error:
            if event is not None:
                engine.tell_ended(event, error)
            raise
        if event is not None:
            engine.tell_ended(event, results)
        return results

    async def drain(self) -> None:
        """Wait until there is room for another message, and the connections have taken what was written."""
        await self._running().drain()

    async def fetch_publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that messages of a topic may be sent to. Raises RouteNotFound, TransportError."""
        self._running()
        if self._client is None:
            raise ClientClosed("the producer was not started")
        return publish_route(topic, await self._client.route(topic, fresh=True)).queues

    # -- inside -------------------------------------------------------------------------------

    def _running(self) -> Engine:
        if self._engine is None:
            raise ClientClosed("the producer was not started: use `async with`, or `await producer.start()`")
        return self._engine

    def _submit(
        self,
        kind: type[Pending[R]],
        engine: Engine,
        message: Message,
        future: asyncio.Future[R],
        queue: MessageQueue | None,
        timeout_ms: int | None,
    ) -> None:
        """Check one message, accept it, and send it as far as that goes without waiting."""
        config = self.config
        size = len(message.body)
        if size > config.max_message_bytes:
            raise MessageTooLarge(f"a body of {size} bytes, {config.max_message_bytes} are allowed")
        event = engine.announce((message,), oneway=kind is OnewaySend) if self._listeners else None
        try:
            send = engine.preparer.single(
                kind, engine.publisher(message.topic), message, future, queue, event
            )
        except RocketError as error:
            if event is not None:
                engine.tell_ended(event, error)
            raise
        send.deadline_ms = send.accepted_ms + (timeout_ms or config.send_timeout_ms)
        engine.accept(send)
        if size <= self._compress_above:
            engine.begin(send)
        else:
            self._compress(engine, send)

    def _compress(self, engine: Engine, send: Pending[R]) -> None:
        """Compress its body, then begin. On a thread when it is long and no order would be lost by that."""
        config = self.config.compression
        if send.given is not None or send.size <= config.off_loop_above_bytes:
            send.body, send.sys_flag = compress_if_worth(send.body, 0, config.level)
            engine.begin(send)
        elif self._client is not None:
            self._client.tasks.spawn(self._compress_on_thread(engine, send), "compression")

    async def _compress_on_thread(self, engine: Engine, send: Pending[R]) -> None:
        try:
            send.body, send.sys_flag = await engine.loop.run_in_executor(
                None, compress_if_worth, send.body, 0, self.config.compression.level
            )
        finally:
            # Also when that failed: the body is then as it was, and goes like that.
            engine.begin_late(send)

    async def _send_part(
        self, engine: Engine, part: BatchPart, queue: MessageQueue | None, timeout_ms: int | None
    ) -> Sequence[SendResult]:
        """Send one request of a batch."""
        timeout_ms = timeout_ms or self.config.send_timeout_ms
        if engine.room.refuses(len(part.body)):
            timeout_ms = await engine.room.wait(len(part.body), timeout_ms)
        future: asyncio.Future[Sequence[SendResult]] = engine.loop.create_future()
        send = engine.preparer.batch(engine.publisher(part.messages[0].topic), part, future, queue)
        send.deadline_ms = send.accepted_ms + timeout_ms
        engine.accept(send)
        engine.begin(send)
        return await future


def _log_oneway(future: asyncio.Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.info("a oneway message was not sent: %s", error)
