"""Listeners: what telemetry hears of sends, and what it may add to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rocketpy import Message, Producer, ProducerConfig, RetryConfig, SendEvent, SendResult
from rocketpy.errors import BrokerError, MessageTooLarge
from rocketpy.protocol import properties
from rocketpy.protocol.batch import decode_batch
from rocketpy.protocol.codes import ResponseCode
from tests.integration.sdk_peers import Names, Peer, refuses, silent


class Notes:
    """A listener that writes down what it hears, and adds a property to every message."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, object]] = []

    def started(self, event: SendEvent) -> None:
        for number, extra in enumerate(event.extra_properties):
            extra |= {"traceparent": f"span-{number}", "mine": "listener"}
        event.state[self] = len(self.heard)
        self.heard.append(("started", len(event.messages), event.oneway))

    def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
        assert self in event.state
        self.heard.append(("completed", len(results), event.attempts))

    def failed(self, event: SendEvent, error: BaseException) -> None:
        self.heard.append(("failed", event.attempts, type(error)))


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
            await producer.send_batch([Message("T", b"x"), Message("T", b"y")])
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
    assert notes.heard == [
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
