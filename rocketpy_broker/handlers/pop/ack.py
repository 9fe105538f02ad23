"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME: what becomes of popped messages.

The response leaves once the record in the revive topic is stored, as a send has to be. Source:
AckMessageProcessor, ChangeInvisibleTimeProcessor of RocketMQ 5.3.3. Differs: a receipt that is used up, or
whose time is over, gets NO_MESSAGE; RocketMQ reports success. There, a message that is acknowledged comes
again if its invisible time is changed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final

from rocketpy.errors import MessageInvalid
from rocketpy.protocol.bodies import BatchAck, BatchAckMessageRequestBody
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from rocketpy.protocol.message.receipt import ORDER_REVIVE_QUEUE, Receipt, TopicKind
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.base import Rejected, handles, topic_not_found
from rocketpy_broker.handlers.pop.run import Place, PopRun, check_ready, gone_error
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.services.pop.formats import INVISIBLE_MS_MAX, MESSAGES_MAX, CheckPoint, PointKey
from rocketpy_broker.services.pop.order import PopOrder
from rocketpy_broker.services.pop.scheduler import PopService
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.files.disk import Clock, system_clock

_ACKS_MAX: Final = 1024
"""Most entries of a BATCH_ACK_MESSAGE: each appends a record."""
_NAMED_MAX: Final = 10
"""Most receipts that a response names."""


@dataclass(eq=False)
class AckHandler:
    """Handles what consumers say about popped messages."""

    store: MessageStore
    topics: TopicTable
    service: PopService
    order: PopOrder
    run: PopRun
    config: BrokerConfig
    _: KW_ONLY
    on_freed: Callable[[str, str, int], None]
    """Called with topic, group and queue id after the messages of a pop in order have changed."""
    clock: Clock = system_clock

    @handles(RequestCode.ACK_MESSAGE)
    def ack(self, channel: Channel, request: Command) -> Command | None:
        """Handle ACK_MESSAGE."""
        header = request.header_as(AckMessageRequestHeader)
        place = self._place(channel, header)
        if place.revive_queue != ORDER_REVIVE_QUEUE:
            self.run.acknowledge(channel, request, place, header.offset)
            return None
        if self._acknowledge_in_order(place, [header.offset]):
            raise gone_error(place, [header.offset], self.clock())
        return request.reply()

    @handles(RequestCode.BATCH_ACK_MESSAGE)
    def batch_ack(self, channel: Channel, request: Command) -> Command | None:
        """Handle BATCH_ACK_MESSAGE.

        The response has NO_MESSAGE if none of the messages was in flight. If only some were not, its remark
        names these.
        """
        check_ready(self.store, self.service)
        body = BatchAckMessageRequestBody.decode(request.body)
        if not body.acks:
            raise Rejected(ResponseCode.NO_MESSAGE, "the request names no message")
        if len(body.acks) > _ACKS_MAX:
            text = f"{len(body.acks)} acknowledgements in one request; {_ACKS_MAX} are allowed"
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, text)
        places = [(self._place_in_batch(ack), list(ack.offsets())) for ack in body.acks]
        self.run.later(channel, request, partial(self._acknowledge_batch, channel, request, places))
        return None

    def _acknowledge_batch(
        self, channel: Channel, request: Command, places: Sequence[tuple[Place, Sequence[int]]]
    ) -> Command | None:
        gone: list[Rejected] = []
        count = 0
        for place, offsets in places:
            missing = self._acknowledge(place, offsets)
            count += len(offsets) - len(missing)
            if missing:
                gone.append(gone_error(place, missing, self.clock()))
        remark = _few("; ", map(str, gone)) or None
        if not count:
            raise Rejected(ResponseCode.NO_MESSAGE, remark or "the request names no message")
        response = request.reply(remark=remark)
        if all(place.revive_queue == ORDER_REVIVE_QUEUE for place, _ in places):
            return response
        self.run.respond(channel, request, response)
        return None

    @handles(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    def change(self, channel: Channel, request: Command) -> Command | None:
        """Handle CHANGE_MESSAGE_INVISIBLETIME: a new check point of one message replaces the old one."""
        header = request.header_as(ChangeInvisibleTimeRequestHeader)
        place, now_ms, points = self._place(channel, header), self.clock(), self.service.points
        if not 0 <= header.invisible_time <= INVISIBLE_MS_MAX:
            text = f"an invisible time of {header.invisible_time} ms; 0 to {INVISIBLE_MS_MAX} are allowed"
            raise Rejected(ResponseCode.INVALID_PARAMETER, text)
        if place.revive_queue == ORDER_REVIVE_QUEUE:
            return self._change_in_order(place, request, header, now_ms)
        self.run.append_acks()
        known = points.in_flight.points.get(place.key)
        is_left = known is not None and points.left(known, [header.offset], now_ms)
        if not is_left and (
            known is not None or not points.may_be_timer(place.key, place.invisible_ms, now_ms)
        ):
            raise gone_error(place, [header.offset], now_ms)
        key = points.free_key(place.key._replace(start_offset=header.offset, pop_ms=now_ms), place.key)
        point = CheckPoint(key, header.invisible_time, [0], place.revive_queue, self.config.name)
        points.append_point(point, now_ms, self.run.append, is_pop=False)
        self._acknowledge(place, [header.offset])
        response = ChangeInvisibleTimeResponseHeader(
            pop_time=key.pop_ms, invisible_time=header.invisible_time, revive_qid=place.revive_queue
        )
        self.run.respond(channel, request, request.reply(header=response))
        return None

    # -- in order -----------------------------------------------------------------------------

    def _change_in_order(
        self, place: Place, request: Command, header: ChangeInvisibleTimeRequestHeader, now_ms: int
    ) -> Command:
        """Set when a message of a pop in order is visible again; its receipt stays the same."""
        key = place.key
        # Not in the millisecond of the pop: another pop in it would have the same receipts.
        visible_ms = max(now_ms + header.invisible_time, key.pop_ms + 1)
        queue = key.topic, key.group, key.queue_id
        if not self.order.set_visible(*queue, header.offset, pop_ms=key.pop_ms, visible_ms=visible_ms):
            raise gone_error(place, [header.offset], now_ms)
        self.on_freed(*queue)
        response = ChangeInvisibleTimeResponseHeader(
            pop_time=key.pop_ms, invisible_time=visible_ms - key.pop_ms, revive_qid=place.revive_queue
        )
        return request.reply(header=response)

    def _acknowledge_in_order(self, place: Place, offsets: Sequence[int]) -> list[int]:
        """Return the offsets of the messages that were not in flight."""
        key, acknowledge = place.key, self.order.acknowledge
        gone = [
            offset
            for offset in offsets
            if not acknowledge(key.topic, key.group, key.queue_id, offset, key.pop_ms)
        ]
        self.on_freed(key.topic, key.group, key.queue_id)
        return gone

    # -- shared -------------------------------------------------------------------------------

    def _acknowledge(self, place: Place, offsets: Sequence[int]) -> list[int]:
        """Acknowledge messages; return the offsets of those that were not in flight."""
        if place.revive_queue == ORDER_REVIVE_QUEUE:
            return self._acknowledge_in_order(place, offsets)
        return self.service.points.acknowledge(
            place.key, offsets, place.revive_queue, place.invisible_ms, self.clock(), self.run.append
        )

    def _place(self, channel: Channel, header: AckMessageRequestHeader) -> Place:
        """Return what the receipt of a request names. Raises Rejected."""
        check_ready(self.store, self.service)
        topic = self.topics.get(header.topic)
        if topic is None:
            raise topic_not_found(header.topic)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            text = (
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{channel.remote_address}]"
            )
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, text)
        try:
            receipt = Receipt.decode(header.extra_info)
        except MessageInvalid as error:
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        key = PointKey(
            header.topic, header.consumer_group, header.queue_id, receipt.checkpoint_offset, receipt.pop_time
        )
        return self._checked(Place(key, receipt.invisible_time, receipt.revive_queue))

    def _place_in_batch(self, ack: BatchAck) -> Place:
        if ack.count > MESSAGES_MAX:
            text = f"one entry acknowledges {ack.count} messages; a pop has up to {MESSAGES_MAX} of a queue"
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, text)
        topic = ack.topic
        if ack.retry in (TopicKind.RETRY_V1, TopicKind.RETRY_V2):
            topic = TopicKind(ack.retry).topic(ack.topic, ack.consumer_group)
        if self.topics.get(topic) is None:
            raise topic_not_found(topic)
        key = PointKey(topic, ack.consumer_group, ack.queue_id, ack.start_offset, ack.pop_time)
        return self._checked(Place(key, ack.invisible_time, ack.revive_queue_id))

    def _checked(self, place: Place) -> Place:
        if place.revive_queue == ORDER_REVIVE_QUEUE:
            return place
        known = self.service.points.in_flight.points.get(place.key)
        if known is not None:  # the broker may have had more revive queues
            if known.revive_queue == place.revive_queue:
                return place
            return place._replace(revive_queue=known.revive_queue)
        if not 0 <= place.revive_queue < self.config.pop.revive_queues:
            text = (
                f"the receipt names revive queue {place.revive_queue}, and this broker has "
                f"{self.config.pop.revive_queues} (reviveQueueNum)"
            )
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, text)
        return place


def _few(separator: str, texts: Iterable[str]) -> str:
    """Return the first texts, and the number of the others."""
    few = list(texts)
    more = [f"and {len(few) - _NAMED_MAX} more"] if len(few) > _NAMED_MAX else []
    return separator.join(few[:_NAMED_MAX] + more)
