"""Sampler: collects rates and lag while the console runs, in series of bounded length.

Brokers only tell their present rates and offsets. A chart needs those of the last hour.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from rocketpy.admin import AdminClient
from rocketpy.errors import RocketError
from rocketpy.runtime.rate_limited_log import RateLimitedLog

limited_log: Final = RateLimitedLog(logging.getLogger("rocketpy.console"))

SAMPLES_MAX: Final = 360
"""Samples of a series: one hour, at the default interval of 10 s."""
GROUPS_MAX: Final = 200
"""Maximum number of groups whose lag is collected. In a larger cluster, these are the last viewed groups."""
CONCURRENT: Final = 16
"""Maximum number of concurrent requests for a list of groups."""


class Sample(NamedTuple):
    """A value at a time."""

    time_s: float
    """Seconds since 1970."""
    value: float


Series = deque[Sample]


class Sampler:
    """Samples the cluster every `interval_s` seconds."""

    def __init__(self, admin: AdminClient, interval_s: float) -> None:
        self.rates: Final[dict[tuple[str, str], Series]] = {}
        """Messages per second by (broker name and id, "in" or "out")."""
        self.lags: Final[OrderedDict[str, Series]] = OrderedDict()
        """Lag by group."""
        self.interval_s: Final = interval_s
        self._admin = admin

    async def run(self) -> None:
        """Collect each value once. While the cluster does not respond, the series have a gap."""
        try:
            await self.sample()
        except RocketError as error:
            limited_log.warning("sample", "rates and lag were not collected: %s", error)

    async def sample(self) -> None:
        """Collect each value once. Raises RocketError."""
        for broker in await self._admin.brokers.list():
            for direction, rate in (("in", broker.in_per_second), ("out", broker.out_per_second)):
                if rate is not None:
                    key = (f"{broker.name}:{broker.broker_id}", direction)
                    self.rates.setdefault(key, _series()).append(Sample(time.time(), rate))
        groups = [group.name for group in await self._admin.groups.list()]
        for gone in self.lags.keys() - set(groups):
            del self.lags[gone]
        if len(groups) <= GROUPS_MAX:
            self.watch(groups)
        await self.current_lags(list(self.lags))

    def watch(self, groups: Iterable[str]) -> None:
        """Collect the lag of these groups from now on. Beyond the limit, drop the least recently viewed."""
        for group in groups:
            self.lags.setdefault(group, _series())
            self.lags.move_to_end(group)
        while len(self.lags) > GROUPS_MAX:
            self.lags.popitem(last=False)

    async def current_lags(self, groups: Sequence[str]) -> dict[str, int | RocketError]:
        """Return the lag of groups now, and add it to their series if they are watched."""

        async def lag(group: str) -> int:
            total = (await self._admin.groups.lag(group)).total
            if (series := self.lags.get(group)) is not None:
                series.append(Sample(time.time(), total))
            return total

        return await gather_bounded(lag, groups)


async def gather_bounded(
    fetch: Callable[[str], Awaitable[int]], names: Sequence[str]
) -> dict[str, int | RocketError]:
    """Return the result of each call, or its error, by name. At most CONCURRENT calls run at a time."""
    free = asyncio.Semaphore(CONCURRENT)

    async def one(name: str) -> int | RocketError:
        async with free:
            try:
                return await fetch(name)
            except RocketError as error:
                return error

    return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))


def _series() -> Series:
    return deque(maxlen=SAMPLES_MAX)
