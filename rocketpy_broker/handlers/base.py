"""Shared parts of the request handlers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from rocketpy.errors import InvariantError, RocketError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from rocketpy_broker.config.live import LiveConfig

log = logging.getLogger("rocketpy.broker")
_settings_log = logging.getLogger("rocketpy.broker.settings")

Handler = Callable[[Channel, Command], Command | bytes | None]
"""Returns the response to a request, or None and responds later with `Channel.reply`. Raises `Rejected`."""

_TASK_BYTES: Final = 4096
"""Approximate memory of the task of a request that waits, its coroutines and futures."""

F = TypeVar("F", bound=Callable[..., Any])

FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
"""The end of some remarks of RocketMQ; tools search for it."""


class Rejected(RocketError):
    """A handler rejects a request. code, remark: of the response."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code


def error_response(request: Command, error: RocketError) -> Command:
    """Return the response to a request whose handler raised `error`."""
    code = error.code if isinstance(error, Rejected) else ResponseCode.SYSTEM_ERROR
    return request.reply(code, remark=str(error))


def topic_not_found(topic: str) -> Rejected:
    """Return the rejection of a request for a topic that this broker does not have."""
    return Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}")


def handles(*codes: int) -> Callable[[F], F]:
    """Mark a method as the handler of requests with these codes; see `handler_table`."""

    def mark(method: F) -> F:
        method.request_codes = codes  # type: ignore[attr-defined]
        return method

    return mark


def handler_table(tasks: Tasks, *owners: object) -> dict[int, Handler]:
    """Return request code -> handler, for all methods of `owners` that `handles` marks.

    A handler that is a coroutine function runs in one of `tasks`, and responds when it returns.
    """
    table: dict[int, Handler] = {}
    for owner in owners:
        for name, function in vars(type(owner)).items():
            codes = getattr(function, "request_codes", ())
            if codes:
                handler = getattr(owner, name)
                is_async = inspect.iscoroutinefunction(function)
                table |= dict.fromkeys(codes, partial(_start, tasks, handler) if is_async else handler)
    return table


def _start(
    tasks: Tasks,
    handle: Callable[[Channel, Command], Coroutine[Any, Any, Command]],
    channel: Channel,
    request: Command,
) -> None:
    respond_later(tasks, channel, request, handle(channel, request))


def respond_later(
    tasks: Tasks, channel: Channel, request: Command, work: Coroutine[Any, Any, Command]
) -> None:
    """Respond with the result of `work`, which runs in a task of the server. Oneway requests get no response.

    A RocketError becomes a response, see `error_response`. Other exceptions are logged.
    Raises Rejected if the server keeps too many bytes for the connection, or for all.
    """
    size = request.kept_bytes + _TASK_BYTES
    if not channel.memory.add("requests", size):
        work.close()
        text = "the server keeps too many bytes for this connection, or for all; send fewer requests at once"
        raise Rejected(ResponseCode.SYSTEM_BUSY, text)

    async def respond() -> None:
        try:
            response = await work
        except RocketError as error:
            response = error_response(request, error)
        except InvariantError:
            raise
        except Exception:  # a bug in one handler must not stop the server
            log.exception("request code %d from %s failed", request.code, channel.remote_address)
            response = request.reply(ResponseCode.SYSTEM_ERROR, remark="internal error; see the server's log")
        finally:
            channel.memory.add("requests", -size)
        if not request.is_oneway:
            channel.reply(response)

    tasks.spawn(respond(), f"request {request.code} of {channel.remote_address}")


async def update_settings(
    live: LiveConfig,
    channel: Channel,
    request: Command,
    on_changed: Callable[[frozenset[str]], Awaitable[None]] | None = None,
) -> Command:
    """Handle UPDATE_BROKER_CONFIG and UPDATE_NAMESRV_CONFIG: change settings of a running server.

    on_changed: awaited with the changed keys before the response.
    """
    try:
        update = await live.update(request.body.decode("utf-8", "replace"))
        if on_changed is not None:
            await on_changed(update.changed)
    except (RocketError, OSError) as error:
        _settings_log.warning("the change of settings by %s failed: %s", channel.remote_address, error)
        return request.reply(ResponseCode.NO_PERMISSION, remark=str(error))
    names = ", ".join(sorted(update.changed)) or "nothing"
    _settings_log.warning("%s", "; ".join((f"{channel.remote_address} has changed {names}", *update.notes)))
    return request.reply(remark="; ".join(update.notes) or None)
