"""Every error the client and the broker raise, and what a caller may conclude from each.

The tree::

    RocketError
      UsageError            the caller's mistake, nothing was sent
        TopicInvalid  GroupInvalid  MessageInvalid  MessageTooLarge
        ConfigInvalid  ClientClosed  FlowControlled  SendForbidden
      ProtocolError         bytes that are not RocketMQ's format
        LocalProtocolError    ours: we were asked to write something the format cannot hold
        RemoteProtocolError   theirs: the peer sent something no RocketMQ peer sends
      TransportError
        ConnectFailed  ConnectionLost  RequestTimeout  ReplyTimeout
      RouteNotFound         no name server knows a broker for the topic
      BrokerError           the peer answered with a response code that means failure
      BatchIncomplete       the first requests of a long batch were stored, a later one failed
      StoreError
        RecordCorrupt  TornTail  DiskFull  FlushFailed  StoreLocked  StoreDamaged
      ReplicationError
        NotLeader  NotEnoughReplicas
      TaskFailed            a background task ended unexpectedly
    InvariantError          a bug of ours; outside RocketError so that a broad handler does not hide it

Two questions matter to who sends messages, so each `RocketError` answers both: *may the message
be stored?* (`outcome`) and *what helps?* (`retry`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar

__all__ = [
    "BatchIncomplete",
    "BrokerError",
    "ClientClosed",
    "ConfigInvalid",
    "ConnectFailed",
    "ConnectionLost",
    "DiskFull",
    "FlowControlled",
    "FlushFailed",
    "GroupInvalid",
    "InvariantError",
    "LocalProtocolError",
    "MessageInvalid",
    "MessageTooLarge",
    "NotEnoughReplicas",
    "NotLeader",
    "Outcome",
    "ProtocolError",
    "RecordCorrupt",
    "RemoteProtocolError",
    "ReplicationError",
    "ReplyTimeout",
    "RequestTimeout",
    "Retry",
    "RocketError",
    "RouteNotFound",
    "SendForbidden",
    "StoreDamaged",
    "StoreError",
    "StoreLocked",
    "TaskFailed",
    "TopicInvalid",
    "TornTail",
    "TransportError",
    "UsageError",
    "ensure",
]


class Outcome(Enum):
    """May the message be stored?"""

    NOT_SENT = "not_sent"
    """No: no byte of it reached a broker, or the broker refused it before storing."""
    UNKNOWN = "unknown"
    """Perhaps: it was sent and no answer tells. Sending again may duplicate it."""
    STORED = "stored"
    """Yes: a broker has it, but something after that failed."""


class Retry(Enum):
    """What helps?"""

    NONE = "none"
    """Nothing does: the same call fails again."""
    SAME_BROKER = "same_broker"
    """The same broker, a little later."""
    OTHER_BROKER = "other_broker"
    """Another broker of the topic."""
    REFRESH_ROUTE = "refresh_route"
    """Ask a name server for the topic's route first."""


class RocketError(Exception):
    """Root of everything this project raises on purpose.

    outcome, retry: see `Outcome` and `Retry`. A class has its usual answer; a place that knows
    better passes its own.
    """

    default_outcome: ClassVar[Outcome] = Outcome.UNKNOWN
    default_retry: ClassVar[Retry] = Retry.NONE

    def __init__(self, message: str, *, outcome: Outcome | None = None, retry: Retry | None = None) -> None:
        super().__init__(message)
        self.outcome = self.default_outcome if outcome is None else outcome
        self.retry = self.default_retry if retry is None else retry

    def __reduce__(self) -> tuple[Any, ...]:
        # `Exception` would call the class with its text alone, which some of these cannot be made of.
        return _made_anew, (type(self), self.args), self.__dict__


def _made_anew(kind: type[RocketError], args: tuple[object, ...]) -> RocketError:
    return kind.__new__(kind, *args)


class UsageError(RocketError):
    """The caller's mistake, found before anything was sent."""

    default_outcome = Outcome.NOT_SENT


class TopicInvalid(UsageError):
    """A topic name that no broker accepts."""


class GroupInvalid(UsageError):
    """A producer or consumer group name that no broker accepts."""


class MessageInvalid(UsageError):
    """A message that cannot be sent as it is: no body, a reserved property, a bad delay level."""


class MessageTooLarge(UsageError):
    """A body, a record or its properties above a limit; the text names the size and the limit."""


class ConfigInvalid(UsageError):
    """A setting with a value it cannot have; the text names the setting and where it was read."""


class ClientClosed(UsageError):
    """The client was closed, or not started, when it was used."""


class FlowControlled(UsageError):
    """The bounded buffer is full and the caller asked not to wait."""

    default_retry = Retry.SAME_BROKER


class SendForbidden(UsageError):
    """A check of the application's own (`rocketpy.hooks.SendCheck`) did not let the message pass."""


class ProtocolError(RocketError):
    """Bytes outside RocketMQ's format. Raised as one of the two children, never itself."""


class LocalProtocolError(ProtocolError):
    """We were about to write something that the format cannot hold."""

    default_outcome = Outcome.NOT_SENT


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that no RocketMQ peer sends. The connection is of no further use."""

    default_retry = Retry.OTHER_BROKER


class TransportError(RocketError):
    """The network between us and a peer."""

    default_retry = Retry.OTHER_BROKER


class ConnectFailed(TransportError):
    """No connection could be made, so nothing was sent on it."""

    default_outcome = Outcome.NOT_SENT


class ConnectionLost(TransportError):
    """An open connection ended. What was in flight on it may or may not have been handled."""


class RequestTimeout(TransportError):
    """No answer in time. The request may have been handled."""


class ReplyTimeout(TransportError):
    """The request of a request-reply pair is stored, but nobody replied in time; perhaps it is worked on."""

    default_outcome = Outcome.STORED
    default_retry = Retry.NONE


class RouteNotFound(RocketError):
    """No name server knows a broker that serves the topic."""

    default_outcome = Outcome.NOT_SENT
    default_retry = Retry.REFRESH_ROUTE


class BrokerError(RocketError):
    """The peer answered, and its answer means failure.

    code: the response code as it came, also when this version has no name for it.
    remark: the peer's own words. broker: its name or address. advice: what to do, for the text.
    """

    def __init__(
        self,
        code: int,
        remark: str | None,
        broker: str,
        *,
        outcome: Outcome = Outcome.NOT_SENT,
        retry: Retry = Retry.NONE,
        advice: str = "",
    ) -> None:
        text = f"{broker} answered code {code}: {remark or 'no remark'}"
        super().__init__(f"{text}; {advice}" if advice else text, outcome=outcome, retry=retry)
        self.code = code
        self.remark = remark
        self.broker = broker


class BatchIncomplete(RocketError):
    """A long batch was sent in several requests, and one of them failed after others were stored.

    results: those of the messages that are stored, the first ones of the batch. total: messages in the batch.
    cause: what went wrong with the next one; its outcome is ours. Requests behind it were not sent.
    """

    def __init__(self, results: Sequence[Any], total: int, cause: RocketError) -> None:
        super().__init__(
            f"{len(results)} of {total} messages are stored, then: {cause}",
            outcome=cause.outcome,
            retry=cause.retry,
        )
        self.results = results
        self.total = total
        self.cause = cause


class StoreError(RocketError):
    """The store cannot do what was asked; its files are as they were unless the text says otherwise."""


class RecordCorrupt(StoreError):
    """Bytes where a record should be that are not one.

    offset: where the record starts, in bytes from the start of what was read.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"record at {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class TornTail(RecordCorrupt):
    """A record that begins and then the data ends: what a crash in the middle of a write leaves."""


class DiskFull(StoreError):
    """No space left. What was refused is not stored."""

    default_outcome = Outcome.NOT_SENT
    default_retry = Retry.OTHER_BROKER


class FlushFailed(StoreError):
    """The operating system could not make written data durable. Final until a restart with recovery."""

    default_retry = Retry.OTHER_BROKER


class StoreLocked(StoreError):
    """Another process has this store open."""

    default_outcome = Outcome.NOT_SENT


class StoreDamaged(StoreError):
    """Damage that recovery must not decide about alone; the text says where it is and what can be done."""


class ReplicationError(RocketError):
    """The group of replicas cannot take this now."""

    default_retry = Retry.REFRESH_ROUTE


class NotLeader(ReplicationError):
    """This replica does not lead its group.

    leader_hint: the id of the replica that does, if known.
    """

    default_outcome = Outcome.NOT_SENT

    def __init__(self, message: str, *, leader_hint: str | None = None) -> None:
        super().__init__(message)
        self.leader_hint = leader_hint


class NotEnoughReplicas(ReplicationError):
    """Fewer replicas answered than the promise needs."""


class TaskFailed(RocketError):
    """A background task of a client or server ended unexpectedly: a bug. Start the client or server again.

    ``__cause__`` is the exception that ended it; the log has its traceback.
    """


class InvariantError(Exception):
    """Something that cannot be, was: a bug here, and not something to catch and go on."""


def ensure(condition: object, message: str) -> None:
    """Raise `InvariantError` with `message` unless `condition` holds; stays on under ``python -O``."""
    if not condition:
        raise InvariantError(message)
