"""Selectors: choose the queue of a message, such as one queue for all messages of an order.

A selector is called with the queues of the topic, the message and the argument of the send; it returns one of
the queues. It is called once for each send, in the event loop. The send has one attempt, to that queue.

    await producer.send(message, selector=by_hash, arg=order_id)

The queues are sorted by broker name and queue id. Their number changes when a broker joins, leaves or gets
more queues; only topics with an order configuration keep it.

Source: RocketMQ 4.6 MessageQueueSelector, SelectMessageQueueByHash, ...ByRandom, ...ByMachineRoom.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rocketpy.errors import RouteNotFound
from rocketpy.message.message import Message
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.java import string_hash

QueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]
"""(queues, message, argument) -> queue. There is at least one queue. The send raises what the selector
raises."""

_INT: Final = range(-(2**31), 2**31)
_LONG_MASK: Final = 2**64 - 1


def by_hash(queues: Sequence[MessageQueue], _message: Message, arg: object) -> MessageQueue:
    """Return the same queue for equal arguments, as a Java producer with SelectMessageQueueByHash does.

    Differs for the hash -2147483648, whose absolute value Java cannot hold: Java fails there.

    Args:
        queues: The queues of the topic.
        arg: A string or an integer; any other value is hashed as its string form.
    """
    return queues[abs(java_hash(arg)) % len(queues)]


def by_random(queues: Sequence[MessageQueue], _message: Message, _arg: object) -> MessageQueue:
    """Return a random queue."""
    return random.choice(queues)


class RoundRobin:
    """Selects the queues of each topic round-robin. It keeps the positions: reuse it for all sends."""

    def __init__(self) -> None:
        self._turns: Counter[str] = Counter()

    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
        """Return the next queue."""
        turn = self._turns[message.topic]
        self._turns[message.topic] = turn + 1
        return queues[turn % len(queues)]


class ByMachineRoom:
    """Selects the queues of brokers in given machine rooms round-robin.

    The name of a broker has its room before an ``@`` (``room1@broker-a``), as for RocketMQ's
    AllocateMessageQueueByMachineRoom. Differs: RocketMQ's selector of this name returns null.

    Args:
        rooms: The names of the rooms.
    """

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms: Final = frozenset([rooms] if isinstance(rooms, str) else rooms)
        self._next = RoundRobin()

    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
        """Return the next queue in these rooms. Raises RouteNotFound when there is none."""
        near = [queue for queue in queues if self._room_of(queue) in self._rooms]
        if not near:
            names = ", ".join(sorted({queue.broker_name for queue in queues}))
            raise RouteNotFound(
                f"topic {message.topic} has no queue in machine rooms {sorted(self._rooms)}, only on {names}"
            )
        return self._next(near, message, arg)

    @staticmethod
    def _room_of(queue: MessageQueue) -> str | None:
        room, separator, _ = queue.broker_name.partition("@")
        return room if separator else None


def java_hash(value: object) -> int:
    """Return Java's ``hashCode`` of an Integer, a Long or a String; of the string form of other values."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value in _INT:
            return value
        if -(2**63) <= value < 2**63:
            bits = value & _LONG_MASK
            low = (bits ^ bits >> 32) & 0xFFFF_FFFF
            return low - 2**32 if low >= 2**31 else low
    return string_hash(value if isinstance(value, str) else str(value))
