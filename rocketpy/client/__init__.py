"""Code that all clients share: connections, name servers, routes, heartbeats, requests to brokers."""

from rocketpy.results import Health

__all__ = ["Health"]
