"""The message store, usable without a broker: RocketMQ 4.6.0's commit log, consume queues and key index."""

from rocketpy_broker.store.config import (
    BusyConfig,
    CommitLogConfig,
    ConsumeQueueConfig,
    FlushConfig,
    FlushDiskType,
    IndexConfig,
    ReadConfig,
    RecoveryConfig,
    RetentionConfig,
    StoreConfig,
)
from rocketpy_broker.store.log.message_log import RecoveryReport
from rocketpy_broker.store.log.messages import AppendReceipt, MessageInner
from rocketpy_broker.store.message_store import MessageStore
from rocketpy_broker.store.queue.key_search import QueryMessageResult
from rocketpy_broker.store.queue.queue_reader import GetMessageResult, GetMessageStatus

__all__ = [
    "AppendReceipt",
    "BusyConfig",
    "CommitLogConfig",
    "ConsumeQueueConfig",
    "FlushConfig",
    "FlushDiskType",
    "GetMessageResult",
    "GetMessageStatus",
    "IndexConfig",
    "MessageInner",
    "MessageStore",
    "QueryMessageResult",
    "ReadConfig",
    "RecoveryConfig",
    "RecoveryReport",
    "RetentionConfig",
    "StoreConfig",
]
