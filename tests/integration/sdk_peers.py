"""Scripted peers for tests of the client: a name server and brokers in one endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, Self, TypeVar

from rocketpy.client.connections import PeerConnection
from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import GetRouteInfoRequestHeader, SendMessageResponseHeader
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel, Server, serve
from tests.waiting import LIMIT_S

Script = Callable[[Channel, Command], Command | bytes | None]


class Startable(Protocol):
    """A client that can be started."""

    async def start(self, *, wait: bool = True) -> None: ...

    async def close(self) -> object: ...


C = TypeVar("C", bound=Startable)

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


class Peer:
    """A server that records its requests, and responds by `script`, or as a broker does.

    seen: the requests. opened: how many connections there were.
    """

    def __init__(self, script: Script | None = None) -> None:
        self.script = script
        self.seen: list[Command] = []
        self.opened = 0
        self.channels: list[Channel] = []
        self._server: Server | None = None
        self._news = asyncio.Event()

    async def start(self, address: str = "127.0.0.1:0") -> Self:
        """Start to listen."""
        self._server = await serve(address, self)
        return self

    @property
    def address(self) -> str:
        """The address that it listens on."""
        assert self._server is not None
        return str(self._server.address)

    async def close(self) -> None:
        """Stop listening, and close the connections."""
        if self._server is not None:
            await self._server.close()
            self._server = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def requests(self, *codes: int) -> list[Command]:
        """The requests with these codes."""
        return [command for command in self.seen if command.code in codes]

    @property
    def sends(self) -> list[Command]:
        """The send requests it got."""
        return self.requests(*SENDS)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds after some request; at most 10 s."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    # -- the Endpoint -------------------------------------------------------------------------

    def channel_opened(self, channel: Channel) -> None:
        self.opened += 1
        self.channels.append(channel)

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        self.seen.append(request)
        self._news.set()
        if self.script is not None:
            return self.script(channel, request)
        return stored(request)

    def end_of_buffer(self) -> None: ...

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        self._news.set()


def stored(request: Command, queue_id: int = 0, code: int = 0) -> Command:
    """A broker's response: stored, for every message; without fields for other requests."""
    if request.code not in SENDS:
        return request.reply()
    count = 1
    if request.code == RequestCode.SEND_BATCH_MESSAGE:
        count = sum(1 for _ in _elements(request.body))
    queue_id = int(request.ext_fields()["e"]) if queue_id == 0 else queue_id
    header = SendMessageResponseHeader(
        msg_id=",".join(f"{index:032X}" for index in range(count)), queue_id=queue_id, queue_offset=7
    )
    return request.reply(code, header=header)


def _elements(body: bytes) -> list[int]:
    offsets, offset = [], 0
    while offset < len(body):
        offsets.append(offset)
        offset += int.from_bytes(body[offset : offset + 4], "big")
    return offsets


def refuses(code: int) -> Script:
    """Respond to every send with a code."""
    return lambda _channel, request: (
        request.reply(code, remark="because") if request.code in SENDS else stored(request)
    )


def silent(_channel: Channel, request: Command) -> Command | None:
    """Never respond to a send."""
    return None if request.code in SENDS else stored(request)


def hangs_up(channel: Channel, request: Command) -> Command | None:
    """Cut the connection at the first send."""
    if request.code not in SENDS:
        return stored(request)
    channel.abort()
    return None


def cut(times: int, *only: str) -> Callable[[PeerConnection], None]:
    """Abort the next connections, to these addresses, before anything is sent on them."""
    left = times

    def opened(connection: PeerConnection) -> None:
        nonlocal left
        if left and connection.channel is not None and (not only or connection.address in only):
            left -= 1
            connection.channel.abort()

    return opened


@asynccontextmanager
async def not_waiting(client: C) -> AsyncIterator[C]:
    """A client that is started without waiting for a name server."""
    await client.start(wait=False)
    try:
        yield client
    finally:
        await client.close()


class Names(Peer):
    """A name server with the routes of the test: topic to {broker name: address}.

    queues: of each topic and broker. broker_id: 0 for masters, else slaves.
    """

    def __init__(self, **routes: dict[str, str]) -> None:
        super().__init__(self.respond)
        self.routes = routes
        self.queues = 2
        self.broker_id = 0

    def respond(self, channel: Channel, request: Command) -> Command | bytes | None:
        """A route, or that there is none; all brokers; all topics."""
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            found = {
                data.broker_name: data for brokers in self.routes.values() for data in self._datas(brokers)
            }
            return request.reply(body=ClusterInfo(broker_addr_table=found).encode())
        if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return request.reply(body=TopicList(topic_list=list(self.routes)).encode())
        if request.code == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS:
            return request.reply(body=TopicList().encode())
        if request.code != RequestCode.GET_ROUTEINTO_BY_TOPIC:
            return request.reply()
        topic = request.header_as(GetRouteInfoRequestHeader).topic
        brokers = self.routes.get(topic)
        if brokers is None:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic {topic}")
        route = TopicRouteData(
            queue_datas=[
                QueueData(broker_name=name, read_queue_nums=self.queues, write_queue_nums=self.queues, perm=7)
                for name in brokers
            ],
            broker_datas=self._datas(brokers),
        )
        return request.reply(body=route.encode())

    def _datas(self, brokers: dict[str, str]) -> list[BrokerData]:
        return [
            BrokerData(cluster="c", broker_name=name, broker_addrs={self.broker_id: address})
            for name, address in brokers.items()
        ]


async def error_of(work: asyncio.Future[object] | asyncio.Task[object]) -> RocketError:
    """The RocketError that an awaitable ends with."""
    try:
        await work
    except RocketError as error:
        return error
    raise AssertionError("no error")
