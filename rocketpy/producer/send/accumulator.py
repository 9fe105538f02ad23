"""Batching on the fly: sends of one event loop iteration to one topic become one request.

A send joins the open batch of its topic. The batch is sent at the end of the event loop iteration, or
`linger_ms` after it was opened if that is set. A full batch is sent immediately. The queue is chosen for the
batch, not for each message. So an iteration makes one batch, instead of one for each queue; batches go to the
queues in turn. Sends to a queue that the caller chose have batches of their own. A batch of one message
becomes a plain send. After it, a send that finds nothing in flight is not batched: it is sent immediately.

Order: before a send that cannot join (another wait_store, a delay, a body to be compressed), the open batches
of its topic are sent. So messages of one queue are sent in the order in which they were accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import InitVar, dataclass

from rocketpy.config import BatchConfig
from rocketpy.hooks import SendEvent
from rocketpy.message.message import Message
from rocketpy.producer.send.encoder import MessageEncoder
from rocketpy.producer.send.flow_control import InFlightLimiter
from rocketpy.producer.send.pending import PendingSend
from rocketpy.producer.send.publish_info import TopicPublishInfo
from rocketpy.producer.send.sender import Sender
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.results import SendResult
from rocketpy.runtime.tasks import Tasks

_RECORD_BYTES = 384
"""Maximum overhead of a stored record besides body and user properties, with a topic of 127 bytes."""


@dataclass(eq=False, slots=True)
class _OpenBatch:
    """A batch that sends can still join."""

    send: PendingSend
    """Has one entry for each message in its lists, but no ids and times yet."""
    messages: list[Message]
    futures: list[asyncio.Future[SendResult]]
    other_properties: list[str]
    events: list[SendEvent]
    wait_store: bool
    """That of all its messages."""
    timeout_ms: int
    """The longest timeout of the sends."""
    has_ids: bool = False
    """Whether a message has a unique id of its own."""
    wire_bytes: int = 0
    """Upper estimate of the stored records, in bytes."""


@dataclass(eq=False)
class Accumulator:
    """The open batches of one producer: one for each topic, and one for each queue that callers chose."""

    config: InitVar[BatchConfig]
    limiter: InFlightLimiter
    """Counts messages from the moment they join."""
    encoder: MessageEncoder
    """Makes the sends."""
    sender: Sender
    """Gets them."""
    check_loop: Callable[[], None]
    """Called when a batch is opened while the event loop does not run, since it would never be sent."""
    tasks: Tasks
    """Of the client. An exception in a timer fails the client."""

    def __post_init__(self, config: BatchConfig) -> None:
        self._max_bytes = config.max_bytes
        self._max_count = config.max_gathered
        self._linger_s = config.linger_ms / 1000
        self._loop = asyncio.get_running_loop()
        self.open: dict[TopicPublishInfo | MessageQueue, _OpenBatch] = {}
        """The open batches: of a topic, or of a queue that the callers chose."""
        self._timer: asyncio.Handle | None = None
        self.last_batch_was_single: bool = not self._linger_s
        """Whether the last batch had one message; True before the first batch, always False with
        `linger_ms`. If it is True, a send is not batched while nothing is in flight.
        """

    def add(
        self,
        publish_info: TopicPublishInfo,
        message: Message,
        future: asyncio.Future[SendResult],
        event: SendEvent | None,
        queue: MessageQueue | None,
        timeout_ms: int,
    ) -> None:
        """Add a send to a batch. Raises MessageTooLarge for its properties, and ClientClosed."""
        other_properties = self.encoder.other_properties(message, event)
        batch = self.open.get(publish_info if queue is None else queue)
        size = len(message.body)
        wire_bytes = size + len(other_properties) * 4 + _RECORD_BYTES
        if (
            batch is None
            or batch.wait_store is not message.wait_store
            or batch.wire_bytes + wire_bytes > self._max_bytes
            or (event is not None and not batch.events)  # it was opened before there were listeners
            or (batch.timeout_ms != timeout_ms and not _merge_timeouts(batch, timeout_ms))
        ):
            batch = self._new(publish_info, queue, timeout_ms, wait_store=message.wait_store)
        messages = batch.messages
        messages.append(message)
        batch.futures.append(future)
        batch.other_properties.append(other_properties)
        if message.unique_id is not None:
            batch.has_ids = True
        if event is not None:
            batch.events.append(event)
        send = batch.send
        send.size += size
        send.count += 1
        batch.wire_bytes += wire_bytes
        self.limiter.acquire(size)
        if len(messages) >= self._max_count:
            self.flush_topic(publish_info)

    def flush_topic(self, publish_info: TopicPublishInfo) -> None:
        """Send the open batches of one topic."""
        keys = [key for key, batch in self.open.items() if batch.send.publish_info is publish_info]
        self._send([self.open.pop(key) for key in keys])

    def flush(self) -> None:
        """Send all open batches."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batches = list(self.open.values())
        self.open.clear()
        self._send(batches)

    def _new(
        self, publish_info: TopicPublishInfo, queue: MessageQueue | None, timeout_ms: int, *, wait_store: bool
    ) -> _OpenBatch:
        """Open a batch, after sending the open batches that it must not overtake."""
        if not self._loop.is_running():
            self.check_loop()
        if self.open and (queue is None or publish_info in self.open or queue in self.open):
            self.flush_topic(publish_info)
        messages: list[Message] = []
        futures: list[asyncio.Future[SendResult]] = []
        other_properties: list[str] = []
        events: list[SendEvent] = []
        send = self.encoder.open_batch(publish_info, messages, futures, other_properties, events, queue)
        batch = _OpenBatch(send, messages, futures, other_properties, events, wait_store, timeout_ms)
        self.open[publish_info if queue is None else queue] = batch
        if self._timer is None:
            if self._linger_s:
                self._timer = self.tasks.call_later(self._linger_s, self.flush)
            else:
                self._timer = self.tasks.call_soon(self.flush)
        return batch

    def _send(self, batches: list[_OpenBatch]) -> None:
        if batches:
            Context().run(self._send_now, batches)  # the messages of several callers belong to none of them

    def _send_now(self, batches: list[_OpenBatch]) -> None:
        is_single = len(batches) == 1 and len(batches[0].messages) == 1
        self.last_batch_was_single = is_single and not self._linger_s
        for batch in batches:
            try:
                self.encoder.seal(batch.send, batch.timeout_ms, own_ids=batch.has_ids)
            except Exception as error:  # noqa: BLE001 - a bug; the callers wait for their futures
                self.sender.fail(batch.send, error)
            else:
                self.sender.start(batch.send)
        for publish_info in {batch.send.publish_info: None for batch in batches}:
            publish_info.flush()


def _merge_timeouts(batch: _OpenBatch, timeout_ms: int) -> bool:
    """Return whether a send with this timeout may join. If so, the batch gets the longer of both timeouts.

    They may differ by 10 %: sends that waited for the limiter have slightly different times left.
    """
    if abs(batch.timeout_ms - timeout_ms) * 10 > min(batch.timeout_ms, timeout_ms):
        return False
    batch.timeout_ms = max(batch.timeout_ms, timeout_ms)
    return True
