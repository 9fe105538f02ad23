"""Which queue is next."""

from __future__ import annotations

from collections.abc import Sequence

from rocketpy.protocol.bodies import MessageQueue


def select_queue(queues: Sequence[MessageQueue], turn: int, avoid_broker: str | None = None) -> MessageQueue:
    """The queue whose turn it is, on another broker than `avoid_broker` where there is one.

    queues: not empty. turn: any number; the caller adds one each time.
    Source: RocketMQ 4.6 TopicPublishInfo selectOneMessageQueue.
    """
    count = len(queues)
    if avoid_broker is not None:
        for step in range(count):
            queue = queues[(turn + step) % count]
            if queue.broker_name != avoid_broker:
                return queue
    return queues[turn % count]
