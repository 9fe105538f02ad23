"""DelayLevels: how long a message with DELAY=n waits in SCHEDULE_TOPIC_XXXX.

Source: RocketMQ 4.6 MessageStoreConfig messageDelayLevel, ScheduleMessageService.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from rocketpy.errors import ConfigInvalid, MessageInvalid

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""The default table of brokers, without `messageDelayLevel`."""

_MS: Final = timedelta(milliseconds=1)
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DIGITS_MAX: Final = 9
"""Due times then fit into the 64 bits that units of consume queues have for them."""
_LEVEL: Final = re.compile(r"(\d+)([smhd])")


class DelayLevels:
    """A broker's table of delay levels.

        levels = DelayLevels()
        Message("Reminders", b"...", delay_level=levels.level_for(timedelta(minutes=3)))

    Args:
        text: The delays of level 1, 2, … as in `messageDelayLevel` of the broker, such as "1s 5s 2h"; the
            default table has 18 levels from 1 s to 2 h.

    Raises:
        ConfigInvalid: The text is malformed.
    """

    def __init__(self, text: str = DEFAULT_DELAY_LEVELS) -> None:
        self._text = " ".join(text.split())
        self.delays_ms: Final = _parse(text)

    def __repr__(self) -> str:
        return f"DelayLevels({self.delays_ms} ms)"

    def __str__(self) -> str:
        """Return the delays as in `messageDelayLevel`."""
        return self._text

    @property
    def level_max(self) -> int:
        """The last level. A broker treats higher levels as the last."""
        return len(self.delays_ms)

    def level_for(self, delay: timedelta) -> int:
        """Return the level with the shortest delay that is not below `delay`; 0 for a delay of 0.

        Args:
            delay: The wanted delay.

        Raises:
            MessageInvalid: The delay is negative, or longer than that of every level.
        """
        given: object = delay
        if not isinstance(given, timedelta):
            raise MessageInvalid(f"delay is {delay!r}; it must be a timedelta")
        if delay < timedelta(0):
            raise MessageInvalid(f"delay is {delay}; it must not be negative")
        if not delay:
            return 0
        enough = [ms for ms in self.delays_ms if ms >= delay / _MS]
        if not enough:
            longest_s = max(self.delays_ms, default=0) / 1000
            raise MessageInvalid(f"delay is {delay}; the table has at most {longest_s:g} s")
        return self.delays_ms.index(min(enough)) + 1

    def due_time(self, level: int, store_timestamp: int) -> int | None:
        """Return when a record with a level is due, in ms since 1970; None for level 0."""
        level = min(level, self.level_max)
        return store_timestamp + self.delays_ms[level - 1] if level > 0 else None


def _parse(text: str) -> list[int]:
    delays = []
    for word in text.split():
        match = _LEVEL.fullmatch(word)
        if match is None:
            raise ConfigInvalid(f"messageDelayLevel has {word!r}; each level is a number and s, m, h or d")
        if len(match[1]) > _DIGITS_MAX:
            raise ConfigInvalid(f"messageDelayLevel has {word!r}; a number has at most {_DIGITS_MAX} digits")
        delays.append(int(match[1]) * _UNIT_MS[match[2]])
    return delays
