"""What operators' tools and slaves ask of a broker.

Source: AdminBrokerProcessor of RocketMQ 4.6.0. Differs: the configuration can neither be read nor
changed from afar (CVE-2023-33246).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rocketpy.errors import UsageError
from rocketpy.protocol.bodies import KVTable, TopicConfig
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.command import VERSION, Command
from rocketpy.protocol.headers import CreateTopicRequestHeader
from rocketpy.transport import Channel
from rocketpy_broker.config import BrokerConfig
from rocketpy_broker.handlers.base import Handler
from rocketpy_broker.services.topics import TopicTable
from rocketpy_broker.store import MessageStore

__all__ = ["AdminHandler"]


class AdminHandler:
    """Topics, runtime information. is_active: what the broker's health says."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        config: BrokerConfig,
        *,
        is_active: Callable[[], bool],
    ) -> None:
        self._store = store
        self._topics = topics
        self._config = config
        self._is_active = is_active
        self._booted_ms = time.time_ns() // 1_000_000

    @property
    def requests(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update_topic,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.GET_BROKER_CONFIG: self.refuse_config,
            RequestCode.UPDATE_BROKER_CONFIG: self.refuse_config,
        }

    def all_topics(self, channel: Channel, request: Command) -> Command:
        """Handle GET_ALL_TOPIC_CONFIG."""
        return request.reply(body=self._topics.snapshot().encode())

    def update_topic(self, channel: Channel, request: Command) -> Command:
        """Handle UPDATE_AND_CREATE_TOPIC; name servers hear of it right after the answer (QUIRKS 13)."""
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
        try:
            self._topics.update(topic)
        except UsageError as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return request.reply()

    def runtime_info(self, channel: Channel, request: Command) -> Command:
        """Handle GET_BROKER_RUNTIME_INFO with what is known cheaply; a part of what 4.6.0 answers."""
        store = self._store
        table = {
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": "V4_6_0",
            "brokerActive": "true" if self._is_active() else "false",
            "bootTimestamp": str(self._booted_ms),
            "commitLogMinOffset": str(store.min_physical_offset),
            "commitLogMaxOffset": str(store.max_physical_offset),
            "dispatchBehindBytes": str(store.dispatch_behind_bytes),
            "earliestMessageTimeStamp": str(store.earliest_store_time()),
        }
        return request.reply(body=KVTable(table=table).encode())

    def refuse_config(self, channel: Channel, request: Command) -> Command:
        """Handle GET_BROKER_CONFIG and UPDATE_BROKER_CONFIG."""
        return request.reply(
            ResponseCode.NO_PERMISSION,
            remark="the configuration of this broker cannot be read or changed remotely",
        )
