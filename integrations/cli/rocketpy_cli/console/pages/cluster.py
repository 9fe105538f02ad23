"""The first page, with brokers and rates, and the page about replication."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rocketpy.admin import BrokerSummary
from rocketpy.errors import RocketError
from rocketpy_cli.console.charts import draw
from rocketpy_cli.console.pages.base import Pages

_TODAY: Final = "msgPutTotalTodayNow"
_MORNING: Final = "msgPutTotalTodayMorning"


@dataclass(frozen=True)
class _Broker:
    """A broker and its runtime state, which is empty if it did not respond."""

    summary: BrokerSummary
    state: Mapping[str, str]

    @property
    def disk(self) -> float | None:
        """How full the disk of its log is, from 0 to 1."""
        ratio = _parse_number(self.state.get("commitLogDiskRatio"))
        return None if ratio is None or ratio < 0 else ratio

    @property
    def stored_today(self) -> int | None:
        """Messages stored since midnight."""
        now, morning = _parse_number(self.state.get(_TODAY)), _parse_number(self.state.get(_MORNING))
        return None if now is None or morning is None else int(now - morning)

    @property
    def log_end(self) -> int | None:
        """The end of its log, in bytes."""
        end = _parse_number(self.state.get("commitLogMaxOffset"))
        return None if end is None else int(end)

    @property
    def slaves(self) -> list[dict[str, Any]]:
        """The connected slaves, if the broker reports them."""
        return _decoded(self.state.get("haSlaves"), list[dict[str, Any]]) or []

    @property
    def lags(self) -> dict[str, int]:
        """The lag of each peer of a DLedger leader in entries, if the broker reports it."""
        return _decoded(self.state.get("dledgerLags"), dict[str, int]) or {}


class ClusterPages(Pages):
    """Brokers and replication."""

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/", self.cluster), Route("/replication", self.replication)]

    async def cluster(self, request: Request) -> Response:
        """Show the brokers, their rates and their disks."""
        rates = self._context.sampler.rates
        brokers = await self._brokers()
        charts = [
            draw(title, {name: series for (name, direction), series in rates.items() if direction == wanted})
            for title, wanted in (("Messages stored per second", "in"), ("Messages read per second", "out"))
        ]
        return self._context.views.page("cluster.html", {"brokers": brokers, "charts": charts})

    async def replication(self, request: Request) -> Response:
        """Show how far slaves and DLedger peers are behind."""
        brokers = await self._brokers()
        masters = {broker.summary.name: broker for broker in brokers if broker.summary.broker_id == 0}
        behind: dict[str, int | None] = {}
        for broker in brokers:
            master = masters.get(broker.summary.name)
            if master is None or master.log_end is None or broker.log_end is None:
                behind[broker.summary.address] = None
            else:
                behind[broker.summary.address] = max(0, master.log_end - broker.log_end)
        return self._context.views.page("replication.html", {"brokers": brokers, "behind": behind})

    async def _brokers(self) -> list[_Broker]:
        found = await self._context.admin.brokers.list()
        return list(await asyncio.gather(*map(self._broker, found)))

    async def _broker(self, summary: BrokerSummary) -> _Broker:
        if summary.error is not None:
            return _Broker(summary, {})
        try:
            return _Broker(summary, await self._context.admin.brokers.runtime(summary.address))
        except RocketError:  # it has stopped since
            return _Broker(summary, {})


def _parse_number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _decoded(text: str | None, kind: Any) -> Any:
    try:
        return None if not text else msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError:  # another version's format
        return None
