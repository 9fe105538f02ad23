"""Telling listeners of sends, so that none of them can harm one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from rocketpy.hooks import SendEvent, SendListener
from rocketpy.message import Message, MessageQueue
from rocketpy.results import SendResult

__all__ = ["Listeners"]

log = logging.getLogger("rocketpy.producer")


class Listeners:
    """The listeners of one producer; false when there are none. locate: finds a queue's broker."""

    __slots__ = ("_client_id", "_group", "_listeners", "locate")

    def __init__(self, listeners: Sequence[SendListener], group: str, client_id: str) -> None:
        self._listeners = tuple(listeners)
        self._group = group
        self._client_id = client_id
        self.locate: Callable[[MessageQueue], str | None] = lambda _queue: None

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def announce(self, messages: Sequence[Message], *, oneway: bool = False) -> SendEvent:
        """Tell of a send that is about to be accepted."""
        event = SendEvent(messages, self._group, self._client_id, oneway=oneway, locate=self.locate)
        for listener in self._listeners:
            _guarded(partial(listener.started, event))
        return event

    def ended(self, event: SendEvent, end: BaseException | Sequence[SendResult]) -> None:
        """Tell how a send that was announced ended."""
        for listener in self._listeners:
            if isinstance(end, BaseException):
                _guarded(partial(listener.failed, event, end))
            else:
                _guarded(partial(listener.completed, event, end))


def _guarded(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        # Telemetry that fails must not take the message down with it.
        log.exception("a send listener failed")
