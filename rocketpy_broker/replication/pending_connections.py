"""Connections to a replication port that have not yet proved that they belong to a replica.

On the HA port a connection is pending until the slave has joined, on a DLedger peer's port until the other
peer has authenticated. The number of pending connections is bounded, since anyone can open them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


class PendingConnections(Generic[C]):
    """A bounded set of connections, oldest first, with the host of each.

    evict: closes a connection that a new one replaces; called with the connection, its host, and the number
    of pending connections of that host.
    """

    def __init__(self, limit: int, evict: Callable[[C, str, int], None]) -> None:
        self.limit = limit
        self._evict = evict
        self._hosts: dict[C, str] = {}

    def add(self, connection: C, host: str) -> None:
        """Add a new connection. At the limit, first evict the oldest one of the host with the most.

        So one host that opens many connections cannot keep other hosts out.
        """
        if len(self._hosts) >= self.limit:
            ((crowded, count),) = Counter(self._hosts.values()).most_common(1)
            oldest = next(pending for pending, its_host in self._hosts.items() if its_host == crowded)
            del self._hosts[oldest]
            self._evict(oldest, crowded, count)
        self._hosts[connection] = host

    def discard(self, connection: C) -> None:
        """Remove a connection that has joined or was closed, if it is in the set."""
        self._hosts.pop(connection, None)

    def __contains__(self, connection: C) -> bool:
        return connection in self._hosts

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._hosts))
