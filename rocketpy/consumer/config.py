"""Settings of consumers that join a group (`PushConsumer`, `LitePullConsumer`), and checks of arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from numbers import Integral, Real
from pathlib import Path

from rocketpy.config import MessageTraceConfig, check_number
from rocketpy.consumer.allocation import AllocateAveragely, AllocationStrategy
from rocketpy.errors import ConfigInvalid, UsageError


class MessageModel(Enum):
    """Who gets a message. Source: RocketMQ MessageModel."""

    CLUSTERING = "CLUSTERING"
    """One member of the group."""
    BROADCASTING = "BROADCASTING"
    """Every member; what one fails to handle does not come again."""


class ConsumeFrom(Enum):
    """Where a group begins in a queue that it has no offset of. Source: RocketMQ ConsumeFromWhere.

    A broker whose queue still begins at 0 answers 0 for a group that it does not know (QUIRKS 33), so there
    every new group begins at the first message, whatever this says.
    """

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    """At the end."""
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    """At the first message."""
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """At the first message stored at `MemberConfig.consume_timestamp_ms` or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """What all consumers that join a group have in common."""

    model: MessageModel = MessageModel.CLUSTERING
    """Who gets a message. RocketMQ: messageModel."""
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    """Where a new group begins. RocketMQ: consumeFromWhere."""
    consume_timestamp_ms: int | None = None
    """For ConsumeFrom.TIMESTAMP, in ms since 1970. None: half an hour before the start.
    RocketMQ: consumeTimestamp."""
    allocation: AllocationStrategy = field(default_factory=AllocateAveragely)
    """How the group's members share queues; all must use the same. RocketMQ: allocateMessageQueueStrategy."""
    pull_batch_size: int = 32
    """Messages a pull asks for at most. RocketMQ: pullBatchSize."""
    pull_interval_ms: int = 0
    """Pause between two pulls of a queue. RocketMQ: pullInterval."""
    queue_messages_max: int = 1000
    """Messages held of one queue; above it pulls of that queue wait. RocketMQ: pullThresholdForQueue."""
    queue_bytes_max: int = 100 * 1024 * 1024
    """Their bodies, likewise. RocketMQ: pullThresholdSizeForQueue, in MiB."""
    topic_messages_max: int | None = None
    """Messages held of all queues together; each queue gets an equal part of it, instead of
    `queue_messages_max`. RocketMQ: pullThresholdForTopic."""
    topic_bytes_max: int | None = None
    """Their bodies, likewise. RocketMQ: pullThresholdSizeForTopic, in MiB."""
    persist_interval_ms: int = 5000
    """How often offsets are stored. RocketMQ: persistConsumerOffsetInterval."""
    rebalance_interval_ms: int = 20_000
    """How often shares are computed again, besides when brokers tell of a change.
    RocketMQ: the system property rocketmq.client.rebalance.waitInterval."""
    suspend_timeout_ms: int = 15_000
    """How long a broker may hold a pull until a message comes. RocketMQ: 15000, fixed."""
    pull_timeout_ms: int = 30_000
    """Time for a pull. RocketMQ: 30000, fixed."""
    close_timeout_ms: int = 10_000
    """How long `close` waits for handlers. RocketMQ: none, it does not wait."""
    offset_directory: Path | None = None
    """Where offsets are kept when broadcasting; None: ``~/.rocketmq_offsets``.
    RocketMQ: the system property rocketmq.client.localOffsetStoreDir."""
    unit_mode: bool = False
    """Whether the group belongs to a unit. RocketMQ: unitMode."""
    max_body_bytes: int = 16 * 1024 * 1024
    """A compressed body that inflates to more is not decoded. RocketMQ: none."""
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
        check_number("suspend_timeout_ms", self.suspend_timeout_ms, 1)
        check_number("pull_timeout_ms", self.pull_timeout_ms, self.suspend_timeout_ms)
        check_number("close_timeout_ms", self.close_timeout_ms, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfig(MemberConfig):
    """Settings of a `PushConsumer`."""

    orderly: bool = False
    """Handle the messages of a queue one after the other, under a lock of the broker's that no other member
    has. RocketMQ: whether a MessageListenerOrderly is registered."""
    batch_size: int = 1
    """Messages a handler gets at most. RocketMQ: consumeMessageBatchMaxSize."""
    concurrency: int = 20
    """Handlers that run at the same time: tasks of an ``async def``, threads of a plain function. Orderly:
    threads only; each queue has one handler at a time. RocketMQ: consumeThreadMin, consumeThreadMax."""
    threads: bool = True
    """Whether a plain function runs on threads. False: in the event loop, where it must not block; that
    costs least. RocketMQ: none."""
    span_max: int = 2000
    """From the first offset held of a queue to the last; above it pulls of that queue wait. Not when orderly.
    RocketMQ: consumeConcurrentlyMaxSpan."""
    max_reconsume_times: int = -1
    """How often a message comes again before it goes to the dead letters; -1 is 16, and without end when
    orderly. RocketMQ: maxReconsumeTimes."""
    suspend_ms: int = 1000
    """How long an orderly queue waits after LATER, 10 to 30000. RocketMQ: suspendCurrentQueueTimeMillis."""
    consume_timeout_ms: int = 15 * 60 * 1000
    """A message whose handler takes longer is sent back, so that another member gets it. Not when orderly.
    RocketMQ: consumeTimeout, in minutes."""
    message_trace: MessageTraceConfig | None = None
    """Report what is handled, for RocketMQ's trace queries; None for no reports. RocketMQ: enableMsgTrace."""
    post_subscription: bool = False
    """Whether each pull carries its filter. RocketMQ: postSubscriptionWhenPull."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConfig(MemberConfig):
    """Settings of a `LitePullConsumer`."""

    auto_commit: bool = True
    """Whether offsets of what earlier polls returned are stored by themselves. RocketMQ: autoCommit."""
    poll_timeout_ms: int = 5000
    """How long `poll` waits for a message. RocketMQ: pollTimeoutMillis."""
    poll_batch_size: int = 32
    """Messages `poll` returns at most. RocketMQ: none, it returns those of one pull."""

    def __post_init__(self) -> None:
        MemberConfig.__post_init__(self)
        check_number("poll_timeout_ms", self.poll_timeout_ms, 0)
        check_number("poll_batch_size", self.poll_batch_size, 1)


def _check_choice(name: str, value: object, kind: type[Enum]) -> None:
    if not isinstance(value, kind):
        raise ConfigInvalid(f"{name} is {value!r}; choose one of {', '.join(map(str, kind))}")


def check_integer(name: str, value: object) -> None:
    """Raise UsageError unless an argument is an integer."""
    if not isinstance(value, Integral):
        raise UsageError(f"{name} is {value!r}; it must be a whole number")


def check_timeout(name: str, value: object) -> None:
    """Raise UsageError unless an argument is a number or None."""
    if value is not None and not isinstance(value, Real):
        raise UsageError(f"{name} is {value!r}; it must be a number of milliseconds, or None")
