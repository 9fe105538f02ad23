"""RouteCache: the routes of topics that the clients of one event loop share, and the brokers in them.

A route is fetched on first use. The `ClientInstance` then refreshes it regularly. After an error the cached
route stays.

Source: RocketMQ 4.6 MQClientInstance updateTopicRouteInfoFromNameServer, findBrokerAddressInSubscribe.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from rocketpy.client.name_servers import NameServers
from rocketpy.client.routing.routes import CachedRoute, RouteCallback, member_to_read
from rocketpy.errors import ClientClosed, ConfigInvalid, RocketError, RouteNotFound
from rocketpy.protocol.bodies import MASTER_ID, BrokerData, TopicRouteData
from rocketpy.runtime.progress import Progress
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address


class RouteCache:
    """The routes of one client instance.

    tasks: of the client. name_servers: returns them, and raises ClientClosed before the start. now_ms: of a
    monotonic clock.
    """

    def __init__(
        self, tasks: Tasks, name_servers: Callable[[], NameServers], now_ms: Callable[[], float]
    ) -> None:
        self._tasks = tasks
        self._name_servers = name_servers
        self._now_ms = now_ms
        self._entries: dict[str, CachedRoute] = {}
        self._lookups: Progress | None = None
        """The failed look-ups since the last that a name server answered."""

    def problems(self, limit_ms: float) -> list[str]:
        """Return a text if name servers have answered no look-up for `limit_ms`, while topics are in use."""
        if self._lookups is None or not any(map(_is_in_use, self._entries.values())):
            return []
        text = self._lookups.problem(self._now_ms(), limit_ms, "name servers have answered no look-up")
        return [] if text is None else [text]

    def entry(self, name: str) -> CachedRoute:
        """Return the cache entry of a topic. Once it was fetched, its route is refreshed regularly."""
        topic = self._entries.get(name)
        if topic is None:
            topic = self._entries[name] = CachedRoute(name)
        return topic

    def request(self, topic: CachedRoute, then: RouteCallback) -> None:
        """Fetch the route of a topic, then call `then(None)` or `then(error)`.

        Concurrent calls share one request. Their callbacks run in the order of the calls, without a gap.
        """
        topic.waiting.append(then)
        if len(topic.waiting) == 1:
            self._tasks.spawn(self._fetch_route(topic), f"route of {topic.name}")

    async def get(self, name: str, *, fresh: bool = False) -> TopicRouteData:
        """Return the route of a topic, fetched when it is not cached or when `fresh`.

        Raises RouteNotFound, TransportError, BrokerError.
        """
        topic = self.entry(name)
        error = topic.error
        if topic.route is None or fresh:
            future: asyncio.Future[RocketError | None] = asyncio.get_running_loop().create_future()
            self.request(topic, lambda error: None if future.done() else future.set_result(error))
            error = await future  # `topic.error` may belong to a later request by now
        if topic.route is None or (fresh and error is not None):
            raise error or RouteNotFound(f"no route for topic {name}")
        return topic.route

    async def _fetch_route(self, topic: CachedRoute) -> None:
        topic.error = ClientClosed(f"the client was closed while it fetched the route of {topic.name}")
        try:
            route = await self._name_servers().route(topic.name)
            topic.error = None
            if route != topic.route:
                topic.route = route
                for changed in topic.changed:
                    changed()
            self._lookups = None
        except RocketError as error:
            self._look_up_failed(error)
            topic.error = error.with_traceback(None)  # callers see their own frames, not those of this task
        finally:
            waiting, topic.waiting = topic.waiting, []
            for then in waiting:
                then(topic.error)

    def _look_up_failed(self, error: RocketError) -> None:
        if isinstance(error, RouteNotFound):
            self._lookups = None
            return
        self._lookups = self._lookups or Progress(self._now_ms())
        self._lookups.failed(str(error))

    async def refresh(self) -> None:
        """Fetch all routes in use again. After an error the cached route stays, as in RocketMQ."""
        for topic in list(self._entries.values()):
            if _is_in_use(topic):
                with contextlib.suppress(RocketError):
                    await self.get(topic.name, fresh=True)

    # -- brokers ------------------------------------------------------------------------------

    async def find_broker(
        self, topic: str, broker_name: str, broker_id: int = MASTER_ID, *, only: bool = False
    ) -> tuple[str, int]:
        """Return address and broker id of the broker with this name and id.

        If the route lacks this id, another member of the broker group is returned: the master, or else the
        slave with the lowest id. only: raise RouteNotFound instead. Raises RouteNotFound for an unknown
        broker name, and what `get` raises.
        """
        for fresh in (False, True):
            route = await self.get(topic, fresh=fresh)
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

    def cached_address(self, topic: str, broker_name: str, broker_id: int | None = None) -> str | None:
        """Return the address of a broker from the cached route of a topic; None if it lacks the broker.

        broker_id: of the member; None for the member that `find_broker` prefers.
        """
        route = self.entry(topic).route
        for data in route.broker_datas if route is not None else ():
            if data.broker_name == broker_name and data.broker_addrs:
                wanted = member_to_read(data.broker_addrs) if broker_id is None else broker_id
                return data.broker_addrs.get(wanted)
        return None

    def address_of(self, host: str, port: int) -> str:
        """Return the address of the broker with this store host: as in a route (tls://…), else by TCP.

        A broker at memory:// stores port 0; it is found when it is the only such broker in the routes.
        """
        known = []
        for address in self.addresses():
            with contextlib.suppress(ConfigInvalid):  # skip malformed addresses
                known.append(Address.parse(address))
        found = [address for address in known if (address.host, address.port) == (host, port)]
        if not found and port == 0:
            found = [address for address in known if address.scheme == "memory"]
        return str(found[0]) if len(found) == 1 else str(Address("tcp", host, port))

    def broker_name(self, address: str) -> str | None:
        """Return the name of the broker at an address; None when no route has the address."""
        known = self._known_brokers()
        return next((data.broker_name for data in known if address in data.broker_addrs.values()), None)

    def master_address(self, broker_name: str) -> str | None:
        """Return the address of a broker's master; None when no route has it."""
        named = (data for data in self._known_brokers() if data.broker_name == broker_name)
        return next(filter(None, (data.broker_addrs.get(MASTER_ID) for data in named)), None)

    def addresses(self, *, masters_only: bool = False) -> list[str]:
        """Return the addresses of all brokers in the cached routes, sorted."""
        found = {
            address
            for data in self._known_brokers()
            for broker_id, address in data.broker_addrs.items()
            if broker_id == MASTER_ID or not masters_only
        }
        return sorted(found)

    def _known_brokers(self) -> Iterator[BrokerData]:
        """Yield the brokers in all cached routes, some more than once."""
        for topic in self._entries.values():
            if topic.route is not None:
                yield from topic.route.broker_datas


def _is_in_use(topic: CachedRoute) -> bool:
    """Return whether the route of a topic is refreshed regularly."""
    return bool(topic.changed) or topic.route is not None
