"""The name server: registers brokers, and returns the routes of topics to clients."""

from rocketpy_broker.namesrv.server import NameServer

__all__ = ["NameServer"]
