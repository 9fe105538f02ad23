"""Telling listeners of pulls, so that none of them can harm one."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rocketpy.hooks import ReceiveEvent, ReceiveListener
from rocketpy.telemetry import Telemetry

__all__ = ["ReceiveListeners"]

log = logging.getLogger("rocketpy.consumer")


class ReceiveListeners:
    """The listeners of one consumer. all: those there are now."""

    __slots__ = ("_namespace", "_telemetry", "all")

    def __init__(self, listeners: Iterable[ReceiveListener]) -> None:
        self.all = tuple(listeners)
        self._telemetry: Telemetry | None = None
        self._namespace = ""

    def observe(self, telemetry: Telemetry | None, namespace: str) -> None:
        """Have telemetry listen as soon as it has somebody to report to."""
        self._telemetry, self._namespace = telemetry, namespace
        self.look()

    def look(self) -> None:
        """See whether telemetry that had nobody to report to has somebody by now."""
        if self._telemetry is not None and self._telemetry.is_active():
            self.all += (self._telemetry.receive_listener(self._namespace),)
            self._telemetry = None

    def received(self, event: ReceiveEvent) -> None:
        """Tell of a pull that has ended."""
        for listener in self.all:
            try:
                listener.received(event)
            except Exception:
                # Telemetry that fails must not take the messages down with it.
                log.exception("a receive listener failed")
