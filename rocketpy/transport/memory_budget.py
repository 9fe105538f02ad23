"""Bytes that a server keeps for its connections: counted by kind, and bounded per connection and in total.

Counted are received parts of frames, requests that wait for their turn, answers that the peer has not read,
held pulls, subscriptions and messages that wait. A connection above its own limit is refused what it asks
for, or closed. Above the total limit the connections that keep most are closed first, so a client that keeps
little never pays for one that keeps a lot.

RocketMQ has no such limit: Netty's buffers and the hold service's lists grow until the process ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Literal

from rocketpy.errors import ConnectionLost

Kind = Literal["frame", "requests", "answers", "pulls", "subscriptions", "waiting"]
KINDS: Final[tuple[Kind, ...]] = ("frame", "requests", "answers", "pulls", "subscriptions", "waiting")
"""frame: the part of a frame that was received. requests: that wait for their connection's turn.
answers: written, and not taken by the socket. pulls: held (long polling). subscriptions: of consumer groups,
and the names of groups that a client belongs to. waiting: messages whose topic is being saved."""

_RELIEVED: Final = 7 / 8
"""Above the limit, connections are closed down to this share of it: sorting them again must be rare."""


class MemoryBudget:
    """The bytes of all connections of a server, or of several that share it.

    connection_bytes_max, total_bytes_max: limits in bytes; see `ChannelOptions`.
    """

    def __init__(self, connection_bytes_max: int, total_bytes_max: int) -> None:
        self.connection_bytes_max = connection_bytes_max
        self.total_bytes_max = total_bytes_max
        self.total = 0
        self.hosts: Counter[str] = Counter()
        """How many connections there are from each host."""
        self.refusals = 0
        """Requests refused and connections closed because of the limits, since the start."""
        self._by_kind: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._connections: dict[ConnectionMemory, None] = {}
        self._silent: dict[ConnectionMemory, None] = {}
        """Connections that may not have sent a whole frame, the oldest first."""

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    def close_silent(self) -> bool:
        """Close the oldest connection that never sent a whole frame; False when there is none.

        Whoever opens connections and says nothing would keep all others out until they are idle.
        """
        while self._silent:
            connection = next(iter(self._silent))
            del self._silent[connection]
            if not connection.has_spoken:
                connection.give_way()
                return True
        return False

    def by_kind(self) -> Mapping[Kind, int]:
        """Return the bytes that are kept now."""
        self._refresh()
        return dict(self._by_kind)

    def enter(self, connection: ConnectionMemory) -> None:
        """A connection was made."""
        self._connections[connection] = None
        self._silent[connection] = None

    def leave(self, connection: ConnectionMemory) -> None:
        """A connection is gone."""
        del self._connections[connection]
        self._silent.pop(connection, None)

    def count(self, kind: Kind, grown: int) -> None:
        """So many bytes more are kept."""
        self._by_kind[kind] += grown
        self.total += grown

    def _refresh(self) -> None:
        """Correct counts of unsent answers: sockets take them without a word."""
        for connection in self._connections:
            if connection.sizes["answers"]:
                connection.refresh()

    def relieve(self, needed: int, asking: ConnectionMemory | None) -> bool:
        """Make room for `needed` more bytes by closing who keeps most.

        False when there is none. Where `asking` would keep most, it is to be refused, and is not closed.
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


def _is_gone(_error: Exception) -> None:
    """Nothing is left to be closed."""


class ConnectionMemory:
    """The bytes that one connection keeps.

    budget: None counts for nobody and limits nothing, as at the client's end. unsent: bytes written that the
    socket has not taken. fail: closes the connection.
    """

    __slots__ = ("_budget", "_fail", "_unsent", "has_spoken", "sizes", "total")

    def __init__(
        self,
        budget: MemoryBudget | None,
        unsent: Callable[[], int] = _nothing_unsent,
        fail: Callable[[Exception], None] = _is_gone,
    ) -> None:
        self._budget = budget
        self._unsent = unsent
        self._fail = fail
        self.sizes: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self.total = 0
        self.has_spoken = False
        """Whether a whole frame has come: it is no idle flood's."""
        if budget is not None:
            budget.enter(self)

    def add(self, kind: Kind, size: int) -> bool:
        """Count bytes that are about to be kept; False, with nothing counted, when they must not be.

        Other connections may be closed to make room. `size` may be negative, for bytes that are given back.
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
        """Count bytes that are kept already. Too many of one connection close it; of all, the greediest."""
        budget = self._budget
        if budget is None:
            return
        grown = size - self.sizes[kind]
        self._change(budget, kind, grown)
        if grown <= 0:
            return
        if self.total > budget.connection_bytes_max:
            limit = f"the limit of a connection is {budget.connection_bytes_max}"
            self.close(f"{self.total} bytes are kept for it ({_shares(self.sizes)}); {limit}")
        elif budget.total > budget.total_bytes_max:
            budget.relieve(0, None)

    def refresh(self) -> None:
        """Count the unsent answers again."""
        if self._budget is not None:
            self._change(self._budget, "answers", self._unsent() - self.sizes["answers"])

    def close(self, reason: str) -> None:
        """Close the connection, and count nothing for it any more."""
        budget, fail = self._budget, self._fail
        self.end()
        if budget is not None:
            budget.refusals += 1
            fail(ConnectionLost(reason))

    def give_way(self) -> None:
        """Close the connection for another one that needs its place."""
        fail = self._fail
        self.end()
        fail(ConnectionLost("it sent nothing yet, and a new connection needs its place"))

    def end(self) -> None:
        """The connection is gone, and what it kept too."""
        budget, self._budget = self._budget, None
        # They refer to the channel, which would hold its buffers until a garbage collection.
        self._unsent, self._fail = _nothing_unsent, _is_gone
        if budget is None:
            return
        budget.leave(self)
        for kind, size in self.sizes.items():
            budget.count(kind, -size)

    def _change(self, budget: MemoryBudget, kind: Kind, grown: int) -> None:
        self.sizes[kind] += grown
        self.total += grown
        budget.count(kind, grown)


def _shares(sizes: Mapping[Kind, int]) -> str:
    return ", ".join(f"{kind} {size}" for kind, size in sizes.items() if size)
