"""Requests of operators that the broker forwards to consumers: reset offsets, read state, consume a message.

The broker sends them over the connection that the consumer has opened, and forwards the response. Remarks are
those of RocketMQ, including their spelling, since tools may match them.
Source: AdminBrokerProcessor, Broker2Client of RocketMQ 4.6.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from dataclasses import KW_ONLY, dataclass
from typing import Final, cast

from rocketpy.errors import RequestTimeout, RocketError
from rocketpy.protocol.bodies import (
    GetConsumerStatusBody,
    MessageQueue,
    MessageQueueForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    TopicConfig,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.protocol.remoting.acl import SIGNING_FIELDS
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Rejected, handles
from rocketpy_broker.services.metadata.clients import ClientRegistry
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.topics import TopicTable, queue_count
from rocketpy_broker.services.slices import Lasting, Slices
from rocketpy_broker.store import MessageStore

log = logging.getLogger("rocketpy.broker.calls")

_CALL_TIMEOUT_MS: Final = 10_000
_STATUS_TIMEOUT_MS: Final = 5_000
_FOR_C: Final = "CPP"
"""Clients in this language cannot decode maps whose keys are objects."""


@dataclass(eq=False)
class ClientCallHandler:
    """Forwards requests to consumers."""

    store: MessageStore
    topics: TopicTable
    clients: ClientRegistry
    offsets: ConsumerOffsets
    _: KW_ONLY
    slices: Slices
    broker_name: str
    """For the message queues in requests and responses."""
    is_shared: Callable[[str, str], bool] = lambda *_: False
    """Returns whether a group pops the messages of a topic."""
    on_reset: Callable[[str, str, int], None] = lambda *_: None
    """Called with topic, group and queue id after the broker has committed a new offset."""

    # -- offsets ------------------------------------------------------------------------------

    @handles(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    async def reset_offset(self, channel: Channel, request: Command) -> Command:
        """Handle INVOKE_BROKER_TO_RESET_OFFSET: notify all members of a group of their new offsets.

        The members commit the new offsets, so at least one must be online. For a single queue, which mqadmin
        of 5.x may name, the broker also commits the offset itself; and for a group that pops, whose members
        do not know offsets. Differs: 4.6.0 leaves out queues that are only read.
        """
        return await self.slices.run(self._reset_offset(request), Lasting(channel))

    def _reset_offset(self, request: Command) -> Generator[None, None, Command]:
        header = request.header_as(ResetOffsetRequestHeader)
        topic = self.topics.get(header.topic)
        if topic is None:
            text = f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}"
            raise Rejected(ResponseCode.SYSTEM_ERROR, text)
        if header.queue_id is not None and header.queue_id >= 0:
            return (yield from self._reset_one(request, header, header.queue_id, topic))
        table: dict[MessageQueue, int] = {}
        for queue_id in range(queue_count(topic)):
            offset = self._offset_to_reset(header, queue_id)
            if offset is None and queue_id >= topic.write_queue_nums:
                continue  # the group has not read this queue, which gets no more messages
            if offset is None:
                raise Rejected(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
            table[MessageQueue(header.topic, self.broker_name, queue_id)] = offset
            if self.slices.is_over():
                yield
        if self.is_shared(header.topic, header.group):
            for queue, offset in table.items():
                self._commit(header, queue.queue_id, offset)
            return request.reply(body=ResetOffsetBody(offset_table=table).encode())
        if not (yield from self._send_reset(header, table, for_c=request.language == _FOR_C)):
            raise Rejected(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        return request.reply(body=ResetOffsetBody(offset_table=table).encode())

    def _reset_one(
        self, request: Command, header: ResetOffsetRequestHeader, queue_id: int, topic: TopicConfig
    ) -> Generator[None, None, Command]:
        """Reset one queue to an offset or a time. Source: AdminBrokerProcessor of RocketMQ 5.3.3."""
        if queue_id >= queue_count(topic):
            text = f"queueId[{queue_id}] is illegal, topic:[{header.topic}] has {queue_count(topic)} queues"
            raise Rejected(ResponseCode.SYSTEM_ERROR, text)
        first = self.store.min_offset_in_queue(header.topic, queue_id)
        end = self.store.max_offset_in_queue(header.topic, queue_id)
        target = header.offset
        if target is None or target == -1:
            target = self.store.offset_by_time(header.topic, queue_id, header.timestamp)
        if not first <= target <= end:
            text = f"Target offset {target} not in consume queue range [{first}-{end}]"
            raise Rejected(ResponseCode.SYSTEM_ERROR, text)
        self._commit(header, queue_id, target)
        table = {MessageQueue(header.topic, self.broker_name, queue_id): target}
        yield from self._send_reset(header, table, for_c=request.language == _FOR_C)
        return request.reply(body=ResetOffsetBody(offset_table=table).encode())

    def _commit(self, header: ResetOffsetRequestHeader, queue_id: int, offset: int) -> None:
        self.offsets.commit(header.group, header.topic, queue_id, offset)
        self.on_reset(header.topic, header.group, queue_id)

    def _offset_to_reset(self, header: ResetOffsetRequestHeader, queue_id: int) -> int | None:
        """Return the new offset, above the current one only if forced; None if the group has no offset."""
        current = self.offsets.get(header.group, header.topic, queue_id)
        if current is None:
            return None
        if header.timestamp == -1:
            target = self.store.max_offset_in_queue(header.topic, queue_id)
        else:
            target = self.store.offset_by_time(header.topic, queue_id, header.timestamp)
        target = max(target, 0)
        return target if header.is_force or target < current else current

    def _send_reset(
        self, header: ResetOffsetRequestHeader, table: dict[MessageQueue, int], *, for_c: bool
    ) -> Generator[None, None, bool]:
        """Send the new offsets to all members of the group; return whether the group is online."""
        group = self.clients.consumer_group(header.group)
        if group is None:
            return False
        body = (_for_c(table) if for_c else ResetOffsetBody(offset_table=table)).encode()
        reset = ResetOffsetRequestHeader(
            topic=header.topic, group=header.group, timestamp=header.timestamp, is_force=False
        )
        for channel in list(group.members):
            command = Command.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, reset, body)
            try:
                cast(Channel, channel).oneway(command)
            except RocketError as error:
                log.warning("cannot notify a member of group %s of its new offsets: %s", header.group, error)
            if self.slices.is_over():
                yield
        return True

    # -- other requests -----------------------------------------------------------------------

    @handles(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    async def consumer_status(self, channel: Channel, request: Command) -> Command:
        """Handle INVOKE_BROKER_TO_GET_CONSUMER_STATUS: request the offsets of members in a topic."""
        header = request.header_as(GetConsumerStatusRequestHeader)
        group = self.clients.consumer_group(header.group)
        if group is None:
            text = f"No Any Consumer online in the consumer group: [{header.group}]"
            raise Rejected(ResponseCode.SYSTEM_ERROR, text)
        members = {
            info.client_id: cast(Channel, member)
            for member, info in group.members.items()
            if not header.client_addr or header.client_addr == info.client_id
        }
        query = GetConsumerStatusRequestHeader(topic=header.topic, group=header.group)
        statuses = await asyncio.gather(*(self._request_status(member, query) for member in members.values()))
        table = {
            client_id: body.message_queue_table
            for client_id, body in zip(members, statuses, strict=True)
            if body is not None
        }
        return request.reply(body=GetConsumerStatusBody(consumer_table=table).encode())

    async def _request_status(
        self, member: Channel, query: GetConsumerStatusRequestHeader
    ) -> GetConsumerStatusBody | None:
        command = Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, query)
        try:
            response = await member.request(command, _STATUS_TIMEOUT_MS)
            return (
                GetConsumerStatusBody.decode(response.body) if response.code == 0 and response.body else None
            )
        except RocketError as error:
            log.warning("cannot get the consumer status of %s: %s", member.remote_address, error)
            return None

    @handles(RequestCode.GET_CONSUMER_RUNNING_INFO)
    async def running_info(self, channel: Channel, request: Command) -> Command:
        """Handle GET_CONSUMER_RUNNING_INFO: forward it to one member."""
        header = request.header_as(GetConsumerRunningInfoRequestHeader)
        return await self._forward(
            request, header.consumer_group, header.client_id, _unsigned(request), request.body
        )

    @handles(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    async def consume_directly(self, channel: Channel, request: Command) -> Command:
        """Handle CONSUME_MESSAGE_DIRECTLY: let one member process a message, independent of its offset."""
        header = request.header_as(ConsumeMessageDirectlyResultRequestHeader)
        _, offset = decode_message_id(header.msg_id or "")
        record = self.store.look_message(offset)
        if record is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        fields = {**_unsigned(request), "brokerName": self.broker_name}
        return await self._forward(request, header.consumer_group, header.client_id or "", fields, record)

    async def _forward(
        self, request: Command, group_name: str, client_id: str, fields: dict[str, str], body: bytes
    ) -> Command:
        group = self.clients.consumer_group(group_name)
        member = group.channel_of(client_id) if group is not None else None
        who = f"<{group_name}> <{client_id}>"
        if member is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"The Consumer {who} not online")
        command = Command.request(request.code, body=body)
        command.ext = fields
        try:
            received = await cast(Channel, member).request(command, _CALL_TIMEOUT_MS)
        except RequestTimeout as error:
            raise Rejected(ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {who} Timeout: {error}") from error
        except RocketError as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"invoke consumer {who} Exception: {error}") from error
        response = request.reply(received.code, remark=received.remark, body=received.body)
        response.ext = received.ext_fields()
        return response


def _unsigned(request: Command) -> dict[str, str]:
    """Return the fields of a request without its signature, which the receiver could replay."""
    return {name: value for name, value in request.ext_fields().items() if name not in SIGNING_FIELDS}


def _for_c(table: dict[MessageQueue, int]) -> ResetOffsetBodyForC:
    return ResetOffsetBodyForC(
        offset_table=[
            MessageQueueForC(
                topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id, offset=offset
            )
            for queue, offset in table.items()
        ]
    )
