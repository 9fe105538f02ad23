"""Offsets and statistics of topics and their consumers, for operators.

Source: AdminBrokerProcessor of RocketMQ 4.6.0. Differs: QUERY_CORRECTION_OFFSET reads only
(4.6.0 looks up the compared group as a topic, and deletes the offsets of the filtered groups). Responses have
the queues that are written or read (in 4.6.0, depending on the request, those for writing or for reading).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Final

from rocketpy.errors import UsageError
from rocketpy.protocol.bodies import (
    Body,
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    MessageQueue,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QuerySubscriptionResponseBody,
    QueueTimeSpan,
    TopicConfig,
    TopicList,
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
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
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
from rocketpy_broker.services.slices import Slices, encoding
from rocketpy_broker.services.stats import GROUP_GET_NUMS, BrokerStats
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.files.disk import system_clock

Work = Generator[None, None, Command]
"""Makes a response in slices: a broker may have a million queues."""

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
    slices: Slices
    now_ms: Callable[[], float]
    """A monotonic clock."""
    sampling: Callable[[], Generator[None, None, None]]
    """Updates the statistics, for `slices`."""
    in_flight: Callable[[str, str, int], int] = lambda *_: 0
    """Returns how many messages of a topic, group and queue id are popped and not acknowledged."""

    @handles(RequestCode.GET_TOPIC_STATS_INFO)
    async def topic_stats(self, channel: Channel, request: Command) -> Command:
        """Handle GET_TOPIC_STATS_INFO."""
        return await self.slices.run(self._topic_stats(request), channel)

    def _topic_stats(self, request: Command) -> Work:
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
            if self.slices.is_over():
                yield
        return (yield from self._reply(request, TopicStatsTable(offset_table=table)))

    def _reply(self, request: Command, body: Body) -> Work:
        return request.reply(body=(yield from encoding(body, self.slices.is_over)))

    @handles(RequestCode.GET_CONSUME_STATS)
    async def consume_stats(self, channel: Channel, request: Command) -> Command:
        """Handle GET_CONSUME_STATS."""
        return await self.slices.run(self._consume_stats(request), channel)

    def _consume_stats(self, request: Command) -> Work:
        header = request.header_as(GetConsumeStatsRequestHeader)
        group = header.consumer_group
        stats = ConsumeStats(consume_tps=0.0)
        names = [header.topic] if header.topic else (yield from self._topics_by_group()).get(group, ())
        topics = self._consumed(group, names)
        self._check_size(topics)
        for topic in topics:
            yield from self._add_stats(stats, group, topic)
        return (yield from self._reply(request, stats))

    def _topics_by_group(self) -> Generator[None, None, dict[str, list[str]]]:
        """Return group -> topics of which it has offsets."""
        topics: dict[str, list[str]] = {}
        for topic, group in self.offsets.pairs:
            topics.setdefault(group, []).append(topic)
            if self.slices.is_over():
                yield
        return topics

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
    async def all_consume_stats(self, channel: Channel, request: Command) -> Command:
        """Handle GET_BROKER_CONSUME_STATS."""
        return await self.slices.run(self._all_consume_stats(request), channel)

    def _all_consume_stats(self, request: Command) -> Work:
        only_ordered = request.header_as(GetConsumeStatsInBrokerHeader).is_order
        body = ConsumeStatsList(broker_addr=self.address)
        known = yield from self._topics_by_group()
        consumed: dict[str, list[TopicConfig]] = {}
        for group in self.groups.names:
            topics = self._consumed(group, known.get(group, ()))
            consumed[group] = [topic for topic in topics if topic.order or not only_ordered]
            if self.slices.is_over():
                yield
        self._check_size(topic for topics in consumed.values() for topic in topics)
        for group, topics in consumed.items():
            found = []
            for topic in topics:
                stats = ConsumeStats(consume_tps=0.0)
                yield from self._add_stats(stats, group, topic)
                body.total_diff += _lag(stats)
                found.append(stats)
            body.consume_stats_list.append({group: found})
        return (yield from self._reply(request, body))

    def _add_stats(self, stats: ConsumeStats, group: str, topic: TopicConfig) -> Iterator[None]:
        name = topic.topic_name
        for queue in self._queues(topic):
            offset = max(self.offsets.get(group, name, queue.queue_id) or 0, 0)
            in_flight = self.in_flight(name, group, queue.queue_id)
            stats.offset_table[queue] = OffsetWrapper(
                broker_offset=self.store.max_offset_in_queue(name, queue.queue_id),
                consumer_offset=offset,
                last_timestamp=max(self._time(queue, offset - 1), 0) if offset > 0 else 0,
                pull_offset=offset + in_flight,  # RocketMQ 5.x subtracts the consumer offset from it
            )
            if self.slices.is_over():
                yield
        rate = self.stats.rate(GROUP_GET_NUMS, f"{name}@{group}", self.now_ms())
        stats.consume_tps = (stats.consume_tps or 0.0) + rate

    @handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    async def groups_of_topic(self, channel: Channel, request: Command) -> Command:
        """Handle QUERY_TOPIC_CONSUME_BY_WHO: groups that subscribe to a topic, or have offsets of it."""
        return await self.slices.run(self._groups_of_topic(request), channel)

    def _groups_of_topic(self, request: Command) -> Work:
        topic = request.header_as(QueryTopicConsumeByWhoRequestHeader).topic
        groups = dict.fromkeys(self.clients.groups_of(topic))
        for name, group in self.offsets.pairs:
            if name == topic:
                groups[group] = None
            if self.slices.is_over():
                yield
        return request.reply(body=GroupList(group_list=list(groups)).encode())

    @handles(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    async def topics_of_group(self, channel: Channel, request: Command) -> Command:
        """Handle QUERY_TOPICS_BY_CONSUMER of RocketMQ 5: topics of which a group has offsets."""
        return await self.slices.run(self._topics_of_group(channel, request), channel)

    def _topics_of_group(self, channel: Channel, request: Command) -> Work:
        group = request.header_as(QueryTopicsByConsumerRequestHeader).group
        topics = []
        for topic, name in self.offsets.pairs:
            if name == group:
                topics.append(topic)
            if self.slices.is_over():
                yield
        return request.reply(body=TopicList(topic_list=topics, broker_addr=channel.local_address).encode())

    @handles(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription_of_group(self, channel: Channel, request: Command) -> Command:
        """Handle QUERY_SUBSCRIPTION_BY_CONSUMER of RocketMQ 5: how the members subscribe to a topic."""
        header = request.header_as(QuerySubscriptionByConsumerRequestHeader)
        found = self.clients.subscription(header.group, header.topic or "")
        body = QuerySubscriptionResponseBody(group=header.group, topic=header.topic, subscription_data=found)
        return request.reply(body=body.encode())

    @handles(RequestCode.QUERY_CONSUME_TIME_SPAN)
    async def time_spans(self, channel: Channel, request: Command) -> Command:
        """Handle QUERY_CONSUME_TIME_SPAN."""
        return await self.slices.run(self._time_spans(request), channel)

    def _time_spans(self, request: Command) -> Work:
        header = request.header_as(QueryConsumeTimeSpanRequestHeader)
        topic = self._topic(header.topic)
        self._check_size([topic])
        spans: list[QueueTimeSpan] = []
        for queue in self._queues(topic):
            spans.append(self._time_span(queue, header.group))
            if self.slices.is_over():
                yield
        return (yield from self._reply(request, QueryConsumeTimeSpanBody(consume_time_span_set=spans)))

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
    async def statistics(self, channel: Channel, request: Command) -> Command:
        """Handle VIEW_BROKER_STATS_DATA."""
        header = request.header_as(ViewBrokerStatsDataRequestHeader)
        await self.slices.run(self.sampling(), channel)
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
    """Return how many messages a group has not consumed. In 4.6.0, an offset beyond the end hides others."""
    queues = stats.offset_table.values()
    return sum(max(queue.broker_offset - queue.consumer_offset, 0) for queue in queues)
