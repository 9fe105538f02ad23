"""ClientRegistry: who is connected, and since when not."""

from rocketpy.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rocketpy_broker.services.clients import ClientRegistry


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
    """Without this consumers of a group could not share its queues."""
    registry = ClientRegistry()
    assert beat(registry, "one") == {"consumers"}
    assert beat(registry, "one") == set()
    assert beat(registry, "two") == {"consumers"}
    group = registry.consumer_group("consumers")
    assert group is not None
    assert group.client_ids == ["one@1", "two@1"]
    assert registry.producer_channels("producers") == ["one", "two"]


def test_goodbye_may_be_said_again() -> None:
    """QUIRKS 10: without this a client's shutdown would end with an error."""
    registry = ClientRegistry()
    beat(registry, "one")
    assert registry.unregister("one", producer_group="producers", consumer_group="consumers") == {"consumers"}
    assert registry.unregister("one", producer_group="producers", consumer_group="consumers") == set()
    assert registry.consumer_group("consumers") is None
    assert registry.producer_groups == []


def test_a_lost_connection_ends_its_clients() -> None:
    """Without this queues would stay with a consumer that is gone."""
    registry = ClientRegistry()
    beat(registry, "one")
    beat(registry, "two")
    assert registry.drop_channel("one") == {"consumers"}
    assert registry.producer_channels("producers") == ["two"]


def test_silence_ends_a_client_after_two_minutes() -> None:
    """Without this a client behind a dead network would keep its queues for ever."""
    registry = ClientRegistry()
    beat(registry, "one", now_ms=0)
    beat(registry, "two", now_ms=60_000)
    assert registry.drop_silent(120_000) == set()
    assert registry.drop_silent(120_001) == {"consumers"}
    assert registry.producer_channels("producers") == ["two"]


def test_the_newest_subscription_counts() -> None:
    """Without this a member with an old filter would undo a new one."""
    registry = ClientRegistry()
    beat(registry, "one", version=5, topics="TU")
    beat(registry, "two", version=3, topics="T")
    group = registry.consumer_group("consumers")
    assert group is not None
    assert group.subscriptions["T"].sub_version == 5
    assert "U" not in group.subscriptions
