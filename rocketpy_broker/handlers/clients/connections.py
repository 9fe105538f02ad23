"""Who is connected, for operators. Source: AdminBrokerProcessor of RocketMQ 4.6.0."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import cast

from rocketpy.protocol.bodies import Connection, ConsumerConnection, ProducerConnection
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Handler
from rocketpy_broker.services.metadata.clients import ClientChannelInfo, ClientRegistry


class ConnectionHandler:
    """Answers from the registry of clients."""

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients

    @property
    def requests(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
        }

    def consumers(self, channel: Channel, request: Command) -> Command:
        """Handle GET_CONSUMER_CONNECTION_LIST."""
        name = request.header_as(GetConsumerConnectionListRequestHeader).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            remark = f"the consumer group[{name}] not online"
            return request.reply(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
        body = ConsumerConnection(
            connection_set=_connections(group.members),
            subscription_table=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return request.reply(body=body.encode())

    def producers(self, channel: Channel, request: Command) -> Command:
        """Handle GET_PRODUCER_CONNECTION_LIST."""
        name = request.header_as(GetProducerConnectionListRequestHeader).producer_group
        members = self._clients.producers(name)
        if not members:
            remark = f"the producer group[{name}] not exist"
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        return request.reply(body=ProducerConnection(connection_set=_connections(members)).encode())


def _connections(members: Mapping[Hashable, ClientChannelInfo]) -> list[Connection]:
    return [
        Connection(
            client_id=info.client_id,
            client_addr=cast(Channel, channel).remote_address,
            language=info.language,
            version=info.version,
        )
        for channel, info in members.items()
    ]
