"""Asyncio-first client for Apache RocketMQ 4.x: the public names, nothing else."""

from rocketpy._version import __version__
from rocketpy.admin import AdminClient, QueryResult
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
from rocketpy.consumer import PullConsumer
from rocketpy.errors import Outcome, Retry, RocketError
from rocketpy.hooks import (
    FailedAttempt,
    ReceiveEvent,
    ReceiveListener,
    RpcHook,
    SendCheck,
    SendEvent,
    SendListener,
)
from rocketpy.message import Message, MessageExt, MessageQueue
from rocketpy.producer import Producer
from rocketpy.producer.request_reply import create_reply_message
from rocketpy.producer.transaction import LocalTransactionState, TransactionSendResult
from rocketpy.results import PullResult, PullStatus, SendResult, SendStatus, Unfinished
from rocketpy.routing.selectors import ByMachineRoom, QueueSelector, RoundRobin, by_hash, by_random

__all__ = [
    "AdminClient",
    "BatchConfig",
    "ByMachineRoom",
    "ClientConfig",
    "CompressionConfig",
    "ConsumerConfig",
    "Credentials",
    "FailedAttempt",
    "Health",
    "LatencyConfig",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "MessageQueue",
    "MessageTraceConfig",
    "Outcome",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullResult",
    "PullStatus",
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
    "TransactionSendResult",
    "Unfinished",
    "__version__",
    "by_hash",
    "by_random",
    "create_reply_message",
]
