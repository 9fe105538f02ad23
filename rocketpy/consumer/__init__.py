"""Reading messages."""

from rocketpy.consumer.pull import PullConsumer
from rocketpy.consumer.push import PushConsumer

__all__ = ["PullConsumer", "PushConsumer"]
