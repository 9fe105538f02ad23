"""The engine of a producer: accepts sends, keeps them within bounds, and brings each to its end.

A send whose route and connection are there is written at once, by plain calls. One that has to wait for
either hangs at that place, in order, and goes on from there by a plain call too. After a failed attempt
`retry.decide` says what comes next.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rocketpy.client import ClientInstance
from rocketpy.config import ProducerConfig
from rocketpy.errors import ClientClosed, Outcome, RocketError, RouteNotFound
from rocketpy.hooks import SendEvent, SendListener
from rocketpy.links import Link
from rocketpy.message import Message
from rocketpy.producer.pending import OnewaySend, Pending
from rocketpy.producer.preparing import Preparer
from rocketpy.producer.publisher import Publisher
from rocketpy.producer.retry import Attempt, GiveUp, RefreshRoute, SendTo, decide
from rocketpy.producer.room import Room
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.command import Command
from rocketpy.protocol.frame import CODEC_JSON
from rocketpy.results import SendResult, SendStatus, Unfinished

__all__ = ["Engine"]

log = logging.getLogger("rocketpy.producer")

Send = Pending[Any]

_FOREVER_MS = 10**9
_SWEEP_MS = 10
"""Grain of time-outs of sends that wait for a route or a connection."""


class Engine:
    """All sends of one producer. room: its bounds. preparer: makes what `accept` takes."""

    def __init__(
        self, client: ClientInstance, group: str, config: ProducerConfig, listeners: Sequence[SendListener]
    ) -> None:
        self.room = Room(config.max_in_flight, config.max_in_flight_bytes)
        self._client = client
        self._group = group
        self._config = config
        self._listeners = tuple(listeners)
        self.loop = asyncio.get_running_loop()
        self.preparer = Preparer(self, config, client.address)
        self._json = client.links.options.codec == CODEC_JSON
        self._publishers: dict[str, Publisher] = {}
        self._live: dict[Send, None] = {}
        self._waiting: dict[Send, None] = {}
        self._written: list[Send] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None

    # -- accepting ----------------------------------------------------------------------------

    def publisher(self, topic: str) -> Publisher:
        """The topic's publisher."""
        publisher = self._publishers.get(topic)
        if publisher is None:
            config = self._config
            publisher = self._publishers[topic] = Publisher(
                self._client,
                self._group,
                topic,
                config.default_topic,
                config.default_topic_queues,
                random.randrange(1 << 16),
            )
        return publisher

    async def drain(self) -> None:
        """Wait until a send would be accepted, and the connections have taken what was written."""
        if self.room.refuses(1):
            await self.room.wait(1, _FOREVER_MS)
        for publisher in self._publishers.values():
            for link in {id(link): link for _, link in publisher.places}.values():
                if link.channel is not None and not link.channel.is_writable:
                    await link.channel.drain()

    def accept(self, send: Send) -> None:
        """Take a send; from now on it is sure to end. Follow it by `begin`."""
        self._live[send] = None
        self.room.count += 1
        self.room.bytes += send.size

    def begin(self, send: Send) -> None:
        """Make the first attempt of an accepted send."""
        publisher = send.publisher
        places = publisher.places
        if places and send.given is None:
            turn = publisher.turn
            publisher.turn = turn + 1
            queue, link = places[turn % len(places)]
            self._transmit(send, queue, link, send.accepted_ms)
            return
        given_link = publisher.link(send.given) if send.given is not None else None
        if given_link is not None and send.given is not None:
            self._transmit(send, send.given, given_link, send.accepted_ms)
        else:
            self._go_on(send)

    def begin_late(self, send: Send) -> None:
        """Make the first attempt of a send that was accepted a while ago, unless it has ended meanwhile."""
        if send in self._live:
            if send.future.cancelled():
                self._end(send, ClientClosed("the send was cancelled"))
            else:
                self.begin(send)

    # -- attempts -----------------------------------------------------------------------------

    def _transmit(self, send: Send, queue: MessageQueue, link: Link, now_ms: float) -> None:
        """Write a send's request, or hang it at a link that is not open."""
        channel = link.channel
        if channel is None:
            self._hang(send)
            link.when_open(partial(self._opened, send, queue, link))
            return
        send.queue = queue
        try:
            if not self._json:
                self._write_command(send, link)
            elif type(send) is OnewaySend:
                channel.write(send.frame(queue.queue_id, 0))
                self._release_later(send)
            else:
                send.on_wire = True
                opaque = channel.expect(send, send.deadline_ms - now_ms)
                channel.write(send.frame(queue.queue_id, opaque))
        except ClientClosed:
            # The connection is just ending, and nothing was written: this was no attempt yet.
            send.on_wire = False
            link.channel = None
            self._transmit(send, queue, link, now_ms)
        except RocketError as error:
            send.on_wire = False
            self.failed(send, error)

    def _write_command(self, send: Send, link: Link) -> None:
        """The way of the other header codecs."""
        channel, queue = link.channel, send.queue
        if channel is None or queue is None:
            return
        command = send.command(queue.queue_id)
        if type(send) is OnewaySend:
            channel.oneway(command)
            self._release_later(send)
            return
        answer = channel.request(command, send.deadline_ms - self._client.now_ms())
        send.on_wire = True
        answer.add_done_callback(partial(_hand_over, send))

    def _opened(self, send: Send, queue: MessageQueue, link: Link, error: RocketError | None) -> None:
        if not self._unhang(send):
            return
        if error is None:
            self._transmit(send, queue, link, self._client.now_ms())
        else:
            send.queue = queue
            self.failed(send, error)

    def _go_on(self, send: Send) -> None:
        """Do what `decide` says."""
        publisher = send.publisher
        now_ms = self._client.now_ms()
        decision = decide(
            publisher.view, send.attempts, now_ms, send.rules(self._config.retry), publisher.turn
        )
        if isinstance(decision, GiveUp):
            self._end(send, decision.end)
        elif isinstance(decision, SendTo):
            publisher.turn += 1
            link = publisher.link(decision.queue)
            if link is not None:
                self._transmit(send, decision.queue, link, now_ms)
            else:  # an order configuration that names a broker the route lacks
                send.queue = decision.queue
                self.failed(send, RouteNotFound(f"no master of {decision.queue.broker_name} in the route"))
        elif isinstance(decision, RefreshRoute):
            self._hang(send)
            publisher.when_asked(partial(self._resume, send))
        else:
            self._hang(send)
            self.loop.call_later((decision.at_ms - now_ms) / 1000, self._resume, send)

    def _resume(self, send: Send) -> None:
        if self._unhang(send):
            self._go_on(send)

    def answered(self, send: Send, results: Sequence[SendResult]) -> None:
        """The broker has stored the messages of a send."""
        if results[0].status is not SendStatus.SEND_OK and self._config.retry.another_broker_when_not_ok:
            self._attempt_ended(send, results)
        else:
            self._end(send, results)

    def failed(self, send: Send, error: RocketError) -> None:
        """An attempt of a send has failed."""
        self._attempt_ended(send, error)

    def _attempt_ended(self, send: Send, end: RocketError | Sequence[SendResult]) -> None:
        if send not in self._live or send.queue is None:
            return
        send.attempts += (Attempt(send.queue, end, self._client.now_ms()),)
        if send.event is not None:
            send.event.attempts = len(send.attempts)
        if type(send) is OnewaySend or send.future.done():
            self._end(send, end)
        else:
            self._go_on(send)

    # -- ends ---------------------------------------------------------------------------------

    def _end(self, send: Send, end: RocketError | Sequence[SendResult]) -> None:
        """Take a send off the bounds and tell its caller."""
        if send not in self._live:
            return
        del self._live[send]
        self.room.free(send.size)
        if send.event is not None:
            self.tell_ended(send.event, asyncio.CancelledError() if send.future.cancelled() else end)
        if not isinstance(end, RocketError):
            send.resolve(end)
        elif not send.future.done():
            send.future.set_exception(end)
        if self._idle is not None and not self._live and not self._idle.done():
            self._idle.set_result(None)

    def _release_later(self, send: Send) -> None:
        """A oneway send counts until the end of the loop's turn, when the connection has it."""
        self._written.append(send)
        if len(self._written) == 1:
            self.loop.call_soon(self._release_written)

    def _release_written(self) -> None:
        written, self._written = self._written, []
        for send in written:
            self._end(send, ())

    def _hang(self, send: Send) -> None:
        """The send waits for a route, a connection or a pause to end; mind its time-out meanwhile."""
        self._waiting[send] = None
        if self._sweeper is None or self._sweeper.when() * 1000 > send.deadline_ms + _SWEEP_MS:
            if self._sweeper is not None:
                self._sweeper.cancel()
            self._sweeper = self.loop.call_at((send.deadline_ms + _SWEEP_MS) / 1000, self._sweep)

    def _unhang(self, send: Send) -> bool:
        """Whether a send that has waited is to go on: not one that has ended meanwhile, or was cancelled."""
        if send not in self._waiting:
            return False
        del self._waiting[send]
        if send.future.cancelled():
            self._end(send, ClientClosed("the send was cancelled"))
            return False
        return True

    def _sweep(self) -> None:
        self._sweeper = None
        now_ms = self._client.now_ms()
        for send in [send for send in self._waiting if send.deadline_ms <= now_ms or send.future.done()]:
            self._resume(send)
        if self._waiting:
            self._hang(min(self._waiting, key=lambda send: send.deadline_ms))

    def refuse(self) -> None:
        """Accept no more."""
        self.room.close(ClientClosed("the producer is closed"))

    async def close(self, timeout_ms: float) -> list[Unfinished]:
        """Wait for what was accepted, and end the rest; return its messages. After `refuse`."""
        if self._live and timeout_ms > 0:
            self._idle = self.loop.create_future()
            await asyncio.wait([self._idle], timeout=timeout_ms / 1000)
        unfinished = []
        for send in list(self._live):
            unsure = send.on_wire or any(_unknown(attempt) for attempt in send.attempts)
            outcome = Outcome.UNKNOWN if unsure else Outcome.NOT_SENT
            unfinished += [Unfinished(message, outcome) for message in send.messages]
            self._waiting.pop(send, None)
            self._end(send, ClientClosed("the producer was closed before an answer came", outcome=outcome))
        for publisher in self._publishers.values():
            publisher.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        return unfinished

    # -- listeners ----------------------------------------------------------------------------

    def announce(self, messages: Sequence[Message], *, oneway: bool = False) -> SendEvent | None:
        """Tell listeners of a send that is about to be accepted; None when there are none."""
        if not self._listeners:
            return None
        event = SendEvent(messages, self._group, self._client.client_id, oneway=oneway)
        for listener in self._listeners:
            _guarded(partial(listener.started, event))
        return event

    def tell_ended(self, event: SendEvent, end: BaseException | Sequence[SendResult]) -> None:
        """Tell listeners how a send that was announced ended."""
        for listener in self._listeners:
            if isinstance(end, BaseException):
                _guarded(partial(listener.failed, event, end))
            else:
                _guarded(partial(listener.completed, event, end))


def _guarded(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        # Telemetry that fails must not take the message down with it.
        log.exception("a send listener failed")


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
