"""The endpoint of a broker: passes each request to the handler of its request code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from rocketpy.errors import InvariantError, RocketError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Handler, Rejected, error_response
from rocketpy_broker.handlers.send.send import SendHandler
from rocketpy_broker.security.allowed_callers import BROKER_CALLERS
from rocketpy_broker.security.guard import AccessGuard
from rocketpy_broker.store.files.batch_saver import ChangePending

_WAITING_BYTES_MAX: Final = 8 << 20
"""Maximum bytes of one connection's messages that wait for a new topic. It leaves room for the next frame."""


class RequestRouter:
    """Passes requests to their handlers. Before `serve` and after `reject_all`, it rejects all requests.

    Request codes that are not in `BROKER_CALLERS` are rejected.
    """

    def __init__(self, tasks: Tasks, guard: AccessGuard | None = None) -> None:
        """tasks: make the broker fail after an InvariantError. guard: None without access control."""
        self._tasks = tasks
        self._guard = guard
        self._handlers: dict[int, Handler] = {}
        self._opened: list[Callable[[Channel], None]] = []
        self._closed: list[Callable[[Channel], None]] = []
        self._end_of_buffer: Callable[[], None] = _nothing
        self._rejection: str | None = "the broker is starting"
        """Remark of the response to every request; None while requests are handled."""
        self._channels: set[Channel] = set()

    def serve(
        self,
        handlers: Mapping[int, Handler],
        *,
        send: SendHandler,
        closed: Iterable[Callable[[Channel], None]] = (),
    ) -> None:
        """Start to handle requests. closed: listeners for closed channels."""
        # A request must see the messages that came before it in the same socket buffer.
        self._handlers = {
            code: handler if code in APPENDING else _after_write(send, handler)
            for code, handler in handlers.items()
            if code in BROKER_CALLERS
        }
        self._opened = [send.channel_opened]
        self._closed = [send.channel_closed, *closed]
        self._end_of_buffer = send.end_of_buffer
        self._rejection = None
        for channel in self._channels:
            send.channel_opened(channel)

    def add_listener(self, codes: Iterable[int], on_request: Callable[[Command], None]) -> None:
        """Call `on_request` with each request of these codes, before it is handled."""
        for code in codes:
            if (handler := self._handlers.get(code)) is not None:
                self._handlers[code] = _after_call(on_request, handler)

    def reject_all(self, reason: str) -> None:
        """Respond SERVICE_NOT_AVAILABLE to all later requests, so that clients try another broker."""
        self._handlers = {}
        self._rejection = reason

    # -- Endpoint -----------------------------------------------------------------------------

    def channel_opened(self, channel: Channel) -> None:
        """Register a new channel with the access guard and the listeners."""
        self._channels.add(channel)
        if self._guard is not None:
            self._guard.opened(channel)
        for listener in self._opened:
            listener(channel)

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        """Check a request and run its handler."""
        handler = self._handlers.get(request.code)
        if handler is not None:
            rejection = None if self._guard is None else self._guard.check(channel, request)
            return self._run(handler, channel, request) if rejection is None else rejection
        if self._rejection is not None:
            return request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=self._rejection)
        return request.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f"request type {request.code} not supported by this broker",
        )

    def _run(self, handler: Handler, channel: Channel, request: Command) -> Command | bytes | None:
        try:
            return handler(channel, request)
        except ChangePending as pending:
            return self._wait(pending, handler, channel, request)
        except Rejected as rejected:
            return error_response(request, rejected)
        except InvariantError as error:
            self._tasks.fail(f"request {request.code}", error)
            raise

    def _wait(
        self, pending: ChangePending, handler: Handler, channel: Channel, request: Command
    ) -> Command | None:
        """Run a handler again once a new topic or group is saved.

        Rejects the request if too many bytes of its connection are waiting.
        """
        memory, size = channel.memory, request.kept_bytes
        if memory.sizes["waiting"] + size > _WAITING_BYTES_MAX or not memory.add("waiting", size):
            remark = "too many bytes of this connection wait for a new topic to be saved; send later"
            return request.reply(ResponseCode.SYSTEM_BUSY, remark=remark)
        pending.wait(partial(self._run_saved, handler, channel, request, size))
        return None

    def _run_saved(
        self, handler: Handler, channel: Channel, request: Command, size: int, failure: RocketError | None
    ) -> None:
        """Run a handler again after a save. size: bytes of the request, as counted. failure: of the save."""
        channel.memory.add("waiting", -size)
        if channel.is_closed and request.code not in APPENDING:
            return  # no client waits for the response. A message is stored, since it may be oneway.

        def run(channel: Channel, request: Command) -> Command | bytes | None:
            if self._rejection is not None:  # the broker is stopping
                return request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=self._rejection)
            if failure is not None:
                raise failure
            return self._run(handler, channel, request)

        try:
            response = channel.run_handler(request, run)
        except InvariantError:
            channel.abort()
            return
        if response is not None and not request.is_oneway:
            channel.reply(response)
        # Not deferred: a send must be registered before its commit, and before the role changes.
        self.end_of_buffer()

    def end_of_buffer(self) -> None:
        """Write the messages of a socket buffer together."""
        try:
            self._end_of_buffer()
        except InvariantError as error:
            self._tasks.fail("write of sends", error)
            raise

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Notify the access guard and the listeners."""
        self._channels.discard(channel)
        if self._guard is not None:
            self._guard.closed(channel)
        for listener in self._closed:
            listener(channel)


APPENDING: Final = frozenset({
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION, RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
})  # fmt: skip
"""Requests that append messages. Those of one socket buffer are written together, at its end."""


def _after_write(send: SendHandler, handler: Handler) -> Handler:
    """Return a handler that first writes the messages which came earlier in the same socket buffer."""

    def handle(channel: Channel, request: Command) -> Command | bytes | None:
        if send.is_run_open:
            send.end_of_buffer()
        return handler(channel, request)

    return handle


def _after_call(on_request: Callable[[Command], None], handler: Handler) -> Handler:
    def handle(channel: Channel, request: Command) -> Command | bytes | None:
        on_request(request)
        return handler(channel, request)

    return handle


def _nothing() -> None:
    pass
