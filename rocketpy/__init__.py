"""Asyncio-first client for Apache RocketMQ 4.x: the public names, nothing else."""

import sys

from rocketpy._version import __version__, warn_of_namesake
from rocketpy.admin.admin_client import AdminClient, DeadLetters
from rocketpy.client.admin import QueryResult
from rocketpy.client.routing import selectors as _selectors
from rocketpy.client.routing.selectors import ByMachineRoom, QueueSelector, RoundRobin, by_hash, by_random
from rocketpy.config import (
    BatchConfig,
    ClientConfig,
    CompressionConfig,
    ConsumerConfig,
    Credentials,
    LatencyConfig,
    MessageTraceConfig,
    ProducerConfig,
    RetryConfig,
)
from rocketpy.consumer import LitePullConsumer, PullConsumer, PushConsumer
from rocketpy.consumer import config as _consumer_config
from rocketpy.consumer.allocation import (
    AllocateAveragely,
    AllocateByCircle,
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateNearby,
    AllocationStrategy,
)
from rocketpy.consumer.config import ConsumeFrom, LitePullConfig, MessageModel, PushConfig
from rocketpy.consumer.fetch import subscription as _subscription
from rocketpy.consumer.fetch.subscription import Sql
from rocketpy.consumer.outcomes import ConsumeResult, Later
from rocketpy.errors import Outcome, Retry, RocketError
from rocketpy.hooks import (
    FailedAttempt,
    ProcessEvent,
    ProcessListener,
    ReceiveEvent,
    ReceiveListener,
    RpcHook,
    SendCheck,
    SendEvent,
    SendListener,
    SettleEvent,
    SettleListener,
)
from rocketpy.message.columns import MessageColumns
from rocketpy.message.message import Message, MessageExt, new_unique_id
from rocketpy.producer import Producer
from rocketpy.producer.request_reply import create_reply_message
from rocketpy.producer.transaction import LocalTransactionState, TransactionSendResult
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message import record as _record
from rocketpy.protocol.message.delays import DelayLevels
from rocketpy.results import Health, PullResult, PullStatus, SendResult, SendStatus, Unfinished

warn_of_namesake()

# Pickles name the modules that classes had when they were written.
sys.modules.update(
    {
        "rocketpy.consumer.settings": _consumer_config,
        "rocketpy.consumer.subscription": _subscription,
        "rocketpy.protocol.record": _record,
        "rocketpy.routing.selectors": _selectors,
    }
)

__all__ = [
    "AdminClient",
    "AllocateAveragely",
    "AllocateByCircle",
    "AllocateByConfig",
    "AllocateByConsistentHash",
    "AllocateByMachineRoom",
    "AllocateNearby",
    "AllocationStrategy",
    "BatchConfig",
    "ByMachineRoom",
    "ClientConfig",
    "CompressionConfig",
    "ConsumeFrom",
    "ConsumeResult",
    "ConsumerConfig",
    "Credentials",
    "DeadLetters",
    "DelayLevels",
    "FailedAttempt",
    "Health",
    "LatencyConfig",
    "Later",
    "LitePullConfig",
    "LitePullConsumer",
    "LocalTransactionState",
    "Message",
    "MessageColumns",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "MessageTraceConfig",
    "Outcome",
    "ProcessEvent",
    "ProcessListener",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConfig",
    "PushConsumer",
    "QueryResult",
    "QueueSelector",
    "ReceiveEvent",
    "ReceiveListener",
    "Retry",
    "RetryConfig",
    "RocketError",
    "RoundRobin",
    "RpcHook",
    "SendCheck",
    "SendEvent",
    "SendListener",
    "SendResult",
    "SendStatus",
    "SettleEvent",
    "SettleListener",
    "Sql",
    "TransactionSendResult",
    "Unfinished",
    "__version__",
    "by_hash",
    "by_random",
    "create_reply_message",
    "new_unique_id",
]
