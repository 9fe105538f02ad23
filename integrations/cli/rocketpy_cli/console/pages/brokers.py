"""Pages of one broker: its state and settings, and whether producers use it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rocketpy.admin import BrokerSummary, DrainPlan
from rocketpy.errors import ConfigInvalid, RocketError, RouteNotFound
from rocketpy_cli.console.guard import form_of
from rocketpy_cli.console.pages.base import Pages, required
from rocketpy_cli.console.views import link, whole_number

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
        # The address comes from the name server, so that a request cannot make the console connect elsewhere.
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
        """Show the effect of hiding or restoring a broker. With changes allowed, the page confirms it."""
        name, action = _name_and_action(request.query_params)
        broker = await self._find(name, 0)
        plan, problem = await self._plan(name)
        values = {"broker": broker, "plan": plan, "problem": problem, "to": action}
        return self._context.views.page("writes.html", values)

    async def change(self, request: Request) -> Response:
        """Hide a broker from producers, or let them use it again."""
        name, action = _name_and_action(form_of(request))
        brokers = self._context.admin.brokers
        await self._find(name, 0)  # raises for an unknown broker, which name servers would accept
        if action == _HIDE:
            await brokers.wipe_write_permission(name)
        else:
            await brokers.add_write_permission(name)
        return RedirectResponse(link("/broker", name=name, done=action), HTTPStatus.SEE_OTHER)

    async def _plan(self, name: str) -> tuple[DrainPlan | None, str]:
        """Return the effect of hiding a broker. If it is unknown, return None and the error."""
        try:
            return await self._context.admin.brokers.plan_drain(name), ""
        except RocketError as error:
            return None, str(error)

    async def _find(self, name: str, broker_id: int) -> BrokerSummary:
        """Return a broker that a name server knows. Raises RouteNotFound."""
        known = await self._context.admin.brokers.list()
        for broker in known:
            if (broker.name, broker.broker_id) == (name, broker_id):
                return broker
        names = ", ".join(sorted({broker.name for broker in known})) or "none"
        raise RouteNotFound(f"the name server knows no broker {name} with id {broker_id}; it knows: {names}")


def _name_and_action(values: Mapping[str, str]) -> tuple[str, str]:
    name, action = required(values, "name"), required(values, "to")
    if action not in {_HIDE, _RESTORE}:
        raise ConfigInvalid(
            f"unknown change of the write permission {action!r}; choose {_HIDE} or {_RESTORE}"
        )
    return name, action
