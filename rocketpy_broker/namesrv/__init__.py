"""The name server: tells clients which brokers serve a topic."""

from rocketpy_broker.namesrv.server import NameServer

__all__ = ["NameServer"]
