"""What the log tells about lost tables."""

from __future__ import annotations

import pytest

from rocketpy_broker.services.metadata.lost_state import group_of_retries


@pytest.mark.parametrize(
    ("topic", "group"),
    [
        ("%RETRY%g", "g"),
        ("%RETRY%a_b", "a_b"),
        ("%RETRY%a_T", "a"),
        ("%RETRY%a+T", "a"),
        ("%RETRY%a_b_T_1", "a_b"),
        ("%RETRY%_T", "_T"),
        ("%RETRY%a_", "a_"),
    ],
)
def test_the_group_of_a_retry_topic(topic: str, group: str) -> None:
    """Retry topics of pops have the name of their topic, too."""
    assert group_of_retries(topic, {"T", "T_1"}) == group
