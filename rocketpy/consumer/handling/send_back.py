"""SendBack: returns failed messages to the broker, for redelivery or for the dead-letter topic.

CONSUMER_SEND_MSG_BACK asks the broker that stores the message to redeliver it. If this fails, a copy is sent
to the group's retry topic on any broker.

Source: RocketMQ 4.6 DefaultMQPushConsumerImpl sendMessageBack, ConsumeMessageOrderlyService sendMessageBack.
"""

from __future__ import annotations

import logging
import random
import time
from typing import Final

from rocketpy.client.broker_api import broker_error, require_success
from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import unwrap, wrap
from rocketpy.client.routing.routes import usable_queues
from rocketpy.consumer.fetch.consumer_api import is_rejection
from rocketpy.consumer.fetch.subscription import retry_topic
from rocketpy.errors import RocketError, RouteNotFound
from rocketpy.hooks import SettleEvent, SettleListener
from rocketpy.message.message import DEFAULT_TOPIC, MessageExt
from rocketpy.producer.send.response import STATUSES, LessDurable
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import (
    BrokerFeature,
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeaderV2,
)
from rocketpy.protocol.message import properties as names
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.results import SendStatus
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.telemetry.listeners import ListenerFanout

log: Final = logging.getLogger("rocketpy.consumer")

_TIMEOUT_MS: Final = 5000
"""RocketMQ: 5000, fixed."""
_FIRST_RETRY_LEVEL: Final = 3
_INT_MAX: Final = 2**31 - 1


class SendBack:
    """Sends back messages of a group. group: with its namespace. settle_listeners: notified of each."""

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        settle_listeners: ListenerFanout[SettleListener],
        *,
        unit_mode: bool,
    ) -> None:
        self._client = client
        self._group = group
        self._settle_listeners = settle_listeners
        self._unit_mode = unit_mode
        self._limited_log = RateLimitedLog(log)
        self._less_durable = LessDurable()
        self._rejects_copies: set[str] = set()

    async def send_back(
        self,
        message: MessageExt,
        queue: MessageQueue,
        delay_level: int,
        max_reconsume_times: int,
        reason: str | None = None,
    ) -> None:
        """Let a message be redelivered, by its broker or as a copy.

        queue: the source queue. delay_level: 0 is the broker's choice, -1 the dead-letter topic, where
        the message also goes after `max_reconsume_times`. reason: why, for a dead letter. Raises the error of
        the copy if both ways fail.
        """
        started_ns = time.time_ns()
        if delay_level >= 0 and message.reconsume_times < max_reconsume_times:
            reason = None
        elif await self._send_with_reason(message, queue, delay_level, reason, started_ns):
            return
        try:
            address = await self._request_redelivery(message, queue, delay_level, max_reconsume_times, reason)
        except RocketError as error:
            self._limited_log.warning(
                f"{type(error).__name__} {queue.broker_name}",
                "broker %s did not accept %s for redelivery: %s; sending a copy to the retry topic",
                queue.broker_name,
                message,
                error,
            )
            # Brokers of 4.x store a copy as a dead letter from the maximum on, those of 5.x only above it.
            times = (
                message.reconsume_times + 1 if delay_level >= 0 else min(max_reconsume_times + 1, _INT_MAX)
            )
            await self._send_copy(message, times, max_reconsume_times, started_ns, delay_level, error, reason)
        else:
            self._notify(message, started_ns, delay_level, address)

    async def send_to_dead_letters(
        self, message: MessageExt, max_reconsume_times: int, reason: str | None = None
    ) -> None:
        """Send a copy that the broker stores in the dead-letter topic. Raises the errors of `send_back`."""
        times, now_ns = message.reconsume_times, time.time_ns()
        await self._send_copy(message, times, max_reconsume_times, now_ns, -1, None, reason)

    async def _send_with_reason(
        self,
        message: MessageExt,
        queue: MessageQueue,
        delay_level: int,
        reason: str | None,
        started_ns: int,
    ) -> bool:
        """Send a dead letter as a copy if its broker would not store the reason otherwise, as RocketMQ's.

        Returns whether it was stored. The account needs the right to publish to the retry topic. A body that
        could not be decoded is not sent again.
        """
        name = queue.broker_name
        if not reason or message.decode_error is not None or name in self._rejects_copies:
            return False
        try:
            address, _ = await self._client.routes.find_broker(queue.topic, name, only=True)
            if BrokerFeature.DEAD_LETTER_REASONS in self._client.connections.get(address).features:
                return False
            # Brokers of 4.x store a copy as a dead letter from the maximum on, those of 5.x only above it.
            times = message.reconsume_times
            address = await self._send_to_retry_topic(message, times + 1, times, reason, broker_name=name)
        except RocketError as error:
            if is_rejection(error):
                self._rejects_copies.add(name)
                log.info("dead letters of broker %s have no reasons: it rejects copies: %s", name, error)
            return False
        self._notify(message, started_ns, delay_level, address)
        return True

    async def _send_copy(
        self,
        message: MessageExt,
        times: int,
        max_reconsume_times: int,
        started_ns: int,
        delay_level: int,
        first_error: RocketError | None,
        reason: str | None,
    ) -> None:
        try:
            address = await self._send_to_retry_topic(message, times, max_reconsume_times, reason)
        except RocketError as error:
            self._notify(message, started_ns, delay_level, None, first_error, error)
            raise
        self._notify(message, started_ns, delay_level, address, first_error)

    async def _send_to_retry_topic(
        self,
        message: MessageExt,
        times: int,
        max_reconsume_times: int,
        reason: str | None,
        *,
        broker_name: str | None = None,
    ) -> str:
        """Send a copy to the retry topic, on the first of its brokers that stores it; return its address.

        times: deliveries so far. From `max_reconsume_times` on (5.x: above it) the broker stores the copy in
        the dead-letter topic. broker_name: of the only broker to try. Raises RouteNotFound, TransportError,
        BrokerError.
        """
        topic = retry_topic(self._group)
        queues = list(usable_queues(topic, await self._client.routes.get(topic, fresh=True)))
        random.shuffle(queues)
        error: RocketError = RouteNotFound(f"topic {topic} has no queue to write and read on a master")
        for queue in {queue.broker_name: queue for queue in queues}.values():
            if broker_name not in (None, queue.broker_name):
                continue
            command = Command.request(
                RequestCode.SEND_MESSAGE_V2,
                self._copy_header(message, queue, times, max_reconsume_times, reason),
                message.body,
            )
            try:
                address, _ = await self._client.routes.find_broker(topic, queue.broker_name, only=True)
                # No retry on the same broker, which might store the copy twice.
                response = await self._client.connections.get(address).request(command, _TIMEOUT_MS)
                status = STATUSES.get(response.code)
                if status is not None:
                    if status is not SendStatus.SEND_OK:
                        self._less_durable.record_status(status, queue)
                    return address
                raise broker_error(response, queue.broker_name)
            except RocketError as failed:
                error = failed
        raise error

    def _notify(
        self,
        message: MessageExt,
        started_ns: int,
        delay_level: int,
        address: str | None,
        first_error: RocketError | None = None,
        error: RocketError | None = None,
    ) -> None:
        if not self._settle_listeners.all:
            return
        event = SettleEvent(
            "nack",
            message,
            message.queue,
            unwrap(self._client.config.namespace, self._group),
            self._client.client_id,
            message.properties,
            started_ns,
            time.time_ns(),
            delay_level=delay_level,
            address=address,
            first_error=first_error,
            error=error,
        )
        self._settle_listeners.notify(lambda listener: listener.settled(event))

    async def _request_redelivery(
        self,
        message: MessageExt,
        queue: MessageQueue,
        delay_level: int,
        max_reconsume_times: int,
        reason: str | None,
    ) -> str:
        """Request the redelivery from the broker that stores the message; return its address."""
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=wrap(self._client.config.namespace, message.topic),
            unit_mode=self._unit_mode,
            max_reconsume_times=max_reconsume_times,
        )
        address, _ = await self._client.routes.find_broker(queue.topic, queue.broker_name, only=True)
        if BrokerFeature.DEAD_LETTER_REASONS in self._client.connections.get(address).features:
            header.reason = reason
        command = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        response = await self._client.connections.get(address).request(command, _TIMEOUT_MS)
        require_success(response, queue.broker_name)
        return address

    def _copy_header(
        self,
        message: MessageExt,
        queue: MessageQueue,
        times: int,
        max_reconsume_times: int,
        reason: str | None,
    ) -> SendMessageRequestHeaderV2:
        properties = dict(message.properties)
        # With them, the copy would be a half message, a popped one, or a timer message.
        for name in (
            names.PROPERTY_TRANSACTION_PREPARED,
            names.POP_RECEIPT,
            *names.TIMER_PROPERTIES,
        ):
            properties.pop(name, None)
        properties.setdefault(names.PROPERTY_ORIGIN_MESSAGE_ID, message.message_id)
        properties[names.PROPERTY_RETRY_TOPIC] = wrap(self._client.config.namespace, message.topic)
        properties[names.PROPERTY_DELAY_TIME_LEVEL] = str(_FIRST_RETRY_LEVEL + message.reconsume_times)
        names.set_reason(properties, reason)
        if reason and names.TIMER_PROPERTIES.isdisjoint(properties):  # which need the delay
            del properties[names.PROPERTY_DELAY_TIME_LEVEL]  # RocketMQ would delay the dead letter
        return SendMessageRequestHeaderV2(
            producer_group=self._group,
            topic=queue.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1,
            queue_id=queue.queue_id,
            sys_flag=_copied_flags(message),
            born_timestamp=message.born_timestamp,
            flag=message.flag,
            properties=names.encode(properties),
            reconsume_times=times,
            unit_mode=self._unit_mode,
            max_reconsume_times=max_reconsume_times,
        )


def _copied_flags(message: MessageExt) -> int:
    """Return the sysFlag of a copy: a body that could not be decompressed is sent compressed."""
    if message.decode_error is None:
        return 0
    return message.sys_flag & (MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_TYPE_MASK)
