"""Serves a console over HTTP, until the task is cancelled or the process gets SIGINT or SIGTERM."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

from rocketpy.errors import ConfigInvalid
from rocketpy.runtime.signals import StopSignals
from rocketpy_cli.console.app import Console
from rocketpy_cli.console.connections import ConsoleConnection
from rocketpy_cli.console.settings import ConsoleSettings

_SHUTDOWN_S: Final = 3


async def serve(settings: ConsoleSettings, announce: Callable[[str], object]) -> None:
    """Serve a console.

    Args:
        settings: The settings of the console.
        announce: Called once with the link to the console, which contains the token.

    Raises:
        ConfigInvalid: The address cannot be used, for instance because another program listens there.
        RocketError: No name server responds.
    """
    with _listen(settings) as listener:
        async with Console(settings) as console:
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            name = settings.host_names[0] if settings.host_names else host
            announce(f"http://{name}:{listener.getsockname()[1]}/?token={settings.token}")
            config = uvicorn.Config(
                console.asgi,
                http=ConsoleConnection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=_SHUTDOWN_S,
            )
            await _Server(config).serve([listener])


class _Server(uvicorn.Server):
    """Responds to open requests at its stop, also if the signal for it comes twice, as from GNU timeout."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop = StopSignals()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal; a later one ends open requests."""
        if not self._stop.is_repetition():
            super().handle_exit(sig, frame)


def _listen(settings: ConsoleSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise ConfigInvalid(
            f"the console cannot listen on {settings.host}, port {settings.port}: {error}. "
            "Choose another --port"
        ) from None
