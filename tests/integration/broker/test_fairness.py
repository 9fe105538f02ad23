"""A broker under a flood of one kind of request still serves other clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rocketpy.protocol.bodies import HeartbeatData, ProducerData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy_broker import EmbeddedCluster
from tests.integration.broker.test_broker import pull, send, send_header
from tests.integration.raw_client import RawClient
from tests.integration.small import SMALL

IN_FLIGHT = 500


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """The address of a broker whose topic T has one message."""
    async with EmbeddedCluster(settings=SMALL | {"mappedFileSizeCommitLog": str(64 << 20)}) as cluster:
        at = str(cluster.brokers[0].address)
        async with await RawClient.open(at) as client:
            assert (await send(client, b"first")).code == 0
            assert (await pull(client)).code == 0
        yield at


class Flood:
    """A connection that always has IN_FLIGHT requests in flight. responses: how many it has received."""

    def __init__(self, client: RawClient, request: bytes) -> None:
        self.client = client
        self.request = request
        self.responses = 0
        self._moved = asyncio.Event()

    async def run(self) -> None:
        self.client.writer.write(self.request * IN_FLIGHT)
        while True:
            response = await self.client.next()
            came = 1 + len(self.client.received)
            assert {response.code, *(one.code for one in self.client.received)} <= {
                ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY,
            }  # fmt: skip
            self.client.received.clear()
            self.responses += came
            self._moved.set()
            self.client.writer.write(self.request * came)

    async def until_responses(self, count: int) -> None:
        while self.responses < count:
            self._moved.clear()
            await self._moved.wait()


@asynccontextmanager
async def flooding(address: str, request: bytes, connections: int = 3) -> AsyncIterator[list[Flood]]:
    """Floods of one request; each has received responses."""
    clients = [await RawClient.open(address) for _ in range(connections)]
    floods = [Flood(client, request) for client in clients]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(flood.run()) for flood in floods]
        for flood in floods:
            await flood.until_responses(IN_FLIGHT)
        yield floods
        for task in tasks:
            task.cancel()
    for client in clients:
        client.writer.close()


def sends() -> bytes:
    return encode_command(Command.request(RequestCode.SEND_MESSAGE_V2, send_header(), b"x" * 200))


async def pulls(address: str) -> bytes:
    """The pull request that `pull` makes."""
    frames: list[bytes] = []

    class Recorder(RawClient):
        async def call_frame(self, frame: bytes) -> Command:
            frames.append(frame)
            return await super().call_frame(frame)

    async with await Recorder.open(address) as client:
        await pull(client)
    return frames[0]


@pytest.mark.parametrize("flood", ["sends", "pulls"])
async def test_other_clients_are_served_during_a_flood(address: str, flood: str) -> None:
    """Producers in a hurry would keep consumers from reading, or heartbeats out: groups fall apart."""
    request = sends() if flood == "sends" else await pulls(address)
    beat = HeartbeatData(client_id="me@1", producer_data_set=[ProducerData(group_name="g")]).encode()
    async with flooding(address, request) as floods, await RawClient.open(address) as client:
        for _ in range(20):
            before = [one.responses for one in floods]
            assert (await client.call(RequestCode.HEART_BEAT, body=beat)).code == 0
            assert (await pull(client)).code == 0
            assert (await send(client, b"y")).code in {0, ResponseCode.SYSTEM_BUSY}
            for one, was in zip(floods, before, strict=True):
                # Three requests wait at most for those that were in flight when they arrived.
                assert one.responses - was < 40 * IN_FLIGHT
        for one in floods:
            await one.until_responses(one.responses + IN_FLIGHT)
