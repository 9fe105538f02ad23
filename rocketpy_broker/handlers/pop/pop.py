"""Takes messages of a topic for one consumer, and hides them from the others for a while.

Each queue that gives messages gets a check point in the revive topic, and the response leaves once it is
written. Source: PopMessageProcessor of RocketMQ 5.3.3. Differs: an expired or unreadable part of a queue is
skipped without a message for the group; both kinds of retry topics are read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple, Protocol

import msgspec

from rocketpy.errors import RocketError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.headers import (
    ANY_QUEUE,
    INIT_AT_MIN,
    POP_MAX_MESSAGES,
    NotificationRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.receipt import (
    ORDER_REVIVE_QUEUE,
    QueueKey,
    Receipt,
    TopicKind,
    encode_message_offsets,
    encode_order_counts,
    encode_start_offsets,
)
from rocketpy.protocol.message.record import MAX_TOPIC_BYTES, decode_all, encode, head_fields
from rocketpy.protocol.remoting.command import Command, response_flag
from rocketpy.protocol.remoting.frame import CODEC_JSON
from rocketpy.protocol.remoting.template import ASCII, DIGITS, NUMBER, HeaderTemplate, fields_template
from rocketpy.transport import Channel
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.filter import MessageFilter
from rocketpy_broker.handlers.base import Rejected, topic_not_found
from rocketpy_broker.handlers.pop.run import PopRun, check_ready
from rocketpy_broker.handlers.pull.pull_checks import PullChecks
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.services.pop.formats import INVISIBLE_MS_MAX, CheckPoint, PointKey
from rocketpy_broker.services.pop.order import PopOrder
from rocketpy_broker.services.pop.scheduler import PopService
from rocketpy_broker.services.stats import BrokerStats
from rocketpy_broker.store import (
    GetMessageResult,
    GetMessageStatus,
    MessageStore,
)
from rocketpy_broker.store.files.disk import Clock, system_clock

_READ_MS: Final = 2
"""Time limit of the reads of one pop: a topic may have thousands of queues."""
_BYTES_MAX: Final = 256 * 1024
"""A pop reads no further queue once it has so many bytes: clients accept frames of 16 MiB."""
_SMALL_BYTES: Final = 16 * 1024
_QUEUE_OFFSET: Final = head_fields("size", "queue_offset")
_MOVED: Final = frozenset(
    {
        GetMessageStatus.OFFSET_TOO_SMALL,
        GetMessageStatus.OFFSET_OVERFLOW_BADLY,
        GetMessageStatus.OFFSET_FOUND_NULL,
    }
)
"""Statuses of reads whose offset is outside the queue."""
_FOUND: Final = HeaderTemplate(
    ResponseCode.SUCCESS,
    fields_template(
        {
            **dict.fromkeys(("invisibleTime", "popTime", "restNum", "reviveQid"), DIGITS),
            **dict.fromkeys(("msgOffsetInfo", "startOffsetInfo"), ASCII),
        }
    ),
    NUMBER,
    GetMessageStatus.FOUND.name,
)
"""The response to a pop with messages; its values are in the order of the names."""


class PopNames(Protocol):
    """The header of a request for messages of a topic."""

    topic: str
    consumer_group: str
    queue_id: int
    """`ANY_QUEUE`, or one queue."""


class Pop(NamedTuple):
    """One admitted pop."""

    command: Command
    header: PopMessageRequestHeader
    wanted: MessageFilter


@dataclass(slots=True)
class Taken:
    """What a pop has taken."""

    pop_ms: int
    revive_queue: int
    bodies: list[bytes] = field(default_factory=list)
    count: int = 0
    size: int = 0
    """Bytes of the bodies."""
    end_ms: float | None = None
    """When the time for its reads is over; None before the first one."""
    rest: int = 0
    """Number of messages that are left in the queues that it has looked into."""
    is_unfinished: bool = False
    """Whether messages are left that its filter has not seen."""
    start_offsets: dict[QueueKey, int] = field(default_factory=dict)
    message_offsets: dict[QueueKey, list[int]] = field(default_factory=dict)
    free_ms: int = 0
    """With a pop in order, when the next of the queues that wait for acknowledgements is free; 0 for none."""
    order_counts: dict[tuple[TopicKind, int, int | None], int] = field(default_factory=dict)
    """See `OrderCounts`."""
    is_first: bool = False
    """Whether the group begins with this pop: it decides where, in each queue."""

    def add(self, key: QueueKey, begin: int, offsets: list[int], body: bytes) -> None:
        """Add the messages of a queue, which was read from `begin` on."""
        self.bodies.append(body)
        self.count += len(offsets)
        self.size += len(body)
        self.start_offsets[key] = begin
        self.message_offsets[key] = offsets


@dataclass(eq=False)
class PopHandler:
    """Serves pops."""

    store: MessageStore
    topics: TopicTable
    checks: PullChecks
    offsets: ConsumerOffsets
    service: PopService
    order: PopOrder
    run: PopRun
    config: BrokerConfig
    _: KW_ONLY
    stats: BrokerStats
    now_ms: Callable[[], float]
    """A monotonic clock."""
    clock: Clock = system_clock

    def admit(self, channel: Channel, request: Command) -> Pop:
        """Check a pop. Raises Rejected, ChangePending."""
        header = request.header_as(PopMessageRequestHeader)
        self.check(channel, header)
        check_count(header.max_msg_nums)
        if not 0 < header.invisible_time <= INVISIBLE_MS_MAX:
            text = f"an invisible time of {header.invisible_time} ms; 1 to {INVISIBLE_MS_MAX} are allowed"
            raise Rejected(ResponseCode.INVALID_PARAMETER, text)
        longest = TopicKind.RETRY_V1.topic(header.topic, header.consumer_group)
        if len(longest) > MAX_TOPIC_BYTES:
            text = (
                f"the names of topic {header.topic} and group {header.consumer_group} are too long for POP: "
                f"their retry topic would have {len(longest)} characters, and {MAX_TOPIC_BYTES} are allowed"
            )
            raise Rejected(ResponseCode.INVALID_PARAMETER, text)
        wanted = self.checks.filter_in_request(
            channel, header.consumer_group, header.topic, header.exp, header.exp_type
        )
        return Pop(request, header, wanted)

    def check_in_flight(self) -> None:
        """Raise Rejected if no further pop may have messages."""
        in_flight = len(self.service.points.in_flight)
        if in_flight >= self.config.pop.in_flight_max:
            text = f"{in_flight} pops are in flight (maxPopCheckPoints); acknowledge their messages"
            raise Rejected(ResponseCode.SYSTEM_BUSY, text)

    def check(self, channel: Channel, header: PopNames) -> None:
        """Raise Rejected if a group may not pop from a topic now."""
        check_ready(self.store, self.service)
        topic = self.checks.check_names(header.consumer_group, header.topic)
        if topic is None:
            raise topic_not_found(header.topic)
        if not ANY_QUEUE <= header.queue_id < topic.read_queue_nums:
            text = (
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{channel.remote_address}]"
            )
            raise Rejected(ResponseCode.INVALID_PARAMETER, text)

    # -- taking -------------------------------------------------------------------------------

    def take(self, pop: Pop) -> Taken:
        """Take messages, and append their check points; the result has none if there are none.

        The caller then calls `deliver`, or `response` if there are none. Raises RocketError if there are
        none because a queue cannot be read.
        """
        header, points, failure = pop.header, self.service.points, None
        taken = Taken(self.clock(), ORDER_REVIVE_QUEUE if header.order else points.next_queue())
        taken.is_first = not points.has_popped(header.topic, header.consumer_group)
        for topic, kind, queue_id in self.queues(header):
            if taken.rest and not taken.is_first and not self._room(pop, taken):
                break
            try:
                if not header.order:
                    self._take_from(pop, taken, topic, kind, queue_id)
                elif kind is TopicKind.NORMAL:
                    self._take_in_order(pop, taken, queue_id)
            except RocketError as error:  # maybe of one queue: others may have messages
                failure = failure or error
        if failure is not None and not taken.count:
            raise failure
        return taken

    def queues(self, header: PopNames) -> Iterator[tuple[str, TopicKind, int]]:
        """Yield the queues to look into, from a random one on. Some pops look for retries first."""
        draw = random.randrange(100)
        retries_first = draw < self.config.pop.retry_share
        if retries_first:
            yield from self._queues_of(header, self._retry_kind(header), draw)
        if header.queue_id >= 0:
            yield header.topic, TopicKind.NORMAL, header.queue_id
        else:
            yield from self._queues_of(header, TopicKind.NORMAL, draw)
        if not retries_first:
            yield from self._queues_of(header, self._retry_kind(header), draw)

    def _retry_kind(self, header: PopNames) -> TopicKind:
        """Return which retry topic to look into: of two, any, as a response has messages of only one."""
        kinds = [
            kind
            for kind in (TopicKind.RETRY_V1, TopicKind.RETRY_V2)
            if self.topics.get(kind.topic(header.topic, header.consumer_group)) is not None
        ]
        return random.choice(kinds) if kinds else TopicKind.RETRY_V1

    def _queues_of(
        self, header: PopNames, kind: TopicKind, draw: int
    ) -> Iterator[tuple[str, TopicKind, int]]:
        name = kind.topic(header.topic, header.consumer_group)
        topic = self.topics.get(name)
        count = 0 if topic is None else topic.read_queue_nums
        for number in range(count):
            yield name, kind, (draw + number) % count

    def next_offset(self, header: PopNames, topic: str, queue_id: int) -> int:
        """Return the offset from which a group would pop a queue."""
        offset = self.service.points.next_offset(topic, header.consumer_group, queue_id)
        return self.store.min_offset_in_queue(topic, queue_id) if offset is None else offset

    def rest(self, header: NotificationRequestHeader) -> tuple[int, int]:
        """Return the number of messages to pop, and when the next blocked queue is free; 0 for none."""
        rest = free_ms = 0
        for kind in (TopicKind.NORMAL,) if header.order else TopicKind:
            name = kind.topic(header.topic, header.consumer_group)
            if kind is TopicKind.NORMAL and header.queue_id >= 0:
                queue_ids: Iterable[int] = (header.queue_id,)
            else:
                topic = self.topics.get(name)
                queue_ids = range(0 if topic is None else topic.read_queue_nums)
            for queue_id in queue_ids:
                if header.order and (blocked_ms := self._blocked_ms(header, queue_id, header.attempt_id)):
                    free_ms = min(blocked_ms, free_ms or blocked_ms)
                    continue
                end = self.store.max_offset_in_queue(name, queue_id)
                rest += max(end - self.next_offset(header, name, queue_id), 0)
        return rest, free_ms

    def _blocked_ms(self, header: PopNames, queue_id: int, attempt_id: str | None) -> int:
        return self.order.free_ms(header.topic, header.consumer_group, queue_id, attempt_id)

    def _take_in_order(self, pop: Pop, taken: Taken, queue_id: int) -> None:
        """Take messages of a queue, unless it waits for acknowledgements. They need no check point."""
        header = pop.header
        topic, group = header.topic, header.consumer_group
        if blocked_ms := self._blocked_ms(header, queue_id, header.attempt_id):
            taken.free_ms = min(blocked_ms, taken.free_ms or blocked_ms)
            return
        begin = self._begin(header, taken, topic, TopicKind.NORMAL, queue_id)
        found = self._read_from(pop, taken, topic, queue_id, begin)
        if found is None:
            return
        begin, result = found
        if result.count:
            self._add_in_order(pop, taken, queue_id, begin, result)
        elif result.next_begin_offset > begin:
            self.offsets.commit(group, topic, queue_id, result.next_begin_offset)
            taken.is_unfinished |= result.next_begin_offset < result.max_offset
        taken.rest += max(result.max_offset - result.next_begin_offset, 0)

    def _add_in_order(
        self, pop: Pop, taken: Taken, queue_id: int, begin: int, result: GetMessageResult
    ) -> None:
        header = pop.header
        offsets = _queue_offsets(result.body)
        counts = self.order.popped(
            header.topic,
            header.consumer_group,
            queue_id,
            offsets,
            pop_ms=taken.pop_ms,
            invisible_ms=header.invisible_time,
            attempt_id=header.attempt_id,
        )
        for offset, count in counts.items():
            taken.order_counts[TopicKind.NORMAL, queue_id, offset] = count
        is_any_new = len(counts) < len(offsets)
        taken.order_counts[TopicKind.NORMAL, queue_id, None] = 0 if is_any_new else min(counts.values())
        taken.add((TopicKind.NORMAL, queue_id), begin, offsets, result.body)
        self.stats.count_pulled(header.topic, header.consumer_group, result.count, len(result.body))

    def _begin(
        self, header: PopMessageRequestHeader, taken: Taken, topic: str, kind: TopicKind, queue_id: int
    ) -> int:
        """Return the offset of the next message; a new group begins where its pop asks for."""
        begin = self.service.points.next_offset(topic, header.consumer_group, queue_id)
        if begin is None:
            taken.is_first = True  # also after the topic or group was deleted
            begin = self._first_offset(header, topic, kind, queue_id)
            self.offsets.commit(header.consumer_group, topic, queue_id, begin)
        return begin

    def _take_from(self, pop: Pop, taken: Taken, topic: str, kind: TopicKind, queue_id: int) -> None:
        header, points = pop.header, self.service.points
        group = header.consumer_group
        asked = self._begin(header, taken, topic, kind, queue_id)
        found = self._read_from(pop, taken, topic, queue_id, asked)
        if found is None:
            return
        begin, result = found
        if begin != asked:
            points.popped(topic, group, queue_id, begin)
        if result.count:
            key = points.free_key(PointKey(topic, group, queue_id, begin, taken.pop_ms))
            if taken.count and key.pop_ms != taken.pop_ms:  # all receipts of a response have one time
                taken.rest += max(result.max_offset - begin, 0)
                return
            taken.pop_ms = key.pop_ms
            self._add(pop, taken, key, kind, result)
        if result.next_begin_offset > begin:
            points.popped(topic, group, queue_id, result.next_begin_offset)
            if not result.count:  # otherwise `deliver` does this
                self.service.changed()
            taken.is_unfinished |= result.next_begin_offset < result.max_offset
        taken.rest += max(result.max_offset - result.next_begin_offset, 0)

    def _read_from(
        self, pop: Pop, taken: Taken, topic: str, queue_id: int, begin: int
    ) -> tuple[int, GetMessageResult] | None:
        """Read a queue from an offset on, or from its first message if that is later.

        Returns the offset of the read and its result; None if the pop takes nothing from the queue.
        """
        wanted = self._wanted(pop, taken, topic, queue_id, begin)
        if not wanted:
            return None
        result = self._read(pop, taken, topic, queue_id, begin, wanted)
        if result.status in _MOVED and result.next_begin_offset != begin:
            begin = result.next_begin_offset
            result = self._read(pop, taken, topic, queue_id, begin, wanted)
        return begin, result

    def _first_offset(
        self, header: PopMessageRequestHeader, topic: str, kind: TopicKind, queue_id: int
    ) -> int:
        """Return where a new group begins: at the first message, or at the last one.

        A group that begins at the end gets all messages of a queue that has them in memory, since it may have
        been started together with the producers.
        """
        first = self.store.min_offset_in_queue(topic, queue_id)
        if header.init_mode == INIT_AT_MIN or kind is not TopicKind.NORMAL:
            return first
        if first <= 0 and self.store.is_in_memory(topic, queue_id, 0):
            return 0
        return max(self.store.max_offset_in_queue(topic, queue_id) - 1, 0)

    def _wanted(self, pop: Pop, taken: Taken, topic: str, queue_id: int, begin: int) -> int:
        """Return how many messages a pop still takes from a queue; 0 if it does not read it."""
        end = self.store.appended_in_queue(topic, queue_id)  # no dispatch for each empty queue
        if begin == end:
            return 0
        wanted = self._room(pop, taken)
        if not wanted:
            taken.rest += max(end - begin, 0)
        return wanted

    def _room(self, pop: Pop, taken: Taken) -> int:
        """Return how many messages a pop may still take, from queues that it has not read."""
        if taken.size >= _BYTES_MAX:
            return 0
        if taken.end_ms is not None and self.now_ms() >= taken.end_ms:
            taken.is_unfinished = True
            return 0
        return pop.header.max_msg_nums - taken.count

    def _read(
        self, pop: Pop, taken: Taken, topic: str, queue_id: int, offset: int, count: int
    ) -> GetMessageResult:
        wanted, is_over = pop.wanted, None
        taken.end_ms = end_ms = self.now_ms() + _READ_MS if taken.end_ms is None else taken.end_ms
        if wanted.accepts is not None:
            is_over = lambda: self.now_ms() >= end_ms  # noqa: E731
        return self.store.get_message(
            topic,
            queue_id,
            offset,
            count,
            tag_codes=wanted.tag_codes,
            accepts=wanted.accepts,
            is_over=is_over,
        )

    def _add(self, pop: Pop, taken: Taken, key: PointKey, kind: TopicKind, result: GetMessageResult) -> None:
        header, service = pop.header, self.service
        topic, _, queue_id, begin, _ = key
        offsets = _queue_offsets(result.body)
        diffs = [offset - begin for offset in offsets]
        point = CheckPoint(key, header.invisible_time, diffs, taken.revive_queue, self.config.name)
        service.points.append_point(point, taken.pop_ms, self.run.append)
        body = result.body
        if kind is not TopicKind.NORMAL and not self.config.pop.shows_retry_topic:
            receipt = Receipt(
                begin,
                taken.pop_ms,
                header.invisible_time,
                taken.revive_queue,
                kind,
                self.config.name,
                queue_id,
            )
            body = _with_topic(body, header.topic, receipt)
        taken.add((kind, queue_id), begin, offsets, body)
        self.stats.count_pulled(topic, header.consumer_group, result.count, len(body))

    # -- responding ---------------------------------------------------------------------------

    def deliver(self, channel: Channel, pop: Pop, taken: Taken) -> None:
        """Respond with messages, once their check points are stored. A pop in order has none.

        Outside of a request, the caller then calls `SendHandler.end_of_buffer`.
        """
        response = self.response(pop, taken, ResponseCode.SUCCESS)
        if pop.header.order:
            channel.reply(response)
        else:
            self.run.respond(channel, pop.command, response)

    def response(self, pop: Pop, taken: Taken, code: int) -> Command | bytes:
        """Return the response to a pop. code: SUCCESS, POLLING_TIMEOUT or POLLING_FULL."""
        request = pop.command
        is_small = taken.count and taken.size <= _SMALL_BYTES  # a larger body is sent without a copy
        if is_small and not taken.order_counts and request.codec == CODEC_JSON:
            values = (
                pop.header.invisible_time,
                encode_message_offsets(taken.message_offsets).encode(),
                taken.pop_ms,
                taken.rest,
                taken.revive_queue,
                encode_start_offsets(taken.start_offsets).encode(),
                response_flag(request),
                request.opaque,
            )
            return _FOUND.frame(values, b"".join(taken.bodies))
        status = GetMessageStatus.FOUND if taken.count else GetMessageStatus.NO_MESSAGE_IN_QUEUE
        header = PopMessageResponseHeader(
            pop_time=taken.pop_ms,
            invisible_time=pop.header.invisible_time,
            revive_qid=taken.revive_queue,
            rest_num=taken.rest,
            start_offset_info=encode_start_offsets(taken.start_offsets),
            msg_offset_info=encode_message_offsets(taken.message_offsets),
            order_count_info=encode_order_counts(taken.order_counts) if taken.order_counts else None,
        )
        return request.reply(code, remark=status.name, header=header, body=b"".join(taken.bodies))


def check_count(count: int) -> None:
    """Raise Rejected for a wrong number of messages."""
    if not 0 < count <= POP_MAX_MESSAGES:
        text = f"a pop of {count} messages; 1 to {POP_MAX_MESSAGES} are allowed"
        raise Rejected(ResponseCode.INVALID_PARAMETER, text)


def _queue_offsets(records: bytes) -> list[int]:
    """Return the queue offset of each record."""
    offsets, at = [], 0
    while at < len(records):
        size, offset = _QUEUE_OFFSET.unpack_from(records, at)
        offsets.append(offset)
        at += size
    return offsets


def _with_topic(records: bytes, topic: str, receipt: Receipt) -> bytes:
    """Return retried messages as those of their original topic, with their receipts."""
    changed = []
    for record in decode_all(records, check_crc=False):
        properties = props.decode(record.properties)
        properties.setdefault(props.POP_RECEIPT, receipt._replace(queue_offset=record.queue_offset).encode())
        text = props.encode(properties).encode()
        changed.append(encode(msgspec.structs.replace(record, topic=topic, properties=text)))
    return b"".join(changed)
