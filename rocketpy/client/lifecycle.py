"""Base classes for objects with `start()` and `close()`."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rocketpy.client.instance import ClientInstance
from rocketpy.config import ClientConfig, config_of
from rocketpy.errors import ClientClosed, ConfigInvalid
from rocketpy.results import Health
from rocketpy.runtime.tasks import joined


class Lifecycle:
    """Base class for objects with `start()` and `close()`, by hand or by `async with`."""

    # Of the class, for one whose `__init__` has raised.
    _client: ClientInstance | None = None
    _is_starting = False

    async def start(self) -> None:
        """Start, once."""
        raise NotImplementedError

    async def close(self) -> object:
        """Stop. Safe to call again."""
        raise NotImplementedError

    async def _connect(self, config: ClientConfig, what: str, *, wait: bool) -> ClientInstance:
        """Get the client instance, once. what: the name of this object, for errors.

        Raises ConfigInvalid if it has started or another call starts it, and what `acquire` raises; `start`
        can be called again then.
        """
        if self._client is not None or self._is_starting:
            raise ConfigInvalid(f"{what} was started before; make a new one")
        self._is_starting = True
        try:
            self._client = await ClientInstance.acquire(config, wait=wait)
        finally:
            self._is_starting = False
        return self._client

    def _running(self) -> ClientInstance:
        """Return the client instance. Raises ClientClosed unless it runs, in the event loop of the caller."""
        raise NotImplementedError

    def _left_open(self) -> str | None:
        """What was started and not closed, in words; None when all is well."""
        return None

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        # As asyncio's transports do. At the interpreter's end `warnings` itself may be gone.
        if (what := self._left_open()) is not None:
            _warn(
                f"{what} was not closed: use `async with`, or `await close()`", ResourceWarning, source=self
            )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class BoundToClient(Lifecycle):
    """Asks by a client instance, and has no work of its own. what: its name, for errors."""

    _closing: asyncio.Task[None] | None = None

    def __init__(self, what: str, namesrv: str | None, client: ClientConfig | None) -> None:
        self._what = what
        self._client_config = config_of("client", client, ClientConfig).at(namesrv)

    async def start(self, *, wait: bool = True) -> None:
        """Start, once.

        wait: until a name server answers, at most `ClientConfig.request_timeout_ms`.

        Raises ConfigInvalid, and TransportError when none answers; `start` can be called again then.
        """
        await self._connect(self._client_config, self._what, wait=wait)

    async def close(self) -> None:
        """Disconnect, unless others use the same connections. Goes on when its caller is cancelled.

        Safe to call again: the second call waits for the first.
        """
        if self._client is None or self._client.is_forked_copy:
            return
        if self._closing is None or not self._closing.done():
            self._client.check_loop()
        if self._closing is None:
            self._closing = joined(self._client.release(), f"close {self._what}")
        await asyncio.shield(self._closing)

    def _left_open(self) -> str | None:
        if self._client is None or self._closing is not None or self._client.is_forked_copy:
            return None
        return self._what

    def health(self) -> Health:
        """How its connections are doing. Raises ClientClosed."""
        return self._open().health()

    def _running(self) -> ClientInstance:
        """What asks. Raises ClientClosed, also in another event loop than its own."""
        client = self._open()
        client.check_loop()
        return client

    def _open(self) -> ClientInstance:
        if self._client is None or self._closing is not None:
            state = (
                "is closed"
                if self._closing is not None
                else "was not started: use `async with`, or `await start()`"
            )
            raise ClientClosed(f"{self._what} {state}")
        return self._client
