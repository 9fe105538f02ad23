"""Offsets of consumer groups: queries, commits and copies.

Source: ConsumerManageProcessor, AdminBrokerProcessor of RocketMQ 4.6.0. Differs: CLONE_GROUP_OFFSET without a
topic copies all topics (4.6.0 copies none then).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial

from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Rejected, handles
from rocketpy_broker.handlers.slave import absent, is_slave
from rocketpy_broker.services.cluster.slave_sync import WITH_VERSIONS
from rocketpy_broker.services.metadata.clients import ClientRegistry
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.services.slices import SharedWork, Slices
from rocketpy_broker.store import MessageStore


@dataclass(eq=False)
class OffsetHandler:
    """Responds from the table of offsets and, for new groups, from the store."""

    store: MessageStore
    offsets: ConsumerOffsets
    clients: ClientRegistry
    topics: TopicTable
    slices: Slices

    def __post_init__(self) -> None:
        self._tables = {
            with_times: SharedWork(self.slices, partial(self._encode, with_times))
            for with_times in (False, True)
        }

    def _encode(self, with_times: bool, /) -> Generator[None, None, bytes]:
        return self.offsets.encode_in_slices(self.slices.is_over, with_times=with_times)

    @handles(RequestCode.QUERY_CONSUMER_OFFSET)
    def query(self, channel: Channel, request: Command) -> Command:
        """Handle QUERY_CONSUMER_OFFSET.

        A group without an offset gets that of the first message if the queue still has it, and it is recent
        enough to be in memory. Otherwise the response is QUERY_NOT_FOUND, and the client decides where to
        start (QUIRKS 33). A slave that has never copied its master's offsets says so instead: groups would
        skip messages.
        """
        header = request.header_as(QueryConsumerOffsetRequestHeader)
        topic, queue_id = header.topic, header.queue_id
        offset = self.offsets.get(header.consumer_group, topic, queue_id)
        if offset is None:
            # RocketMQ's own text.
            text = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            missing = Rejected(ResponseCode.QUERY_NOT_FOUND, text)
            if is_slave(self.store) and not self.offsets.is_copied:
                raise absent(self.store, "offsets", missing)
            offset = self.store.min_offset_in_queue(topic, queue_id)
            has_first = offset <= 0 or self._has_all_since_deletion(topic)
            if not (has_first and self.store.is_in_memory(topic, queue_id, offset)):
                raise missing
        return request.reply(header=QueryConsumerOffsetResponseHeader(offset=offset))

    def _has_all_since_deletion(self, topic: str) -> bool:
        """Return whether a topic was deleted, and the log still has all messages of the one created since.

        The queues of the new topic continue the offsets of the deleted one, so they do not begin at 0.
        """
        end = self.topics.deleted.get(topic)
        return end is not None and end >= self.store.min_physical_offset

    @handles(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update(self, channel: Channel, request: Command) -> Command:
        """Handle UPDATE_CONSUMER_OFFSET."""
        header = request.header_as(UpdateConsumerOffsetRequestHeader)
        self.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return request.reply()

    @handles(RequestCode.GET_ALL_CONSUMER_OFFSET)
    async def all_offsets(self, channel: Channel, request: Command) -> Command:
        """Handle GET_ALL_CONSUMER_OFFSET, a slave's request."""
        table = self._tables[WITH_VERSIONS in request.ext_fields()]
        return request.reply(body=await table.result(channel))

    @handles(RequestCode.CLONE_GROUP_OFFSET)
    def clone(self, channel: Channel, request: Command) -> Command:
        """Handle CLONE_GROUP_OFFSET: copy the offsets of one group to another.

        Topics to which the online members of the source group do not subscribe are skipped, unless the
        request has `offline`.
        """
        header = request.header_as(CloneGroupOffsetRequestHeader)
        source = header.src_group
        for topic in [header.topic] if header.topic else self.offsets.topics_of(source):
            is_unsubscribed = not header.offline and self.clients.lacks_subscription(source, topic)
            if self.topics.get(topic) is not None and not is_unsubscribed:
                self.offsets.clone(source, header.dest_group, topic)
        return request.reply()
