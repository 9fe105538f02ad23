"""Blocking versions of the asyncio clients, for code without an event loop."""

from rocketpy.sync.consumer import LitePullConsumer, PullConsumer, PushConsumer, SimpleConsumer
from rocketpy.sync.producer import AdminClient, Producer, SyncCheck, SyncLocalTransaction

__all__ = [
    "AdminClient",
    "LitePullConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "SyncCheck",
    "SyncLocalTransaction",
]
