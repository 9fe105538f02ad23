"""Telling listeners of sends, so that none of them can harm one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from rocketpy.hooks import SendEvent, SendListener, SettleListener
from rocketpy.message.message import Message
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.results import SendResult
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.telemetry.listeners import ListenerFanout
from rocketpy.telemetry.plugin import Telemetry

log = logging.getLogger("rocketpy.producer")


_LOOK_S: Final = 1.0
"""How often a producer that is never idle looks whether its telemetry has somebody to report to."""


class Listeners:
    """The listeners of one producer.

    all: those there are now. dormant: whether there is telemetry that had nobody to report to when it was
    last asked; `look` asks again. locate: finds a queue's broker.
    settle_listeners: of transactions' ends.
    """

    __slots__ = (
        "_client_id",
        "_group",
        "_limited_log",
        "_namespace",
        "_telemetry",
        "_timer",
        "all",
        "dormant",
        "locate",
        "settle_listeners",
    )

    def __init__(self, listeners: Sequence[SendListener], group: str, client_id: str) -> None:
        self.all = tuple(listeners)
        self.settle_listeners: ListenerFanout[SettleListener] = ListenerFanout(
            "settle", logging.getLogger("rocketpy")
        )
        self.dormant = False
        self._telemetry: Telemetry | None = None
        self._namespace = ""
        self._timer: asyncio.TimerHandle | None = None
        self._limited_log = RateLimitedLog(log)
        self._group = group
        self._client_id = client_id
        self.locate: Callable[[MessageQueue], str | None] = lambda _queue: None

    def observe(self, telemetry: Telemetry | None, namespace: str) -> None:
        """Have telemetry listen as soon as it has somebody to report to."""
        if telemetry is not None:
            self._telemetry, self._namespace, self.dormant = telemetry, namespace, True
            self._look_often()

    def look(self) -> None:
        """See whether dormant telemetry has somebody to report to by now."""
        if self.dormant and self._telemetry is not None and self._telemetry.is_active():
            self.dormant = False
            self.all += (self._telemetry.send_listener(self._namespace),)
            self.settle_listeners.add(self._telemetry.settle_listener(self._namespace))

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_often(self) -> None:
        self._guarded(self.look)
        if self.dormant:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look_often)

    def announce(self, messages: Sequence[Message], *, oneway: bool = False) -> SendEvent:
        """Tell of a send that is about to be accepted."""
        event = SendEvent(messages, self._group, self._client_id, oneway=oneway, locate=self.locate)
        for listener in self.all:
            self._guarded(partial(listener.started, event))
        return event

    def ended(self, event: SendEvent, end: BaseException | Sequence[SendResult]) -> None:
        """Tell how a send that was announced ended."""
        for listener in self.all:
            if isinstance(end, BaseException):
                self._guarded(partial(listener.failed, event, end))
            else:
                self._guarded(partial(listener.completed, event, end))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - telemetry that fails must not take the message down
            self._limited_log.exception(type(error).__name__, "a send listener failed")
