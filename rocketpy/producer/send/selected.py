"""Sends whose queue the application's selector chooses, which it can do only once the route is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rocketpy.client.routing.selectors import QueueSelector
from rocketpy.errors import MessageInvalid, Outcome, RequestTimeout, RocketError, RouteNotFound
from rocketpy.message.message import Message
from rocketpy.producer.send.publish_info import Publisher
from rocketpy.producer.send.retry import no_master, waits_for_master
from rocketpy.producer.send.sender import Engine
from rocketpy.protocol.bodies import MessageQueue

Submit = Callable[[MessageQueue, int], None]
"""Sends to a queue within so many ms."""


def choose(publisher: Publisher, selector: QueueSelector, message: Message, arg: object) -> MessageQueue:
    """The selector's queue. Raises what it raises, RouteNotFound, and MessageInvalid for what is no queue."""
    route = publisher.view.route
    if route is None or not route.queues:
        raise publisher.view.error or RouteNotFound(f"topic {message.topic} has no queue that may be written")
    queue = selector(route.queues, message, arg)
    if not isinstance(queue, MessageQueue):
        raise MessageInvalid(
            f"the selector {selector!r} returned {queue!r}, and not a queue of those it got "
            f"(its arg was {arg!r})"
        )
    return queue


def submit_selected(
    engine: Engine,
    message: Message,
    future: asyncio.Future[Any],
    selector: QueueSelector,
    arg: object,
    timeout_ms: int,
    submit: Submit,
) -> None:
    """Choose the queue and send: at once when the route is known, else after asking for it.

    Sends of one topic that wait for its route go on in their order, and count against the bounds meanwhile.
    What goes wrong at once is raised, what goes wrong later comes by the future.
    """
    publisher = engine.publishers[message.topic]
    if publisher.places:
        submit(choose(publisher, selector, message, arg), timeout_ms)
        return
    size = len(message.body)
    engine.room.count += 1
    engine.room.bytes += size
    until = engine.loop.time() + timeout_ms / 1000

    def go_on() -> None:
        known = publisher.view
        if not future.done() and engine.room.closed is None and waits_for_master(known.route):
            left_ms = (until - engine.loop.time()) * 1000
            if left_ms > 0:
                publisher.when_asked(go_on, known.asked_ms + min(engine.pause_ms, left_ms))
                return
        engine.room.free(size)
        if future.done():
            return
        try:
            left_ms = _time_left(engine, until, timeout_ms, message.topic)
            submit(choose(publisher, selector, message, arg), left_ms)
        except Exception as error:  # noqa: BLE001 - the selector is the application's; its error is the caller's
            if isinstance(error, RocketError):
                error.outcome = Outcome.NOT_SENT
            future.set_exception(error)

    publisher.when_asked(go_on)


def _time_left(engine: Engine, until: float, timeout_ms: int, topic: str) -> int:
    """Milliseconds. Raises RequestTimeout when there are none, and ClientClosed."""
    if engine.room.closed is not None:
        raise engine.room.closed
    left_ms = int((until - engine.loop.time()) * 1000)
    route = engine.publishers[topic].view.route
    if left_ms <= 0 and route is not None and waits_for_master(route):
        raise no_master(route, timeout_ms)
    if left_ms <= 0:
        raise RequestTimeout(f"no route for {topic} within {timeout_ms} ms", outcome=Outcome.NOT_SENT)
    return left_ms
