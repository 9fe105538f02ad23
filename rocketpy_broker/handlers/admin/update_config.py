"""UPDATE_BROKER_CONFIG and UPDATE_NAMESRV_CONFIG: changes of a running server's settings."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from rocketpy.errors import RocketError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from rocketpy_broker.config.live import LiveConfig
from rocketpy_broker.handlers.base import answer_later

log = logging.getLogger("rocketpy.broker.settings")

Changed = Callable[[frozenset[str]], Awaitable[None]]
"""Awaited with the keys that changed, before the answer."""


def answer_update(
    tasks: Tasks,
    live: LiveConfig,
    channel: Channel,
    request: Command,
    changed: Changed | None = None,
) -> None:
    """Make a change in a task of the server, then answer."""
    answer_later(tasks, channel, request, _update(live, channel, request, changed))


async def _update(live: LiveConfig, channel: Channel, request: Command, changed: Changed | None) -> Command:
    try:
        update = await live.update(request.body.decode("utf-8", "replace"))
        if changed is not None:
            await changed(update.changed)
    except (RocketError, OSError) as error:
        log.warning("%s may not change settings: %s", channel.remote_address, error)
        return request.reply(ResponseCode.NO_PERMISSION, remark=str(error))
    names = ", ".join(sorted(update.changed)) or "nothing"
    log.warning("%s", "; ".join((f"{channel.remote_address} has changed {names}", *update.notes)))
    return request.reply(remark="; ".join(update.notes) or None)
