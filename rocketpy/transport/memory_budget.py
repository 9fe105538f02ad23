"""Memory that a server uses for its connections: counted by kind, and limited per connection and in total.

It counts incomplete frames, backlogged requests, unread responses, held pulls, subscriptions and waiting
messages. Above the limit of a connection, its requests are rejected or it is closed. Above the total limit,
the connections that use most are closed first, so that a client which uses little is not affected.

RocketMQ has no such limit: Netty's buffers and the hold service's lists grow until the process ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Literal

from rocketpy.errors import ConnectionLost

Kind = Literal["frame", "requests", "responses", "pulls", "subscriptions", "waiting"]
KINDS: Final[tuple[Kind, ...]] = ("frame", "requests", "responses", "pulls", "subscriptions", "waiting")
"""frame: an incomplete frame. requests: backlogged requests. responses: those in the write buffer. pulls:
held (long polling). subscriptions: of consumer groups, and the group names of a client. waiting: messages
whose topic is being saved."""

_RELIEVED: Final = 7 / 8
"""Above the limit, connections are closed down to this share, so that sorting them stays rare."""


class MemoryBudget:
    """The memory of all connections of a server, or of several servers.

    connection_bytes_max, total_bytes_max: limits in bytes; see `ChannelOptions`.
    """

    def __init__(self, connection_bytes_max: int, total_bytes_max: int) -> None:
        self.connection_bytes_max = connection_bytes_max
        self.total_bytes_max = total_bytes_max
        self.total: int = 0
        self.hosts: Counter[str] = Counter()
        """Number of connections from each host."""
        self.refusals = 0
        """Number of requests rejected and connections closed because of the limits."""
        self._by_kind: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._connections: dict[ConnectionMemory, None] = {}
        self._silent: dict[ConnectionMemory, None] = {}
        """Connections that may not have sent a whole frame, oldest first."""

    @property
    def connections(self) -> int:
        """Number of connections."""
        return len(self._connections)

    def close_silent(self) -> bool:
        """Close the oldest connection that has not sent a whole frame; False when there is none.

        Otherwise silent connections could keep out all others until their idle timeout.
        """
        while self._silent:
            connection = next(iter(self._silent))
            del self._silent[connection]
            if not connection.has_sent_frame:
                connection.evict()
                return True
        return False

    def by_kind(self) -> Mapping[Kind, int]:
        """Return the bytes in use, by kind."""
        self._refresh()
        return dict(self._by_kind)

    def enter(self, connection: ConnectionMemory) -> None:
        """Add a connection."""
        self._connections[connection] = None
        self._silent[connection] = None

    def leave(self, connection: ConnectionMemory) -> None:
        """Remove a connection."""
        del self._connections[connection]
        self._silent.pop(connection, None)

    def count(self, kind: Kind, increase: int) -> None:
        """Add to the bytes in use. increase: may be negative."""
        self._by_kind[kind] += increase
        self.total += increase

    def _refresh(self) -> None:
        """Update the counts of unsent responses, which sockets drain without a callback."""
        for connection in self._connections:
            if connection.sizes["responses"]:
                connection.refresh()

    def relieve(self, needed: int, asking: ConnectionMemory | None) -> bool:
        """Free memory for `needed` more bytes by closing the connections that use most.

        False when that is not enough, or when `asking` itself would use most; it is not closed.
        """
        if self.total + needed <= self.total_bytes_max:
            return True
        self._refresh()
        if self.total + needed <= self.total_bytes_max:
            return True
        wanted = 0 if asking is None else asking.total + needed
        for connection in sorted(self._connections, key=lambda one: one.total, reverse=True):
            if connection is asking or connection.total < wanted:
                break
            kept = f"{connection.total} bytes are kept for it, the most of all connections"
            connection.close(f"{kept}, and {self.total} in all; the limit is {self.total_bytes_max}")
            if self.total + needed <= self.total_bytes_max * _RELIEVED:
                break
        return self.total + needed <= self.total_bytes_max


def _nothing_unsent() -> int:
    return 0


def _ignore(_error: Exception) -> None:
    """Do nothing."""


class ConnectionMemory:
    """The memory of one connection.

    budget: None for no counting and no limits, as in a client. unsent: returns the bytes in the write buffer.
    fail: closes the connection.
    """

    __slots__ = ("_budget", "_fail", "_unsent", "has_sent_frame", "sizes", "total")

    def __init__(
        self,
        budget: MemoryBudget | None,
        unsent: Callable[[], int] = _nothing_unsent,
        fail: Callable[[Exception], None] = _ignore,
    ) -> None:
        self._budget = budget
        self._unsent = unsent
        self._fail = fail
        self.sizes: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self.total: int = 0
        self.has_sent_frame: bool = False
        """Whether a whole frame was received."""
        if budget is not None:
            budget.enter(self)

    def add(self, kind: Kind, size: int) -> bool:
        """Count bytes before they are used; False, with nothing counted, when a limit forbids them.

        Other connections may be closed to free memory. `size` is negative for released bytes.
        """
        budget = self._budget
        if budget is None:
            return True
        if size > 0 and (
            self.total + size > budget.connection_bytes_max
            or (budget.total + size > budget.total_bytes_max and not budget.relieve(size, self))
        ):
            budget.refusals += 1
            return False
        self._change(budget, kind, size)
        return True

    def set(self, kind: Kind, size: int) -> None:
        """Set the bytes in use; above a limit this connection, or those that use most, are closed."""
        budget = self._budget
        if budget is None:
            return
        increase = size - self.sizes[kind]
        self._change(budget, kind, increase)
        if increase <= 0:
            return
        if self.total > budget.connection_bytes_max:
            limit = f"the limit of a connection is {budget.connection_bytes_max}"
            self.close(f"{self.total} bytes are kept for it ({_shares(self.sizes)}); {limit}")
        elif budget.total > budget.total_bytes_max:
            budget.relieve(0, None)

    def refresh(self) -> None:
        """Update the count of unsent responses."""
        if self._budget is not None:
            self._change(self._budget, "responses", self._unsent() - self.sizes["responses"])

    def close(self, reason: str) -> None:
        """Close the connection, and stop counting for it."""
        budget, fail = self._budget, self._fail
        self.end()
        if budget is not None:
            budget.refusals += 1
            fail(ConnectionLost(reason))

    def evict(self) -> None:
        """Close the connection to make place for a new one."""
        fail = self._fail
        self.end()
        fail(ConnectionLost("it sent nothing yet, and a new connection needs its place"))

    def end(self) -> None:
        """Release the memory of a connection that has ended."""
        budget, self._budget = self._budget, None
        # References to the channel would keep its buffers until a garbage collection.
        self._unsent, self._fail = _nothing_unsent, _ignore
        if budget is None:
            return
        budget.leave(self)
        for kind, size in self.sizes.items():
            budget.count(kind, -size)

    def _change(self, budget: MemoryBudget, kind: Kind, increase: int) -> None:
        self.sizes[kind] += increase
        self.total += increase
        budget.count(kind, increase)


def _shares(sizes: Mapping[Kind, int]) -> str:
    return ", ".join(f"{kind} {size}" for kind, size in sizes.items() if size)
