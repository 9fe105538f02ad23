"""Assignment of queues to consumers by the broker, and the mode in which a group requests messages.

Source: QueryAssignmentProcessor of RocketMQ 5.3.3. Differs: consistent hashing is supported, and an unknown
strategy is rejected; there, the consumer gets no queues and no error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rocketpy.consumer.allocation import (
    AllocateAveragely,
    AllocateByCircle,
    AllocateByConsistentHash,
    AllocationStrategy,
)
from rocketpy.protocol.bodies import (
    MessageQueue,
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    RequestMode,
    SetMessageRequestModeRequestBody,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import ANY_QUEUE
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.config.model import ConsumeConfig
from rocketpy_broker.handlers.base import Rejected, handles, topic_not_found
from rocketpy_broker.services.cluster.topic_queues import TopicQueues
from rocketpy_broker.services.metadata.clients import ClientRegistry
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.request_modes import RequestModeTable
from rocketpy_broker.services.metadata.topics import TopicTable

log = logging.getLogger("rocketpy.broker.assignments")

_STRATEGIES: Final[dict[str | None, AllocationStrategy]] = {
    strategy.name: strategy
    for strategy in (AllocateAveragely(), AllocateByCircle(), AllocateByConsistentHash())
}


@dataclass(eq=False)
class AssignmentHandler:
    """Handles requests about assignments and modes."""

    topics: TopicTable
    groups: SubscriptionGroupTable
    clients: ClientRegistry
    modes: RequestModeTable
    queues: TopicQueues
    config: ConsumeConfig

    @handles(RequestCode.QUERY_ASSIGNMENT)
    async def query(self, channel: Channel, request: Command) -> Command:
        """Handle QUERY_ASSIGNMENT."""
        wanted = QueryAssignmentRequestBody.decode(request.body)
        mode = self._mode(wanted.topic, wanted.consumer_group)
        queues = await self.queues.find(wanted.topic)
        mine = None if queues is None else self._share(wanted, mode, queues)
        body = QueryAssignmentResponseBody()
        if mine is not None:
            body.message_queue_assignments = [
                MessageQueueAssignment(message_queue=queue, mode=mode.mode) for queue in dict.fromkeys(mine)
            ]
        return request.reply(body=body.encode())

    def _mode(self, topic: str, group: str) -> SetMessageRequestModeRequestBody:
        """Return the mode of a topic and a group; retry topics are always pulled."""
        mode = self.modes.find(topic, group)
        if mode is not None:
            return mode
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        return SetMessageRequestModeRequestBody(
            topic=topic,
            consumer_group=group,
            mode=RequestMode.PULL if is_retry else self.config.default_mode,
            pop_share_queue_num=self.config.default_pop_shares,
        )

    def _share(
        self,
        wanted: QueryAssignmentRequestBody,
        mode: SetMessageRequestModeRequestBody,
        queues: Sequence[MessageQueue],
    ) -> Iterable[MessageQueue] | None:
        """Return the queues of a member; None while the group is not online."""
        if wanted.message_model == "BROADCASTING" or not self.config.assigns_queues:
            return queues
        group = self.clients.consumer_group(wanted.consumer_group)
        if group is None:
            log.info("no assignment for group %.200s, which is not online", wanted.consumer_group)
            return None
        strategy = _STRATEGIES.get(wanted.strategy_name)
        if strategy is None:
            known = ", ".join(sorted(map(str, _STRATEGIES)))
            text = f"the broker has no allocation strategy {str(wanted.strategy_name)[:200]}; it has {known}"
            raise Rejected(ResponseCode.INVALID_PARAMETER, text)
        members = sorted(group.client_ids)
        if mode.mode is RequestMode.POP:
            return _shared(strategy, wanted, mode.pop_share_queue_num, queues, members)
        return strategy.allocate(wanted.consumer_group, wanted.client_id, queues, members)

    @handles(RequestCode.SET_MESSAGE_REQUEST_MODE)
    async def set_mode(self, channel: Channel, request: Command) -> Command:
        """Handle SET_MESSAGE_REQUEST_MODE: members use it after their next request for queues."""
        mode = SetMessageRequestModeRequestBody.decode(request.body)
        if mode.topic.startswith(RETRY_TOPIC_PREFIX):
            raise Rejected(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self.topics.get(mode.topic) is None:
            raise topic_not_found(mode.topic)
        if self.groups.find(mode.consumer_group) is None:
            text = f"subscription group does not exist: {mode.consumer_group[:200]}"
            raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        await self.modes.set(mode)
        log.warning(
            "%s: group %s requests messages of topic %s by %s, popShareQueueNum %d",
            channel.remote_address,
            mode.consumer_group,
            mode.topic,
            mode.mode,
            mode.pop_share_queue_num,
        )
        return request.reply()

    @handles(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    def all_modes(self, channel: Channel, request: Command) -> Command:
        """Handle GET_ALL_MESSAGE_REQUEST_MODE, which slaves send."""
        return request.reply(body=self.modes.encode())


def _shared(
    strategy: AllocationStrategy,
    wanted: QueryAssignmentRequestBody,
    shares: int,
    queues: Sequence[MessageQueue],
    members: Sequence[str],
) -> Iterable[MessageQueue]:
    """Return the queues that a member pops from.

    shares: number of members that follow it by client id and whose queues it gets, too.
    """
    if shares <= 0 or shares >= len(members) - 1:
        return [MessageQueue(queue.topic, queue.broker_name, ANY_QUEUE) for queue in queues]
    if wanted.client_id not in members:
        return []
    index = members.index(wanted.client_id)
    if len(members) > len(queues):  # each member gets one
        return queues[index % len(queues) :][:1]
    mine: list[MessageQueue] = []
    for step in range(shares + 1):
        member = members[(index + step) % len(members)]
        mine += strategy.allocate(wanted.consumer_group, member, queues, members)
    return mine
