"""Request handlers behind a memory:// address, without a broker around them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import Header
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel, ClientOnlyEndpoint, connect, serve
from rocketpy_broker.handlers.base import handler_table
from tests.waiting import LIMIT_S

_numbers = itertools.count()


class HandlerServer(ClientOnlyEndpoint):
    """Calls the handlers of `owners`; also the client's endpoint, which keeps requests from the server."""

    def __init__(self, *owners: object) -> None:
        self.tasks = Tasks("the test")
        self.address = f"memory://handlers-{next(_numbers)}"
        self.handlers = handler_table(self.tasks, *owners)
        self.requests: list[Command] = []
        self.closed: list[Callable[[Channel], None]] = []

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        """Call the handler of a request."""
        self.requests.append(request)
        handler = self.handlers.get(request.code)
        if handler is None:
            return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        return handler(channel, request)

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Tell the handlers that a channel is gone."""
        for listener in self.closed:
            listener(channel)


class HandlerClient(ClientOnlyEndpoint):
    """A client of `HandlerServer`. notified: codes of the requests that the server sent."""

    channel: Channel

    def __init__(self) -> None:
        self.notified: list[int] = []

    def handle(self, channel: Channel, request: Command) -> Command:
        """Record a request of the server."""
        self.notified.append(request.code)
        return request.reply()

    async def call(self, code: RequestCode, header: Header | None = None, body: bytes = b"") -> Command:
        """Return the response to a request."""
        return await self.channel.request(Command.request(code, header, body), LIMIT_S * 1000)


@asynccontextmanager
async def running(server: HandlerServer, clients: int = 1) -> AsyncIterator[list[HandlerClient]]:
    """Serve, with so many connected clients."""
    listener = await serve(server.address, server)
    connected = [HandlerClient() for _ in range(clients)]
    try:
        for client in connected:
            client.channel = await connect(server.address, client)
        yield connected
    finally:
        for client in connected:
            client.channel.close()
        await listener.close()
        await server.tasks.close()
