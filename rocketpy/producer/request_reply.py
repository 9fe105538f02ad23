"""Request-reply: a message to which another program replies with a message.

The request carries a correlation id, the requester's client id and its timeout. The replier sends its reply
to the reply topic of the request's cluster. The broker that gets the reply pushes it to the requester, over
the connection on which the requester sends heartbeats. So a requester connects to every master of the cluster
before its first request. A broker without such a connection returns an error to the replier, which tries the
next broker (QUIRKS 30).

Source: RocketMQ 4.6 DefaultMQProducerImpl request, ClientRemotingProcessor receiveReplyMessage, MessageUtil.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import unwrap
from rocketpy.errors import (
    ClientClosed,
    LocalProtocolError,
    MessageInvalid,
    NotDurable,
    Outcome,
    RemoteProtocolError,
    ReplyTimeout,
    RequestTimeout,
    Retry,
    RocketError,
)
from rocketpy.message.message import REPLY_TOPIC_SUFFIX, Message, MessageExt
from rocketpy.producer.send.pending import ReplyMessage
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import ReplyMessageRequestHeader
from rocketpy.protocol.message import properties as names
from rocketpy.protocol.message.compression import decompress
from rocketpy.protocol.message.record import Record, host_bytes
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import SendResult
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import subtask
from rocketpy.transport import Channel

log: Final = logging.getLogger("rocketpy.producer")

_REPLY_TYPE: Final = "reply"
_UNKNOWN_HOST: Final = host_bytes("0.0.0.0", 0)  # noqa: S104 - an address to show, not to listen on


def create_reply_message(
    request: MessageExt, body: bytes, *, tags: str | None = None, keys: str | tuple[str, ...] = ()
) -> ReplyMessage:
    """Create the reply to a request that a consumer received.

    Send it with any producer of the same cluster.

    Args:
        request: The request.
        body: Body of the reply.
        tags: Tag of the reply.
        keys: Keys of the reply.

    Returns:
        The reply.

    Raises:
        MessageInvalid: The message is not a request, or lacks the name of its cluster, which brokers add to
            messages that are not sent in batches.
    """
    required = (
        names.PROPERTY_CLUSTER,
        names.PROPERTY_CORRELATION_ID,
        names.PROPERTY_MESSAGE_REPLY_TO_CLIENT,
        names.PROPERTY_MESSAGE_TTL,
    )
    copied = {name: request.properties.get(name, "") for name in required}
    if missing := [name for name, value in copied.items() if not value]:
        raise MessageInvalid(f"message {request.message_id} is not a request: it has no {', '.join(missing)}")
    cluster = copied.pop(names.PROPERTY_CLUSTER)
    reply = Message(f"{cluster}{REPLY_TOPIC_SUFFIX}", body, tags=tags, keys=keys)
    return ReplyMessage.with_reserved(reply, {names.PROPERTY_MESSAGE_TYPE: _REPLY_TYPE, **copied})


Send = Callable[[Message, int], Coroutine[Any, Any, SendResult]]
"""Sends one message, never in a batch, within a timeout in ms."""


class Requester:
    """The requests of one producer."""

    def __init__(self, client: ClientInstance) -> None:
        self._client = client
        self._futures = client.shared(RequestFutureTable)
        self._waiting: dict[asyncio.Future[MessageExt], asyncio.Task[SendResult]] = {}
        """The reply of each request, and the send of the request."""
        self._loop = asyncio.get_running_loop()

    async def request(self, message: Message, timeout_ms: int, send: Send) -> MessageExt:
        """Send a request and wait for its reply; see `Producer.request`."""
        until = self._loop.time() + timeout_ms / 1000
        await self._client.ensure_registered(message.topic, timeout_ms)
        correlation_id = str(uuid.uuid4())
        reserved = {
            names.PROPERTY_CORRELATION_ID: correlation_id,
            names.PROPERTY_MESSAGE_REPLY_TO_CLIENT: self._client.client_id,
            names.PROPERTY_MESSAGE_TTL: str(timeout_ms),
        }
        reply = self._futures.add(correlation_id)
        left_ms = max(1, int((until - self._loop.time()) * 1000))
        sending = subtask(send(Message.with_reserved(message, reserved), left_ms), "send request")
        sending.add_done_callback(_take_error, context=Context())
        self._waiting[reply] = sending
        try:
            await asyncio.wait(
                (sending, reply), timeout=until - self._loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
            if not reply.done() and sending.done():  # the reply may come before the broker's response
                try:
                    result = sending.result()
                except NotDurable as error:  # the reply shows that a consumer has handled the request
                    (result,) = error.results
                await asyncio.wait((reply,), timeout=until - self._loop.time())
                if not reply.done():
                    raise ReplyTimeout(
                        f"request {result.message_id} is stored in {result.queue}, but no reply came within "
                        f"{timeout_ms} ms"
                    )
            if not reply.done():
                raise RequestTimeout(
                    f"timed out after {timeout_ms} ms waiting for the broker's response and the reply",
                    outcome=Outcome.UNKNOWN,
                )
            return reply.result()
        finally:
            sending.cancel()
            self._futures.remove(correlation_id)
            del self._waiting[reply]

    def close(self) -> None:
        """Fail the requests that wait for a reply."""
        for reply, sending in self._waiting.items():
            if not reply.done():
                is_stored = sending.done() and not sending.cancelled() and sending.exception() is None
                outcome = Outcome.STORED if is_stored else Outcome.UNKNOWN
                reply.set_exception(
                    ClientClosed("the producer was closed before a reply came", outcome=outcome)
                )


class RequestFutureTable:
    """Handles PUSH_REPLY_MESSAGE_TO_CLIENT for all producers of a client. RocketMQ: RequestFutureTable."""

    def __init__(self, client: ClientInstance) -> None:
        self._client = client
        self._by_id: dict[str, asyncio.Future[MessageExt]] = {}
        self._limited_log = RateLimitedLog(log)
        client.connections.handlers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self.handle

    def add(self, correlation_id: str) -> asyncio.Future[MessageExt]:
        """Return a new future for the reply with a correlation id."""
        future: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()
        self._by_id[correlation_id] = future
        return future

    def remove(self, correlation_id: str) -> None:
        """Stop waiting for a reply; one that comes later is dropped."""
        self._by_id.pop(correlation_id, None)

    def handle(self, channel: Channel, request: Command) -> Command:
        """Pass one reply to its request; drop an unexpected one. The response is SUCCESS in both cases."""
        header = request.header_as(ReplyMessageRequestHeader)
        message = self._message(header, request.body)
        future = self._by_id.get(message.correlation_id or "")
        failure = message.decode_error
        if future is None or future.done():
            self._limited_log.warning(
                "late",
                "dropped a reply with correlation id %s from %s: it came too late, or is not for this client",
                message.correlation_id,
                header.born_host,
            )
        elif failure is not None:
            text = f"the reply from {header.born_host} cannot be decoded: {failure}"
            future.set_exception(RemoteProtocolError(text, outcome=Outcome.STORED, retry=Retry.NONE))
        else:
            future.set_result(message)
        return request.reply()

    def _message(self, header: ReplyMessageRequestHeader, body: bytes) -> MessageExt:
        arrived = f"{names.PROPERTY_REPLY_MESSAGE_ARRIVE_TIME}\x01{time.time_ns() // 1_000_000}\x02"
        record = Record(
            topic=unwrap(self._client.config.namespace, header.topic),
            queue_id=header.queue_id,
            flag=header.flag,
            queue_offset=0,
            physical_offset=0,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=_java_host(header.born_host),
            store_timestamp=header.store_timestamp,
            store_host=_java_host(header.store_host),
            reconsume_times=header.reconsume_times or 0,
            prepared_transaction_offset=0,
            body=body,
            # Brokers of 4.9 and later leave out the separator after the last property.
            properties=f"{header.properties or ''}\x02{arrived}".encode(),
        )
        queue = MessageQueue(
            record.topic, self._client.routes.broker_name(_address(header.store_host)) or "", 0
        )
        try:
            return MessageExt(record, queue, decompress(body, header.sys_flag))
        except RocketError as error:
            return MessageExt(record, queue, body, None, error)


def _address(text: str) -> str:
    """Return the ``host:port`` of a Java text such as ``/127.0.0.1:20010`` (QUIRKS 30)."""
    return text.rpartition("/")[2]


def _java_host(text: str) -> bytes:
    address, _, port = _address(text).rpartition(":")
    try:
        return host_bytes(address.strip("[]"), int(port))
    except (ValueError, LocalProtocolError):
        return _UNKNOWN_HOST  # such as a broker at memory://


def _take_error(sending: asyncio.Task[SendResult]) -> None:
    """Retrieve the error of a send, which asyncio would log if the reply came first."""
    if not sending.cancelled() and (error := sending.exception()) is not None:
        log.debug("sending a request failed: %s", error)
