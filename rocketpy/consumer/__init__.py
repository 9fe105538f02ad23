"""Reading messages."""

from rocketpy.consumer.pull import PullConsumer

__all__ = ["PullConsumer"]
