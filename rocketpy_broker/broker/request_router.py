"""The broker's endpoint: request code -> handler, for all channels of one broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from rocketpy.errors import InvariantError, RocketError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Handler
from rocketpy_broker.handlers.send.send import SendHandler
from rocketpy_broker.security.guard import AccessGuard
from rocketpy_broker.security.permissions import BROKER_PERMISSIONS
from rocketpy_broker.store.files.batch_saver import ChangePending

log = logging.getLogger("rocketpy.broker")

_WAITING_BYTES_MAX: Final = 8 << 20
"""Of messages of one connection whose topic is being saved, so that there is room for the next frame."""


class RequestRouter:
    """Hands requests to their handlers; while the broker is not in service, refuses them all.

    Deny by default: a code without a permission (`BROKER_PERMISSIONS`) is refused, handler or not.
    """

    def __init__(self, tasks: Tasks, guard: AccessGuard | None = None) -> None:
        """tasks: of the broker, which a broken invariant fails. guard: checks clients; None admits all."""
        self._tasks = tasks
        self._guard = guard
        self._handlers: dict[int, Handler] = {}
        self._opened: list[Callable[[Channel], None]] = []
        self._closed: list[Callable[[Channel], None]] = []
        self._end_of_buffer: Callable[[], None] = _nothing
        self._refusal: str | None = "the broker is starting"
        self._channels: set[Channel] = set()

    def serve(
        self,
        handlers: Mapping[int, Handler],
        *,
        send: SendHandler,
        closed: Iterable[Callable[[Channel], None]] = (),
    ) -> None:
        """Answer from now on. closed: who else is told that a channel is gone."""
        self._handlers = {
            code: handler if code in _JOINING_RUNS else _after_run(send, handler)
            for code, handler in handlers.items()
            if code in BROKER_PERMISSIONS
        }
        self._opened = [send.channel_opened]
        self._closed = [send.channel_closed, *closed]
        self._end_of_buffer = send.end_of_buffer
        self._refusal = None
        for channel in self._channels:
            send.channel_opened(channel)

    def refuse(self, reason: str) -> None:
        """Answer every request with SERVICE_NOT_AVAILABLE from now on; clients try another broker."""
        self._handlers = {}
        self._refusal = reason

    # -- Endpoint -----------------------------------------------------------------------------

    def channel_opened(self, channel: Channel) -> None:
        """Part of Endpoint."""
        self._channels.add(channel)
        if self._guard is not None:
            self._guard.opened(channel)
        for listener in self._opened:
            listener(channel)

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        """Part of Endpoint."""
        handler = self._handlers.get(request.code)
        if handler is not None:
            refusal = None if self._guard is None else self._guard.check(channel, request)
            try:
                return handler(channel, request) if refusal is None else refusal
            except ChangePending as waiting:
                return self._wait(waiting, handler, channel, request)
            except InvariantError as error:
                self._tasks.fail(f"request {request.code}", error)
                raise
        if self._refusal is not None:
            return request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=self._refusal)
        return request.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f"request type {request.code} not supported by this broker",
        )

    def _wait(
        self, waiting: ChangePending, handler: Handler, channel: Channel, request: Command
    ) -> Command | None:
        """Handle a request again when what it needs is saved; refuse it if its connection keeps too much."""
        memory, size = channel.memory, request.kept_bytes
        if memory.sizes["waiting"] + size > _WAITING_BYTES_MAX or not memory.add("waiting", size):
            remark = "too many bytes are kept for this connection while a new topic is saved; send later"
            return request.reply(ResponseCode.SYSTEM_BUSY, remark=remark)
        waiting.wait(partial(self._handle_saved, handler, channel, request, size))
        return None

    def _handle_saved(
        self, handler: Handler, channel: Channel, request: Command, size: int, failure: RocketError | None
    ) -> None:
        """Handle a request again: what it waited for is saved, or that has failed. size: as counted."""
        channel.memory.add("waiting", -size)
        if channel.is_closed and request.code not in _JOINING_RUNS:
            return  # nobody is there; a message that was sent oneway is stored all the same
        answer: Command | bytes | None
        try:
            if self._refusal is not None:  # the broker stops
                answer = request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=self._refusal)
            else:
                answer = handler(channel, request) if failure is None else _failed(request, failure)
        except ChangePending as waiting:
            answer = self._wait(waiting, handler, channel, request)
            if answer is None:
                return
        except RocketError as error:
            answer = _failed(request, error)
        except InvariantError as error:
            self._tasks.fail(f"request {request.code}", error)
            channel.abort()
            return
        except Exception:
            log.exception("request code %d from %s failed", request.code, channel.remote_address)
            answer = request.reply(ResponseCode.SYSTEM_ERROR, remark="internal error; see the server's log")
        if answer is not None and not request.is_oneway:
            channel.reply(answer)
        # At once: who waits for a commit must be known before it happens, or before the role changes.
        self.end_of_buffer()

    def end_of_buffer(self) -> None:
        """Part of Endpoint."""
        try:
            self._end_of_buffer()
        except InvariantError as error:
            self._tasks.fail("write of sends", error)
            raise

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Part of Endpoint."""
        self._channels.discard(channel)
        if self._guard is not None:
            self._guard.closed(channel)
        for listener in self._closed:
            listener(channel)


_JOINING_RUNS: Final = frozenset({
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION,
})  # fmt: skip
"""Requests whose messages are written together at the end of a socket buffer."""


def _after_run(send: SendHandler, handler: Handler) -> Handler:
    """Return a handler that sees every message which came before it in the same socket buffer."""

    def handle(channel: Channel, request: Command) -> Command | bytes | None:
        if send.is_run_open:
            send.end_of_buffer()
        return handler(channel, request)

    return handle


def _failed(request: Command, error: RocketError) -> Command:
    return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))


def _nothing() -> None:
    pass
