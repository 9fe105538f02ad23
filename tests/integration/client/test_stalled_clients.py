"""Clients whose servers accept connections, but do not answer, say so after a minute."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rocketpy import (
    ClientConfig,
    LitePullConsumer,
    Message,
    MessageTraceConfig,
    Producer,
    ProducerConfig,
    PullConsumer,
)
from rocketpy.errors import RouteNotFound
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.progress import Jobs
from rocketpy.transport import Channel
from tests.integration.sdk_peers import SENDS, Names, Peer, stored
from tests.waiting import until

CLIENT = ClientConfig(
    heartbeat_ms=20, route_refresh_ms=20, request_timeout_ms=300
)  # a busy machine may need it


class Mute(Peer):
    """A broker that answers no heartbeat while it `is_mute`."""

    def __init__(self) -> None:
        super().__init__(self.respond)
        self.is_mute = False

    def respond(self, channel: Channel, request: Command) -> Command | None:
        if self.is_mute and request.code == RequestCode.HEART_BEAT:
            channel.exclude_from_unanswered()
            return None
        return stored(request)


class MuteNames(Names):
    """A name server that answers nothing while it `is_mute`."""

    is_mute = False

    def respond(self, channel: Channel, request: Command) -> Command | bytes | None:
        if self.is_mute:
            channel.exclude_from_unanswered()
            return None
        return super().respond(channel, request)


async def test_a_broker_that_answers_no_heartbeat(later: Callable[[], None]) -> None:
    """It would forget the client, and send it neither checks nor changes of its group."""
    async with (
        Mute() as broker,
        Names(T={"a": broker.address}) as names,
        Producer("p", names.address, client=CLIENT) as producer,
    ):
        await producer.send(Message("T", b"m"))
        await until(lambda: len(broker.requests(RequestCode.HEART_BEAT)) > 2)
        broker.is_mute = True
        asked = len(broker.requests(RequestCode.HEART_BEAT))
        await until(lambda: len(broker.requests(RequestCode.HEART_BEAT)) > asked + 2)
        assert producer.health().ok  # it may end by itself
        later()
        words = f"broker {broker.address} has answered no heartbeat for "
        await until(lambda: any(words in problem for problem in producer.health().problems))
        broker.is_mute = False
        await until(lambda: producer.health().ok)


async def _send(producer: Producer) -> None:
    await producer.send(Message("T", b"m"))


async def _subscribe(consumer: LitePullConsumer) -> None:
    consumer.subscribe("T")


async def _look(consumer: PullConsumer) -> None:
    await consumer.fetch_queues("T")


@pytest.mark.parametrize(
    ("kind", "use"),
    [(Producer, _send), (LitePullConsumer, _subscribe), (PullConsumer, _look)],
    ids=["producer", "consumer", "pull consumer"],
)
async def test_a_name_server_that_answers_nothing(
    kind: Any, use: Callable[[Any], Awaitable[None]], later: Callable[[], None]
) -> None:
    """The client would keep old routes for ever, and not find brokers that take over."""
    async with (
        Mute() as broker,
        MuteNames(T={"a": broker.address}) as names,
        kind("g", names.address, client=CLIENT) as client,
    ):
        await use(client)
        names.is_mute = True
        asked = len(names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC))
        await until(lambda: len(names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC)) > asked + 2)
        later()
        words = "name servers have answered no look-up for "
        await until(lambda: any(words in problem for problem in client.health().problems))
        names.is_mute = False
        await until(lambda: not any(words in problem for problem in client.health().problems))


def jump(*jobs: Jobs) -> None:
    """Set their clocks ahead by more than the limit."""
    for one in jobs:
        now_ms = one.clock_ms
        one.clock_ms = lambda now_ms=now_ms: now_ms() + 61_000  # type: ignore[misc] # bound at definition


async def test_a_producer_whose_topic_has_no_route() -> None:
    """A service that only sends would be ready, while every request fails."""
    config = ProducerConfig(send_timeout_ms=50)
    async with Names() as names, Producer("p", names.address, config=config) as producer:

        async def fail() -> None:
            with pytest.raises(RouteNotFound):
                await producer.send(Message("T", b"m"))

        await fail()
        assert producer.health().ok  # one message for a topic that does not exist
        assert producer._publish_infos is not None
        jump(producer._publish_infos.jobs)
        await fail()
        (problem,) = producer.health().problems
        assert "the look-up of the route of topic T has failed for 6" in problem
        jump(producer._publish_infos.jobs)
        assert producer.health().ok  # nobody sends to it any more
        await fail()
        assert not producer.health().ok
        async with Mute() as broker:
            names.routes["T"] = {"a": broker.address}
            await producer.send(Message("T", b"m"), timeout_ms=5000)
            assert producer.health().ok


async def test_oneway_messages_that_are_not_sent() -> None:
    """They are lost, and no caller gets an error."""
    config = ProducerConfig(send_timeout_ms=50)
    async with Names() as names, Producer("p", names.address, config=config) as producer:

        async def fail() -> None:
            lost = producer._jobs.failing.get("oneway sending")
            producer.send_oneway(Message("T", b"m"))
            await until(lambda: producer._jobs.failing.get("oneway sending") != lost)

        await fail()
        assert producer.health().ok
        jump(producer._jobs)
        await fail()
        (problem,) = producer.health().problems
        assert problem.startswith("oneway sending has failed for 6")
        async with Mute() as broker:
            names.routes["T"] = {"a": broker.address}
            await producer.send(Message("T", b"m"), timeout_ms=5000)
            producer.send_oneway(Message("T", b"m"))
            await until(lambda: producer.health().ok)


async def test_trace_reports_that_are_not_stored() -> None:
    """Nobody would know that a trace lacks messages."""

    def respond(_channel: Channel, request: Command) -> Command:
        if request.code in SENDS and request.ext_fields()["b"] == "RMQ_SYS_TRACE_TOPIC":
            return request.reply(ResponseCode.NO_PERMISSION, remark="no right")
        return stored(request)

    config = ProducerConfig(message_trace=MessageTraceConfig(linger_ms=1))
    async with (
        Peer(respond) as broker,
        Names(T={"a": broker.address}, RMQ_SYS_TRACE_TOPIC={"a": broker.address}) as names,
        Producer("p", names.address, config=config) as producer,
    ):
        trace = producer._trace
        assert trace is not None
        for count in (1, 2):
            await producer.send(Message("T", b"m"))
            await until(lambda count=count: trace.dropped == count)  # type: ignore[misc] # bound
            if count == 1:
                assert producer.health().ok
                jump(trace.jobs)
        (problem,) = producer.health().problems
        assert problem.startswith("send of message trace reports has failed for 6")


async def test_a_topic_that_was_deleted_is_no_problem(later: Callable[[], None]) -> None:
    """A client that once used a topic of a test would never be healthy again."""
    async with (
        Mute() as broker,
        Names(T={"a": broker.address}, U={"a": broker.address}) as names,
        Producer("p", names.address, client=CLIENT) as producer,
    ):
        for topic in ("T", "U"):
            await producer.send(Message(topic, b"m"))
        del names.routes["U"]
        asked = len(names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC))
        await until(lambda: len(names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC)) > asked + 4)
        later()
        await until(lambda: producer.health().ok)
