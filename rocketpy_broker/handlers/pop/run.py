"""Pops and acknowledgements of one turn of the event loop: they are written together, at its end.

Each worker waits for the response to its pop or acknowledgement, so a socket buffer often has only one; those
of all connections become one run. The acknowledgements of one check point become one record: workers
acknowledge each message by itself, but often together. The responses leave once the run is stored, as a send
has to be.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

from rocketpy.errors import InvariantError, RocketError, StoreError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command, response_flag
from rocketpy.protocol.remoting.frame import CODEC_JSON
from rocketpy.protocol.remoting.template import NUMBER, HeaderTemplate
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Rejected, error_response
from rocketpy_broker.handlers.send.send import SendHandler
from rocketpy_broker.handlers.slave import is_slave
from rocketpy_broker.services.pop.formats import PointKey
from rocketpy_broker.services.pop.scheduler import PopService
from rocketpy_broker.store import AppendReceipt, MessageInner, MessageStore
from rocketpy_broker.store.files.disk import Clock, system_clock

log = logging.getLogger("rocketpy.broker.pop")

_TURN_S: Final = 0.002
"""Maximum duration of the work of a turn."""
Work = Callable[[], Command | bytes | None]
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
    """Pops and acknowledgements that wait for the end of the turn, and what they add to the run of `send`."""

    store: MessageStore
    service: PopService
    send: SendHandler
    tasks: Tasks
    clock: Clock = system_clock

    _works: deque[tuple[Channel, Command, Work]] = field(default_factory=deque, init=False)
    _is_scheduled: bool = field(default=False, init=False)
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
        self._schedule()

    def append_acks(self) -> None:
        """Append the acknowledgements so far; a change of the same messages has to see them."""
        while self._acks:
            self._append_group()

    def _append_group(self) -> None:
        """Append the acknowledgements of the check point that has waited longest."""
        place, now_ms = next(iter(self._acks)), self.clock()
        acks = self._acks.pop(place)
        errors: dict[int, RocketError] = {}
        try:
            check_ready(self.store, self.service)
            for offset in self.service.points.acknowledge(
                place.key, list(acks), place.revive_queue, place.invisible_ms, now_ms, self.append
            ):
                errors[offset] = gone_error(place, [offset], now_ms)
        except RocketError as error:
            errors = dict.fromkeys(acks, error)
        except InvariantError:
            raise
        except Exception:  # a bug in one acknowledgement must not stop the requests behind it
            log.exception("acknowledgements in topic %s failed", place.key.topic)
            errors = dict.fromkeys(acks, RocketError("internal error; see the server's log"))
        for offset, (channel, request) in acks.items():
            if offset not in errors:
                self.respond(channel, request, _success(request))
            elif not request.is_oneway:
                channel.reply(error_response(request, errors[offset]))

    def later(self, channel: Channel, request: Command, work: Work) -> None:
        """Do the work of an admitted request at the end of this turn.

        work: returns the response; or None if it responds itself. Raises RocketError.
        """
        self._works.append((channel, request, work))
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.tasks.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Do what waits, and write its records. After some time, the rest waits until others had a turn."""
        self._is_scheduled = False
        end_s = monotonic() + _TURN_S
        while self._acks or self._works:
            if self._acks:
                self._append_group()
            if self._works:  # many acknowledgements must not delay pops for long
                self._do(*self._works.popleft())
            if monotonic() > end_s:
                break
        self.send.end_of_buffer()
        if self._acks or self._works:
            self._schedule()

    def _do(self, channel: Channel, request: Command, work: Work) -> None:
        def handle(_: Channel, request: Command) -> Command | bytes | None:
            try:
                check_ready(self.store, self.service)
                return work()
            except RocketError as error:
                return error_response(request, error)

        response = channel.run_handler(request, handle)
        if response is not None and not request.is_oneway:
            channel.reply(response)

    def respond(self, channel: Channel, request: Command, response: Command | bytes) -> None:
        """Respond once the run is stored, or with the error."""
        self.send.has_records = True
        self._waiting.append(_Waiting(channel, request, response))

    def _complete(self) -> None:
        """Have the responses so far sent once the run is stored."""
        waiting, self._waiting = self._waiting, []
        self.send.when_stored(partial(self._stored, waiting))
        self.service.changed()

    def _stored(self, waiting: list[_Waiting], error: StoreError | None) -> None:
        if error is not None:
            self.service.written(error)
        ready: dict[Channel, list[Command | bytes]] = {}
        for channel, request, response in waiting:
            if not request.is_oneway:
                ready.setdefault(channel, []).append(
                    response if error is None else error_response(request, error)
                )
        for channel, responses in ready.items():
            channel.reply_now(responses)


def check_ready(store: MessageStore, service: PopService) -> None:
    """Raise Rejected on a slave, and while the check points are read."""
    if is_slave(store):
        text = "this broker is a slave; pop from its master"
        raise Rejected(ResponseCode.SERVICE_NOT_AVAILABLE, text)
    if not service.is_ready:
        raise Rejected(ResponseCode.SYSTEM_BUSY, "the check points of pops are being read; try again")


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
