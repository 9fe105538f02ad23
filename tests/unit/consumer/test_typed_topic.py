"""TypedTopic: values to bodies and back, and what happens to other bodies."""

from __future__ import annotations

import inspect
import json
import logging
from typing import Any

import msgspec
import pytest

from rocketpy import (
    ConsumeResult,
    Later,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    TypedTopic,
)
from rocketpy.consumer.outcomes import HandlerResult
from rocketpy.errors import MessageInvalid, RecordCorrupt
from rocketpy_broker import EmbeddedCluster
from tests.waiting import until


class Order(msgspec.Struct):
    """The type of the topic's values."""

    number: int
    drink: str = "latte"


ORDERS = TypedTopic[Order]("Orders", msgspec.json.encode, msgspec.json.Decoder(Order).decode)


async def received(cluster: EmbeddedCluster, *bodies: bytes) -> list[MessageExt]:
    """Messages of one queue with these bodies."""
    async with Producer("p", cluster.namesrv_address) as producer:
        [sent, *_] = await producer.send_batch([Message("Orders", body) for body in bodies])
    async with PullConsumer("readers", cluster.namesrv_address) as consumer:
        return (await consumer.pull(sent.queue, 0)).messages


def test_a_message_has_the_value_and_its_options() -> None:
    """An option would be lost, or a body sent that no consumer can read."""
    message = ORDERS.message(Order(7, "tea"), tags="new", keys=["7"], properties={"shop": "2"}, delay_level=3)
    assert json.loads(message.body) == {"number": 7, "drink": "tea"}
    expected = Message(
        "Orders", message.body, tags="new", keys=["7"], properties={"shop": "2"}, delay_level=3
    )
    assert message == expected
    with pytest.raises(MessageInvalid, match="empty body"):
        TypedTopic("Orders", bytes, bytes).message(b"")


async def test_a_polled_message_has_its_value(cluster: EmbeddedCluster) -> None:
    """A consumer that polls would use the raw bytes of a damaged message as a value."""
    [good, bad] = await received(cluster, b'{"number": 7}', b"no JSON")
    assert ORDERS.value(good) == Order(7)
    with pytest.raises(msgspec.DecodeError):
        ORDERS.value(bad)
    damaged = MessageExt(good._record, good.queue, good.body, None, RecordCorrupt(0, "damaged"))
    with pytest.raises(RecordCorrupt):
        ORDERS.value(damaged)


class Handler:
    """An object that is an asynchronous handler."""

    async def __call__(self, order: Order, message: MessageExt) -> HandlerResult:
        return Later(delay_level=order.number)


async def test_handlers_of_every_kind_get_values(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A plain handler would block the event loop, or the result of one be dropped."""
    [good, bad] = await received(cluster, b'{"number": 7}', b"no JSON")

    @ORDERS.handler
    async def on_loop(order: Order, message: MessageExt) -> ConsumeResult:
        return ConsumeResult.LATER if order.number == 7 and message is good else ConsumeResult.SUCCESS

    @ORDERS.handler
    def on_thread(order: Order, _: MessageExt) -> None:
        raise ValueError(order.number)

    asynchronous: list[Any] = [on_loop, ORDERS.handler(Handler())]
    assert [inspect.iscoroutinefunction(handler) for handler in (*asynchronous, on_thread)] == [
        True,
        True,
        False,
    ]
    assert [await handler(good) for handler in asynchronous] == [ConsumeResult.LATER, Later(delay_level=7)]
    with pytest.raises(ValueError, match="7"):
        on_thread(good)
    assert caplog.records == []
    assert [await handler(bad) for handler in asynchronous] == [Later(delay_level=-1)] * 2
    assert on_thread(bad) == Later(delay_level=-1)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    text = caplog.records[0].getMessage()
    assert bad.message_id in text
    assert "at offset 1 " in text


async def test_a_bad_body_becomes_a_dead_letter_at_once(cluster: EmbeddedCluster) -> None:
    """A message that can never be read would be delivered 16 times."""
    values: list[Order] = []

    @ORDERS.handler
    def keep(order: Order, _: MessageExt) -> None:
        values.append(order)

    consumer = PushConsumer("g", cluster.namesrv_address, keep)
    consumer.subscribe("Orders")
    async with Producer("p", cluster.namesrv_address) as producer:
        await producer.send(Message("Orders", b"no JSON"))
        await producer.send(ORDERS.message(Order(7)))
        async with consumer:
            store = cluster.brokers[0].store
            await until(lambda: store.max_offset_in_queue("%DLQ%g", 0) == 1 and values == [Order(7)])
            assert store.max_offset_in_queue("%RETRY%g", 0) == 0


async def test_an_orderly_consumer_may_skip_a_bad_body(cluster: EmbeddedCluster) -> None:
    """The queue would stop at the message forever."""
    orders = TypedTopic("Orders", ORDERS.encode, ORDERS.decode, undecodable=None)
    values: list[int] = []

    @orders.handler
    async def keep(order: Order, _: MessageExt) -> None:
        values.append(order.number)

    consumer = PushConsumer("g", cluster.namesrv_address, keep, config=PushConfig(orderly=True))
    consumer.subscribe("Orders")
    async with Producer("p", cluster.namesrv_address) as producer:
        await producer.send_batch(
            [orders.message(Order(1)), Message("Orders", b"no JSON"), orders.message(Order(2))]
        )
        async with consumer:
            await until(lambda: values == [1, 2])
