"""Pages of consumer groups: the list with lag, one group, and the reset of offsets."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rocketpy.admin import ResetTo
from rocketpy.errors import ConfigInvalid
from rocketpy_cli.console.charts import draw
from rocketpy_cli.console.guard import form_of
from rocketpy_cli.console.pages.base import Pages, required
from rocketpy_cli.console.views import link, page_of, parse_time, whole_number


class GroupPages(Pages):
    """Consumer groups."""

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/groups", self.groups),
            Route("/group", self.group),
            Route("/reset", self.preview, methods=["GET"]),
            Route("/reset", self.reset, methods=["POST"]),
        ]

    async def groups(self, request: Request) -> Response:
        """List groups whose names contain a text, with their lag."""
        query = request.query_params
        search = query.get("search", "").strip()
        found = [
            group for group in await self._context.admin.groups.list() if search.lower() in group.name.lower()
        ]
        page = page_of(found, query.get("page", ""))
        names = [group.name for group in page.items]
        self._context.sampler.watch(names)
        lags = await self._context.sampler.current_lags(names)
        return self._context.views.page("groups.html", {"page": page, "search": search, "lags": lags})

    async def group(self, request: Request) -> Response:
        """Show a group: lag of each queue, members, and lag over time."""
        context, name = self._context, required(request.query_params, "name")
        groups = context.admin.groups
        lag = await groups.lag(name, with_clients=True)
        members, conflicts = await groups.members(name), await groups.conflicts(name)
        if lag.queues or members:
            context.sampler.watch([name])
        chart = draw("Lag over time, in messages", {"lag": context.sampler.lags.get(name, ())})
        topics = sorted({queue.topic for queue in lag.queues})
        values = {"name": name, "lag": lag, "members": members, "conflicts": conflicts, "history": chart}
        values |= {"topics": topics, "notice": request.query_params.get("done", "")}
        return context.views.page("group.html", values)

    async def preview(self, request: Request) -> Response:
        """Show what a reset would change. With changes allowed, the page confirms it."""
        query = request.query_params
        group, topic = required(query, "group"), required(query, "topic")
        values = {"group": group, "topic": topic, "to": query.get("to", ""), "value": query.get("value", "")}
        changes = None
        if values["to"]:
            changes = await self._context.admin.groups.reset(group, topic, _target(query), dry_run=True)
        return self._context.views.page("reset.html", values | {"changes": changes})

    async def reset(self, request: Request) -> Response:
        """Reset the offsets."""
        form = form_of(request)
        group = required(form, "group")
        await self._context.admin.groups.reset(group, required(form, "topic"), _target(form))
        return RedirectResponse(link("/group", name=group, done="reset"), HTTPStatus.SEE_OTHER)


def _target(values: Mapping[str, str]) -> ResetTo:
    to, value = required(values, "to"), values.get("value", "").strip()
    if to == "beginning":
        return ResetTo.beginning()
    if to == "end":
        return ResetTo.end()
    if to == "time":
        return ResetTo.time(parse_time("the time", value))
    if to == "offset":
        return ResetTo.offset(whole_number("the offset", value))
    raise ConfigInvalid(f"offsets cannot be reset to {to!r}; choose beginning, end, time or offset")
