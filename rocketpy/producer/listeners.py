"""The listeners of a producer, which are notified of sends and of the ends of transactions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from rocketpy.errors import MessageInvalid
from rocketpy.hooks import SendEvent, SendListener, SettleListener
from rocketpy.message.message import Message, check_extra_property
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.results import SendResult
from rocketpy.runtime.tasks import Tasks
from rocketpy.telemetry.listeners import DormantTelemetry, ListenerFanout
from rocketpy.telemetry.plugin import Telemetry

log: Final = logging.getLogger("rocketpy.producer")

_POLL_S: Final = 1.0
"""Interval of checks whether the telemetry has become active."""


class Listeners(ListenerFanout[SendListener]):
    """The send listeners of one producer.

    locate: returns the address of a queue's broker. tasks: of the client. telemetry: becomes a listener once
    it is active, and is `dormant` until then.
    """

    def __init__(
        self,
        listeners: Sequence[SendListener],
        group: str,
        client_id: str,
        locate: Callable[[MessageQueue], str | None],
        tasks: Tasks,
        telemetry: Telemetry | None = None,
        namespace: str = "",
    ) -> None:
        super().__init__("send", log, listeners)
        self.settle_listeners: ListenerFanout[SettleListener] = ListenerFanout(
            "settle", logging.getLogger("rocketpy")
        )
        """Notified when a transaction ends."""
        self.dormant: DormantTelemetry = DormantTelemetry(telemetry, self._attach)
        self._namespace = namespace
        self._group = group
        self._client_id = client_id
        self._locate = locate
        self.dormant.check()
        self._polling = tasks.every(_POLL_S, self._poll, "check of telemetry") if self.dormant else None

    def close(self) -> None:
        """Stop checking the telemetry."""
        if self._polling is not None:
            self._polling.stop()

    def announce(self, messages: Sequence[Message], *, oneway: bool = False) -> SendEvent:
        """Report a send that is about to be accepted."""
        event = SendEvent(messages, self._group, self._client_id, oneway=oneway, locate=self._locate)
        self.notify(lambda listener: listener.started(event))
        for extra in event.extra_properties:
            if extra:
                self._remove_invalid(extra)
        return event

    def _remove_invalid(self, extra: dict[str, str]) -> None:
        """Remove the properties of listeners that a user could not set, either."""
        for name, value in tuple(extra.items()):
            try:
                check_extra_property(name, value)
            except MessageInvalid as error:
                del extra[name]
                self._limited_log.warning(
                    f"property {name}", "a listener added the invalid property %r: %s", name, error
                )

    def ended(self, event: SendEvent | None, end: BaseException | Sequence[SendResult]) -> None:
        """Report the end of an announced send. event: None if there was no listener."""
        if event is None:
            return
        if isinstance(end, BaseException):
            self.notify(lambda listener: listener.failed(event, end))
        else:
            self.notify(lambda listener: listener.completed(event, end))

    def _attach(self, telemetry: Telemetry) -> None:
        self.add(telemetry.send_listener(self._namespace))
        self.settle_listeners.add(telemetry.settle_listener(self._namespace))

    def _poll(self) -> None:
        self.dormant.check()
        if not self.dormant:
            self.close()
