"""Registrar against a name server over memory://, without a broker."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from rocketpy.protocol.bodies import TopicConfig, TopicConfigSerializeWrapper
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Address
from rocketpy_broker import NameServer, NamesrvConfig
from rocketpy_broker.config.model import BrokerConfig, ListenConfig, RegistrationConfig
from rocketpy_broker.services.cluster.registration import _PART_BYTES, Registrar, advertised
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.store import StoreConfig
from tests.waiting import until

_numbers = itertools.count()


def new_address() -> Address:
    """An address without a listener."""
    return Address("memory", f"registration-{next(_numbers)}")


@asynccontextmanager
async def name_server(address: Address) -> AsyncIterator[NameServer]:
    """A running name server."""
    server = NameServer(NamesrvConfig(listen=ListenConfig(address=address)))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def registrar_at(
    root: Path, *servers: Address, permission: int = 6, broker_id: int = 0, roleless_ms: int = 10_000
) -> tuple[Registrar, TopicTable]:
    """A registrar and its topics, with the connection between them."""
    config = BrokerConfig(
        store=StoreConfig(root=root),
        name="b",
        permission=permission,
        registration=RegistrationConfig(namesrv=servers, roleless_ms=roleless_ms),
    )
    tasks = Tasks("the test")
    topics = TopicTable(config, root / "topics.json", tasks)
    registrar = Registrar(
        config,
        topics,
        tasks,
        address="10.0.0.1:10911",
        ha_address="",
        broker_id=broker_id,
        on_master=lambda _address, _ha_address: None,
    )
    topics.on_change = registrar.topics_changed
    return registrar, topics


def queues(server: NameServer, topic: str) -> list[int]:
    """Write queues of a topic at each broker, as a name server has them."""
    route = server.routes.route(topic)
    return [] if route is None else [data.write_queue_nums for data in route.queue_datas]


async def test_changed_topics_reach_all_name_servers(tmp_path: Path) -> None:
    """QUIRKS 13: a producer would not find a new topic, or not use its new queues, for 30 s."""
    one, other = new_address(), new_address()
    registrar, topics = registrar_at(tmp_path, one, other)
    async with name_server(one) as first, name_server(other) as second:
        await registrar.start()
        assert registrar.registered_at == [str(one), str(other)]
        for count in (3, 5):
            await topics.update(TopicConfig(topic_name="T", read_queue_nums=count, write_queue_nums=count))
            await registrar.wait_registered()
            assert [queues(server, "T") for server in (first, second)] == [[count], [count]]
            assert not any(server.in_flight for server in registrar._servers)  # else it would wait each time
        await registrar.close()
        assert [queues(server, "T") for server in (first, second)] == [[], []]


async def test_a_changed_period_applies_after_the_next_registration(tmp_path: Path) -> None:
    """A changed registerNameServerPeriod would have no effect until the restart of the broker."""
    one = new_address()
    registrar, _ = registrar_at(tmp_path, one)
    config = registrar.config.registration
    object.__setattr__(config, "period_ms", 3_600_000)
    async with name_server(one) as server:
        await registrar.start()
        object.__setattr__(config, "period_ms", 20)  # as `LiveConfig`
        registrar.refresh(0)
        for _ in range(3):
            live = server.routes.live_broker("10.0.0.1:10911")
            assert live is not None
            seen_ms = live.updated_ms
            await until(partial(_was_updated, server, seen_ms))
        await registrar.close()


def _was_updated(server: NameServer, seen_ms: float) -> bool:
    live = server.routes.live_broker("10.0.0.1:10911")
    return live is not None and live.updated_ms > seen_ms


async def test_a_name_server_that_starts_later_gets_the_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that is down would delay the others, or never know the broker."""
    monkeypatch.setattr("rocketpy_broker.services.cluster.registration._RETRY_S", (0.05,))
    one, late = new_address(), new_address()
    registrar, topics = registrar_at(tmp_path, one, late)
    async with name_server(one) as first:
        await registrar.start()
        assert registrar.registered_at == [str(one)]
        assert registrar.problems[0].startswith(f"name server {late}: ")
        await topics.update(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
        await registrar.wait_registered()  # does not wait for a name server that is down
        assert queues(first, "T") == [1]
        async with name_server(late) as second:
            await until(lambda: queues(second, "T") == [1])
            assert (await _all_registered(registrar)) == [str(one), str(late)]
            await registrar.close()


async def _all_registered(registrar: Registrar) -> list[str]:
    await until(lambda: not registrar.problems)
    return registrar.registered_at


async def test_a_limited_broker_registers_limited_topics(tmp_path: Path) -> None:
    """brokerPermission: producers would send to a broker that takes no messages."""
    address = new_address()
    registrar, _ = registrar_at(tmp_path, address, permission=4)
    async with name_server(address) as server:
        await registrar.start()
        route = server.routes.route("BenchmarkTest")
        assert route is not None
        assert [data.perm for data in route.queue_datas] == [4]
        await registrar.close()


def test_addresses_have_no_scheme() -> None:
    """RocketMQ's clients could not parse the address of a broker that listens with TLS."""
    assert advertised(Address.parse("tls://0.0.0.0:1"), "10.0.0.1") == "10.0.0.1:1"
    assert advertised(Address.parse("memory://b"), "10.0.0.1") == "memory://b"


@pytest.mark.parametrize("length", [1, 127])
def test_parts_of_a_registration_are_limited(tmp_path: Path, length: int) -> None:
    """A name server would refuse the registration of a broker with many topics."""
    registrar, _ = registrar_at(tmp_path, new_address())
    names = [f"{number:x}".rjust(length, "t") for number in range(20_000)]
    chunks = registrar._chunks(names)
    assert [name for chunk in chunks for name in chunk] == names
    for chunk in chunks:
        topics = {name: TopicConfig(topic_name=name) for name in chunk}
        assert len(TopicConfigSerializeWrapper(topic_config_table=topics).encode()) <= 1.25 * _PART_BYTES
    assert len(chunks) <= 1 + sum(map(len, names)) // 100_000 + len(names) // 1000


def ids(server: NameServer) -> set[int]:
    """The ids with which brokers are registered."""
    brokers = server.routes.cluster_info().broker_addr_table.values()
    return {broker_id for data in brokers for broker_id in data.broker_addrs}


@pytest.mark.parametrize("role", [-1, 1])
async def test_a_peer_without_a_role_registers_after_a_while(
    tmp_path: Path, role: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody could read from the last peer of a DLedger group; or a peer would lose its role again."""
    address = new_address()
    registrar, _ = registrar_at(tmp_path, address, broker_id=-1, roleless_ms=1)
    async with name_server(address) as server:
        await registrar.start()
        assert ids(server) == set()
        if role >= 0:
            registrar.refresh(role)
        await until(lambda: registrar._may_be_roleless)
        await until(lambda: ids(server) == {role})
        assert registrar.broker_id == role
        assert ("has no role in its DLedger group" in caplog.text) is (role < 0)
        await registrar.close()
