"""How the route of a name server becomes queues."""

from __future__ import annotations

import pytest

from rocketpy.client.routing.routes import (
    borrow_route,
    check_route,
    member_to_read,
    publish_route,
    select_queue,
    subscribe_queues,
    usable_queues,
)
from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol.bodies import BrokerData, QueueData, TopicRouteData
from tests import golden_data


def golden_route(topic: str) -> TopicRouteData:
    """A route body as the real name server wrote it."""
    for scenario in ("json-producer", "json-consumer", "json-push"):
        recorded = golden_data.frames(scenario)
        asked = [
            frame.info["response"]
            for frame in recorded
            if frame.info.get("codeName") == "GET_ROUTEINTO_BY_TOPIC"
            and frame.info["kind"] == "request"
            and frame.info["extFields"]["topic"] == topic
        ]
        for response in (item for item in asked if item is not None):
            found = recorded[response["n"]]
            if found.info["code"] == 0:
                return TopicRouteData.decode(found.info["bodyText"].encode())
    raise LookupError(topic)


def names(queues: object) -> list[str]:
    """Short texts for queues: broker and queue id."""
    assert isinstance(queues, tuple)
    return [f"{queue.broker_name}/{queue.queue_id}" for queue in queues]


def route(
    *brokers: tuple[str, int, int, int], slaves_only: str = "", order: str | None = None
) -> TopicRouteData:
    """A route of (name, read queues, write queues, perm)."""
    return TopicRouteData(
        order_topic_conf=order,
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=read, write_queue_nums=write, perm=perm)
            for name, read, write, perm in brokers
        ],
        broker_datas=[
            BrokerData(
                cluster="c", broker_name=name, broker_addrs={1 if name == slaves_only else 0: f"{name}:1"}
            )
            for name, *_ in brokers
        ],
    )


def test_a_recorded_route() -> None:
    """Our producer would send to other queues than the Java one."""
    found = publish_route("GoldenTopic", golden_route("GoldenTopic"))
    assert names(found.queues) == [f"broker-a/{queue}" for queue in range(4)]
    assert found.masters["broker-a"] == "127.0.0.1:20010"
    assert not found.ordered


def test_queues_are_sorted_by_broker() -> None:
    """Selectors by hash would choose different queues in different processes."""
    found = publish_route("T", route(("b", 2, 1, 6), ("a", 2, 2, 6)))
    assert names(found.queues) == ["a/0", "a/1", "b/0"]
    assert names(subscribe_queues("T", route(("b", 2, 1, 6), ("a", 2, 2, 6)))) == ["a/0", "a/1", "b/0", "b/1"]


def test_only_writable_queues_of_brokers_with_a_master() -> None:
    """Messages would go to a broker that rejects them."""
    found = publish_route("T", route(("a", 1, 1, 4), ("b", 1, 1, 6), ("c", 1, 1, 2), slaves_only="b"))
    assert names(found.queues) == ["c/0"]
    assert found.brokers_without_master == {"b"}


@pytest.mark.parametrize("counts", [(-1, 4), (4, 65_537), (2**31 - 1, 4)])
def test_a_route_with_an_invalid_count_is_rejected(counts: tuple[int, int]) -> None:
    """A name server could make clients fill their memory with queues."""
    check_route("T", route(("a", 0, 65_536, 6)))
    with pytest.raises(RemoteProtocolError, match="queues on broker b"):
        check_route("T", route(("a", 4, 4, 6), ("b", *counts, 6)))


def test_a_route_with_too_many_queues_is_rejected() -> None:
    """A name server could spread a huge number of queues over many brokers."""
    brokers = [(f"b{number}", 65_536, 4, 6) for number in range(5)]
    check_route("T", route(*brokers[:4]))
    with pytest.raises(RemoteProtocolError, match="has 327680 queues"):
        check_route("T", route(*brokers))


def test_only_readable_queues_are_read() -> None:
    """A consumer would be refused by a queue that is being emptied or filled."""
    assert names(subscribe_queues("T", route(("a", 1, 1, 4), ("b", 1, 1, 2)))) == ["a/0"]


def test_copies_go_to_queues_that_are_written_and_read() -> None:
    """A retry that a consumer sends itself would be stored where no consumer reads it."""
    found = route(
        ("a", 1, 3, 6), ("b", 3, 1, 6), ("c", 4, 4, 2), ("d", 4, 4, 4), ("e", 1, 1, 6), slaves_only="e"
    )
    assert names(usable_queues("T", found)) == ["a/0", "b/0"]


def test_order_configuration_takes_precedence() -> None:
    """A message's queue would change when a broker stops, and the order would be lost."""
    found = publish_route("T", route(("a", 4, 4, 6), order="b:2;a:1"))
    assert names(found.queues) == ["b/0", "b/1", "a/0"]
    assert found.ordered


@pytest.mark.parametrize("order", ["b", "b:x", "b:-1"])
def test_a_malformed_order_configuration_is_named(order: str) -> None:
    """The caller would get a ValueError without the name of the topic."""
    with pytest.raises(RemoteProtocolError, match="order configuration of T"):
        publish_route("T", route(("a", 4, 4, 6), order=order))


def test_a_new_topic_borrows_four_queues_at_most() -> None:
    """A new topic would get eight queues here and four from the Java client."""
    template = golden_route("TBW102")
    assert names(borrow_route("New", template, 4).queues) == [f"broker-a/{queue}" for queue in range(4)]
    assert len(borrow_route("New", template, 16).queues) == 8
    assert {queue.topic for queue in borrow_route("New", template, 2).queues} == {"New"}


def test_brokers_that_create_no_topics_are_not_borrowed() -> None:
    """The send would go to a broker that rejects it."""
    assert names(borrow_route("New", route(("a", 1, 1, 6), ("b", 1, 1, 7)), 4).queues) == ["b/0"]


def test_turns_go_round() -> None:
    """One queue would get all messages."""
    queues = publish_route("T", route(("a", 2, 2, 6), ("b", 1, 1, 6))).queues
    assert [select_queue(queues, index) for index in range(4)] == [queues[0], queues[1], queues[2], queues[0]]


def test_a_retry_avoids_the_last_broker() -> None:
    """A retry would go to the broker that has just failed."""
    queues = publish_route("T", route(("a", 2, 2, 6), ("b", 1, 1, 6))).queues
    assert {select_queue(queues, index, "a").broker_name for index in range(6)} == {"b"}
    assert {select_queue(queues, index, "b").broker_name for index in range(6)} == {"a"}


def test_a_retry_takes_the_last_broker_where_there_is_no_other() -> None:
    """A topic on one broker would never be retried."""
    queues = publish_route("T", route(("a", 2, 2, 6))).queues
    assert select_queue(queues, 3, "a") == queues[1]


def test_a_member_without_a_role_is_read_last() -> None:
    """Consumers would read an old log although a slave has all messages."""
    assert member_to_read({-1: "c", 0: "a", 2: "b"}) == 0
    assert member_to_read({-1: "c", 3: "d", 2: "b"}) == 2
    assert member_to_read({-1: "c"}) == -1


@pytest.mark.parametrize("count", ["9" * 5000, "4294967296", "-1", "", "x"])
def test_an_order_configuration_with_an_invalid_count_is_rejected(count: str) -> None:
    """A name server could make producers fill their memory with queues."""
    with pytest.raises(RemoteProtocolError, match="order configuration"):
        publish_route("T", route(("b", 4, 4, 6), order=f"b:{count}"))
