"""HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG, GET_CONSUMER_LIST_BY_GROUP.

Source: ClientManageProcessor, ConsumerManageProcessor of RocketMQ 4.6.0.
"""

from __future__ import annotations

import asyncio
import logging

from rocketpy.protocol.bodies import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
)
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.command import Command
from rocketpy.protocol.headers import GetConsumerListByGroupRequestHeader, UnregisterClientRequestHeader
from rocketpy.transport import Channel
from rocketpy_broker.services.clients import ClientRegistry

__all__ = ["ClientHandler"]

log = logging.getLogger("rocketpy.broker.clients")


class ClientHandler:
    """Keeps the registry of clients."""

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients

    def heart_beat(self, channel: Channel, request: Command) -> Command:
        """Handle HEART_BEAT."""
        beat = HeartbeatData.decode(request.body)
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        self._clients.heartbeat(
            channel, beat, language=request.language, version=request.version, now_ms=now_ms
        )
        return request.reply()

    def unregister(self, channel: Channel, request: Command) -> Command:
        """Handle UNREGISTER_CLIENT, which a client sends several times (QUIRKS 10)."""
        header = request.header_as(UnregisterClientRequestHeader)
        self._clients.unregister(
            channel, producer_group=header.producer_group, consumer_group=header.consumer_group
        )
        return request.reply()

    def check_config(self, channel: Channel, request: Command) -> Command:
        """Handle CHECK_CLIENT_CONFIG: can this broker filter as the consumer wants?"""
        kind = CheckClientRequestBody.decode(request.body).subscription_data.expression_type
        if kind in ("TAG", ""):
            return request.reply()
        return request.reply(
            ResponseCode.SYSTEM_ERROR,
            remark=f"The broker does not support consumer to filter message by {kind}",
        )

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
        self._clients.drop_channel(channel)
