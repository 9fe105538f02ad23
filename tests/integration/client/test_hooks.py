"""Listeners get events of sends and may add properties; checks and RPC hooks may reject them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rocketpy import (
    ClientConfig,
    Message,
    MessageColumns,
    MessageQueue,
    Outcome,
    Producer,
    ProducerConfig,
    RetryConfig,
    SendEvent,
    SendResult,
)
from rocketpy.config import LatencyConfig
from rocketpy.errors import BrokerError, ClientClosed, LocalProtocolError, MessageTooLarge, SendForbidden
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.message import properties
from rocketpy.protocol.message.batch import decode_batch
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from tests.integration.sdk_peers import SENDS, Names, Peer, refuses, silent, stored
from tests.waiting import LIMIT_S


class Notes:
    """A listener that records its events, and adds a property to every message."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, object]] = []

    def started(self, event: SendEvent) -> None:
        for number, extra in enumerate(event.extra_properties):
            extra |= {"traceparent": f"span-{number}", "mine": "listener"}
        event.state[self] = len(self.events)
        self.events.append(("started", len(event.messages), event.oneway))

    def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
        assert self in event.state
        self.events.append(("completed", len(results), event.attempts))

    def failed(self, event: SendEvent, error: BaseException) -> None:
        self.events.append(("failed", event.attempts, type(error)))


class Breaks:
    """A listener with a bug."""

    def started(self, event: SendEvent) -> None:
        raise ZeroDivisionError

    def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
        raise ZeroDivisionError

    def failed(self, event: SendEvent, error: BaseException) -> None:
        raise ZeroDivisionError


async def test_listeners_follow_every_send(caplog: pytest.LogCaptureFixture) -> None:
    """Traces would miss sends, never end, or a bug in them would lose messages."""
    notes = Notes()
    config = ProducerConfig(retry=RetryConfig(pause_ms=1))
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, config=config, listeners=[Breaks(), notes]) as producer:
            await producer.send(Message("T", b"x", properties={"mine": "user"}))
            await producer.send_batch(MessageColumns("T", [b"x", b"y"]))
            producer.send_oneway(Message("T", b"x"))
            await broker.until(lambda: len(broker.sends) == 3)
            broker.script = refuses(ResponseCode.SYSTEM_ERROR)
            with pytest.raises(BrokerError):
                await producer.send(Message("T", b"x"))
            with pytest.raises(MessageTooLarge):
                await producer.send(Message("T", b"x", properties={"a": "x" * 32_760}))
            broker.script = silent
            send = asyncio.create_task(producer.send(Message("T", b"x"), timeout_ms=60))
            await broker.until(lambda: len(broker.sends) == 7)
            send.cancel()
    assert notes.events == [
        ("started", 1, False),
        ("completed", 1, 0),
        ("started", 2, False),
        ("completed", 2, 0),
        ("started", 1, True),
        ("completed", 0, 0),
        ("started", 1, False),
        ("failed", 3, BrokerError),
        ("started", 1, False),
        ("failed", 0, MessageTooLarge),
        ("started", 1, False),
        ("failed", 1, asyncio.CancelledError),
    ]
    single = properties.decode(broker.sends[0].ext_fields()["i"])
    assert (single["traceparent"], single["mine"]) == ("span-0", "user")
    batch = [properties.decode(element.properties) for element in decode_batch(broker.sends[1].body)]
    assert [found["traceparent"] for found in batch] == ["span-0", "span-1"]
    assert "a send listener failed" in caplog.text


async def test_an_event_of_a_send_that_has_ended_does_not_change() -> None:
    """A listener that keeps its events would count an attempt, and a failure, of a send reported before."""
    kept: list[SendEvent] = []

    class Keeps(Notes):
        def failed(self, event: SendEvent, error: BaseException) -> None:
            kept.append(event)

    held: list[tuple[Channel, Command]] = []

    def hold(channel: Channel, request: Command) -> Command | None:
        if request.code not in SENDS:
            return stored(request)
        held.append((channel, request))
        return None

    retry = RetryConfig(another_broker_when_not_ok=True)
    config = ProducerConfig(retry=retry, batching=False)
    async with Peer(hold) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("other", names.address, config=config) as other:  # keeps the connection open
            producer = Producer("g", names.address, config=config, listeners=[Keeps()])
            await producer.start()
            send = producer.send_nowait(Message("T", b"x"), timeout_ms=600_000)
            await broker.until(lambda: len(held) == 1)
            await producer.close(timeout_ms=1)
            with pytest.raises(ClientClosed):
                await send
            before = [(event.attempts, event.failures) for event in kept]
            ((channel, request),) = held
            channel.reply(stored(request, code=ResponseCode.FLUSH_DISK_TIMEOUT))
            last = other.send_nowait(Message("T", b"y"), timeout_ms=600_000)
            await broker.until(lambda: len(held) == 2)
            held[1][0].reply(stored(held[1][1]))
            await last  # its response comes after the late one
    assert broker.opened == 1
    assert [(event.attempts, event.failures) for event in kept] == before
    assert len(kept) == 1


# -- checks -------------------------------------------------------------------------------------------------


async def test_a_check_forbids_messages_before_they_leave() -> None:
    """An application could not keep secrets off the wire, or a hook's bug would let them pass."""

    def no_secrets(message: Message, queue: MessageQueue, group: str) -> None:
        assert (queue.broker_name, group) == ("a", "g")
        if b"secret" in message.body:
            raise ValueError("a secret")
        if b"late" in message.body:
            raise ClientClosed("my own reason")

    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, checks=[no_secrets]) as producer:
            ends = await asyncio.gather(
                *[producer.send(Message("T", body)) for body in (b"1", b"a secret", b"2", b"late")],
                return_exceptions=True,
            )
            assert [type(end) for end in ends] == [SendResult, SendForbidden, SendResult, ClientClosed]
            assert isinstance(ends[1], SendForbidden)
            assert (ends[1].outcome, type(ends[1].__cause__)) == (Outcome.NOT_SENT, ValueError)
            with pytest.raises(SendForbidden):
                await producer.send_batch([Message("T", b"1"), Message("T", b"secret")])
            producer.send_oneway(Message("T", b"a secret"))
            await producer.send(Message("T", b"3"))  # by the same connection
            assert [command.body for command in broker.sends] == [b"1", b"2", b"3"]
            assert producer.health().in_flight == 0


# -- RPC hooks ----------------------------------------------------------------------------------------------


class Marks:
    """An RPC hook that adds a field and records the requests."""

    def __init__(self) -> None:
        self.responses: list[tuple[int, int]] = []

    def before_request(self, address: str, request: Command) -> None:
        assert ":" in address
        assert isinstance(request.ext, dict)
        request.ext["tenant"] = "blue"

    def after_response(self, address: str, request: Command, response: Command) -> None:
        self.responses.append((request.code, response.code))


class Refuses:
    """An RPC hook that rejects sends, and fails on responses."""

    def before_request(self, address: str, request: Command) -> None:
        if request.code in SENDS:
            raise ClientClosed("not now")

    def after_response(self, address: str, request: Command, response: Command) -> None:
        raise ZeroDivisionError


async def test_rpc_hooks_see_every_request_and_its_response() -> None:
    """A gateway's fields would be missing on some requests."""
    marks = Marks()
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        client = ClientConfig(rpc_hooks=(marks,))
        async with Producer("g", names.address, client=client) as producer:
            await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(3)])
            await producer.send(Message("T", b"x"))
            producer.send_oneway(Message("T", b"x"))
        assert {command.ext_fields().get("tenant") for command in [*broker.seen, *names.seen]} == {"blue"}
    assert {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE} <= {
        code for code, _ in marks.responses
    }


async def test_an_rpc_hook_that_fails_fails_the_request_only() -> None:
    """A bug in a hook would hang the caller, or close the connection."""
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        client = ClientConfig(rpc_hooks=(Refuses(),))
        async with Producer("g", names.address, client=client) as producer:
            async with asyncio.timeout(LIMIT_S):
                with pytest.raises(LocalProtocolError, match="an RPC hook failed"):
                    await producer.send(Message("T", b"x"))
            assert broker.sends == []
            assert len(await producer.fetch_publish_message_queues("T")) == 2


# -- latency fault tolerance --------------------------------------------------------------------------------


async def test_a_broker_that_failed_is_avoided_for_a_while() -> None:
    """Every second send would first try the broker that is offline, and wait for it."""
    config = ProducerConfig(latency=LatencyConfig(enabled=True), batching=False)
    async with Peer(refuses(ResponseCode.SYSTEM_ERROR)) as bad, Peer() as good, Names() as names:
        names.routes["T"] = {"a": bad.address, "b": good.address}
        async with Producer("g", names.address, config=config) as producer:
            for _ in range(20):
                await producer.send(Message("T", b"x"))
            assert len(bad.sends) <= 1
            assert len(good.sends) == 20
            await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(5)])
            assert len(bad.sends) <= 1
