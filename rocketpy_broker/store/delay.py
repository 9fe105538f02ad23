"""Delay levels: how long a message with DELAY=n waits in SCHEDULE_TOPIC_XXXX."""

from __future__ import annotations

import re

from rocketpy.errors import ConfigInvalid

__all__ = ["SCHEDULE_TOPIC", "DelayLevels", "parse_delay_levels"]

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d+)([smhd])")


def parse_delay_levels(text: str) -> list[int]:
    """Milliseconds of level 1, 2, … from messageDelayLevel, as in "1s 5s 2h". Raises ConfigInvalid."""
    delays = []
    for word in text.split():
        match = _LEVEL.fullmatch(word)
        if match is None:
            raise ConfigInvalid(f"messageDelayLevel has {word!r}; each level is a number and s, m, h or d")
        delays.append(int(match[1]) * _UNIT_MS[match[2]])
    return delays


class DelayLevels:
    """When a delayed record is due. Source: RocketMQ ScheduleMessageService."""

    def __init__(self, text: str) -> None:
        self.delays_ms = parse_delay_levels(text)

    @property
    def level_max(self) -> int:
        """The highest level; what asks for more gets this one."""
        return len(self.delays_ms)

    def due_time(self, level: int, store_timestamp: int) -> int | None:
        """Due time in ms of a record stored then with that level; None when the level means no delay."""
        level = min(level, self.level_max)
        return store_timestamp + self.delays_ms[level - 1] if level > 0 else None
