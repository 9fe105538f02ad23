"""RecallHandle: names a timer message that is to be taken back before it is due.

Its text is ``v1 topic broker time id``, as URL-safe base64. Source: RocketMQ 5.3.3 RecallMessageHandle.
"""

from __future__ import annotations

import base64
import contextlib
import re
from typing import Final, NamedTuple, Self

from rocketpy.errors import MessageInvalid

_VERSION: Final = "v1"
_WORDS: Final = 5
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")


class RecallHandle(NamedTuple):
    """What the text of a handle says. Anyone can make one: it proves no right."""

    topic: str
    """The topic of the message, with its namespace."""
    broker_name: str
    """The broker that has stored it."""
    deliver_ms: int
    """When it is due, in ms since 1970; brokers of RocketMQ round it to their precision, 1 s by default. -1
    if the text has no number there, as in RocketMQ.
    """
    message_id: str
    """The unique id from the producer."""

    def encode(self) -> str:
        """Return the text of the handle."""
        topic, broker_name, deliver_ms, message_id = self
        text = f"{_VERSION} {topic} {broker_name} {deliver_ms} {message_id}"
        return base64.urlsafe_b64encode(text.encode()).decode("ascii")

    @classmethod
    def decode(cls, text: object) -> Self:
        """Read the text of a handle; missing padding does not matter. Raises MessageInvalid."""
        words: list[str] = []
        if isinstance(text, str):
            bare = text.rstrip("=")
            with contextlib.suppress(ValueError):
                raw = base64.b64decode(bare + "=" * (-len(bare) % 4), b"-_", validate=True)
                words = raw.decode().split(" ")
        if len(words) < _WORDS or words[0] != _VERSION:
            raise MessageInvalid(
                f"{str(text)[:100]!r} is not a recall handle; pass the recall_handle of a SendResult"
            )
        _, topic, broker_name, time, message_id = words[:_WORDS]
        return cls(topic, broker_name, int(time) if _NUMBER.fullmatch(time) else -1, message_id)
