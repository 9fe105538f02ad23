"""What all handlers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.command import Command
from rocketpy.transport import Channel

__all__ = ["FAQ", "Handler", "refuse_topic"]

Handler = Callable[[Channel, Command], Command | bytes | None]
"""Answers one request, or returns None and answers it later by `Channel.reply`."""

FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
"""What RocketMQ puts behind some remarks; tools look for it."""


def refuse_topic(request: Command, topic: str) -> Command:
    """Return the answer for a topic that this broker does not have."""
    return request.reply(
        ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{topic}] not exist, apply first please!{FAQ}"
    )
