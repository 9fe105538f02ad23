"""Timed messages: accepts sends with a due time.

Source: HookUtils, SendMessageProcessor of RocketMQ 5.3.3 (QUIRKS 70, 71, 74).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass

from rocketpy.errors import UsageError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX
from rocketpy.protocol.message.recall_handle import RecallHandle
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.base import Rejected
from rocketpy_broker.services.timers.messages import (
    RECALLED,
    due_time,
    out_time,
    to_timer_message,
)
from rocketpy_broker.store import MessageInner
from rocketpy_broker.store.files.disk import Clock, system_clock


@dataclass(eq=False)
class TimedSends:
    """Moves timed messages to the timer topic."""

    config: BrokerConfig
    waiting: Callable[[], int]
    """Returns the number of timers of the broker."""
    waiting_in_slot: Callable[[int], int]
    """Returns the number of timers of the slot of a time."""
    _: KW_ONLY
    clock: Clock = system_clock

    def accept(self, message: MessageInner, properties: Mapping[str, str]) -> str | None:
        """Move a timed message to the timer topic, and return its recall handle; None without one.

        A message that is due already stays as it is. properties: those of the message that `timed_alone`
        returns, or all. Raises Rejected.
        """
        try:
            return self._accept(message, properties)
        except UsageError as error:
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None

    def _accept(self, message: MessageInner, properties: Mapping[str, str]) -> str | None:
        timers, topic, now_ms = self.config.timers, message.topic, self.clock()
        if not timers.enabled:
            remark = "accurate timer message is not enabled, timerWheelEnable is false"
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
        due_ms = due_time(properties, now_ms)
        recalled = properties.get(RECALLED)
        is_foreign = recalled is not None and "+" in recalled and not recalled.startswith(f"{topic}+")
        if is_foreign or (recalled is not None and due_ms <= now_ms):
            remark = f"{RECALLED} recalls a message of the same topic that is not due; it is {recalled!r}"[
                :400
            ]
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, remark)
        if due_ms <= now_ms:
            return None
        if due_ms - now_ms > timers.max_delay_s * 1000:
            remark = (
                f"timer message illegal, the delay time {due_ms - now_ms}ms should not be bigger than the "
                f"max delay {timers.max_delay_s * 1000}ms (timerMaxDelaySec={timers.max_delay_s})"
            )
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, remark)
        self._check_room(due_ms)
        to_timer_message(message, due_ms)
        unique_id = properties.get(props.PROPERTY_UNIQ_KEY)
        if unique_id is None or recalled is not None or topic.startswith(RETRY_TOPIC_PREFIX):
            return None
        return RecallHandle(topic, self.config.name, out_time(due_ms) + 1, unique_id).encode()

    def _check_room(self, due_ms: int) -> None:
        """Raise Rejected for a message if too many others wait, or are due in the same second."""
        timers = self.config.timers
        if timers.messages_max and self.waiting() >= timers.messages_max:
            remark = (
                f"timer message is under flow control, {timers.messages_max} timers wait already "
                "(timerMessagesMax)"
            )
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
        limit = timers.slot_messages_max
        if limit == timers.NO_SLOT_LIMIT:
            return
        count = self.waiting_in_slot(out_time(due_ms))
        # As in RocketMQ, the probability of a rejection grows up to twice the limit.
        if count > limit and random.random() * limit < count - limit:
            remark = (
                f"timer message is under flow control, {count} timers are due in the same second "
                f"(timerCongestNumEachSlot={limit})"
            )
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
