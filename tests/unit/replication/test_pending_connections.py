"""Connections that have not joined yet: how many a port of replicas keeps, and which ones go first."""

from __future__ import annotations

from rocketpy_broker.replication.pending_connections import PendingConnections


def test_the_oldest_connection_of_the_most_crowded_host_goes_first() -> None:
    """One host that opens many connections would keep the replicas of other hosts out."""
    evicted: list[tuple[str, str, int]] = []
    pending = PendingConnections[str](4, lambda *of: evicted.append(of))
    pending.add("replica", "10.0.0.1")  # older than all others
    for number in range(3):
        pending.add(f"stranger-{number}", "10.0.0.2")
    assert evicted == []
    pending.add("another replica", "10.0.0.3")
    pending.add("stranger-3", "10.0.0.2")
    assert evicted == [("stranger-0", "10.0.0.2", 3), ("stranger-1", "10.0.0.2", 2)]
    assert list(pending) == ["replica", "stranger-2", "another replica", "stranger-3"]


def test_a_connection_that_has_joined_takes_no_place() -> None:
    """Connected replicas would be evicted for new ones."""
    evicted: list[str] = []
    pending = PendingConnections[str](1, lambda connection, *_: evicted.append(connection))
    pending.add("first", "10.0.0.1")
    assert "first" in pending
    pending.discard("first")
    pending.discard("unknown")
    pending.add("second", "10.0.0.1")
    assert (evicted, "first" in pending) == ([], False)
