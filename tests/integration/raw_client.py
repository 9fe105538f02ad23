"""A client of one connection for tests: sends commands, or recorded frames as they are."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

from rocketpy.protocol.headers import CreateTopicRequestHeader, Header
from rocketpy.protocol.remoting.command import Command, decode_command, encode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from rocketpy.transport import Address
from rocketpy_broker import EmbeddedCluster
from tests.waiting import LIMIT_S


class RawClient:
    """One TCP connection; `async with` closes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer, self.decoder = reader, writer, FrameDecoder()
        self.received: list[Command] = []

    @classmethod
    async def open(cls, address: Address | str) -> "RawClient":
        """Connect to a server of this test."""
        at = Address.parse(address) if isinstance(address, str) else address
        return cls(*await asyncio.open_connection(at.host, at.port))

    async def call_frame(self, frame: bytes) -> Command:
        """The response to one frame. Requests of the server before it are left to `next`."""
        self.writer.write(frame)
        async with asyncio.timeout(LIMIT_S):
            while not (responses := [command for command in self.received if command.is_response]):
                await self._read()
        self.received.remove(responses[0])
        return responses[0]

    async def call(self, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        """The response to one request."""
        return await self.call_frame(encode_command(Command.request(code, header, body)))

    async def next(self) -> Command:
        """The next received frame."""
        async with asyncio.timeout(LIMIT_S):
            while not self.received:
                await self._read()
        return self.received.pop(0)

    async def _read(self) -> None:
        data = await self.reader.read(65536)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.received += [decode_command(frame) for frame in self.decoder.feed(data)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def new_topic(name: str, queues: int = 3, attributes: str | None = None) -> CreateTopicRequestHeader:
    """The request that creates or changes a topic. attributes: as updateTopic -a sends them."""
    return CreateTopicRequestHeader(
        topic=name,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
        attributes=attributes,
    )


async def is_closed(client: RawClient) -> bool:
    """Wait until the server has closed a connection; responses before that are dropped."""
    async with asyncio.timeout(LIMIT_S):
        with contextlib.suppress(ConnectionError):
            while await client.reader.read(1 << 20):
                pass
    return True


@contextlib.asynccontextmanager
async def serving(
    store: Path | None = None, *, settings: dict[str, str]
) -> AsyncIterator[tuple[EmbeddedCluster, RawClient]]:
    """One broker with a name server, and a connection to the broker."""
    async with (
        EmbeddedCluster(store, settings=settings) as cluster,
        await RawClient.open(cluster.brokers[0].address) as client,
    ):
        yield cluster, client
