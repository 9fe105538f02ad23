"""Registers this broker and its topics at every name server.

Each name server has its own task, so one that is down does not delay the others. The task registers at the
start, every 30 s, when a topic has changed (only that topic, QUIRKS 13), and after a lost connection.
Source: BrokerController.registerBrokerAll, BrokerOuterAPI of RocketMQ 4.6.0. Differs: many topics are
registered in several requests; 4.6.0 sends one, which may exceed the limit of a frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Final

import msgspec

from rocketpy.errors import RocketError, RouteNotFound, TransportError
from rocketpy.protocol.bodies import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    ClusterInfo,
    DataVersion,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicRouteData,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetRouteInfoRequestHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from rocketpy.protocol.message.checksum import crc32
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import PeriodicCall, Tasks
from rocketpy.transport import Address, Channel, ChannelOptions, ClientOnlyEndpoint, connect
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.services.cluster.remoting_client import rejection
from rocketpy_broker.services.metadata.topics import TopicTable

log = logging.getLogger("rocketpy.broker.registration")

_READ_WRITE: Final = PERM_READ | PERM_WRITE
_WAIT_REGISTERED_S: Final = 1.0
"""How long an operator's change waits for name servers to accept it; as in RocketMQ 5."""
_ROUTES_CONCURRENCY: Final = 100
_PART_BYTES: Final = 1 << 20
"""Approximate size of the topics in one request. A larger one would delay a name server's other clients."""
_TOPIC_BYTES: Final = 160
"""Size of a topic in a request without its name, which occurs twice."""
_FAILURE_LEVELS: Final = {1: logging.WARNING, 3: logging.ERROR}
"""Log levels of failures in a row, by their number; others are logged at DEBUG."""
_RETRY_S: Final = (1.0, 2.0, 5.0)
"""Pauses after failures in a row; the last one applies to all further failures."""


def advertised(address: Address, host: str | None) -> str:
    """Return an address as name servers return it. host: replaces the host of the listener, if given.

    TCP and TLS addresses have no scheme, as in RocketMQ; memory:// addresses have no host.
    """
    if host is not None and address.scheme != "memory":
        address = replace(address, host=host)
    return str(replace(address, scheme="tcp") if address.scheme == "tls" else address)


@dataclass(eq=False)
class _NameServerState(ClientOnlyEndpoint):
    """The connection to a name server, and the changes that the name server has not accepted yet."""

    address: Address
    channel: Channel | None = None
    registering: PeriodicCall | None = None
    """The periodic registration, after the first one."""
    is_woken: bool = False
    """Whether to register again before the period is over."""
    unsent: dict[str, TopicConfig] = field(default_factory=dict)
    """Topics that have changed since the last acknowledged registration."""
    changes: set[int] = field(default_factory=set)
    """Numbers of the changes that the name server has not accepted."""
    in_flight: set[int] = field(default_factory=set)
    """Numbers of the changes whose own request has no response yet."""
    is_registered: bool = False
    """Whether the broker is registered over the current channel."""
    was_searched: bool = False
    """Whether the name server was searched for a duplicate of this broker, before the first registration."""
    failures: int = 0
    """Number of failed registrations in a row."""
    problem: str | None = None
    """Why the last registration failed; None if it succeeded."""
    is_stale: bool = False
    """Whether the name server may lack topics, though it has the version of the table."""
    in_parts: bool = False
    """Whether a registration in several requests is under way. A change in between would hide the topics of
    the later requests, since a name server ignores topics with a version that it has."""

    def lacks(self, change: int) -> bool:
        """Whether the name server is reachable, and has not accepted this change or an earlier one."""
        return not self.failures and any(number <= change for number in self.changes)

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Register again immediately, since the name server removes a broker when its connection ends."""
        self.channel = None
        self.is_registered = False
        self.wake()

    def wake(self) -> None:
        """Register as soon as possible; after a failure, at the next attempt."""
        self.is_woken = True
        if self.registering is not None and not self.failures:
            self.registering.wake()


@dataclass(eq=False)
class Registrar:
    """Registers one broker."""

    config: BrokerConfig
    topics: TopicTable
    tasks: Tasks
    _: KW_ONLY
    address: str
    """For clients."""
    ha_address: str
    """For slaves."""
    broker_id: int
    """-1 for a DLedger broker without a role, which registers with that id only after
    `RegistrationConfig.roleless_ms`."""
    on_master: Callable[[str, str], None]
    """Called on a slave with the addresses of its master."""

    def __post_init__(self) -> None:
        self._servers = [_NameServerState(namesrv) for namesrv in self.config.registration.namesrv]
        credentials = self.config.registration.credentials
        self._signer = None if credentials is None else credentials.signer()
        self._changes = 0
        """Number of changes so far: of topics created, changed or deleted."""
        self._progress = asyncio.Event()
        """Set when a name server has accepted changes, or is found to be unreachable."""
        self._may_be_roleless = False
        self._hidden: frozenset[str] = frozenset()
        """Topics that are registered as read-only."""
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Register once at every name server, then continue in the background. Raises nothing."""
        if not self._servers:
            log.warning(
                "broker %s is registered at no name server, so clients cannot find it: set namesrvAddr "
                "(--namesrv), ROCKETPY_NAMESRV or NAMESRV_ADDR",
                self.config.name,
            )
        await asyncio.gather(*(self._register_or_log(server) for server in self._servers))
        for server in self._servers:
            server.registering = self.tasks.every(
                lambda: self.config.registration.period_ms / 1000,
                partial(self._register_or_log, server),
                f"registration at {server.address}",
                first_s=0 if server.is_woken and not server.failures else self._pause_s(server),
            )
        if self.broker_id < 0:
            delay_s = self.config.registration.roleless_ms / 1000
            self._timer = self.tasks.call_later(delay_s, self._register_roleless)

    def _register_roleless(self) -> None:
        """Register without a role. Source: BrokerController.start, which registers every 10 s with any id."""
        self._may_be_roleless = True
        if self.broker_id < 0:
            log.warning(
                "broker %s has no role in its DLedger group; it registers with id -1 and can only be read",
                self.config.name,
            )
            self.refresh(self.broker_id)

    def refresh(self, broker_id: int) -> None:
        """Register again at all name servers, with this broker id."""
        self.broker_id = broker_id
        for server in self._servers:
            server.is_registered = False
            server.wake()

    async def movable_topics(self) -> frozenset[str]:
        """Return the topics that producers can also send to at the master of another broker.

        The first name server that responds knows the other brokers. The set is empty if none responds, which
        is logged.
        """
        for server in self._servers:
            try:
                return await self._movable_at(server)
            except RocketError as error:
                log.warning("cannot look for other brokers at name server %s: %s", server.address, error)
        return frozenset()

    async def _movable_at(self, server: _NameServerState) -> frozenset[str]:
        channel = await self._channel(server)
        limit = asyncio.Semaphore(_ROUTES_CONCURRENCY)

        async def is_movable(name: str) -> bool:
            async with limit:
                route = await self._route_at(server, channel, name)
            return route is not None and self._is_elsewhere(route)

        names = self.topics.names
        movable = await asyncio.gather(*map(is_movable, names))
        return frozenset(name for name, may_move in zip(names, movable, strict=True) if may_move)

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return a topic's route from the first name server that responds; None if it does not exist.

        A broker without name servers knows only its own queues. Raises RocketError if none responds.
        """
        if not self._servers:
            return self._own_route(topic)
        failure: RocketError = RouteNotFound("no name server responds")
        for server in self._servers:
            try:
                return await self._route_at(server, await self._channel(server), topic)
            except RocketError as error:
                failure = error
        raise failure

    def _own_route(self, topic: str) -> TopicRouteData | None:
        own = self.topics.get(topic)
        if own is None:
            return None
        data = QueueData(
            broker_name=self.config.name,
            read_queue_nums=own.read_queue_nums,
            write_queue_nums=own.write_queue_nums,
            perm=own.perm,
        )
        return TopicRouteData(queue_datas=[data])

    async def _route_at(
        self, server: _NameServerState, channel: Channel, topic: str
    ) -> TopicRouteData | None:
        code = RequestCode.GET_ROUTEINTO_BY_TOPIC
        request = Command.request(code, GetRouteInfoRequestHeader(topic=topic))
        response = await self._request(channel, request)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise rejection(code, response, server.address)
        return TopicRouteData.decode(response.body)

    def _is_elsewhere(self, route: TopicRouteData) -> bool:
        masters = {data.broker_name for data in route.broker_datas if MASTER_ID in data.broker_addrs}
        return any(
            queues.perm & PERM_WRITE and queues.write_queue_nums and queues.broker_name in masters
            for queues in route.queue_datas
            if queues.broker_name != self.config.name
        )

    async def hide(self, topics: frozenset[str]) -> None:
        """Register topics as read-only from now on, so that name servers hide them from producers.

        Returns when the reachable name servers have accepted that, or after a second.
        """
        self._hidden = topics
        self._changes += 1
        for server in self._servers:
            server.changes.add(self._changes)
        self.refresh(self.broker_id)
        await self.wait_registered()

    def topics_changed(self, changed: Mapping[str, TopicConfig]) -> None:
        """Register new and changed topics at all name servers.

        Requests to reachable name servers are written immediately, before the response to a send that created
        the topic. 4.6.0 uses a oneway request for that.
        """
        self._changes += 1
        for server in self._servers:
            server.changes.add(self._changes)
            channel = server.channel
            is_open = channel is not None and not channel.is_closed and server.is_registered
            is_now = is_open and not server.in_parts and changed and len(self._chunks(changed)) == 1
            if channel is None or not is_now:
                self._queue_topics(server, changed)
                continue
            server.in_flight.add(self._changes)
            future = self._request(channel, self._registration(changed))
            channel.flush()
            ended = partial(self._on_response, server, changed, self._changes)
            future.add_done_callback(ended, context=Context())

    def _on_response(
        self,
        server: _NameServerState,
        changed: Mapping[str, TopicConfig],
        number: int,
        future: asyncio.Future[Command],
    ) -> None:
        """Handle the response to a registration of some topics; after a failure, register them again."""
        server.in_flight.discard(number)
        if future.cancelled():
            return
        try:
            response = future.result()
            if response.code == ResponseCode.SUCCESS:
                self._accepted(server, {number})
                self._apply_response(response)
                return
        except RocketError as error:
            log.info("name server %s has not accepted %d topics: %s", server.address, len(changed), error)
        server.is_stale = True
        self._queue_topics(server, changed)

    @staticmethod
    def _queue_topics(server: _NameServerState, changed: Mapping[str, TopicConfig]) -> None:
        server.unsent.update({name: topic for name, topic in changed.items() if name not in server.unsent})
        server.wake()

    async def wait_registered(self) -> None:
        """Wait until the reachable name servers have accepted every change so far, for at most a second.

        Late name servers are logged at WARNING. Without this wait, a client that creates a topic might not
        get its route, and a consumer requests it again only after 30 s. Source:
        BrokerController.registerBrokerAll of RocketMQ 5; 4.6.0 does not wait.
        """
        last = self._changes
        try:
            async with asyncio.timeout(_WAIT_REGISTERED_S):
                while any(server.lacks(last) for server in self._servers):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            late = ", ".join(str(server.address) for server in self._servers if server.lacks(last))
            log.warning(
                "name servers %s did not accept a change of topics within %g s", late, _WAIT_REGISTERED_S
            )

    def _accepted(self, server: _NameServerState, changes: set[int]) -> None:
        server.changes -= changes
        self._progress.set()

    @property
    def registered_at(self) -> list[str]:
        """The name servers where this broker is registered."""
        return [str(server.address) for server in self._servers if server.is_registered]

    @property
    def problems(self) -> list[str]:
        """Why this broker, or some of its topics, are not registered at name servers."""
        return [
            f"name server {server.address}: {server.problem}"
            for server in self._servers
            if server.problem is not None
        ]

    async def close(self) -> None:
        """Unregister at the reachable name servers."""
        if self._timer is not None:
            self._timer.cancel()
        registering = [server.registering for server in self._servers]
        await self.tasks.cancel(*(call.task for call in registering if call is not None))
        await asyncio.gather(*(self._unregister(server) for server in self._servers))

    # -- one name server ----------------------------------------------------------------------

    @staticmethod
    def _pause_s(server: _NameServerState) -> float | None:
        """Return the pause before the next attempt after a failure; None for the usual period."""
        return _RETRY_S[min(server.failures, len(_RETRY_S)) - 1] if server.failures else None

    async def _register_or_log(self, server: _NameServerState) -> float | None:
        """Register, and return the pause before the next registration."""
        server.is_woken = False
        if self.broker_id < 0 and not self._may_be_roleless:
            return self._pause_s(server)
        try:
            await self._register(server)
        except RocketError as error:
            self._progress.set()
            self._note_failure(server, error)
            return self._pause_s(server)
        if server.failures:
            log.warning("registered at name server %s after %d failures", server.address, server.failures)
        server.failures, server.problem, server.is_stale = 0, None, False
        return None

    @staticmethod
    def _note_failure(server: _NameServerState, error: RocketError) -> None:
        server.failures += 1
        server.is_stale = True
        is_rejected = not isinstance(error, TransportError)
        if is_rejected:
            server.is_registered = False
        is_new = is_rejected and str(error) != server.problem
        level = logging.ERROR if is_new else _FAILURE_LEVELS.get(server.failures, logging.DEBUG)
        server.problem = str(error)
        log.log(
            level,
            "cannot register at name server %s (attempt %d), so its clients may not find this broker: %s",
            server.address,
            server.failures,
            error,
        )

    async def _register(self, server: _NameServerState) -> None:
        """Register the broker or its changed topics. Raises TransportError, BrokerError, ProtocolError."""
        channel = await self._channel(server)
        duplicate = (
            None
            if server.was_searched or self.config.dledger.enabled
            else await self._find_duplicate(server, channel)
        )
        unsent, server.unsent = server.unsent, {}
        only = unsent if server.is_registered and unsent and not server.is_stale else None
        changes = server.changes.copy() if only is None else server.changes - server.in_flight
        chunks = self._chunks(self.topics.names if only is None else only)
        if len(chunks) == 1 and (only is not None or server.is_stale):
            # The name server may have the version of the table already, and would ignore the topics. An empty
            # request with another version precedes them.
            chunks.insert(0, [])
        response = None
        server.in_parts = len(chunks) > 1
        try:
            for later, names in zip(reversed(range(len(chunks))), chunks, strict=True):
                response = await self._request(channel, self._registration(names, later=later))
                if response.code != ResponseCode.SUCCESS:
                    raise rejection(RequestCode.REGISTER_BROKER, response, server.address)
        except RocketError:
            server.unsent = unsent | server.unsent
            raise
        finally:
            server.in_parts = False
        server.is_registered = True
        self._accepted(server, changes)
        if response is not None:
            self._apply_response(response)
        if duplicate is not None:
            self.tasks.spawn(self._report_duplicate(server, duplicate), f"look for a broker at {duplicate}")

    async def _find_duplicate(self, server: _NameServerState, channel: Channel) -> str | None:
        """Return the address of another broker with this name and id, if the name server knows one."""
        server.was_searched = True
        try:
            response = await self._request(channel, Command.request(RequestCode.GET_BROKER_CLUSTER_INFO))
            if response.code != ResponseCode.SUCCESS:
                return None
            data = ClusterInfo.decode(response.body).broker_addr_table.get(self.config.name)
        except RocketError as error:
            log.info("cannot look for a broker of the same name at %s: %s", server.address, error)
            return None
        address = data.broker_addrs.get(self.broker_id) if data is not None else None
        return None if address == self.address else address

    async def _report_duplicate(self, server: _NameServerState, address: str) -> None:
        """Log an error if a broker runs at this address; the name server may not have noticed its end."""
        try:
            channel = await connect(address, ClientOnlyEndpoint(), ChannelOptions())
        except RocketError:
            return
        channel.close()
        log.error(
            "another broker with brokerName=%s and brokerId=%d runs at %s, according to name server %s. "
            "Clients find only the broker that registered last: stop one, or change its name or id",
            self.config.name,
            self.broker_id,
            address,
            server.address,
        )

    async def _channel(self, server: _NameServerState) -> Channel:
        if server.channel is None or server.channel.is_closed:
            # Default limits: the response may list many topics, and a name server is trusted.
            options = ChannelOptions(ssl=self.config.registration.ssl)
            server.channel = await connect(server.address, server, options)
            server.is_registered = False
        return server.channel

    def _request(self, channel: Channel, command: Command) -> asyncio.Future[Command]:
        """Send a request, signed if name servers require that and this broker has an account."""
        if self._signer is not None:
            command.ext = self._signer.sign(command.ext_fields(), command.body, code=command.code)
            command.header = None
        return channel.request(command, self.config.registration.timeout_ms)

    @staticmethod
    def _chunks(names: Iterable[str]) -> list[list[str]]:
        """Return the names of topics, divided into requests; at least one request, which may be empty."""
        chunks: list[list[str]] = [[]]
        room = _PART_BYTES
        for name in names:
            size = _TOPIC_BYTES + 2 * len(name)
            if room < size:
                chunks.append([])
                room = _PART_BYTES
            chunks[-1].append(name)
            room -= size
        return chunks

    def _registration(self, names: Iterable[str], *, later: int = 0) -> Command:
        """Return the registration of these topics; brokerPermission and `hide` limit their permissions.

        later: number of requests that follow with other topics. A name server ignores topics whose version
        has not changed. So each request has a version of its own, and the last one has the version of the
        table.
        """
        compressed = self.config.registration.compressed
        topics = self.topics.snapshot(dict.fromkeys(names))
        if later:
            version = topics.data_version
            topics.data_version = DataVersion(counter=version.counter, timestamp=version.timestamp - later)
        if self.config.permission & _READ_WRITE != _READ_WRITE:
            for name, topic in topics.topic_config_table.items():
                limited = msgspec.structs.replace(topic, perm=self.config.permission)
                topics.topic_config_table[name] = limited
        if self._hidden:
            # Name servers ignore topics with a version that they have.
            version = topics.data_version
            topics.data_version = DataVersion(counter=version.counter, timestamp=version.timestamp + 1)
            for name in topics.topic_config_table.keys() & self._hidden:
                topic = topics.topic_config_table[name]
                topics.topic_config_table[name] = msgspec.structs.replace(
                    topic, perm=topic.perm & ~PERM_WRITE
                )
        body = RegisterBrokerBody(topic_config_serialize_wrapper=topics).encode(compressed)
        header = RegisterBrokerRequestHeader(
            broker_name=self.config.name,
            broker_addr=self.address,
            cluster_name=self.config.cluster_name,
            ha_server_addr=self.ha_address,
            broker_id=self.broker_id,
            compressed=compressed,
            body_crc32=crc32(body),
        )
        return Command.request(RequestCode.REGISTER_BROKER, header, body)

    def _apply_response(self, response: Command) -> None:
        header = response.header_as(RegisterBrokerResponseHeader)
        if header.master_addr:
            self.on_master(header.master_addr, header.ha_server_addr or "")
        if response.body:
            self.topics.apply_order_config(KVTable.decode(response.body).table)

    async def _unregister(self, server: _NameServerState) -> None:
        channel, server.channel = server.channel, None
        if channel is None or channel.is_closed:
            return
        header = UnRegisterBrokerRequestHeader(
            broker_name=self.config.name,
            broker_addr=self.address,
            cluster_name=self.config.cluster_name,
            broker_id=self.broker_id,
        )
        try:
            await self._request(channel, Command.request(RequestCode.UNREGISTER_BROKER, header))
        except RocketError as error:
            log.info("cannot unregister at name server %s: %s", server.address, error)
        await channel.close_within()
