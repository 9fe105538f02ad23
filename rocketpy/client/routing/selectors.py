"""Selectors: an application's own choice of queue, such as the same queue for all messages of one order.

A selector is any callable that gets the topic's queues, the message and the argument of the send, and returns
one of the queues. It is called once a send, in the event loop; the send is tried once, at that queue.

    await producer.send(message, selector=by_hash, arg=order_id)

The queues come in a steady order (by broker name, then number), but their number changes when a broker comes,
goes or gets more queues; only topics with an order configuration keep it.

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
"""(queues, message, argument) -> queue. The queues are never empty. What it raises, the send raises."""

_INT: Final = range(-(2**31), 2**31)
_LONG_MASK: Final = 2**64 - 1


def by_hash(queues: Sequence[MessageQueue], _message: Message, arg: object) -> MessageQueue:
    """Equal arguments to the same queue: the place a Java producer with SelectMessageQueueByHash chooses.

    arg: a text, or a number; of anything else its text counts.
    Differs for the one hash whose absolute value Java cannot hold: Java fails there.
    """
    return queues[abs(java_hash(arg)) % len(queues)]


def by_random(queues: Sequence[MessageQueue], _message: Message, _arg: object) -> MessageQueue:
    """Any queue."""
    return random.choice(queues)


class RoundRobin:
    """The next queue, a turn of its own a topic. One object is one sequence of turns: keep it."""

    def __init__(self) -> None:
        self._turns: Counter[str] = Counter()

    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
        """Take the next turn."""
        turn = self._turns[message.topic]
        self._turns[message.topic] = turn + 1
        return queues[turn % len(queues)]


class ByMachineRoom:
    """Queues of brokers that stand in given machine rooms, in turn.

    rooms: their names; a broker says its own before an ``@`` in its name (``room1@broker-a``), as for
    RocketMQ's AllocateMessageQueueByMachineRoom. Differs: RocketMQ's selector of this name returns null.
    Raises RouteNotFound when no queue is in any of the rooms.
    """

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms: Final = frozenset([rooms] if isinstance(rooms, str) else rooms)
        self._next = RoundRobin()

    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
        """Take the next turn among the queues in these rooms."""
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
    """Java's ``hashCode``: of a String, of an Integer or Long for a number, else of the value's text."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value in _INT:
            return value
        if -(2**63) <= value < 2**63:
            bits = value & _LONG_MASK
            low = (bits ^ bits >> 32) & 0xFFFF_FFFF
            return low - 2**32 if low >= 2**31 else low
    return string_hash(value if isinstance(value, str) else str(value))
