"""Requests to another server, from a slave or from an operator's command."""

from __future__ import annotations

from typing import Final

from rocketpy.config import Credentials
from rocketpy.errors import BrokerError
from rocketpy.protocol.codes import VERSION_5_0_0, RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import LANGUAGE, Command
from rocketpy.transport import Address, Channel, ChannelOptions, ClientOnlyEndpoint, connect

_TIMEOUT_MS: Final = 3000
_FOR_NAME_SERVERS: Final = (RequestCode.REGISTER_BROKER, RequestCode.GET_BROKER_CLUSTER_INFO)
"""Requests that name servers handle, and brokers do not."""


class RemotingClient:
    """Sends requests to one server over a connection that is opened on demand."""

    def __init__(self, address: Address, credentials: Credentials | None, options: ChannelOptions) -> None:
        self.address = address
        self._signer = None if credentials is None else credentials.signer()
        self._options = options
        self._channel: Channel | None = None
        self.responds_to_all = False
        """Whether the server also responds to codes that it does not know, as far as its responses say.
        RocketMQ 4.x does not (QUIRKS 6)."""

    async def request(self, code: int, fields: dict[str, str] | None = None) -> bytes:
        """Return the body of the response. Raises BrokerError for a code other than SUCCESS, RocketError."""
        return bytes((await self.call(code, fields)).body)

    async def call(self, code: int, fields: dict[str, str] | None = None) -> Command:
        """Same as `request`, but return the whole response."""
        if self._channel is None or self._channel.is_closed:
            self._channel = await connect(self.address, ClientOnlyEndpoint(), self._options)
        command = Command.request(code)
        command.ext = fields if self._signer is None else self._signer.sign(fields or {}, b"", code=code)
        response = await self._channel.request(command, _TIMEOUT_MS)
        self.responds_to_all = response.language == LANGUAGE or response.version >= VERSION_5_0_0
        if response.code != ResponseCode.SUCCESS:
            raise rejection(code, response, self.address)
        return response

    def close(self) -> None:
        """Disconnect; the next request connects again."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def disconnect(self) -> None:
        """Same as `close`, but waits for the end of the connection, as at the end of an event loop."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close_within()


def rejection(code: int, response: Command, address: Address) -> BrokerError:
    """Return the error for a response that is not SUCCESS. code: of the request."""
    is_broker = response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and code in _FOR_NAME_SERVERS
    advice = "it is a broker, not a name server" if is_broker else ""
    return BrokerError(response.code, response.remark, str(address), advice=advice)
