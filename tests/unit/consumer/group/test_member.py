"""Members of a group share queues, hand them over and continue from their offsets, over memory://."""

from __future__ import annotations

import pytest

from rocketpy import ConsumeFrom, PushConfig
from rocketpy_broker import EmbeddedCluster
from tests.unit.consumer.group.members import member, queues_of, send
from tests.waiting import until


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_second_member_takes_half_of_the_queues(cluster: EmbeddedCluster, orderly: bool) -> None:
    """A group would not scale, or two members would handle the same messages."""
    config = PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET, rebalance_interval_ms=50, orderly=orderly)
    first_bodies: list[bytes] = []
    second_bodies: list[bytes] = []
    await send(cluster, *(b"%d" % number for number in range(8)))
    async with member(cluster, "one", first_bodies, config) as first:
        await until(lambda: len(first_bodies) == 8)
        async with member(cluster, "two", second_bodies, config) as second:
            await until(lambda: len(queues_of(first)) == len(queues_of(second)) == 2)
            assert not queues_of(first) & queues_of(second)
            await send(cluster, *(b"%d" % number for number in range(8, 16)))
            await until(lambda: len({*first_bodies, *second_bodies}) == 16)
        await until(lambda: len(queues_of(first)) == 4)
    if orderly:  # only locked queues are handed over without a message that is handled twice
        assert len(first_bodies) + len(second_bodies) == 16


async def test_a_reset_continues_from_the_chosen_offset(cluster: EmbeddedCluster) -> None:
    """An operator's reset would be overwritten by the member's next commit."""
    bodies: list[bytes] = []
    await send(cluster, *(b"%d" % number for number in range(4)))
    async with member(cluster, "one", bodies) as consumer:
        await until(lambda: len(bodies) == 4)
        (queue,) = [one for one in queues_of(consumer) if one.queue_id == 0]
        await consumer.seek(queue, 0)
        await until(lambda: len(bodies) == 5)
        await until(lambda: consumer.progress().get(queue) == 1)
        assert bodies.count(bodies[-1]) == 2


async def test_without_a_subscription_its_queues_are_revoked(cluster: EmbeddedCluster) -> None:
    """A member would keep queues that the others wait for."""
    bodies: list[bytes] = []
    await send(cluster, b"first")
    async with member(cluster, "one", bodies) as consumer:
        await until(lambda: bodies == [b"first"])
        consumer.unsubscribe("T")
        await until(lambda: not queues_of(consumer))
        await send(cluster, b"second")
        consumer.subscribe("T")
        await until(lambda: bodies == [b"first", b"second"])
