"""Positions from which to read: ``--from begin|end|OFFSET|-COUNT|TIME|AGE``."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, NamedTuple

from rocketpy.consumer import PullConsumer
from rocketpy.consumer.config import ConsumeFrom
from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import MessageQueue

_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([0-9]{1,9})([smhd])")


class Kind(Enum):
    """What a position refers to."""

    BEGIN = "begin"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


class Position(NamedTuple):
    """A position in every queue of a topic."""

    kind: Kind
    """What the position refers to."""
    number: int = 0
    """With OFFSET, an offset, or a negative count of messages before the end; with TIME, ms since 1970."""

    async def offset(self, consumer: PullConsumer, queue: MessageQueue) -> int:
        """Return the offset of this position; for a time, it may be lower. Raises RocketError."""
        if self.kind is Kind.END:
            return await consumer.max_offset(queue)
        if self.kind is Kind.TIME:
            return await consumer.search_offset(queue, self.number)
        first = await consumer.min_offset(queue)
        if self.kind is Kind.BEGIN:
            return first
        end = await consumer.max_offset(queue)
        return max(first, min(end, self.number if self.number >= 0 else end + self.number))

    def consume_from(self) -> tuple[ConsumeFrom, int | None]:
        """Return the settings for a group that has no offsets yet. Raises ConfigInvalid for an offset.

        Returns:
            Where to begin, and for a time, the time in ms since 1970.
        """
        if self.kind is Kind.TIME:
            return ConsumeFrom.TIMESTAMP, self.number
        if self.kind is Kind.OFFSET:
            raise ConfigInvalid(
                "a group begins at begin, end, an age or a time; to read from an offset, omit --group"
            )
        return (ConsumeFrom.FIRST_OFFSET if self.kind is Kind.BEGIN else ConsumeFrom.LAST_OFFSET), None


def parse_time(option: str, text: str) -> int:
    """Return the time of an option, in ms since 1970. Raises ConfigInvalid if `text` is not a time or age."""
    position = parse_position(text)
    if position.kind is not Kind.TIME:
        raise ConfigInvalid(f"{option} {text}: give an age such as 2h, or a time such as 2026-01-31T12:00")
    return position.number


def parse_delay(text: str) -> timedelta:
    """Return the delay that a user wrote, such as ``90s``. Raises ConfigInvalid."""
    if not (found := _DURATION.fullmatch(text)):
        hint = f"; a delay level is --delay-level {text}" if text.isdecimal() else ""
        raise ConfigInvalid(f"{text!r} is not a delay; write a number with s, m, h or d, such as 90s{hint}")
    return timedelta(milliseconds=int(found[1]) * _UNITS_MS[found[2]])


def parse_zoned_time(text: str) -> datetime:
    """Return the time that a user wrote in ISO 8601, with its zone. Raises ConfigInvalid."""
    try:
        time_ = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigInvalid(
            f"{text!r} is not a time; write one such as 2026-01-31T12:00+01:00, or 2026-01-31T11:00Z"
        ) from None
    if time_.tzinfo is None:
        raise ConfigInvalid(
            f"{text!r} has no time zone; add its offset, such as {text}+01:00, or {text}Z for UTC"
        )
    return time_


def parse_position(text: str) -> Position:
    """Return the position that a user wrote.

    Args:
        text: ``begin``, ``end``, an offset, ``-N`` for the last N messages of each queue, an age such as
            ``10m`` (s, m, h, d), or an ISO 8601 time such as ``2026-01-31T12:00``. A time without a zone is
            local.

    Raises:
        ConfigInvalid: It is none of these.
    """
    if text in ("begin", "end"):
        return Position(Kind(text))
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return Position(Kind.OFFSET, int(text))
    if age := _DURATION.fullmatch(text):
        now_ms = time.time_ns() // 1_000_000
        return Position(Kind.TIME, max(0, now_ms - int(age[1]) * _UNITS_MS[age[2]]))
    try:
        return Position(Kind.TIME, round(datetime.fromisoformat(text).timestamp() * 1000))
    except ValueError:
        raise ConfigInvalid(
            f"{text!r} is not a position; write begin, end, an offset, -100 for the last 100 messages of "
            "each queue, an age such as 10m, or a time such as 2026-01-31T12:00"
        ) from None
