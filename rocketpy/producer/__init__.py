"""The producer: sends, transactions and request-reply."""

from rocketpy.producer.producer import Producer

__all__ = ["Producer"]
