"""The response to a topic change waits until the name servers know the change."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpy.protocol.bodies import RegisterBrokerBody
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import CreateTopicRequestHeader, DeleteTopicRequestHeader
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker import Broker, load_broker_config
from rocketpy_broker.services.cluster import registration
from tests.integration.raw_client import RawClient
from tests.integration.sdk_peers import Names
from tests.integration.small import SMALL

HEADER = CreateTopicRequestHeader(
    topic="Made", default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6,
    topic_filter_type="SINGLE_TAG",
)  # fmt: skip


class LateNameServer(Names):
    """A name server that delays its responses to registrations of changed topics.

    refuses: how many of these registrations it rejects first.
    """

    def __init__(self, *, refuses: int = 0) -> None:
        super().__init__()
        self.script = self._respond
        self.refuses = refuses
        self.held: list[tuple[Channel, Command]] = []
        self.holds = False

    def _respond(self, channel: Channel, request: Command) -> Command | bytes | None:
        if request.code != RequestCode.REGISTER_BROKER or not self.holds:
            return self.respond(channel, request)
        if self.refuses:
            self.refuses -= 1
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="not now")
        self.held.append((channel, request))
        return None

    def accept(self) -> None:
        """Send the delayed responses, and stop delaying."""
        self.holds = False
        for channel, request in self.held:
            channel.reply(request.reply())
        self.held.clear()


@pytest.fixture
async def namesrv() -> AsyncIterator[LateNameServer]:
    """A name server that the test controls."""
    async with LateNameServer() as server:
        yield server


@pytest.fixture
async def client(namesrv: LateNameServer, tmp_path: Path) -> AsyncIterator[RawClient]:
    """A connection to a broker that registers there."""
    settings = {"listen": "127.0.0.1:0", "namesrvAddr": namesrv.address, "storePathRootDir": str(tmp_path)}
    broker = Broker(load_broker_config(overrides=settings | SMALL))
    await broker.start()
    async with await RawClient.open(broker.address) as raw:
        namesrv.holds = True
        yield raw
    namesrv.accept()
    await broker.close()


async def is_waiting(client: RawClient, response: asyncio.Task[Command]) -> bool:
    """Whether a request has no response, though the broker has responded to a later one."""
    host, port = client.writer.get_extra_info("peername")
    async with await RawClient.open(f"{host}:{port}") as other:
        for _ in range(2):
            assert (await other.call(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0
    return not response.done()


async def test_the_response_to_a_new_topic_waits_for_name_servers(
    client: RawClient, namesrv: LateNameServer
) -> None:
    """A consumer that starts right after would find no route, and request it only after 30 s."""
    response = asyncio.create_task(client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, HEADER))
    await namesrv.until(lambda: bool(namesrv.held))
    _, registration = namesrv.held[0]
    body = RegisterBrokerBody.decode(registration.body)
    assert list(body.topic_config_serialize_wrapper.topic_config_table) == ["Made"]
    assert await is_waiting(client, response)
    namesrv.accept()
    assert (await response).code == 0


async def test_the_response_to_a_deletion_waits_for_name_servers(
    client: RawClient, namesrv: LateNameServer
) -> None:
    """Operators who delete a topic and query its route would see the old one."""
    namesrv.holds = False
    assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, HEADER)).code == 0
    namesrv.holds = True
    response = asyncio.create_task(
        client.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="Made"))
    )
    await namesrv.until(lambda: bool(namesrv.held))
    assert await is_waiting(client, response)
    namesrv.accept()
    assert (await response).code == 0


async def test_a_rejected_registration_is_repeated_before_the_response(
    client: RawClient, namesrv: LateNameServer
) -> None:
    """A name server that is busy for a moment would leave a new topic without a route."""
    namesrv.refuses = 1
    response = asyncio.create_task(client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, HEADER))
    await namesrv.until(lambda: bool(namesrv.held))
    assert await is_waiting(client, response)
    namesrv.accept()
    assert (await response).code == 0


async def test_a_late_name_server_delays_the_response_for_a_bounded_time(
    client: RawClient,
    namesrv: LateNameServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A hanging name server would delay every command of operators until its timeout."""
    monkeypatch.setattr(registration, "_WAIT_REGISTERED_S", 0.05)
    assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, HEADER)).code == 0
    assert namesrv.held
    (warning,) = [record for record in caplog.records if record.name == "rocketpy.broker.registration"]
    assert warning.levelno == logging.WARNING
    assert namesrv.address in warning.getMessage()


async def test_a_name_server_that_is_down_does_not_delay_the_response(
    client: RawClient, namesrv: LateNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one of two name servers offline, every command of operators would take a second."""
    monkeypatch.setattr(registration, "_WAIT_REGISTERED_S", 3600)
    await namesrv.close()
    assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, HEADER)).code == 0
