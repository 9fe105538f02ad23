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
      NotDurable            stored, but less durably than the broker is configured to
      ReceiptExpired        the invisible time of a message is over, or it was handled before
      AcksFailed            some of the messages that were acknowledged together failed
      BrokersFailed         some of the servers that an admin request was sent to failed
      StoreError
        RecordCorrupt  TornTail  DiskFull  FlushFailed  StoreLocked  StoreDamaged
      ReplicationError
        NotLeader  NotEnoughReplicas
      TaskFailed            a background task failed because of a bug
    InvariantError          a bug in this project; not a RocketError, so that broad handlers do not hide it

Each `RocketError` tells a sender two things: *may the message be stored?* (`outcome`) and *what helps?*
(`retry`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Final


class Outcome(Enum):
    """Whether a broker may have stored the message."""

    NOT_SENT = "not_sent"
    """No: no byte of it reached a broker, or the broker rejected it."""
    UNKNOWN = "unknown"
    """Possibly: it was sent, but no response arrived. Sending it again may duplicate it."""
    STORED = "stored"
    """Yes: a broker has stored it, but a later step failed."""


class Retry(Enum):
    """The kind of retry that may succeed."""

    NONE = "none"
    """No retry: the same call fails again."""
    SAME_BROKER = "same_broker"
    """The same broker, a little later."""
    OTHER_BROKER = "other_broker"
    """Another broker of the topic."""
    REFRESH_ROUTE = "refresh_route"
    """Another attempt after the route of the topic was fetched again."""


class RocketError(Exception):
    """Base class of all errors that this project raises on purpose.

    What helps: look at `outcome` before you send the message again, and at `retry` for where to send it.
    """

    default_outcome: ClassVar[Outcome] = Outcome.UNKNOWN
    default_retry: ClassVar[Retry] = Retry.NONE
    attempts: int = 1
    """How many attempts a send made."""

    def __init__(self, message: str, *, outcome: Outcome | None = None, retry: Retry | None = None) -> None:
        super().__init__(message)
        self.outcome: Outcome = self.default_outcome if outcome is None else outcome
        """Whether the message may be stored."""
        self.retry: Retry = self.default_retry if retry is None else retry
        """The kind of retry that may succeed."""

    def __reduce__(self) -> tuple[Any, ...]:
        # `Exception` would call the class with its text alone; some subclasses need more arguments.
        return _rebuild, (type(self), self.args), self.__dict__


def _rebuild(kind: type[RocketError], args: tuple[object, ...]) -> RocketError:
    return kind.__new__(kind, *args)


_made_anew = _rebuild  # the name in pickles of version 0.1


class UsageError(RocketError):
    """The caller made a mistake; nothing was sent.

    What helps: correct the call; the text says what is wrong with it. The same call fails again.
    """

    default_outcome = Outcome.NOT_SENT


class TopicInvalid(UsageError):
    """Brokers reject this topic name.

    What helps: use at most 127 letters, digits, ``_``, ``-``, ``|`` and ``%``, and do not use a system topic.
    """


class GroupInvalid(UsageError):
    """Brokers reject this name of a producer or consumer group.

    What helps: give the client a group of its own with letters, digits, ``_``, ``-``, ``|`` and ``%``.
    """


class MessageInvalid(UsageError):
    """A message that cannot be sent: it has no body, a reserved property or a bad delay level.

    What helps: correct what the text names. A body has at least one byte.
    """


class MessageTooLarge(UsageError):
    """A body, a record or its properties exceed a limit; the text has the size and the limit.

    What helps: send less, compress the body, or store it elsewhere and send its address. To allow more, raise
    `ProducerConfig.max_message_bytes` and the broker's ``maxMessageSize``.
    """


class ConfigInvalid(UsageError):
    """A setting has an invalid value; the text names the setting and its source.

    What helps: correct the setting in the place that the text names: an argument, a file with its line, or a
    variable of the environment.
    """


class ClientClosed(UsageError):
    """The client was used before its start or after its close, or was started before a fork.

    What helps: use the client inside of ``async with``, or between `start()` and `close()`. Start clients
    after a fork, in the new process.
    """

    @classmethod
    def after_fork(cls, pid: int) -> ClientClosed:
        """Return the error of a client that process `pid` has started, in a child that it forked later."""
        return cls(
            f"this client was started in process {pid}, before a fork, and cannot be used in process "
            f"{os.getpid()}; start clients after the fork: in gunicorn's post_fork, uWSGI's @postfork, "
            "Celery's worker_process_init, or on first use"
        )


class FlowControlled(UsageError):
    """The limit of messages in flight is reached, and the call does not wait.

    What helps: ``await producer.drain()`` before `send_nowait`, or use `send`, which waits. If the limit is
    reached for long, the broker is slower than the program: see `health()`.
    """

    default_retry = Retry.SAME_BROKER


class SendForbidden(UsageError):
    """A check of the application (`rocketpy.hooks.SendCheck`) rejected the message.

    What helps: ask the owner of the check; its exception is the `__cause__`.
    """


class ProtocolError(RocketError):
    """Bytes outside RocketMQ's format. Only the two subclasses are raised.

    What helps: see the two subclasses.
    """


class LocalProtocolError(ProtocolError):
    """The format cannot hold a value that was to be written.

    What helps: use smaller or fewer properties, names and numbers; the text says which value does not fit.
    """

    default_outcome = Outcome.NOT_SENT


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that violate RocketMQ's format. The connection is closed.

    What helps: check that the address is that of a name server or broker of RocketMQ. It must not be a proxy,
    a web server or another port. ``rocketpy doctor`` checks this, too.
    """

    default_retry = Retry.OTHER_BROKER


class TransportError(RocketError):
    """The network between this process and a peer failed.

    What helps: see the subclasses; ``rocketpy doctor`` checks addresses, TLS and whether brokers can be
    reached.
    """

    default_retry = Retry.OTHER_BROKER


class ConnectFailed(TransportError):
    """A connection could not be opened, so nothing was sent.

    What helps: check that the server runs and listens at this address, and that no firewall blocks it.
    Brokers must register an address which clients can reach (``brokerIP1``). Send again later.
    """

    default_outcome = Outcome.NOT_SENT


class ConnectionLost(TransportError):
    """An open connection ended. The peer may have handled the requests that were in flight.

    What helps: send again with the same ``Message(unique_id=...)``, so that consumers recognize a copy. If it
    happens often, look into the server's log for the reason.
    """


class RequestTimeout(TransportError):
    """No response arrived in time. The peer may have handled the request.

    What helps: send again with the same ``Message(unique_id=...)``. Raise `send_timeout_ms` if the broker is
    slow for long, and look at its disk: ``rocketpy broker runtime``.
    """


class ReplyTimeout(TransportError):
    """The request of a request-reply pair is stored, but no reply arrived in time.

    What helps: raise `timeout_ms`, and check that a consumer of the topic runs and replies. The request is
    stored, so a consumer may still handle it; its reply is then dropped.
    """

    default_outcome = Outcome.STORED
    default_retry = Retry.NONE


class RouteNotFound(RocketError):
    """No name server knows a broker that serves the topic.

    What helps: create the topic (``rocketpy topic create``), or let brokers create it
    (``autoCreateTopicEnable``). Check that its brokers run and are registered: ``rocketpy broker list``.
    """

    default_outcome = Outcome.NOT_SENT
    default_retry = Retry.REFRESH_ROUTE


_KEYS: Final = "ClientConfig.credentials, or ROCKETPY_ACCESS_KEY and ROCKETPY_SECRET_KEY"
_KEY_ADVICE: Final = {
    "No accessKey is configured": f"give the keys of an account: {_KEYS}",
    "username cannot be null": f"give the keys of an account: {_KEYS}",
    "No acl config for": f"the broker has no account with this access key; correct {_KEYS}",
    "Check signature failed": f"the secret key is wrong; correct {_KEYS}",
}
"""Remarks of servers with access control, by a part of their text, and what helps."""


class BrokerError(RocketError):
    """The peer responded with an error code.

    What helps: the code and the remark of the broker say what is wrong; `retry` says whether another attempt
    may help. NO_PERMISSION needs rights or keys, SYSTEM_BUSY and SERVICE_NOT_AVAILABLE another broker or some
    time.
    """

    default_outcome = Outcome.NOT_SENT

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
        text = f"{broker} responded with code {code}: {remark or 'no remark'}"
        advice = advice or next((help_ for mark, help_ in _KEY_ADVICE.items() if mark in (remark or "")), "")
        super().__init__(f"{text}; {advice}" if advice else text, outcome=outcome, retry=retry)
        self.code = code
        """The response code, also one that this version has no name for."""
        self.remark = remark
        """The peer's text."""
        self.broker = broker
        """The name or address of the peer."""


class BatchIncomplete(RocketError):
    """A long batch was sent in several requests, and one of them failed after others were stored.

    What helps: check `outcome`, then send ``messages[len(error.results):]`` again.
    """

    def __init__(self, results: Sequence[Any], total: int, cause: RocketError) -> None:
        super().__init__(
            f"{len(results)} of {total} messages are stored, then: {cause}",
            outcome=cause.outcome,
            retry=cause.retry,
        )
        self.results = results
        """The results of the stored messages, which are the first of the batch."""
        self.total = total
        """The number of messages in the batch."""
        self.cause = cause
        """The error of the request that failed, with the same outcome. Later requests were not sent."""


class NotDurable(RocketError):
    """A broker stored a message, but less durably than it is configured to, as its status says.

    Only producers with `ProducerConfig.require_send_ok` raise it. The message may be lost with its broker.

    What helps: look for a missing slave or a slow disk with ``rocketpy doctor`` and ``rocketpy-broker ha
    status``. If you send the message again, consumers get it twice.
    """

    default_outcome = Outcome.STORED

    def __init__(self, results: Sequence[Any]) -> None:
        first = next((result for result in results if result.status.name != "SEND_OK"), results[0])
        count = f"{len(results)} messages" if len(results) > 1 else f"message {first.message_id}"
        super().__init__(f"{count} stored in {first.queue} with {first.status.name} instead of SEND_OK")
        self.results = results
        """The result of each message; for a batch also of those with SEND_OK."""


class ReceiptExpired(RocketError):
    """The receipt of a message is no longer valid: its invisible time is over, or it was handled before.

    Another consumer of the group may have received the message.

    What helps: receive with a longer `invisible` time, or call `extend` while the work takes long;
    ``async for`` and `PushConsumer` extend it themselves. The work should be idempotent.
    """


class AcksFailed(RocketError):
    """Some of the messages that were acknowledged together are not acknowledged; the others are.

    What helps: see `failed` for the error of each message. Unless it is ReceiptExpired, acknowledge it again.
    """

    def __init__(self, failed: Sequence[tuple[Any, RocketError]], total: int) -> None:
        texts = list(dict.fromkeys(str(error) for _, error in failed))
        super().__init__(f"{len(failed)} of {total} messages are not acknowledged: {'; '.join(texts[:3])}")
        self.failed: list[tuple[Any, RocketError]] = list(failed)
        """Each message that failed, with its error."""


class BrokersFailed(RocketError):
    """An admin request was sent to several brokers or name servers, and some of them failed.

    The others have handled the request. The same call may be repeated.

    What helps: see `errors` for the reason at each server, and repeat the call.
    """

    def __init__(self, errors: Mapping[str, RocketError], results: Mapping[str, object]) -> None:
        texts = {name: str(error) for name, error in errors.items()}
        failed = "; ".join(text if name in text else f"{name}: {text}" for name, text in texts.items())
        super().__init__(f"{len(errors)} of {len(errors) + len(results)} servers failed: {failed}")
        self.errors: dict[str, RocketError] = dict(errors)
        """The error of each server that failed, by the name of the broker, or ``name server …``."""
        self.results: dict[str, object] = dict(results)
        """The results of the others, by their names."""


class StoreError(RocketError):
    """The store cannot do the operation; its files are unchanged unless the text says otherwise.

    What helps: see the subclasses, and the broker's log for the file.
    """


class RecordCorrupt(StoreError):
    """The bytes at a position are not a valid record.

    What helps: stop the broker and run ``rocketpy-broker store check DIR``. Take the messages from a replica
    or a backup. A consumer sends a damaged message back.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"record at {offset}: {reason}")
        self.offset = offset
        """Where the record starts, in bytes from the start of the buffer or file."""
        self.reason = reason
        """What is wrong."""


class TornTail(RecordCorrupt):
    """The data ends inside a record, as after a crash in the middle of a write.

    What helps: nothing at the end of a log, which recovery truncates. Elsewhere it is damage: see
    `RecordCorrupt`.
    """


class DiskFull(StoreError):
    """The disk is full. The message is not stored.

    What helps: free space, add a disk, or shorten ``fileReservedTime``. As soon as there is space, the broker
    stores messages again. Producers use other brokers meanwhile.
    """

    default_outcome = Outcome.NOT_SENT
    default_retry = Retry.OTHER_BROKER


class FlushFailed(StoreError):
    """The operating system failed to flush written data. The store stays closed until a restart.

    What helps: check disk and file system (``dmesg``), then restart the broker; it recovers what is readable.
    Promote a slave if the disk is broken.
    """

    default_retry = Retry.OTHER_BROKER


class StoreLocked(StoreError):
    """Another process has this store open.

    What helps: stop the other process, which the text names, or give this broker its own
    ``storePathRootDir``.
    """

    default_outcome = Outcome.NOT_SENT


class StoreDamaged(StoreError):
    """Damage that recovery cannot repair by itself; the text says where it is and what to do.

    What helps: do what the text says. Restore the file from a backup, or the whole store from a replica; do
    not edit files of a running broker.
    """


class ReplicationError(RocketError):
    """The replication group cannot accept the request now.

    What helps: see the subclasses, ``rocketpy-broker ha status`` and ``rocketpy-broker dledger status``.
    """

    default_retry = Retry.REFRESH_ROUTE


class NotLeader(ReplicationError):
    """This replica does not lead its group.

    What helps: send again; clients find the new leader by the route. A group without a leader needs more of
    its peers: start those that are down.
    """

    default_outcome = Outcome.NOT_SENT

    def __init__(self, message: str, *, leader_hint: str | None = None) -> None:
        super().__init__(message)
        self.leader_hint = leader_hint
        """The id of the leader, if known."""


class NotEnoughReplicas(ReplicationError):
    """Fewer replicas responded than the configured durability needs.

    What helps: start the missing replicas, or wait until they have caught up. See
    ``rocketpy-broker ha status`` or ``rocketpy-broker dledger status``.
    """


class TaskFailed(RocketError):
    """A background task of a client or server failed because of a bug.

    ``__cause__`` is the exception of the task; the log has its traceback.

    What helps: restart the client or server, and report the bug with the traceback from the log.
    """


class InvariantError(Exception):
    """An internal invariant is violated: a bug in this project. Do not catch it and continue.

    What helps: restart the process, and report the bug with the traceback. Run ``rocketpy-broker store check
    DIR`` if a broker raised it.
    """


def ensure(condition: object, message: str) -> None:
    """Raise `InvariantError` with `message` unless `condition` holds; stays on under ``python -O``."""
    if not condition:
        raise InvariantError(message)
