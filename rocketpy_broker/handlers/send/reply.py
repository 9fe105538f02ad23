"""SEND_REPLY_MESSAGE, SEND_REPLY_MESSAGE_V2: the reply half of request-reply.

A reply is pushed to the requesting client (PUSH_REPLY_MESSAGE_TO_CLIENT) and stored in
`<cluster>_REPLY_TOPIC`. The sender gets its response when both are done. If the requester is not connected to
this broker, the response has code 1, and the sender tries the next broker (QUIRKS 30).
Source: ReplyMessageProcessor of RocketMQ 4.6.0. Differs: no thread waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final

from rocketpy.errors import RocketError, StoreError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    ReplyMessageRequestHeader,
    SendMessageErrorHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    SentMessageHeader,
)
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.message_id import message_id
from rocketpy.protocol.message.record import host_text
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.config.model import SendConfig
from rocketpy_broker.handlers.base import Rejected, handles
from rocketpy_broker.handlers.send.send import SendHandler
from rocketpy_broker.store import MessageInner
from rocketpy_broker.store.files.disk import Clock, system_clock

log = logging.getLogger("rocketpy.broker.reply")

_PUSH_TIMEOUT_MS: Final = 10_000


@dataclass(eq=False)
class ReplyHandler:
    """Pushes replies to requesting clients."""

    send: SendHandler
    config: SendConfig
    _: KW_ONLY
    store_host: bytes
    channel_of: Callable[[str], Channel | None]
    """Returns the channel of a client id or None."""
    clock: Clock = system_clock

    @handles(RequestCode.SEND_REPLY_MESSAGE)
    def reply_v1(self, channel: Channel, request: Command) -> Command | None:
        """Handle SEND_REPLY_MESSAGE."""
        return self._reply(channel, request, request.header_as(SendMessageRequestHeader))

    @handles(RequestCode.SEND_REPLY_MESSAGE_V2)
    def reply_v2(self, channel: Channel, request: Command) -> Command | None:
        """Handle SEND_REPLY_MESSAGE_V2."""
        return self._reply(channel, request, request.header_as(SendMessageRequestHeaderV2))

    def _reply(self, channel: Channel, request: Command, header: SendMessageRequestHeader) -> Command | None:
        try:
            topic, queue_id, _ = self.send.admit(channel, header, is_single=False)
        except Rejected as rejected:
            return self.send.error_response(request, rejected)
        message = self.send.message(channel, header, topic, queue_id)
        message.body = request.body
        message.properties = (header.properties or "").encode()
        delivery = _Delivery(channel, request, queue_id, self.config)
        delivery.watch_push(self._push(header, message))
        if self.config.store_replies:
            try:
                receipt = self.send.append(message, partial(delivery.stored, message))
            except RocketError as error:
                log.warning("a reply was not stored: %s", error)
            else:
                delivery.stored_as = (
                    message_id(self.store_host, receipt.physical_offset),
                    receipt.queue_offset,
                )
                delivery.unfinished += 1
        delivery.step_finished()
        return None

    def _push(self, header: SendMessageRequestHeader, message: MessageInner) -> asyncio.Future[Command] | str:
        """Push a reply to the requester; return the future of its response, or why it was not pushed."""
        properties = props.decode(message.properties)
        client_id = properties.get(props.PROPERTY_MESSAGE_REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{props.PROPERTY_MESSAGE_REPLY_TO_CLIENT}] is null"
        requester = self.channel_of(client_id)
        if requester is None or requester.is_closed:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = self.clock()
        sent = {name: getattr(header, name) for name in SentMessageHeader.__struct_fields__}
        sent["properties"] = props.encode({**properties, props.PROPERTY_PUSH_REPLY_TIME: str(now_ms)})
        push = ReplyMessageRequestHeader(
            **sent,
            born_host=_java_text(message.born_host),
            store_host=_java_text(self.store_host),
            store_timestamp=now_ms,
        )
        command = Command.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, message.body)
        try:
            return requester.request(command, _PUSH_TIMEOUT_MS)
        except RocketError as error:
            return f"push reply message to {client_id} fail. {error}"


class _Delivery:
    """One reply that is being pushed and stored; responds to its sender when both are done."""

    def __init__(self, channel: Channel, request: Command, queue_id: int, config: SendConfig) -> None:
        self._channel = channel
        self._request = request
        self._queue_id = queue_id
        self._config = config
        self._failure: str | None = None
        self.stored_as: tuple[str, int] | None = None
        """Message id and queue offset of the stored reply."""
        self.unfinished = 1
        """Number of unfinished steps, of which the handler itself is the first. The last to finish sends the
        response."""

    def watch_push(self, push: asyncio.Future[Command] | str) -> None:
        """Wait for the requester's response to a push, or record why the reply was not pushed."""
        if isinstance(push, str):
            self._failure = push
        else:
            self.unfinished += 1
            push.add_done_callback(self._pushed, context=Context())

    def _pushed(self, push: asyncio.Future[Command]) -> None:
        error = push.exception() if not push.cancelled() else None
        if push.cancelled() or error is not None:
            self._failure = f"push reply message fail. {error or 'the connection is closing'}"
        elif (response := push.result()).code != ResponseCode.SUCCESS:
            self._failure = f"push reply message fail. {response.remark}"
        self.step_finished()

    def stored(self, message: MessageInner, error: StoreError | None) -> None:
        """Handle the result of storing the reply."""
        if error is not None:
            log.warning("a reply in %s was not stored: %s", message.topic, error)
            self.stored_as = None
        self.step_finished()

    def step_finished(self) -> None:
        """Count one step as finished; respond after the last one."""
        self.unfinished -= 1
        if self.unfinished == 0 and not self._request.is_oneway:
            self._channel.reply(self._response())

    def _response(self) -> Command:
        code = ResponseCode.SUCCESS if self._failure is None else ResponseCode.SYSTEM_ERROR
        header: SendMessageErrorHeader = SendMessageErrorHeader(
            msg_region=self._config.region_id, trace_on=self._config.trace_on
        )
        if self.stored_as is not None or self._failure is None:
            record_id, offset = self.stored_as or ("0", 0)  # not stored: clients cannot decode absent fields
            header = SendMessageResponseHeader(
                msg_region=self._config.region_id,
                trace_on=self._config.trace_on,
                msg_id=record_id,
                queue_id=self._queue_id,
                queue_offset=offset,
            )
        return self._request.reply(code, remark=self._failure, header=header)


def _java_text(host: bytes) -> str:
    """Return an address as Java prints it (QUIRKS 30)."""
    address, port = host_text(host)
    return f"/[{address}]:{port}" if ":" in address else f"/{address}:{port}"
