"""What every client shares: connections, name servers, routes, heartbeats and the requests to brokers."""

from rocketpy.results import Health

__all__ = ["Health"]
