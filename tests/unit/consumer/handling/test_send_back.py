"""SendBack: failed messages are retried by their broker, and become dead letters in the end."""

from __future__ import annotations

import pytest

from rocketpy import ConsumeFrom, ConsumeResult, PushConfig
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy_broker import EmbeddedCluster
from tests.unit.consumer.group.members import member, send
from tests.waiting import until


@pytest.mark.parametrize("is_rejected", [False, True])
async def test_a_failed_message_is_retried(cluster: EmbeddedCluster, is_rejected: bool) -> None:
    """A message whose handler failed would be lost, also when the broker rejects its return."""
    bodies: list[bytes] = []
    if is_rejected:  # the consumer then sends a copy to the retry topic itself
        del cluster.brokers[0]._endpoint._handlers[RequestCode.CONSUMER_SEND_MSG_BACK]
    await send(cluster, b"first")
    async with member(
        cluster,
        "one",
        bodies,
        result=lambda one: ConsumeResult.LATER if one.body == b"fails" and not one.reconsume_times else None,
    ) as consumer:
        await until(lambda: any(queue.topic == "%RETRY%g" for queue in consumer.assignment))
        await send(cluster, b"fails")
        await until(lambda: bodies == [b"first", b"fails", b"fails"])


async def test_each_copy_is_delayed_longer() -> None:
    """Where a broker rejects returned messages, retries would come equally often after each failure."""
    settings = {"messageDelayLevel": "0s " * 6}
    async with EmbeddedCluster(settings=settings, transport="memory") as cluster:
        (broker,) = cluster.brokers
        del broker._endpoint._handlers[RequestCode.CONSUMER_SEND_MSG_BACK]
        bodies: list[bytes] = []
        await send(cluster, b"first")
        async with member(
            cluster,
            "one",
            bodies,
            result=lambda one: (
                ConsumeResult.LATER if one.body == b"fails" and one.reconsume_times < 3 else None
            ),
        ) as consumer:
            await until(lambda: any(queue.topic == "%RETRY%g" for queue in consumer.assignment))
            await send(cluster, b"fails")
            await until(lambda: len(bodies) == 5)
        offsets = [broker.store.max_offset_in_queue(SCHEDULE_TOPIC, level - 1) for level in range(1, 7)]
    assert offsets == [0, 0, 1, 1, 1, 0]


async def test_a_message_that_always_fails_becomes_a_dead_letter(cluster: EmbeddedCluster) -> None:
    """A message that no handler can process would be delivered forever, or vanish."""
    bodies: list[bytes] = []
    config = PushConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET, rebalance_interval_ms=50, max_reconsume_times=1
    )
    await send(cluster, b"bad")
    store = cluster.brokers[0].store
    async with member(cluster, "one", bodies, config, result=lambda _: ConsumeResult.LATER):
        await until(lambda: store.max_offset_in_queue("%DLQ%g", 0) == 1)
    assert bodies == [b"bad"] * 2
