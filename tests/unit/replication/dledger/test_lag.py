"""For how long a follower has lacked entries, as its leader knows it."""

from __future__ import annotations

from rocketpy_broker.replication.dledger.core.leader import PeerProgress

STEP_MS = 10


def test_the_lag_of_a_busy_follower_is_that_of_its_acknowledgements() -> None:
    """A follower that never has the newest entry would be reported, or one that stands still would not."""
    follower = PeerProgress("n1")
    follower.match_index = 0
    for now_ms in range(0, 100_000, STEP_MS):  # one new entry per step; acknowledged after five steps
        end = now_ms // STEP_MS
        follower.note_time(end, now_ms)
        follower.acknowledge(end - 5)
        assert follower.lag_ms(end, now_ms) <= 11 * STEP_MS
    stopped_ms = now_ms
    for now_ms in range(stopped_ms, stopped_ms + 50_000, STEP_MS):
        follower.note_time(end + 1, now_ms)
    assert 50_000 - STEP_MS <= follower.lag_ms(end + 1, now_ms) <= 50_000 + 11 * STEP_MS
    follower.acknowledge(end + 1)
    assert follower.lag_ms(end + 1, now_ms) == 0


def test_the_lag_of_an_idle_follower_begins_with_the_next_entry() -> None:
    """The first entry after a quiet night would be reported as hours old."""
    follower = PeerProgress("n1")
    follower.note_time(7, 0)
    follower.acknowledge(7)
    for now_ms in range(0, 1_000_000, 1000):
        follower.note_time(7, now_ms)
    assert follower.lag_ms(8, now_ms) <= 1000


def test_the_lag_of_a_new_leader_begins_with_its_term() -> None:
    """A follower that a new leader has not reached yet would have no lag, or an infinite one."""
    follower = PeerProgress("n1")
    assert follower.lag_ms(7, 5000) == 0
    follower.note_time(7, 5000)
    follower.note_time(7, 9000)
    assert follower.lag_ms(7, 9000) == 4000
