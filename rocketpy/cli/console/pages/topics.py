"""Pages of topics: the list, and one topic."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rocketpy.cli.console.pages.base import Context, required
from rocketpy.cli.console.views import page_of


class TopicPages:
    """Topics.

    The list comes from the name servers in one piece, so that searching and paging cost nothing at brokers.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/topics", self.topics), Route("/topic", self.topic)]

    async def topics(self, request: Request) -> Response:
        """List topics whose names contain a text."""
        query = request.query_params
        search = query.get("search", "").strip()
        system = query.get("system", "")
        names = await self._context.admin.topics.list(include_system=bool(system))
        found = [name for name in names if search.lower() in name.lower()]
        page = page_of(found, query.get("page", ""))
        values = {"page": page, "search": search, "system": system}
        return self._context.views.page("topics.html", values)

    async def topic(self, request: Request) -> Response:
        """Show a topic: its rate, queues with offsets, groups, and settings on each broker."""
        topic = await self._context.admin.topics.describe(required(request.query_params, "name"))
        return self._context.views.page("topic.html", {"topic": topic})
