"""Results of handlers.

Source: RocketMQ 4.6 ConsumeConcurrentlyStatus, ConsumeOrderlyStatus and their contexts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rocketpy.message.message import MessageExt

log: Final = logging.getLogger("rocketpy.consumer")


class ConsumeResult(Enum):
    """The result of a handler. None counts as SUCCESS, an exception as LATER."""

    SUCCESS = "CONSUME_SUCCESS"
    """The messages are processed."""
    LATER = "RECONSUME_LATER"
    """Redeliver the messages later. Orderly: the queue pauses, then the messages are handled again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """`ConsumeResult.LATER` with options.

    delay_level: delay before the redelivery, by the broker's table, see `DelayLevels`. A level above the last
    counts as the last. 0: the broker's choice, longer each time. -1: no redelivery; the message goes to the
    dead-letter topic. Ignored when orderly.
    done: how many messages at the start of the batch are processed.
    suspend_ms: how long an orderly queue pauses, at least 10 and at most 30000; None for
    `PushConfig.suspend_ms`.
    """

    delay_level: int = 0
    done: int = 0
    suspend_ms: int | None = None


HandlerResult = ConsumeResult | Later | None
Handler = Callable[[MessageExt], "HandlerResult | Awaitable[HandlerResult]"]
"""Receives one message. An ``async def`` runs in the event loop, a plain function on a thread."""
BatchHandler = Callable[[list[MessageExt]], "HandlerResult | Awaitable[HandlerResult]"]
"""Receives a new list of up to `PushConfig.batch_size` messages of one queue."""


@dataclass(frozen=True, slots=True)
class HandlingResult:
    """A handler's result after validation.

    done: how many messages at the start of the batch are processed; None for all. later: options for the
    other messages. kind: RocketMQ's name of the result (CMResult), which administration tools show.
    remark: the error of a handler that raised.
    """

    done: int | None
    later: Later
    kind: str
    remark: str | None = None


_LATER: Final = Later()
ACKNOWLEDGED: Final = HandlingResult(None, _LATER, "CR_SUCCESS")


def to_handling_result(returned: object) -> HandlingResult:
    """Validate a handler's return value. An invalid value is logged and counts as LATER."""
    if returned is None or returned is ConsumeResult.SUCCESS:
        return ACKNOWLEDGED
    if returned is ConsumeResult.LATER:
        return HandlingResult(0, _LATER, "CR_LATER")
    if isinstance(returned, Later):
        return HandlingResult(max(0, returned.done), returned, "CR_LATER")
    log.error("a handler returned %r, which is not a ConsumeResult; its messages are redelivered", returned)
    return HandlingResult(0, _LATER, "CR_RETURN_NULL")


def failure_result(error: BaseException) -> HandlingResult:
    """Return the result for a handler that raised an exception."""
    return HandlingResult(0, _LATER, "CR_THROW_EXCEPTION", repr(error))
