"""Results of handlers.

Source: RocketMQ 4.6 ConsumeConcurrentlyStatus, ConsumeOrderlyStatus and their contexts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from numbers import Integral
from typing import Any, Final

from rocketpy.errors import UsageError
from rocketpy.message.message import MessageExt
from rocketpy.runtime.application import describe, shown
from rocketpy.runtime.pickling import get_fields, set_fields

_INT_MAX: Final = 2**31 - 1


def _check_integer(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise UsageError(
            f"{name} of Later is {shown(value)}; it must be a whole number from {least} to {most}"
        )


class ConsumeResult(Enum):
    """The result of a handler. None counts as SUCCESS, an exception as LATER."""

    SUCCESS = "CONSUME_SUCCESS"
    """The messages are processed."""
    LATER = "RECONSUME_LATER"
    """Redeliver the messages later. Orderly: the queue pauses, then the messages are handled again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """`ConsumeResult.LATER` with options.

    Raises UsageError for values of other types, and for a `delay_level` below -1.
    """

    delay_level: int = 0
    """Delay before the redelivery, by the broker's table, see `DelayLevels`. A level above the last counts as
    the last. 0: the broker's choice, longer each time. -1: no redelivery; the message goes to the dead-letter
    topic. Ignored when orderly."""
    done: int = 0
    """How many messages at the start of the batch are processed."""
    suspend_ms: int | None = None
    """How long an orderly queue pauses, at least 10 and at most 30000; None for `PushConfig.suspend_ms`."""
    reason: str | None = field(default=None, compare=False)
    """Why, for the dead letter that the message becomes."""

    __getstate__ = get_fields
    __setstate__ = set_fields

    def __post_init__(self) -> None:
        _check_integer("delay_level", self.delay_level, -1, _INT_MAX)
        _check_integer("done", self.done, -_INT_MAX, _INT_MAX)
        if self.suspend_ms is not None:
            _check_integer("suspend_ms", self.suspend_ms, -_INT_MAX, _INT_MAX)
        reason: object = self.reason
        if reason is not None and not isinstance(reason, str):
            raise UsageError(f"reason of Later is {shown(reason)}; it must be a string")


HandlerResult = ConsumeResult | Later | None
Handler = Callable[[MessageExt], "HandlerResult | Awaitable[HandlerResult]"]
"""Receives one message. An ``async def`` runs in the event loop, a plain function on a thread."""
BatchHandler = Callable[[list[MessageExt]], "HandlerResult | Awaitable[HandlerResult]"]
"""Receives a new list of up to `PushConfig.batch_size` messages of one queue."""


@dataclass(frozen=True, slots=True)
class HandlingResult:
    """A handler's result after validation."""

    done: int | None
    """How many messages at the start of the batch are processed; None for all."""
    later: Later
    """Options for the other messages."""
    kind: str
    """RocketMQ's name of the result (CMResult), which administration tools show."""
    remark: str | None = None
    """Why messages are not processed, for tools and dead letters."""
    is_foreign: bool = False
    """The handler returned something else than a result, so it is not known whether the messages are
    processed."""


_LATER: Final = Later()
ACKNOWLEDGED: Final = HandlingResult(None, _LATER, "CR_SUCCESS")


def to_handling_result(returned: object) -> HandlingResult:
    """Validate a handler's return value."""
    if returned is None or returned is ConsumeResult.SUCCESS:
        return ACKNOWLEDGED
    if returned is ConsumeResult.LATER:
        return HandlingResult(0, _LATER, "CR_LATER", "the handler returned LATER")
    if isinstance(returned, Later):
        remark = returned.reason or "the handler returned Later"
        return HandlingResult(max(0, returned.done), returned, "CR_LATER", remark)
    remark = f"the handler returned {shown(returned)}; return None, a ConsumeResult or a Later"
    return HandlingResult(0, _LATER, "CR_RETURN_NULL", remark, is_foreign=True)


def failure_result(error: BaseException) -> HandlingResult:
    """Return the result for a handler that raised an exception."""
    return HandlingResult(0, _LATER, "CR_THROW_EXCEPTION", describe(error))
