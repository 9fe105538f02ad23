"""Consumers as users write them, for mypy: it fails when a public type no longer fits the guides."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import assert_type

import msgspec

import rocketpy.sync
from rocketpy import (
    ConsumeResult,
    Health,
    Message,
    MessageExt,
    MessageQueue,
    PullResult,
    PushConfig,
    TypedTopic,
)


def handle(message: MessageExt) -> None:
    """A handler for threads."""
    assert_type(message.body, bytes)


def handle_list(messages: list[MessageExt]) -> None:
    """A handler of batches as one writes it first."""
    assert_type(messages[0], MessageExt)


async def handle_sequence(messages: Sequence[MessageExt]) -> ConsumeResult:
    """One that only reads its batch."""
    assert_type(messages[0], MessageExt)
    return ConsumeResult.SUCCESS


def batches() -> None:
    """Each kind of batch handler fits each kind of consumer; one for single messages does not."""
    config = PushConfig(batch_size=16)
    rocketpy.PushConsumer("g", batch_handler=handle_list, config=config)
    rocketpy.PushConsumer("g", batch_handler=handle_sequence, config=config)
    rocketpy.sync.PushConsumer("g", batch_handler=handle_list, config=config)
    rocketpy.PushConsumer("g", batch_handler=handle)  # type: ignore[arg-type]


def blocking_push() -> None:
    """Settings go by keywords, and a wrong one is a mistake that mypy finds."""
    consumer = rocketpy.sync.PushConsumer("g", "127.0.0.1:9876", handle, config=PushConfig(concurrency=4))
    consumer.subscribe("Orders", "paid || refunded")
    with consumer:
        assert_type(consumer.health(), Health)
        assert_type(consumer.progress(), dict[MessageQueue, int])
    assert_type(consumer.close(), bool)
    rocketpy.sync.PushConsumer("g", handler=handle, concurrency=4)  # type: ignore[call-arg]
    rocketpy.sync.PullConsumer("g", config=PushConfig())  # type: ignore[arg-type]


def blocking_pull(queue: MessageQueue) -> None:
    """The class that `with` returns is the one that was created."""
    with rocketpy.sync.PullConsumer("g") as consumer:
        assert_type(consumer, rocketpy.sync.PullConsumer)
        assert_type(consumer.pull(queue, 0), PullResult)
        assert_type(consumer.pull_async(queue, 0), Future[PullResult])
    with rocketpy.sync.LitePullConsumer("g", client=None) as lite:
        for message in lite:
            assert_type(message, MessageExt)


class Order(msgspec.Struct):
    """A value of a topic."""

    number: int


def values(message: MessageExt) -> None:
    """A typed topic knows the type of its values from its pair of functions."""
    orders = TypedTopic[Order]("Orders", msgspec.json.encode, msgspec.json.Decoder(Order).decode)
    assert_type(orders, TypedTopic[Order])
    assert_type(orders.message(Order(7), keys="7"), Message)
    assert_type(orders.value(message), Order)
    orders.message("7")  # type: ignore[arg-type]
    orders.message(Order(7), key="7")  # type: ignore[call-arg]

    @orders.handler
    async def bill(order: Order, _: MessageExt) -> ConsumeResult:
        assert_type(order.number, int)
        return ConsumeResult.SUCCESS

    @orders.handler  # type: ignore[arg-type]
    def wrong(order: str, _: MessageExt) -> None:
        """Takes another type."""

    rocketpy.PushConsumer("g", handler=bill)
    rocketpy.sync.PushConsumer("g", handler=wrong)
