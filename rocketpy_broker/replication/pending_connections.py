"""Connections to a replication port that have not shown yet that they belong to a replica.

Both ports have them: the HA port until a slave has joined, a DLedger peer's port until another peer has
authenticated. Their number is bounded, since anyone can open them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


class PendingConnections(Generic[C]):
    """A bounded set of connections, oldest first, with the host of each.

    evict: closes a connection that gives way to a new one; called with the connection, its host, and how many
    pending connections the host has.
    """

    def __init__(self, limit: int, evict: Callable[[C, str, int], None]) -> None:
        self.limit = limit
        self._evict = evict
        self._hosts: dict[C, str] = {}

    def add(self, connection: C, host: str) -> None:
        """Add a new connection; at the limit, evict the oldest one of the host that has the most.

        One host that opens many connections cannot keep the others out.
        """
        if len(self._hosts) >= self.limit:
            ((crowded, count),) = Counter(self._hosts.values()).most_common(1)
            oldest = next(one for one, its_host in self._hosts.items() if its_host == crowded)
            del self._hosts[oldest]
            self._evict(oldest, crowded, count)
        self._hosts[connection] = host

    def discard(self, connection: C) -> None:
        """Remove a connection that has joined or was closed, if it is here."""
        self._hosts.pop(connection, None)

    def __contains__(self, connection: C) -> bool:
        return connection in self._hosts

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._hosts))
