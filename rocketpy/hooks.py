"""Hooks: how applications and telemetry observe a client, and intervene.

- `SendListener` observes each send from its start to its end.
- `ReceiveListener` observes each pull of a consumer, `ProcessListener` each call of a handler.
- `SettleListener` observes the ends of transactions, and messages that consumers send back.
- `SendCheck` may reject a message before it is sent.
- `RpcHook` observes every request and response, and may add fields to requests.

Without listeners, they cost a send only one test of an empty tuple.

Source: RocketMQ 4.6 SendMessageHook, CheckForbiddenHook, RPCHook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from rocketpy.message.message import Message, MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.trace import ConsumeOutcome
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import SendResult

SendCheck = Callable[[Message, MessageQueue, str], None]
"""Called with a message, its queue and the producer group before each attempt to send the message; it must be
quick. It rejects the message by raising an exception. The send fails with this exception if it is a
RocketError, and with `SendForbidden` otherwise. A producer with checks does not batch sends. Source: RocketMQ
CheckForbiddenHook."""


class FailedAttempt(NamedTuple):
    """A failed attempt of a send."""

    queue: MessageQueue
    """The queue of the attempt."""
    end: BaseException | Sequence[SendResult]
    """The error, or results with a status other than SEND_OK."""
    time_ns: int
    """When the attempt ended, in ns since 1970."""


@dataclass(eq=False, repr=False, slots=True)
class SendEvent:
    """One send, with all its attempts."""

    messages: Sequence[Message]
    """The message, or those of a batch."""
    group: str
    """The producer group."""
    client_id: str
    """The id of the client."""
    _: KW_ONLY
    oneway: bool
    """Whether the send is oneway."""
    locate: InitVar[Callable[[MessageQueue], str | None]] = lambda _queue: None
    attempts: int = field(default=0, init=False)
    """The number of attempts so far."""
    failures: tuple[FailedAttempt, ...] = field(default=(), init=False)
    """The attempts that have failed so far."""
    queue: MessageQueue | None = field(default=None, init=False)
    """The queue of the last attempt, once the send has ended; None for a `send_batch`, and when no attempt
    was made."""
    extra_properties: list[dict[str, str]] = field(init=False)
    """One dict for each message, empty at first; `SendListener.started` may add properties, which are sent
    with the message but never replace those of the user."""
    state: dict[object, Any] = field(default_factory=dict, init=False)
    """The state of each listener, with the listener as the key."""
    _locate: Callable[[MessageQueue], str | None] = field(init=False)

    def __post_init__(self, locate: Callable[[MessageQueue], str | None]) -> None:
        self.extra_properties = [{} for _ in self.messages]
        self._locate = locate

    def address(self, queue: MessageQueue) -> str | None:
        """Return the address of the broker of a queue; None when the current route has none."""
        return self._locate(queue)


class SendListener(Protocol):
    """Observes the sends of a producer, in its event loop. Must not block.

    Exceptions are logged and do not affect the send.
    """

    def started(self, event: SendEvent) -> None:
        """The send has begun; nothing was sent yet."""

    def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
        """A broker has stored the messages. A oneway send was only written, and `results` is empty."""

    def failed(self, event: SendEvent, error: BaseException) -> None:
        """The send failed. A cancelled send fails with CancelledError."""


class ReceiveEvent(NamedTuple):
    """One pull that has ended."""

    queue: MessageQueue
    """The queue that was pulled."""
    group: str
    """The consumer group."""
    client_id: str
    """The id of the client."""
    started_ns: int
    """When the pull began, in ns since 1970."""
    ended_ns: int
    """When it ended, in ns since 1970."""
    address: str | None
    """The address of the broker, if known."""
    end: Sequence[MessageExt] | BaseException
    """The messages, including those with a `MessageExt.decode_error`, or the error."""


class ReceiveListener(Protocol):
    """Observes the pulls of a consumer, in the task that pulls. Must not block.

    Exceptions are logged and do not affect the pull.
    """

    def received(self, event: ReceiveEvent) -> None:
        """A pull has ended."""


@dataclass(eq=False, repr=False, slots=True)
class ProcessEvent:
    """One call of the handler of a push consumer."""

    messages: Sequence[MessageExt]
    """The messages of the call, all from one queue."""
    group: str
    """The consumer group."""
    client_id: str
    """The id of the client."""
    _: KW_ONLY
    broadcasting: bool
    """Whether each member of the group gets all messages."""
    succeeded: bool = field(default=False, init=False)
    """Whether the handler returned success, even if late; set when the call has ended."""
    state: dict[object, Any] = field(default_factory=dict, init=False)
    """The state of each listener, with the listener as the key."""


class ProcessListener(Protocol):
    """Observes the handler calls of a push consumer, in the event loop or thread of the handler. Must not
    block.

    The handler sees changes that `process_started` makes to context variables. Exceptions are logged and do
    not affect the handler.
    """

    def process_started(self, event: ProcessEvent) -> None:
        """The handler will be called next."""

    def process_ended(
        self, event: ProcessEvent, outcome: ConsumeOutcome, error: BaseException | None
    ) -> None:
        """The handler has ended; called in the same context as `process_started`.

        Args:
            event: The call.
            outcome: The result. TIME_OUT if the handler returned a valid result, but only after
                `PushConfig.consume_timeout_ms`.
            error: The exception of the handler.
        """


class SettleEvent(NamedTuple):
    """The end of a transaction, or a message that a consumer sends back."""

    operation: Literal["end_transaction", "nack"]
    """``end_transaction``, or ``nack`` for a message that is to be delivered again."""
    message: Message | MessageExt
    """The message."""
    queue: MessageQueue
    """The queue of the message."""
    group: str
    """The producer or consumer group."""
    client_id: str
    """The id of the client."""
    carrier: Mapping[str, str]
    """The properties that are sent with the message."""
    started_ns: int
    """When the request began, in ns since 1970."""
    ended_ns: int
    """When it ended, in ns since 1970."""
    state: str | None = None
    """The end of the transaction: COMMIT, ROLLBACK or UNKNOWN; None for a nack."""
    asked: bool = False
    """Whether the broker had asked for the state (a transaction check)."""
    delay_level: int = 0
    """The delay of a nack: 0 is the default of the broker, -1 the dead letter queue."""
    address: str | None = None
    """The address of the broker, if known."""
    first_error: BaseException | None = None
    """The error of the first attempt of a nack, when a second was needed."""
    error: BaseException | None = None
    """The error of the request."""


class SettleListener(Protocol):
    """Observes ends of transactions, and messages that are sent back, in the task that sends the request.
    Must not block.

    Exceptions are logged.
    """

    def settled(self, event: SettleEvent) -> None:
        """The request has ended, with or without an error."""


class RpcHook(Protocol):
    """Observes and extends the requests of a client to name servers and brokers. Must not block.

    Hooks run in their order. When `before_request` raises, the request fails and is not sent. An exception of
    `after_response` is logged.
    """

    def before_request(self, address: str, request: Command) -> None:
        """A request will be sent next. The hook may add fields to `request.ext`, before they are signed."""

    def after_response(self, address: str, request: Command, response: Command) -> None:
        """The response has arrived, with any code. Not called for oneway requests or after errors."""
