"""Pages of topics and producers: lists, one topic, and the form that sends a test message."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rocketpy.errors import ConfigInvalid
from rocketpy.message.message import Message
from rocketpy.protocol.java import trim
from rocketpy.protocol.message.properties import split_keys
from rocketpy_cli.console.guard import form_of
from rocketpy_cli.console.pages.base import Pages, required
from rocketpy_cli.console.views import link, page_of
from rocketpy_cli.positions import parse_delay, parse_zoned_time

_FIELDS = ("topic", "tags", "keys", "delivery", "body")


class TopicPages(Pages):
    """Topics.

    Name servers return all names in one response, so search and pages need no request to brokers.
    """

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


class SendPages(Pages):
    """The online producers of a group, and the form that sends a test message."""

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/producers", self.producers),
            Route("/send", self.form, methods=["GET"]),
            Route("/send", self.send, methods=["POST"]),
        ]

    async def producers(self, request: Request) -> Response:
        """List the producers of a group that are online. Brokers have no list of producer groups."""
        group = request.query_params.get("group", "").strip()
        found = await self._context.admin.brokers.producers(group) if group else None
        return self._context.views.page("producers.html", {"group": group, "found": found})

    async def form(self, request: Request) -> Response:
        """Show the form for a test message."""
        return self._page(request.query_params, confirm=False)

    async def send(self, request: Request) -> Response:
        """Ask for confirmation; after it, send the message and show it."""
        form, producer = form_of(request), self._context.producer
        message = _message(form)
        if form.get("step") != "confirmed":
            return self._page(form, confirm=form.get("step") != "edit")
        if producer is None:
            raise ConfigInvalid("this console sends no messages: start it with --allow-changes")
        sent = await producer.send(message)
        url = link("/message", id=sent.offset_message_id, done="sent")
        return RedirectResponse(url, HTTPStatus.SEE_OTHER)

    def _page(self, given: Mapping[str, str], *, confirm: bool) -> Response:
        values = {name: given.get(name, "") for name in _FIELDS}
        return self._context.views.page("send.html", values | {"confirm": confirm})


def _message(form: Mapping[str, str]) -> Message:
    # Browsers send all line ends as CR LF.
    body = form.get("body", "").replace("\r\n", "\n").encode()
    delivery = trim(form.get("delivery", ""))
    is_delay = delivery[:-1].isdecimal()
    return Message(
        required(form, "topic"),
        body,
        tags=trim(form.get("tags", "")) or None,
        keys=split_keys(form.get("keys")),
        deliver_at=parse_zoned_time(delivery) if delivery and not is_delay else None,
        delay=parse_delay(delivery) if is_delay else None,
    )
