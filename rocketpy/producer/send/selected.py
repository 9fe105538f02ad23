"""Sends whose queue the application's selector chooses, which it can do only once the route is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rocketpy.client.routing.selectors import QueueSelector
from rocketpy.errors import MessageInvalid, Outcome, RequestTimeout, RocketError, RouteNotFound
from rocketpy.message.message import Message
from rocketpy.producer.send.publish_info import TopicPublishInfo
from rocketpy.producer.send.retry import is_waiting_for_master, no_master
from rocketpy.producer.send.sender import Sender
from rocketpy.protocol.bodies import MessageQueue

Submit = Callable[[MessageQueue, int], None]
"""Sends to a queue within so many ms."""


def choose(
    publish_info: TopicPublishInfo, selector: QueueSelector, message: Message, arg: object
) -> MessageQueue:
    """The selector's queue. Raises what it raises, RouteNotFound, and MessageInvalid for what is no queue."""
    route = publish_info.view.route
    if route is None or not route.queues:
        raise publish_info.view.error or RouteNotFound(
            f"topic {message.topic} has no queue that may be written"
        )
    queue = selector(route.queues, message, arg)
    if not isinstance(queue, MessageQueue):
        raise MessageInvalid(
            f"the selector {selector!r} returned {queue!r}, and not a queue of those it got "
            f"(its arg was {arg!r})"
        )
    return queue


def submit_selected(
    sender: Sender,
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
    publish_info = sender.publish_infos[message.topic]
    if publish_info.queue_connections:
        submit(choose(publish_info, selector, message, arg), timeout_ms)
        return
    size = len(message.body)
    sender.limiter.count += 1
    sender.limiter.bytes += size
    until = sender.loop.time() + timeout_ms / 1000

    def go_on() -> None:
        known = publish_info.view
        if not future.done() and sender.limiter.closed is None and is_waiting_for_master(known.route):
            left_ms = (until - sender.loop.time()) * 1000
            if left_ms > 0:
                publish_info.request_route(go_on, known.asked_ms + min(sender.pause_ms, left_ms))
                return
        sender.limiter.free(size)
        if future.done():
            return
        try:
            left_ms = _time_left(sender, until, timeout_ms, message.topic)
            submit(choose(publish_info, selector, message, arg), left_ms)
        except Exception as error:  # noqa: BLE001 - the selector is the application's; its error is the caller's
            if isinstance(error, RocketError):
                error.outcome = Outcome.NOT_SENT
            future.set_exception(error)

    publish_info.request_route(go_on)


def _time_left(sender: Sender, until: float, timeout_ms: int, topic: str) -> int:
    """Milliseconds. Raises RequestTimeout when there are none, and ClientClosed."""
    if sender.limiter.closed is not None:
        raise sender.limiter.closed
    left_ms = int((until - sender.loop.time()) * 1000)
    route = sender.publish_infos[topic].view.route
    if left_ms <= 0 and route is not None and is_waiting_for_master(route):
        raise no_master(route, timeout_ms)
    if left_ms <= 0:
        raise RequestTimeout(f"no route for {topic} within {timeout_ms} ms", outcome=Outcome.NOT_SENT)
    return left_ms
