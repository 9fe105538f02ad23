"""Times and delays of messages: the arguments of Message, and what MessageExt shows of them."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy import Message
from rocketpy.errors import MessageInvalid
from rocketpy.message.timers import delay_of, deliver_at_of

BERLIN = ZoneInfo("Europe/Berlin")
NINE = datetime(2026, 12, 1, 9, tzinfo=BERLIN)


def message(**arguments: Any) -> Message:
    return Message("T", b"x", **arguments)


@pytest.mark.parametrize(
    ("arguments", "properties"),
    [
        ({"deliver_at": NINE}, {"TIMER_DELIVER_MS": "1796112000000"}),
        ({"deliver_at": datetime(2026, 12, 1, 8, tzinfo=UTC)}, {"TIMER_DELIVER_MS": "1796112000000"}),
        # In the hour that the end of summer time repeats, `fold` says which of both.
        ({"deliver_at": datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)}, {"TIMER_DELIVER_MS": "1792888200000"}),
        (
            {"deliver_at": datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN)},
            {"TIMER_DELIVER_MS": "1792891800000"},
        ),
        ({"deliver_at": NINE.replace(microsecond=1)}, {"TIMER_DELIVER_MS": "1796112000001"}),
        ({"deliver_at": datetime(1960, 1, 1, tzinfo=UTC)}, {"TIMER_DELIVER_MS": "0"}),
        (
            {"deliver_at": datetime.max.replace(tzinfo=timezone(-timedelta(hours=23)))},
            {"TIMER_DELIVER_MS": "253402383600000"},
        ),
        ({"deliver_at": datetime.min.replace(tzinfo=BERLIN)}, {"TIMER_DELIVER_MS": "0"}),
        ({"delay": timedelta(minutes=15)}, {"TIMER_DELAY_MS": "900000"}),
        ({"delay": timedelta(microseconds=1)}, {"TIMER_DELAY_MS": "1"}),
        ({"delay": timedelta(0)}, {}),
        ({"delay": timedelta.max}, {"TIMER_DELAY_MS": "86400000000000000"}),
    ],
)
def test_the_property(arguments: dict[str, Any], properties: dict[str, str]) -> None:
    """A consumer would get the message at another time; never early, so it is rounded up."""
    made = message(**arguments, properties={"a": "b"})
    assert made.properties == {"a": "b", **properties}
    for same in (copy.copy(made), pickle.loads(pickle.dumps(made))):  # noqa: S301 - our own
        assert (same, same.deliver_at, same.delay) == (made, made.deliver_at, made.delay)


def test_what_a_message_shows() -> None:
    """A caller could not see what will be sent."""
    assert message(deliver_at=NINE).deliver_at == NINE
    assert message(deliver_at=NINE).delay is None
    assert message(delay=timedelta(seconds=1.5)).delay == timedelta(seconds=1.5)
    assert message(delay=timedelta(seconds=1.5)).deliver_at is None
    assert (message(delay_level=3).deliver_at, message(delay_level=3).delay) == (None, None)
    assert message(properties={"TIMER_DELAY_SEC": "90"}).delay == timedelta(seconds=90)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"deliver_at": NINE.replace(tzinfo=None)},
            r"2026-12-01 09:00:00 without a time zone; .*deliver_at\.replace\(tzinfo=ZoneInfo\(",
        ),
        (
            {"deliver_at": date(2026, 12, 1)},
            r"deliver_at is datetime.date.*must be a datetime with a time zone",
        ),
        ({"deliver_at": 1796112000000}, "must be a datetime with a time zone"),
        ({"deliver_at": "2026-12-01T09:00Z"}, "must be a datetime with a time zone"),
        ({"delay": 5}, "delay is 5; it must be a timedelta"),
        ({"delay": timedelta(-1)}, "must not be negative"),
        ({"delay": timedelta(1), "deliver_at": NINE}, "deliver_at, delay and delay_level exclude each other"),
        ({"delay": timedelta(0), "delay_level": 1}, "deliver_at, delay and delay_level exclude each other"),
        ({"deliver_at": NINE, "delay_level": 1}, "deliver_at, delay and delay_level exclude each other"),
        (
            {"deliver_at": NINE, "properties": {"TIMER_DELAY_SEC": "1"}},
            "deliver_at and property TIMER_DELAY_SEC; set one",
        ),
        (
            {"delay": timedelta(1), "properties": {"TIMER_DELIVER_MS": "1"}},
            "delay and property TIMER_DELIVER_MS; set one",
        ),
    ],
)
def test_a_time_that_is_not_clear_is_refused(arguments: dict[str, Any], words: str) -> None:
    """The message would come at a time that the sender does not mean."""
    with pytest.raises(MessageInvalid, match=words):
        message(**arguments)


@given(st.datetimes(timezones=st.timezones()))
def test_a_time_is_never_early(deliver_at: datetime) -> None:
    """Rounding, time zones and summer time must not deliver it too early."""
    shown = message(deliver_at=deliver_at).deliver_at
    earliest = deliver_at.astimezone(UTC) if deliver_at.year > 1970 else datetime(1970, 1, 1, tzinfo=UTC)
    if shown is None:  # rounded up to the year 10000
        assert deliver_at.year == 9999
    elif deliver_at.year > 1970:
        assert timedelta(0) <= shown - earliest < timedelta(milliseconds=1)


@pytest.mark.parametrize("text", ["", "soon", "-1", "9" * 18, "9" * 30, "1.5", "٣"])
@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
def test_properties_of_others_never_raise(name: str, text: str) -> None:
    """A received message may have any text."""
    assert deliver_at_of({name: text}, 1) is None
    assert name != "TIMER_DELAY_SEC" or delay_of({name: text}) is None
