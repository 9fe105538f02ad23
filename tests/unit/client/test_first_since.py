"""A search by time must skip no message, whichever broker answers it."""

from __future__ import annotations

import pytest

from rocketpy.client.broker_api import first_since
from rocketpy.protocol.codes import VERSION_4_6_0, VERSION_5_1_1, version_name
from rocketpy.protocol.headers import LOWER_BOUNDARY, SearchOffsetResponseHeader
from rocketpy.protocol.remoting.command import Command

TIMES = [10, 20, 20, 20, 20, 23, 30]
"""Store times of the messages of a queue."""


class Broker:
    """Answers searches as a broker of a version does. boundary: as rocketpy's broker sends it."""

    def __init__(self, version: int, boundary: str | None = None) -> None:
        self.version = version
        self.boundary = boundary
        self.asked: list[int] = []

    async def search(self, timestamp: int) -> Command:
        self.asked.append(timestamp)
        header = SearchOffsetResponseHeader(offset=self._offset(timestamp), boundary_type=self.boundary)
        return Command(0, version=self.version, header=header)

    def _offset(self, timestamp: int) -> int:
        first = sum(time < timestamp for time in TIMES)
        if self.version >= VERSION_5_1_1 or self.boundary:
            return first
        if timestamp in TIMES:  # of several with an equal time, any
            return first + TIMES.count(timestamp) // 2
        around = [at for at in (first - 1, first) if 0 <= at < len(TIMES)]
        return min(around, key=lambda at: abs(TIMES[at] - timestamp))


@pytest.mark.parametrize("timestamp", range(32))
@pytest.mark.parametrize(
    ("broker", "is_exact"),
    [
        (Broker(VERSION_4_6_0), False),
        (Broker(VERSION_5_1_1 - 1), False),
        (Broker(VERSION_5_1_1), True),
        (Broker(VERSION_4_6_0, LOWER_BOUNDARY), True),
    ],
)
async def test_no_message_is_skipped(timestamp: int, broker: Broker, is_exact: bool) -> None:
    """A consumer would skip messages that were stored at the given time."""
    expected = sum(time < timestamp for time in TIMES)
    offset, time_to_send = await first_since(broker.search, timestamp)
    assert offset == expected if is_exact else offset <= expected
    # The broker itself searches when it notifies the members of a group; -1 means the end of the queue.
    assert broker._offset(time_to_send) == offset
    assert time_to_send >= 0


async def test_a_broker_that_finds_the_first_message_is_asked_once() -> None:
    """Each search would take two requests."""
    broker = Broker(VERSION_4_6_0, LOWER_BOUNDARY)
    await first_since(broker.search, 20)
    assert broker.asked == [20]


def test_the_version_is_that_of_the_release() -> None:
    """Brokers of 5.1.0, which search as 4.6.0 does, would be trusted."""
    assert version_name(VERSION_5_1_1) == "5.1.1"
