"""RECALL_MESSAGE: takes a timed message back before it is due.

Source: RecallMessageProcessor of RocketMQ 5.3.3 (QUIRKS 74). Differs: it looks for the message first, and
recallMessageEnable is on by default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from rocketpy.errors import UsageError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.recall_handle import RecallHandle
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.base import Rejected, handles, topic_not_found
from rocketpy_broker.handlers.send.send import SendHandler, respond_when_stored
from rocketpy_broker.services.delay.copies import find_stored
from rocketpy_broker.services.timers.messages import (
    OUT_MS,
    RECALLED,
    TIMER_TOPIC,
    out_time,
    to_timer_message,
)
from rocketpy_broker.store import MessageInner, MessageStore
from rocketpy_broker.store.busy import Reason
from rocketpy_broker.store.files.disk import Clock, system_clock

_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"


@dataclass(eq=False)
class RecallHandler:
    """Takes timed messages back before they are due. Its records are written with those of sends."""

    store: MessageStore
    config: BrokerConfig
    send: SendHandler
    _: KW_ONLY
    on_recall: Callable[[int], None]
    """Called after a recall was appended, with the time when the message is due."""
    clock: Clock = system_clock

    @handles(RequestCode.RECALL_MESSAGE)
    def recall(self, channel: Channel, request: Command) -> Command | None:
        """Handle RECALL_MESSAGE."""
        header = request.header_as(RecallMessageRequestHeader)
        handle = self._check(header)
        message = MessageInner(handle.topic, 0, _BODY, born_timestamp=self.clock())
        message.born_host = self.send.born_host(channel)
        properties = {
            RECALLED: f"{handle.topic}+{handle.message_id}",
            props.PROPERTY_UNIQ_KEY: handle.message_id,
            props.TIMER_DELIVER_MS: str(handle.deliver_ms),
            props.PROPERTY_TAGS: _TAG,
        }
        if header.producer_group:
            properties[props.PROPERTY_PRODUCER_GROUP] = header.producer_group
        try:
            message.properties = props.encode(properties).encode()
            to_timer_message(message, handle.deliver_ms)
        except UsageError as error:
            raise _illegal(str(error)) from None

        responds = RecallMessageResponseHeader(msg_id=handle.message_id)
        self.send.append(message, respond_when_stored(channel, request, responds, "recall failed: "))
        self.on_recall(handle.deliver_ms)
        return None

    def _check(self, header: RecallMessageRequestHeader) -> RecallHandle:
        """Return the handle of a request. Raises Rejected, also for a message that is not waiting."""
        config = self.config
        if not (config.timers.recalls and config.timers.enabled):
            remark = "recall failed, operation is forbidden (recallMessageEnable)"
            raise Rejected(ResponseCode.NO_PERMISSION, remark)
        rejection = self.store.rejection(Reason.SLAVE)
        if rejection is not None:
            remark = (
                f"recall failed, {rejection}; recall at its master, since a slave cannot write to the log"
            )
            raise Rejected(ResponseCode.SLAVE_NOT_AVAILABLE, remark)
        if self.send.topics.get(header.topic) is None:
            raise topic_not_found(header.topic)
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except UsageError as error:
            raise _illegal(str(error)) from None
        if handle.topic != header.topic:
            raise _illegal(f"topic not match: the message is of topic {handle.topic}, not of {header.topic}")
        if handle.broker_name != config.name:
            raise _illegal(f"the message is at broker {handle.broker_name}, this one is {config.name}")
        left_ms = handle.deliver_ms - self.clock()
        if left_ms <= 0:
            raise _illegal(f"timestamp invalid: the message is due since {-left_ms} ms")
        if not self._is_waiting(handle):
            raise _illegal(
                f"there is no message {handle.message_id} of topic {handle.topic} that is due at "
                f"{handle.deliver_ms}"
            )
        return handle

    def _is_waiting(self, handle: RecallHandle) -> bool:
        """Whether the key index finds the message; True if the index is switched off."""
        store = self.store
        if store.index is None:
            return True
        self.send.end_of_buffer()
        store.units(TIMER_TOPIC, 0, 0, 1)  # dispatches what was written
        for record in find_stored(store, TIMER_TOPIC, handle.message_id):
            found = props.decode(record.properties)
            if (
                record.topic == TIMER_TOPIC
                and found.get(props.PROPERTY_UNIQ_KEY) == handle.message_id
                and found.get(props.PROPERTY_REAL_TOPIC) == handle.topic
                and found.get(OUT_MS) == str(out_time(handle.deliver_ms))
                and RECALLED not in found
            ):
                return True
        return False


def _illegal(reason: str) -> Rejected:
    return Rejected(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {reason}")
