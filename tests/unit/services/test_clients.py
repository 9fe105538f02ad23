"""ClientRegistry: which clients are connected, and when they are removed."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from rocketpy.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rocketpy_broker.services.metadata.clients import ClientRegistry


def beat(
    registry: ClientRegistry, channel: str, *, now_ms: int = 0, version: int = 1, topics: str = "T"
) -> set[str]:
    data = HeartbeatData(
        client_id=f"{channel}@1",
        producer_data_set=[ProducerData(group_name="producers")],
        consumer_data_set=[
            ConsumerData(
                group_name="consumers",
                subscription_data_set=[
                    SubscriptionData(topic=topic, sub_string="*", sub_version=version) for topic in topics
                ],
            )
        ],
    )
    return registry.heartbeat(channel, data, language="JAVA", version=333, now_ms=now_ms)


def test_members_of_a_group_are_known() -> None:
    """Consumers of a group could not share its queues."""
    registry = ClientRegistry()
    assert beat(registry, "one") == {"consumers"}
    assert beat(registry, "one") == set()
    assert beat(registry, "two") == {"consumers"}
    group = registry.consumer_group("consumers")
    assert group is not None
    assert group.client_ids == ["one@1", "two@1"]
    assert registry.producer_channels("producers") == ["one", "two"]


def test_the_memory_of_a_client_is_that_of_its_last_heartbeat() -> None:
    """The count would grow with each heartbeat until the client is rejected, or never reach the limit."""
    counted = 0

    def add(_channel: object, size: int) -> bool:
        nonlocal counted
        counted += size
        return True

    def reserved(*topics: str) -> int:
        subscriptions = [SubscriptionData(topic=topic, sub_string="*", sub_version=1) for topic in topics]
        data = HeartbeatData(
            client_id="one@1",
            producer_data_set=[ProducerData(group_name="producers")],
            consumer_data_set=[ConsumerData(group_name="consumers", subscription_data_set=subscriptions)],
        )
        assert registry.reserve("one", data, language="JAVA")
        registry.heartbeat("one", data, language="JAVA", version=333, now_ms=0)
        return counted

    registry = ClientRegistry(add)
    small = reserved("T")
    assert small > 0
    assert reserved("T") == small
    large = reserved("T", "U" * 100, "V")
    assert large > small + 100
    assert reserved("T") == small
    registry.unregister("one", producer_group="producers", consumer_group="")
    assert 0 < counted < small
    registry.unregister("one", producer_group="", consumer_group="consumers")
    assert counted == 0
    assert registry._memberships == {}  # a reference to the channel would keep its buffers
    assert reserved("T") == small
    registry.drop_channel("one")
    assert counted == 0
    assert registry._memberships == {}


def test_unregistration_may_be_repeated() -> None:
    """QUIRKS 10: a client's shutdown would end with an error."""
    registry = ClientRegistry()
    beat(registry, "one")
    assert registry.unregister("one", producer_group="producers", consumer_group="consumers") == {"consumers"}
    assert registry.unregister("one", producer_group="producers", consumer_group="consumers") == set()
    assert registry.consumer_group("consumers") is None
    assert registry.producer_groups == []


def test_a_lost_connection_ends_its_clients() -> None:
    """Queues would stay assigned to a consumer that is offline."""
    registry = ClientRegistry()
    beat(registry, "one")
    beat(registry, "two")
    assert registry.drop_channel("one") == {"consumers"}
    assert registry.producer_channels("producers") == ["two"]


def test_silence_ends_a_client_after_two_minutes() -> None:
    """A client whose network failed would keep its queues forever."""
    registry = ClientRegistry()
    beat(registry, "one", now_ms=0)
    beat(registry, "two", now_ms=60_000)
    assert registry.drop_inactive(120_000) == set()
    assert registry.drop_inactive(120_001) == {"consumers"}
    assert registry.producer_channels("producers") == ["two"]


def test_the_newest_subscription_counts() -> None:
    """A member with an old filter would undo a new one."""
    registry = ClientRegistry()
    beat(registry, "one", version=5, topics="TU")
    beat(registry, "two", version=3, topics="T")
    group = registry.consumer_group("consumers")
    assert group is not None
    assert group.subscriptions["T"].sub_version == 5
    assert "U" not in group.subscriptions


def claim(
    registry: ClientRegistry, channel: str, owner: str, *, client_id: str = "c", now_ms: int = 0
) -> None:
    data = HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name="p")])
    registry.heartbeat(channel, data, language="JAVA", version=333, now_ms=now_ms, owner=owner)


def test_a_client_id_belongs_to_its_first_owner() -> None:
    """Replies to a client would go to another one that gives the same id."""
    registry = ClientRegistry()
    claim(registry, "first", "a")
    claim(registry, "thief", "b")
    assert (registry.producer_channel("c"), registry.owner_of("c")) == ("first", "a")
    registry.drop_channel("first")
    assert (registry.producer_channel("c"), registry.owner_of("c")) == (None, None)
    claim(registry, "thief", "b")
    assert registry.producer_channel("c") == "thief"


def test_a_client_that_reconnects_gets_its_id_back() -> None:
    """Its replies would go to a connection that is dead, until the broker notices."""
    registry = ClientRegistry()
    claim(registry, "first", "a")
    claim(registry, "again", "a")
    assert registry.producer_channel("c") == "again"
    registry.drop_channel("first")
    assert (registry.producer_channel("c"), registry.owner_of("c")) == ("again", "a")


def test_a_silent_client_loses_its_id() -> None:
    """A client whose network failed would keep its id from the connection that replaces it."""
    registry = ClientRegistry()
    claim(registry, "first", "a")
    registry.drop_inactive(120_001)
    claim(registry, "other", "b", now_ms=120_001)
    assert (registry.producer_channel("c"), registry.owner_of("c")) == ("other", "b")


def test_a_connection_has_one_client_id() -> None:
    """One connection could occupy the ids of all clients that connect later."""
    registry = ClientRegistry()
    for number in range(100):
        claim(registry, "greedy", "b", client_id=f"c{number}")
    assert [number for number in range(100) if registry.owner_of(f"c{number}") is not None] == [99]
    registry.unregister("greedy", producer_group="p")
    registry.drop_channel("greedy")
    assert (registry._holders, registry._held, registry._memberships) == ({}, {}, {})


class _Hashed:
    """A channel that counts how often a table is searched for it."""

    searches = 0

    def __hash__(self) -> int:
        self.searches += 1
        return 7


@pytest.mark.parametrize("others", [10, 1000])
def test_the_end_of_a_channel_takes_time_for_its_own_entries_only(others: int) -> None:
    """Each closed connection searched all groups; a producer's did so for each of its own groups."""
    registry = ClientRegistry()
    channel = _Hashed()
    _join(registry, "other", [f"other-{number}" for number in range(others)])
    _join(registry, channel, [f"own-{number}" for number in range(100)])
    channel.searches = 0
    assert registry.drop_channel(channel) == {f"own-{number}" for number in range(100)}
    assert channel.searches < 2000
    registry.drop_channel("other")
    assert (registry.consumer_groups, registry.producer_groups, registry._memberships) == ([], [], {})


def _join(registry: ClientRegistry, channel: Hashable, groups: list[str]) -> None:
    data = HeartbeatData(
        client_id=f"of {id(channel)}",
        producer_data_set=[ProducerData(group_name=group) for group in groups],
        consumer_data_set=[ConsumerData(group_name=group) for group in groups],
    )
    registry.heartbeat(channel, data, language="JAVA", version=333, now_ms=0)


def beats_as(
    registry: ClientRegistry, channel: str, now_ms: int = 0, *, owner: str = "", topic: str = "T"
) -> None:
    """Send a heartbeat of client id x."""
    data = ConsumerData(
        group_name="consumers", subscription_data_set=[SubscriptionData(topic=topic, sub_string="*")]
    )
    beat_of_x = HeartbeatData(client_id="x", consumer_data_set=[data])
    registry.heartbeat(channel, beat_of_x, language="JAVA", version=333, now_ms=now_ms, owner=owner)


def kinds(registry: ClientRegistry) -> list[str]:
    return [conflict.kind for conflict in registry.conflicts("consumers", str)]


def test_a_client_id_that_two_clients_use_is_a_conflict_until_one_has_gone() -> None:
    """Two workers with one instance name shared half of the queues, and nobody was told."""
    registry = ClientRegistry()
    for channel in ("one", "two", "one"):
        beats_as(registry, channel)
    assert registry.is_shared("x")
    assert kinds(registry) == ["client_id"]
    group = registry.consumer_group("consumers")
    assert group is not None
    assert group.client_ids == ["x"]
    registry.drop_channel("two")
    beats_as(registry, "one")
    assert not registry.is_shared("x")
    assert kinds(registry) == []


def test_a_client_that_reconnects_is_not_two_clients() -> None:
    """After each failure of the network an operator would be sent to look for a second client."""
    registry = ClientRegistry()
    for channel in ("one", "two", "two", "three", "three"):
        beats_as(registry, channel)
    assert kinds(registry) == []


def test_the_same_client_id_from_another_host_is_a_conflict() -> None:
    """Two hosts with containers of equal addresses would not be noticed."""
    registry = ClientRegistry()
    beats_as(registry, "one", owner="10.0.0.1")
    beats_as(registry, "two", owner="10.0.0.2")
    assert kinds(registry) == ["client_id"]
    beats_as(registry, "one", 120_000, owner="10.0.0.1")
    registry.drop_inactive(120_001)
    assert kinds(registry) == []


def test_members_differ_until_the_last_one_that_does_has_left() -> None:
    """An alert would not end, or never begin."""
    registry = ClientRegistry()
    beat(registry, "one")
    assert not registry.conflict_state("consumers")
    beat(registry, "two", topics="TU")
    assert kinds(registry) == ["subscriptions"]
    beat(registry, "three", topics="TU")
    registry.drop_channel("two")
    assert kinds(registry) == ["subscriptions"]
    registry.unregister("three", consumer_group="consumers")
    assert not registry.conflict_state("consumers")
    beat(registry, "one", version=2, topics="U")
    assert kinds(registry) == []
