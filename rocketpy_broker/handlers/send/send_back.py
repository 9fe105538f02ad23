"""CONSUMER_SEND_MSG_BACK: a consumer returns a message that it could not process.

The message is stored in %RETRY%group with a delay, or as a dead letter in %DLQ%group (QUIRKS 37).
Source: SendMessageProcessor.consumerSendMsgBack of RocketMQ 4.6.0. Differs: dead letters are not
delayed (there, the dead letter of a retried message has the delay of the last retry). They keep the reason
that a consumer gives. A RETRY_TOPIC that a producer has set does not count. Retries go only to queues that
the retry topic has (there, only the group's number of retry queues counts).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from rocketpy.errors import UsageError
from rocketpy.protocol.bodies import (
    PERM_READ,
    PERM_WRITE,
    SubscriptionGroupConfig,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import ConsumerSendMsgBackRequestHeader
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.delays import DelayLevels
from rocketpy.protocol.message.message_id import message_id
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from rocketpy.protocol.message.record import Record
from rocketpy.protocol.message.sysflag import TopicSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.base import FAQ, Rejected, handles
from rocketpy_broker.handlers.send.send import FindGroup, SendHandler, respond_when_stored, retry_times_max
from rocketpy_broker.services.delay.topic_rewrite import copy_to, to_delayed_message
from rocketpy_broker.services.metadata.topics import TopicTable, ensure_topic, usable_queues
from rocketpy_broker.store import MessageInner

log = logging.getLogger("rocketpy.broker.send_back")

_FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry; each later retry has the next level."""
_INT32_MAX: Final = 2**31 - 1


@dataclass(eq=False)
class SendBackHandler:
    """Stores returned messages for retries or as dead letters."""

    topics: TopicTable
    config: BrokerConfig
    send: SendHandler
    _: KW_ONLY
    find_group: FindGroup
    delays: DelayLevels
    on_delayed: Callable[[int], None]
    """Called with the level of each delayed message."""
    on_send_back: Callable[[str, str], None]
    """Called with group and topic of each returned message."""

    @handles(RequestCode.CONSUMER_SEND_MSG_BACK)
    def send_back(self, channel: Channel, request: Command) -> Command | None:
        """Handle CONSUMER_SEND_MSG_BACK."""
        header = request.header_as(ConsumerSendMsgBackRequestHeader)
        group = self.find_group(header.group)
        if group is None:
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            raise Rejected(code, f"subscription group not exist, {header.group} {FAQ}")
        if not self.config.permission & PERM_WRITE:
            text = f"the broker[{self.config.name}] sending message is forbidden"
            raise Rejected(ResponseCode.NO_PERMISSION, text)
        if group.retry_queue_nums <= 0:  # the group is configured without retries
            return request.reply()
        self._put_back(channel, request, header, group)
        return None

    def _put_back(
        self,
        channel: Channel,
        request: Command,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroupConfig,
    ) -> None:
        """Append the message. Raises RocketError if that fails."""
        topic = RETRY_TOPIC_PREFIX + header.group
        sys_flag = header.unit_mode * TopicSysFlag.UNIT_SUB
        both = PERM_READ | PERM_WRITE
        settings = ensure_topic(self.topics, topic, group.retry_queue_nums, both, sys_flag)
        if not settings.perm & PERM_WRITE:
            raise Rejected(ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden")
        record = self.send.stored_record(header.offset)
        if record is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        level = header.delay_level
        properties = props.decode(record.properties)
        if not record.topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
            # Only consumers set them. A store of RocketMQ may have them from a producer.
            for name in props.RETRY_PROPERTIES:
                properties.pop(name, None)
        properties.setdefault(props.PROPERTY_RETRY_TOPIC, record.topic)
        properties[props.PROPERTY_WAIT_STORE_MSG_OK] = "false"
        if level < 0 or record.reconsume_times >= retry_times_max(request, header.max_reconsume_times, group):
            props.set_reason(properties, header.reason)
            message = self._dead_letter(record, header.group, properties)
            level = 0
        else:
            level = level or _FIRST_RETRY_LEVEL + max(record.reconsume_times, 0)
            queues = min(group.retry_queue_nums, usable_queues(settings))
            if not queues:
                text = f"the topic[{topic}] has no queue that consumers read"
                raise Rejected(ResponseCode.NO_PERMISSION, text)
            props.set_reason(properties, None)
            message = copy_to(record, topic, random.randrange(queues))
            level = self._delay(message, record, properties, level)
        message.reconsume_times = min(max(record.reconsume_times, 0) + 1, _INT32_MAX)

        self.send.append(message, respond_when_stored(channel, request))
        if level:
            self.on_delayed(level)
        self.on_send_back(header.group, properties[props.PROPERTY_RETRY_TOPIC])

    def _dead_letter(self, record: Record, group: str, properties: dict[str, str]) -> MessageInner:
        topic = DLQ_TOPIC_PREFIX + group
        ensure_topic(self.topics, topic, 1, PERM_WRITE)
        message = copy_to(record, topic, 0)
        message.properties = props.encode(properties).encode()
        return message

    def _delay(self, message: MessageInner, record: Record, properties: dict[str, str], level: int) -> int:
        """Delay a retry; return its level. Raises UsageError if no delay level is configured."""
        if not self.delays.level_max:
            raise UsageError("messageDelayLevel is empty, so a message cannot be delivered again later")
        own_id = message_id(record.store_host, record.physical_offset)
        properties.setdefault(props.PROPERTY_ORIGIN_MESSAGE_ID, own_id)
        return to_delayed_message(message, properties, level, self.delays.level_max)
