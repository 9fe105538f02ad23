"""Dead letters say why their group gave them up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rocketpy import AdminClient, Later, Message, MessageExt, MessageQueue, Producer, TypedTopic
from rocketpy.errors import MessageInvalid
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import HeartbeatResponseHeader
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_groups import SETTINGS, Seen, consuming, of_topic, send
from tests.waiting import until


class OutOfStock(Exception):
    """An error of the application."""


def raises(_: MessageExt) -> None:
    raise OutOfStock("none left of\narticle 7 " + "x" * 1000)


def no_repr(_: MessageExt) -> None:
    class Unshowable(Exception):
        def __str__(self) -> str:
            raise ValueError

    raise Unshowable


NUMBERS = TypedTopic[int]("T", lambda number: b"%d" % number, int)


def ignore(_: int, __: MessageExt) -> None: ...


HANDLERS: dict[str, tuple[Callable[[MessageExt], Any], str]] = {
    "raises": (raises, "OutOfStock: none left of article 7 xxx"),
    "no repr": (no_repr, "Unshowable: <its str fails>"),
    "later": (lambda _: Later(delay_level=-1), "the handler returned Later"),
    "named": (lambda _: Later(delay_level=-1, reason="no such customer"), "no such customer"),
    "typed": (NUMBERS.handler(ignore), "the body cannot be decoded: ValueError: invalid literal"),
}


async def dead_letters(cluster: EmbeddedCluster, count: int = 1) -> list[MessageExt]:
    """Wait for dead letters of group g, and return them."""
    await until(lambda: cluster.brokers[0].store.max_offset_in_queue("%DLQ%g", 0) == count)
    async with AdminClient(cluster.namesrv_address) as admin:
        return (await admin.dead_letters.fetch("g")).messages


@pytest.mark.parametrize("of_rocketmq", [False, True], ids=["rocketpy", "as RocketMQ"])
@pytest.mark.parametrize("kind", HANDLERS)
async def test_the_reason(
    cluster: EmbeddedCluster,
    producer: Producer,
    kind: str,
    of_rocketmq: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator would have to search the logs of all members for the exception of a message."""
    if of_rocketmq:  # a broker that does not store the header field `reason`
        monkeypatch.setattr(HeartbeatResponseHeader, "of", lambda _: None)
    handler, expected = HANDLERS[kind]
    await producer.send(Message("T", b"body", tags="t", keys="k", properties={"mine": "p"}))
    async with consuming(cluster, handler, max_reconsume_times=0):
        (message,) = await dead_letters(cluster)
    reason = message.dead_letter_reason
    assert reason is not None
    assert reason.startswith(expected)
    assert len(reason) <= 500
    assert (message.body, message.tags, message.keys) == (b"body", "t", ("k",))
    assert message.properties["mine"] == "p"
    assert message.reconsume_times == 1


async def test_the_reason_is_stored_by_the_broker_of_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several brokers, only some dead letters would have a reason."""
    monkeypatch.setattr(HeartbeatResponseHeader, "of", lambda _: None)
    async with EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster:
        async with Producer("p", cluster.namesrv_address) as producer:
            await producer.create_topic("T", 1)
            async with consuming(cluster, raises, max_reconsume_times=0) as consumer:
                # Both brokers have the retry topic.
                await until(lambda: len(of_topic(consumer, "%RETRY%g")) == 2)
                for name in ("broker-a", "broker-b"):
                    for _ in range(10):
                        await producer.send(Message("T", b"x"), queue=MessageQueue("T", name, 0))
                stored = [
                    partial(broker.store.max_offset_in_queue, "%DLQ%g", 0) for broker in cluster.brokers
                ]
                await until(lambda: [count() for count in stored] == [10, 10])
        async with AdminClient(cluster.namesrv_address) as admin:
            messages = (await admin.dead_letters.fetch("g")).messages
    assert len(messages) == 20
    assert all((one.dead_letter_reason or "").startswith("OutOfStock: none left") for one in messages)


async def test_the_reason_of_an_orderly_consumer(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Orderly consumers send dead letters themselves, which would have no reason."""
    await send(producer, "x")
    async with consuming(cluster, raises, orderly=True, max_reconsume_times=1, suspend_ms=10):
        (message,) = await dead_letters(cluster)
    assert (message.dead_letter_reason or "").startswith("OutOfStock: none left")


async def test_an_account_without_the_right_to_send_copies(
    cluster: EmbeddedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead letter would be lost, or its queue stop, because the broker rejects its reason."""
    monkeypatch.setattr(HeartbeatResponseHeader, "of", lambda _: None)
    sent = await send(producer, "x", "y")
    del cluster.brokers[0]._endpoint._handlers[RequestCode.SEND_MESSAGE_V2]
    async with consuming(cluster, raises, max_reconsume_times=0) as consumer:
        messages = await dead_letters(cluster, 2)
        assert consumer.health().ok
    assert {message.body for message in messages} == set(sent)
    assert {message.dead_letter_reason for message in messages} == {None}


async def test_a_dead_letter_sent_again_has_no_old_reason(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """A message would show the reason of an earlier failure."""
    await send(producer, "x")
    async with consuming(cluster, raises, max_reconsume_times=0):
        (message,) = await dead_letters(cluster)
    seen = Seen(lambda _: Later(delay_level=-1, reason="again"))
    async with consuming(cluster, seen), AdminClient(cluster.namesrv_address) as admin:
        await admin.dead_letters.resend(message)
        messages = await dead_letters(cluster, 2)
    assert [one.dead_letter_reason for one in seen.messages] == [None]
    assert messages[1].dead_letter_reason == "again"


async def test_long_properties_leave_no_room(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A message with long properties would never become a dead letter."""
    await producer.send(Message("T", b"x", properties={"long": "p" * 32_300}))
    async with consuming(cluster, raises, max_reconsume_times=0):
        (message,) = await dead_letters(cluster)
    assert message.dead_letter_reason is None
    assert len(message.properties["long"]) == 32_300


def test_a_producer_cannot_set_it() -> None:
    """A producer could make a message look like a dead letter."""
    with pytest.raises(MessageInvalid, match="reserved"):
        Message("T", b"x", properties={"__DLQ_REASON": "because"})
