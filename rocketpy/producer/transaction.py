"""Transactional sends: a message that consumers see only once the sender's own transaction has committed.

    half message       ->  the broker keeps it invisible to consumers
    local transaction  ->  the application's work, which knows the message's transaction id
    end                ->  END_TRANSACTION: commit or roll back; a oneway request
    check              ->  without an end the broker asks the group (CHECK_TRANSACTION_STATE) again and again

If the end is lost or the process dies, `check` decides. It may be called for a half message of any producer
of the group, also for one of an earlier run.

Source: RocketMQ 4.6 TransactionMQProducer, DefaultMQProducerImpl sendMessageInTransaction (QUIRKS 27).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeVar

import msgspec

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import unwrap
from rocketpy.errors import (
    ClientClosed,
    ConfigInvalid,
    MessageInvalid,
    NotDurable,
    Outcome,
    RocketError,
    UsageError,
)
from rocketpy.hooks import SettleEvent, SettleListener
from rocketpy.message.decode import decode_message, log_undecodable
from rocketpy.message.message import DEFAULT_TOPIC, Message, MessageExt, check_message
from rocketpy.message.timers import find_timer, shown_timer
from rocketpy.protocol.bodies import MASTER_ID, MessageQueue
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rocketpy.protocol.message import properties as names
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.protocol.message.record import host_text
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import SendResult, SendStatus
from rocketpy.runtime.application import check_callable, describe, ends_program, ends_task, name_of, shown
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.telemetry.listeners import ListenerFanout
from rocketpy.transport import Channel

log: Final = logging.getLogger("rocketpy.producer")
_limited_log: Final = RateLimitedLog(log, 1.0)

M = TypeVar("M", Message, MessageExt)

_MAX_BODY_BYTES: Final = 16 << 20
_PAUSE_MIN_S: Final = 0.05
"""First pause before the end of a transaction is sent again; each pause doubles up to the longest."""
_PAUSE_MAX_S: Final = 1.0


class LocalTransactionState(Enum):
    """How a local transaction ended. Source: RocketMQ LocalTransactionState."""

    COMMIT = "COMMIT_MESSAGE"
    """Consumers see the message."""
    ROLLBACK = "ROLLBACK_MESSAGE"
    """Consumers never see the message."""
    UNKNOWN = "UNKNOW"
    """Not known yet: the broker asks `check` later."""


LocalTransaction = Callable[[Message], LocalTransactionState | Awaitable[LocalTransactionState]]
"""Runs the local transaction. The message has a `transaction_id`. A plain function must not block."""
TransactionCheck = Callable[[MessageExt], LocalTransactionState | Awaitable[LocalTransactionState]]
"""Returns how the transaction of a half message ended; see `MessageExt.transaction_id`."""

_END: Final = {
    LocalTransactionState.COMMIT: MessageSysFlag.TRANSACTION_COMMIT,
    LocalTransactionState.ROLLBACK: MessageSysFlag.TRANSACTION_ROLLBACK,
    LocalTransactionState.UNKNOWN: MessageSysFlag.TRANSACTION_NOT,
}


class TransactionSendResult(SendResult, frozen=True, gc=False, kw_only=True):
    """The broker's response to a half message, and how its local transaction ended.

    `queue_offset` is among the half messages, not in the topic's queue (QUIRKS 20). `transaction_id` is the
    `Message.transaction_id` that the local transaction got.
    """

    state: LocalTransactionState
    """How the local transaction ended."""
    end_delivered: bool = True
    """Whether END_TRANSACTION was written to a connection to the broker, which does not respond to it. If
    not, the broker does not know the end, and asks `check` later."""


class HalfMessage(NamedTuple):
    """A half message that a broker has stored."""

    message: Message
    """With its transaction id."""
    result: SendResult
    carrier: Mapping[str, str]
    """Its properties as sent, with those that listeners added."""
    timeout_ms: int
    """How long attempts to send its end are repeated."""


SendHalf = Callable[[Message, int | None], Awaitable[tuple[SendResult, Mapping[str, str]]]]
"""Sends a half message with a timeout in ms; returns also the properties that listeners added."""


@dataclass(eq=False)
class Transactions:
    """The transactions of one producer."""

    client: ClientInstance
    group: str
    """With its namespace."""
    send_half: SendHalf
    settle_listeners: ListenerFanout[SettleListener]
    """Notified when a transaction ends."""
    timeout_ms: int
    """For repeating the end of a half message that was sent without a timeout of its own."""
    _: KW_ONLY
    require_send_ok: bool = False

    def __post_init__(self) -> None:
        self._closed = False
        self.answering: set[asyncio.Task[None]] = set()
        """The tasks of checks whose result is not sent yet."""
        self._checks = self.client.shared(TransactionChecks)
        self._check: TransactionCheck | None = None

    def set_check(self, check: TransactionCheck) -> None:
        """Respond to brokers' checks of the group with `check`.

        The first check of a group also sends a heartbeat to all brokers with the template topic. The group
        may have left half messages there before a restart. Raises ConfigInvalid if it takes no message.
        """
        if check is not self._check:
            check_callable(f"the transaction check of group {self.group}", check, "message")
            self._check = check
        if not self._checks.has_check(self.group):
            self.client.tasks.spawn(self.client.ensure_registered(DEFAULT_TOPIC), "registration")
        self._checks.register(self.group, self, check)

    def close(self) -> None:
        """Unregister the check, and reject new transactions."""
        self._closed = True
        self._checks.unregister(self.group, self)

    def is_checking(self) -> bool:
        """Return whether the current code runs in a check of this producer."""
        return bool(self.answering) and _checking.get(None) is self

    async def wait_checks(self, timeout_ms: float) -> None:
        """Wait until the results of running checks are sent."""
        if self.answering:
            await asyncio.wait(self.answering, timeout=timeout_ms / 1000)

    async def run(
        self, message: Message, local_transaction: LocalTransaction, timeout_ms: int | None
    ) -> TransactionSendResult:
        """Run a whole transaction; see `Producer.send_in_transaction`."""
        check_callable("local_transaction", local_transaction, "message")
        half = await self.begin(message, timeout_ms)
        state, error = LocalTransactionState.ROLLBACK, None
        if half.result.status is SendStatus.SEND_OK:
            state, error = await _state_of(local_transaction, half.message)
        return await self.end(half, state, error)

    async def begin(self, message: Message, timeout_ms: int | None) -> HalfMessage:
        """Send the half message.

        Raises ConfigInvalid without a check, MessageInvalid for a delay or timer, and what `Producer.send`
        raises.
        """
        if self._closed:
            raise ClientClosed("the producer is closed")
        check_message(message)
        if not self._checks.has_check(self.group):
            raise ConfigInvalid(
                f"group {self.group} has no transaction check: pass check=..., or call check_transactions; "
                "without one, a message whose end is lost would never be committed"
            )
        if message.delay_level:
            raise MessageInvalid(f"delay level {message.delay_level}: a transactional message has no delay")
        timer = find_timer(message.properties)
        if timer is not None:
            raise MessageInvalid(f"{shown_timer(timer)}: a transactional message has no timer")
        reserved = {
            names.PROPERTY_TRANSACTION_PREPARED: "true",
            names.PROPERTY_PRODUCER_GROUP: self.group,
        }
        await self.client.ensure_registered(message.topic)
        result, extra = await self.send_half(Message.with_reserved(message, reserved), timeout_ms)
        transaction_id = result.transaction_id or result.message_id
        known = Message.with_reserved(message, {}, transaction_id=transaction_id)
        carrier = {**extra, **message.properties}
        return HalfMessage(known, result, carrier, self.timeout_ms if timeout_ms is None else timeout_ms)

    async def end(
        self, half: HalfMessage, state: LocalTransactionState, error: BaseException | None = None
    ) -> TransactionSendResult:
        """Send the end of a transaction to the broker that has its half message.

        Failed attempts are repeated for `half.timeout_ms`, except for UNKNOWN, which the broker ignores.
        With `require_send_ok`, raises NotDurable for a half message whose status is not SEND_OK.
        """
        result = half.result
        header = EndTransactionRequestHeader(
            producer_group=self.group,
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=decode_message_id(result.offset_message_id)[1],
            commit_or_rollback=_END[state],
            msg_id=result.message_id,
            transaction_id=result.transaction_id,
        )
        started_ns = time.time_ns()
        timeout_ms = 0 if state is LocalTransactionState.UNKNOWN else half.timeout_ms
        # The route of the message's own topic may not exist yet: a new topic borrows another topic's queues.
        routes, host = self.client.routes, host_text(decode_message_id(result.offset_message_id)[0])
        address = routes.master_address(result.queue.broker_name) or routes.address_of(*host)
        is_delivered = await self.send_end(
            half.message, result.queue, half.carrier, header, state, error, address, started_ns, timeout_ms
        )
        fields = msgspec.structs.asdict(result) | {"transaction_id": half.message.transaction_id}
        ended = TransactionSendResult(**fields, state=state, end_delivered=is_delivered)
        if self.require_send_ok and result.status is not SendStatus.SEND_OK:
            error = NotDurable((ended,))
            error.outcome = Outcome.NOT_SENT  # rolled back: consumers never get it
            raise error
        return ended

    async def send_end(
        self,
        message: Message | MessageExt,
        queue: MessageQueue,
        carrier: Mapping[str, str],
        header: EndTransactionRequestHeader,
        state: LocalTransactionState,
        error: BaseException | None,
        address: str,
        started_ns: int,
        timeout_ms: int = 0,
    ) -> bool:
        """Send the end of a transaction and report it to the listeners; return whether it was delivered.

        error: raised by the application's function. timeout_ms: how long failed attempts are repeated.
        started_ns: when the end began, in ns since 1970, for the listeners.
        """
        command = Command.request(RequestCode.END_TRANSACTION, header)
        if error is not None:
            command.remark = f"local transaction failed: {describe(error)}"
        asked = header.from_transaction_check
        known_address: str | None = address if asked else None
        failure: RocketError | None = None
        try:
            known_address = await self._deliver(queue.broker_name, command, address, timeout_ms)
        except RocketError as failed:
            failure = failed
            log.warning("transaction %s ended as %s, but this was not delivered to %s within %d ms; "
                        "the broker will check the transaction later: %s", message.transaction_id, state.name,
                        queue.broker_name, timeout_ms, failed)  # fmt: skip
        if self.settle_listeners.all:
            event = SettleEvent(
                "end_transaction",
                message,
                queue,
                unwrap(self.client.config.namespace, self.group),
                self.client.client_id,
                carrier,
                started_ns,
                time.time_ns(),
                state=state.name,
                asked=asked,
                address=known_address,
                error=failure,
            )
            self.settle_listeners.notify(lambda listener: listener.settled(event))
        return failure is None

    async def _deliver(self, broker_name: str, command: Command, address: str, timeout_ms: int) -> str:
        """Try until the end is written to a connection of the broker; return the broker's address.

        The broker does not respond. Raises the last RocketError once `timeout_ms` have passed, and a
        UsageError immediately.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        pause_s = _PAUSE_MIN_S
        while True:
            try:
                connection = self.client.connections.get(address)
                await connection.open()
                connection.put_oneway(command)
            except UsageError:
                raise
            except RocketError as failed:
                left_s = until - loop.time()
                if left_s <= 0:
                    raise
                log.info("the end of a transaction was not delivered to %s: %s", address, failed)
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                with contextlib.suppress(RocketError):
                    masters = {
                        data.broker_name: data.broker_addrs.get(MASTER_ID)
                        for data in await self.client.brokers()
                    }
                    address = masters.get(broker_name) or address
            else:
                return address


_checking: Final[contextvars.ContextVar[Transactions]] = contextvars.ContextVar("rocketpy check")
"""The owner of the check that the current code belongs to."""


class TransactionChecks:
    """Handles CHECK_TRANSACTION_STATE for all producers of a client, by group."""

    def __init__(self, client: ClientInstance) -> None:
        self._client = client
        self._checks: dict[str, dict[Transactions, TransactionCheck]] = {}
        client.connections.handlers[RequestCode.CHECK_TRANSACTION_STATE] = self.handle

    def register(self, group: str, owner: Transactions, check: TransactionCheck) -> None:
        """Set the check of a producer for its group. The check that was registered last is used."""
        checks = self._checks.setdefault(group, {})
        checks.pop(owner, None)
        checks[owner] = check

    def unregister(self, group: str, owner: Transactions) -> None:
        """Remove the check of a producer."""
        self._checks.get(group, {}).pop(owner, None)

    def has_check(self, group: str) -> bool:
        """Return whether a producer has a check for a group."""
        return bool(self._checks.get(group))

    def handle(self, channel: Channel, request: Command) -> None:
        """Start the check of one half message; its result is sent later, as END_TRANSACTION."""
        header = request.header_as(CheckTransactionStateRequestHeader)
        connections = self._client.connections.all()
        address = next(
            (connection.address for connection in connections if connection.channel is channel),
            channel.remote_address,
        )
        broker = self._client.routes.broker_name(address) or address
        message = decode_message(request.body, broker, _MAX_BODY_BYTES, verify=False)
        if log_undecodable([message], log):
            return  # the broker asks again, and drops the message after transactionCheckMax times
        group = message.properties.get(names.PROPERTY_PRODUCER_GROUP, "")
        checks = self._checks.get(group)
        if not checks:
            log.warning("broker %s checks transaction %s of group %s, which has no check in this client",
                        broker, message.transaction_id, group)  # fmt: skip
            return
        owner, check = list(checks.items())[-1]
        message = message.with_topic(unwrap(self._client.config.namespace, message.topic))
        answer = self._client.tasks.spawn(
            self._respond(address, group, header, message, owner, check), "transaction check"
        )
        owner.answering.add(answer)
        answer.add_done_callback(owner.answering.discard)

    async def _respond(
        self,
        address: str,
        group: str,
        request: CheckTransactionStateRequestHeader,
        message: MessageExt,
        owner: Transactions,
        check: TransactionCheck,
    ) -> None:
        started_ns = time.time_ns()
        _checking.set(owner)
        state, error = await _state_of(check, message)
        header = EndTransactionRequestHeader(
            producer_group=group,
            tran_state_table_offset=request.tran_state_table_offset,
            commit_log_offset=request.commit_log_offset,
            commit_or_rollback=_END[state],
            msg_id=message.message_id,
            from_transaction_check=True,
            transaction_id=request.transaction_id,
        )
        await owner.send_end(
            message, message.queue, message.properties, header, state, error, address, started_ns
        )


async def _state_of(
    function: Callable[[M], LocalTransactionState | Awaitable[LocalTransactionState]], message: M
) -> tuple[LocalTransactionState, BaseException | None]:
    """Same as `outcome_of`, for a function that may return an awaitable."""
    task = asyncio.current_task()
    try:
        state = function(message)
        if inspect.isawaitable(state):
            state = await state
    except BaseException as failed:  # the application's code
        if ends_task(failed, task):
            raise
        return _checked(function, message, None, failed)
    return _checked(function, message, state)


def outcome_of(
    function: Callable[[M], LocalTransactionState], message: M
) -> tuple[LocalTransactionState, BaseException | None]:
    """Call the application's function; the state is UNKNOWN if it raises or returns another value."""
    try:
        state = function(message)
    except BaseException as failed:  # the application's code
        if ends_program(failed):
            raise
        return _checked(function, message, None, failed)
    return _checked(function, message, state)


def _checked(
    function: object, message: Message | MessageExt, state: object, error: BaseException | None = None
) -> tuple[LocalTransactionState, BaseException | None]:
    """Return a valid state; otherwise log the problem and return UNKNOWN, so that the check decides."""
    if isinstance(state, LocalTransactionState):
        return state, None
    problem = "failed" if error is not None else f"returned {shown(state)} instead of a LocalTransactionState"
    text = "transaction %s: %s %s; the broker will check the transaction later"
    values = message.transaction_id, name_of(function), problem
    # Another function, or another kind of problem, is news: its first line is never left out.
    key = f"{type(state if error is None else error).__name__} of {name_of(function)}"
    if error is None:
        _limited_log.error(key, text, *values)
    else:
        _limited_log.exception(key, text, *values, error=error)
    return LocalTransactionState.UNKNOWN, error
