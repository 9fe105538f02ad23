"""Context variables of callers: background work of a client does not run in them, and does not keep them."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    BatchConfig,
    ClientConfig,
    LitePullConsumer,
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    RetryConfig,
    SendEvent,
    SendResult,
)
from rocketpy.errors import BrokerError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.producer.test_timers import Broker5
from tests.integration.sdk_peers import SENDS, Names, Peer, refuses
from tests.waiting import until_collected


class Tenant:
    """A value that can be referred to weakly, as a span or a request."""


TENANT: contextvars.ContextVar[Tenant | None] = contextvars.ContextVar("tenant", default=None)


class Watching:
    """An RPC hook and listener that records the tenant of each of its calls."""

    def __init__(self) -> None:
        self.found: list[tuple[str, Tenant | None]] = []

    def before_request(self, address: str, request: Command) -> None:
        if request.code in SENDS:
            self.found.append(("request", TENANT.get()))
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            self.found.append(("batch", TENANT.get()))

    def after_response(self, address: str, request: Command, response: Command) -> None:
        if request.code in SENDS:
            self.found.append(("response", TENANT.get()))

    def started(self, event: SendEvent) -> None: ...

    def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
        self.found.append(("completed", TENANT.get()))

    def failed(self, event: SendEvent, error: BaseException) -> None: ...


async def for_tenant(tenant: Tenant | None, work: Any) -> Any:
    """Await work in a task of its own, with a tenant."""
    TENANT.set(tenant)
    return await work


@pytest.mark.parametrize("transport", ["memory", "tcp"])
@pytest.mark.parametrize("batching", [True, False])
async def test_sends_of_several_tenants(transport: Any, batching: bool) -> None:
    """A hook that adds the current trace to requests would add that of another caller."""
    watching = Watching()
    async with EmbeddedCluster(transport=transport) as cluster:
        async with AdminClient(cluster.namesrv_address) as admin:
            await admin.create_topic("T", 4)
        producer = Producer(
            "g",
            cluster.namesrv_address,
            config=ProducerConfig(batching=batching),
            client=ClientConfig(rpc_hooks=(watching,)),
            listeners=[watching],
        )
        async with producer:
            await producer.send(Message("T", b"warm"))
            watching.found.clear()
            sends = [for_tenant(Tenant(), producer.send(Message("T", b"x"))) for _ in range(4)]
            await asyncio.gather(*(asyncio.create_task(send) for send in sends))
    calls = Counter(found for found in watching.found if found[1] is not None)
    assert [kind for kind, _ in watching.found].count("completed") == 4
    assert max(calls.values(), default=0) <= 1  # a call for each message, or for a batch without a tenant


async def test_a_full_batch_has_no_tenant() -> None:
    """The messages of several callers would travel in the trace of the last of them."""
    watching = Watching()
    config = ProducerConfig(batch=BatchConfig(max_gathered=2))
    async with EmbeddedCluster() as cluster:
        async with AdminClient(cluster.namesrv_address) as admin:
            await admin.create_topic("T", 1)
        client = ClientConfig(rpc_hooks=(watching,))
        async with Producer("g", cluster.namesrv_address, config=config, client=client) as producer:
            await producer.send(Message("T", b"warm"))
            watching.found.clear()
            sends = [for_tenant(Tenant(), producer.send(Message("T", b"x"))) for _ in range(6)]
            await asyncio.gather(*(asyncio.create_task(send) for send in sends))
    batches = [tenant for kind, tenant in watching.found if kind == "batch"]
    assert len(batches) >= 2
    assert set(batches) == {None}


async def test_a_version_that_is_asked_for_once_has_no_tenant() -> None:
    """All timer messages that wait for the version of a broker would travel in the trace of the first."""
    watching = Watching()
    async with Broker5(knows_heartbeats=False) as broker, Names(T={"a": broker.address}) as names:
        client = ClientConfig(rpc_hooks=(watching,))
        async with Producer("g", names.address, client=client) as producer:
            await producer.send(Message("T", b"warm"))
            watching.found.clear()
            broker.knows_heartbeats = True
            timers = [Message("T", b"x", properties={"TIMER_DELAY_SEC": "60"}) for _ in range(3)]
            sends = [for_tenant(Tenant(), producer.send(timer)) for timer in timers]
            await asyncio.gather(*(asyncio.create_task(send) for send in sends))
    requests = [tenant for kind, tenant in watching.found if kind == "request"]
    assert len(requests) == 3
    assert max(Counter(tenant for tenant in requests if tenant).values(), default=0) <= 1


async def test_a_retried_send_keeps_no_tenant() -> None:
    """Timers would run the hooks of later sends with the tenant of the first."""
    watching = Watching()
    config = ProducerConfig(retry=RetryConfig(pause_ms=1), batching=False)
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        client = ClientConfig(rpc_hooks=(watching,))
        async with Producer("g", names.address, config=config, client=client) as producer:
            await producer.send(Message("T", b"warm"))
            watching.found.clear()
            broker.script = refuses(ResponseCode.SYSTEM_ERROR)
            sending = asyncio.create_task(for_tenant(Tenant(), producer.send(Message("T", b"x"))))
            with pytest.raises(BrokerError):
                await sending
    requests = [tenant for kind, tenant in watching.found if kind == "request"]
    assert len(requests) == 3
    assert requests[1:] == [None, None]


@pytest.mark.parametrize("transport", ["memory", "tcp"])
async def test_a_client_keeps_no_context_of_a_caller(transport: Any) -> None:
    """The first request of a service would stay in memory, with all that its context refers to."""
    async with EmbeddedCluster(transport=transport) as cluster:
        address = cluster.namesrv_address
        async with (
            AdminClient(address) as admin,
            Producer("g", address, config=ProducerConfig(batching=True)) as producer,
            PullConsumer("g", address) as pulling,
            LitePullConsumer("lite", address) as lite,
        ):

            async def use_all(tenant: Tenant) -> None:
                TENANT.set(tenant)
                await admin.create_topic("T", 1)
                await producer.send(Message("T", b"x"))
                producer.send_oneway(Message("T", b"x"))
                await producer.send_batch([Message("T", b"x")] * 2)
                await producer.send_nowait(Message("T", b"x"))
                await producer.flush()
                (queue,) = await pulling.fetch_queues("T")
                await pulling.pull(queue, 0)
                lite.subscribe("T")

            tenant = Tenant()
            ref = weakref.ref(tenant)
            using = asyncio.create_task(use_all(tenant))
            await using
            del tenant, using
            await until_collected(ref)
