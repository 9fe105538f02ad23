"""Stores with timers in flight, which a broker of RocketMQ opens, and ours afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketpy_broker.services.timers.messages import TIMER_TOPIC
from tests.integration.broker.test_deferred import records, send
from tests.integration.broker.test_timers import now_ms, recall, timed
from tests.integration.raw_client import RawClient
from tests.interop import probe
from tests.interop.java_peer import JavaPeer
from tests.interop.processes import BrokerProcess, JavaBroker, NameServerProcess, OurBroker

pytestmark = pytest.mark.interop
CONF = {
    "brokerName": "timers",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 6000,
    "mappedFileSizeTimerLog": 520,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "recallMessageEnable": "true",
    "appendTopicForTimerDeleteKey": "true",  # of 5.5.0, which cannot read recalls of 5.3.3 otherwise
}


class Timers:
    """Sends to the brokers of one store, and what they have delivered."""

    def __init__(self) -> None:
        self.dues: dict[bytes, int] = {}
        self.handles: dict[bytes, str] = {}

    def send(self, broker: BrokerProcess, prefix: str, *delays_ms: int) -> None:
        """Send timed messages, whose names are the prefix and the delay."""

        async def send_all() -> None:
            async with await RawClient.open(broker.address) as client:
                for delay_ms in delays_ms:
                    name, asked = f"{prefix}{delay_ms}", now_ms()
                    text = timed(name.ljust(32, "0"), TIMER_DELAY_MS=delay_ms)
                    response = await send(client, name.encode(), text)
                    assert response.code == 0, response.remark
                    self.dues[name.encode()] = asked + delay_ms
                    self.handles[name.encode()] = response.ext_fields()["recallHandle"]

        asyncio.run(send_all())

    def recall(self, broker: BrokerProcess, name: bytes) -> None:
        """Take a message back."""

        async def recall_one() -> None:
            async with await RawClient.open(broker.address) as client:
                response = await recall(client, self.handles[name])
                assert response.code == 0, response.remark

        asyncio.run(recall_one())
        del self.dues[name]

    def delivered(self, broker: BrokerProcess) -> list[bytes]:
        """The delivered messages, none of which may be early."""

        async def read() -> list[bytes]:
            found: list[bytes] = []
            async with await RawClient.open(broker.address) as client:
                while part := await records(client, "T", offset=len(found)):
                    for record in part:
                        assert record.store_timestamp >= self.dues.get(record.body, 0), record.body
                    found += [record.body for record in part]
            return found

        return asyncio.run(read())

    def wait(self, broker: BrokerProcess, *names: bytes) -> None:
        """Wait until a broker has delivered these."""
        probe.wait_until(lambda: set(self.delivered(broker)) >= set(names), f"{names} to be delivered", 120)


@pytest.mark.parametrize(
    ("version", "kills"),
    [("5.3.3", False), ("5.3.3", True), ("5.5.0", False)],
    ids=["5.3.3 stopped", "5.3.3 killed", "5.5.0 stopped"],
)
def test_a_store_goes_to_java_and_back(
    peer: JavaPeer, namesrv: NameServerProcess, tmp_path: Path, version: str, kills: bool
) -> None:
    """Timers in flight would be lost, or be early, at a change of the broker's make."""
    timers, store = Timers(), tmp_path / "store"

    def ours() -> BrokerProcess:
        return OurBroker(tmp_path, namesrv.address, name="ours", store=store, conf=CONF)

    def java() -> BrokerProcess:
        return JavaBroker(
            peer.of_version(version), tmp_path, namesrv.address, name="java", store=store, conf=CONF
        )

    def leave(broker: BrokerProcess) -> None:
        broker.kill() if kills else broker.stop()

    with ours() as broker:
        timers.send(broker, "o", 300, 20_000, 21_000, 100_000, 100_500, 102_000)
        timers.wait(broker, b"o300")
        leave(broker)
    with java() as broker:
        timers.send(broker, "j", 1500, 70_000, 80_000)
        timers.recall(broker, b"o100000")
        timers.wait(broker, b"j1500", b"o20000", b"o21000")
        leave(broker)
    with ours() as broker:
        timers.recall(broker, b"j80000")
        timers.recall(broker, b"o100500")
        timers.send(broker, "p", 1000)
        timers.wait(broker, *timers.dues)
        found = timers.delivered(broker)
        assert set(found) == set(timers.dues)
        if not kills:  # RocketMQ delivers again what was delivered shortly before a kill
            assert len(found) == len(timers.dues)


def test_a_store_goes_to_a_broker_without_timers_and_back(
    peer: JavaPeer, namesrv: NameServerProcess, tmp_path: Path
) -> None:
    """RocketMQ 4.6.0 would deliver timed messages at once, or ours would not find them afterwards."""
    timers, store = Timers(), tmp_path / "store"

    def ours() -> BrokerProcess:
        return OurBroker(tmp_path, namesrv.address, name="ours", store=store, conf=CONF)

    with ours() as broker:
        timers.send(broker, "o", 300, 12_000, 40_000, 41_500, 90_000)
        timers.wait(broker, b"o300")
        timers.recall(broker, b"o40000")
        broker.stop()
    with JavaBroker(peer, tmp_path, namesrv.address, name="java", store=store, conf=CONF) as java:
        waiting = timer_records(java)
        send_at_once(java, b"java")
        probe.wait_until(lambda: now_ms() > timers.dues[b"o12000"] + 2000, "a timer to be due", 60)
        assert timers.delivered(java) == [b"o300", b"java"]
        assert timer_records(java) == waiting
        java.stop()
    with ours() as broker:
        timers.wait(broker, b"o12000")
        timers.recall(broker, b"o90000")
        timers.send(broker, "p", 1000)
        timers.wait(broker, *timers.dues)
        found = timers.delivered(broker)
        assert sorted(found) == sorted([*timers.dues, b"java"])


def timer_records(broker: BrokerProcess) -> list[bytes]:
    """The records of the timer topic, as they are stored."""

    async def read() -> list[bytes]:
        async with await RawClient.open(broker.address) as client:
            return [record.body + record.properties for record in await records(client, TIMER_TOPIC)]

    return asyncio.run(read())


def send_at_once(broker: BrokerProcess, body: bytes) -> None:
    """Send a message without a time."""

    async def send_one() -> None:
        async with await RawClient.open(broker.address) as client:
            assert (await send(client, body, f"UNIQ_KEY\x01{body.decode().ljust(32, '0')}\x02")).code == 0

    asyncio.run(send_one())
