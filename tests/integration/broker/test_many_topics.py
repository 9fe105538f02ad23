"""A broker with more topics than fit into one registration, and one whose registrations fail."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

import msgspec
import pytest

from rocketpy.protocol.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Address, Channel, ChannelOptions
from rocketpy_broker import Broker, NameServer, NamesrvConfig, load_broker_config
from rocketpy_broker.config.model import ListenConfig
from tests.integration.broker.test_broker import send
from tests.integration.raw_client import RawClient, new_topic
from tests.integration.sdk_peers import Names
from tests.integration.small import SMALL
from tests.waiting import LIMIT_S, until

FRAME_BYTES = 3 << 20
COUNT = 25_000
"""More topics than maxTopics, so that a broker keeps them and adds none; they do not fit one frame either."""


def many_topics(store: Path, count: int = COUNT) -> None:
    """Write the topics of a store that an older version, or RocketMQ, has made."""
    table = {
        f"topic-{number}": TopicConfig(topic_name=f"topic-{number}", topic_sys_flag=number % 4)
        for number in range(count)
    }
    wrapper = TopicConfigSerializeWrapper(
        topic_config_table=table, data_version=DataVersion(timestamp=1000, counter=count)
    )
    (store / "config").mkdir(parents=True)
    (store / "config" / "topics.json").write_bytes(msgspec.json.format(wrapper.encode(), indent=2))


def new_broker(store: Path, namesrv: str, **settings: str) -> Broker:
    own = {**SMALL, "listenPort": "0", "storePathRootDir": str(store), "namesrvAddr": namesrv}
    return Broker(load_broker_config(None, {**own, **settings}))


@pytest.fixture
def names() -> NameServer:
    """A name server that takes smaller frames than usual, not started."""
    limits = ChannelOptions(max_frame_bytes=FRAME_BYTES)
    return NameServer(
        NamesrvConfig(listen=ListenConfig(address=Address("tcp", "127.0.0.1", 0), options=limits))
    )


@pytest.mark.parametrize("compressed", ["false", "true"])
async def test_more_topics_than_fit_a_frame_are_registered(
    tmp_path: Path, names: NameServer, compressed: str
) -> None:
    """With 90,000 topics a broker could not register any more, and was still reported as ready.

    A lower limit of a frame and fewer topics show the same.
    """
    many_topics(tmp_path)
    await names.start()
    broker = new_broker(tmp_path, str(names.address), compressedRegister=compressed)
    try:
        await broker.start()
        assert len(broker.topics.snapshot().encode()) > FRAME_BYTES
        assert len(names.routes.topics()) > COUNT
        assert broker.health().registration_problems == ()
        live = names.routes.live_broker(broker.advertised_address)
        assert live is not None
        assert live.data_version == broker.topics.version
        registrar = broker._registrar
        assert registrar is not None
        names.routes.delete_topic("topic-77")
        broker.topics.version = broker.topics.version.next(2000)
        registrar.refresh(0)
        await until(lambda: names.routes.route("topic-77") is not None)
        if compressed == "false":  # the compressed form does not carry topicSysFlag
            assert len(names.routes.unit_topics()) == COUNT / 2
        async with await RawClient.open(broker.address) as client:
            # More topics than the limit are kept; none is added.
            assert (await send(client, b"x", topic="topic-5")).code == 0
            response = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, new_topic("One-more"))
            assert "maxTopics" in (response.remark or "")
    finally:
        await broker.close()
        await names.close()


async def test_a_restarted_name_server_gets_all_topics(
    tmp_path: Path, names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the name server, clients would miss the topics that do not fit the first request."""
    monkeypatch.setattr("rocketpy_broker.services.cluster.registration._RETRY_S", (0.05,))
    many_topics(tmp_path, 12_000)
    await names.start()
    at = names.address
    broker = new_broker(tmp_path, str(at))
    await broker.start()
    again = NameServer(NamesrvConfig(listen=ListenConfig(address=at)))
    try:
        assert len(names.routes.topics()) > 12_000
        await names.close()
        await again.start()
        await until(lambda: len(again.routes.topics()) > 12_000)
    finally:
        await broker.close()
        await again.close()


async def test_changes_during_a_long_registration_are_not_lost(tmp_path: Path, names: NameServer) -> None:
    """A topic that changes while the others are registered would keep its old settings at the name server."""
    many_topics(tmp_path, 12_000)
    await names.start()
    broker = new_broker(tmp_path, str(names.address))
    await broker.start()
    try:
        registrar = broker._registrar
        assert registrar is not None
        registrar.refresh(0)
        async with await RawClient.open(broker.address) as client:
            for queues in range(1, 4):
                header = new_topic("topic-11999", queues)
                assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
                await until(partial(has_queues, names, "topic-11999", queues))
                registrar.refresh(0)
        await until(lambda: bool(broker.health().registered_at))
        assert has_queues(names, "topic-11999", 3)
    finally:
        await broker.close()
        await names.close()


def has_queues(names: NameServer, topic: str, count: int) -> bool:
    route = names.routes.route(topic)
    return route is not None and route.queue_datas[0].write_queue_nums == count


class Refusing(Names):
    """A name server that rejects registrations while a test wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.script = self._respond
        self.refuses = True

    def _respond(self, channel: Channel, request: Command) -> Command | bytes | None:
        if request.code == RequestCode.REGISTER_BROKER and self.refuses:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="the table is full")
        return self.respond(channel, request)


async def test_a_registration_that_is_rejected_is_an_error_and_not_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that no client finds would look healthy to its operator."""
    monkeypatch.setattr("rocketpy_broker.services.cluster.registration._RETRY_S", (0.5,))
    async with Refusing() as names:
        broker = new_broker(tmp_path, names.address)
        try:
            with caplog.at_level(logging.DEBUG, "rocketpy.broker.registration"):
                await broker.start()
            errors = [record for record in caplog.records if record.levelno == logging.ERROR]
            assert [record.name for record in errors] == ["rocketpy.broker.registration"]
            assert "the table is full" in errors[0].getMessage()
            (problem,) = broker.health().registration_problems
            assert "the table is full" in problem
            (check,) = [check for check in broker.readiness() if check.name == "registration"]
            assert check.problem is not None
            assert "the table is full" in check.problem
            names.refuses = False
            async with asyncio.timeout(LIMIT_S):
                while broker.health().registration_problems:  # noqa: ASYNC110 - until the next attempt
                    await asyncio.sleep(0.01)
            assert all(check.problem is None for check in broker.readiness())
            names.refuses = True
            registrar = broker._registrar
            assert registrar is not None
            registrar.refresh(0)
            await until(lambda: bool(broker.health().registration_problems))
            assert broker.health().registered_at == ()
        finally:
            await broker.close()


class RefusingNameServer(NameServer):
    """Refuses one registration of "First", and holds its response to the next registration."""

    held: tuple[Channel, Command] | None = None
    has_refused = False

    def handle(self, channel: Channel, request: Command) -> Command | None:
        """Part of Endpoint."""
        if request.code != RequestCode.REGISTER_BROKER or self.held is not None:
            return super().handle(channel, request)
        if not self.has_refused and b"First" in request.body:
            self.has_refused = True
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="not now")
        response = super().handle(channel, request)
        if self.has_refused and response is not None:
            self.held = channel, response
            return None
        return response


async def test_topics_made_during_a_registration_hide_no_others(tmp_path: Path) -> None:
    """A name server ignores topics with the version of a topic that was registered in between."""
    names = RefusingNameServer(NamesrvConfig(listen=ListenConfig(address=Address("tcp", "127.0.0.1", 0))))
    await names.start()
    broker = new_broker(tmp_path, str(names.address))
    try:
        await broker.start()
        async with await RawClient.open(broker.address) as client:
            assert (await send(client, b"x", topic="First")).code == 0
            await until(lambda: names.held is not None)
            assert (await send(client, b"x", topic="Second")).code == 0
            assert names.held is not None
            names.held[0].reply(names.held[1])
            for topic in ("First", "Second"):
                await until(partial(lambda topic: names.routes.route(topic) is not None, topic))
    finally:
        await broker.close()
        await names.close()
