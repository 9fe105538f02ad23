"""Hooks: places where applications and telemetry look at what a client does, or have a say in it.

- `SendListener` follows each send from acceptance to end: telemetry, traces, logs.
- `ReceiveListener` hears of each pull of a consumer, `ProcessListener` of each call of a handler.
- `SettleListener` is told what a client says to a broker about one message: that its transaction has ended,
  or that it is to come again.
- `SendCheck` may forbid a message before it leaves.
- `RpcHook` sees every request and response, and may add fields to requests.

A client without listeners pays one test of an empty tuple a send.

Source: RocketMQ 4.6 SendMessageHook, CheckForbiddenHook, RPCHook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from rocketpy.message.message import Message, MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.trace import ConsumeOutcome
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import SendResult

__all__ = [
    "FailedAttempt",
    "ProcessEvent",
    "ProcessListener",
    "ReceiveEvent",
    "ReceiveListener",
    "RpcHook",
    "SendCheck",
    "SendEvent",
    "SendListener",
    "SettleEvent",
    "SettleListener",
]

SendCheck = Callable[[Message, MessageQueue, str], None]
"""Called with a message, the queue it is to go to and the producer group, before each attempt to send it, so
it must be quick. It forbids the message by raising: a RocketError as it is, anything else as `SendForbidden`.
A producer with checks does not gather sends into batches. Source: RocketMQ CheckForbiddenHook."""


class FailedAttempt(NamedTuple):
    """An attempt of a send that was to be repeated, or was the last. queue: where it went. end: the error, or
    results with a status other than SEND_OK. time_ns: when it ended, ns since 1970.
    """

    queue: MessageQueue
    end: BaseException | Sequence[SendResult]
    time_ns: int


class SendEvent:
    """One send, from its acceptance to its end, over all its attempts.

    messages: one, or those of a batch. extra_properties: one map a message, empty at first; what
    `started` puts there travels with the message, but never replaces what the user has set. state: the
    listener's own, keyed by itself. failures: the attempts that failed so far; `attempts` is their number.
    queue: where the last attempt went, once the send has ended; None for a `send_batch`, and if nothing left.
    """

    __slots__ = (
        "_locate",
        "attempts",
        "client_id",
        "extra_properties",
        "failures",
        "group",
        "messages",
        "oneway",
        "queue",
        "state",
    )

    def __init__(
        self,
        messages: Sequence[Message],
        group: str,
        client_id: str,
        *,
        oneway: bool,
        locate: Callable[[MessageQueue], str | None] = lambda _queue: None,
    ) -> None:
        self.messages = messages
        self.group = group
        self.client_id = client_id
        self.oneway = oneway
        self.attempts = 0
        self.failures: tuple[FailedAttempt, ...] = ()
        self.queue: MessageQueue | None = None
        self.extra_properties: list[dict[str, str]] = [{} for _ in messages]
        self.state: dict[object, Any] = {}
        self._locate = locate

    def address(self, queue: MessageQueue) -> str | None:
        """Where the broker of a queue listens, as its route says now; None when no route does."""
        return self._locate(queue)


class SendListener(Protocol):
    """Told about every send of a producer, in its event loop. Must not block, should not raise.

    What it raises is logged and does not reach the send.
    """

    def started(self, event: SendEvent) -> None:
        """The send was accepted; nothing has left yet."""

    def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
        """The broker has answered; or, for a oneway send (no results), it was written."""

    def failed(self, event: SendEvent, error: BaseException) -> None:
        """The send ended without a result. A cancelled one fails with CancelledError."""


class ReceiveEvent(NamedTuple):
    """One pull that has ended. started_ns, ended_ns: ns since 1970. address: the broker's, where
    it was known. end: the messages, as the application sees them, or the error. Those that cannot be decoded
    are among the messages, with their `MessageExt.decode_error`.
    """

    queue: MessageQueue
    group: str
    client_id: str
    started_ns: int
    ended_ns: int
    address: str | None
    end: Sequence[MessageExt] | BaseException


class ReceiveListener(Protocol):
    """Told about every pull of a consumer, in the task that pulled. Must not block, should not raise.

    What it raises is logged and does not reach the pull.
    """

    def received(self, event: ReceiveEvent) -> None:
        """A pull has ended."""


class ProcessEvent:
    """One call of a push consumer's handler. messages: what it gets, of one queue. broadcasting: whether each
    member of the group gets all messages. succeeded: whether it said so, in time or not; known once it has
    ended. state: the listener's own, keyed by itself.
    """

    __slots__ = ("broadcasting", "client_id", "group", "messages", "state", "succeeded")

    def __init__(
        self, messages: Sequence[MessageExt], group: str, client_id: str, *, broadcasting: bool
    ) -> None:
        self.messages = messages
        self.group = group
        self.client_id = client_id
        self.broadcasting = broadcasting
        self.succeeded = False
        self.state: dict[object, Any] = {}


class ProcessListener(Protocol):
    """Told about every call of a push consumer's handler, where the handler runs: in the event loop or on a
    thread. What `process_started` changes in the context (contextvars), the handler sees. Must not block.

    What it raises is logged and does not reach the handler.
    """

    def process_started(self, event: ProcessEvent) -> None:
        """The handler is about to be called."""

    def process_ended(
        self, event: ProcessEvent, outcome: ConsumeOutcome, error: BaseException | None
    ) -> None:
        """The handler has ended; in the same context as `process_started`. error: what it raised.

        outcome: TIME_OUT for whatever it said after `PushConfig.consume_timeout_ms`.
        """


class SettleEvent(NamedTuple):
    """Something that a client has told a broker about one message, or could not tell it.

    operation: ``end_transaction``, or ``nack`` for a message that is to come again. queue: of the message.
    carrier: the properties with which it travels. started_ns, ended_ns: ns since 1970. state: how the
    transaction ended: COMMIT, ROLLBACK, UNKNOWN; None for a nack. asked: whether the broker had asked about
    it. delay_level: of a nack; 0 leaves it to the broker, -1 means the dead letters. address: the broker's,
    where it was known. first_error: why a nack had to take another way. error: why it failed.
    """

    operation: Literal["end_transaction", "nack"]
    message: Message | MessageExt
    queue: MessageQueue
    group: str
    client_id: str
    carrier: Mapping[str, str]
    started_ns: int
    ended_ns: int
    state: str | None = None
    asked: bool = False
    delay_level: int = 0
    address: str | None = None
    first_error: BaseException | None = None
    error: BaseException | None = None


class SettleListener(Protocol):
    """Told about transactions' ends and of messages sent back, in the task that did it. Must not block.

    What it raises is logged and does no harm.
    """

    def settled(self, event: SettleEvent) -> None:
        """The broker was told, or could not be."""


class RpcHook(Protocol):
    """Sees what a client asks of name servers and brokers (not what they ask of it). Must not block.

    Several run in their order. What one raises fails the request, and nothing is sent.
    """

    def before_request(self, address: str, request: Command) -> None:
        """A request is about to leave. Its fields are in `request.ext`, a map that may be added to; they are
        signed after this, when the client has credentials.
        """

    def after_response(self, address: str, request: Command, response: Command) -> None:
        """Its response has come, whatever its code. Not called for oneway requests, nor without an answer."""
