"""`embedded:` as the address of a name server: a name server and brokers inside this process.

``embedded:`` has a temporary store, ``embedded:///path`` one that is kept; ``?name=value&…`` gives options.
Clients of one event loop that name the same address use the same servers, which end with the last of them.

The servers are in another package, found by the entry point group "rocketpy.embedded": this package never
imports `rocketpy_broker`. An entry point is a function ``open_embedded`` as `Open` has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl
from weakref import WeakKeyDictionary

from rocketpy.errors import ConfigInvalid

ENTRY_POINT_GROUP: Final = "rocketpy.embedded"
_SCHEME: Final = "embedded:"

Open = Callable[[str | None, Mapping[str, str]], Awaitable["EmbeddedServers"]]
"""Starts servers. Given the path of the store, None for a temporary one, and the options, which it checks."""


class EmbeddedServers(Protocol):
    """What an entry point of the group returns."""

    @property
    def namesrv_address(self) -> str:
        """Where the name server is reached."""

    async def close(self) -> None:
        """Stop the servers; a temporary store is removed."""


class Lease:
    """One client's share of the servers behind an address."""

    def __init__(self, pool: _ServerPool) -> None:
        self._pool = pool
        self._ended = False

    @property
    def namesrv_address(self) -> str:
        """Where the name server is reached."""
        return self._pool.namesrv_address

    async def close(self) -> None:
        """Give it back; the last one stops the servers."""
        if not self._ended:
            self._ended = True
            await self._pool.leave()


def is_embedded(namesrv: str) -> bool:
    """Whether the address means servers in this process."""
    return namesrv.startswith(_SCHEME)


async def lease(namesrv: str) -> Lease:
    """Servers for the address, started when nobody in this event loop has them yet.

    Raises ConfigInvalid when the address is malformed, has unknown options or other options than those that
    its store is open with, or when no package offers such servers; and what starting them raises, such as
    StoreLocked.
    """
    place = _place_of(namesrv)
    pools = _rooms.setdefault(asyncio.get_running_loop(), {})
    for other, pool in pools.items():
        if place.path is not None and other.path == place.path and other != place and pool.is_open:
            raise ConfigInvalid(
                f"{namesrv}: this store is open with other options, as {other}; name the same address"
            )
    pool = pools.setdefault(place, _ServerPool(place))
    await pool.enter()
    return Lease(pool)


class _Place(NamedTuple):
    """What an address means. path: of the store; None: a temporary one. options: sorted by their names."""

    path: str | None
    options: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        options = "&".join(f"{name}={value}" for name, value in self.options)
        return f"{_SCHEME}{f'//{self.path}' if self.path else ''}{'?' if options else ''}{options}"


class _ServerPool:
    """The servers of one address; starting and stopping wait for each other."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._leases = 0
        self._turn = asyncio.Lock()
        self._servers: EmbeddedServers | None = None

    @property
    def namesrv_address(self) -> str:
        if self._servers is None:
            raise ConfigInvalid("the embedded servers were stopped")
        return self._servers.namesrv_address

    @property
    def is_open(self) -> bool:
        """Whether its servers run, or are just starting or stopping."""
        return self._servers is not None or self._turn.locked()

    async def enter(self) -> None:
        async with self._turn:
            if self._servers is None:
                self._servers = await _find_open()(self._place.path, dict(self._place.options))
            self._leases += 1

    async def leave(self) -> None:
        async with self._turn:
            self._leases -= 1
            if self._leases == 0 and self._servers is not None:
                servers, self._servers = self._servers, None
                await servers.close()


_rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Place, _ServerPool]] = WeakKeyDictionary()


def _place_of(namesrv: str) -> _Place:
    rest, _, query = namesrv.removeprefix(_SCHEME).partition("?")
    options = _options_of(namesrv, query)
    if rest in ("", "//"):
        return _Place(None, options)
    path = rest.removeprefix("//")
    if not rest.startswith("///") or path == "/":
        raise ConfigInvalid(f"{namesrv!r} is not understood; write embedded: or embedded:///path/of/store")
    return _Place(path, options)


def _options_of(namesrv: str, query: str) -> tuple[tuple[str, str], ...]:
    try:
        options = sorted(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise ConfigInvalid(f"{namesrv!r}: options are written ?name=value&name=value") from error
    if len(dict(options)) < len(options):
        raise ConfigInvalid(f"{namesrv!r} gives an option twice")
    return tuple(options)


def _find_open(group: str = ENTRY_POINT_GROUP) -> Open:
    found = list(entry_points(group=group))
    if not found:
        raise ConfigInvalid(
            "the address embedded: needs the package rocketpy_broker, which is not installed: "
            "pip install rocketpy-mq"
        )
    try:
        opened: Any = found[0].load()
    except ImportError as error:
        raise ConfigInvalid(f"the address embedded: cannot be used: {error}") from None
    return opened  # type: ignore[no-any-return] # the entry point's contract
