"""PEEK_MESSAGE: the messages that a group would pop next, without taking them.

Source: PeekMessageProcessor of RocketMQ 5.3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import PeekMessageRequestHeader, PopMessageResponseHeader
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import handles
from rocketpy_broker.handlers.pop.pop import PopHandler, check_count
from rocketpy_broker.store import GetMessageStatus, MessageStore


@dataclass(eq=False)
class PeekHandler:
    """Serves peeks."""

    pops: PopHandler
    store: MessageStore

    @handles(RequestCode.PEEK_MESSAGE)
    def peek(self, channel: Channel, request: Command) -> Command:
        """Handle PEEK_MESSAGE."""
        header = request.header_as(PeekMessageRequestHeader)
        self.pops.check(channel, header)
        check_count(header.max_msg_nums)
        bodies: list[bytes] = []
        count = rest = 0
        for topic, _, queue_id in self.pops.queues(header):
            offset = self.pops.next_offset(header, topic, queue_id)
            rest += max(self.store.max_offset_in_queue(topic, queue_id) - offset, 0)
            wanted = header.max_msg_nums - count
            if wanted:
                found = self.store.get_message(topic, queue_id, offset, wanted)
                if not found.count and found.next_begin_offset != offset:  # the first messages have expired
                    found = self.store.get_message(topic, queue_id, found.next_begin_offset, wanted)
                count += found.count
                bodies.append(found.body)
        code = ResponseCode.SUCCESS if count else ResponseCode.PULL_NOT_FOUND
        response = PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=rest)
        status = GetMessageStatus.FOUND if count else GetMessageStatus.NO_MESSAGE_IN_QUEUE
        return request.reply(code, remark=status.name, header=response, body=b"".join(bodies))
