"""Faults of a running broker: delayed requests, overload, a full disk."""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass, field
from typing import Final

from rocketpy.errors import DiskFull, StoreError
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel, Endpoint
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.busy import Reason, StoreBusy

BUSY: Final = StoreBusy("the broker is busy; this fault was set by the test")
DISK_FULL: Final = DiskFull("the disk is full; this fault was set by the test")


@dataclass(slots=True)
class Faults:
    """The active faults."""

    delay_s: float = 0
    """Delay of each request."""
    rejections: dict[Reason, StoreError] = field(default_factory=dict)
    """Errors that reject messages."""


def apply_rejections(faults: Faults, store: MessageStore) -> None:
    """Let a store reject messages while a fault says so. Its own checks cannot end that rejection."""
    reject = store.reject

    def reject_or_keep(reason: Reason, error: StoreError | None) -> None:
        reject(reason, faults.rejections.get(reason, error))

    store.reject = reject_or_keep  # type: ignore[method-assign]
    for reason in faults.rejections:
        store.reject(reason, None)


class DelayingEndpoint:
    """Passes requests to the endpoint of a broker, later while a fault says so."""

    def __init__(self, inner: Endpoint, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self.channel_opened = inner.channel_opened
        self.channel_closed = inner.channel_closed
        self.end_of_buffer = inner.end_of_buffer

    def handle(self, channel: Channel, request: Command) -> Command | bytes | None:
        """Handle a request now, or after the delay."""
        if self._faults.delay_s:
            loop = asyncio.get_running_loop()
            loop.call_later(self._faults.delay_s, self._handle_late, channel, request, context=Context())
            return None
        return self._inner.handle(channel, request)

    def _handle_late(self, channel: Channel, request: Command) -> None:
        if channel.is_closed:
            return
        response = channel.run_handler(request, self._inner.handle)
        if response is not None and not request.is_oneway:
            channel.reply(response)
        self._inner.end_of_buffer()
