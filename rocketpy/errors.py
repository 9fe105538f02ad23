"""Every error that client and broker raise, and what a caller may conclude from each.

The tree::

    RocketError
      UsageError            wrong use; nothing was sent
        TopicInvalid  GroupInvalid  MessageInvalid  MessageTooLarge
        ConfigInvalid  ClientClosed  FlowControlled  SendForbidden
      ProtocolError         bytes outside RocketMQ's format
        LocalProtocolError    this side was asked to write a value that the format cannot hold
        RemoteProtocolError   the peer sent a malformed frame or body
      TransportError
        ConnectFailed  ConnectionLost  RequestTimeout  ReplyTimeout
      RouteNotFound         no name server knows a broker for the topic
      BrokerError           the peer responded with an error code
      BatchIncomplete       the first requests of a long batch were stored, a later one failed
      BrokersFailed         some of the servers that an admin request was sent to failed
      StoreError
        RecordCorrupt  TornTail  DiskFull  FlushFailed  StoreLocked  StoreDamaged
      ReplicationError
        NotLeader  NotEnoughReplicas
      TaskFailed            a background task ended unexpectedly
    InvariantError          a bug in this project; not a RocketError, so that broad handlers do not hide it

Each `RocketError` answers two questions of a sender: *may the message be stored?* (`outcome`) and *what
helps?* (`retry`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar


class Outcome(Enum):
    """Whether the message may be stored."""

    NOT_SENT = "not_sent"
    """No: no byte of it reached a broker, or the broker rejected it."""
    UNKNOWN = "unknown"
    """Possibly: it was sent, but no response arrived. Sending it again may duplicate it."""
    STORED = "stored"
    """Yes: a broker has stored it, but a later step failed."""


class Retry(Enum):
    """What may help."""

    NONE = "none"
    """Nothing: the same call fails again."""
    SAME_BROKER = "same_broker"
    """The same broker, a little later."""
    OTHER_BROKER = "other_broker"
    """Another broker of the topic."""
    REFRESH_ROUTE = "refresh_route"
    """Another attempt after the route of the topic was fetched again."""


class RocketError(Exception):
    """Base class of all errors that this project raises on purpose.

    Attributes:
        outcome: Whether the message may be stored.
        retry: What may help.
        attempts: How many attempts a send made.
    """

    default_outcome: ClassVar[Outcome] = Outcome.UNKNOWN
    default_retry: ClassVar[Retry] = Retry.NONE
    attempts: int = 1

    def __init__(self, message: str, *, outcome: Outcome | None = None, retry: Retry | None = None) -> None:
        super().__init__(message)
        self.outcome: Outcome = self.default_outcome if outcome is None else outcome
        self.retry: Retry = self.default_retry if retry is None else retry

    def __reduce__(self) -> tuple[Any, ...]:
        # `Exception` would call the class with its text alone; some subclasses need more arguments.
        return _rebuild, (type(self), self.args), self.__dict__


def _rebuild(kind: type[RocketError], args: tuple[object, ...]) -> RocketError:
    return kind.__new__(kind, *args)


_made_anew = _rebuild  # the name in pickles of version 0.1


class UsageError(RocketError):
    """The caller made a mistake; nothing was sent."""

    default_outcome = Outcome.NOT_SENT


class TopicInvalid(UsageError):
    """Brokers reject this topic name."""


class GroupInvalid(UsageError):
    """Brokers reject this name of a producer or consumer group."""


class MessageInvalid(UsageError):
    """A message that cannot be sent: it has no body, a reserved property, a bad delay level."""


class MessageTooLarge(UsageError):
    """A body, a record or its properties exceed a limit; the text has the size and the limit."""


class ConfigInvalid(UsageError):
    """A setting has an invalid value; the text names the setting and its source."""


class ClientClosed(UsageError):
    """The client was used before its start or after its close, or was started before a fork."""

    @classmethod
    def after_fork(cls, pid: int) -> ClientClosed:
        """Return the error of a client that process `pid` has started, in a child that it forked later."""
        return cls(
            f"this client was started in process {pid}, before a fork, and cannot be used in process "
            f"{os.getpid()}; start clients after the fork: in gunicorn's post_fork, uWSGI's @postfork, "
            "Celery's worker_process_init, or on first use"
        )


class FlowControlled(UsageError):
    """The limit of messages in flight is reached, and the call does not wait."""

    default_retry = Retry.SAME_BROKER


class SendForbidden(UsageError):
    """A check of the application (`rocketpy.hooks.SendCheck`) rejected the message."""


class ProtocolError(RocketError):
    """Bytes outside RocketMQ's format. Only the two subclasses are raised."""


class LocalProtocolError(ProtocolError):
    """The format cannot hold a value that was to be written."""

    default_outcome = Outcome.NOT_SENT


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that violate RocketMQ's format. The connection is closed."""

    default_retry = Retry.OTHER_BROKER


class TransportError(RocketError):
    """The network between this process and a peer failed."""

    default_retry = Retry.OTHER_BROKER


class ConnectFailed(TransportError):
    """A connection could not be opened, so nothing was sent."""

    default_outcome = Outcome.NOT_SENT


class ConnectionLost(TransportError):
    """An open connection ended. The peer may have handled the requests that were in flight."""


class RequestTimeout(TransportError):
    """No response arrived in time. The peer may have handled the request."""


class ReplyTimeout(TransportError):
    """The request of a request-reply pair is stored, but no reply arrived in time."""

    default_outcome = Outcome.STORED
    default_retry = Retry.NONE


class RouteNotFound(RocketError):
    """No name server knows a broker that serves the topic."""

    default_outcome = Outcome.NOT_SENT
    default_retry = Retry.REFRESH_ROUTE


class BrokerError(RocketError):
    """The peer responded with an error code.

    Attributes:
        code: The response code, also one that this version has no name for.
        remark: The peer's text.
        broker: The name or address of the peer.
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

    Attributes:
        results: The results of the stored messages, which are the first of the batch.
        total: The number of messages in the batch.
        cause: The error of the request that failed, with the same outcome. Later requests were not sent.
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


class BrokersFailed(RocketError):
    """Some brokers, or name servers, failed at an admin request that was sent to several.

    The others have handled it. The same call may be repeated.

    Attributes:
        errors: The error of each server that failed, by the name of the broker, or ``name server …``.
        results: The results of the others, by their names.
    """

    def __init__(self, errors: Mapping[str, RocketError], results: Mapping[str, object]) -> None:
        texts = {name: str(error) for name, error in errors.items()}
        failed = "; ".join(text if name in text else f"{name}: {text}" for name, text in texts.items())
        super().__init__(f"{len(errors)} of {len(errors) + len(results)} servers failed: {failed}")
        self.errors: dict[str, RocketError] = dict(errors)
        self.results: dict[str, object] = dict(results)


class StoreError(RocketError):
    """The store cannot do the operation; its files are unchanged unless the text says otherwise."""


class RecordCorrupt(StoreError):
    """The bytes at a position are not a valid record.

    Attributes:
        offset: Where the record starts, in bytes from the start of the buffer or file.
        reason: What is wrong.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"record at {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class TornTail(RecordCorrupt):
    """The data ends inside a record, as after a crash in the middle of a write."""


class DiskFull(StoreError):
    """The disk is full. The message is not stored."""

    default_outcome = Outcome.NOT_SENT
    default_retry = Retry.OTHER_BROKER


class FlushFailed(StoreError):
    """The operating system failed to flush written data. The store stays closed until a restart."""

    default_retry = Retry.OTHER_BROKER


class StoreLocked(StoreError):
    """Another process has this store open."""

    default_outcome = Outcome.NOT_SENT


class StoreDamaged(StoreError):
    """Damage that recovery cannot repair by itself; the text says where it is and what to do."""


class ReplicationError(RocketError):
    """The replication group cannot accept the request now."""

    default_retry = Retry.REFRESH_ROUTE


class NotLeader(ReplicationError):
    """This replica does not lead its group.

    Attributes:
        leader_hint: The id of the leader, if known.
    """

    default_outcome = Outcome.NOT_SENT

    def __init__(self, message: str, *, leader_hint: str | None = None) -> None:
        super().__init__(message)
        self.leader_hint = leader_hint


class NotEnoughReplicas(ReplicationError):
    """Fewer replicas responded than the configured durability needs."""


class TaskFailed(RocketError):
    """A background task of a client or server failed because of a bug. Restart the client or server.

    ``__cause__`` is the exception of the task; the log has its traceback.
    """


class InvariantError(Exception):
    """An internal invariant is violated: a bug in this project. Do not catch it and continue."""


def ensure(condition: object, message: str) -> None:
    """Raise `InvariantError` with `message` unless `condition` holds; stays on under ``python -O``."""
    if not condition:
        raise InvariantError(message)
