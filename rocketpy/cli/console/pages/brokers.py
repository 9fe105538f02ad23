"""Pages of one broker: its state and settings, and whether producers use it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rocketpy.admin import BrokerSummary, DrainPlan
from rocketpy.cli.console.guard import form_of
from rocketpy.cli.console.pages.base import Pages, required
from rocketpy.cli.console.views import link, whole_number
from rocketpy.errors import ConfigInvalid, RocketError, RouteNotFound

_HIDE = "hide"
_RESTORE = "restore"


class BrokerPages(Pages):
    """One broker, and its write permission at the name servers."""

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/broker", self.broker),
            Route("/writes", self.preview, methods=["GET"]),
            Route("/writes", self.change, methods=["POST"]),
        ]

    async def broker(self, request: Request) -> Response:
        """Show the state and the settings of a broker."""
        query, brokers = request.query_params, self._context.admin.brokers
        broker_id = whole_number("id", query.get("id", "") or "0")
        # Looked up, so that the console connects to no address that a request names.
        summary = await self._find(required(query, "name"), broker_id)
        if summary.error is not None:
            raise summary.error
        state, config = await asyncio.gather(
            brokers.runtime(summary.address), brokers.config(summary.address)
        )
        plan, problem = await self._plan(summary.name) if broker_id == 0 else (None, "")
        values = {
            "broker": summary,
            "state": dict(sorted(state.items())),
            "config": dict(sorted(config.items())),
        }
        notice = query.get("done", "")
        return self._context.views.page(
            "broker.html", values | {"plan": plan, "problem": problem, "notice": notice}
        )

    async def preview(self, request: Request) -> Response:
        """Show what hiding or restoring a broker changes; with changes allowed, this page confirms it."""
        name, to = _wanted(request.query_params)
        broker = await self._find(name, 0)
        plan, problem = await self._plan(name)
        values = {"broker": broker, "plan": plan, "problem": problem, "to": to}
        return self._context.views.page("writes.html", values)

    async def change(self, request: Request) -> Response:
        """Hide a broker from producers, or let them use it again."""
        name, to = _wanted(form_of(request))
        brokers = self._context.admin.brokers
        await self._find(name, 0)  # name servers accept any name
        await (brokers.wipe_write_permission(name) if to == _HIDE else brokers.add_write_permission(name))
        return RedirectResponse(link("/broker", name=name, done=to), HTTPStatus.SEE_OTHER)

    async def _plan(self, name: str) -> tuple[DrainPlan | None, str]:
        """Return what hiding a broker changes, or why that is unknown: another broker is down."""
        try:
            return await self._context.admin.brokers.plan_drain(name), ""
        except RocketError as error:
            return None, str(error)

    async def _find(self, name: str, broker_id: int) -> BrokerSummary:
        """Return a broker that a name server knows. Raises RouteNotFound."""
        known = await self._context.admin.brokers.list()
        for one in known:
            if (one.name, one.broker_id) == (name, broker_id):
                return one
        names = ", ".join(sorted({one.name for one in known})) or "none"
        raise RouteNotFound(f"the name server knows no broker {name} with id {broker_id}; it knows: {names}")


def _wanted(values: Mapping[str, str]) -> tuple[str, str]:
    name, to = required(values, "name"), required(values, "to")
    if to not in {_HIDE, _RESTORE}:
        raise ConfigInvalid(f"the write permission cannot be changed to {to!r}; choose {_HIDE} or {_RESTORE}")
    return name, to
