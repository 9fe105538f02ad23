"""Spans of sends in the broker, as parts of the traces in their messages. Off by default.

A send has stages: append, then the waits for flush and replication that the broker is configured for. Only
times are recorded until the response; then all stages are reported together.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from rocketpy.errors import RocketError
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rocketpy.protocol.message import properties
from rocketpy.protocol.message.batch import decode_batch
from rocketpy.protocol.remoting.command import FLAG_ONEWAY, Command
from rocketpy.telemetry.plugin import BrokerSend, Stage, Telemetry
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Handler
from rocketpy_broker.handlers.send.response import OnStored, ParkedResponse, ParkResponses, SendResponses

_TRACED_MAX: Final = 10_000
"""Maximum number of sends that are traced at the same time; further sends are not traced."""
_TRACED: Final = {
    RequestCode.SEND_MESSAGE: SendMessageRequestHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageRequestHeaderV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageRequestHeaderV2,
}


class SendTracing:
    """Traces the sends of one broker. name: name of the broker."""

    def __init__(self, telemetry: Telemetry, name: str) -> None:
        self._telemetry = telemetry
        self._name = name
        self._traced: dict[int, list[tuple[str, int]]] = {}

    def handlers(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the handlers; those of sends record the start of a send."""
        return {
            code: self._recording(handler) if code in _TRACED else handler
            for code, handler in handlers.items()
        }

    def _recording(self, handler: Handler) -> Handler:
        def handle(channel: Channel, request: Command) -> Command | bytes | None:
            if not request.flag & FLAG_ONEWAY and len(self._traced) < _TRACED_MAX:
                self._traced[id(request)] = [("append", time.time_ns())]
            try:
                response = handler(channel, request)
            except Exception:  # it is re-raised: the send failed, or is handled again later
                self.forget(request)
                raise
            if response is not None:
                self.forget(request)  # rejected
            return response

        return handle

    def forget(self, request: Command) -> None:
        """Stop tracing a send that failed or is handled again later. A producer traces its failed sends."""
        self._traced.pop(id(request), None)

    def stage(self, name: str, park: ParkResponses) -> ParkResponses:
        """Return `park` with a new stage that starts when a send is parked."""

        def parking(sends: list[ParkedResponse], until: int, on_stored: Sequence[OnStored] = ()) -> None:
            now_ns = time.time_ns()
            for parked in sends:
                stages = self._traced.get(id(parked.request))
                if stages is not None:
                    stages.append((name, now_ns))
            park(sends, until, on_stored)

        return parking

    def ended(self, request: Command, queue_id: int, code: int) -> None:
        """Report a send that gets its response now."""
        begun = self._traced.pop(id(request), None)
        if begun is None or not self._telemetry.is_active():
            return
        try:
            topic, carriers = _carried(request)
        except RocketError:
            return
        ends = [*(start for _, start in begun[1:]), time.time_ns()]
        stages = [Stage(name, start, end) for (name, start), end in zip(begun, ends, strict=True)]
        self._telemetry.broker_sent(BrokerSend(topic, f"{self._name}/{queue_id}", carriers, stages, code))


def _carried(request: Command) -> tuple[str, list[dict[str, str]]]:
    """Return the topic of a send and the properties of its messages. Raises ProtocolError."""
    header = request.header_as(_TRACED[RequestCode(request.code)])
    if request.code == RequestCode.SEND_BATCH_MESSAGE:
        return header.topic, [properties.decode(message.properties) for message in decode_batch(request.body)]
    return header.topic, [properties.decode(header.properties or "")]


class TracedResponses(SendResponses):
    """Responses to sends that are reported to `tracing`."""

    def __init__(self, tracing: SendTracing, *, store_host: bytes, region_id: str, trace_on: bool) -> None:
        super().__init__(store_host=store_host, region_id=region_id, trace_on=trace_on)
        self._tracing = tracing

    def drop_bodies(self, sends: list[ParkedResponse]) -> None:
        """Do nothing: the body of a batch has the properties of its messages."""

    def stored(self, parked: ParkedResponse, code: int = 0) -> bytes:
        self._tracing.ended(parked.request, parked.queue_id, code)
        return super().stored(parked, code)

    def rejected(self, request: Command, code: int, remark: str) -> Command:
        self._tracing.forget(request)
        return super().rejected(request, code, remark)
