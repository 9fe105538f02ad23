"""The sender of a producer: accepts sends, keeps them within bounds, and brings each to its end.

A send whose route and connection are there is written at once, by plain calls. One that has to wait for
either hangs at that place, in order, and goes on from there by a plain call too. After a failed attempt
`retry.decide` says what comes next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rocketpy.client.connections import PeerConnection
from rocketpy.client.instance import ClientInstance
from rocketpy.client.routing.latency import BrokerLatencies
from rocketpy.client.routing.routes import select_queue
from rocketpy.config import ProducerConfig
from rocketpy.errors import (
    BrokerError,
    ClientClosed,
    ConnectionLost,
    InvariantError,
    Outcome,
    RemoteProtocolError,
    RocketError,
    RouteNotFound,
    SendForbidden,
    TransportError,
)
from rocketpy.hooks import FailedAttempt, SendCheck
from rocketpy.producer.listeners import Listeners
from rocketpy.producer.send.accumulator import Accumulator
from rocketpy.producer.send.batch_builder import BatchBuilder, ProducerBatch
from rocketpy.producer.send.batch_support import BatchSupport
from rocketpy.producer.send.encoder import MessageEncoder
from rocketpy.producer.send.flow_control import InFlightLimiter
from rocketpy.producer.send.pending import BatchSend, OnewaySend, PendingSend, fail_all
from rocketpy.producer.send.publish_info import TopicPublishInfo
from rocketpy.producer.send.retry import (
    Attempt,
    GiveUp,
    RefreshRoute,
    SendTo,
    copy_of,
    decide,
    route_pause_ms,
)
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.remoting.command import Command
from rocketpy.protocol.remoting.frame import CODEC_JSON
from rocketpy.results import SendResult, SendStatus, Unfinished
from rocketpy.transport import Channel

log = logging.getLogger("rocketpy.producer")

Send = PendingSend[Any]

_FOREVER_MS = 10**9
_SWEEP_MS = 10
"""Grain of time-outs of sends that wait for a route or a connection."""
_PORTION = 64
"""Held sends that are written together, once their broker reads again."""
_BROKERS_FAULT = (TransportError, BrokerError, RemoteProtocolError)


class Sender:
    """All sends of one producer.

    limiter: its bounds. encoder: makes what `accept` takes. accumulator: gathers sends. listeners: are told.
    publish_infos: by topic; asking for one makes it. new_future: of this loop. pause_ms: between two
    questions for the route of a topic that has no master.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        config: ProducerConfig,
        listeners: Listeners,
        checks: Sequence[SendCheck],
    ) -> None:
        self.pause_ms = route_pause_ms(config.retry)
        self.limiter = InFlightLimiter(config.max_in_flight, config.max_in_flight_bytes)
        self.listeners = listeners
        listeners.locate = self._address
        self.loop = asyncio.get_running_loop()
        self.new_future: Callable[[], asyncio.Future[Any]] = partial(asyncio.Future, loop=self.loop)
        self.publish_infos: dict[str, TopicPublishInfo] = _PublishInfos(self._make_publish_info)
        self.encoder = MessageEncoder(self, config, client.address, client.config.namespace)
        self.accumulator = Accumulator(
            config.batch,
            self.limiter,
            self.encoder,
            self._send_batch,
            self._push,
            client.check_loop,
            client.tasks,
        )
        self._client = client
        self._group = group
        self._config = config
        self._checks = tuple(checks)
        self._frames = client.connections.options.codec == CODEC_JSON and not client.connections.hooks
        self._batch_support = BatchSupport(client.now_ms)
        latency = config.latency
        self._latencies = (
            BrokerLatencies(latency.latency_ms, latency.away_ms, latency.failed_ms)
            if latency.enabled
            else None
        )
        self._live: dict[Send, None] = {}
        self._waiting: dict[Send, None] = {}
        self._blocked: dict[Channel, dict[Send, tuple[MessageQueue, PeerConnection]]] = {}
        self._written: list[Send] = []
        self._unpushed: dict[TopicPublishInfo, None] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._tasks = client.tasks
        client.on_fork.append(self._forked)

    @property
    def rejecting_batches(self) -> tuple[str, ...]:
        """Names of brokers that refused the last batch they got."""
        return self._batch_support.rejecting

    # -- accepting ----------------------------------------------------------------------------

    def _make_publish_info(self, topic: str) -> TopicPublishInfo:
        config = self._config
        return TopicPublishInfo(
            self._client,
            self._group,
            topic,
            config.default_topic,
            config.default_topic_queues,
            random.randrange(1 << 16),
        )

    def _address(self, queue: MessageQueue) -> str | None:
        """Where the broker of a queue listens."""
        publish_info = self.publish_infos.get(queue.topic)
        link = publish_info.link(queue) if publish_info is not None else None
        return link.address if link is not None else None

    async def drain(self) -> None:
        """Wait until a send would be accepted, and the connections have taken what was written."""
        if self.limiter.refuses(1):
            await self.limiter.wait(1, _FOREVER_MS)
        for publish_info in list(self.publish_infos.values()):
            for link in {id(link): link for _, link in publish_info.queue_connections}.values():
                if link.channel is not None and not link.channel.is_writable:
                    # A connection that is lost takes nothing more; each send on it says what became of it.
                    with contextlib.suppress(ConnectionLost):
                        await link.channel.drain()

    async def flush(self) -> None:
        """Let gathered batches leave, and wait until every send accepted so far has ended."""
        self.accumulator.flush()
        if ending := [future for send in self._live for future in send.waiting]:
            await asyncio.wait(ending)

    def accept(self, send: Send) -> None:
        """Take a send; from now on it is sure to end. Follow it by `begin`."""
        self._live[send] = None
        self.limiter.count += 1
        self.limiter.bytes += send.size

    def begin(self, send: Send) -> None:
        """Make the first attempt of an accepted send."""
        publish_info = send.publish_info
        queue_connections = publish_info.queue_connections
        if queue_connections and send.given is None and self._latencies is None:
            turn = publish_info.turn
            publish_info.turn = turn + 1
            queue, link = queue_connections[turn % len(queue_connections)]
            self._transmit(send, queue, link, send.accepted_ms)
            return
        given_link = publish_info.link(send.given) if send.given is not None else None
        if given_link is not None and send.given is not None:
            self._transmit(send, send.given, given_link, send.accepted_ms)
        else:
            self._go_on(send)

    def begin_late(self, send: Send) -> None:
        """Make the first attempt of a send that was accepted a while ago, unless it has ended meanwhile."""
        if send in self._live:
            if send.is_cancelled:
                self._end(send, ClientClosed("the send was cancelled"))
            else:
                self.begin(send)

    # -- batches ------------------------------------------------------------------------------

    def _send_batch(self, batch: BatchBuilder) -> None:
        """A batch has been gathered and leaves; its messages are counted already."""
        self._unpushed[batch.publish_info] = None
        try:
            send = self.encoder.alone(batch) if len(batch.messages) == 1 else self.encoder.gathered(batch)
        except Exception as error:
            # The callers are not here to see it: they would wait for ever, and so would all that leave later.
            log.exception("%d messages for %s cannot be sent", len(batch.messages), batch.publish_info.topic)
            self._notice(error)
            self.limiter.free(batch.size, len(batch.messages))
            for event in batch.events:
                self.listeners.ended(event, error)
            fail_all(batch.futures, error)
            return
        self._live[send] = None
        if self._drop_if_cancelled(send):
            self.begin(send)

    def _drop_if_cancelled(self, send: Send) -> bool:
        """Whether somebody waits for it. What nobody waits for any more is taken out of a batch."""
        if type(send) is ProducerBatch:
            drop_cancelled = send.drop_cancelled()
            if drop_cancelled is not None:
                self.limiter.free(drop_cancelled.size, drop_cancelled.messages)
                for event in drop_cancelled.events:
                    self.listeners.ended(event, asyncio.CancelledError())
        if send.is_cancelled:
            self._end(send, ClientClosed("the send was cancelled"))
            return False
        return True

    def _split(self, batch: ProducerBatch) -> None:
        """Send the messages of a batch one by one."""
        del self._live[batch]
        parts = list(batch.parts())
        for part in parts:
            self._live[part] = None
        for part in parts:
            if not self._drop_if_cancelled(part):
                continue
            if part.attempts:
                self._go_on(part)
            else:
                self.begin(part)

    def _is_blocked(self, send: Send, queue: MessageQueue, link: PeerConnection, channel: Channel) -> bool:
        """Whether a send may not leave now, or not as it is: see `BatchSupport`."""
        if not channel.is_writable:
            self._block(send, queue, link, channel)
            return True
        name = queue.broker_name
        if name in self._batch_support.asked:
            self._park(send)
            self._batch_support.wait(name, partial(self._opened, send, queue, link, None))
            return True
        if type(send) is ProducerBatch:
            if self._batch_support.refuses(name):
                self._split(send)
                return True
            self._batch_support.ask(name, send)
        return False

    def _push(self) -> None:
        """Put on the wire what batches have written."""
        unpushed, self._unpushed = self._unpushed, {}
        for publish_info in unpushed:
            for link in publish_info.links:
                if link.channel is not None:
                    link.channel.flush()

    # -- attempts -----------------------------------------------------------------------------

    def _transmit(self, send: Send, queue: MessageQueue, link: PeerConnection, now_ms: float) -> None:
        """Write a send's request, or hang it at a link that is not open."""
        channel = link.channel
        if channel is None:
            self._park(send)
            link.when_open(partial(self._opened, send, queue, link))
            return
        hot = channel.is_writable and not self._batch_support.asked
        if (not hot or type(send) is ProducerBatch) and self._is_blocked(send, queue, link, channel):
            return
        send.queue = queue
        send.sent_ms = now_ms
        if self._checks and not self._passes_checks(send, queue):
            return
        try:
            if not self._frames:
                self._write_command(send, queue, link)
            elif type(send) is OnewaySend:
                channel.write(send.frame(queue.queue_id, 0))
                self._release_later(send)
            else:
                send.on_wire = True
                opaque = channel.expect(send, send.deadline_ms)
                frame = send.frame(queue.queue_id, opaque)
                if self.limiter.count == 1:
                    channel.write_now(frame)
                else:
                    channel.write(frame)
        except ConnectionLost:
            # The connection is just ending, and nothing was written: this was no attempt yet.
            send.on_wire = False
            self._batch_support.take_back(queue.broker_name, send)
            if link.channel is channel:
                link.channel = None
            self._transmit(send, queue, link, now_ms)
        except Exception as error:  # noqa: BLE001 - logged there, and the callers'
            self._not_written(send, queue, error)

    def _not_written(self, send: Send, queue: MessageQueue, error: Exception) -> None:
        send.on_wire = False
        if isinstance(error, RocketError):
            self.failed(send, error)
            return
        # A bug here, or a value that nobody checked. It is this send's alone: others go on.
        log.error("a send to %s cannot be written", queue, exc_info=error)
        self._notice(error)
        self._batch_support.take_back(queue.broker_name, send)
        self._end(send, error)

    def _notice(self, error: Exception) -> None:
        """A broken invariant is the client's failure, not only that of the send that came across it."""
        if isinstance(error, InvariantError):
            self._tasks.fail("send", error)

    def _block(self, send: Send, queue: MessageQueue, link: PeerConnection, channel: Channel) -> None:
        """Keep a send, unwritten, while its broker does not read what was written before."""
        held = self._blocked.get(channel)
        if held is None:
            held = self._blocked[channel] = {}
            channel.when_writable(partial(self._flush_blocked, channel))
        held[send] = queue, link
        self._park(send)

    def _flush_blocked(self, channel: Channel) -> None:
        """A broker reads again, or its connection has ended: write what was held, as far as it is taken."""
        held = self._blocked.get(channel, {})
        for number, send in enumerate(list(held)):
            if number % _PORTION == 0:
                channel.flush()
            if not channel.is_writable:
                self._flush_blocked_later(channel)
                return
            place = held.pop(send, None)
            if place is not None and self._unpark(send):
                self._transmit(send, *place, self._client.now_ms())
        if held:  # held meanwhile: the parts of a batch that was split, say
            self._flush_blocked_later(channel)
        else:
            self._blocked.pop(channel, None)

    def _flush_blocked_later(self, channel: Channel) -> None:
        if channel.is_writable:
            self.loop.call_soon(self._tasks.run, self._flush_blocked, channel)
        else:
            channel.when_writable(partial(self._flush_blocked, channel))

    def _write_command(self, send: Send, queue: MessageQueue, link: PeerConnection) -> None:
        """The way of the other header codecs, and of RPC hooks."""
        command = send.command(queue.queue_id)
        if type(send) is OnewaySend:
            link.put_oneway(command)
            self._release_later(send)
            return
        answer = link.put(command, send.deadline_ms - self._client.now_ms())
        send.on_wire = True
        answer.add_done_callback(partial(_hand_over, send))

    def _passes_checks(self, send: Send, queue: MessageQueue) -> bool:
        """Let the application's checks see each message; fail the send where one of them forbids it."""
        for check in self._checks:
            for message in send.sent:
                try:
                    check(message, queue, self._group)
                except RocketError as error:
                    self.failed(send, error)
                    return False
                except Exception as error:  # noqa: BLE001 - the application's way to say no
                    self.failed(send, _forbidden(error))
                    return False
        return True

    def _opened(
        self, send: Send, queue: MessageQueue, link: PeerConnection, error: RocketError | None
    ) -> None:
        if not self._unpark(send):
            return
        if error is None:
            self._transmit(send, queue, link, self._client.now_ms())
        else:
            send.queue = queue
            self.failed(send, copy_of(error))  # all who waited for this connection are told the same one

    def _go_on(self, send: Send) -> None:
        """Do what `decide` says."""
        publish_info = send.publish_info
        now_ms = self._client.now_ms()
        choose = select_queue if self._latencies is None else self._latencies.chooser(now_ms)
        decision = decide(
            publish_info.view,
            send.attempts,
            now_ms,
            send.rules(self._config.retry),
            publish_info.turn,
            choose,
        )
        if isinstance(decision, GiveUp):
            self._end(send, decision.end)
        elif isinstance(decision, SendTo):
            publish_info.turn += 1
            link = publish_info.link(decision.queue)
            if link is not None:
                self._transmit(send, decision.queue, link, now_ms)
            else:  # an order configuration that names a broker the route lacks
                send.queue = decision.queue
                self.failed(send, RouteNotFound(f"no master of {decision.queue.broker_name} in the route"))
        elif isinstance(decision, RefreshRoute):
            self._park(send)
            publish_info.request_route(partial(self._resume, send), decision.at_ms)
        else:
            self._park(send)
            self.loop.call_later((decision.at_ms - now_ms) / 1000, self._tasks.run, self._resume, send)

    def _resume(self, send: Send) -> None:
        if self._unpark(send):
            self._go_on(send)

    def answered(self, send: Send, results: Sequence[SendResult]) -> None:
        """The broker has stored the messages of a send."""
        if self._latencies is not None and send.queue is not None:
            now_ms = self._client.now_ms()
            self._latencies.update(send.queue.broker_name, now_ms - send.sent_ms, now_ms)
        if type(send) is ProducerBatch:
            self._batch_support.learn(send)
        if results[0].status is not SendStatus.SEND_OK and self._config.retry.another_broker_when_not_ok:
            self._attempt_ended(send, results)
        else:
            self._end(send, results)
        if type(send) is ProducerBatch:
            self._batch_support.go_on()

    def failed(self, send: Send, error: RocketError) -> None:
        """An attempt of a send has failed."""
        if isinstance(send, ProducerBatch):
            self._batch_failed(send, error)
        else:
            if send.queue is not None and not isinstance(send, BatchSend):
                self._batch_support.single_failed(send.queue.broker_name, error)
            self._attempt_ended(send, error)

    def _batch_failed(self, batch: ProducerBatch, error: RocketError) -> None:
        if self._batch_support.learn(batch, error) and batch in self._live:
            self._split(batch)
        else:
            self._attempt_ended(batch, error)
        self._batch_support.go_on()

    def _attempt_ended(self, send: Send, end: RocketError | Sequence[SendResult]) -> None:
        if send not in self._live or send.queue is None:
            return
        now_ms = self._client.now_ms()
        if self._latencies is not None and isinstance(end, _BROKERS_FAULT):
            self._latencies.update(send.queue.broker_name, 0, now_ms, failed=True)
        send.attempts += (Attempt(send.queue, end, now_ms),)
        for event in send.events:
            event.attempts = len(send.attempts)
            event.failures += (FailedAttempt(send.queue, end, time.time_ns()),)
        if type(send) is OnewaySend:
            self._end(send, end)
        elif self._drop_if_cancelled(send):
            self._go_on(send)

    # -- ends ---------------------------------------------------------------------------------

    def _end(self, send: Send, end: Exception | Sequence[SendResult]) -> None:
        """Take a send off the bounds and tell its callers."""
        if send not in self._live:
            return
        del self._live[send]
        self.limiter.free(send.size, send.count)
        if send.events:
            for event, how in send.ends(end):
                event.queue = send.queue
                self.listeners.ended(event, how)
        if isinstance(end, Exception):
            send.fail(end)
        else:
            send.resolve(end)
        if self._idle is not None and not self._live and not self._idle.done():
            self._idle.set_result(None)

    def _release_later(self, send: Send) -> None:
        """A oneway send counts until the end of the loop's turn, when the connection has it."""
        self._written.append(send)
        if len(self._written) == 1:
            self.loop.call_soon(self._tasks.run, self._release_written)

    def _release_written(self) -> None:
        written, self._written = self._written, []
        for send in written:
            self._end(send, ())

    def _park(self, send: Send) -> None:
        """The send waits for a route, a connection or a pause to end; mind its time-out meanwhile."""
        self._waiting[send] = None
        if self._sweeper is None or self._sweeper.when() * 1000 > send.deadline_ms + _SWEEP_MS:
            if self._sweeper is not None:
                self._sweeper.cancel()
            self._sweeper = self.loop.call_at(
                (send.deadline_ms + _SWEEP_MS) / 1000, self._tasks.run, self._sweep
            )

    def _unpark(self, send: Send) -> bool:
        """Whether a send that has waited is to go on: not one that has ended meanwhile, or was cancelled."""
        if send not in self._waiting:
            return False
        del self._waiting[send]
        for held in self._blocked.values():
            held.pop(send, None)
        return self._drop_if_cancelled(send)

    def _sweep(self) -> None:
        self._sweeper = None
        now_ms = self._client.now_ms()
        for send in [send for send in self._waiting if send.deadline_ms <= now_ms or send.is_cancelled]:
            self._resume(send)
        if self._waiting:
            self._park(min(self._waiting, key=lambda send: send.deadline_ms))

    def refuse(self) -> None:
        """Accept no more; what was gathered leaves."""
        self.limiter.close(ClientClosed("the producer is closed"))
        self.accumulator.flush()

    def _forked(self, reason: RocketError) -> None:
        """In a forked child: refuse with the reason. Nobody there waits for room: no task of ours is run."""
        self.limiter.closed = reason

    async def close(self, timeout_ms: float) -> list[Unfinished]:
        """Wait for what was accepted, and end the rest; return its messages. After `refuse`."""
        if self._live and timeout_ms > 0:
            self._idle = self.loop.create_future()
            await asyncio.wait([self._idle], timeout=timeout_ms / 1000)
        unfinished = []
        for send in list(self._live):
            unsure = send.on_wire or any(_unknown(attempt) for attempt in send.attempts)
            outcome = Outcome.UNKNOWN if unsure else Outcome.NOT_SENT
            unfinished += [Unfinished(message, outcome) for message in send.sent]
            self._waiting.pop(send, None)
            self._end(send, ClientClosed("the producer was closed before an answer came", outcome=outcome))
        self._blocked.clear()
        for publish_info in self.publish_infos.values():
            publish_info.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._client.on_fork.remove(self._forked)
        return unfinished


class _PublishInfos(dict[str, TopicPublishInfo]):
    """Publishers by topic, each made when it is first asked for."""

    def __init__(self, make: Callable[[str], TopicPublishInfo]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, topic: str) -> TopicPublishInfo:
        publish_info = self[topic] = self._make(topic)
        return publish_info


def _forbidden(reason: Exception) -> SendForbidden:
    error = SendForbidden(f"a check forbids the message: {reason!r}")
    error.__cause__ = reason
    return error


def _unknown(attempt: Attempt) -> bool:
    return not isinstance(attempt.end, RocketError) or attempt.end.outcome is not Outcome.NOT_SENT


def _hand_over(send: Send, answer: asyncio.Future[Command]) -> None:
    error = answer.exception()
    if error is None:
        send.set_result(answer.result())
    elif isinstance(error, RocketError):
        send.set_exception(error)
    else:
        raise error
