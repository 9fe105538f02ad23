"""The name server: which brokers there are, and which of them serve a topic."""

from rocketpy_broker.namesrv.server import NameServer

__all__ = ["NameServer"]
