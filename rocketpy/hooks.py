"""Listeners: how telemetry and traces follow a send without the client knowing them.

A client without listeners pays one test of an empty tuple a send.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rocketpy.message import Message
from rocketpy.results import SendResult

__all__ = ["SendEvent", "SendListener"]


class SendEvent:
    """One send, from its acceptance to its end, over all its attempts.

    messages: one, or those of a batch. extra_properties: one map a message, empty at first; what
    `started` puts there travels with the message, but never replaces what the user has set. state: the
    listener's own, keyed by itself.
    """

    __slots__ = ("attempts", "client_id", "extra_properties", "group", "messages", "oneway", "state")

    def __init__(self, messages: Sequence[Message], group: str, client_id: str, *, oneway: bool) -> None:
        self.messages = messages
        self.group = group
        self.client_id = client_id
        self.oneway = oneway
        self.attempts = 0
        self.extra_properties: list[dict[str, str]] = [{} for _ in messages]
        self.state: dict[object, Any] = {}


class SendListener(Protocol):
    """Told about every send of a producer, in its event loop. Must not block, should not raise.

    What it raises is logged and does not reach the send.
    """

    def started(self, event: SendEvent) -> None:
        """The send was accepted; nothing has left yet."""

    def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
        """The broker has answered; or, for a oneway send (no results), it was written."""

    def failed(self, event: SendEvent, error: BaseException) -> None:
        """The send ended without a result. A cancelled one fails with CancelledError."""
