"""Clients belong to the event loop that started them; in another loop they raise before anything is sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from rocketpy import AdminClient, Message, MessageQueue, Outcome, Producer, ProducerConfig, SendStatus
from rocketpy.errors import ClientClosed
from tests.integration.sdk_peers import Names, Peer

MESSAGE = Message("T", b"x")
QUEUE = MessageQueue("T", "a", 0)
ELSEWHERE = "belongs to the event loop that started it"


class Owner:
    """A producer, an admin client and their servers in an event loop in a thread of its own."""

    def __init__(self, config: ProducerConfig | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.run(self._start(config))

    async def _start(self, config: ProducerConfig | None) -> None:
        self.broker, self.names = await Peer().start(), await Names().start()
        self.names.routes["T"] = {"a": self.broker.address}
        self.producer = Producer("g", self.names.address, config=config)
        self.admin = AdminClient(self.names.address)
        await self.producer.start()
        await self.admin.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the owner's loop; return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    async def stop(self) -> None:
        """Close all open clients."""
        await self.producer.close()
        await self.admin.close()
        await self.names.close()
        await self.broker.close()

    def end(self) -> None:
        """End the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)


@pytest.fixture(params=[True, False], ids=["batching", "single"])
def owner(request: pytest.FixtureRequest) -> Iterator[Owner]:
    """An owner that knows the route, so that a send is written at once."""
    made = Owner(ProducerConfig(batching=request.param))
    made.run(made.producer.send(MESSAGE))
    yield made
    made.run(made.stop())
    made.end()
    made.loop.close()


WAYS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send(MESSAGE),
    "queue": lambda producer: producer.send(MESSAGE, queue=QUEUE),
    "selector": lambda producer: producer.send(MESSAGE, selector=lambda queues, *_: queues[0]),
    "send_nowait": lambda producer: producer.send_nowait(MESSAGE),
    "send_oneway": lambda producer: producer.send_oneway(MESSAGE),
    "send_batch": lambda producer: producer.send_batch([MESSAGE]),
    "request": lambda producer: producer.request(MESSAGE),
    "request_nowait": lambda producer: producer.request_nowait(MESSAGE),
    "drain": lambda producer: producer.drain(),
    "flush": lambda producer: producer.flush(),
    "fetch": lambda producer: producer.fetch_publish_message_queues("T"),
    "close": lambda producer: producer.close(),
}


@pytest.mark.parametrize("way", WAYS)
def test_another_loop_is_rejected_before_anything_is_sent(owner: Owner, way: str) -> None:
    """The send would fail with an error about loops although it is stored; a retry would store it twice."""

    async def use() -> None:
        with pytest.raises(ClientClosed, match=ELSEWHERE) as caught:
            await (WAYS[way](owner.producer) or asyncio.sleep(0))  # type: ignore[misc]
        assert caught.value.outcome is Outcome.NOT_SENT

    asyncio.run(use())
    assert owner.run(owner.producer.send(MESSAGE)).status is SendStatus.SEND_OK
    assert len(owner.broker.sends) == 2
    assert owner.producer.health().in_flight == 0


@pytest.mark.parametrize("way", ["send_nowait", "send_oneway", "request_nowait"])
def test_a_thread_without_a_loop_is_rejected(owner: Owner, way: str) -> None:
    """A oneway message would be silently lost, and other sends fail with an error of asyncio."""
    with pytest.raises(ClientClosed, match="a thread without one"):
        WAYS[way](owner.producer)
    assert len(owner.broker.sends) == 1


def test_other_clients_report_another_loop_too(owner: Owner) -> None:
    """A query would hang, or end with an error about futures and loops."""
    for use in (owner.admin.max_offset(QUEUE), owner.admin.close()):
        with pytest.raises(ClientClosed, match=ELSEWHERE):
            asyncio.run(use)
    assert owner.admin.health().ok


@pytest.mark.parametrize("batching", [True, False])
def test_the_next_loop_of_the_same_thread_is_another(batching: bool) -> None:
    """Scripts and tests that call `asyncio.run` twice would hang at the second one's sends."""
    loop = asyncio.new_event_loop()
    broker, names = Peer(), Names()
    producer = Producer("g", "", config=ProducerConfig(batching=batching))

    async def start() -> None:
        nonlocal producer
        await broker.start()
        await names.start()
        names.routes["T"] = {"a": broker.address}
        producer = Producer("g", names.address, config=ProducerConfig(batching=batching))
        await producer.start()
        await producer.send(MESSAGE)

    async def stop() -> None:
        assert await producer.close() == []
        await names.close()
        await broker.close()

    loop.run_until_complete(start())
    for way in ("send", "send_nowait", "send_oneway", "close"):

        async def use(way: str = way) -> None:
            with pytest.raises(ClientClosed, match=ELSEWHERE):
                await (WAYS[way](producer) or asyncio.sleep(0))  # type: ignore[misc]

        asyncio.run(use())
    loop.run_until_complete(stop())
    loop.close()
    assert len(broker.sends) == 1
    assert asyncio.run(producer.close()) == [], "what is closed can be closed again from anywhere"


def test_a_loop_may_continue_in_another_thread(owner: Owner) -> None:
    """A program that creates its clients before its loop's thread could not send at all."""
    owner.end()
    owner.thread = threading.Thread(target=owner.loop.run_forever)
    owner.thread.start()
    assert owner.run(owner.producer.send(MESSAGE)).status is SendStatus.SEND_OK
    owner.run(owner.producer.send_batch([MESSAGE]))
    assert len(owner.broker.sends) == 3
