"""The queues of topics on all brokers of the cluster, which this broker assigns to consumers.

Source: TopicRouteInfoManager of RocketMQ 5.3.3. Differs: a route is requested again only while consumers ask
for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple

from rocketpy.client.routing.routes import check_route, subscribe_queues
from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import MessageQueue, TopicRouteData
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.config.model import ConsumeConfig

_log = RateLimitedLog(logging.getLogger("rocketpy.broker.assignments"))

_TOPICS_MAX: Final = 10_000
"""Number of cached routes. The oldest one is removed for a new one."""


class _Cached(NamedTuple):
    queues: Sequence[MessageQueue]
    requested_ms: float


@dataclass(eq=False)
class TopicQueues:
    """A cache of the readable queues of topics."""

    config: ConsumeConfig
    tasks: Tasks
    _: KW_ONLY
    route: Callable[[str], Awaitable[TopicRouteData | None]]
    """See `Registrar.route`."""
    now_ms: Callable[[], float]
    """A monotonic clock."""

    def __post_init__(self) -> None:
        self._cache: dict[str, _Cached] = {}
        self._requests: dict[str, asyncio.Task[None]] = {}

    async def find(self, topic: str) -> Sequence[MessageQueue] | None:
        """Return the queues of a topic, sorted; None if it does not exist, or no name server responds.

        Queues that were known before are returned if no name server responds.
        """
        cached = self._cache.get(topic)
        if cached is None or self.now_ms() - cached.requested_ms >= self.config.route_refresh_ms:
            request = self._requests.get(topic)
            if request is None:
                request = self.tasks.spawn(self._request(topic), f"request of the route of {topic[:200]}")
                self._requests[topic] = request
            await asyncio.wait({request})
            cached = self._cache.get(topic)
        return None if cached is None else cached.queues

    async def _request(self, topic: str) -> None:
        now_ms = self.now_ms()
        queues: Sequence[MessageQueue] | None
        try:
            route = await self.route(topic)
            if route is not None:
                check_route(topic, route)
            queues = None if route is None else subscribe_queues(topic, route)
        except RocketError as error:
            _log.warning("route", "cannot request the route of topic %.200s: %s", topic, error)
            known = self._cache.get(topic)
            queues = None if known is None else known.queues
        finally:
            del self._requests[topic]
        self._cache.pop(topic, None)
        if queues:
            if len(self._cache) >= _TOPICS_MAX:
                del self._cache[next(iter(self._cache))]
            self._cache[topic] = _Cached(queues, now_ms)
