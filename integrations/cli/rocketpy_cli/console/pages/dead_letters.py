"""Pages of dead letters: the groups, the dead letters of a group, and re-sending one or all of them."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rocketpy.admin import DeadLetters
from rocketpy.errors import BrokerError, ConfigInvalid
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX
from rocketpy_cli.console.guard import form_of
from rocketpy_cli.console.pages.base import Pages, queue_of, required
from rocketpy_cli.console.sampler import gather_bounded
from rocketpy_cli.console.views import PAGE_SIZE, link, page_of, whole_number

_NOT_READABLE: Final = (
    "This broker keeps dead letters in a topic that cannot be read, as brokers before RocketMQ 4.9 do. A "
    "console with --allow-changes, or `rocketpy dlq read`, adds the read permission."
)


class DeadLetterPages(Pages):
    """Dead letters."""

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/dead-letters", self.dead_letters),
            Route("/resend", self.confirm, methods=["GET"]),
            Route("/resend", self.resend, methods=["POST"]),
            Route("/resend-all", self.confirm_all, methods=["GET"]),
            Route("/resend-all", self.resend_all, methods=["POST"]),
        ]

    async def dead_letters(self, request: Request) -> Response:
        """List the groups with a dead-letter topic, or the dead letters of one group."""
        query, dead_letters = request.query_params, self._context.admin.dead_letters
        group = query.get("group", "").strip()
        if not group:
            page = page_of(await dead_letters.groups(), query.get("page", ""))
            counts = await gather_bounded(dead_letters.count, page.items)
            return self._context.views.page("dead_letter_groups.html", {"page": page, "counts": counts})
        offsets = _decode(group, query.get("from", ""))
        changes = self._context.resends is not None
        found, problem = DeadLetters([], {}), ""
        try:
            found = await dead_letters.fetch(group, PAGE_SIZE, offsets=offsets, make_readable=changes)
        except BrokerError as error:
            if changes or error.code != ResponseCode.NO_PERMISSION:
                raise
            problem = _NOT_READABLE
        after = None
        if len(found.messages) == PAGE_SIZE:
            after = link("/dead-letters", group=group, **{"from": _encode(found.next_offsets)})
        values = {"group": group, "messages": found.messages, "after": after, "notice": query.get("done", "")}
        return self._context.views.page("dead_letters.html", values | {"problem": problem})

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

    async def confirm_all(self, request: Request) -> Response:
        """Ask before all dead letters of a group are sent again; show the progress of the last resend."""
        group, resends = required(request.query_params, "group"), self._context.resends
        count = await self._context.admin.dead_letters.count(group)
        last = None if resends is None else resends.last.get(group)
        return self._context.views.page("resend_all.html", {"group": group, "count": count, "last": last})

    async def resend_all(self, request: Request) -> Response:
        """Start, stop or resume the resend of all dead letters of a group."""
        form, resends = form_of(request), self._context.resends
        group, step = required(form, "group"), required(form, "step")
        if resends is None:
            raise ConfigInvalid("this console sends no dead letters: start it with --allow-changes")
        if step == "stop":
            await resends.stop(group)
        elif step in {"start", "resume"}:
            await resends.start(group, resume=step == "resume")
        else:
            raise ConfigInvalid(f"unknown step {step!r} of a resend; choose start, stop or resume")
        return RedirectResponse(link("/resend-all", group=group), HTTPStatus.SEE_OTHER)

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
