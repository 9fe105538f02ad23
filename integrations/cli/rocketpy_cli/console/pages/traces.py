"""The page about the trace of a message: who sent it, and which groups consumed it with what result."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rocketpy.admin import TracedDelivery, Traces
from rocketpy.errors import RouteNotFound
from rocketpy.message.message import TRACE_TOPIC
from rocketpy.protocol.message.properties import KEY_SEPARATOR
from rocketpy.protocol.message.trace import ConsumeOutcome
from rocketpy_cli.console.pages.base import Pages

_OUTCOMES: Final = {
    ConsumeOutcome.TIME_OUT: "timed out",
    ConsumeOutcome.EXCEPTION: "exception",
    ConsumeOutcome.RETURN_NULL: "no result",
    ConsumeOutcome.FAILED: "failed",
}


class TracePages(Pages):
    """Message trace."""

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/trace", self.trace)]

    async def trace(self, request: Request) -> Response:
        """Show what clients have reported about the messages with a unique id or key."""
        key = request.query_params.get("key", "").strip(KEY_SEPARATOR)
        topic = request.query_params.get("topic", "").strip() or TRACE_TOPIC
        found: Traces | None = None
        problem = ""
        if key:
            try:
                found = await self._context.admin.messages.traces(key, topic=topic)
            except RouteNotFound:
                problem = (
                    f"There is no topic {topic}, so no client has reported to it. Clients report with "
                    "message trace; brokers create the topic with traceTopicEnable=true."
                )
        values = {"key": key, "topic": topic, "found": found, "problem": problem, "result_of": _result}
        return self._context.views.page("trace.html", values)


def _result(call: TracedDelivery) -> str:
    if call.success is None:
        return "no report of its end"
    if call.success:
        return "consumed"
    return _OUTCOMES.get(call.outcome or ConsumeOutcome.FAILED, "failed")
