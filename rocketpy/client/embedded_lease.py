"""Servers at the address `embedded:`: a name server and brokers inside this process.

``embedded:`` has a temporary store, ``embedded:///path`` a permanent one; ``?name=value&…`` sets options.
Clients of one event loop with the same address share the servers, which stop with the last client.

This package never imports `rocketpy_broker`: it finds a function of the type `Open` in the entry point group
"rocketpy.embedded".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl
from weakref import WeakKeyDictionary

from rocketpy.errors import ConfigInvalid

ENTRY_POINT_GROUP: Final = "rocketpy.embedded"
_SCHEME: Final = "embedded:"

Open = Callable[[str | None, Mapping[str, str]], Awaitable["EmbeddedServers"]]
"""Starts servers. Arguments: the path of the store, None for a temporary one, and the options."""


class EmbeddedServers(Protocol):
    """The servers that an entry point starts."""

    @property
    def namesrv_address(self) -> str:
        """The address of the name server."""

    async def close(self) -> None:
        """Stop the servers; a temporary store is removed."""


class Lease:
    """A client's use of the embedded servers at one address."""

    def __init__(self, pool: _ServerPool) -> None:
        self._pool = pool
        self._ended = False

    @property
    def namesrv_address(self) -> str:
        """The address of the name server."""
        return self._pool.namesrv_address

    async def close(self) -> None:
        """End this lease; the last one to end stops the servers. Safe to call again."""
        if not self._ended:
            self._ended = True
            await self._pool.release()


def is_embedded(namesrv: str) -> bool:
    """Return whether an address has the scheme ``embedded:``."""
    return namesrv.startswith(_SCHEME)


async def lease(namesrv: str) -> Lease:
    """Return a lease on the servers at an address. The first lease in this event loop starts them.

    Raises ConfigInvalid when the address is malformed, its options are unknown or differ from those of the
    open store, or when no package provides servers. Also raises what their start raises, such as StoreLocked.
    """
    address = _parse(namesrv)
    pools = _server_pools.setdefault(asyncio.get_running_loop(), {})
    for other, pool in pools.items():
        if address.path is not None and other.path == address.path and other != address and pool.is_open:
            raise ConfigInvalid(
                f"{namesrv}: this store is open with other options, as {other}; use the same address"
            )
    pool = pools.setdefault(address, _ServerPool(address))
    await pool.acquire()
    return Lease(pool)


class _EmbeddedAddress(NamedTuple):
    """A parsed address."""

    path: str | None
    """Of the store; None for a temporary one."""
    options: tuple[tuple[str, str], ...]
    """Sorted by name."""

    def __str__(self) -> str:
        options = "&".join(f"{name}={value}" for name, value in self.options)
        return f"{_SCHEME}{f'//{self.path}' if self.path else ''}{'?' if options else ''}{options}"


class _ServerPool:
    """The servers of one address; start and stop exclude each other."""

    def __init__(self, address: _EmbeddedAddress) -> None:
        self._address = address
        self._leases = 0
        self._lock = asyncio.Lock()
        self._servers: EmbeddedServers | None = None

    @property
    def namesrv_address(self) -> str:
        if self._servers is None:
            raise ConfigInvalid("the embedded servers were stopped")
        return self._servers.namesrv_address

    @property
    def is_open(self) -> bool:
        """Whether the servers run, start or stop."""
        return self._servers is not None or self._lock.locked()

    async def acquire(self) -> None:
        """Add a lease; start the servers if they do not run."""
        async with self._lock:
            if self._servers is None:
                self._servers = await _find_open()(self._address.path, dict(self._address.options))
            self._leases += 1

    async def release(self) -> None:
        """End a lease; stop the servers if it was the last one."""
        async with self._lock:
            self._leases -= 1
            if self._leases == 0 and self._servers is not None:
                servers, self._servers = self._servers, None
                await servers.close()


_server_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_EmbeddedAddress, _ServerPool]] = (
    WeakKeyDictionary()
)


def _parse(namesrv: str) -> _EmbeddedAddress:
    rest, _, query = namesrv.removeprefix(_SCHEME).partition("?")
    options = _parse_options(namesrv, query)
    if rest in ("", "//"):
        return _EmbeddedAddress(None, options)
    path = rest.removeprefix("//")
    if not rest.startswith("///") or path == "/":
        raise ConfigInvalid(f"{namesrv!r} is malformed; write embedded: or embedded:///path/of/store")
    return _EmbeddedAddress(path, options)


def _parse_options(namesrv: str, query: str) -> tuple[tuple[str, str], ...]:
    try:
        options = sorted(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise ConfigInvalid(f"{namesrv!r}: options are written ?name=value&name=value") from error
    if len(dict(options)) < len(options):
        raise ConfigInvalid(f"{namesrv!r} gives an option twice")
    return tuple(options)


def _find_open(group: str = ENTRY_POINT_GROUP) -> Open:
    from importlib.metadata import entry_points  # noqa: PLC0415 - it loads 40 modules

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
