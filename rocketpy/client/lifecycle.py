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
from rocketpy.runtime.tasks import subtask


class Lifecycle:
    """Base class for objects with `start()` and `close()`, by hand or by `async with`."""

    async def start(self) -> None:
        """Start, once."""
        raise NotImplementedError

    async def close(self) -> object:
        """Stop. Safe to call again."""
        raise NotImplementedError

    def _left_open(self) -> str | None:
        """Return the name of this object if it was started and not closed; else None."""
        return None

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        # As in asyncio's transports. `warnings` may be gone when the interpreter exits.
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


class Client(Lifecycle):
    """Base class of producers, consumers and admin clients."""

    # Class attributes, for an object whose `__init__` has raised.
    _client: ClientInstance | None = None
    _is_starting = False

    async def start(self, *, wait: bool = True) -> None:
        """Start, once. wait: until a name server responds."""
        raise NotImplementedError

    def health(self) -> Health:
        """Return the state of the client and its connections. Raises ClientClosed."""
        raise NotImplementedError

    async def _connect(self, config: ClientConfig, what: str, *, wait: bool) -> ClientInstance:
        """Acquire the client instance, once. what: the name of this object, for errors.

        Raises ConfigInvalid if this object was started before, and ClientClosed if it was started before a
        fork. Also raises what `ClientInstance.acquire` raises; then `start` can be called again.
        """
        if self._client is not None:
            self._client.check_process()
        if self._client is not None or self._is_starting:
            raise ConfigInvalid(f"{what} was started before; create a new one")
        self._is_starting = True
        try:
            self._client = await ClientInstance.acquire(config, wait=wait)
        finally:
            self._is_starting = False
        return self._client

    def _running_client(self) -> ClientInstance:
        """Return the client instance. Raises ClientClosed unless it runs in the current event loop."""
        raise NotImplementedError


class BoundToClient(Client):
    """Base class for objects that only send requests through a client instance.

    what: its name, for errors.
    """

    _closing: asyncio.Task[None] | None = None

    def __init__(self, what: str, namesrv: str | None, client: ClientConfig | None) -> None:
        self._what = what
        self._client_config = config_of("client", client, ClientConfig).at(namesrv)

    async def start(self, *, wait: bool = True) -> None:
        """Start, once; after an error `start` can be called again.

        Args:
            wait: Wait until a name server responds, at most `ClientConfig.request_timeout_ms`.

        Raises:
            ConfigInvalid: It was started before, or the configuration is invalid.
            TransportError: No name server responds.
        """
        await self._connect(self._client_config, self._what, wait=wait)

    async def close(self) -> None:
        """Close the connections, unless other clients share them.

        A second call waits for the first. The close continues when its caller is cancelled.
        """
        if self._client is None or self._client.is_forked_copy:
            return
        if self._closing is None or not self._closing.done():
            self._client.check_loop()
        if self._closing is None:
            self._closing = subtask(self._client.release(), f"close {self._what}")
        await asyncio.shield(self._closing)

    def _left_open(self) -> str | None:
        if self._client is None or self._closing is not None or self._client.is_forked_copy:
            return None
        return self._what

    def health(self) -> Health:
        """Return the state of its connections. Raises ClientClosed."""
        return self._require_open().health()

    def _running_client(self) -> ClientInstance:
        client = self._require_open()
        client.check_loop()
        return client

    def _require_open(self) -> ClientInstance:
        if self._client is None or self._closing is not None:
            state = (
                "is closed"
                if self._closing is not None
                else "was not started: use `async with`, or `await start()`"
            )
            raise ClientClosed(f"{self._what} {state}")
        return self._client
