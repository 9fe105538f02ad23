"""Asyncio-first client for Apache RocketMQ 4.x: the public names, nothing else."""

from rocketpy._version import __version__, warn_of_namesake
from rocketpy.admin import QueryResult
from rocketpy.admin_client import AdminClient, DeadLetters
from rocketpy.client import Health
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
from rocketpy.consumer.allocation import (
    AllocateAveragely,
    AllocateByCircle,
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateNearby,
    AllocationStrategy,
)
from rocketpy.consumer.outcomes import ConsumeResult, Later
from rocketpy.consumer.settings import ConsumeFrom, LitePullConfig, MessageModel, PushConfig
from rocketpy.consumer.subscription import Sql
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
from rocketpy.message import Message, MessageExt, MessageQueue, new_unique_id
from rocketpy.message_columns import MessageColumns
from rocketpy.producer import Producer
from rocketpy.producer.request_reply import create_reply_message
from rocketpy.producer.transaction import LocalTransactionState, TransactionSendResult
from rocketpy.protocol.delays import DelayLevels
from rocketpy.results import PullResult, PullStatus, SendResult, SendStatus, Unfinished
from rocketpy.routing.selectors import ByMachineRoom, QueueSelector, RoundRobin, by_hash, by_random

warn_of_namesake()

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
