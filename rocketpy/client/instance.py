"""ClientInstance: the connections, routes and heartbeats that the clients of one event loop share.

It holds one connection to each broker, the routes, and sends heartbeats. A refresh of the routes also closes
idle connections to brokers that are in no route.

Source: RocketMQ 4.6 MQClientInstance, MQClientManager.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar, cast
from weakref import WeakKeyDictionary

from rocketpy.client import client_ids
from rocketpy.client.connections import ConnectionPool, OpenCallback, PeerConnection, called
from rocketpy.client.embedded_lease import Lease, is_embedded, lease
from rocketpy.client.heartbeats import Heartbeats
from rocketpy.client.name_servers import NameServers, require_tls, split_addresses
from rocketpy.client.namespace import wrap
from rocketpy.client.route_cache import RouteCache
from rocketpy.config import CODECS, ClientConfig, resolve
from rocketpy.errors import (
    ClientClosed,
    ConfigInvalid,
    ConnectionLost,
    RocketError,
    RouteNotFound,
)
from rocketpy.message.message import DEFAULT_TOPIC, REPLY_TOPIC_SUFFIX
from rocketpy.protocol.bodies import (
    BrokerData,
    ConsumerData,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import Health
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address, local_address

log: Final = logging.getLogger("rocketpy.client")


P = TypeVar("P")


class ClientInstance:
    """The client of one event loop and configuration; `acquire` and `release` count its users."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.address: bytes = client_ids.LOOPBACK
        """The local IP address, packed."""
        self.client_id: str = ""
        self.tasks: Tasks = Tasks("the client")
        options = replace(config.channel, codec=CODECS[config.codec], ssl=config.ssl)
        self.connections: ConnectionPool = ConnectionPool(
            self.tasks,
            options,
            self._send_first_heartbeat,
            signer=None if config.credentials is None else config.credentials.signer(),
            hooks=config.rpc_hooks,
        )
        self._lease: Lease | None = None
        self._name_servers: NameServers | None = None
        self.routes: RouteCache = RouteCache(self.tasks, lambda: self.name_servers, self.now_ms)
        self._heartbeats = Heartbeats(self.tasks, config.request_timeout_ms, self.now_ms)
        self._users = 0
        self._started = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self.thread: int = threading.get_ident()
        """The id of the thread in which the event loop last ran."""
        self._closed = False
        self._parts: dict[object, object] = {}
        self._registered: set[tuple[str, tuple[str, ...]]] = set()
        self._pid = os.getpid()
        self.on_fork: list[Callable[[RocketError], None]] = []
        """Called in a forked child with the error that every later use raises."""

    # -- life ---------------------------------------------------------------------------------

    @classmethod
    async def acquire(cls, config: ClientConfig, *, wait: bool = True) -> ClientInstance:
        """Return the started instance of this event loop for this configuration.

        wait: whether to wait until a name server responds, at most `request_timeout_ms`. Raises
        ConfigInvalid, and TransportError when no name server responds.
        """
        config = resolve(config)
        instances = _instances.setdefault(asyncio.get_running_loop(), {})
        client = instances.get(config)
        if client is None:
            client = instances[config] = cls(config)
        client._users += 1
        try:
            async with client._started:
                if client._name_servers is None:
                    client._name_servers = await client._find_name_servers()
            await client._start(client._name_servers, wait=wait)
        except BaseException:  # also when cancelled
            await client.release()
            raise
        return client

    async def release(self) -> None:
        """Stop using the instance; its last user closes the connections and cancels the background tasks."""
        self._users -= 1
        if self._users or self._closed or self.is_forked_copy:
            return
        self._closed = True
        instances = _instances.get(asyncio.get_running_loop(), {})
        if instances.get(self.config) is self:
            del instances[self.config]
        client_ids.in_use.discard(self.client_id)
        try:
            await self.tasks.close()
            await self.connections.close()
        finally:
            if self._lease is not None:
                await self._lease.close()

    async def _find_name_servers(self) -> NameServers:
        namesrv = self.config.namesrv
        if is_embedded(namesrv):
            self._lease = await lease(namesrv)
            namesrv = self._lease.namesrv_address
        addresses = split_addresses(namesrv)
        if self.config.ssl is not None and self._lease is None:
            require_tls(addresses)
        servers = NameServers(
            addresses,
            self.connections,
            self.config.request_timeout_ms,
            random.randrange(1 << 16),
        )
        if all(address.startswith("tls://") for address in servers.addresses):
            # Addresses in routes have no scheme. RocketMQ's useTLS also applies to all connections.
            self.connections.scheme = "tls"
        return servers

    async def _start(self, servers: NameServers, *, wait: bool) -> None:
        if wait:
            local = (await servers.reach()).local_address
        else:
            local = await local_address(Address.parse(servers.addresses[0])) or ""
            servers.current.when_open(lambda _: None)  # `health` shows the outcome
        if self.client_id:
            return  # another user has started it
        self.address = client_ids.ip_of(local)
        self.client_id = client_ids.new(self.address, self.config.instance_name, is_certain=bool(local))
        self._heartbeats.client_id = self.client_id
        self.tasks.every(self.config.route_refresh_ms / 1000, self._refresh_routes, "route refresh")
        self.tasks.every(self.config.heartbeat_ms / 1000, self.heartbeat, "heartbeat")

    @property
    def is_forked_copy(self) -> bool:
        """Whether this object was copied into a forked child.

        The connections belong to the parent: closing them would remove them from the parent's event loop.
        """
        return self._pid != os.getpid()

    def check_process(self) -> None:
        """Raise ClientClosed in a forked child."""
        if self._pid != os.getpid():
            raise ClientClosed.after_fork(self._pid)

    def abandon(self) -> None:
        """In a forked child: fail every later request, and leave the connections to the parent."""
        reason = ClientClosed.after_fork(self._pid)
        for callback in self.on_fork:
            callback(reason)
        self.connections.abandon(reason)

    def check_loop(self) -> None:
        """Raise ClientClosed unless the caller runs in the process and event loop of this client.

        In another loop a send would be stored, yet fail when its future is awaited.
        """
        self.check_process()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            state = " (which is closed)" if self._loop.is_closed() else ""
            raise ClientClosed(
                f"this client belongs to the event loop that started it{state}, but was used in "
                f"{'another one' if running is not None else 'a thread without one'}; "
                "create a client in each loop, or use rocketpy.sync"
            )
        self.thread = threading.get_ident()  # a loop may continue in another thread

    def now_ms(self) -> float:
        """Return the event loop's monotonic time in ms."""
        return self._loop.time() * 1000

    def health(self) -> Health:
        """Return the state of the client; sends no request. Raises ClientClosed in a forked child."""
        self.check_process()
        problems = self.tasks.problems()
        servers = self._name_servers
        namesrv = servers.current if servers is not None else None
        if namesrv is not None and namesrv.channel is None and namesrv.last_error is not None:
            problems.append(_problem("name server", namesrv))
        brokers = {broker.address: broker for broker in self._broker_connections()}
        failed = [
            broker for broker in brokers.values() if broker.channel is None and broker.last_error is not None
        ]
        problems += [_problem("broker", broker) for broker in failed]
        config, others = self.config, brokers.keys() - {broker.address for broker in failed}
        problems += self._heartbeats.problems(others, config.stalled_after_ms + config.heartbeat_ms)
        problems += self.routes.problems(config.stalled_after_ms + config.route_refresh_ms)
        return Health(
            ok=not problems and not self._closed,
            problems=tuple(problems),
            client_id=self.client_id,
            namesrv=namesrv.address if namesrv is not None else "",
            brokers={address: broker.channel is not None for address, broker in brokers.items()},
        )

    async def _refresh_routes(self) -> None:
        """Refresh the routes, and close idle connections to brokers that are in no route."""
        await self.routes.refresh()
        wanted = set(self.routes.addresses())
        for broker in self._broker_connections():
            busy = broker.channel is not None and broker.channel.in_flight > 0
            if wanted and broker.address not in wanted and not busy and self.connections.drop(broker.address):
                log.info("closed the connection to broker %s, which is now in no route", broker.address)

    # -- requests -----------------------------------------------------------------------------

    async def brokers(self) -> list[BrokerData]:
        """Return every broker that a name server knows. Raises TransportError, BrokerError, ClientClosed."""
        return await self.name_servers.brokers()

    async def topics(self) -> list[str]:
        """Return the topics of applications, see `NameServers.topics`. Raises as `brokers` does."""
        return await self.name_servers.topics()

    async def request(self, address: str, command: Command, timeout_ms: float) -> Command:
        """Send an idempotent request to a broker; repeat it once when the connection turns out to be lost.

        Returns the response, which may have any code. Raises TransportError.
        """
        connection = self.connections.get(address)
        try:
            return await connection.request(command, timeout_ms)
        except ConnectionLost:
            if self._closed:
                raise
            return await connection.request(
                Command.request(command.code, command.header, command.body), timeout_ms
            )

    def shared(self, make: Callable[[ClientInstance], P]) -> P:
        """Return the object that `make` creates for this client; created once, on first use."""
        if make not in self._parts:
            self._parts[make] = make(self)
        return cast(P, self._parts[make])

    async def ensure_registered(self, topic: str, timeout_ms: float | None = None) -> None:
        """Send heartbeats to the masters that may send requests to this client about a topic.

        These are the masters of the topic and of the reply topics of their clusters. After a success, later
        calls with the same topic and producer groups do nothing. Errors are ignored, since the periodic
        heartbeat follows. Takes at most half of `timeout_ms`, by default of `request_timeout_ms`.
        """
        done = (topic, tuple(sorted(self._heartbeats.producers)))
        if done in self._registered:
            return
        timeout_s = (timeout_ms or self.config.request_timeout_ms) / 1000
        with contextlib.suppress(RocketError, TimeoutError):
            async with asyncio.timeout(timeout_s / 2):
                name = wrap(self.config.namespace, topic)
                try:
                    route = await self.routes.get(name)
                except RouteNotFound:
                    route = await self.routes.get(DEFAULT_TOPIC)
                for cluster in {data.cluster for data in route.broker_datas}:
                    with contextlib.suppress(RouteNotFound):
                        await self.routes.get(f"{cluster}{REPLY_TOPIC_SUFFIX}")
                await self.heartbeat()
                self._registered.add(done)

    def add_producer(self, group: str) -> None:
        """Add a producer group to the heartbeats."""
        self._heartbeats.producers[group] += 1

    async def remove_producer(self, group: str) -> None:
        """Remove a producer group; unregister it at the brokers when no other producer has it."""
        self._heartbeats.producers[group] -= 1
        if self._heartbeats.producers[group] > 0:
            return
        del self._heartbeats.producers[group]
        await self._heartbeats.unregister(self._connected_brokers(), producer_group=group)

    def add_consumer(self, group: str, describe: Callable[[], ConsumerData]) -> None:
        """Add a consumer group to the heartbeats. describe: returns its data for each heartbeat.

        Raises ConfigInvalid when this client has a consumer of the group: brokers distinguish members by the
        client id alone.
        """
        if group in self._heartbeats.consumers:
            raise ConfigInvalid(
                f"group {group} already has a consumer in this client; give the other one its own client: "
                'ClientConfig(instance_name="...")'
            )
        self._heartbeats.consumers[group] = describe

    async def remove_consumer(self, group: str) -> None:
        """Remove a consumer group, and unregister it at the brokers."""
        if self._heartbeats.consumers.pop(group, None) is not None:
            await self._heartbeats.unregister(self._connected_brokers(), consumer_group=group)

    async def heartbeat(self) -> None:
        """Send a heartbeat to each known master; also to slaves when the client has consumers."""
        if self._heartbeats.are_needed:
            await self._heartbeats.send([self.connections.get(one) for one in self._heartbeat_addresses()])

    def _heartbeat_addresses(self) -> list[str]:
        return self.routes.addresses(masters_only=not self._heartbeats.consumers)

    def when_version_known(self, connection: PeerConnection, then: OpenCallback) -> None:
        """Call `then` when the broker's version is known, see `Heartbeats`."""
        self._heartbeats.when_version_known(connection, then)

    async def know(self, connection: PeerConnection) -> None:
        """Open a connection to a broker, and wait for the response to a heartbeat, unless it `is_known`.

        Raises TransportError, ClientClosed.
        """
        await connection.open()
        if not connection.is_known:
            await called(partial(self.when_version_known, connection))

    def _send_first_heartbeat(self, connection: PeerConnection) -> None:
        """Send a heartbeat as the first request on a new connection to a broker."""
        if self._heartbeats.are_needed and connection.address in self._heartbeat_addresses():
            self._heartbeats.put(connection)

    def _connected_brokers(self) -> list[PeerConnection]:
        return [broker for broker in self._broker_connections() if broker.channel is not None]

    @property
    def name_servers(self) -> NameServers:
        """The name servers. Raises ClientClosed before the start."""
        if self._name_servers is None:
            raise ClientClosed("the client was not started")
        return self._name_servers

    def _broker_connections(self) -> list[PeerConnection]:
        name_servers = self.connections.name_servers
        return [connection for connection in self.connections.all() if connection.address not in name_servers]


_instances: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ClientConfig, ClientInstance]] = (
    WeakKeyDictionary()
)


def _forget_parent() -> None:
    """In a forked child: abandon all clients, whose connections and event loops belong to the parent."""
    for clients in list(_instances.values()):
        for client in clients.values():
            client.abandon()
    _instances.clear()
    client_ids.in_use.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_forget_parent)


def _problem(what: str, connection: PeerConnection) -> str:
    text = str(connection.last_error)
    return text if text.startswith(what) else f"{what} {connection.address}: {text}"
