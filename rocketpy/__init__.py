"""Asyncio-first client for Apache RocketMQ 4.x: the public names, nothing else."""

from rocketpy._version import __version__
from rocketpy.client import Health
from rocketpy.config import (
    BatchConfig,
    ClientConfig,
    CompressionConfig,
    ConsumerConfig,
    ProducerConfig,
    RetryConfig,
)
from rocketpy.consumer import PullConsumer
from rocketpy.errors import Outcome, Retry, RocketError
from rocketpy.hooks import SendEvent, SendListener
from rocketpy.message import Message, MessageExt, MessageQueue
from rocketpy.producer import Producer
from rocketpy.results import PullResult, PullStatus, SendResult, SendStatus, Unfinished

__all__ = [
    "BatchConfig",
    "ClientConfig",
    "CompressionConfig",
    "ConsumerConfig",
    "Health",
    "Message",
    "MessageExt",
    "MessageQueue",
    "Outcome",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "Retry",
    "RetryConfig",
    "RocketError",
    "SendEvent",
    "SendListener",
    "SendResult",
    "SendStatus",
    "Unfinished",
    "__version__",
]
