"""Offsets and statistics of topics and their consumers, for operators.

Source: AdminBrokerProcessor of RocketMQ 4.6.0. Differs: QUERY_CORRECTION_OFFSET reads only
(4.6.0 looks up the compared group as a topic, and deletes the offsets of the filtered groups). Responses have
the queues that are written or read (in 4.6.0, depending on the request, those for writing or for reading).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Final

from rocketpy.errors import UsageError
from rocketpy.protocol.bodies import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    MessageQueue,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QueueTimeSpan,
    TopicConfig,
    TopicOffset,
    TopicStatsTable,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Rejected, handles
from rocketpy_broker.handlers.slave import absent
from rocketpy_broker.services.metadata.clients import ClientRegistry
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.topics import TopicTable, queue_count
from rocketpy_broker.services.stats import GROUP_GET_NUMS, BrokerStats
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.files.disk import system_clock

_LONG_MAX: Final = 2**63 - 1
_RESPONSE_BYTES_MAX: Final = 12 << 20
"""Limit of a response, estimated from its number of queues. A larger one is rejected before it is built."""
_QUEUE_BYTES: Final = 120
"""Size of a queue in a response, without the names of its topic and broker."""


@dataclass(eq=False)
class ConsumeStatsHandler:
    """Responds from store, offsets and statistics."""

    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroupTable
    clients: ClientRegistry
    offsets: ConsumerOffsets
    stats: BrokerStats
    _: KW_ONLY
    broker_name: str
    """As the broker is registered."""
    address: str
    """As the broker is registered."""
    now_ms: Callable[[], float]
    """A monotonic clock."""
    sample: Callable[[], None]
    """Updates the statistics."""

    @handles(RequestCode.GET_TOPIC_STATS_INFO)
    def topic_stats(self, channel: Channel, request: Command) -> Command:
        """Handle GET_TOPIC_STATS_INFO."""
        name = request.header_as(GetTopicStatsInfoRequestHeader).topic
        topic = self._topic(name)
        self._check_size([topic])
        table = {}
        for queue in self._queues(topic):
            end = self.store.max_offset_in_queue(name, queue.queue_id)
            table[queue] = TopicOffset(
                min_offset=max(self.store.min_offset_in_queue(name, queue.queue_id), 0),
                max_offset=end,
                last_update_timestamp=self._time(queue, end - 1) if end > 0 else 0,
            )
        return request.reply(body=TopicStatsTable(offset_table=table).encode())

    @handles(RequestCode.GET_CONSUME_STATS)
    def consume_stats(self, channel: Channel, request: Command) -> Command:
        """Handle GET_CONSUME_STATS."""
        header = request.header_as(GetConsumeStatsRequestHeader)
        group = header.consumer_group
        stats = ConsumeStats(consume_tps=0.0)
        topics = self._consumed(group, [header.topic] if header.topic else self.offsets.topics_of(group))
        self._check_size(topics)
        for topic in topics:
            self._add_stats(stats, group, topic)
        return request.reply(body=stats.encode())

    def _consumed(self, group: str, names: Iterable[str]) -> list[TopicConfig]:
        """Return these topics, if they exist and the group's online members, if any, subscribe to them."""
        found = ((name, self.topics.get(name)) for name in names)
        return [
            topic
            for name, topic in found
            if topic is not None and not self.clients.lacks_subscription(group, name)
        ]

    def _check_size(self, topics: Iterable[TopicConfig]) -> None:
        """Raise UsageError if a response with the queues of these topics is too large."""
        fixed = _QUEUE_BYTES + len(self.broker_name)
        size = sum(queue_count(topic) * (fixed + len(topic.topic_name)) for topic in topics)
        if size > _RESPONSE_BYTES_MAX:
            raise UsageError(
                f"the response would have about {size} bytes, more than {_RESPONSE_BYTES_MAX}; request one "
                "topic, or one group"
            )

    @handles(RequestCode.GET_BROKER_CONSUME_STATS)
    def all_consume_stats(self, channel: Channel, request: Command) -> Command:
        """Handle GET_BROKER_CONSUME_STATS."""
        only_ordered = request.header_as(GetConsumeStatsInBrokerHeader).is_order
        body = ConsumeStatsList(broker_addr=self.address)
        known = self.offsets.topics_by_group()
        consumed = {
            group: [
                topic
                for topic in self._consumed(group, known.get(group, ()))
                if topic.order or not only_ordered
            ]
            for group in self.groups.names
        }
        self._check_size(topic for topics in consumed.values() for topic in topics)
        for group, topics in consumed.items():
            found = []
            for topic in topics:
                stats = ConsumeStats(consume_tps=0.0)
                self._add_stats(stats, group, topic)
                body.total_diff += _lag(stats)
                found.append(stats)
            body.consume_stats_list.append({group: found})
        return request.reply(body=body.encode())

    def _add_stats(self, stats: ConsumeStats, group: str, topic: TopicConfig) -> None:
        name = topic.topic_name
        for queue in self._queues(topic):
            offset = max(self.offsets.get(group, name, queue.queue_id) or 0, 0)
            stats.offset_table[queue] = OffsetWrapper(
                broker_offset=self.store.max_offset_in_queue(name, queue.queue_id),
                consumer_offset=offset,
                last_timestamp=max(self._time(queue, offset - 1), 0) if offset > 0 else 0,
            )
        rate = self.stats.rate(GROUP_GET_NUMS, f"{name}@{group}", self.now_ms())
        stats.consume_tps = (stats.consume_tps or 0.0) + rate

    @handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def groups_of_topic(self, channel: Channel, request: Command) -> Command:
        """Handle QUERY_TOPIC_CONSUME_BY_WHO: groups that subscribe to a topic, or have offsets of it."""
        topic = request.header_as(QueryTopicConsumeByWhoRequestHeader).topic
        groups = dict.fromkeys(self.clients.groups_of(topic) + self.offsets.groups_of(topic))
        return request.reply(body=GroupList(group_list=list(groups)).encode())

    @handles(RequestCode.QUERY_CONSUME_TIME_SPAN)
    def time_spans(self, channel: Channel, request: Command) -> Command:
        """Handle QUERY_CONSUME_TIME_SPAN."""
        header = request.header_as(QueryConsumeTimeSpanRequestHeader)
        topic = self._topic(header.topic)
        self._check_size([topic])
        spans = [self._time_span(queue, header.group) for queue in self._queues(topic)]
        return request.reply(body=QueryConsumeTimeSpanBody(consume_time_span_set=spans).encode())

    def _time_span(self, queue: MessageQueue, group: str) -> QueueTimeSpan:
        topic, queue_id = queue.topic, queue.queue_id
        first = self.store.earliest_store_time(topic, queue_id)
        end = self.store.max_offset_in_queue(topic, queue_id)
        offset = self.offsets.get(group, topic, queue_id)
        waiting = self._time(queue, offset) if offset is not None and offset < end else -1
        return QueueTimeSpan(
            message_queue=queue,
            min_time_stamp=first,
            max_time_stamp=self._time(queue, end - 1),
            consume_time_stamp=self._time(queue, offset - 1) if offset else first,
            delay_time=system_clock() - waiting if waiting >= 0 else 0,
        )

    @handles(RequestCode.QUERY_CORRECTION_OFFSET)
    def correction_offsets(self, channel: Channel, request: Command) -> Command:
        """Handle QUERY_CORRECTION_OFFSET: the lowest offset of all groups but the filtered ones, by queue.

        The value is 2**63 - 1 for a queue where the compared group is behind all of these.
        """
        header = request.header_as(QueryCorrectionOffsetHeader)
        left_out = (header.filter_groups or "").split(",")
        lowest = {
            queue_id: offset
            for queue_id, offset in self.offsets.lowest(header.topic, left_out).items()
            if offset >= self.store.min_offset_in_queue(header.topic, queue_id)
        }
        for queue_id, offset in self.offsets.queues(header.compare_group, header.topic).items():
            if lowest.get(queue_id, -1) > offset:
                lowest[queue_id] = _LONG_MAX
        return request.reply(body=QueryCorrectionOffsetBody(correction_offsets=lowest).encode())

    @handles(RequestCode.VIEW_BROKER_STATS_DATA)
    def statistics(self, channel: Channel, request: Command) -> Command:
        """Handle VIEW_BROKER_STATS_DATA."""
        header = request.header_as(ViewBrokerStatsDataRequestHeader)
        self.sample()
        counter = self.stats.find(header.stats_name, header.stats_key)
        if counter is None:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        minute, hour, day = (counter.over(period, self.now_ms()) for period in ("minute", "hour", "day"))
        body = BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day)
        return request.reply(body=body.encode())

    def _topic(self, name: str) -> TopicConfig:
        """Return a topic. Raises Rejected without one."""
        topic = self.topics.get(name)
        if topic is None:
            missing = Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
            raise absent(self.store, f"topic {name}", missing)
        return topic

    def _queues(self, topic: TopicConfig) -> Iterator[MessageQueue]:
        """Yield the queues that are written or read."""
        for queue_id in range(queue_count(topic)):
            yield MessageQueue(topic.topic_name, self.broker_name, queue_id)

    def _time(self, queue: MessageQueue, offset: int) -> int:
        return self.store.store_timestamp(queue.topic, queue.queue_id, offset)


def _lag(stats: ConsumeStats) -> int:
    return sum(offset.broker_offset - offset.consumer_offset for offset in stats.offset_table.values())
