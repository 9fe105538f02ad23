"""Consumer groups made, listed and removed by operators. Source: AdminBrokerProcessor of RocketMQ 4.6.0."""

from __future__ import annotations

from rocketpy.protocol.bodies import SubscriptionGroupConfig
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Handler, answer_later
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable


class GroupHandler:
    """Changes the table of groups; what was answered is on disk."""

    def __init__(self, groups: SubscriptionGroupTable, tasks: Tasks) -> None:
        self._groups = groups
        self._tasks = tasks

    @property
    def requests(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.one_group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
        }

    def update(self, channel: Channel, request: Command) -> None:
        """Handle UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        group = SubscriptionGroupConfig.decode(request.body)
        answer_later(self._tasks, channel, request, self._update(request, group))

    async def _update(self, request: Command, group: SubscriptionGroupConfig) -> Command:
        await self._groups.update(group)
        return request.reply()

    def all_groups(self, channel: Channel, request: Command) -> Command:
        """Handle GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        return request.reply(body=self._groups.encode())

    def one_group(self, channel: Channel, request: Command) -> Command:
        """Handle GET_SUBSCRIPTIONGROUP_CONFIG. Source: AdminBrokerProcessor of RocketMQ 5.3.3.

        Differs: there the question makes a group that is not there.
        """
        name = request.header_as(GetSubscriptionGroupConfigRequestHeader).group
        group = self._groups.get(name)
        if group is None:
            remark = f"group {name} does not exist on this broker"
            return request.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
        return request.reply(body=group.encode())

    def delete(self, channel: Channel, request: Command) -> None:
        """Handle DELETE_SUBSCRIPTIONGROUP; a group that is not there is no error, as in 4.6.0."""
        name = request.header_as(DeleteSubscriptionGroupRequestHeader).group_name
        answer_later(self._tasks, channel, request, self._delete(request, name))

    async def _delete(self, request: Command, name: str) -> Command:
        await self._groups.delete(name)
        return request.reply()
