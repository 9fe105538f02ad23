"""memory://name: both ends in one process and one event loop, the same frames, no socket.

As over a socket, bytes that one end writes reach the other in order, in the next iteration of the event loop.
While an end pauses reading, the buffer of the writer fills up and its protocol is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

from rocketpy.errors import ConfigInvalid, ConnectFailed
from rocketpy.transport.base import Address, ChannelOptions
from rocketpy.transport.stream import StreamProtocol

_NO_PROTOCOL: Final = StreamProtocol()
"""Replaces the protocol of a connection that has ended."""


class MemoryTransport:
    """The transport of ``memory://`` addresses. One object is one address space."""

    def __init__(self) -> None:
        self._listeners: dict[str, MemoryListener] = {}

    async def connect(
        self, address: Address, protocol: Callable[[], StreamProtocol], options: ChannelOptions
    ) -> None:
        """Connect to a listener of this process and this event loop. Raises ConnectFailed."""
        listener = self._listeners.get(address.host)
        if listener is None:
            raise ConnectFailed(f"nothing listens at {address} in this process")
        loop = asyncio.get_running_loop()
        if listener.loop is not loop:
            raise ConnectFailed(f"{address} listens in another event loop; use TCP between threads")
        listener.accepted += 1
        client = _Pipe(loop, protocol(), peername=str(address), sockname=f"{address}#{listener.accepted}")
        server = _Pipe(loop, listener.protocol(), peername=client.sockname, sockname=client.peername)
        client.peer, server.peer = server, client
        server.protocol.connection_made(server)
        client.protocol.connection_made(client)

    async def listen(
        self, address: Address, protocol: Callable[[], StreamProtocol], options: ChannelOptions
    ) -> MemoryListener:
        """Listen under a name. Raises ConfigInvalid when it is in use."""
        if address.host in self._listeners:
            raise ConfigInvalid(f"{address} is already in use; choose another name")
        listener = MemoryListener(self._listeners, address, protocol)
        self._listeners[address.host] = listener
        return listener


class MemoryListener:
    """Accepts connections at a ``memory://`` name."""

    def __init__(
        self, names: dict[str, MemoryListener], address: Address, protocol: Callable[[], StreamProtocol]
    ) -> None:
        self._names = names
        self._address = address
        self.protocol = protocol
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.accepted = 0

    @property
    def address(self) -> Address:
        """The address."""
        return self._address

    async def close(self) -> None:
        """Free the name."""
        if self._names.get(self._address.host) is self:
            del self._names[self._address.host]


class _Pipe(asyncio.Transport):
    """One end of a connection: buffers written bytes until the protocol of the peer has received them."""

    peer: _Pipe

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol: StreamProtocol, *, peername: str, sockname: str
    ) -> None:
        super().__init__({"peername": peername, "sockname": sockname})
        self.loop = loop
        self.protocol = protocol
        self.peername = peername
        self.sockname = sockname
        self._chunks: list[bytes] = []
        self._size = 0
        self._high = 64 * 1024
        self._writing_paused = False
        self.reading = True
        """Whether this end accepts bytes from the peer."""
        self.closing = False
        self.lost = False
        """Whether `connection_lost` was called."""
        self._scheduled = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.closing or not data:
            return
        self._chunks.append(bytes(data))
        self._size += len(data)
        if self._size > self._high and not self._writing_paused:
            self._writing_paused = True
            self.protocol.pause_writing()
        self.schedule()

    def schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._deliver, context=Context())

    def _deliver(self) -> None:
        self._scheduled = False
        if self.lost or not self.peer.reading:
            return
        if self._chunks and not self.peer.closing:
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._size = 0
            if self._writing_paused:
                self._writing_paused = False
                self.protocol.resume_writing()
            try:
                self.peer.protocol.data_received(data)
            except Exception as error:  # noqa: BLE001 - as asyncio's transports do: the connection ends
                self.loop.call_exception_handler(
                    {
                        "message": "Fatal error: protocol.data_received() call failed.",
                        "exception": error,
                        "transport": self.peer,
                        "protocol": self.peer.protocol,
                    }
                )
                self._end(error)
        if self.closing and not self._chunks:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        """End the connection: call `connection_lost` of both protocols, once each."""
        for end in (self, self.peer):
            if not end.lost:
                end.lost = end.closing = True
                end.protocol.connection_lost(error)
                end.forget()

    def forget(self) -> None:
        """Release the protocol and unsent bytes, since the two ends refer to each other."""
        self.protocol = _NO_PROTOCOL
        self._chunks.clear()
        self._size = 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self.schedule()

    def abort(self) -> None:
        if not self.lost:
            self.closing = True
            self._chunks.clear()
            self._size = 0
            self.loop.call_soon(self._end, None, context=Context())

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self.peer.schedule()

    def is_reading(self) -> bool:
        return self.reading

    def get_write_buffer_size(self) -> int:
        return self._size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
