"""Checks of pulls: permissions, subscription, filter. Source: PullMessageProcessor of RocketMQ 4.6.0."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from rocketpy.protocol.bodies import PERM_READ, SubscriptionData, TopicConfig
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.headers import PullMessageRequestHeader
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.transport import Channel
from rocketpy_broker.config.model import BrokerConfig, ConsumeConfig
from rocketpy_broker.filter import ExpressionInvalid, MessageFilter, filter_of, is_tag_type, subscription_of
from rocketpy_broker.filter.sql92 import compile_expression, is_compiled
from rocketpy_broker.filter.subscription import SQL92
from rocketpy_broker.handlers.base import FAQ, Rejected, topic_not_found
from rocketpy_broker.handlers.slave import absent, is_slave
from rocketpy_broker.services.metadata.clients import ClientRegistry
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.services.slices import Slices, Turns
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.files.batch_saver import ChangePending, PendingChange

log = logging.getLogger("rocketpy.broker.filter")

_BROADCASTING = "BROADCASTING"
_QUICK_CHARACTERS: Final = 512
"""A shorter expression is compiled at once, in less than 1 ms."""


class ExpressionPolicy:
    """Rejects filter expressions that enablePropertyFilter does not allow, and logs that once.

    config: read at each call, since the key can be changed while the broker runs.
    """

    def __init__(self, config: ConsumeConfig, slices: Slices) -> None:
        self._config = config
        self._compiling = Turns(slices)
        self._has_logged = False

    def check(self, kind: str | None, group: str) -> None:
        """Raise Rejected if a group may not filter by this type of expression."""
        if is_tag_type(kind) or self._config.property_filter:
            return
        if kind == SQL92 and not self._has_logged:
            self._has_logged = True
            log.warning(
                "the SQL92 filter of consumer group %.200r is rejected; enablePropertyFilter=true allows it",
                group,
            )
        text = f"The broker does not support consumer to filter message by {kind}"
        raise Rejected(ResponseCode.SYSTEM_ERROR, text)

    def compile(self, wanted: SubscriptionData, channel: Channel) -> None:
        """Raise ChangePending if the expression of a subscription takes long to compile: up to 15 ms.

        It is compiled in the turn of the client, and then the request runs again. Many new expressions at the
        same time would block the broker.
        """
        text = wanted.sub_string or ""
        if wanted.expression_type == SQL92 and len(text) > _QUICK_CHARACTERS and not is_compiled(text):
            pending = PendingChange(text)
            self._compiling.run(_compile(pending), channel)
            if not is_compiled(text):  # it is not this client's turn
                raise ChangePending(pending)


def _compile(pending: PendingChange[str]) -> Generator[None, None, None]:
    with contextlib.suppress(ExpressionInvalid):  # the request gets the error, which is cached, too
        compile_expression(pending.change)
    for run_again in pending.waiters:
        run_again(None)
    yield


@dataclass(eq=False)
class PullChecks:
    """Checks pulls against topics, groups and clients. Creates missing groups, if that is configured."""

    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroupTable
    clients: ClientRegistry
    expressions: ExpressionPolicy
    config: BrokerConfig

    def check(self, channel: Channel, header: PullMessageRequestHeader) -> None:
        """Raise Rejected if a pull is not permitted."""
        topic = self.check_names(header.consumer_group, header.topic)
        if topic is not None and 0 <= header.queue_id < topic.read_queue_nums:
            return
        if is_slave(self.store) and self._is_in_log(header, topic):
            return
        missing = topic_not_found(header.topic)
        if topic is not None:
            missing = _bad_queue(header, topic, channel.remote_address)
        raise absent(self.store, f"queue {header.queue_id} of topic {header.topic}", missing)

    def check_names(self, group_name: str, topic_name: str) -> TopicConfig | None:
        """Return the topic that a group may read; None if it does not exist. Raises Rejected."""
        if not self.config.permission & PERM_READ:
            raise _forbidden(f"the broker[{self.config.name}] pulling message is forbidden")
        group = self.groups.find(group_name)
        if group is None:
            text = f"subscription group [{group_name}] does not exist, {FAQ}"
            missing = Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
            raise absent(self.store, f"group {group_name}", missing)
        if not group.consume_enable:
            raise _forbidden(f"subscription group no permission, {group_name}")
        if self.groups.forbidden and not self.groups.may_read(group_name, topic_name):
            raise _forbidden(f"the consumer group[{group_name}] is forbidden for topic[{topic_name}]")
        topic = self.topics.get(topic_name)
        if topic is not None and not topic.perm & PERM_READ:
            raise _forbidden(f"the topic[{topic_name}] pulling message is forbidden")
        return topic

    def _is_in_log(self, header: PullMessageRequestHeader, topic: TopicConfig | None) -> bool:
        """Whether a slave has messages of a queue, or of a topic that it has not copied: its log is ahead."""
        if self.store.max_offset_in_queue(header.topic, header.queue_id):
            return True
        return topic is None and any(name == header.topic for name, _ in self.store.list_queues())

    def filter(self, channel: Channel, header: PullMessageRequestHeader) -> MessageFilter:
        """Return the filter of a pull. Raises Rejected.

        A pull consumer sends its subscription in the request, a push consumer in its heartbeat (QUIRKS 32).
        """
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            return self.filter_in_request(
                channel, header.consumer_group, header.topic, header.subscription, header.expression_type
            )
        return self._filter_of_member(channel, header, self._subscription(header))

    def filter_in_request(
        self, channel: Channel, group: str, topic: str, expression: str | None, kind: str | None
    ) -> MessageFilter:
        """Return the filter of a request that has the subscription itself. Raises Rejected, ChangePending."""
        try:
            wanted = subscription_of(topic, expression, kind)
            self.expressions.compile(wanted, channel)
            found = filter_of(wanted)
        except ExpressionInvalid as error:
            raise _parse_failed(error) from error
        self.expressions.check(wanted.expression_type, group)
        return found

    def _filter_of_member(
        self, channel: Channel, header: PullMessageRequestHeader, wanted: SubscriptionData
    ) -> MessageFilter:
        self.expressions.compile(wanted, channel)
        find = None
        if self.config.consume.filter_retries:
            group = self.clients.consumer_group(header.consumer_group)
            find = group.subscriptions.get if group is not None else None
        try:
            found = filter_of(wanted, find=find)
        except ExpressionInvalid as error:
            if is_tag_type(wanted.expression_type):
                raise _parse_failed(error) from error
            text = f"The broker's consumer filter data is not exist! Your expression may be wrong: {error}"
            raise Rejected(ResponseCode.FILTER_DATA_NOT_EXIST, text) from error
        self.expressions.check(wanted.expression_type, header.consumer_group)
        return found

    def _subscription(self, header: PullMessageRequestHeader) -> SubscriptionData:
        group = self.clients.consumer_group(header.consumer_group)
        if group is None:
            raise Rejected(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        settings = self.groups.find(header.consumer_group)
        may_broadcast = settings is None or settings.consume_broadcast_enable
        if group.message_model == _BROADCASTING and not may_broadcast:
            raise _forbidden(f"the consumer group[{header.consumer_group}] can not consume by broadcast way")
        found = group.subscriptions.get(header.topic)
        if found is None:
            raise Rejected(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        return found if found.sub_version >= header.sub_version else self._outdated(header, found)

    def _outdated(self, header: PullMessageRequestHeader, found: SubscriptionData) -> SubscriptionData:
        """Return the subscription of a pull whose version is newer than that of the last heartbeat.

        It selects all messages if both subscriptions filter by tags, which consumers check again. 4.6.0
        rejects these pulls (QUIRKS 35). A client of 5.3.3 increases the version when it gets queues. It
        skips the heartbeat with that version while another one is in progress. If its pulls were rejected, it
        would get no messages for 20 s.
        """
        by_tags = is_tag_type(found.expression_type) and is_tag_type(header.expression_type)
        if not by_tags or found.class_filter_mode:
            raise Rejected(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return subscription_of(header.topic, "*", None)


def _parse_failed(error: ExpressionInvalid) -> Rejected:
    text = f"parse the consumer's subscription failed: {error}"
    return Rejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)


def _forbidden(remark: str) -> Rejected:
    return Rejected(ResponseCode.NO_PERMISSION, remark)


def _bad_queue(header: PullMessageRequestHeader, topic: TopicConfig, consumer: str) -> Rejected:
    return Rejected(
        ResponseCode.SYSTEM_ERROR,
        f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
        f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{consumer}]",
    )
