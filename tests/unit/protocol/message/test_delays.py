"""Delay levels: which level waits how long, and which one an application should ask for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rocketpy.errors import ConfigInvalid, MessageInvalid
from rocketpy.protocol.message.delays import DelayLevels


def test_delay_levels_are_clamped_as_in_4_6_0() -> None:
    """A message with too high a level would never be delivered."""
    levels = DelayLevels("1s 5m 2h")
    assert [levels.due_time(level, 1000) for level in (0, 1, 3, 99)] == [None, 2000, 7_201_000, 7_201_000]


def test_the_default_table_is_rocketmqs() -> None:
    """A message would be delivered hours too early or too late (MessageStoreConfig.messageDelayLevel)."""
    seconds = [1, 5, 10, 30, *(60 * minutes for minutes in range(1, 11)), 1200, 1800, 3600, 7200]
    assert DelayLevels().delays_ms == [1000 * number for number in seconds]


@pytest.mark.parametrize(
    ("delay", "level"),
    [
        (timedelta(0), 0),
        (timedelta(microseconds=1), 1),
        (timedelta(seconds=1), 1),
        (timedelta(seconds=1, microseconds=1), 2),
        (timedelta(minutes=3), 7),
        (timedelta(minutes=11), 15),
        (timedelta(hours=2), 18),
    ],
)
def test_the_level_is_never_shorter_than_the_delay(delay: timedelta, level: int) -> None:
    """A reminder would be delivered too early, or later than with a shorter level."""
    assert DelayLevels().level_for(delay) == level


def test_levels_need_not_grow() -> None:
    """A table that an operator extended at its end would give needlessly long delays."""
    levels = DelayLevels("10s 2d 1s 20s")
    wanted = [timedelta(seconds=number) for number in (1, 2, 11, 21)]
    assert [levels.level_for(delay) for delay in wanted] == [3, 1, 4, 2]


@pytest.mark.parametrize(
    ("text", "delay", "said"),
    [
        (
            "1s 2h",
            timedelta(hours=2, microseconds=1),
            "delay is 2:00:00.000001; the table has at most 7200 s",
        ),
        ("", timedelta(seconds=1), "the table has at most 0 s"),
        ("1s", timedelta(seconds=-1), "must not be negative"),
        ("1s", 5, "delay is 5; it must be a timedelta"),
    ],
)
def test_delays_that_no_level_has(text: str, delay: Any, said: str) -> None:
    """A message would be delivered much too early, without an error."""
    with pytest.raises(MessageInvalid, match=said):
        DelayLevels(text).level_for(delay)


@pytest.mark.parametrize("text", ["5x", "1s,5s", "-1s", "1.5s", "s", "1s 1000000000d"])
def test_an_invalid_table_is_rejected(text: str) -> None:
    """The application would compute levels from a table that its broker refuses."""
    with pytest.raises(ConfigInvalid, match="messageDelayLevel has"):
        DelayLevels(text)
