"""ClientInstance: what producers and consumers of one process and event loop share.

Connections (one a broker), the routes of topics, heartbeats and the name servers. It learns a topic's
route when one is first wanted, asks again for all of them every 30 s, closes connections to brokers that
no route names any more, and tells brokers when a group leaves.

Source: RocketMQ 4.6 MQClientInstance, MQClientManager.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import os
import random
import secrets
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Final, TypeVar, cast
from weakref import WeakKeyDictionary

from rocketpy.client.connections import ConnectionPool, PeerConnection
from rocketpy.client.embedded_lease import Lease, is_embedded, lease
from rocketpy.client.heartbeats import HeartbeatResponses
from rocketpy.client.name_servers import NameServers, split_addresses
from rocketpy.client.namespace import wrap
from rocketpy.client.routing.routes import MASTER_ID, member_to_read
from rocketpy.config import CODECS, ClientConfig, Credentials
from rocketpy.errors import ClientClosed, ConfigInvalid, ConnectionLost, RocketError, RouteNotFound
from rocketpy.message.message import DEFAULT_TOPIC, REPLY_TOPIC_SUFFIX
from rocketpy.protocol.bodies import BrokerData, ConsumerData, HeartbeatData, ProducerData, TopicRouteData
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import UnregisterClientRequestHeader
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import Health
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address, local_address

log = logging.getLogger("rocketpy.client")

_LOOPBACK: Final = bytes((127, 0, 0, 1))
_UNREGISTER_TIMEOUT_MS: Final = 1000

Then = Callable[[RocketError | None], None]
P = TypeVar("P")


class KnownTopic:
    """A topic that somebody asked for.

    route: as the name server last told it; None while it knows none. asked_at: loop time of its last
    answer. error: why that was no route. changed: called after each change of the route.
    """

    __slots__ = ("asked_at", "changed", "error", "name", "route", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.route: TopicRouteData | None = None
        self.asked_at = float("-inf")
        self.error: RocketError | None = None
        self.waiting: list[Then] = []
        self.changed: list[Callable[[], None]] = []


class ClientInstance:
    """One client towards name servers and brokers. Get it by `acquire`, give it back by `release`.

    on_fork: called in a forked child with the reason why this client is of no use there. thread: in which its
    event loop runs, as far as known.
    """

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.address = _LOOPBACK
        self.client_id = ""
        self.tasks = Tasks("the client")
        options = replace(config.channel, codec=CODECS[config.codec], ssl=config.ssl or config.channel.ssl)
        self.connections = ConnectionPool(
            self.tasks,
            options,
            self._send_first_heartbeat,
            signer=None if config.credentials is None else config.credentials.signer(),
            hooks=config.rpc_hooks,
        )
        self._lease: Lease | None = None
        self._name_servers: NameServers | None = None
        self._topics: dict[str, KnownTopic] = {}
        self._producers: Counter[str] = Counter()
        self._consumers: dict[str, Callable[[], ConsumerData]] = {}
        self._users = 0
        self._started = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self._closed = False
        self._parts: dict[object, object] = {}
        self._heartbeats = HeartbeatResponses()
        self._registered: set[tuple[str, tuple[str, ...]]] = set()
        self._pid = os.getpid()
        self.on_fork: list[Callable[[RocketError], None]] = []

    # -- life ---------------------------------------------------------------------------------

    @classmethod
    async def acquire(cls, config: ClientConfig, *, wait: bool = True) -> ClientInstance:
        """The instance of this event loop for these settings, started.

        wait: for the answer of a name server, at most `request_timeout_ms`. Raises ConfigInvalid, and
        TransportError when none answers.
        """
        config = replace(
            config,
            namesrv=config.namesrv or os.environ.get("NAMESRV_ADDR", ""),
            credentials=config.credentials or Credentials.from_environment(),
        )
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
        except BaseException:
            await client.release()
            raise
        return client

    async def release(self) -> None:
        """Give it back; the last one closes connections and ends the background work."""
        self._users -= 1
        if self._users or self._closed or self.is_forked_copy:
            return
        self._closed = True
        instances = _instances.get(asyncio.get_running_loop(), {})
        if instances.get(self.config) is self:
            del instances[self.config]
        _client_ids.discard(self.client_id)
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
        servers = NameServers(
            split_addresses(namesrv),
            self.connections,
            self.config.request_timeout_ms,
            random.randrange(1 << 16),
        )
        if all(address.startswith("tls://") for address in servers.addresses):
            self.connections.scheme = (
                "tls"  # a route's addresses have no scheme; RocketMQ's useTLS is for all, too
            )
        return servers

    async def _start(self, servers: NameServers, *, wait: bool) -> None:
        if wait:
            local = (await servers.reach()).local_address
        else:
            local = await local_address(Address.parse(servers.addresses[0])) or ""
            servers.current.when_open(lambda _: None)  # `health` shows how that ended
        if self.client_id:
            return  # another user was first
        self.address = _ip_of(local)
        self.client_id = _client_id(self.address, self.config.instance_name, is_certain=bool(local))
        self.tasks.spawn(self._every(self.config.route_refresh_ms, self._refresh), "route refresh")
        self.tasks.spawn(self._every(self.config.heartbeat_ms, self.heartbeat), "heartbeat")

    @property
    def is_forked_copy(self) -> bool:
        """Whether this is a copy in a forked child of the process it belongs to.

        Its connections are the parent's: closing them here would take them out of the parent's event loop.
        """
        return self._pid != os.getpid()

    def abandon(self) -> None:
        """In a forked child: refuse everything, with a clear error, and touch nothing of the parent's."""
        reason = ClientClosed(
            f"this client was made in process {self._pid}, before a fork; "
            f"make a new one in process {os.getpid()}"
        )
        self.connections.abandon(reason)
        for tell in self.on_fork:
            tell(reason)

    def check_loop(self) -> None:
        """See to it that the caller is in this client's event loop. Raises ClientClosed.

        Elsewhere its futures cannot be waited for: a send would fail, and be stored all the same.
        """
        if self.is_forked_copy:
            return  # the error after a fork says more
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            state = " (which is closed)" if self._loop.is_closed() else ""
            raise ClientClosed(
                f"this client belongs to the event loop that started it{state}, and was used in "
                f"{'another one' if running is not None else 'a thread without one'}; "
                "make one for each loop, or use rocketpy.sync"
            )
        self.thread = threading.get_ident()  # a loop may go on in another thread

    def now_ms(self) -> float:
        """The event loop's steady clock, in ms."""
        return self._loop.time() * 1000

    async def _every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await work()

    def health(self) -> Health:
        """How the client is doing, from what it knows; asks nobody."""
        problems = []
        if self.tasks.failure is not None:
            problems.append(str(self.tasks.failure))
        servers = self._name_servers
        namesrv = servers.current if servers is not None else None
        if namesrv is not None and namesrv.channel is None and namesrv.last_error is not None:
            problems.append(_problem("name server", namesrv))
        brokers = {broker.address: broker for broker in self._broker_connections()}
        problems += [
            _problem("broker", broker)
            for broker in brokers.values()
            if broker.channel is None and broker.last_error is not None
        ]
        problems += self._heartbeats.problems(brokers)
        return Health(
            ok=not problems and not self._closed,
            problems=tuple(problems),
            client_id=self.client_id,
            namesrv=namesrv.address if namesrv is not None else "",
            brokers={address: broker.channel is not None for address, broker in brokers.items()},
        )

    # -- routes -------------------------------------------------------------------------------

    def topic(self, name: str) -> KnownTopic:
        """What is known of a topic; from now on its route is kept fresh."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = KnownTopic(name)
        return topic

    def request_route(self, topic: KnownTopic, then: Then) -> None:
        """Ask a name server for the topic's route, then call `then(None)` or `then(error)`.

        Those who ask meanwhile share the answer and are called in their order, with nothing in between.
        """
        topic.waiting.append(then)
        if len(topic.waiting) == 1:
            self.tasks.spawn(self._ask(topic), f"route of {topic.name}")

    async def route(self, name: str, *, fresh: bool = False) -> TopicRouteData:
        """The route of a topic, asked for when it is not known or when `fresh`.

        Raises RouteNotFound, TransportError, BrokerError.
        """
        topic = self.topic(name)
        error = topic.error
        if topic.route is None or fresh:
            future: asyncio.Future[RocketError | None] = asyncio.get_running_loop().create_future()
            self.request_route(topic, lambda error: None if future.done() else future.set_result(error))
            error = await future  # by now somebody else may be asking, which has its own error
        if topic.route is None or (fresh and error is not None):
            raise error or RouteNotFound(f"no route for topic {name}")
        return topic.route

    async def _ask(self, topic: KnownTopic) -> None:
        topic.error = ClientClosed(f"stopped asking for the route of {topic.name}")
        try:
            if self._name_servers is None:
                raise ClientClosed("the client was not started")
            route = await self._name_servers.route(topic.name)
            topic.error = None
            self._learn(topic, route)
        except RocketError as error:
            topic.error = error.with_traceback(None)  # callers see where they asked, not where this task was
        finally:
            topic.asked_at = asyncio.get_running_loop().time()
            waiting, topic.waiting = topic.waiting, []
            for then in waiting:
                then(topic.error)

    def _learn(self, topic: KnownTopic, route: TopicRouteData) -> None:
        if route != topic.route:
            topic.route = route
            for changed in topic.changed:
                changed()

    async def _refresh(self) -> None:
        """Ask for every topic again. What is known stays when nobody answers, as in RocketMQ."""
        for topic in list(self._topics.values()):
            if topic.changed or topic.route is not None:
                with contextlib.suppress(RocketError):
                    await self.route(topic.name, fresh=True)
        self._drop_offline()

    def _drop_offline(self) -> None:
        wanted = set(self._addresses())
        for broker in self._broker_connections():
            busy = broker.channel is not None and broker.channel.in_flight > 0
            if wanted and broker.address not in wanted and not busy and self.connections.drop(broker.address):
                log.info("no route names broker %s any more; its connection is closed", broker.address)

    # -- brokers ------------------------------------------------------------------------------

    async def broker_address(self, topic: str, broker_name: str) -> str:
        """The address of a broker's master, or of a slave where there is none.

        Raises RouteNotFound and what asking for a route raises.
        """
        address, _ = await self.find_broker(topic, broker_name)
        return address

    async def find_broker(
        self, topic: str, broker_name: str, broker_id: int = MASTER_ID, *, only: bool = False
    ) -> tuple[str, int]:
        """Address and broker id of the wished member of a broker; another one where that is away.

        only: no other one will do. The master comes before slaves, and those in order of their ids.
        Raises RouteNotFound and what asking for a route raises.
        """
        for fresh in (False, True):
            route = await self.route(topic, fresh=fresh)
            for data in route.broker_datas:
                if data.broker_name != broker_name:
                    continue
                if broker_id in data.broker_addrs:
                    return data.broker_addrs[broker_id], broker_id
                if data.broker_addrs and not only:
                    other = member_to_read(data.broker_addrs)
                    return data.broker_addrs[other], other
        which = f" with id {broker_id}" if only else ""
        raise RouteNotFound(f"the route of topic {topic} has no broker {broker_name}{which}")

    def address_of_broker(self, topic: str, broker_name: str) -> str | None:
        """The same from what is known already, or None."""
        route = self.topic(topic).route
        for data in route.broker_datas if route is not None else ():
            if data.broker_name == broker_name and data.broker_addrs:
                return data.broker_addrs[member_to_read(data.broker_addrs)]
        return None

    def address_of_member(self, topic: str, broker_name: str, broker_id: int) -> str | None:
        """The address of one member of a broker, from what is known already; None where it is not."""
        route = self.topic(topic).route
        for data in route.broker_datas if route is not None else ():
            if data.broker_name == broker_name:
                return data.broker_addrs.get(broker_id)
        return None

    def address_of(self, host: str, port: int) -> str:
        """How to reach the broker with this store host: as a route writes it (tls://…), else by TCP.

        A broker at memory:// stores port 0; it is found when it is the only one that routes name.
        """
        known = []
        for address in self._addresses():
            with contextlib.suppress(ConfigInvalid):  # one that cannot be read is not the one looked for
                known.append(Address.parse(address))
        found = [address for address in known if (address.host, address.port) == (host, port)]
        if not found and port == 0:
            found = [address for address in known if address.scheme == "memory"]
        return str(found[0]) if len(found) == 1 else str(Address("tcp", host, port))

    async def brokers(self) -> list[BrokerData]:
        """Every broker that a name server knows. Raises TransportError, BrokerError, ClientClosed."""
        if self._name_servers is None:
            raise ClientClosed("the client was not started")
        return await self._name_servers.brokers()

    def broker_name(self, address: str) -> str | None:
        """The name of the broker at an address, if some route tells it."""
        known = self._known_brokers()
        return next((data.broker_name for data in known if address in data.broker_addrs.values()), None)

    def master_address(self, broker_name: str) -> str | None:
        """The address of a broker's master, if the route of any topic tells it."""
        named = (data for data in self._known_brokers() if data.broker_name == broker_name)
        return next(filter(None, (data.broker_addrs.get(MASTER_ID) for data in named)), None)

    async def request(self, address: str, command: Command, timeout_ms: float) -> Command:
        """Put a question to a broker that may be put twice, should the connection turn out to be dead.

        Returns the response whatever its code. Raises TransportError.
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
        """This client's one object of a class, made when first wanted: what its producers share."""
        if make not in self._parts:
            self._parts[make] = make(self)
        return cast(P, self._parts[make])

    async def ensure_registered(self, topic: str, timeout_ms: float | None = None) -> None:
        """See to it that every master which may ask this client something about a topic knows it.

        That is those of the topic and those of their clusters' reply topics. Does its work once a topic and
        set of producer groups; what fails is left to the next heartbeat.
        """
        done = (topic, tuple(sorted(self._producers)))
        if done in self._registered:
            return
        timeout_s = (timeout_ms or self.config.request_timeout_ms) / 1000
        with contextlib.suppress(RocketError, TimeoutError):
            async with asyncio.timeout(timeout_s / 2):
                name = wrap(self.config.namespace, topic)
                try:
                    route = await self.route(name)
                except RouteNotFound:
                    route = await self.route(DEFAULT_TOPIC)
                for cluster in {data.cluster for data in route.broker_datas}:
                    with contextlib.suppress(RouteNotFound):
                        await self.route(f"{cluster}{REPLY_TOPIC_SUFFIX}")
                await self.heartbeat()
                self._registered.add(done)

    def add_producer(self, group: str) -> None:
        """Put a producer group into the heartbeats."""
        self._producers[group] += 1

    async def remove_producer(self, group: str) -> None:
        """Take it out; brokers are told when no other producer of this client has the group."""
        self._producers[group] -= 1
        if self._producers[group] > 0:
            return
        del self._producers[group]
        await self._unregister(UnregisterClientRequestHeader(client_id=self.client_id, producer_group=group))

    def add_consumer(self, group: str, describe: Callable[[], ConsumerData]) -> None:
        """Put a consumer group into the heartbeats. describe: what they say of it, asked each time.

        Raises ConfigInvalid when the group has a consumer in this client: brokers tell members apart by the
        client's id alone.
        """
        if group in self._consumers:
            raise ConfigInvalid(
                f"group {group} has a consumer in this client already; give the other one its own client: "
                'ClientConfig(instance_name="...")'
            )
        self._consumers[group] = describe

    async def remove_consumer(self, group: str) -> None:
        """Take it out, and tell the brokers."""
        if self._consumers.pop(group, None) is not None:
            await self._unregister(
                UnregisterClientRequestHeader(client_id=self.client_id, consumer_group=group)
            )

    async def _unregister(self, header: UnregisterClientRequestHeader) -> None:
        await self._tell(
            [connection for connection in self._broker_connections() if connection.channel is not None],
            lambda: Command.request(RequestCode.UNREGISTER_CLIENT, header),
            _UNREGISTER_TIMEOUT_MS,
        )

    async def heartbeat(self) -> None:
        """Tell the brokers that we know which groups live here; slaves hear of consumers only."""
        if self._producers or self._consumers:
            connections = [
                self.connections.get(address) for address in self._addresses(masters_only=not self._consumers)
            ]
            timeout_ms = self.config.request_timeout_ms
            await self._tell(connections, self._heartbeat_command, timeout_ms, self._heartbeats.heard)

    def _heartbeat_command(self) -> Command:
        body = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in sorted(self._producers)],
            consumer_data_set=[self._consumers[group]() for group in sorted(self._consumers)],
        )
        return Command.request(RequestCode.HEART_BEAT, body=body.encode())

    def _send_first_heartbeat(self, connection: PeerConnection) -> None:
        """Send a heartbeat as the first thing on a new connection to a broker."""
        if (
            (self._producers or self._consumers)
            and connection.channel is not None
            and connection.address in self._addresses(masters_only=not self._consumers)
        ):
            answer = connection.put(self._heartbeat_command(), self.config.request_timeout_ms)
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _tell(
        self,
        connections: list[PeerConnection],
        make: Callable[[], Command],
        timeout_ms: float,
        heard: Callable[[str, Command], None] = lambda _address, _answer: None,
    ) -> None:
        """Send to each and wait; whoever does not answer is logged. heard: told of each answer."""
        answers = await asyncio.gather(
            *(connection.request(make(), timeout_ms) for connection in connections), return_exceptions=True
        )
        for connection, answer in zip(connections, answers, strict=True):
            if isinstance(answer, RocketError):
                log.info("broker %s: %s", connection.address, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                heard(connection.address, answer)

    def _addresses(self, *, masters_only: bool = False) -> list[str]:
        """Addresses of the brokers that some route names."""
        found = {
            address
            for data in self._known_brokers()
            for broker_id, address in data.broker_addrs.items()
            if broker_id == MASTER_ID or not masters_only
        }
        return sorted(found)

    def _known_brokers(self) -> Iterator[BrokerData]:
        """The brokers in the routes of all topics, some more than once."""
        for topic in self._topics.values():
            if topic.route is not None:
                yield from topic.route.broker_datas

    def _broker_connections(self) -> list[PeerConnection]:
        name_servers = self.connections.name_servers
        return [connection for connection in self.connections.all() if connection.address not in name_servers]


_instances: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ClientConfig, ClientInstance]] = (
    WeakKeyDictionary()
)
_client_ids: set[str] = set()
"""Those in use by this process."""


def _forget_parent() -> None:
    """In a forked child: connections, background tasks and their event loops are the parent's."""
    for clients in list(_instances.values()):
        for client in clients.values():
            client.abandon()
    _instances.clear()
    _client_ids.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_forget_parent)


def _problem(what: str, connection: PeerConnection) -> str:
    text = str(connection.last_error)
    return text if text.startswith(what) else f"{what} {connection.address}: {text}"


def _client_id(address: bytes, instance_name: str, *, is_certain: bool) -> str:
    """``ip@pid`` or ``ip@name``; a second client of that name in this process gets ``#2``.

    is_certain: whether the IP address is known. Otherwise a random part tells clients of two machines apart.
    """
    name = f"{ipaddress.ip_address(address)}@{instance_name or os.getpid()}"
    if not is_certain:
        name += f"#{secrets.token_hex(4)}"
    numbered = (f"{name}#{number}" for number in itertools.count(2))
    client_id = next(text for text in itertools.chain([name], numbered) if text not in _client_ids)
    _client_ids.add(client_id)
    return client_id


def _ip_of(socket_name: str) -> bytes:
    """The address in ``host:port``; loopback where there is none, as with memory://."""
    host = socket_name.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        return ipaddress.ip_address(host).packed
    except ValueError:
        return _LOOPBACK
