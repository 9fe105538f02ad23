"""How a group's members share queues."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import pytest

from rocketpy.consumer.allocation import (
    AllocateAveragely,
    AllocateByCircle,
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateNearby,
    AllocationStrategy,
    java_text,
    ring_hash,
)
from rocketpy.consumer.config import LitePullConfig, PushConfig
from rocketpy.consumer.group.rebalance import AssignmentChanges, Rebalance
from rocketpy.errors import ConfigInvalid
from rocketpy.message import MessageQueue


def queues(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    """Queues of one broker."""
    return [MessageQueue("T", broker, index) for index in range(count)]


def members(count: int) -> list[str]:
    """Client ids, sorted."""
    return [f"10.0.0.{index + 1}@{100 + index}" for index in range(count)]


def shares(strategy: AllocationStrategy, all_queues: list[MessageQueue], who: list[str]) -> list[list[int]]:
    """Queue ids of each member."""
    return [[queue.queue_id for queue in strategy.allocate("g", member, all_queues, who)] for member in who]


@pytest.mark.parametrize(
    ("strategy", "count", "expected"),
    [
        (AllocateAveragely(), 8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (AllocateAveragely(), 2, [[0], [1], []]),
        (AllocateAveragely(), 3, [[0], [1], [2]]),
        (AllocateByCircle(), 8, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (AllocateByCircle(), 2, [[0], [1], []]),
    ],
)
def test_even_shares(strategy: AllocationStrategy, count: int, expected: list[list[int]]) -> None:
    """In a group with a Java member, two members would read the same queue, or none would read it."""
    assert shares(strategy, queues(count), members(3)) == expected


STRATEGIES = [
    AllocateAveragely(),
    AllocateByCircle(),
    AllocateByConsistentHash(),
    AllocateByMachineRoom(["room"]),
    AllocateNearby(AllocateAveragely(), lambda _: "room", lambda _: "room"),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("size", [1, 2, 5, 9, 40])
def test_each_queue_goes_to_one_member(strategy: AllocationStrategy, size: int) -> None:
    """Some number of queues and members would leave a queue out, or give it to two."""
    every = queues(16, "room@broker-a")
    polled = Counter(queue for share in shares(strategy, every, members(size)) for queue in share)
    assert polled == Counter(range(16))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_a_stranger_gets_nothing(strategy: AllocationStrategy) -> None:
    """A member that its broker has forgotten would read the same queues as its successor."""
    assert strategy.allocate("g", "10.9.9.9@1", queues(8, "room@broker-a"), members(2)) == []


def test_queues_by_name() -> None:
    """A consumer with configured queues would get others, or the queues of another topic."""
    mine = [MessageQueue("T", "broker-a", 1), MessageQueue("U", "broker-a", 0)]
    assert AllocateByConfig(mine).allocate("g", "c", queues(4), ["c"]) == mine[:1]


def test_only_queues_of_the_rooms() -> None:
    """Consumers of one machine room would read from the brokers of another."""
    every = sorted(queues(3, "near@broker-a") + queues(3, "far@broker-b") + queues(1, "broker-c"))
    strategy = AllocateByMachineRoom(["near"])
    got = [strategy.allocate("g", member, every, members(2)) for member in members(2)]
    assert [[str(q.broker_name), q.queue_id] for share in got for q in share] == [
        ["near@broker-a", 0],
        ["near@broker-a", 2],
        ["near@broker-a", 1],
    ]


def test_a_room_without_members_is_shared() -> None:
    """No member would read the queues of a machine room whose consumers are all offline."""
    every = sorted(queues(2, "a@x") + queues(2, "b@y"))
    strategy = AllocateNearby(
        AllocateAveragely(), lambda queue: queue.broker_name[0], lambda member: member[0]
    )
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"
    both = [strategy.allocate("g", member, every, ["a1", "b1"]) for member in ("a1", "b1")]
    assert [{queue.broker_name for queue in share} for share in both] == [{"a@x"}, {"b@y"}]
    assert strategy.allocate("g", "a1", every, ["a1"]) == every


def test_places_on_the_ring() -> None:
    """A queue would have another position on this ring than on Java's (the interop cases use Java itself)."""
    queue = MessageQueue("TopicTest", "broker-a", 3)
    assert java_text(queue) == "MessageQueue [topic=TopicTest, brokerName=broker-a, queueId=3]"
    assert ring_hash("") == 0xD41D8CD9  # RFC 1321: MD5 of nothing
    assert ring_hash("message digest") == 0xF96B697D
    with pytest.raises(ConfigInvalid):
        AllocateByConsistentHash(0)


def test_few_queues_move_when_a_member_joins() -> None:
    """With consistent hashing, most queues of a group would move whenever a member joins."""
    strategy, every = AllocateByConsistentHash(), queues(64)
    before = {q: m for m in members(4) for q in strategy.allocate("g", m, every, members(4))}
    after = {q: m for m in members(5) for q in strategy.allocate("g", m, every, members(5))}
    assert all(after[queue] in {before[queue], members(5)[4]} for queue in every)


def rebalance(*, broadcasting: bool = False) -> Rebalance:
    return Rebalance("g", members(2)[0], AllocateAveragely(), broadcasting)


def test_a_member_takes_and_drops() -> None:
    """A rebalance would stop queues that the member keeps, or start them a second time."""
    held = [MessageQueue("T", "broker-a", 1), MessageQueue("T", "broker-a", 3), MessageQueue("U", "b", 9)]
    changes = rebalance().changes("T", queues(4), members(2), held)
    assert changes == AssignmentChanges(revoked=(held[1],), assigned=(MessageQueue("T", "broker-a", 0),))
    assert Rebalance.unsubscribed({"T"}, held) == (held[2],)


def test_unknown_queues_or_members_change_nothing() -> None:
    """A whole group would drop its queues because one name server or broker does not respond."""
    held = queues(4)
    assert rebalance().changes("T", None, members(2), held) == AssignmentChanges((), ())
    assert rebalance().changes("T", queues(2), None, held) == AssignmentChanges((), ())


def test_broadcasting_assigns_all_queues_to_each_member() -> None:
    """The members of a broadcasting group would share the messages that each of them should get."""
    assert rebalance(broadcasting=True).changes("T", queues(3), None, []) == AssignmentChanges(
        (), tuple(queues(3))
    )


def test_strategies_and_settings_are_compared_by_value() -> None:
    """Equal settings of two consumers would differ, so a test or a cache of them would fail."""
    values: list[Callable[[], AllocationStrategy]] = [
        AllocateAveragely,
        AllocateByCircle,
        lambda: AllocateByConfig(queues(1)),
        lambda: AllocateByConfig([]),
        lambda: AllocateByMachineRoom(["room1"]),
        lambda: AllocateByMachineRoom(["room2"]),
        AllocateByConsistentHash,
        lambda: AllocateByConsistentHash(20),
        lambda: AllocateNearby(AllocateAveragely(), str, str),
        lambda: AllocateNearby(AllocateByCircle(), str, str),
    ]
    for config in (PushConfig, LitePullConfig):
        made = [[config(allocation=make()) for make in values] for _ in range(2)]
        assert made[0] == made[1]
        assert len({*made[0], *made[1]}) == len(values)
        assert config() == config() == copy.deepcopy(config())
        assert config() in made[0]
        assert "AllocateAveragely()" in repr(config())
