"""`embedded:` as the address of a name server: a name server and a broker inside this process.

``embedded:`` has a temporary store, ``embedded:///path`` one that is kept. Clients of one event loop that
name the same address use the same servers, which end with the last of them.

The servers are in another package, found by the entry point group "rocketpy.embedded": this package never
imports `rocketpy_broker`. An entry point is an ``async def open_embedded(path: str | None)`` that returns
an `EmbeddedServers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from rocketpy.errors import ConfigInvalid

__all__ = ["ENTRY_POINT_GROUP", "EmbeddedServers", "Lease", "is_embedded", "lease"]

ENTRY_POINT_GROUP: Final = "rocketpy.embedded"
_SCHEME: Final = "embedded:"

Open = Callable[[str | None], Awaitable["EmbeddedServers"]]


class EmbeddedServers(Protocol):
    """What an entry point of the group returns."""

    @property
    def namesrv_address(self) -> str:
        """Where the name server is reached."""

    async def close(self) -> None:
        """Stop the servers; a temporary store is removed."""


class Lease:
    """One client's share of the servers behind an address."""

    def __init__(self, room: _Room) -> None:
        self._room = room
        self._ended = False

    @property
    def namesrv_address(self) -> str:
        """Where the name server is reached."""
        return self._room.namesrv_address

    async def close(self) -> None:
        """Give it back; the last one stops the servers."""
        if not self._ended:
            self._ended = True
            await self._room.leave()


def is_embedded(namesrv: str) -> bool:
    """Whether the address means servers in this process."""
    return namesrv.startswith(_SCHEME)


async def lease(namesrv: str) -> Lease:
    """Servers for the address, started when nobody in this event loop has them yet.

    Raises ConfigInvalid when the address is malformed or no package offers such servers, and what
    starting them raises, such as StoreLocked.
    """
    path = _path_of(namesrv)
    rooms = _rooms.setdefault(asyncio.get_running_loop(), {})
    room = rooms.setdefault(path, _Room(path))
    await room.enter()
    return Lease(room)


class _Room:
    """The servers of one store; starting and stopping wait for each other."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._tenants = 0
        self._turn = asyncio.Lock()
        self._servers: EmbeddedServers | None = None

    @property
    def namesrv_address(self) -> str:
        if self._servers is None:
            raise ConfigInvalid("the embedded servers were stopped")
        return self._servers.namesrv_address

    async def enter(self) -> None:
        async with self._turn:
            if self._servers is None:
                self._servers = await _find_open()(self._path)
            self._tenants += 1

    async def leave(self) -> None:
        async with self._turn:
            self._tenants -= 1
            if self._tenants == 0 and self._servers is not None:
                servers, self._servers = self._servers, None
                await servers.close()


_rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str | None, _Room]] = WeakKeyDictionary()


def _path_of(namesrv: str) -> str | None:
    rest = namesrv.removeprefix(_SCHEME)
    if rest in ("", "//"):
        return None
    path = rest.removeprefix("//")
    if not rest.startswith("///") or path == "/":
        raise ConfigInvalid(f"{namesrv!r} is not understood; write embedded: or embedded:///path/of/store")
    return path


def _find_open(group: str = ENTRY_POINT_GROUP) -> Open:
    found = list(entry_points(group=group))
    if not found:
        raise ConfigInvalid(
            "the address embedded: needs the package rocketpy_broker, which is not installed: "
            "pip install rocketpy-mq"
        )
    opened: Any = found[0].load()
    return opened  # type: ignore[no-any-return] # the entry point's contract
