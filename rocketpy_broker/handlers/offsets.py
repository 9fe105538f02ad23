"""QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET. Source: ConsumerManageProcessor of RocketMQ 4.6.0."""

from __future__ import annotations

from rocketpy.errors import UsageError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.command import Command
from rocketpy.protocol.headers import (
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Handler
from rocketpy_broker.services.offsets import ConsumerOffsets
from rocketpy_broker.store import MessageStore

__all__ = ["OffsetHandler"]


class OffsetHandler:
    """Answers from the table of offsets and, for new groups, from the store."""

    def __init__(self, store: MessageStore, offsets: ConsumerOffsets) -> None:
        self._store = store
        self._offsets = offsets

    @property
    def requests(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
        }

    def query(self, channel: Channel, request: Command) -> Command:
        """Handle QUERY_CONSUMER_OFFSET.

        A group that never committed begins at 0 when the queue still has its first message and that is
        in memory range; else it is told that there is none, and decides itself (QUIRKS 33).
        """
        header = request.header_as(QueryConsumerOffsetRequestHeader)
        topic, queue_id = header.topic, header.queue_id
        offset = self._offsets.get(header.consumer_group, topic, queue_id)
        if offset is None:
            is_whole = self._store.min_offset_in_queue(topic, queue_id) <= 0
            if not (is_whole and self._store.is_in_memory(topic, queue_id, 0)):
                return request.reply(
                    ResponseCode.QUERY_NOT_FOUND,
                    remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                )
            offset = 0
        return request.reply(header=QueryConsumerOffsetResponseHeader(offset=offset))

    def update(self, channel: Channel, request: Command) -> Command:
        """Handle UPDATE_CONSUMER_OFFSET."""
        header = request.header_as(UpdateConsumerOffsetRequestHeader)
        try:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        except UsageError as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return request.reply()

    def all_offsets(self, channel: Channel, request: Command) -> Command:
        """Handle GET_ALL_CONSUMER_OFFSET: what a slave copies."""
        return request.reply(body=self._offsets.encode())
