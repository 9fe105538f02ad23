"""A broker's second port, listenPort - 2, to which RocketMQ's followers and VIP clients connect."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rocketpy.protocol.bodies import TopicConfigSerializeWrapper
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.config.file import load_broker_config
from tests.integration.raw_client import RawClient
from tests.interop.processes import free_broker_port, is_free
from tests.waiting import LIMIT_S, until

LEDGER: Mapping[str, str] = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "solo",
    "dLegerPeers": "n0-memory://fast-port-solo",
    "dLegerSelfId": "n0",
}


@asynccontextmanager
async def running(root: Path, port: int, **settings: str) -> AsyncIterator[Broker]:
    given = {
        "listen": f"127.0.0.1:{port}",
        "storePathRootDir": str(root),
        "maxHashSlotNum": "100",
        **settings,
    }
    broker = Broker(load_broker_config(overrides=given))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


def second_port(broker: Broker) -> int:
    return broker.address.port - 2


@pytest.mark.parametrize("more", [{}, LEDGER], ids=["alone", "DLedger"])
@pytest.mark.parametrize("port", [0, None], ids=["any port", "a given port"])
async def test_topics_are_returned_at_the_second_port(
    tmp_path: Path, more: Mapping[str, str], port: int | None
) -> None:
    """A Java follower or slave would never copy topics, and reject all sends once it leads."""
    given = free_broker_port() if port is None else port
    async with running(tmp_path, given, **more) as broker:
        second = replace(broker.address, port=second_port(broker))
        async with await RawClient.open(second) as follower, await RawClient.open(broker.address):
            response = await follower.call(RequestCode.GET_ALL_TOPIC_CONFIG)
            assert response.code == ResponseCode.SUCCESS
            assert "TBW102" in TopicConfigSerializeWrapper.decode(response.body).topic_config_table
            assert broker.health().connections == 2
    assert is_free(second.port)


async def test_both_ports_share_the_limit_of_a_host(tmp_path: Path) -> None:
    """One host could open twice as many connections as maxConnectionsPerHost allows."""
    async with running(tmp_path, 0, maxConnectionsPerHost="2") as broker:
        second = replace(broker.address, port=second_port(broker))
        async with await RawClient.open(second) as one, await RawClient.open(broker.address) as other:
            assert (await one.call(RequestCode.GET_ALL_TOPIC_CONFIG)).code == ResponseCode.SUCCESS
            assert (await other.call(RequestCode.GET_ALL_TOPIC_CONFIG)).code == ResponseCode.SUCCESS
            async with await RawClient.open(second) as refused:
                async with asyncio.timeout(LIMIT_S):  # shorter than the idle timeout
                    assert await refused.reader.read() == b""
        await until(lambda: not broker.health().connections)
        async with await RawClient.open(second) as client:
            assert (await client.call(RequestCode.GET_ALL_TOPIC_CONFIG)).code == ResponseCode.SUCCESS


async def test_the_second_port_can_be_switched_off(tmp_path: Path) -> None:
    """A machine with brokers at neighbouring ports could not run them."""
    async with running(tmp_path, free_broker_port(), vipChannelEnable="false") as broker:
        assert is_free(second_port(broker))


async def test_a_port_conflict_names_its_consequences(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Java's followers would reject topics after the next fail-over, without an explanation."""
    port = free_broker_port()
    with socket.create_server(("127.0.0.1", port - 2)):
        with caplog.at_level(logging.WARNING, "rocketpy.broker"):
            async with running(tmp_path, port) as broker:
                assert broker.address.port == port
        (warning,) = [r.getMessage() for r in caplog.records if "vipChannelEnable" in r.getMessage()]
        assert f"127.0.0.1:{port - 2} (listenPort - 2) cannot be opened" in warning
        assert "Java slaves and DLedger followers will not learn this broker's topics" in warning
        with pytest.raises(OSError, match="vipChannelEnable") as failure:
            async with running(tmp_path, port, vipChannelEnable="true"):
                pass
        assert failure.value.errno == errno.EADDRINUSE
    assert is_free(port)


async def test_a_neighbour_is_named_when_it_has_the_port(tmp_path: Path) -> None:
    """An operator would look for a second broker at a port where none is configured."""
    port = free_broker_port()
    async with running(tmp_path / "one", port):
        with pytest.raises(OSError, match=f"A broker with listenPort {port} uses this port, too"):
            async with running(tmp_path / "two", port - 2):
                pass
