"""Rebalance: computes the queues that a group member acquires and revokes, and which it waits for.

It has no I/O: `GroupMember` looks up the queues and members, and applies the changes.

Source: RocketMQ 4.6 RebalanceImpl rebalanceByTopic, updateProcessQueueTableInRebalance. Differs: a queue
whose broker is away is kept (`AwayQueues`); a member waits for a queue that another one has not released
(`Handover`); a restarted broker's list of the members is completed (`MemberLists`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rocketpy.consumer.allocation import AllocationStrategy
from rocketpy.errors import UsageError
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.runtime.application import describe, ends_program, shown

_AWAY_MAX_MS: Final = 3_600_000
"""How long a queue is kept while its broker is away."""
_EARLIER_MAX: Final = 8
"""Earlier assignments of a topic that are looked at."""
_RELEASE_GRACE_MS: Final = 1000
"""How much longer the next owner waits than the former one, which may begin later."""
_RECONNECT_MS: Final = 1000
"""In this time a member whose connection was lost is in the group again."""
_HEARTBEATS_MS: Final = 30_000
"""Within this time the members of a group have sent a heartbeat to a restarted broker. Source: RocketMQ's
heartbeatBrokerInterval."""


class AssignmentChanges(NamedTuple):
    """Changes of the queues of one topic. Revoke first, since another member may wait for these queues."""

    revoked: tuple[MessageQueue, ...]
    assigned: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Compares the queues that are assigned to one member with those that it has."""

    group: str
    client_id: str
    strategy: AllocationStrategy
    broadcasting: bool
    """Every member is assigned every queue, so the other members are ignored."""

    def changes(
        self,
        topic: str,
        queues: Sequence[MessageQueue] | None,
        members: Sequence[str] | None,
        held: Collection[MessageQueue],
    ) -> AssignmentChanges:
        """Return the changes for a topic.

        queues, members: None when they are unknown; then nothing changes, since no other member may have
        taken over. held: the queues of all topics that the member has, without those whose broker is away.
        """
        if queues is None or (members is None and not self.broadcasting):
            return AssignmentChanges((), ())
        allocated = set(queues if self.broadcasting else self.share(self.client_id, queues, members or ()))
        current = {queue for queue in held if queue.topic == topic}
        return AssignmentChanges(tuple(sorted(current - allocated)), tuple(sorted(allocated - current)))

    def share(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of a topic that are assigned to one of the group's members."""
        # Several connections with one client id count once: counted twice, some queues have no reader.
        try:
            found: Any = self.strategy.allocate(self.group, client_id, sorted(queues), sorted(set(members)))
            shares = list(found)
            wrong = [queue for queue in shares if not isinstance(queue, MessageQueue)]
        except BaseException as error:  # the application's code
            if ends_program(error):
                raise
            raise self._failed(f"failed: {describe(error)}") from error
        if wrong:
            raise self._failed(f"returned {shown(wrong[0])}, which is not a MessageQueue")
        return shares

    def _failed(self, problem: str) -> UsageError:
        return UsageError(f"group {self.group} cannot be rebalanced: {shown(self.strategy)} {problem}")

    @staticmethod
    def unsubscribed(topics: Collection[str], held: Collection[MessageQueue]) -> tuple[MessageQueue, ...]:
        """Return the held queues whose topic is not in `topics`, the subscribed ones."""
        return tuple(sorted(queue for queue in held if queue.topic not in topics))


class _Assignment(NamedTuple):
    """From what the members computed their shares of a topic."""

    queues: tuple[MessageQueue, ...]
    members: tuple[str, ...]


class Handover:
    """Decides how long a member waits for queues that another member has locked.

    The former owner of a queue releases it after its running handlers, or after `wait_ms`. The next owner
    waits a little longer, unless the former one has left the group: then nobody releases the queue. A member
    that left without unlocking its queues has a second to return, as after a lost connection. After a change
    of the topic's queues the next owner also waits `refresh_ms`, until the former one has the new route.
    """

    def __init__(self, rebalance: Rebalance, wait_ms: int, refresh_ms: int) -> None:
        self._rebalance = rebalance
        self._limit_ms = wait_ms and wait_ms + _RELEASE_GRACE_MS
        self._refresh_ms = refresh_ms
        self._assignments: dict[str, list[_Assignment]] = {}
        """The current one is the last."""
        self._refused_ms: dict[MessageQueue, float] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether the member waits for a queue."""
        return bool(self._refused_ms)

    def begin(
        self,
        topic: str,
        queues: Sequence[MessageQueue],
        members: Sequence[str],
        assigned: Collection[MessageQueue],
    ) -> None:
        """Note from what the shares of a topic are computed now. assigned: queues that are to be acquired."""
        current, known = _Assignment(tuple(queues), tuple(members)), self._assignments.setdefault(topic, [])
        if not known or known[-1] != current:
            known.append(current)
            del known[:-_EARLIER_MAX]
        for queue in [one for one in self._refused_ms if one.topic == topic and one not in assigned]:
            del self._refused_ms[queue]

    def end(self, topic: str) -> None:
        """Forget earlier assignments of a topic: this member has all of its queues."""
        del self._assignments[topic][:-1]

    def acquired(self, queue: MessageQueue) -> None:
        """Note that the member has acquired a queue."""
        self._refused_ms.pop(queue, None)

    def must_wait(self, queue: MessageQueue, now_ms: float) -> bool:
        """Return whether the member waits for a queue that another one has locked."""
        known = self._assignments.get(queue.topic)
        if not known or not self._limit_ms:
            return False
        queues, members = known[-1]
        if set(members) <= {self._rebalance.client_id}:
            return False
        limit_ms = self._limit_ms + any(one.queues != queues for one in known) * self._refresh_ms
        if self.gone_owners(queue):
            limit_ms = _RECONNECT_MS
        return now_ms - self._refused_ms.setdefault(queue, now_ms) < limit_ms

    def gone_owners(self, queue: MessageQueue) -> set[str]:
        """Return the former owners of a queue; none if they are not known, or one is still in the group."""
        known = self._assignments.get(queue.topic, [])
        owners = {self._owner(queue, one) for one in known[:-1]} - {self._rebalance.client_id}
        gone = {owner for owner in owners if owner is not None and owner not in known[-1].members}
        return gone if gone == owners else set()

    def _owner(self, queue: MessageQueue, assignment: _Assignment) -> str | None:
        """Return the member that a queue was assigned to; None when it is not known."""
        for client_id in assignment.members:
            try:
                if queue in self._rebalance.share(client_id, assignment.queues, assignment.members):
                    return client_id
            except Exception:  # noqa: BLE001 - a strategy of the application may know its own share only
                return None
        return None


class AwayQueues:
    """The queues that a member keeps while their brokers are away, for up to an hour.

    No other member can read them. After their return the member goes on at its own offset: the broker may
    have lost the last commits.
    """

    def __init__(self) -> None:
        self._since_ms: dict[MessageQueue, float] = {}

    def keep(self, topic: str, away: Collection[MessageQueue], now_ms: float) -> set[MessageQueue]:
        """Return those that are kept. away: the member's queues of a topic whose brokers are away now."""
        for queue in [one for one in self._since_ms if one.topic == topic and one not in away]:
            del self._since_ms[queue]
        return {queue for queue in away if now_ms - self._since_ms.setdefault(queue, now_ms) < _AWAY_MAX_MS}


class MemberLists:
    """Completes the lists of a group's members that restarted brokers return.

    A restarted broker knows a member only after its next heartbeat. The other members would take over its
    queues in the meantime. So members that were in earlier lists, and have not been in a list of the
    restarted broker yet, count as members for 30 s. A restart shows as a new connection.
    """

    def __init__(self) -> None:
        self._last: frozenset[str] = frozenset()
        self._first_ms: float | None = None
        self._awaited: dict[str, tuple[float, set[str]]] = {}
        """By address: when its connection was opened, and the members."""

    def complete(
        self, listed: Collection[str], address: str, opened_ms: float, now_ms: float
    ) -> tuple[str, ...]:
        """Return the members, sorted.

        listed: in the list of the broker at `address`. opened_ms: when the connection to it was opened.
        """
        if self._first_ms is None:
            self._first_ms = now_ms
        known_ms, awaited = self._awaited.get(address, (None, set[str]()))
        if known_ms != opened_ms:
            is_restart = known_ms is not None or opened_ms > self._first_ms
            awaited = set(self._last) if is_restart else set()
            self._awaited[address] = opened_ms, awaited
        awaited.difference_update(listed)
        if now_ms - opened_ms > _HEARTBEATS_MS:
            awaited.clear()
        self._last = frozenset(listed) | (awaited & self._last)
        return tuple(sorted(self._last))
