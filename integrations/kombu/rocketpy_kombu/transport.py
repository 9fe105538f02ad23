"""The transport and its channels, as kombu calls them.

A queue of kombu is a topic, which all its consumers share by message. The consumer group follows from
its name.
A queue that is exclusive or deleted automatically has no topic: it gets what is broadcast, see
`rocketpy_kombu.broadcasts`.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any, Final, NamedTuple

from kombu.transport import virtual

import rocketpy
from rocketpy import Message
from rocketpy.errors import BrokersFailed, ClientClosed, RocketError, RouteNotFound, TransportError
from rocketpy_kombu import envelope
from rocketpy_kombu.broadcasts import Binding, BroadcastReader
from rocketpy_kombu.envelope import Payload
from rocketpy_kombu.names import BROADCAST_TOPIC, broadcast_tag
from rocketpy_kombu.receiver import Arrival, Receiver
from rocketpy_kombu.session import Session, open_session, release_session
from rocketpy_kombu.settings import Settings, display_url, read_settings
from rocketpy_kombu.window import Window

log: Final = logging.getLogger("rocketpy.kombu")

_TRANSIENT: Final = 1
"""kombu's delivery mode of messages that need not survive."""
_BACKLOG_MAX: Final = 10_000
"""How many messages a temporary queue keeps before it is consumed; the oldest are dropped."""


class QoS(virtual.QoS):
    """What a channel has delivered. Acknowledgements may come from any thread."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        self.channel.receiver.acknowledge(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Discard a message, or let any worker have it again."""
        if not requeue:
            self.ack(delivery_tag)
            return
        message = self._delivered.get(delivery_tag)
        super().ack(delivery_tag)
        if message is not None:
            self.channel.requeue(message)

    def restore_unacked(self) -> list[tuple[BaseException, Any]]:
        """Let any worker have all messages that were not acknowledged. Returns those that failed: none.

        A message that cannot be released is delivered again after the visibility timeout.
        """
        self._flush()
        tags = list(self._delivered)
        self._delivered.clear()
        self.channel.release(tags)
        return []


class ChannelConsumer(NamedTuple):
    """A consumer of a queue, as kombu has started it. A queue may have several, also on one channel."""

    tag: str
    channel: Channel
    callback: Callable[[Payload], object]
    no_ack: bool


class Channel(virtual.Channel):
    """A channel: declares queues, publishes, and consumes with a prefetch count of its own."""

    QoS = QoS
    supports_fanout = True
    closed: bool

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.receiver: Final = connection.receiver
        self._session: Final = connection.session
        self._settings: Final = connection.settings
        self._temporary: Final = connection.temporary
        self.window: Final = Window()

    # -- queues ---------------------------------------------------------------------------------

    def _new_queue(
        self, queue: str, exclusive: bool = False, auto_delete: bool = False, **kwargs: Any
    ) -> None:
        if exclusive or auto_delete:
            if queue not in self._temporary:
                self._temporary[queue] = deque(maxlen=_BACKLOG_MAX)
                self._bind_temporary(queue, "", lambda key: key == queue, queue)
        elif queue not in self._session.durable:
            self._session.run(self._session.ensure_topic(self._settings.topic(queue)))
            self._session.durable.add(queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self._temporary or self._session.run(
            self._session.exists(self._settings.topic(queue))
        )

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        if queue not in self._temporary:
            return
        kind = self.typeof(exchange).type
        if kind == "direct":
            self._bind_temporary(queue, exchange, lambda key: key == routing_key, routing_key)
        elif kind == "topic" and pattern is not None:
            compiled = re.compile(pattern)
            self._bind_temporary(queue, exchange, lambda key: compiled.match(key) is not None, None)
        else:
            self._bind_temporary(queue, exchange, lambda _: True, None)

    def _bind_temporary(
        self, queue: str, exchange: str, matches: Callable[[str], bool], routing_key: str | None
    ) -> None:
        binding = Binding(queue, exchange, broadcast_tag(exchange, routing_key), matches)
        self._session.run(self.connection.broadcasts.bind(binding))

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        """Forget a temporary queue; empty another one. Its topic stays, as other programs may use it."""
        if self._temporary.pop(queue, None) is not None:
            self._session.run(self.connection.broadcasts.unbind([queue]))
        elif self._has_queue(queue):
            self._purge(queue)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Delete a queue, and its bindings in this process."""
        if if_empty and self._size(queue):
            return
        self.state.queue_bindings_delete(queue)
        for exchange in self.state.exchanges.values():  # kombu leaves it there, and so would send to it
            exchange["table"] = [bound for bound in exchange.get("table", ()) if bound[-1] != queue]
        self._delete(queue)

    def _size(self, queue: str) -> int:
        if (backlog := self._temporary.get(queue)) is not None:
            return len(backlog)
        return self._session.run(self._session.size(queue))

    def _purge(self, queue: str) -> int:
        if (backlog := self._temporary.get(queue)) is not None:
            count = len(backlog)
            backlog.clear()
            return count
        return self._session.run(self.receiver.purge(queue))

    # -- publishing -----------------------------------------------------------------------------

    def basic_publish(self, message: Payload, exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Publish a message; returns when the brokers have stored it.

        Raises what `rocketpy.Producer.send` raises, and ClientClosed if the channel is closed.
        """
        if self.closed:
            raise ClientClosed("the channel is closed, as its connection is; open another one")
        self._inplace_augment_message(message, exchange, routing_key)
        queues, tag = self._route(message, exchange, routing_key)
        body = envelope.encode(message)
        if tag is not None:
            self._session.run(
                self._session.send(Message(self._settings.prefix + BROADCAST_TOPIC, body, tags=tag))
            )
        for queue in queues:
            self._put(queue, message, body=body)
        if tag is None and not queues:
            log.warning(
                "a message to exchange %r with routing key %r was dropped: no queue is bound to it by this "
                "connection; declare the queue before you publish",
                exchange,
                routing_key,
            )

    def _put(self, queue: str, message: Payload, body: bytes | None = None, **kwargs: Any) -> None:
        wrapped = Message(
            self._settings.topic(queue),
            envelope.encode(message) if body is None else body,
            keys=envelope.task_keys(message),
            deliver_at=envelope.due_time(message),
        )
        self._session.run(self._session.send(wrapped))

    def _route(self, message: Payload, exchange: str, routing_key: str) -> tuple[list[str], str | None]:
        """Return the queues with a topic that get a message, and the tag if it is broadcast as well."""
        is_transient = message["properties"].get("delivery_mode") == _TRANSIENT
        if not exchange:
            is_declared = routing_key in self._session.durable
            if routing_key in self._temporary or (
                is_transient and not is_declared and not self._has_queue(routing_key)
            ):
                return [], broadcast_tag("", routing_key)
            queue = routing_key or self.deadletter_queue
            return ([queue] if queue else []), None
        known = self.state.exchanges.get(exchange, {})
        kind = self.typeof(exchange)
        found = kind.lookup(known.get("table", []), exchange, routing_key, None)
        queues = sorted(queue for queue in found if queue and queue not in self._temporary)
        is_temporary = is_transient or not known.get("durable", True)
        if kind.type == "fanout" or (is_temporary and not queues):
            return queues, broadcast_tag(exchange, routing_key if kind.type == "direct" else None)
        if not queues and self.deadletter_queue is not None:
            return [self.deadletter_queue], None
        return queues, None

    # -- consuming ------------------------------------------------------------------------------

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], object], consumer_tag: str, **kwargs: Any
    ) -> None:
        """Start to consume a queue."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        transport = self.connection
        # kombu keeps one callback for each queue, that of its last consumer.
        transport.add_consumer(
            queue,
            ChannelConsumer(consumer_tag, self, transport._callbacks[queue], no_ack),  # noqa: SLF001
        )
        if queue in self._temporary:
            transport.deliver_backlog(queue)
            return
        try:
            self._session.run(self.receiver.consume(queue, self.window))
        except BaseException:  # raised again: kombu would not cancel what has not started
            self.basic_cancel(consumer_tag)
            raise

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop to consume; messages that the application does not have are released."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None:
            return
        is_consumed = self.connection.remove_consumer(queue, consumer_tag, self)
        if not is_consumed and not self._session.background.is_forked_copy:
            self._session.run(self.receiver.cancel(queue, self.window))

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages the channel may hold; 0 for no limit."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._session.background.call_soon(partial(self.window.set_prefetch, prefetch_count))

    def _get(self, queue: str, timeout: float | None = None) -> Payload:
        if (backlog := self._temporary.get(queue)) is not None:
            while backlog:
                if not (kept := backlog.popleft()).has_expired():
                    return kept.payload
            raise Empty
        while (arrival := self._session.run(self.receiver.get(queue))) is not None:
            if not arrival.has_expired():
                return arrival.payload
            self.receiver.acknowledge(arrival.tag)
        raise Empty

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return one message, or None if the queue has none now."""
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack:
            self.receiver.acknowledge(message.delivery_tag)
        return message

    def requeue(self, message: Any) -> None:
        """Let any worker have a message again."""
        if not self.receiver.release_soon(message.delivery_tag):
            payload = message.serializable()
            payload["redelivered"] = True
            self.connection.deliver_temporary(
                Arrival(message.delivery_info["queue"], payload, None, math.inf)
            )

    def release(self, tags: list[str]) -> None:
        """Let any worker have messages again; waits until the brokers know."""
        if tags and not self._session.background.is_forked_copy:
            self._session.run(self.receiver.release(tags))

    def close(self) -> None:
        """Stop to consume, and release what was not acknowledged."""
        if not self.closed and self._session.background.is_forked_copy:
            self.closed = True
            return
        super().close()


class Transport(virtual.Transport):
    """A connection to RocketMQ."""

    Channel = Channel
    can_parse_url = True
    driver_type = "rocketmq"
    driver_name = "rocketpy"
    connection_errors = (
        *virtual.Transport.connection_errors,
        OSError,
        TransportError,
        RouteNotFound,
        BrokersFailed,
        ClientClosed,
    )
    channel_errors = (*virtual.Transport.channel_errors, RocketError)
    # What kombu repeats, with a new connection. A repetition after another error would fail again, or store a
    # message again (NotDurable).
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"})
    )

    settings: Settings
    session: Session
    receiver: Receiver
    broadcasts: BroadcastReader

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.temporary: dict[str, deque[Arrival]] = {}
        """The temporary queues of this connection, with the messages that nobody consumes yet."""
        self._temporary_lock = threading.Lock()
        self._channel_consumers: dict[str, tuple[ChannelConsumer, ...]] = {}
        """The consumers of each queue; the one that got a message last is last, a new one first."""
        self._is_open = False

    # -- the connection -------------------------------------------------------------------------

    def establish_connection(self) -> Any:
        """Connect to the name servers. Raises what `rocketpy.Producer.start` raises."""
        client = self.client
        self.settings = read_settings(client.hostname, client.ssl, client.transport_options or {})
        self.session = open_session(self.settings)
        self.temporary, self._channel_consumers = {}, {}
        self.state.clear()
        self.session.run(self._open())
        self._is_open = True
        return super().establish_connection()

    async def _open(self) -> None:
        self.receiver = Receiver(self.session, self.settings)
        topic = self.settings.prefix + BROADCAST_TOPIC
        self.broadcasts = BroadcastReader(self.session, topic, self.deliver_temporary)

    def close_connection(self, connection: Any) -> None:
        """Release what was not acknowledged, and close. Does nothing in a forked child."""
        if not self._is_open:
            return
        self._is_open = False
        if self.session.background.is_forked_copy:
            return
        try:
            super().close_connection(connection)
            self.session.run(self._close())
        finally:
            release_session(self.session)

    async def _close(self) -> None:
        await self.broadcasts.close()
        await self.receiver.close()

    def verify_connection(self, connection: Any) -> bool:
        """Return whether the connection is open, and was opened in this process."""
        return self._is_open and not self.session.background.is_forked_copy

    def driver_version(self) -> str:
        """Return the version of rocketpy."""
        return rocketpy.__version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the address, without the secret key unless it is asked for."""
        if uri.startswith("embedded:"):
            return f"rocketmq+{uri}"
        return display_url(uri or "rocketmq://", mask=None if include_password else mask)

    # -- delivery -------------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message. Raises TimeoutError if none comes in time."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self.receiver.wait_for_one()
            arrival = self.receiver.inbox.get(None if end is None else max(0.0, end - time.monotonic()))
            if arrival is None:
                raise TimeoutError  # which is socket.timeout
            if self._pass_on(arrival):
                return

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages in the event loop of a Celery worker."""
        loop.add_reader(self.receiver.inbox.fileno(), self.on_readable, connection, loop)
        self.receiver.wait_for_one()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver no more messages there."""
        loop.remove_reader(self.receiver.inbox.fileno())

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Deliver one message. It is called again while others wait."""
        if (arrival := self.receiver.inbox.get(0)) is not None:
            self._pass_on(arrival)
        self.receiver.wait_for_one()

    def _pass_on(self, arrival: Arrival) -> bool:
        """Deliver a message; return False if nobody wants it any more."""
        if arrival.has_expired():
            self.receiver.acknowledge(arrival.tag)
            return False
        consumer = self._next_consumer(arrival)
        if consumer is None:
            if not self.receiver.release_soon(arrival.tag):
                self.deliver_temporary(arrival)
            return False
        if arrival.held is not None:
            self.receiver.delivered(arrival.held)
        consumer.callback(arrival.payload)
        if consumer.no_ack:
            self.receiver.acknowledge(arrival.tag)
        return True

    def _next_consumer(self, arrival: Arrival) -> ChannelConsumer | None:
        """Return the consumer that gets a message, and let others of its queue get the next one.

        It is one of the channel that has requested the message, as its prefetch count includes it.
        """
        waiting = self._channel_consumers.get(arrival.queue, ())
        window = arrival.held.window if arrival.held is not None else None
        requested = (one for one in waiting if one.channel.window is window)
        chosen = next(requested, waiting[0] if waiting else None)
        if chosen is not None and len(waiting) > 1:
            self._channel_consumers[arrival.queue] = (*(one for one in waiting if one is not chosen), chosen)
        return chosen

    def add_consumer(self, queue: str, consumer: ChannelConsumer) -> None:
        """Note that a channel consumes a queue."""
        self._channel_consumers[queue] = (consumer, *self._channel_consumers.get(queue, ()))

    def remove_consumer(self, queue: str, tag: str, channel: virtual.Channel) -> bool:
        """Forget a consumer. Returns whether its channel still consumes the queue."""
        left = tuple(
            one for one in self._channel_consumers.get(queue, ()) if (one.tag, one.channel) != (tag, channel)
        )
        if left:
            self._channel_consumers[queue] = left
        else:
            self._channel_consumers.pop(queue, None)
        return any(one.channel is channel for one in left)

    def deliver_temporary(self, arrival: Arrival) -> None:
        """Take a message for a temporary queue. May be called in any thread."""
        with self._temporary_lock:
            if arrival.queue in self._channel_consumers:
                self.receiver.inbox.put(arrival)
            elif (backlog := self.temporary.get(arrival.queue)) is not None:
                backlog.append(arrival)

    def deliver_backlog(self, queue: str) -> None:
        """Deliver what a temporary queue got before it was consumed."""
        backlog = self.temporary[queue]
        with self._temporary_lock:
            while backlog:
                self.receiver.inbox.put(backlog.popleft())
