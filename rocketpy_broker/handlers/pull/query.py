"""Queries: offsets of a queue, messages by offset or by key.

Source: AdminBrokerProcessor, QueryMessageProcessor of RocketMQ 4.6.0.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import KW_ONLY, dataclass
from typing import Final

from rocketpy.protocol.bodies import ConsumeQueueData, QueryConsumeQueueResponseBody, SubscriptionData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    LOWER_BOUNDARY,
    UPPER_BOUNDARY,
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    ViewMessageRequestHeader,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Rejected, handles
from rocketpy_broker.services.metadata.topics import TopicTable, queue_count
from rocketpy_broker.services.slices import Slices
from rocketpy_broker.store import MessageStore

_BY_UNIQUE_KEY_MAX: Final = 32
"""defaultQueryMaxNum of 4.6.0: maximum number of messages that a query by unique id returns."""


_UNITS_MAX: Final = 4096
"""Maximum number of units of a consume queue in one response. Not in RocketMQ."""

FindSubscription = Callable[[str, str], SubscriptionData | None]
"""Group and topic -> the group's subscription; None if the group is not online."""


MayRead = Callable[[Channel, bytes], bool]
"""Whether the account of a connection may read a record. The index may find records of other topics,
whose keys have the same hash."""


@dataclass(eq=False)
class QueryHandler:
    """Responds to queries from the store."""

    store: MessageStore
    subscription: FindSubscription
    _: KW_ONLY
    slices: Slices
    may_read: MayRead
    topics: TopicTable

    @handles(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, channel: Channel, request: Command) -> Command:
        """Handle GET_MAX_OFFSET."""
        header = request.header_as(GetMaxOffsetRequestHeader)
        offset = self.store.max_offset_in_queue(header.topic, header.queue_id)
        return request.reply(header=GetMaxOffsetResponseHeader(offset=offset))

    @handles(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, channel: Channel, request: Command) -> Command:
        """Handle GET_MIN_OFFSET."""
        header = request.header_as(GetMinOffsetRequestHeader)
        offset = self.store.min_offset_in_queue(header.topic, header.queue_id)
        return request.reply(header=GetMinOffsetResponseHeader(offset=offset))

    @handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def offset_by_time(self, channel: Channel, request: Command) -> Command:
        """Handle SEARCH_OFFSET_BY_TIMESTAMP."""
        header = request.header_as(SearchOffsetRequestHeader)
        boundary = LOWER_BOUNDARY
        search = self.store.offset_by_time
        if (header.boundary_type or "").lower() == UPPER_BOUNDARY:
            boundary, search = UPPER_BOUNDARY, self.store.last_offset_by_time
        offset = search(header.topic, header.queue_id, header.timestamp)
        return request.reply(header=SearchOffsetResponseHeader(offset=offset, boundary_type=boundary))

    @handles(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest_store_time(self, channel: Channel, request: Command) -> Command:
        """Handle GET_EARLIEST_MSG_STORETIME."""
        header = request.header_as(GetEarliestMsgStoretimeRequestHeader)
        timestamp = self.store.earliest_store_time(header.topic, header.queue_id)
        return request.reply(header=GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp))

    @handles(RequestCode.VIEW_MESSAGE_BY_ID)
    def view_message(self, channel: Channel, request: Command) -> Command:
        """Handle VIEW_MESSAGE_BY_ID."""
        offset = request.header_as(ViewMessageRequestHeader).offset
        record = self.store.look_message(offset) if offset >= 0 else None
        if record is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return request.reply(body=record)

    @handles(RequestCode.QUERY_MESSAGE)
    async def query_message(self, channel: Channel, request: Command) -> Command:
        """Handle QUERY_MESSAGE."""
        return await self.slices.run(self._query_message(channel, request), channel)

    def _query_message(self, channel: Channel, request: Command) -> Generator[None, None, Command]:
        header = request.header_as(QueryMessageRequestHeader)
        count = _BY_UNIQUE_KEY_MAX if header.unique_key_query else header.max_num
        found = yield from self.store.find_messages(
            header.topic, header.key, count, header.begin_timestamp, header.end_timestamp
        )
        records = [record for record in found.records if self.may_read(channel, record)]
        if not records:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND,
                remark="can not find message, maybe time range not correct",
                header=QueryMessageResponseHeader(
                    index_last_update_timestamp=0, index_last_update_phyoffset=0
                ),
            )
        response_header = QueryMessageResponseHeader(
            index_last_update_timestamp=found.index_last_update_timestamp,
            index_last_update_phyoffset=found.index_last_update_offset,
        )
        return request.reply(header=response_header, body=b"".join(records))

    @handles(RequestCode.QUERY_CONSUME_QUEUE)
    def consume_queue(self, channel: Channel, request: Command) -> Command:
        """Handle QUERY_CONSUME_QUEUE: units of a consume queue.

        Differs: 4.6.0 encodes its response before it has added the units. An unwritten queue of a topic is
        empty; in RocketMQ that depends on whether somebody has asked for its offsets before.
        """
        header = request.header_as(QueryConsumeQueueRequestHeader)
        topic, queue_id = header.topic or "", header.queue_id
        # Reading its offsets dispatches first, so that a new queue is in the table.
        body = QueryConsumeQueueResponseBody(
            max_queue_index=self.store.max_offset_in_queue(topic, queue_id),
            min_queue_index=self.store.min_offset_in_queue(topic, queue_id),
        )
        if (topic, queue_id) not in self.store.queues.queues and not self._has_queue(topic, queue_id):
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        if header.consumer_group is not None:
            body.subscription_data = self.subscription(header.consumer_group, topic)
            if body.subscription_data is None:
                body.filter_data = f"{header.consumer_group}@{topic} is not online!"
        units = self.store.units(topic, queue_id, header.index, min(max(header.count, 0), _UNITS_MAX))
        remark = None if units else f"Index {header.index} of {queue_id}@{topic} is not exist!"
        body.queue_data = [
            ConsumeQueueData(physic_offset=offset, physic_size=size, tags_code=code)
            for offset, size, code in units
        ]
        return request.reply(remark=remark, body=body.encode())

    def _has_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether the table of topics has a queue, which may never have had a message."""
        config = self.topics.get(topic)
        return config is not None and 0 <= queue_id < queue_count(config)
