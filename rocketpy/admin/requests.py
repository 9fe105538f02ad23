"""AdminRequests: sends the requests of the admin client to brokers and name servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from rocketpy.client.admin import wait_until_known
from rocketpy.client.broker_api import gather_by_broker, require_success
from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import own_names, unwrap, unwrap_queue, wrap
from rocketpy.errors import BrokerError, BrokersFailed, ConfigInvalid, RocketError, RouteNotFound
from rocketpy.protocol.bodies import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    ConsumerConnection,
    MessageQueue,
    TopicList,
    TopicRouteData,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import GetConsumerConnectionListRequestHeader, Header
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.text import did_you_mean

R = TypeVar("R")

Masters = Mapping[str, str | None]
"""Addresses of masters by broker name; None while a broker has none."""

_TIMEOUT_MS: Final = 15_000
"""A broker may read a whole table, or many queues, for one response. RocketMQ's mqadmin waits 5 s."""


class AdminRequests:
    """Sends admin requests through the client instance of an `AdminClient`.

    Names of topics and groups are those of applications, without the client's namespace, unless a method says
    otherwise. running: returns the client instance, or raises ClientClosed.
    """

    def __init__(self, running: Callable[[], ClientInstance]) -> None:
        self.running: Final = running

    # -- names --------------------------------------------------------------------------------

    def wrap(self, name: str) -> str:
        """Return a topic or group name with the client's namespace, as the servers know it."""
        return wrap(self.running().config.namespace, name)

    def unwrap(self, name: str) -> str:
        """Return a topic or group name without the client's namespace, as applications know it."""
        return unwrap(self.running().config.namespace, name)

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with its topic without the client's namespace."""
        return unwrap_queue(self.running().config.namespace, queue)

    def own(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the servers' names that are in the client's namespace, without that namespace, sorted."""
        return own_names(self.running().config.namespace, names)

    # -- brokers ------------------------------------------------------------------------------

    async def cluster(self, cluster: str | None = None) -> ClusterInfo:
        """Return all brokers and clusters that a name server knows.

        Raises:
            ConfigInvalid: `cluster` is given, and the name server does not know it.
        """
        found = ClusterInfo.decode((await self.call_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
        if cluster is not None and cluster not in found.cluster_addr_table:
            known = ", ".join(sorted(found.cluster_addr_table)) or "none"
            raise ConfigInvalid(f"there is no cluster {cluster!r}; the name server knows: {known}")
        return found

    async def masters(self, cluster: str | None = None, broker: str | None = None) -> Masters:
        """Return the master of each broker that `brokers` returns. Raises what that raises."""
        return masters_of(await self.brokers(cluster, broker))

    async def members(self, cluster: str | None = None) -> Masters:
        """Return the masters by ``name``, and the registered slaves by ``name/id``, as `masters` does."""
        found: dict[str, str | None] = {}
        for data in await self.brokers(cluster):
            found |= masters_of([data])
            found |= {
                f"{data.broker_name}/{broker_id}": address
                for broker_id, address in sorted(data.broker_addrs.items())
                if broker_id != MASTER_ID
            }
        return found

    async def brokers(self, cluster: str | None = None, broker: str | None = None) -> list[BrokerData]:
        """Return each broker, each broker of a cluster, or one broker; sorted by name.

        Raises:
            ConfigInvalid: The name server does not know the cluster, or the broker (in this cluster).
            RouteNotFound: There is no broker.
        """
        found = await self.cluster(cluster)
        names = set(found.broker_addr_table)
        if cluster is not None:
            names &= set(found.cluster_addr_table[cluster])
        if broker is not None:
            if broker not in names:
                known = ", ".join(sorted(names)) or "none"
                raise ConfigInvalid(f"there is no broker {broker}; the name server knows: {known}")
            names = {broker}
        if not names:
            raise RouteNotFound(
                "the name server knows no broker" + (f" of cluster {cluster}" if cluster else "")
            )
        return [found.broker_addr_table[name] for name in sorted(names)]

    async def route(self, topic: str) -> TopicRouteData:
        """Return the route of a topic, which is not cached.

        Raises RouteNotFound; the error names similar topics.
        """
        try:
            return await self.running().name_servers.route(self.wrap(topic))
        except RouteNotFound as error:
            hint = did_you_mean(topic, await self._known_topics())
            if not hint:
                raise
            raise RouteNotFound(f"{error}{hint}") from None

    async def _known_topics(self) -> tuple[str, ...]:
        """Return the topics that a name server lists; none if it does not list them for this account."""
        try:
            response = await self.call_namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            return self.own(TopicList.decode(response.body).topic_list)
        except RocketError:
            return ()

    async def masters_of(self, topic: str, cluster: str | None = None) -> Masters:
        """Return the master of each broker of a topic, or of each that is in a cluster.

        Raises:
            ConfigInvalid: The name server does not know the cluster.
            RouteNotFound: No such broker has the topic.
        """
        found = masters_of((await self.route(topic)).broker_datas)
        if cluster is None:
            return found
        members = await self.masters(cluster)
        found = {broker: address for broker, address in found.items() if broker in members}
        if not found:
            raise RouteNotFound(f"no broker of cluster {cluster} has topic {topic}")
        return found

    async def call(
        self, address: str | None, broker: str, code: int, header: Header | None = None, body: bytes = b""
    ) -> Command:
        """Send an idempotent request to one broker; return its response.

        Raises:
            RouteNotFound: `address` is None: the broker has no master.
            BrokerError: The broker rejected the request.
            TransportError: No response arrived.
        """
        if address is None:
            raise RouteNotFound(f"broker {broker} has no master now; repeat the call when it has one")
        command = Command.request(code, header, body)
        return require_success(await self.running().request(address, command, _TIMEOUT_MS), broker)

    async def call_all(
        self,
        masters: Masters,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        decode: Callable[[Command], R],
    ) -> dict[str, R]:
        """Send a request to several brokers concurrently; return the decoded responses, by broker.

        Raises what `gather` raises.
        """

        async def call_one(broker: str, address: str | None) -> R:
            return decode(await self.call(address, broker, code, header, body))

        return await self.gather({broker: call_one(broker, address) for broker, address in masters.items()})

    async def gather_at(
        self, masters: Masters, call: Callable[[str | None, str], Awaitable[R]]
    ) -> dict[str, R]:
        """Call `call(address, broker)` for each master concurrently; return and raise as `gather`."""
        return await self.gather({broker: call(address, broker) for broker, address in masters.items()})

    async def gather(self, calls: Mapping[str, Awaitable[R]]) -> dict[str, R]:
        """Await calls to several brokers concurrently; return the results, by broker.

        Raises:
            RocketError: The error of the only broker.
            BrokersFailed: Some of several brokers failed; it has their errors, and the other results.
        """
        results, errors = await gather_by_broker(list(calls), list(calls.values()))
        return all_of(results, errors)

    async def members_at(self, address: str | None, broker: str, group: str) -> ConsumerConnection | None:
        """Return the members of a group that are connected to a broker; None without any.

        group: with its namespace. Raises what `call` raises.
        """
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        call = self.call(address, broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        response = await if_found(call, ResponseCode.CONSUMER_NOT_ONLINE)
        return None if response is None else ConsumerConnection.decode(response.body)

    # -- name servers -------------------------------------------------------------------------

    async def call_namesrv(self, code: int, header: Header | None = None) -> Command:
        """Send a query to any name server; return its response. Raises BrokerError, TransportError."""
        return require_success(await self.running().name_servers.request(code, header), "the name server")

    async def call_all_namesrv(
        self, code: int, header: Header | None = None, body: bytes = b""
    ) -> dict[str, Command]:
        """Send a request to every name server; return the responses, by ``name server <address>``.

        Raises what `gather` raises.
        """
        results: dict[str, Command] = {}
        errors: dict[str, RocketError] = {}
        for address, outcome in (await self.running().name_servers.request_each(code, header, body)).items():
            name = f"name server {address}"
            try:
                if isinstance(outcome, RocketError):
                    raise outcome
                results[name] = require_success(outcome, name)
            except RocketError as error:
                errors[name] = error
        return all_of(results, errors)

    async def topics(self, cluster: str | None = None, *, include_system: bool = False) -> tuple[str, ...]:
        """Return the topics of the namespace that a name server knows, sorted."""
        return self.own(await self.running().name_servers.topics(cluster, include_system=include_system))

    async def wait_until_known(self, topic: str, brokers: Iterable[str]) -> None:
        """Wait until a name server knows a topic on these brokers. Raises RequestTimeout."""
        await wait_until_known(self.running(), self.wrap(topic), set(brokers))


def masters_of(brokers: Iterable[BrokerData]) -> Masters:
    """Return the master of each broker."""
    return {data.broker_name: data.broker_addrs.get(MASTER_ID) for data in brokers}


async def if_found(call: Awaitable[Command], missing: int) -> Command | None:
    """Return a response; None when a server has responded with the code `missing`."""
    try:
        return await call
    except BrokerError as error:
        if error.code == missing:
            return None
        raise


def all_of(results: dict[str, R], errors: Mapping[str, RocketError]) -> dict[str, R]:
    """Return the results of several servers.

    Raises the error of the only server, and BrokersFailed when some of several servers failed.
    """
    if errors and len(results) + len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        raise BrokersFailed(errors, results)
    return results
