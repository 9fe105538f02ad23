"""The broker's endpoint: request code -> handler, for all channels of one broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.handlers.admin import AdminHandler
from rocketpy_broker.handlers.base import Handler
from rocketpy_broker.handlers.clients import ClientHandler
from rocketpy_broker.handlers.offsets import OffsetHandler
from rocketpy_broker.handlers.pull import PullHandler
from rocketpy_broker.handlers.query import QueryHandler
from rocketpy_broker.handlers.send import SendHandler
from rocketpy_broker.security.permissions import BROKER_PERMISSIONS

__all__ = ["BrokerEndpoint", "handler_table"]


def handler_table(
    *,
    send: SendHandler,
    pull: PullHandler,
    query: QueryHandler,
    clients: ClientHandler,
    offsets: OffsetHandler,
    admin: AdminHandler,
) -> dict[int, Handler]:
    """Return who handles which request code."""
    return {
        RequestCode.SEND_MESSAGE_V2: send.send_v2,
        RequestCode.SEND_BATCH_MESSAGE: send.send_v2,
        RequestCode.SEND_MESSAGE: send.send_v1,
        RequestCode.PULL_MESSAGE: pull.pull,
        RequestCode.QUERY_MESSAGE: query.query_message,
        RequestCode.VIEW_MESSAGE_BY_ID: query.view_message,
        RequestCode.GET_MAX_OFFSET: query.max_offset,
        RequestCode.GET_MIN_OFFSET: query.min_offset,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: query.offset_by_time,
        RequestCode.GET_EARLIEST_MSG_STORETIME: query.earliest_store_time,
        RequestCode.QUERY_CONSUMER_OFFSET: offsets.query,
        RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update,
        RequestCode.HEART_BEAT: clients.heart_beat,
        RequestCode.UNREGISTER_CLIENT: clients.unregister,
        RequestCode.CHECK_CLIENT_CONFIG: clients.check_config,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_list,
        RequestCode.GET_ALL_TOPIC_CONFIG: admin.all_topics,
        RequestCode.UPDATE_AND_CREATE_TOPIC: admin.update_topic,
        RequestCode.GET_BROKER_RUNTIME_INFO: admin.runtime_info,
        RequestCode.GET_BROKER_CONFIG: admin.refuse_config,
        RequestCode.UPDATE_BROKER_CONFIG: admin.refuse_config,
    }


class BrokerEndpoint:
    """Hands requests to their handlers; while the broker is not in service, refuses them all.

    Deny by default: a code without a permission (`BROKER_PERMISSIONS`) is refused, handler or not.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._opened: list[Callable[[Channel], None]] = []
        self._closed: list[Callable[[Channel], None]] = []
        self._end_of_buffer: Callable[[], None] = _nothing
        self._refusal: str | None = "the broker is starting"
        self._channels: set[Channel] = set()

    def serve(self, handlers: Mapping[int, Handler], *, send: SendHandler, clients: ClientHandler) -> None:
        """Answer from now on."""
        self._handlers = {code: handler for code, handler in handlers.items() if code in BROKER_PERMISSIONS}
        self._opened = [send.channel_opened]
        self._closed = [send.channel_closed, clients.channel_closed]
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
        for listener in self._opened:
            listener(channel)

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        """Part of Endpoint."""
        handler = self._handlers.get(request.code)
        if handler is not None:
            return handler(channel, request)
        if self._refusal is not None:
            return request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=self._refusal)
        return request.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f"request type {request.code} not supported by this broker",
        )

    def end_of_buffer(self) -> None:
        """Part of Endpoint."""
        self._end_of_buffer()

    def channel_closed(self, channel: Channel, error: Exception | None) -> None:
        """Part of Endpoint."""
        self._channels.discard(channel)
        for listener in self._closed:
            listener(channel)


def _nothing() -> None:
    pass
