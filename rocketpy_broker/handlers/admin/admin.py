"""What operators' tools and slaves ask of a broker.

Source: AdminBrokerProcessor of RocketMQ 4.6.0. Differs: few settings can be changed, and none unless the
broker's own file allows it (CVE-2023-33246).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rocketpy.protocol.bodies import KVTable, TopicConfig, TopicList
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetBrokerConfigResponseHeader,
    GetTopicConfigRequestHeader,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from rocketpy_broker.config.live import broker_live_config
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.admin.update_config import answer_update
from rocketpy_broker.handlers.base import Handler, answer_later, refuse_topic
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.services.metadata.unused_queues import drop_expired_queues, drop_unused_queues
from rocketpy_broker.store import MessageStore

log = logging.getLogger("rocketpy.broker.admin")


class AdminHandler:
    """Topics, settings, runtime information.

    info: the runtime information of the broker. wait_registered: see `Registrar.wait_registered`.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        config: BrokerConfig,
        tasks: Tasks,
        *,
        info: Callable[[], dict[str, str]],
        wait_registered: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._topics = topics
        self._config = config
        self._tasks = tasks
        self._live = broker_live_config(config)
        self._runtime_info = info
        self._wait_registered = wait_registered
        self._dropping = asyncio.Lock()

    @property
    def requests(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_TOPIC_CONFIG: self.one_topic,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.GET_BROKER_CONFIG: self.get_config,
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
        }

    def all_topics(self, channel: Channel, request: Command) -> Command:
        """Handle GET_ALL_TOPIC_CONFIG."""
        return request.reply(body=self._topics.encode())

    def one_topic(self, channel: Channel, request: Command) -> Command:
        """Handle GET_TOPIC_CONFIG. Source: AdminBrokerProcessor of RocketMQ 5.3.3."""
        name = request.header_as(GetTopicConfigRequestHeader).topic
        topic = self._topics.get(name)
        return refuse_topic(request, name) if topic is None else request.reply(body=topic.encode())

    def update_topic(self, channel: Channel, request: Command) -> Command | None:
        """Handle UPDATE_AND_CREATE_TOPIC.

        Differs: 4.6.0 answers before its name servers know the topic (QUIRKS 13).
        """
        header = request.header_as(CreateTopicRequestHeader)
        if header.topic == self._config.cluster_name:
            return request.reply(
                ResponseCode.SYSTEM_ERROR,
                remark=f"the topic[{header.topic}] is conflict with system reserved words.",
            )
        topic = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
        )
        answer_later(self._tasks, channel, request, self._update_topic(request, topic))
        return None

    async def _update_topic(self, request: Command, topic: TopicConfig) -> Command:
        await self._topics.update(topic)
        await self._wait_registered()
        return request.reply()

    def delete_topic(self, channel: Channel, request: Command) -> Command | None:
        """Handle DELETE_TOPIC_IN_BROKER, for users' topics; its consume queues go with it."""
        name = request.header_as(DeleteTopicRequestHeader).topic
        if name in self._topics.system:
            remark = f"the topic[{name}] is conflict with system reserved words."
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        answer_later(self._tasks, channel, request, self._delete_topic(request, name))
        return None

    async def _delete_topic(self, request: Command, name: str) -> Command:
        await self._topics.delete(name)
        async with self._dropping:
            self._drop_unused()
            await asyncio.sleep(0)  # deletions that are saved together take turns with other requests
        await self._wait_registered()
        return request.reply()

    def system_topics(self, channel: Channel, request: Command) -> Command:
        """Handle GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
        return request.reply(body=TopicList(topic_list=sorted(self._topics.system)).encode())

    def clean_unused(self, channel: Channel, request: Command) -> Command:
        """Handle CLEAN_UNUSED_TOPIC: queues without a topic go."""
        log.info("%s: %d unused queues deleted", channel.remote_address, self._drop_unused())
        return request.reply()

    def _drop_unused(self) -> int:
        return drop_unused_queues(self._store, self._topics.names)

    def clean_expired(self, channel: Channel, request: Command) -> Command:
        """Handle CLEAN_EXPIRED_CONSUMEQUEUE: queues without a message go."""
        log.info("%s: %d expired queues deleted", channel.remote_address, drop_expired_queues(self._store))
        return request.reply()

    def runtime_info(self, channel: Channel, request: Command) -> Command:
        """Handle GET_BROKER_RUNTIME_INFO."""
        return request.reply(body=KVTable(table=self._runtime_info()).encode())

    def get_config(self, channel: Channel, request: Command) -> Command:
        """Handle GET_BROKER_CONFIG: no paths, addresses or secrets."""
        header = GetBrokerConfigResponseHeader(version=self._live.version.encode().decode())
        return request.reply(header=header, body=self._live.text().encode())

    def update_config(self, channel: Channel, request: Command) -> None:
        """Handle UPDATE_BROKER_CONFIG; see `LiveConfig`."""
        answer_update(self._tasks, self._live, channel, request, self._changed)

    async def _changed(self, keys: frozenset[str]) -> None:
        if "brokerPermission" in keys:
            await self._topics.all_changed()
            await self._wait_registered()
