"""Endpoints of servers that differ from others in some requests; see `Broker`'s argument `intercept`."""

from __future__ import annotations

from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel, Endpoint


class WrappedEndpoint:
    """An endpoint like another one. Subclasses handle some requests in another way."""

    def __init__(self, inner: Endpoint) -> None:
        self._inner = inner
        self.channel_opened = inner.channel_opened
        self.channel_closed = inner.channel_closed
        self.end_of_buffer = inner.end_of_buffer

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        """Handle a request as the other endpoint does."""
        return self._inner.handle(channel, request)
