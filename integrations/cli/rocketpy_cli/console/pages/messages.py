"""Pages of messages: the search, and one message."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Final, NamedTuple, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rocketpy.client.message_index import FOREVER_MS
from rocketpy.errors import BrokerError, ConfigInvalid, RocketError
from rocketpy.message.message import MessageExt
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.message.properties import KEY_SEPARATOR
from rocketpy_cli.console.pages.base import Pages, queue_of, required
from rocketpy_cli.console.views import PAGE_SIZE, link, parse_time, whole_number

_SHOWN_BYTES: Final = 64 << 10
"""How much of a body a page shows."""
_HEX_COLUMNS: Final = 16


class _SearchResult(NamedTuple):
    """The messages of one page."""

    messages: list[MessageExt]
    next_link: str | None = None
    """The link to the next page; None without one."""


class MessagePages(Pages):
    """Stored messages."""

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/messages", self.messages), Route("/message", self.message)]

    async def messages(self, request: Request) -> Response:
        """Search by key, id, time or offset."""
        query = request.query_params
        names = ("topic", "by", "value", "begin", "end", "broker", "queue", "offset")
        values: dict[str, object] = {name: query.get(name, "").strip() for name in names}
        found, problem = None, ""
        if query.get("by"):
            try:
                found = await self._search(query)
            except (ConfigInvalid, BrokerError) as error:
                if isinstance(error, BrokerError) and error.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
                problem = str(error)
        return self._context.views.page("messages.html", values | {"found": found, "problem": problem})

    async def _search(self, query: Mapping[str, str]) -> _SearchResult:
        messages, by = self._context.admin.messages, query["by"]
        if by == "id":
            return _SearchResult([await messages.by_id(required(query, "value"))])
        topic = required(query, "topic")
        if by == "unique":
            return _SearchResult([await messages.by_unique_id(topic, required(query, "value"))])
        if by == "time":
            begin = parse_time("from", query["begin"]) if query.get("begin") else 0
            end = parse_time("to", query["end"]) if query.get("end") else FOREVER_MS
            return _SearchResult(await _first_page(messages.by_time(topic, begin, end)))
        if by == "key":
            result = await messages.by_key(topic, required(query, "value", KEY_SEPARATOR), PAGE_SIZE)
            return _SearchResult(result.messages)
        if by == "offset":
            return await self._search_queue(query, topic)
        raise ConfigInvalid(f"cannot search messages by {by!r}; use id, unique, time, key or offset")

    async def _search_queue(self, query: Mapping[str, str], topic: str) -> _SearchResult:
        queue, offset = queue_of(query, topic), whole_number("offset", query.get("offset", "") or "0")
        found = await _first_page(self._context.admin.messages.of_queue(queue, offset))
        if len(found) < PAGE_SIZE:
            return _SearchResult(found)
        next_link = link(
            "/messages",
            topic=topic,
            by="offset",
            broker=queue.broker_name,
            queue=queue.queue_id,
            offset=found[-1].queue_offset + 1,
        )
        return _SearchResult(found, next_link)

    async def message(self, request: Request) -> Response:
        """Show a message, and what each group did with it."""
        query, admin = request.query_params, self._context.admin
        if message_id := query.get("id"):
            message = await admin.messages.by_id(message_id)
        else:
            queue = queue_of(query, required(query, "topic"))
            message = await admin.messages.by_offset(queue, whole_number("offset", required(query, "offset")))
        try:
            tracks, problem = await admin.messages.consumers_of(message), ""
        except RocketError as error:  # the page still shows the message
            tracks, problem = (), str(error)
        shown = message.body[:_SHOWN_BYTES]
        text = _text(shown)
        as_hex = text is None or query.get("as") == "hex"
        values = {
            "message": message,
            "tracks": tracks,
            "problem": problem,
            "text": text,
            "hex": "\n".join(_hex_lines(shown)) if as_hex else None,
            "cut": len(message.body) > len(shown),
            "notice": query.get("done", ""),
            "as_text": _body_link(query, "text"),
            "as_hex": _body_link(query, "hex"),
        }
        return self._context.views.page("message.html", values)


def _body_link(query: Mapping[str, str], form: str) -> str:
    """Return the link to the same message with its body shown as text or hex."""
    kept = {name: query.get(name) for name in ("id", "topic", "broker", "queue", "offset")}
    return link("/message", **kept, **{"as": form})


async def _first_page(messages: AsyncIterator[MessageExt]) -> list[MessageExt]:
    """Return the messages of the first page, and end the iteration."""
    found: list[MessageExt] = []
    # The admin client returns generators: closing one ends its requests.
    async with aclosing(cast("AsyncGenerator[MessageExt]", messages)) as source:
        async for message in source:
            found.append(message)
            if len(found) == PAGE_SIZE:
                break
    return found


def _text(body: bytes) -> str | None:
    """Return a body as text, or None if it is binary. The last character may have been cut off."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if len(body) < _SHOWN_BYTES or error.start < len(body) - 3:
            return None
        text = body[: error.start].decode()
    return None if any(character < " " and character not in "\t\r\n" for character in text) else text


def _hex_lines(body: bytes) -> list[str]:
    """Return the lines of a hex dump."""
    lines = []
    for start in range(0, len(body), _HEX_COLUMNS):
        part = body[start : start + _HEX_COLUMNS]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {letters}")
    return lines
