"""Stores with popped messages in flight, which a broker of RocketMQ opens, and ours afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.integration.broker.test_pop import (
    Popped,
    ack,
    ack_request,
    call_together,
    change,
    changed,
    create,
    pop,
    send_all,
)
from tests.integration.raw_client import RawClient
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import BrokerProcess, JavaBroker, NameServerProcess, OurBroker

pytestmark = pytest.mark.interop
CONF = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 6000,
    "mappedFileSizeTimerLog": 5200,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}
SHORT_MS, LONG_MS = 5_000, 70_000
T = TypeVar("T")


def at(broker: BrokerProcess, work: Callable[[RawClient], Awaitable[T]]) -> T:
    """Do something with a connection to a broker."""

    async def run() -> T:
        async with await RawClient.open(broker.address) as client:
            return await work(client)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("version", "kills"),
    [("5.3.3", False), ("5.3.3", True)],
    ids=["5.3.3 stopped", "5.3.3 killed"],
)
def test_a_store_goes_to_java_and_back(
    peer: JavaPeer, namesrv: NameServerProcess, tmp_path: Path, version: str, kills: bool
) -> None:
    """Messages in flight would be lost at a change of make, or acknowledged ones would come again."""
    store = tmp_path / "store"
    acked: set[str] = set()
    seen: list[str] = []

    def ours() -> BrokerProcess:
        return OurBroker(tmp_path, namesrv.address, name="ours", store=store, conf=CONF)

    def java() -> BrokerProcess:
        return JavaBroker(
            peer.of_version(version), tmp_path, namesrv.address, name="java", store=store, conf=CONF
        )

    def leave(broker: BrokerProcess) -> None:
        broker.kill() if kills else broker.stop()

    async def acknowledge(client: RawClient, *messages: Popped) -> None:
        for message in messages:
            response = await ack(client, message)
            assert response.code == 0, response.remark
            acked.add(message.body)

    async def begin(client: RawClient) -> list[Popped]:
        await create(client)
        await send_all(client, "abcdefghijkl")
        a, b, c, d = await pop(client, 4, LONG_MS)
        e, f = await pop(client, 2, SHORT_MS)
        assert await call_together(client, [ack_request(a), ack_request(d)]) == [0, 0]
        acked.update("ad")
        return [b, changed(c, await change(client, c, LONG_MS)), e, f]

    async def go_on(client: RawClient) -> list[Popped]:
        b, c, _, _ = held
        await acknowledge(client, b, c)
        more: list[Popped] = []
        while len(more) < 3:
            more += await pop(client, 3 - len(more), LONG_MS)
        await acknowledge(client, more[0])
        return more[1:]

    async def end(client: RawClient) -> None:
        await acknowledge(client, at_java[0])
        async with asyncio.timeout(240):
            while len(acked) < 12:
                found = await pop(client, 32, LONG_MS)
                seen.extend(message.body for message in found)
                if not kills:
                    assert not acked & {message.body for message in found}
                await acknowledge(client, *found)

    with ours() as broker:
        held = at(broker, begin)
        leave(broker)
    with java() as broker:
        at_java = at(broker, go_on)
        leave(broker)
    with ours() as broker:
        at(broker, end)
        assert acked == set("abcdefghijkl")
        if not kills:  # RocketMQ does not know up to where messages were popped before a kill
            assert at_java[1].body in seen
        leave(broker)
