"""Message trace: reports about sent and consumed messages, sent to a topic that RocketMQ's tools read.

Reports are collected for a few ms and sent by a separate producer. So they never delay or fail the reported
messages. Reports that cannot be sent fast enough are dropped and counted.

Source: RocketMQ 4.6 AsyncTraceDispatcher, SendMessageTraceHookImpl.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from contextvars import Context
from typing import Any, Final, NamedTuple, Protocol

from rocketpy.config import MessageTraceConfig, ProducerConfig
from rocketpy.errors import RocketError
from rocketpy.hooks import ProcessEvent, SendEvent
from rocketpy.message.message import Message, MessageExt
from rocketpy.message.timers import find_timer
from rocketpy.protocol.message import properties as names
from rocketpy.protocol.message.trace import (
    Consumed,
    ConsumeOutcome,
    Consuming,
    MessageKind,
    Sent,
    TraceRecord,
    encode,
)
from rocketpy.results import SendResult, SendStatus
from rocketpy.runtime.progress import Jobs
from rocketpy.runtime.rate_limited_log import RateLimitedLog

log: Final = logging.getLogger("rocketpy.trace")

_JOB: Final = "send of message trace reports"

TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
"""The group of the producers that send reports. Source: RocketMQ TraceConstants."""
SENDING: Final = ProducerConfig(send_timeout_ms=5000, max_in_flight=64, close_timeout_ms=1000)
"""At most 64 trace messages are in flight."""

_MESSAGE_CHARS: Final = 118_000
"""A trace message ends with the report that reaches this length. Source: RocketMQ AsyncTraceDispatcher."""


class _Processing(NamedTuple):
    """State of a handler call between its start and its end."""

    request_id: str
    started_ns: int
    messages: Sequence[MessageExt]


class TraceSender(Protocol):
    """Sends trace messages: a `Producer` of the group TRACE_GROUP."""

    async def start(self, *, wait: bool = True) -> None:
        """Start; see `Producer.start`."""

    async def close(self, timeout_ms: int | None = None) -> Any:
        """Wait for the messages in flight, and stop."""

    def send_nowait(self, message: Message) -> asyncio.Future[SendResult]:
        """Send one message."""


class MessageTrace:
    """The reports of one producer or consumer: a `SendListener`, and a `ProcessListener`.

    Close it after the producer or consumer that it reports about.
    """

    def __init__(self, config: MessageTraceConfig, sender: TraceSender) -> None:
        self.dropped: int = 0
        """Number of lost reports."""
        self._config = config
        self._sender = sender
        self._reports: list[tuple[str, TraceRecord]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._limited_log = RateLimitedLog(log)
        self.jobs: Jobs = Jobs()
        """Whether reports are stored."""

    async def start(self, *, wait: bool = True) -> None:
        """Start its sender. wait: see `Producer.start`. Raises ConfigInvalid, TransportError."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        await self._sender.start(wait=wait)

    async def close(self) -> None:
        """Send the collected reports, and wait at most one second until they are stored."""
        if self._loop is not None:
            self._flush()
            self._loop = None
            await self._sender.close()

    def report(self, topic: str, record: TraceRecord) -> None:
        """Add one report, from any thread. topic: the topic of the reported message."""
        if self._loop is not None and threading.get_ident() != self._thread:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self.report, topic, record, context=Context())
            return
        if self._loop is None:
            self.dropped += 1
            return
        self._reports.append((topic, record))
        if len(self._reports) >= self._config.batch_count:
            Context().run(self._flush)  # the reports of several calls belong to none of them
        elif self._timer is None:
            self._timer = self._loop.call_later(self._config.linger_ms / 1000, self._flush, context=Context())

    # -- as a SendListener --------------------------------------------------------------------

    def started(self, event: SendEvent) -> None:
        """Store when the send began."""
        event.state[self] = time.time_ns()

    def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
        """Report each message that a broker has stored and wants traced."""
        now_ns = time.time_ns()
        started_ns = event.failures[-1].time_ns if event.failures else event.state[self]
        for message, result in zip(event.messages, results, strict=False):
            if result.trace_on:
                self.report(message.topic, _sent_record(event, message, result, started_ns, now_ns))

    def failed(self, event: SendEvent, error: BaseException) -> None:
        """Do nothing: RocketMQ's clients report only messages with a response."""

    # -- as a ProcessListener -----------------------------------------------------------------

    def process_started(self, event: ProcessEvent) -> None:
        """Report each message of the call that its broker wants traced."""
        messages = [
            message
            for message in event.messages
            if message.properties.get(names.PROPERTY_TRACE_SWITCH) != "false"
        ]
        if not messages:
            return
        processing = _Processing(uuid.uuid4().hex.upper(), time.time_ns(), messages)
        event.state[self] = processing
        for message in messages:
            record = Consuming(
                processing.started_ns // 1_000_000,
                message.properties.get(names.PROPERTY_MSG_REGION),
                event.group,
                processing.request_id,
                message.message_id,
                message.reconsume_times,
                _keys(message),
            )
            self.report(message.topic, record)

    def process_ended(
        self, event: ProcessEvent, outcome: ConsumeOutcome, error: BaseException | None
    ) -> None:
        """Report the outcome for each of these messages."""
        processing: _Processing | None = event.state.get(self)
        if processing is None:
            return
        cost_ms = (time.time_ns() - processing.started_ns) // 1_000_000 // len(event.messages)
        for message in processing.messages:
            record = Consumed(
                processing.request_id,
                message.message_id,
                max(0, cost_ms),
                event.succeeded,
                _keys(message),
                outcome,
            )
            self.report(message.topic, record)

    # -- internals ----------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reports, self._reports = self._reports, []
        groups: dict[tuple[str, str | None], list[TraceRecord]] = {}
        for topic, record in reports:
            groups.setdefault((topic, getattr(record, "region", None)), []).append(record)
        for records in groups.values():
            for part in _parts(records):
                self._send(*part)

    def _send(self, body: str, keys: set[str], count: int) -> None:
        try:
            message = Message(self._config.topic, body.encode(), keys=sorted(keys))
            future = self._sender.send_nowait(message)
        except RocketError as error:
            self._drop(count, error)
        else:
            future.add_done_callback(lambda done: self._on_sent(count, done), context=Context())

    def _on_sent(self, count: int, future: asyncio.Future[SendResult]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._drop(count, error)
        else:
            self.jobs.ended(_JOB)

    def _drop(self, count: int, error: BaseException) -> None:
        self.dropped += count
        self.jobs.ended(_JOB, error)
        self._limited_log.warning(
            str(type(error)), "%d message trace reports lost (%d so far): %s", count, self.dropped, error
        )


def _parts(records: Iterable[TraceRecord]) -> Iterable[tuple[str, set[str], int]]:
    """Yield the bodies of trace messages, each with its keys and number of records."""
    texts: list[str] = []
    keys: set[str] = set()
    chars = 0
    for record in records:
        text = encode((record,))
        texts.append(text)
        chars += len(text)
        keys.add(record.message_id)
        keys.update(names.split_keys(record.keys))
        if chars >= _MESSAGE_CHARS:
            yield "".join(texts), keys, len(texts)
            texts, keys, chars = [], set(), 0
    if texts:
        yield "".join(texts), keys, len(texts)


def _sent_record(
    event: SendEvent, message: Message, result: SendResult, started_ns: int, now_ns: int
) -> Sent:
    if names.PROPERTY_TRANSACTION_PREPARED in message.properties:
        kind = MessageKind.HALF
    else:
        is_delayed = message.delay_level or find_timer(message.properties) is not None
        kind = MessageKind.DELAY if is_delayed else MessageKind.NORMAL
    return Sent(
        started_ns // 1_000_000,
        result.region,
        event.group,
        message.topic,
        result.message_id,
        message.tags,
        _keys(message),
        event.address(result.queue),
        len(message.body),
        max(0, now_ns - started_ns) // 1_000_000,
        kind,
        result.offset_message_id,
        result.status is SendStatus.SEND_OK,
    )


def _keys(message: Message | MessageExt) -> str | None:
    return names.KEY_SEPARATOR.join(message.keys) or None
