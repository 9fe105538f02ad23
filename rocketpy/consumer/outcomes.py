"""What a handler says about the messages it got.

Source: RocketMQ 4.6 ConsumeConcurrentlyStatus, ConsumeOrderlyStatus and their contexts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rocketpy.message.message import MessageExt

log = logging.getLogger("rocketpy.consumer")


class ConsumeResult(Enum):
    """How handling went. None counts as SUCCESS, an exception as LATER."""

    SUCCESS = "CONSUME_SUCCESS"
    """Done with these messages."""
    LATER = "RECONSUME_LATER"
    """They have to come again. Orderly: the queue waits a moment, then they come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """LATER, with particulars.

    delay_level: when a message comes again, by the broker's table of delays, see `DelayLevels`; a level above
    its last counts as the last; 0: the broker's choice, longer each time; -1: never, it goes to the dead
    letters at once. Not for orderly consumption.
    done: so many messages at the start of the batch are done with. suspend_ms: how long the queue
    waits, for orderly consumption; None for the consumer's setting.
    """

    delay_level: int = 0
    done: int = 0
    suspend_ms: int | None = None


HandlerResult = ConsumeResult | Later | None
Handler = Callable[[MessageExt], "HandlerResult | Awaitable[HandlerResult]"]
"""Gets one message. An ``async def`` runs in the event loop, a plain function on a thread."""
BatchHandler = Callable[[list[MessageExt]], "HandlerResult | Awaitable[HandlerResult]"]
"""Gets up to `PushConfig.batch_size` messages of one queue, in a list of its own."""


@dataclass(frozen=True, slots=True)
class HandlingResult:
    """What a handler said, understood. done: messages from the start that are done with; None for all.

    kind: the word that operators see.
    """

    done: int | None
    later: Later
    kind: str
    remark: str | None = None


_LATER: Final = Later()
ACKNOWLEDGED: Final = HandlingResult(None, _LATER, "CR_SUCCESS")


def to_handling_result(returned: object) -> HandlingResult:
    """What a handler's return value means; anything that is no answer counts as LATER."""
    if returned is None or returned is ConsumeResult.SUCCESS:
        return ACKNOWLEDGED
    if returned is ConsumeResult.LATER:
        return HandlingResult(0, _LATER, "CR_LATER")
    if isinstance(returned, Later):
        return HandlingResult(max(0, returned.done), returned, "CR_LATER")
    log.error("a handler returned %r, which is no ConsumeResult; its messages come again", returned)
    return HandlingResult(0, _LATER, "CR_RETURN_NULL")


def failure_result(error: BaseException) -> HandlingResult:
    """What an exception of a handler means."""
    return HandlingResult(0, _LATER, "CR_THROW_EXCEPTION", repr(error))
