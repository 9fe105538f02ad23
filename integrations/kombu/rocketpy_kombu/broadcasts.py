"""Messages for temporary queues: remote control, events and replies.

All exchanges share one topic. Each connection reads it from the time of a binding on, so each gets a copy of
a message, and nothing is kept for connections that have ended. The tag of a message tells brokers which
connections want it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kombu.utils.uuid import uuid

from rocketpy import MessageExt
from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.runtime.tasks import Tasks
from rocketpy_kombu import envelope
from rocketpy_kombu.receiver import Arrival
from rocketpy_kombu.session import Session

log: Final = logging.getLogger("rocketpy.kombu")

_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Binding:
    """A temporary queue that gets the messages of an exchange."""

    queue: str
    exchange: str
    tag: str
    """The tag of the messages, for brokers."""
    matches: Callable[[str], bool]
    """Tells by the routing key whether the queue gets a message."""


class BroadcastReader:
    """Reads the messages for the temporary queues of one connection. Runs in the event loop.

    deliver: called with each message.
    """

    def __init__(self, session: Session, topic: str, deliver: Callable[[Arrival], None]) -> None:
        self._session = session
        self._topic = topic
        self._deliver = deliver
        self._bindings: dict[Binding, dict[MessageQueue, int]] = {}
        """Binding -> the offsets from which on it gets messages."""
        self._offsets: dict[MessageQueue, int] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._tasks = Tasks("kombu broadcasts")
        self._changing = asyncio.Lock()

    async def bind(self, binding: Binding) -> None:
        """Deliver messages that are sent from now on.

        Raises RocketError if the topic cannot be created or its brokers do not respond.
        """
        async with self._changing:
            await self._session.ensure_topic(self._topic)
            reader = self._session.reader
            queues = await reader.fetch_queues(self._topic)
            ends = {queue: await reader.max_offset(queue) for queue in queues}
            self._bindings[binding] = ends
            self._offsets = {queue: self._offsets.get(queue, end) for queue, end in ends.items()}
            await self._restart()

    async def unbind(self, queues: Iterable[str]) -> None:
        """Deliver no more messages to these queues."""
        gone = set(queues)
        async with self._changing:
            kept = {one: starts for one, starts in self._bindings.items() if one.queue not in gone}
            if len(kept) < len(self._bindings):
                self._bindings = kept
                await self._restart()

    async def close(self) -> None:
        """Stop reading."""
        await self._tasks.close()

    async def _restart(self) -> None:
        """Read with the tags of the current bindings."""
        await self._tasks.cancel(*self._readers)
        self._readers = []
        if not self._bindings:
            self._offsets = {}
            return
        tags = " || ".join(sorted({binding.tag for binding in self._bindings}))
        for queue in self._offsets:
            self._readers.append(self._tasks.spawn(self._read(queue, tags), f"read broadcasts of {queue}"))

    async def _read(self, queue: MessageQueue, tags: str) -> None:
        while True:
            try:
                result = await self._session.reader.pull(queue, self._offsets[queue], expression=tags)
            except RocketError as error:
                if self._session.is_closing:
                    return
                log.warning("remote control and events of %s cannot be read, trying again: %s", queue, error)
                await asyncio.sleep(_PAUSE_S)
                continue
            self._offsets[queue] = result.next_offset
            for message in result.messages:
                if message.decode_error is None:  # else it is logged
                    self._arrived(queue, message)

    def _arrived(self, queue: MessageQueue, message: MessageExt) -> None:
        exchange, routing_key = envelope.address(envelope.decode(message.body))
        wanted = {
            binding.queue: None
            for binding, starts in self._bindings.items()
            if binding.exchange == exchange
            and message.queue_offset >= starts.get(queue, 0)
            and binding.matches(routing_key)
        }
        for name in wanted:
            payload = envelope.decode(message.body)  # each queue may change its copy
            envelope.mark_delivered(payload, name, uuid(), redelivered=False)
            expiry_ms = envelope.expiry_ms(payload, message.born_timestamp)
            self._deliver(Arrival(name, payload, None, expiry_ms))
