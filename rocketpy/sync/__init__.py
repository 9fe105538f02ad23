"""The blocking clients: the same methods as the asyncio clients, for threads."""

from rocketpy.sync.consumer import LitePullConsumer, PullConsumer, PushConsumer
from rocketpy.sync.producer import AdminClient, Producer, SyncCheck, SyncLocalTransaction

__all__ = [
    "AdminClient",
    "LitePullConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SyncCheck",
    "SyncLocalTransaction",
]
