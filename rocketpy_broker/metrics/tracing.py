"""Spans of sends on the broker's side, joined to the traces that their messages carry. Off unless set.

A send is followed through what happens to it (append; then, as the broker is set up, the wait for the flush
and for slaves), and told of as a whole when it is answered: in between only times are noted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
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
from rocketpy_broker.handlers.send.response import ParkedResponse, ParkResponses, SendResponses

_FOLLOWED_MAX: Final = 10_000
"""Sends that are followed at once; more are not traced."""
_TRACED: Final = {
    RequestCode.SEND_MESSAGE: SendMessageRequestHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageRequestHeaderV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageRequestHeaderV2,
}


class SendTracing:
    """Follows the sends of one broker. name: the broker's."""

    def __init__(self, telemetry: Telemetry, name: str) -> None:
        self._telemetry = telemetry
        self._name = name
        self._followed: dict[int, list[tuple[str, int]]] = {}

    def handlers(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers; those of sends note when one begins."""
        return {
            code: self._noting(handler) if code in _TRACED else handler for code, handler in handlers.items()
        }

    def _noting(self, handler: Handler) -> Handler:
        def handle(channel: Channel, request: Command) -> Command | bytes | None:
            if not request.flag & FLAG_ONEWAY and len(self._followed) < _FOLLOWED_MAX:
                self._followed[id(request)] = [("append", time.time_ns())]
            try:
                answer = handler(channel, request)
            except Exception:
                self.forget(request)  # failed, or handled again later
                raise
            if answer is not None:
                self.forget(request)  # refused
            return answer

        return handle

    def forget(self, request: Command) -> None:
        """A send is refused: there is nothing to tell but its answer, which its sender has."""
        self._followed.pop(id(request), None)

    def stage(self, name: str, park: ParkResponses) -> ParkResponses:
        """The same `park`; a stage of that name begins when it gets a send."""

        def parking(sends: list[ParkedResponse], until: int) -> None:
            now_ns = time.time_ns()
            for parked in sends:
                stages = self._followed.get(id(parked.request))
                if stages is not None:
                    stages.append((name, now_ns))
            park(sends, until)

        return parking

    def ended(self, request: Command, queue_id: int, code: int) -> None:
        """A send is about to be answered."""
        begun = self._followed.pop(id(request), None)
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
    """The topic of a send, and the properties of its messages. Raises ProtocolError."""
    header = request.header_as(_TRACED[RequestCode(request.code)])
    if request.code == RequestCode.SEND_BATCH_MESSAGE:
        return header.topic, [properties.decode(message.properties) for message in decode_batch(request.body)]
    return header.topic, [properties.decode(header.properties or "")]


class TracedResponses(SendResponses):
    """Answers to sends that tell `tracing` of each."""

    def __init__(self, tracing: SendTracing, *, store_host: bytes, region_id: str, trace_on: bool) -> None:
        super().__init__(store_host=store_host, region_id=region_id, trace_on=trace_on)
        self._tracing = tracing

    def drop_bodies(self, sends: list[ParkedResponse]) -> None:
        """See `SendResponses`. The properties of a batch's messages are in its body: it is kept."""

    def stored(self, parked: ParkedResponse, code: int = 0) -> bytes:
        """See `SendResponses`."""
        self._tracing.ended(parked.request, parked.queue_id, code)
        return super().stored(parked, code)

    def refused(self, request: Command, code: int, remark: str) -> Command:
        """See `SendResponses`."""
        self._tracing.forget(request)
        return super().refused(request, code, remark)
