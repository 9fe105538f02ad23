"""What pops and acknowledgements add to the run of a socket buffer, and the responses to them.

The acknowledgements of one check point in a buffer become one record: workers acknowledge each message by
itself, but often together. All responses of a buffer leave once its run is stored, as a send has to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from rocketpy.errors import RocketError, StoreError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command, response_flag
from rocketpy.protocol.remoting.frame import CODEC_JSON
from rocketpy.protocol.remoting.template import NUMBER, HeaderTemplate
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Rejected, error_response
from rocketpy_broker.handlers.send.send import SendHandler
from rocketpy_broker.services.pop.formats import PointKey
from rocketpy_broker.services.pop.scheduler import PopService
from rocketpy_broker.store import AppendReceipt, MessageInner, MessageStore
from rocketpy_broker.store.files.disk import Clock, system_clock

_SUCCESS: Final = HeaderTemplate(ResponseCode.SUCCESS, None, NUMBER)


class Place(NamedTuple):
    """The check point that a request names."""

    key: PointKey
    invisible_ms: int
    revive_queue: int


class _Waiting(NamedTuple):
    """A request that waits for the run."""

    channel: Channel
    request: Command
    response: Command | bytes


@dataclass(eq=False)
class PopRun:
    """The part that pops have in the run of `send`."""

    store: MessageStore
    service: PopService
    send: SendHandler
    clock: Clock = system_clock

    _acks: dict[Place, dict[int, tuple[Channel, Command]]] = field(default_factory=dict, init=False)
    """Check point -> offset of a message -> the request that acknowledges it."""
    _waiting: list[_Waiting] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.send.before_write = self._complete

    def append(self, message: MessageInner) -> AppendReceipt:
        """Append a record. Raises RocketError."""
        self.send.has_records = True
        return self.store.append(message)

    def acknowledge(self, channel: Channel, request: Command, place: Place, offset: int) -> None:
        """Acknowledge a message, and respond."""
        acks = self._acks.setdefault(place, {})
        if offset in acks:  # the second one is too late
            self.append_acks()
            acks = self._acks.setdefault(place, {})
        acks[offset] = channel, request
        self.send.has_records = True

    def append_acks(self) -> None:
        """Append the acknowledgements so far; a change of the same messages has to see them."""
        groups, self._acks = self._acks, {}
        for place, acks in groups.items():
            now_ms = self.clock()
            errors: dict[int, RocketError] = {}
            try:
                for offset in self.service.points.acknowledge(
                    place.key, list(acks), place.revive_queue, place.invisible_ms, now_ms, self.append
                ):
                    errors[offset] = gone_error(place, [offset], now_ms)
            except RocketError as error:
                errors = dict.fromkeys(acks, error)
            for offset, (channel, request) in acks.items():
                if offset not in errors:
                    self.respond(channel, request, _success(request))
                elif not request.is_oneway:
                    channel.reply(error_response(request, errors[offset]))

    def respond(self, channel: Channel, request: Command, response: Command | bytes) -> None:
        """Respond once the run is stored, or with the error."""
        self.send.has_records = True
        self._waiting.append(_Waiting(channel, request, response))

    def _complete(self) -> None:
        """Add the rest before the run is written."""
        self.append_acks()
        waiting, self._waiting = self._waiting, []
        self.send.when_stored(partial(self._stored, waiting))
        self.service.changed()

    def _stored(self, waiting: list[_Waiting], error: StoreError | None) -> None:
        if error is not None:
            self.service.written(error)
        for channel, request, response in waiting:
            if not request.is_oneway:
                channel.reply(response if error is None else error_response(request, error))


def gone_error(place: Place, offsets: Sequence[int], now_ms: int) -> Rejected:
    """Return the rejection of a receipt that names no message in flight."""
    key = place.key
    late_ms = now_ms - key.pop_ms - place.invisible_ms
    why = f"its time was over {late_ms} ms ago" if late_ms >= 0 else "it was used before"
    text = (
        f"the receipt for message {', '.join(map(str, offsets))} of queue {key.queue_id} of topic "
        f"{key.topic} is not valid any more: {why}"
    )
    return Rejected(ResponseCode.NO_MESSAGE, text)


def _success(request: Command) -> Command | bytes:
    if request.codec != CODEC_JSON:
        return request.reply()
    return _SUCCESS.frame((response_flag(request), request.opaque))
