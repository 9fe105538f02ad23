"""Request handlers behind a memory:// address, without a broker around them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import Header
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel, ClientOnlyEndpoint, Endpoint, connect, serve
from rocketpy_broker.handlers.base import Rejected, error_response, handler_table
from tests.waiting import LIMIT_S

_numbers = itertools.count()


class HandlerServer(ClientOnlyEndpoint):
    """Calls the handlers of `owners`. requests: all that arrived. closed: listeners for closed channels."""

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
        try:
            return handler(channel, request)
        except Rejected as rejected:
            return error_response(request, rejected)

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Notify the listeners."""
        for listener in self.closed:
            listener(channel)


class HandlerClient(ClientOnlyEndpoint):
    """A client of request handlers.

    received: requests from the server. respond: makes the response to each; None for no response.
    """

    channel: Channel

    def __init__(self) -> None:
        self.received: list[Command] = []
        self.respond: Callable[[Command], Command | None] = Command.reply

    @property
    def notified(self) -> list[int]:
        """Codes of the requests from the server."""
        return [request.code for request in self.received]

    def handle(self, channel: Channel, request: Command) -> Command | None:
        """Record a request from the server, and respond."""
        self.received.append(request)
        return self.respond(request)

    async def call(self, code: RequestCode, header: Header | None = None, body: bytes = b"") -> Command:
        """Return the response to a request."""
        return await self.request(Command.request(code, header, body))

    async def request(self, command: Command) -> Command:
        """Return the response to a request."""
        return await self.channel.request(command, LIMIT_S * 1000)


_Client = TypeVar("_Client", bound=HandlerClient)


@asynccontextmanager
async def connected(
    address: str, endpoint: Endpoint, tasks: Tasks, make: Callable[[], _Client], count: int
) -> AsyncIterator[list[_Client]]:
    """Serve an endpoint, with this number of connected clients. tasks: closed at the end."""
    listener = await serve(address, endpoint)
    clients = [make() for _ in range(count)]
    try:
        for client in clients:
            client.channel = await connect(address, client)
        yield clients
    finally:
        for client in clients:
            client.channel.close()
        await listener.close()
        await tasks.close()


@asynccontextmanager
async def running(server: HandlerServer, clients: int = 1) -> AsyncIterator[list[HandlerClient]]:
    """Serve, with this number of connected clients."""
    async with connected(server.address, server, server.tasks, HandlerClient, clients) as made:
        yield made
