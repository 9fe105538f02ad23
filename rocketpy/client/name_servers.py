"""NameServers: requests to the current name server, and to the next one when that fails.

Source: RocketMQ NettyRemotingClient's choice of a name server. Differs: a name server that does not know a
topic may just have started, so the others are asked too.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar

from rocketpy.client.connections import ConnectionPool, PeerConnection
from rocketpy.client.routing.routes import check_route
from rocketpy.environment import VARIABLES, no_name_server
from rocketpy.errors import (
    BrokerError,
    ConfigInvalid,
    ConnectFailed,
    Outcome,
    RemoteProtocolError,
    RequestTimeout,
    RocketError,
    RouteNotFound,
    TransportError,
)
from rocketpy.message.message import DEFAULT_TOPIC, REPLY_TOPIC_SUFFIX
from rocketpy.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    TopicList,
    TopicRouteData,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import GetRouteInfoRequestHeader, GetTopicsByClusterRequestHeader, Header
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from rocketpy.protocol.remoting.command import Command
from rocketpy.protocol.remoting.connection import MAYBE_HANDLED
from rocketpy.transport import Address, Channel, check_scheme

log: Final = logging.getLogger("rocketpy.client")

T = TypeVar("T")

_ALWAYS_SUPPORTED: Final = (RequestCode.GET_ROUTEINTO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO)
"""Requests that every name server supports, and no broker."""
_SYSTEM_TOPICS: Final = frozenset({
    DEFAULT_TOPIC, SCHEDULE_TOPIC, "BenchmarkTest", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
})  # fmt: skip
_SYSTEM_PREFIXES: Final = ("RMQ_SYS_", "rmq_sys_", RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
"""Topics that brokers create for themselves. Source: RocketMQ TopicConfigManager, TopicValidator."""


def split_addresses(text: str, *, tls: bool = False) -> tuple[str, ...]:
    """Split addresses of name servers at ``;``, ``,`` or white space.

    Args:
        text: The addresses.
        tls: Use TLS for TCP addresses.

    Raises:
        ConfigInvalid: An address is malformed, there is none, or only some are at ``tls://``. The scheme of
            the name servers is that of the connections to brokers, so it must be unambiguous.
    """
    addresses = [check_scheme(Address.parse(part)) for part in re.split(r"[;,\s]+", text) if part]
    if not addresses:
        raise ConfigInvalid(no_name_server("namesrv='host:9876'"))
    if tls:
        addresses = [replace(found, scheme="tls") if found.scheme == "tcp" else found for found in addresses]
    if len({found.scheme == "tls" for found in addresses}) > 1:
        raise ConfigInvalid(
            f"only some of the name servers {text!r} are at tls://; write tls:// before each of them, or none"
        )
    return tuple(map(str, addresses))


def require_tls(addresses: tuple[str, ...]) -> None:
    """Raise ConfigInvalid if a connection to one of these addresses would be TCP without TLS."""
    for address in addresses:
        if "://" not in address:
            raise ConfigInvalid(
                f"TLS files are set (ssl, {VARIABLES['tls_ca']} or a profile's tls_ca), and name server "
                f"{address} would be reached without TLS; write tls://{address}"
            )


class NameServers:
    """The name servers of a client."""

    def __init__(
        self, addresses: tuple[str, ...], pool: ConnectionPool, timeout_ms: int, first: int = 0
    ) -> None:
        """timeout_ms: for one response. first: any number; it selects the first server, to spread the
        load.
        """
        self.addresses = addresses
        pool.name_servers |= set(addresses)
        self._pool = pool
        self._timeout_ms = timeout_ms
        self._current = first % len(addresses)

    @property
    def current(self) -> PeerConnection:
        """The connection to the current name server."""
        return self._pool.get(self.addresses[self._current])

    async def request(self, code: int, header: Header | None = None) -> Command:
        """Return the first response of any name server, with any code. Raises the last TransportError."""
        _, response = await self._first(self._current, self._request(code, header))
        return response

    async def request_each(
        self, code: int, header: Header | None = None, body: bytes = b""
    ) -> dict[str, Command | TransportError]:
        """Send a request to every name server; return the response or the error of each, by address."""
        send = self._request(code, header, body)

        async def request(address: str) -> Command | TransportError:
            try:
                return await send(self._pool.get(address))
            except TransportError as error:
                return self._with_server(address, error, self._timeout_ms)

        responses = await asyncio.gather(*map(request, self.addresses))
        return dict(zip(self.addresses, responses, strict=True))

    async def reach(self) -> Channel:
        """Wait until a name server responds; return its channel.

        The name servers share `timeout_ms`, so a silent one does not delay the next for long. Raises the last
        TransportError.
        """
        limit_ms = self._timeout_ms // len(self.addresses)
        send = self._request(
            RequestCode.GET_ROUTEINTO_BY_TOPIC, GetRouteInfoRequestHeader(topic=DEFAULT_TOPIC)
        )

        async def reach(connection: PeerConnection) -> Channel:
            try:
                async with asyncio.timeout(limit_ms / 1000):
                    await send(connection)
                    return await connection.open()
            except TimeoutError:
                raise RequestTimeout(f"no response within {limit_ms} ms") from None

        _, channel = await self._first(self._current, reach, limit_ms)
        return channel

    def _request(
        self, code: int, header: Header | None, body: bytes = b""
    ) -> Callable[[PeerConnection], Awaitable[Command]]:
        """Return a function that sends this request to one name server. It raises TransportError."""

        async def send(connection: PeerConnection) -> Command:
            response = await connection.request(Command.request(code, header, body), self._timeout_ms)
            if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and code in _ALWAYS_SUPPORTED:
                raise ConnectFailed(
                    f"{connection.address} is a broker, not a name server; "
                    "name servers listen on port 9876 by default"
                )
            return response

        return send

    async def _first(
        self, index: int, use: Callable[[PeerConnection], Awaitable[T]], limit_ms: int | None = None
    ) -> tuple[int, T]:
        """Call `use` with one name server after the other, until one does not raise a TransportError.

        index: of the first one. limit_ms: the timeout of each, for the error text; `timeout_ms` when None.
        Returns the index of the one that succeeded, with the result. Raises the last TransportError.
        """
        error: RocketError = ConnectFailed("no name server is configured; set namesrv")
        for _ in self.addresses:
            try:
                return index, await use(self._pool.get(self.addresses[index]))
            except TransportError as failed:
                error = self._with_server(self.addresses[index], failed, limit_ms or self._timeout_ms)
                index = self._next(index)
        raise error.with_traceback(None)  # callers see their own frames, not those of the last attempt

    def _with_server(self, address: str, error: TransportError, limit_ms: int) -> TransportError:
        """Return the error with the name server in its text, and without the hint `MAYBE_HANDLED`."""
        if isinstance(error, ConnectFailed):
            return error  # its text names the name server
        text = f"name server {address} did not respond within {limit_ms} ms; check that it is a name server"
        if not isinstance(error, RequestTimeout):
            text = f"name server {address}: {str(error).removesuffix(MAYBE_HANDLED)}"
        return error.__class__(text, outcome=error.outcome, retry=error.retry)

    async def route(self, topic: str) -> TopicRouteData:
        """Return the route of a topic from the first name server that has a valid one.

        Raises RouteNotFound, a TransportError when no name server responds, BrokerError, RemoteProtocolError.
        """
        unknown: RouteNotFound | RemoteProtocolError | None = None
        index = self._current
        send = self._request(RequestCode.GET_ROUTEINTO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
        for _ in self.addresses:
            try:
                index, response = await self._first(index, send)
            except TransportError as error:
                if unknown is None:
                    raise
                raise unknown from error
            if response.code == ResponseCode.SUCCESS:
                try:
                    route = TopicRouteData.decode(response.body)
                    check_route(topic, route)
                except RemoteProtocolError as error:
                    text = f"name server {self.addresses[index]}: {error}"
                    unknown = RemoteProtocolError(text, outcome=Outcome.NOT_SENT)
                    log.warning("%s", unknown)
                    index = self._next(index)
                    continue
                return route
            if response.code != ResponseCode.TOPIC_NOT_EXIST:
                raise BrokerError(response.code, response.remark, f"name server {self.addresses[index]}")
            unknown = unknown or RouteNotFound(
                f"name server {self.addresses[index]} knows no broker for topic {topic}"
            )
            index = self._next(index)
        raise unknown or RouteNotFound(f"no name server is configured for topic {topic}; set namesrv")

    async def brokers(self) -> list[BrokerData]:
        """Return every broker of every cluster, in order of name. Raises TransportError, BrokerError."""
        response = await self._checked_request(RequestCode.GET_BROKER_CLUSTER_INFO)
        table = ClusterInfo.decode(response.body).broker_addr_table
        return [data for _, data in sorted(table.items())]

    async def topics(self, cluster: str | None = None, *, include_system: bool = False) -> list[str]:
        """Return the topics of applications, sorted, with their namespace.

        cluster: None for those of all clusters. include_system: also topics that brokers create themselves,
        including those of retries and dead letters. Raises TransportError, BrokerError.
        """
        if cluster is None:
            known = await self._names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            header = GetTopicsByClusterRequestHeader(cluster=cluster)
            known = await self._names(RequestCode.GET_TOPICS_BY_CLUSTER, header)
        if include_system:
            return sorted(known)
        own = await self._names(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        system = _SYSTEM_TOPICS.union(own, (name + REPLY_TOPIC_SUFFIX for name in own))
        return sorted(name for name in known - system if not name.startswith(_SYSTEM_PREFIXES))

    async def _names(self, code: int, header: Header | None = None) -> set[str]:
        return set(TopicList.decode((await self._checked_request(code, header)).body).topic_list)

    async def _checked_request(self, code: int, header: Header | None = None) -> Command:
        """Same as `request`, but raises BrokerError for a response with another code than SUCCESS."""
        index, response = await self._first(self._current, self._request(code, header))
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, f"name server {self.addresses[index]}")
        return response

    def _next(self, index: int) -> int:
        """Make the next name server the current one, unless a concurrent request has done so.

        Otherwise two requests that fail together would skip a server.
        """
        following = (index + 1) % len(self.addresses)
        if self._current == index:
            self._current = following
        return following
