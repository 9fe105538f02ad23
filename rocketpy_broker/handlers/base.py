"""What all handlers share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from rocketpy.errors import InvariantError, RocketError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel

log = logging.getLogger("rocketpy.broker")

Handler = Callable[[Channel, Command], Command | bytes | None]
"""Answers one request, or returns None and answers it later by `Channel.reply`."""

FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
"""What RocketMQ puts behind some remarks; tools look for it."""


def refuse_topic(request: Command, topic: str) -> Command:
    """Return the answer for a topic that this broker does not have."""
    return request.reply(
        ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{topic}] not exist, apply first please!{FAQ}"
    )


def answer_later(
    tasks: Tasks, channel: Channel, request: Command, work: Coroutine[Any, Any, Command]
) -> None:
    """Answer with what `work` returns, in a task of the server. A oneway request gets no answer.

    A RocketError is answered with its text; an unexpected error is logged, too, as `Channel` does for plain
    handlers.
    """

    async def answer() -> None:
        try:
            response = await work
        except RocketError as error:
            response = request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except InvariantError:
            raise
        except Exception:
            log.exception("request code %d from %s failed", request.code, channel.remote_address)
            response = request.reply(ResponseCode.SYSTEM_ERROR, remark="internal error; see the server's log")
        if not request.is_oneway:
            channel.reply(response)

    tasks.spawn(answer(), f"request {request.code} of {channel.remote_address}")
