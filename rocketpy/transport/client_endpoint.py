"""The endpoint of a connection on which only this end asks."""

from __future__ import annotations

from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport.channel import Channel


class ClientOnlyEndpoint:
    """An Endpoint that refuses every request of the peer's."""

    def channel_opened(self, channel: Channel) -> None:
        """Part of Endpoint."""

    def handle(self, channel: Channel, request: Command) -> Command:
        """Part of Endpoint."""
        return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="this end only asks")

    def end_of_buffer(self) -> None:
        """Part of Endpoint."""

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Part of Endpoint."""
