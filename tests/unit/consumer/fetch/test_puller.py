"""Where a puller continues after an illegal offset, and how long it pauses."""

from __future__ import annotations

import pytest

from rocketpy.consumer.fetch.puller import OffsetMoveBackoff, next_offset_after_illegal
from rocketpy.protocol.bodies import MessageQueue

QUEUE = MessageQueue("T", "b", 0)


@pytest.mark.parametrize(
    ("requested", "suggested", "first", "end", "expected"),
    [(3, 10, 10, 20, 10), (30, 20, 10, 20, 20), (30, 0, 0, 20, 20), (30, 10, 10, 20, 20)],
    ids=["expired", "beyond the end", "queue begins at 0", "suggests the first"],
)
def test_an_offset_beyond_the_end_never_leads_back(
    requested: int, suggested: int, first: int, end: int, expected: int
) -> None:
    """A consumer would process all messages of a queue a second time."""
    assert next_offset_after_illegal(requested, suggested, first, end) == expected


def test_repeated_resets_of_a_queue_cause_a_pause() -> None:
    """A broker that contradicts itself would be flooded with requests."""
    backoff = OffsetMoveBackoff()
    assert [backoff.pause_s(QUEUE, now_ms) for now_ms in (0, 100, 200, 300)] == [0.0, 0.1, 0.2, 0.4]
    assert backoff.pause_s(MessageQueue("T", "b", 1), 300) == 0.0
    assert backoff.pause_s(QUEUE, 20_000) == 0.0
