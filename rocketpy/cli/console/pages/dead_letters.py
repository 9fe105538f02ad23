"""Pages of dead letters: the groups that have some, those of a group, and sending one again."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rocketpy.cli.console.guard import form_of
from rocketpy.cli.console.pages.base import Context, queue_of, required
from rocketpy.cli.console.views import PAGE_SIZE, link, whole_number
from rocketpy.errors import ConfigInvalid
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import DLQ_TOPIC_PREFIX, MessageQueue


class DeadLetterPages:
    """Dead letters."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/dead-letters", self.dead_letters),
            Route("/resend", self.confirm, methods=["GET"]),
            Route("/resend", self.resend, methods=["POST"]),
        ]

    async def dead_letters(self, request: Request) -> Response:
        """List the groups with dead letters, or the dead letters of one."""
        query, dead_letters = request.query_params, self._context.admin.dead_letters
        group = query.get("group", "").strip()
        if not group:
            groups = await dead_letters.groups()
            return self._context.views.page("dead_letter_groups.html", {"groups": groups})
        offsets = _decode(group, query.get("from", ""))
        found = await dead_letters.fetch(group, PAGE_SIZE, offsets=offsets)
        after = None
        if len(found.messages) == PAGE_SIZE:
            after = link("/dead-letters", group=group, **{"from": _encode(found.next_offsets)})
        values = {"group": group, "messages": found.messages, "after": after, "notice": query.get("done", "")}
        return self._context.views.page("dead_letters.html", values)

    async def confirm(self, request: Request) -> Response:
        """Ask before a dead letter is sent again."""
        query = request.query_params
        values = {"group": required(query, "group"), "message": await self._message(query)}
        return self._context.views.page("resend.html", values)

    async def resend(self, request: Request) -> Response:
        """Send a dead letter to its group again."""
        form = form_of(request)
        group = required(form, "group")
        await self._context.admin.dead_letters.resend(await self._message(form))
        return RedirectResponse(link("/dead-letters", group=group, done="resent"), HTTPStatus.SEE_OTHER)

    async def _message(self, values: Mapping[str, str]) -> MessageExt:
        queue = queue_of(values, DLQ_TOPIC_PREFIX + required(values, "group"))
        offset = whole_number("offset", required(values, "offset"))
        return await self._context.admin.messages.by_offset(queue, offset)


def _encode(offsets: Mapping[MessageQueue, int]) -> str:
    return " ".join(f"{queue.broker_name}/{queue.queue_id}/{offset}" for queue, offset in offsets.items())


def _decode(group: str, text: str) -> dict[MessageQueue, int]:
    """Return what `_encode` has encoded. Raises ConfigInvalid."""
    offsets = {}
    for part in text.split():
        fields = part.rsplit("/", 2)
        if len(fields) != 3:
            raise ConfigInvalid(f"from has {part!r}; broker/queue/offset is expected")
        queue_id, offset = (whole_number("from", field) for field in fields[1:])
        offsets[MessageQueue(DLQ_TOPIC_PREFIX + group, fields[0], queue_id)] = offset
    return offsets
