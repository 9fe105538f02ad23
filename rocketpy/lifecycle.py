"""What all that is started and closed has in common, and what has nothing of its own but a client."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rocketpy.client import ClientInstance, Health
from rocketpy.config import ClientConfig, config_of
from rocketpy.errors import ClientClosed, ConfigInvalid

__all__ = ["Connected", "Lifecycle"]


class Lifecycle:
    """Started and closed, by hand or by `async with`."""

    async def start(self) -> None:
        """Start, once."""
        raise NotImplementedError

    async def close(self) -> object:
        """Stop. Safe to call again."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Connected(Lifecycle):
    """Asks by a client instance, and has no work of its own. what: its name, for errors."""

    def __init__(self, what: str, namesrv: str | None, client: ClientConfig | None) -> None:
        self._what = what
        self._client_config = config_of("client", client, ClientConfig).at(namesrv)
        self._client: ClientInstance | None = None
        self._closed = False

    async def start(self) -> None:
        """Start, once. Raises ConfigInvalid."""
        if self._client is not None:
            raise ConfigInvalid(f"{self._what} was started before; make a new one")
        self._client = await ClientInstance.acquire(self._client_config)

    async def close(self) -> None:
        """Disconnect, unless others use the same connections. Safe to call again."""
        if self._client is not None and not self._closed:
            self._client.check_loop()
            self._closed = True
            await self._client.release()

    def health(self) -> Health:
        """How its connections are doing. Raises ClientClosed."""
        return self._open().health()

    def _running(self) -> ClientInstance:
        """What asks. Raises ClientClosed, also in another event loop than its own."""
        client = self._open()
        client.check_loop()
        return client

    def _open(self) -> ClientInstance:
        if self._client is None or self._closed:
            state = "is closed" if self._closed else "was not started: use `async with`, or `await start()`"
            raise ClientClosed(f"{self._what} {state}")
        return self._client
