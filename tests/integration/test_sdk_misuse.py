"""What the caller did wrong is said at once, before anything is sent, and harms no other caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rocketpy import ClientConfig, MessageQueue, Outcome, Producer
from rocketpy.errors import MessageInvalid
from tests.integration.sdk_peers import Names, Peer
from tests.integration.test_sdk_failures import MESSAGE, one_broker

SendTo = Callable[[Producer, MessageQueue], object]

WAYS: dict[str, SendTo] = {
    "send": lambda producer, queue: producer.send(MESSAGE, queue=queue),
    "send_nowait": lambda producer, queue: producer.send_nowait(MESSAGE, queue=queue),
    "send_oneway": lambda producer, queue: producer.send_oneway(MESSAGE, queue=queue),
    "send_batch": lambda producer, queue: producer.send_batch([MESSAGE], queue=queue),
    "selector": lambda producer, queue: producer.send(MESSAGE, selector=lambda *_: queue),
    "request": lambda producer, queue: producer.request(MESSAGE, queue=queue),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_queue_of_another_topic_is_refused(way: str) -> None:
    """The send would be told as stored in one topic, while the message is in another."""
    async with one_broker() as (producer, broker, names):
        names.routes["U"] = names.routes["T"]
        with pytest.raises(MessageInvalid, match="topic T cannot go to a queue of topic U") as caught:
            await (WAYS[way](producer, MessageQueue("U", "a", 1)) or asyncio.sleep(0))  # type: ignore[misc]
        assert caught.value.outcome is Outcome.NOT_SENT
        await producer.send(MESSAGE, queue=MessageQueue("T", "a", 1))
        assert len(broker.sends) == 1
        assert producer.health().in_flight == 0


async def test_a_queue_is_the_topics_with_its_namespace_or_without() -> None:
    """With a namespace, no queue that the client itself names could be sent to."""
    async with Peer() as broker, Names() as names:
        names.routes["tenant%T"] = {"a": broker.address}
        config = ClientConfig(namespace="tenant", namesrv=names.address)
        async with Producer("g", client=config) as producer:
            queue = (await producer.fetch_publish_queues("T"))[0]
            assert queue.topic == "T"
            await producer.send(MESSAGE, queue=queue)
            await producer.send(MESSAGE, queue=MessageQueue("tenant%T", "a", 0))
            with pytest.raises(MessageInvalid, match="topic T cannot"):
                await producer.send(MESSAGE, queue=MessageQueue("other%T", "a", 0))
        assert len(broker.sends) == 2


async def test_what_is_no_queue_is_refused() -> None:
    """A queue's number alone would fail with an AttributeError of the client's inside."""
    async with one_broker() as (producer, _, _names):
        with pytest.raises(MessageInvalid, match="must be a MessageQueue"):
            await producer.send(MESSAGE, queue=3)  # type: ignore[arg-type]
