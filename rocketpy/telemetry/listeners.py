"""Telling listeners of what clients say to brokers about messages, so that none of them can harm it."""

from __future__ import annotations

import logging

from rocketpy.hooks import SettleEvent, SettleListener
from rocketpy.runtime.rate_limited_log import RepeatedLog

log = logging.getLogger("rocketpy")


class Settlers:
    """The listeners of one client. all: those there are now."""

    __slots__ = ("_trouble", "all")

    def __init__(self) -> None:
        self.all: tuple[SettleListener, ...] = ()
        self._trouble = RepeatedLog(log)

    def add(self, listener: SettleListener) -> None:
        """Tell one more."""
        self.all += (listener,)

    def settled(self, event: SettleEvent) -> None:
        """Tell of something that a broker was told, or could not be told."""
        for listener in self.all:
            try:
                listener.settled(event)
            except Exception as error:  # noqa: BLE001 - telemetry that fails must not harm a message
                self._trouble.exception(type(error).__name__, "a settle listener failed")
