"""Consumers: receive messages by push, by poll, or by pull from an offset."""

from rocketpy.consumer.lite_pull import LitePullConsumer
from rocketpy.consumer.pull import PullConsumer
from rocketpy.consumer.push import PushConsumer
from rocketpy.consumer.simple import SimpleConsumer

__all__ = ["LitePullConsumer", "PullConsumer", "PushConsumer", "SimpleConsumer"]
