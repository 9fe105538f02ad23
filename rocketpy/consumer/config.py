"""Settings of consumers that join a group (`PushConsumer`, `LitePullConsumer`), and checks of arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from numbers import Integral
from pathlib import Path
from typing import Final

from rocketpy.config import MessageTraceConfig, check_number
from rocketpy.consumer.allocation import AllocateAveragely, AllocationStrategy
from rocketpy.errors import ConfigInvalid, UsageError
from rocketpy.runtime.pickling import ADDED, get_fields, set_fields


class MessageModel(Enum):
    """Which members of a group receive a message. Source: RocketMQ MessageModel."""

    CLUSTERING = "CLUSTERING"
    """One member of the group."""
    BROADCASTING = "BROADCASTING"
    """Every member; a message whose handler failed is not redelivered."""


class ConsumeFrom(Enum):
    """Where a group begins in a queue without a committed offset. Source: RocketMQ ConsumeFromWhere.

    While a queue still begins at offset 0, its broker returns offset 0 for an unknown group (QUIRKS 33). Then
    every new group begins at the first message, and this setting has no effect.
    """

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    """At the end of the queue."""
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    """At the first message."""
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """At the first message stored at `MemberConfig.consume_timestamp_ms` or later.

    With a broker of RocketMQ before 5.1.1, it may be an earlier message.
    """


class Sharing(Enum):
    """What the members of a group share. All members of a group must share the same."""

    QUEUES = "QUEUES"
    """Queues: each belongs to one member, which handles its messages. RocketMQ 4.x and 5.x."""
    MESSAGES = "MESSAGES"
    """Messages (POP): any member gets any message, so a group may have more members than queues. Needs
    brokers of RocketMQ 5.x or of rocketpy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """Settings of all consumers that join a group."""

    model: MessageModel = MessageModel.CLUSTERING
    """Which members receive a message. RocketMQ: messageModel."""
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    """Where a new group begins. RocketMQ: consumeFromWhere."""
    consume_timestamp_ms: int | None = None
    """For ConsumeFrom.TIMESTAMP, in ms since 1970. None: half an hour before the start.
    RocketMQ: consumeTimestamp."""
    allocation: AllocationStrategy = field(default_factory=AllocateAveragely)
    """How the group's members share queues; all members must use the same strategy.
    RocketMQ: allocateMessageQueueStrategy."""
    pull_batch_size: int = 256
    """Maximum messages per pull. If more than 32, also at most the limit of cached messages. A broker
    has its own limit, 32 by default in RocketMQ. RocketMQ: pullBatchSize, 32."""
    pull_interval_ms: int = 0
    """Pause between two pulls of a queue, in ms. RocketMQ: pullInterval."""
    queue_messages_max: int = 1000
    """Maximum cached messages of a queue; above it, its pulls wait. RocketMQ: pullThresholdForQueue."""
    queue_bytes_max: int = 100 * 1024 * 1024
    """Maximum cached body bytes of one queue. RocketMQ: pullThresholdSizeForQueue, in MiB."""
    topic_messages_max: int | None = None
    """Maximum cached messages of all queues of this member together, which get equal shares. It replaces
    `queue_messages_max`. RocketMQ: pullThresholdForTopic."""
    topic_bytes_max: int | None = None
    """Maximum cached body bytes of all queues of this member together, which get equal shares. It replaces
    `queue_bytes_max`. RocketMQ: pullThresholdSizeForTopic, in MiB."""
    persist_interval_ms: int = 5000
    """How often offsets are committed. RocketMQ: persistConsumerOffsetInterval."""
    rebalance_interval_ms: int = 20_000
    """How often the group is rebalanced, besides when brokers report a change.
    RocketMQ: the system property rocketmq.client.rebalance.waitInterval."""
    rebalance_wait_ms: int = field(default=10_000, metadata=ADDED)
    """At a rebalance, how long a queue's former owner waits for running handlers before it commits and
    releases the queue, and how long (and 1 s more) its next owner waits for that. 0: neither waits. Orderly
    consumers always wait. RocketMQ: none."""
    suspend_timeout_ms: int = 15_000
    """How long a broker may hold a pull until a message arrives. RocketMQ: 15000, fixed."""
    pull_timeout_ms: int = 30_000
    """Timeout of a pull. RocketMQ: 30000, fixed."""
    close_timeout_ms: int = 10_000
    """How long `close` waits for running handlers, and for the bodies of a `SimpleConsumer`'s loops.
    RocketMQ: none, it does not wait."""
    offset_directory: Path | None = None
    """Directory of the offset files when broadcasting; None: ``~/.rocketmq_offsets``.
    RocketMQ: the system property rocketmq.client.localOffsetStoreDir."""
    unit_mode: bool = False
    """Whether the group belongs to a unit. RocketMQ: unitMode."""
    max_body_bytes: int = 16 * 1024 * 1024
    """A compressed body that is larger after decompression is not decoded. RocketMQ: none."""
    verify_checksums: bool = True
    """Check the CRC of each body, and its end-to-end checksum where a producer set one."""

    def __post_init__(self) -> None:
        _check_choice("model", self.model, MessageModel)
        _check_choice("consume_from", self.consume_from, ConsumeFrom)
        if isinstance(self.allocation, type) or not callable(getattr(self.allocation, "allocate", None)):
            raise ConfigInvalid(
                f"allocation is {self.allocation!r}; it must be a strategy, such as AllocateAveragely()"
            )
        directory: object = self.offset_directory
        if directory is not None and not isinstance(directory, Path):
            raise ConfigInvalid(f"offset_directory is {directory!r}; it must be a pathlib.Path")
        if self.consume_timestamp_ms is not None:
            check_number("consume_timestamp_ms", self.consume_timestamp_ms, 0)
        check_number("pull_batch_size", self.pull_batch_size, 1, 1024)
        check_number("pull_interval_ms", self.pull_interval_ms, 0, 65_535)
        check_number("queue_messages_max", self.queue_messages_max, 1, 65_535)
        check_number("queue_bytes_max", self.queue_bytes_max, 1)
        for name in ("topic_messages_max", "topic_bytes_max"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 1)
        check_number("persist_interval_ms", self.persist_interval_ms, 10)
        check_number("rebalance_interval_ms", self.rebalance_interval_ms, 10)
        check_number("rebalance_wait_ms", self.rebalance_wait_ms, 0)
        check_number("suspend_timeout_ms", self.suspend_timeout_ms, 1)
        check_number("pull_timeout_ms", self.pull_timeout_ms, self.suspend_timeout_ms)
        check_number("close_timeout_ms", self.close_timeout_ms, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfig(MemberConfig):
    """Settings of a `PushConsumer`."""

    orderly: bool = False
    """Handle the messages of a queue one after the other, while the broker locks the queue for this member.
    RocketMQ: whether a MessageListenerOrderly is registered."""
    batch_size: int = 1
    """Maximum messages per handler call. RocketMQ: consumeMessageBatchMaxSize."""
    concurrency: int = 20
    """Maximum concurrent handler calls: tasks of an ``async def``, threads of a plain function. Orderly: the
    number of threads; each queue has one call at a time. RocketMQ: consumeThreadMin, consumeThreadMax."""
    threads: bool = True
    """Whether a plain function runs on threads. False: it runs in the event loop, which is fastest, and must
    not block. RocketMQ: none."""
    span_max: int = 2000
    """Maximum distance between the first and the last cached offset of a queue; above it, pulls of the queue
    wait. Ignored when orderly. RocketMQ: consumeConcurrentlyMaxSpan."""
    max_reconsume_times: int = -1
    """How often a message is redelivered before it goes to the dead-letter topic. -1 means 16, or without
    limit when orderly. RocketMQ: maxReconsumeTimes."""
    suspend_ms: int = 1000
    """How long an orderly queue pauses after LATER, 10 to 30000. RocketMQ: suspendCurrentQueueTimeMillis."""
    consume_timeout_ms: int = 15 * 60 * 1000
    """A message whose handler takes longer is sent back and redelivered, to any member. A check runs at this
    interval, so it may happen after twice the time. An orderly consumer only reports it. In both cases
    `health()` reports handler calls that still run. RocketMQ: consumeTimeout, in minutes."""
    sharing: Sharing = field(default=Sharing.QUEUES, metadata=ADDED)
    """What the members of the group share. With `Sharing.MESSAGES` (POP) a member receives only as many
    messages as handlers can begin with, and keeps them invisible to others while it has them. RocketMQ: none,
    see setClientRebalance."""
    invisible_ms: int = field(default=60_000, metadata=ADDED)
    """With `Sharing.MESSAGES`: after this time the messages of a member that died go to others. Members
    extend it at half of this time. RocketMQ: popInvisibleTime."""
    message_trace: MessageTraceConfig | None = None
    """Settings of the message trace for trace queries; None for no trace. RocketMQ: enableMsgTrace."""
    post_subscription: bool = False
    """Whether each pull carries the filter expression. RocketMQ: postSubscriptionWhenPull."""

    __getstate__ = get_fields
    __setstate__ = set_fields

    def __post_init__(self) -> None:
        MemberConfig.__post_init__(self)
        trace: object = self.message_trace
        if trace is not None and not isinstance(trace, MessageTraceConfig):
            raise ConfigInvalid(f"message_trace is {trace!r}; it must be a MessageTraceConfig()")
        check_number("batch_size", self.batch_size, 1, 1024)
        check_number("concurrency", self.concurrency, 1, 1000)
        check_number("span_max", self.span_max, 1, 65_535)
        check_number("max_reconsume_times", self.max_reconsume_times, -1)
        check_number("suspend_ms", self.suspend_ms, 10, 30_000)
        check_number("consume_timeout_ms", self.consume_timeout_ms, 1)
        _check_choice("sharing", self.sharing, Sharing)
        check_number("invisible_ms", self.invisible_ms, 1000, INVISIBLE_MAX_MS)
        if self.sharing is Sharing.MESSAGES:
            check_sharing(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConfig(MemberConfig):
    """Settings of a `LitePullConsumer`."""

    auto_commit: bool = True
    """Whether offsets of messages from earlier polls are committed automatically. RocketMQ: autoCommit."""
    poll_timeout_ms: int = 5000
    """How long `poll` waits for a message. RocketMQ: pollTimeoutMillis."""
    poll_batch_size: int = 32
    """Maximum messages per `poll`. RocketMQ: none, a poll returns the messages of one pull."""

    __getstate__ = get_fields
    __setstate__ = set_fields

    def __post_init__(self) -> None:
        MemberConfig.__post_init__(self)
        check_number("poll_timeout_ms", self.poll_timeout_ms, 0)
        check_number("poll_batch_size", self.poll_batch_size, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleConfig(MemberConfig):
    """Settings of a `SimpleConsumer`. Those about queues, pulls and offsets have no effect."""

    max_reconsume_times: int = -1
    """How often a message is delivered again before it goes to the dead-letter topic. -1: as the group's
    configuration says (retryMaxTimes), usually 16."""
    request_timeout_ms: int = 5000
    """Timeout of a request, besides the time for which a broker may hold it."""
    extend_ms: int = 60_000
    """For ``async for``: how long a message is invisible to others. It is extended at half of this time."""

    __getstate__ = get_fields
    __setstate__ = set_fields

    def __post_init__(self) -> None:
        MemberConfig.__post_init__(self)
        check_sharing(self)
        check_number("max_reconsume_times", self.max_reconsume_times, -1)
        check_number("request_timeout_ms", self.request_timeout_ms, 1)
        check_number("extend_ms", self.extend_ms, 100, INVISIBLE_MAX_MS)


INVISIBLE_MAX_MS: Final = 3 * 24 * 60 * 60 * 1000
"""Longest invisible time of a message in ms: brokers time nothing that is later, by default."""


def check_sharing(config: MemberConfig) -> None:
    """Raise ConfigInvalid if settings contradict sharing by message."""
    if config.model is not MessageModel.CLUSTERING:
        raise ConfigInvalid(f"model is {config.model}; messages are shared with MessageModel.CLUSTERING only")
    if config.consume_from is ConsumeFrom.TIMESTAMP:
        raise ConfigInvalid(
            "consume_from is ConsumeFrom.TIMESTAMP; a group that shares messages begins at the first or the "
            "last one. `rocketpy group reset-offset` moves it to a time"
        )


def _check_choice(name: str, value: object, kind: type[Enum]) -> None:
    if not isinstance(value, kind):
        raise ConfigInvalid(f"{name} is {value!r}; choose one of {', '.join(map(str, kind))}")


def check_integer(name: str, value: object) -> None:
    """Raise UsageError unless an argument is an integer."""
    if not isinstance(value, Integral):
        raise UsageError(f"{name} is {value!r}; it must be a whole number")
