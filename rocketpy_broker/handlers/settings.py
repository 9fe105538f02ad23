"""UPDATE_BROKER_CONFIG and UPDATE_NAMESRV_CONFIG: changes of a running server's settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from rocketpy.errors import RocketError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.live_config import LiveConfig

__all__ = ["answer_update"]

log = logging.getLogger("rocketpy.broker.settings")

_running: Final[set[asyncio.Task[None]]] = set()
"""Changes that are being written; the loop itself keeps only weak references to tasks."""


def answer_update(
    live: LiveConfig, channel: Channel, request: Command, changed: Callable[[frozenset[str]], None]
) -> None:
    """Make a change, then answer. changed: told the keys that are other than before."""
    task = asyncio.create_task(_update(live, channel, request, changed))
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _update(
    live: LiveConfig, channel: Channel, request: Command, changed: Callable[[frozenset[str]], None]
) -> None:
    try:
        keys = await live.update(request.body.decode("utf-8", "replace"))
        changed(keys)
    except (RocketError, OSError) as error:
        log.warning("%s may not change settings: %s", channel.remote_address, error)
        answer = request.reply(ResponseCode.NO_PERMISSION, remark=str(error))
    else:
        log.warning("%s has changed %s", channel.remote_address, ", ".join(sorted(keys)) or "nothing")
        answer = request.reply()
    if not request.is_oneway:
        channel.reply(answer)
