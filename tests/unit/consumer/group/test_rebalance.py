"""Which queues a member keeps, how long it waits, and which members it counts; without I/O."""

from __future__ import annotations

import pytest

from rocketpy.consumer.allocation import AllocateAveragely, AllocateByConfig, AllocationStrategy
from rocketpy.consumer.group.rebalance import AwayQueues, Handover, MemberLists, Rebalance
from rocketpy.protocol.bodies import MessageQueue

QUEUES = [MessageQueue("T", "b", number) for number in range(4)]
HOUR_MS = 3_600_000


def handover(me: str, wait_ms: int = 100, strategy: AllocationStrategy | None = None) -> Handover:
    return Handover(
        Rebalance("g", me, strategy or AllocateAveragely(), broadcasting=False), wait_ms, refresh_ms=3000
    )


class TestHandover:
    """How long a member waits for queues that another one has locked."""

    def test_a_new_member_waits_for_the_others(self) -> None:
        """It would handle messages at the same time as the member that had the queue."""
        one = handover("m2")
        one.begin("T", QUEUES, ["m1", "m2"], QUEUES[2:])
        assert one.must_wait(QUEUES[2], now_ms=0)
        assert one.is_waiting

    def test_the_only_member_does_not_wait(self) -> None:
        """After a crash, its own earlier lock would stop the consumer."""
        one = handover("m2")
        one.begin("T", QUEUES, ["m2"], QUEUES)
        assert not one.must_wait(QUEUES[2], now_ms=0)
        assert not one.is_waiting

    def test_it_waits_no_longer_than_the_former_owner_and_a_second(self) -> None:
        """A former owner that is stuck would stop the queue."""
        one = handover("m2", wait_ms=100)
        one.begin("T", QUEUES, ["m1", "m2"], QUEUES[2:])
        assert one.must_wait(QUEUES[2], now_ms=5.0)
        assert one.must_wait(QUEUES[2], now_ms=1104.0)
        assert not one.must_wait(QUEUES[2], now_ms=1105.0)

    def test_after_a_change_of_the_route_it_waits_for_the_refresh_of_the_former_owner(self) -> None:
        """Members see a new route at different times; until then both would have the queue."""
        one = handover("m2", wait_ms=100)
        one.begin("T", [*QUEUES, MessageQueue("T", "c", 0)], ["m1", "m2"], ())
        one.end("T")
        one.begin("T", QUEUES, ["m1", "m2"], QUEUES[2:3])
        assert one.must_wait(QUEUES[2], now_ms=0)
        assert one.must_wait(QUEUES[2], now_ms=4099)
        assert not one.must_wait(QUEUES[2], now_ms=4100)

    def test_a_member_that_has_left_has_a_second_to_return(self) -> None:
        """After a lost connection, another member would run its jobs again; after a kill, its queues wait."""
        one = handover("m2", wait_ms=10_000)
        one.begin("T", QUEUES, ["m1", "m2"], ())
        one.end("T")
        one.begin("T", QUEUES, ["m2", "m3"], QUEUES[:2])
        assert one.must_wait(QUEUES[0], now_ms=0)
        assert one.must_wait(QUEUES[0], now_ms=999)
        assert not one.must_wait(QUEUES[0], now_ms=1000)
        assert one.gone_owners(QUEUES[0]) == {"m1"}
        assert one.gone_owners(QUEUES[2]) == set()  # its own
        one.begin("T", QUEUES, ["m1", "m2"], ())
        assert not one.is_waiting

    def test_it_waits_for_a_member_that_lost_a_queue_when_another_left(self) -> None:
        """Jobs of living members would run again after one was killed."""

        def waits(me: str, queue: int, *lists: list[str]) -> bool:
            """Whether a member waits longer than for a lost connection."""
            one = handover(me, wait_ms=10_000)
            one.begin("T", QUEUES, ["m1", "m2", "m3", "m4"], ())
            one.end("T")
            for members in lists:
                one.begin("T", QUEUES, members, QUEUES)
            one.must_wait(QUEUES[queue], now_ms=0)
            return one.must_wait(QUEUES[queue], now_ms=1000)

        assert not waits("m2", 0, ["m2", "m3", "m4"])  # of m1
        assert waits("m4", 2, ["m2", "m3", "m4"])  # of m3
        assert not waits("m3", 0, ["m1", "m3", "m4"], ["m3", "m4"])  # of m1, which has left later

    def test_a_queue_that_goes_elsewhere_is_not_awaited(self) -> None:
        """The member would rebalance twice a second for ever."""
        one = handover("m2")
        one.begin("T", QUEUES, ["m1", "m2"], QUEUES[2:])
        assert one.must_wait(QUEUES[3], now_ms=0)
        one.begin("T", QUEUES, ["m1", "m2", "m3"], QUEUES[2:3])
        assert not one.is_waiting
        assert one.must_wait(QUEUES[2], now_ms=0)
        one.acquired(QUEUES[2])
        assert not one.is_waiting

    def test_without_a_wait_nothing_is_awaited(self) -> None:
        """An application that prefers repetitions to a pause could not have that."""
        one = handover("m2", wait_ms=0)
        one.begin("T", QUEUES, ["m1", "m2"], QUEUES[2:])
        assert not one.must_wait(QUEUES[2], now_ms=0)

    def test_an_unknown_former_owner_is_awaited(self) -> None:
        """With a strategy that knows only this member's queues, nobody would be waited for."""

        class Mine:
            name = "MINE"

            def allocate(
                self, group: str, client_id: str, queues: object, members: object
            ) -> list[MessageQueue]:
                if client_id != "m2":
                    raise KeyError(client_id)
                return QUEUES

        one = handover("m2", strategy=Mine())
        one.begin("T", QUEUES, ["m1", "m2"], QUEUES)
        assert one.must_wait(QUEUES[0], now_ms=0)
        assert handover("m2", strategy=AllocateByConfig(QUEUES)).must_wait(QUEUES[0], now_ms=0) is False


class TestMemberLists:
    """Lists of restarted brokers."""

    def test_a_restarted_broker_is_completed_until_the_heartbeats(self) -> None:
        """The first member that reconnects would take over the queues of all others."""
        lists = MemberLists()
        assert lists.complete(["m2", "m1"], "a", opened_ms=0, now_ms=10) == ("m1", "m2")
        assert lists.complete(["m1"], "a", opened_ms=1000, now_ms=1010) == ("m1", "m2")
        assert lists.complete(["m1"], "a", opened_ms=1000, now_ms=30_000) == ("m1", "m2")
        assert lists.complete(["m1"], "a", opened_ms=1000, now_ms=31_001) == ("m1",)

    def test_a_member_that_leaves_later_is_gone_at_once(self) -> None:
        """Its queues would stand still for half a minute after each restart of a broker."""
        lists = MemberLists()
        lists.complete(["m1", "m2"], "a", opened_ms=0, now_ms=10)
        lists.complete(["m1", "m2"], "a", opened_ms=1000, now_ms=1010)
        assert lists.complete(["m1"], "a", opened_ms=1000, now_ms=1020) == ("m1",)

    def test_a_list_over_the_same_connection_is_complete(self) -> None:
        """The queues of a member that leaves soon after a start would stand still."""
        lists = MemberLists()
        lists.complete(["m1", "m2"], "a", opened_ms=0, now_ms=10)
        assert lists.complete(["m1"], "a", opened_ms=0, now_ms=20) == ("m1",)
        assert lists.complete(["m1"], "b", opened_ms=5, now_ms=20) == (
            "m1",
        )  # connected at the start as well

    def test_a_list_of_another_broker_ends_the_wait_for_a_member_that_left(self) -> None:
        """The lists of two brokers would contradict each other for half a minute."""
        lists = MemberLists()
        lists.complete(["m1", "m2"], "a", opened_ms=0, now_ms=10)
        assert lists.complete(["m1"], "b", opened_ms=1000, now_ms=1010) == ("m1", "m2")
        assert lists.complete(["m1"], "a", opened_ms=0, now_ms=1020) == ("m1",)
        assert lists.complete(["m1"], "b", opened_ms=1000, now_ms=1030) == ("m1",)


class TestAwayQueues:
    """How long queues of absent brokers are kept."""

    def test_a_queue_is_kept_for_an_hour(self) -> None:
        """A broker that never comes back would be waited for until the process ends."""
        away = AwayQueues()
        assert away.keep("T", QUEUES[:2], now_ms=7) == set(QUEUES[:2])
        assert away.keep("T", QUEUES[:2], now_ms=6 + HOUR_MS) == set(QUEUES[:2])
        assert away.keep("T", QUEUES[:2], now_ms=7 + HOUR_MS) == set()

    @pytest.mark.parametrize("topic", ["T", "Other"])
    def test_the_time_begins_anew_after_a_return(self, topic: str) -> None:
        """A broker's second restart within an hour would cost the queue's progress."""
        away = AwayQueues()
        away.keep("T", QUEUES[:1], now_ms=0)
        away.keep(topic, (), now_ms=1)
        assert (away.keep("T", QUEUES[:1], now_ms=HOUR_MS) == set(QUEUES[:1])) == (topic == "T")
