"""Brokers that accept requests, and do not respond to some of them, or reject them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager

from rocketpy import AdminClient
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel, Endpoint
from rocketpy_broker import Broker
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.endpoints import WrappedEndpoint
from tests.integration.sdk_groups import SETTINGS


class SilentEndpoint(WrappedEndpoint):
    """An endpoint like another one, but requests with some codes get no response."""

    def __init__(self, inner: Endpoint) -> None:
        super().__init__(inner)
        self.codes: Container[int] = ()
        """Codes of these requests."""
        self.rejections: dict[int, int] = {}
        """Code of a request -> code of its response."""
        self.counts: Counter[int] = Counter()
        """Number of requests by code."""

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        self.counts[request.code] += 1
        if request.code in self.rejections:
            return request.reply(self.rejections[request.code], remark="planned rejection")
        return None if request.code in self.codes else super().handle(channel, request)


@asynccontextmanager
async def silent_brokers(count: int = 1) -> AsyncIterator[tuple[EmbeddedCluster, list[SilentEndpoint]]]:
    """A cluster with topic T of one queue on each broker, and the endpoints of its brokers."""
    endpoints: list[SilentEndpoint] = []

    def make(config: BrokerConfig) -> Broker:
        def wrap(inner: Endpoint) -> SilentEndpoint:
            endpoints.append(SilentEndpoint(inner))
            return endpoints[-1]

        return Broker(config, intercept=wrap)

    async with EmbeddedCluster(brokers=count, settings=SETTINGS, make_broker=make) as cluster:
        async with AdminClient(cluster.namesrv_address) as admin:
            await admin.create_topic("T", 1)
        yield cluster, endpoints
