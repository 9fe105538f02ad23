"""Memory that a server uses for its connections: counted by kind, and limited per connection and in total.

It counts incomplete frames, waiting requests, unsent responses, held pulls, subscriptions and waiting
messages. Above the limit of a connection, its requests are rejected or it is closed. Above the total limit,
the connections that use most memory are closed first, so that other clients are not affected.

RocketMQ has no such limit: Netty's buffers and the hold service's lists grow until the process ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Literal

from rocketpy.errors import ConnectionLost

Kind = Literal["frame", "requests", "responses", "pulls", "subscriptions", "waiting"]
KINDS: Final[tuple[Kind, ...]] = ("frame", "requests", "responses", "pulls", "subscriptions", "waiting")
"""What memory is used for.

frame: the received part of an incomplete frame. requests: requests in the backlog, and those whose response
takes long. responses: responses in the write buffer. pulls: pulls that are held until messages arrive.
subscriptions: subscriptions of consumer groups, and the names of a client's groups. waiting: messages whose
topic is being saved.
"""

_LOW_WATERMARK: Final = 7 / 8
"""Above the limit, connections are closed until usage is below this part of it, so the sort runs rarely."""


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
        """Connections that may not have sent a complete frame yet, oldest first."""

    @property
    def connections(self) -> int:
        """Number of connections."""
        return len(self._connections)

    def evict_silent(self) -> bool:
        """Close the oldest connection that has not sent a complete frame; return False if there is none.

        Otherwise such connections could use all places until their idle timeout.
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

    def add(self, connection: ConnectionMemory) -> None:
        """Add a connection."""
        self._connections[connection] = None
        self._silent[connection] = None

    def remove(self, connection: ConnectionMemory) -> None:
        """Remove a connection."""
        del self._connections[connection]
        self._silent.pop(connection, None)

    def count(self, kind: Kind, increase: int) -> None:
        """Add `increase`, which may be negative, to the bytes in use."""
        self._by_kind[kind] += increase
        self.total += increase

    def _refresh(self) -> None:
        """Update the counts of unsent responses, which sockets drain without a callback."""
        for connection in self._connections:
            if connection.sizes["responses"]:
                connection.refresh()

    def free(self, needed: int, requester: ConnectionMemory | None) -> bool:
        """Free memory for `needed` bytes by closing the connections that use most; return whether they fit.

        requester: the connection that needs them. It is not closed; if it would use most, the result is
        False.
        """
        if self.total + needed <= self.total_bytes_max:
            return True
        self._refresh()
        if self.total + needed <= self.total_bytes_max:
            return True
        wanted = 0 if requester is None else requester.total + needed
        for connection in sorted(self._connections, key=lambda memory: memory.total, reverse=True):
            if connection is requester or connection.total < wanted:
                break
            connection.close(
                f"this connection uses more server memory than any other, {connection.total} bytes; all "
                f"connections use {self.total} bytes, and the limit is {self.total_bytes_max}"
            )
            if self.total + needed <= self.total_bytes_max * _LOW_WATERMARK:
                break
        return self.total + needed <= self.total_bytes_max


def _nothing_unsent() -> int:
    return 0


def _ignore(_error: Exception) -> None:
    """Replace the callback of a connection that has ended."""


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
        """Whether a complete frame was received."""
        if budget is not None:
            budget.add(self)

    def add(self, kind: Kind, size: int) -> bool:
        """Count `size` bytes, which is negative for released bytes; return whether the limits allow it.

        Nothing is counted if they do not. Other connections may be closed to free memory.
        """
        budget = self._budget
        if budget is None:
            return True
        if size > 0 and (
            self.total + size > budget.connection_bytes_max
            or (budget.total + size > budget.total_bytes_max and not budget.free(size, self))
        ):
            budget.refusals += 1
            return False
        self._change(budget, kind, size)
        return True

    def set(self, kind: Kind, size: int) -> None:
        """Set the bytes in use. Above a limit, close this connection, or those that use most memory."""
        budget = self._budget
        if budget is None:
            return
        increase = size - self.sizes[kind]
        self._change(budget, kind, increase)
        if increase <= 0:
            return
        if self.total > budget.connection_bytes_max:
            limit = f"the limit of a connection is {budget.connection_bytes_max}"
            sizes = _sizes_text(self.sizes)
            self.close(f"this connection uses {self.total} bytes of server memory ({sizes}); {limit}")
        elif budget.total > budget.total_bytes_max:
            budget.free(0, None)

    def refresh(self) -> None:
        """Update the count of unsent responses."""
        if self._budget is not None:
            self._change(self._budget, "responses", self._unsent() - self.sizes["responses"])

    def close(self, reason: str) -> None:
        """Close the connection, and stop counting for it."""
        budget, fail = self._budget, self._fail
        self.release()
        if budget is not None:
            budget.refusals += 1
            fail(ConnectionLost(reason))

    def evict(self) -> None:
        """Close the connection, which has not sent a complete frame, to admit a new one."""
        fail = self._fail
        self.release()
        fail(ConnectionLost("the server is at its limit of connections, and this one has not sent a request"))

    def release(self) -> None:
        """Release the memory of a connection that has ended."""
        budget, self._budget = self._budget, None
        # References to the channel would keep its buffers until a garbage collection.
        self._unsent, self._fail = _nothing_unsent, _ignore
        if budget is None:
            return
        budget.remove(self)
        for kind, size in self.sizes.items():
            budget.count(kind, -size)

    def _change(self, budget: MemoryBudget, kind: Kind, increase: int) -> None:
        self.sizes[kind] += increase
        self.total += increase
        budget.count(kind, increase)


def _sizes_text(sizes: Mapping[Kind, int]) -> str:
    return ", ".join(f"{kind} {size}" for kind, size in sizes.items() if size)
