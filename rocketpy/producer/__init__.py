"""Sending: the producer, its retry decisions and its requests."""

from rocketpy.producer.producer import Producer

__all__ = ["Producer"]
