"""Administration of topics, consumer groups and settings, also by slaves that copy the tables.

Source: AdminBrokerProcessor of RocketMQ 4.6.0. Differs: few settings can be changed, and only if the broker's
own file allows it (CVE-2023-33246).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

import msgspec

from rocketpy.protocol.bodies import (
    CreateTopicListRequestBody,
    DelayOffsetSerializeWrapper,
    GroupForbidden,
    KVTable,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicList,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetBrokerConfigResponseHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.config.live import broker_live_config
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.base import Rejected, handles, topic_not_found, update_settings
from rocketpy_broker.handlers.slave import absent
from rocketpy_broker.services.delay.topic_rewrite import HALF_TOPIC, OP_TOPIC, REVIVE_TOPIC_PREFIX
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.request_modes import RequestModeTable
from rocketpy_broker.services.metadata.topic_attributes import (
    MESSAGE_TYPE,
    MIXED,
    change_attributes,
    parse_changes,
)
from rocketpy_broker.services.metadata.topics import TopicTable, queue_count
from rocketpy_broker.services.pop.order import PopOrder
from rocketpy_broker.services.timers.messages import TIMER_TOPIC
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue

log = logging.getLogger("rocketpy.broker.admin")

_WITHOUT_TOPIC: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, TIMER_TOPIC})
"""Topics whose queues are kept, though the topic table lacks them. RocketMQ 4.6.0 keeps only the first, and
checks ended transactions again when the last is gone."""


def _is_internal(topic: str) -> bool:
    return topic in _WITHOUT_TOPIC or topic.startswith(REVIVE_TOPIC_PREFIX)


@dataclass(eq=False)
class AdminHandler:
    """Handles requests of operators' tools and of slaves."""

    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroupTable
    config: BrokerConfig
    _: KW_ONLY
    offsets: ConsumerOffsets
    """Loses the offsets of deleted topics."""
    modes: RequestModeTable
    """Loses the modes of deleted topics and groups."""
    order: PopOrder
    """Loses the pops of deleted topics."""
    remove_check_points: Callable[[str], Awaitable[None]]
    """See `PopService.remove_topic`."""
    delay_offsets: Callable[[], dict[int, int]]
    """Returns the next offset of each delay level."""
    info: Callable[[], dict[str, str]]
    """Returns the runtime information."""
    wait_registered: Callable[[], Awaitable[None]]
    """See `Registrar.wait_registered`."""
    delete_expired_files: Callable[[], Awaitable[object]]
    """See `StoreDriver.clean_now`."""
    timer_checkpoint: Callable[[], bytes] = bytes
    """Returns the checkpoint of the timers."""
    timer_metrics: Callable[[], bytes] = bytes
    """Returns the metrics of the timers."""

    drop_queues: Callable[[Callable[[ConsumeQueue], bool]], Awaitable[int]]
    """See `StoreDriver.drop_queues`."""

    def __post_init__(self) -> None:
        self._live = broker_live_config(self.config)
        self._dropping = asyncio.Lock()
        self._drops = 0
        """Number of searches for queues without a topic that have begun."""

    # -- topics -------------------------------------------------------------------------------

    @handles(RequestCode.GET_ALL_TOPIC_CONFIG)
    def all_topics(self, channel: Channel, request: Command) -> Command:
        """Handle GET_ALL_TOPIC_CONFIG."""
        return request.reply(body=self.topics.encode())

    @handles(RequestCode.GET_TOPIC_CONFIG)
    def one_topic(self, channel: Channel, request: Command) -> Command:
        """Handle GET_TOPIC_CONFIG. Source: AdminBrokerProcessor of RocketMQ 5.3.3."""
        name = request.header_as(GetTopicConfigRequestHeader).topic
        topic = self.topics.get(name)
        if topic is None:
            raise absent(self.store, f"topic {name}", topic_not_found(name))
        return request.reply(body=topic.encode())

    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC)
    async def update_topic(self, channel: Channel, request: Command) -> Command:
        """Handle UPDATE_AND_CREATE_TOPIC.

        Differs: 4.6.0 responds before its name servers know the topic (QUIRKS 13). rocketpy's clients may
        request that an existing topic stays unchanged.
        """
        header = request.header_as(CreateTopicRequestHeader)
        topic = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=parse_changes(header.attributes or ""),
        )
        existing = self.topics.get(topic.topic_name)
        topic = self._with_attributes(topic)
        if header.only_if_missing:
            if not await self.topics.create_missing(topic):
                text = f"topic {topic.topic_name} exists and stays unchanged"
                raise Rejected(ResponseCode.TOPIC_EXIST_ALREADY, text)
        else:
            await self.topics.update(topic)
        if existing is not None:
            self._warn_of_unread(channel, topic, queue_count(existing))
        await self.wait_registered()
        return request.reply()

    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    async def update_topics(self, channel: Channel, request: Command) -> Command:
        """Handle UPDATE_AND_CREATE_TOPIC_LIST of RocketMQ 5.3.

        Differs: 5.3.3 ignores the whole list if one of its topics stays as it is. If one is invalid, none is
        changed.
        """
        given = CreateTopicListRequestBody.decode(request.body).topic_config_list
        topics = [self._with_attributes(topic) for topic in given]
        names = [topic.topic_name for topic in topics]
        counts = {name: queue_count(known) for name in names if (known := self.topics.get(name))}
        for topic in topics:
            self.topics.check(topic)
        await asyncio.gather(*map(self.topics.update, topics))
        for topic in topics:
            if topic.topic_name in counts:
                self._warn_of_unread(channel, topic, counts[topic.topic_name])
        await self.wait_registered()
        return request.reply()

    def _with_attributes(self, topic: TopicConfig) -> TopicConfig:
        """Return the settings of a request with the attributes that the topic gets. Raises TopicInvalid.

        Those that the request does not change are kept, as in RocketMQ 5.3.3.
        """
        if topic.topic_name == self.config.cluster_name:
            raise _reserved(topic.topic_name)
        if topic.attributes.get(f"+{MESSAGE_TYPE}") == MIXED and not self.config.topics.mixed_type:
            text = f"topic {topic.topic_name}: {MESSAGE_TYPE} {MIXED} needs enableMixedMessageType=true"
            raise Rejected(ResponseCode.INVALID_PARAMETER, text)
        existing = self.topics.get(topic.topic_name)
        current = None if existing is None else existing.attributes
        attributes = change_attributes(topic.topic_name, current, topic.attributes)
        return msgspec.structs.replace(topic, attributes=attributes)

    def _warn_of_unread(self, channel: Channel, topic: TopicConfig, count: int) -> None:
        """Log which queues have or will get messages, but are not read. count: former number of queues."""
        name, reads = topic.topic_name, topic.read_queue_nums
        unread = [
            queue_id
            for queue_id in range(reads, max(count, topic.write_queue_nums))
            if queue_id < topic.write_queue_nums
            or self.store.max_offset_in_queue(name, queue_id) > self.store.min_offset_in_queue(name, queue_id)
        ]
        if unread:
            log.warning(
                "%s set topic %s to %d queues to read and %d to write: consumers do not read the messages in "
                "%d other queues, %d to %d, until the number of queues to read is raised",
                channel.remote_address,
                name,
                reads,
                topic.write_queue_nums,
                len(unread),
                unread[0],
                unread[-1],
            )

    @handles(RequestCode.DELETE_TOPIC_IN_BROKER)
    async def delete_topic(self, channel: Channel, request: Command) -> Command:
        """Handle DELETE_TOPIC_IN_BROKER: delete a topic, its consume queues and offsets, but no system topic.

        Differs: 4.6.0 keeps the offsets of groups, which skip messages of a new topic of this name.
        """
        name = request.header_as(DeleteTopicRequestHeader).topic
        if name in self.topics.system:
            raise _reserved(name)
        is_deleted = await self.topics.delete(name)
        end = self.store.max_physical_offset
        drops = self._drops
        async with self._dropping:
            if self._drops == drops:  # else that for another topic has found this one's queues, too
                self._drops += 1
                await self._drop_unused()
            if is_deleted:  # it may have been created again meanwhile
                self.store.drop_deleted({name: end})
                self.offsets.remove_topic(name)
                self.order.remove_topic(name)
                await self.remove_check_points(name)
                await self.modes.remove_topic(name)
            await asyncio.sleep(0)  # lets other requests run between deletions that are saved together
            await self.topics.note_deletion(name, end, log_begin=self.store.min_physical_offset)
        await self.wait_registered()
        return request.reply()

    @handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, channel: Channel, request: Command) -> Command:
        """Handle GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
        return request.reply(body=TopicList(topic_list=sorted(self.topics.system)).encode())

    @handles(RequestCode.CLEAN_UNUSED_TOPIC)
    async def clean_unused(self, channel: Channel, request: Command) -> Command:
        """Handle CLEAN_UNUSED_TOPIC: delete queues without a topic."""
        log.info("%s: %d unused queues deleted", channel.remote_address, await self._drop_unused())
        return request.reply()

    async def _drop_unused(self) -> int:
        return await self.drop_queues(
            lambda queue: not _is_internal(queue.topic) and self.topics.get(queue.topic) is None
        )

    @handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    async def clean_expired(self, channel: Channel, request: Command) -> Command:
        """Handle CLEAN_EXPIRED_CONSUMEQUEUE: delete queues whose messages have all expired."""
        begin = self.store.min_physical_offset
        count = await self.drop_queues(
            lambda queue: not _is_internal(queue.topic) and queue.has_expired(begin)
        )
        log.info("%s: %d expired queues deleted", channel.remote_address, count)
        return request.reply()

    @handles(RequestCode.DELETE_EXPIRED_COMMITLOG)
    async def delete_expired(self, channel: Channel, request: Command) -> Command:
        """Handle DELETE_EXPIRED_COMMITLOG: delete expired files without waiting for the hour of deleteWhen.

        Source: AdminBrokerProcessor of RocketMQ 4.9.7.
        """
        log.info("%s asks to delete expired files", channel.remote_address)
        await self.delete_expired_files()
        return request.reply()

    # -- groups -------------------------------------------------------------------------------

    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    async def update_group(self, channel: Channel, request: Command) -> Command:
        """Handle UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.

        Differs: the retry topic gets the missing queues first. In 4.6.0, retries in these are never consumed.
        """
        await self._update_groups([SubscriptionGroupConfig.decode(request.body)])
        return request.reply()

    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    async def update_groups(self, channel: Channel, request: Command) -> Command:
        """Handle UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST. If a group is invalid, none changes."""
        await self._update_groups(SubscriptionGroupList.decode(request.body).group_config_list)
        return request.reply()

    async def _update_groups(self, groups: Sequence[SubscriptionGroupConfig]) -> None:
        for group in groups:
            self.groups.check(group)
        for group in groups:
            await self._enlarge_retry_topic(group)
        await asyncio.gather(*map(self.groups.update, groups))

    @handles(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
    async def group_forbidden(self, channel: Channel, request: Command) -> Command:
        """Handle UPDATE_AND_GET_GROUP_FORBIDDEN: whether a group may read a topic.

        Differs: in 5.3.3, allowing one topic allows all topics of the group, and is lost at a restart.
        """
        header = request.header_as(UpdateGroupForbiddenRequestHeader)
        if header.readable is not None:
            log.info(
                "%s: group %.200r may %s topic %.200r",
                channel.remote_address,
                header.group,
                "read" if header.readable else "not read",
                header.topic,
            )
            await self.groups.set_readable(header.group, header.topic, readable=header.readable)
        readable = self.groups.may_read(header.group, header.topic)
        body = GroupForbidden(topic=header.topic, group=header.group, readable=readable)
        return request.reply(body=body.encode())

    async def _enlarge_retry_topic(self, group: SubscriptionGroupConfig) -> None:
        """Add the queues that a group's retry topic lacks, if it exists. Raises TopicInvalid, StoreError."""
        topic = self.topics.get(RETRY_TOPIC_PREFIX + group.group_name)
        queues = group.retry_queue_nums
        if topic is not None and queues > min(topic.read_queue_nums, topic.write_queue_nums):
            enlarged = msgspec.structs.replace(
                topic,
                read_queue_nums=max(topic.read_queue_nums, queues),
                write_queue_nums=max(topic.write_queue_nums, queues),
            )
            await self.topics.update(enlarged)
            await self.wait_registered()

    @handles(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def all_groups(self, channel: Channel, request: Command) -> Command:
        """Handle GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        return request.reply(body=self.groups.encode())

    @handles(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def one_group(self, channel: Channel, request: Command) -> Command:
        """Handle GET_SUBSCRIPTIONGROUP_CONFIG. Source: AdminBrokerProcessor of RocketMQ 5.3.3.

        Differs: there the request creates a missing group.
        """
        name = request.header_as(GetSubscriptionGroupConfigRequestHeader).group
        group = self.groups.get(name)
        if group is None:
            text = f"group {name} does not exist on this broker"
            missing = Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
            raise absent(self.store, f"group {name}", missing)
        return request.reply(body=group.encode())

    @handles(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    async def delete_group(self, channel: Channel, request: Command) -> Command:
        """Handle DELETE_SUBSCRIPTIONGROUP; a missing group is not an error, as in 4.6.0."""
        name = request.header_as(DeleteSubscriptionGroupRequestHeader).group_name
        await self.groups.delete(name)
        await self.modes.remove_group(name)
        return request.reply()

    # -- the broker ---------------------------------------------------------------------------

    @handles(RequestCode.GET_TIMER_CHECK_POINT)
    def timer_checkpoint_for_slave(self, channel: Channel, request: Command) -> Command:
        """Handle GET_TIMER_CHECK_POINT of RocketMQ 5 (QUIRKS 75)."""
        return request.reply(body=self.timer_checkpoint())

    @handles(RequestCode.GET_TIMER_METRICS)
    def timer_metrics_for_slave(self, channel: Channel, request: Command) -> Command:
        """Handle GET_TIMER_METRICS of RocketMQ 5 (QUIRKS 75)."""
        return request.reply(body=self.timer_metrics())

    @handles(RequestCode.GET_ALL_DELAY_OFFSET)
    def all_delay_offsets(self, channel: Channel, request: Command) -> Command:
        """Handle GET_ALL_DELAY_OFFSET; compact JSON, which a slave keeps as it is (QUIRKS 56)."""
        return request.reply(body=DelayOffsetSerializeWrapper(offset_table=self.delay_offsets()).encode())

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, channel: Channel, request: Command) -> Command:
        """Handle GET_BROKER_RUNTIME_INFO."""
        return request.reply(body=KVTable(table=self.info()).encode())

    @handles(RequestCode.GET_BROKER_CONFIG)
    def get_config(self, channel: Channel, request: Command) -> Command:
        """Handle GET_BROKER_CONFIG; see `LiveConfig.text`."""
        header = GetBrokerConfigResponseHeader(version=self._live.version.encode().decode())
        return request.reply(header=header, body=self._live.text().encode())

    @handles(RequestCode.UPDATE_BROKER_CONFIG)
    async def update_config(self, channel: Channel, request: Command) -> Command:
        """Handle UPDATE_BROKER_CONFIG; see `LiveConfig`."""
        return await update_settings(self._live, channel, request, self._settings_changed)

    async def _settings_changed(self, keys: frozenset[str]) -> None:
        if "brokerPermission" in keys:
            await self.topics.all_changed()
            await self.wait_registered()


def _reserved(topic: str) -> Rejected:
    return Rejected(ResponseCode.SYSTEM_ERROR, f"the topic[{topic}] is conflict with system reserved words.")
