"""Sends with a selector, before and after the route is known; settings that are checked at the start."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Literal

import pytest

from rocketpy import (
    CompressionConfig,
    Message,
    MessageQueue,
    Outcome,
    Producer,
    ProducerConfig,
    by_hash,
)
from rocketpy.errors import (
    ClientClosed,
    ConfigInvalid,
    FlowControlled,
    MessageInvalid,
    RequestTimeout,
    RouteNotFound,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import SendMessageRequestHeaderV2
from rocketpy.protocol.message.compression import decompress
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from tests.integration.sdk_peers import Names, Peer

MESSAGE = Message("T", b"x")


class SlowNames(Names):
    """A name server that holds its responses with routes until `let_go`."""

    def __init__(self, **routes: dict[str, str]) -> None:
        super().__init__(**routes)
        self.held: list[Callable[[], None]] = []

    def respond(self, channel: Channel, request: Command) -> Command | bytes | None:
        response = super().respond(channel, request)
        if request.code != RequestCode.GET_ROUTEINTO_BY_TOPIC or not isinstance(response, Command):
            return response
        if response.code != ResponseCode.SUCCESS:
            return response
        self.held.append(lambda: channel.reply(response))
        return None

    def let_go(self) -> None:
        """Respond to the waiting sends."""
        held, self.held = self.held, []
        for send in held:
            send()


def first(queues: Sequence[MessageQueue], _message: Message, _arg: object) -> MessageQueue:
    """A selector that always chooses the first queue."""
    return queues[0]


async def test_order_is_kept_before_the_route_is_known() -> None:
    """The first events of an order would overtake each other while the route is requested."""
    async with Peer() as broker, SlowNames() as names:
        names.routes["T"] = {"a": broker.address}
        config = ProducerConfig(batching=False)
        async with Producer("g", names.address, config=config) as producer:
            early = [producer.send_nowait(Message("T", b"%d" % n), selector=first) for n in range(20)]
            await names.until(lambda: bool(names.held))
            assert producer.health().in_flight == 20
            names.let_go()
            await asyncio.gather(*early)
            await producer.send(Message("T", b"20"), selector=first)
        assert [command.body for command in broker.sends] == [b"%d" % n for n in range(21)]
        assert {command.header_as(SendMessageRequestHeaderV2).queue_id for command in broker.sends} == {0}
        assert producer.health().in_flight == 0


async def test_waiting_for_the_route_is_bounded() -> None:
    """While a name server is silent, sends with a selector would fill the memory, or wait forever."""
    async with Peer() as broker, SlowNames() as names:
        names.routes["T"] = {"a": broker.address}
        config = ProducerConfig(max_in_flight=2)
        async with Producer("g", names.address, config=config) as producer:
            sends = [producer.send_nowait(MESSAGE, selector=first, timeout_ms=1) for _ in range(2)]
            with pytest.raises(FlowControlled):
                producer.send_nowait(MESSAGE, selector=first)
            await names.until(lambda: bool(names.held))
            await asyncio.sleep(0.01)  # more than the timeout of 1 ms
            names.let_go()
            errors = await asyncio.gather(*sends, return_exceptions=True)
            assert [type(error) for error in errors] == [RequestTimeout] * 2
            assert isinstance(errors[0], RequestTimeout)
            assert errors[0].outcome is Outcome.NOT_SENT
            assert (await producer.send(MESSAGE, selector=first)).queue.queue_id == 0


async def test_sends_that_end_while_they_wait() -> None:
    """A cancelled send would leave all the same, and closing would leave its callers waiting."""
    async with Peer() as broker, SlowNames() as names:
        names.routes["T"] = {"a": broker.address}
        producer = Producer("g", names.address)
        await producer.start()
        cancelled, left = (producer.send_nowait(MESSAGE, selector=first) for _ in range(2))
        cancelled.cancel()
        await producer.close(timeout_ms=0)
        with pytest.raises(ClientClosed) as closed:
            await left
        assert closed.value.outcome is Outcome.NOT_SENT
        assert broker.sends == []


@pytest.mark.parametrize("how", ["send", "nowait"])
async def test_no_route(how: str) -> None:
    """A sender would wait until its timeout for a topic that does not exist."""
    async with Names() as names, Producer("g", names.address) as producer:
        sending = producer.send(MESSAGE, selector=by_hash, arg=1) if how == "send" else None
        future = producer.send_nowait(MESSAGE, selector=by_hash, arg=1) if sending is None else None
        with pytest.raises(RouteNotFound):
            await (sending or future)  # type: ignore[misc]


async def test_a_queue_or_a_selector() -> None:
    """A send with a queue and a selector would silently ignore one of them."""
    async with Names() as names, Producer("g", names.address) as producer:
        with pytest.raises(MessageInvalid, match="both queue"):
            await producer.send(MESSAGE, queue=MessageQueue("T", "a", 0), selector=first)


async def test_a_selector_that_fails_later() -> None:
    """An error in a selector would only be logged by the event loop, and the sender would hang."""

    def broken(queues: Sequence[MessageQueue], _message: Message, _arg: object) -> MessageQueue:
        raise LookupError(len(queues))

    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address) as producer:
            for _ in range(2):  # before and after the route is known
                with pytest.raises(LookupError, match="2"):
                    await producer.send(MESSAGE, selector=broken)
            assert producer.health().in_flight == 0


@pytest.mark.parametrize(("kind", "bits"), [("lz4", 0x101), ("zstd", 0x201)])
async def test_compression_of_later_versions(kind: Literal["lz4", "zstd"], bits: int) -> None:
    """The type bits would be wrong, and a consumer would take the body for another kind."""
    config = ProducerConfig(compression=CompressionConfig(type=kind))
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, config=config) as producer:
            await producer.send(Message("T", b"a" * 10_000))
        request = broker.sends[0]
        assert request.header_as(SendMessageRequestHeaderV2).sys_flag == bits
        assert decompress(request.body, bits) == b"a" * 10_000


@pytest.mark.parametrize(("kind", "module"), [("lz4", "lz4.frame"), ("zstd", "zstandard")])
async def test_a_missing_package_is_found_at_the_start(
    kind: Literal["lz4", "zstd"], module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be found out by the first long message, perhaps after days."""
    monkeypatch.setitem(sys.modules, module, None)
    config = ProducerConfig(compression=CompressionConfig(type=kind))
    with pytest.raises(ConfigInvalid, match=r"rocketpy-mq\[compression\]"):
        await Producer("g", "127.0.0.1:1", config=config).start()


def test_unknown_compression() -> None:
    """A misspelt type would be taken for zlib."""
    with pytest.raises(ConfigInvalid, match="choose one of zlib, lz4, zstd"):
        CompressionConfig(type="gzip")  # type: ignore[arg-type]
