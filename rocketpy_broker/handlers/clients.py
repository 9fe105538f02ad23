"""HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG, GET_CONSUMER_LIST_BY_GROUP.

Source: ClientManageProcessor, ConsumerManageProcessor, DefaultConsumerIdsChangeListener of RocketMQ 4.6.0.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final, cast

from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.command import Command
from rocketpy.protocol.headers import (
    GetConsumerListByGroupRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from rocketpy.protocol.sysflag import TopicSysFlag
from rocketpy.transport import Channel
from rocketpy_broker.config import ConsumeConfig
from rocketpy_broker.filter import ExpressionInvalid, filter_of
from rocketpy_broker.filter.subscription import is_tag_type
from rocketpy_broker.handlers.base import Handler
from rocketpy_broker.handlers.expressions import Expressions
from rocketpy_broker.services.clients import ClientRegistry
from rocketpy_broker.services.groups import SubscriptionGroups
from rocketpy_broker.services.topics import PERM_READ, PERM_WRITE, TopicTable, ensure_topic

__all__ = ["ClientHandler"]

log = logging.getLogger("rocketpy.broker.clients")

_RETRY_PREFIX: Final = "%RETRY%"


class ClientHandler:
    """Keeps the registry of clients, and tells a group's members when one comes or leaves.

    now_ms: of a clock that only goes forward.
    """

    def __init__(
        self,
        clients: ClientRegistry,
        groups: SubscriptionGroups,
        topics: TopicTable,
        expressions: Expressions,
        config: ConsumeConfig,
        *,
        now_ms: Callable[[], float],
    ) -> None:
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._expressions = expressions
        self._config = config
        self._now_ms = now_ms

    @property
    def requests(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            RequestCode.HEART_BEAT: self.heart_beat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
        }

    def heart_beat(self, channel: Channel, request: Command) -> Command:
        """Handle HEART_BEAT."""
        beat = HeartbeatData.decode(request.body)
        for data in beat.consumer_data_set:
            self._prepare_group(data)
        changed = self._clients.heartbeat(
            channel, beat, language=request.language, version=request.version, now_ms=int(self._now_ms())
        )
        self._notify(changed)
        return request.reply()

    def _prepare_group(self, data: ConsumerData) -> None:
        """Make a consumer's group, and the topic that its failed messages return in, if they may be made."""
        group = self._groups.find(data.group_name)
        topic = _RETRY_PREFIX + data.group_name
        if group is None or self._topics.get(topic) is not None:
            return
        try:
            sys_flag = TopicSysFlag.build(unit_sub=data.unit_mode)
            ensure_topic(self._topics, topic, group.retry_queue_nums, PERM_READ | PERM_WRITE, sys_flag)
        except RocketError as error:
            log.warning("no topic %s: %s", topic[:200], error)

    def unregister(self, channel: Channel, request: Command) -> Command:
        """Handle UNREGISTER_CLIENT, which a client sends several times (QUIRKS 10)."""
        header = request.header_as(UnregisterClientRequestHeader)
        changed = self._clients.unregister(
            channel, producer_group=header.producer_group, consumer_group=header.consumer_group
        )
        self._notify(changed)
        return request.reply()

    def check_config(self, channel: Channel, request: Command) -> Command:
        """Handle CHECK_CLIENT_CONFIG: can this broker filter as the consumer wants?"""
        body = CheckClientRequestBody.decode(request.body)
        wanted = body.subscription_data
        if is_tag_type(wanted.expression_type):
            return request.reply()
        refusal = self._expressions.refusal(wanted.expression_type, body.group)
        if refusal is not None:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=refusal)
        try:
            filter_of(wanted)
        except ExpressionInvalid as error:
            return request.reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=str(error))
        return request.reply()

    def consumer_list(self, channel: Channel, request: Command) -> Command:
        """Handle GET_CONSUMER_LIST_BY_GROUP."""
        name = request.header_as(GetConsumerListByGroupRequestHeader).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:  # QUIRKS 38
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {name}")
        return request.reply(
            body=GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids).encode()
        )

    def channel_closed(self, channel: Channel) -> None:
        """Forget who was on a channel that is gone."""
        self._notify(self._clients.drop_channel(channel))

    def drop_silent(self) -> None:
        """Forget clients that sent no heartbeat for too long."""
        self._notify(self._clients.drop_silent(int(self._now_ms())))

    def _notify(self, changed: Iterable[str]) -> None:
        """Tell all members of groups, new ones too, that they should share their queues anew (QUIRKS 41)."""
        for name in changed:
            group = self._clients.consumer_group(name)
            settings = self._groups.get(name)
            if group is None or not self._config.notify_ids_changed:
                continue
            if settings is not None and not settings.notify_consumer_ids_changed_enable:
                continue
            header = NotifyConsumerIdsChangedRequestHeader(consumer_group=name)
            for channel in group.members:
                with contextlib.suppress(RocketError):  # a channel on its way out needs no news
                    cast(Channel, channel).oneway(
                        Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
                    )
