"""ClientRemotingProcessor: handles the requests that brokers send to the consumers of a client.

    NOTIFY_CONSUMER_IDS_CHANGED      a member joined or left: rebalance
    RESET_CONSUMER_CLIENT_OFFSET     continue from other offsets
    GET_CONSUMER_STATUS_FROM_CLIENT  return the offset to commit of each queue
    GET_CONSUMER_RUNNING_INFO        return the state of the consumer
    CONSUME_MESSAGE_DIRECTLY         handle a message, and return the result

Source: RocketMQ 4.6 ClientRemotingProcessor, MQClientInstance.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import fields
from typing import Any, Final

from rocketpy.client.broker_api import checked_offset
from rocketpy.client.instance import ClientInstance
from rocketpy.consumer.fetch.subscription import restore_topic
from rocketpy.consumer.group.member import GroupMember
from rocketpy.consumer.outcomes import HandlingResult
from rocketpy.errors import InvariantError
from rocketpy.message.decode import decode_message
from rocketpy.message.message import MessageExt
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    MessageQueue,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    ResetOffsetRequestHeader,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel

_VERSION_NAME: Final = "V4_6_0"


DirectHandler = Callable[[MessageExt], Awaitable[HandlingResult]]
"""Handles a message on an operator's request. Raises RocketError if the consumer has no handler."""


class GroupRegistration:
    """A consumer that brokers send requests to: its member, handler and settings."""

    def __init__(self, member: GroupMember, direct: DirectHandler, properties: dict[str, str]) -> None:
        self.member: Final = member
        self.consume_directly: Final = direct
        self.properties: Final = properties


class ClientRemotingProcessor:
    """Handles requests for the groups of one client. `ClientInstance.shared` keeps one per client."""

    def __init__(self, client: ClientInstance) -> None:
        self._client = client
        self._groups: dict[str, GroupRegistration] = {}
        """By name, with the namespace."""
        client.connections.handlers.update(
            {
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed,
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offset,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
                RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
                RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            }
        )

    def add(self, group: GroupRegistration) -> None:
        """Register a consumer. Raises ConfigInvalid for the second consumer of a group."""
        self._client.add_consumer(group.member.group, group.member.describe)
        self._groups[group.member.group] = group

    async def remove(self, name: str) -> None:
        """Remove the consumer of a group and unregister it from brokers."""
        if self._groups.pop(name, None) is not None:
            await self._client.remove_consumer(name)

    # -- requests -----------------------------------------------------------------------------

    def _ids_changed(self, _channel: Channel, request: Command) -> None:
        name = request.header_as(NotifyConsumerIdsChangedRequestHeader).consumer_group
        group = self._groups.get(name)
        if group is not None:
            group.member.rebalance_soon()

    def _reset_offset(self, _channel: Channel, request: Command) -> Command | None:
        header = request.header_as(ResetOffsetRequestHeader)
        group = self._groups.get(header.group)
        if group is not None:
            offsets = _reset_offsets(request.body)
            member = group.member
            member.tasks.spawn(member.reset(header.topic, offsets), f"reset {header.topic}")
        return request.reply()

    def _status(self, _channel: Channel, request: Command) -> Command:
        header = request.header_as(GetConsumerStatusRequestHeader)
        group = self._groups.get(header.group)
        progress = group.member.progress() if group is not None else {}
        table = {
            queue: offset
            for queue, offset in progress.items()
            if not header.topic or queue.topic == header.topic
        }
        return request.reply(body=GetConsumerStatusBody(message_queue_table=table).encode())

    def _running_info(self, _channel: Channel, request: Command) -> Command:
        header = request.header_as(GetConsumerRunningInfoRequestHeader)
        group = self._groups.get(header.consumer_group)
        if group is None:
            return _unknown_group(request, header.consumer_group)
        info = running_info(group, self._client)
        if header.jstack_enable:
            info.jstack = _stacks()
        return request.reply(body=info.encode())

    def _consume_directly(self, channel: Channel, request: Command) -> Command | None:
        header = request.header_as(ConsumeMessageDirectlyResultRequestHeader)
        group = self._groups.get(header.consumer_group)
        if group is None:
            return _unknown_group(request, header.consumer_group)
        member = group.member
        broker = header.broker_name or self._client.routes.broker_name(channel.remote_address) or ""
        message = decode_message(request.body, broker, member.config.max_body_bytes, verify=False)
        if message.decode_error is not None:
            remark = f"the message cannot be decoded: {message.decode_error}"
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        message = restore_topic(message, member.group, member.namespace)
        self._respond_later(member, channel, request, self._consumed(group, message))
        return None

    def _respond_later(
        self, member: GroupMember, channel: Channel, request: Command, work: Coroutine[Any, Any, bytes]
    ) -> None:
        """Respond in a task of the member; the result of `work` is the body."""

        async def respond() -> None:
            try:
                response = request.reply(body=await work)
            except Exception as error:  # noqa: BLE001 - the broker gets the error
                response = request.reply(ResponseCode.SYSTEM_ERROR, remark=repr(error))
                if isinstance(error, InvariantError):
                    member.tasks.fail("consume directly", error)
            channel.reply(response)

        member.tasks.spawn(respond(), "consume directly")

    async def _consumed(self, group: GroupRegistration, message: MessageExt) -> bytes:
        began_ms = self._client.now_ms()
        result = await group.consume_directly(message)
        body = ConsumeMessageDirectlyResult(
            order=group.member.orderly,
            auto_commit=True,
            consume_result=result.kind,
            remark=result.remark,
            spent_time_mills=int(self._client.now_ms() - began_ms),
        )
        return body.encode()


def running_info(group: GroupRegistration, client: ClientInstance) -> ConsumerRunningInfo:
    """Return the state of a consumer. Source of the property names: RocketMQ ConsumerRunningInfo."""
    member = group.member
    now_ms, wall_ms = client.now_ms(), time.time_ns() // 1_000_000
    properties = group.properties | {
        "PROP_CONSUMEORDERLY": "true" if member.orderly else "false",
        "PROP_CONSUMER_START_TIMESTAMP": str(member.started_ms),
        "PROP_CONSUME_TYPE": member.consume_type,
        "messageModel": member.config.model.value,
        "consumeFromWhere": member.config.consume_from.value,
        "PROP_NAMESERVER_ADDR": client.config.namesrv,
        "PROP_CLIENT_VERSION": _VERSION_NAME,
    }
    return ConsumerRunningInfo(
        properties=properties,
        subscription_set=list(member.subscriptions.values()),
        mq_table={
            queue: puller.process_queue.info(int(now_ms), wall_ms) for queue, puller in member.pullers.items()
        },
        status_table={topic: member.stats.status(topic, now_ms) for topic in member.subscriptions},
    )


def config_properties(config: object) -> dict[str, str]:
    """Return the fields of a configuration as strings."""
    return {field.name: str(getattr(config, field.name)) for field in fields(config)}  # type: ignore[arg-type] # any dataclass


def _reset_offsets(body: bytes) -> dict[MessageQueue, int]:
    """Decode offsets in either form: JSON with objects as keys, or the list for C++ clients.

    Raises RemoteProtocolError, also for an offset below 0.
    """
    if not body:
        return {}
    table = fastjson.loads(body)
    if isinstance(table, dict) and isinstance(table.get("offsetTable"), list):
        found = {
            MessageQueue(item.topic, item.broker_name, item.queue_id): item.offset
            for item in ResetOffsetBodyForC.decode(body).offset_table
        }
    else:
        found = ResetOffsetBody.decode(body).offset_table
    for queue, offset in found.items():
        checked_offset(offset, "offset after a reset", queue)
    return found


def _unknown_group(request: Command, group: str) -> Command:
    return request.reply(
        ResponseCode.SYSTEM_ERROR, remark=f"The Consumer Group <{group}> not exist in this consumer"
    )


def _stacks() -> str:
    """Return the stack of each thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - the documented way
    )
