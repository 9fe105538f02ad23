"""Rebalance: computes the queues that a group member acquires and revokes.

It has no I/O: `GroupMember` looks up the queues and members, and applies the changes.

Source: RocketMQ 4.6 RebalanceImpl rebalanceByTopic, updateProcessQueueTableInRebalance.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rocketpy.consumer.allocation import AllocationStrategy
from rocketpy.protocol.bodies import MessageQueue


class AssignmentChanges(NamedTuple):
    """Changes of the queues of one topic. Revoke first, since another member may wait for these queues."""

    revoked: tuple[MessageQueue, ...]
    assigned: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Compares the queues that are assigned to one member with those that it has.

    broadcasting: every member is assigned every queue, so the other members are ignored.
    """

    group: str
    client_id: str
    strategy: AllocationStrategy
    broadcasting: bool

    def changes(
        self,
        topic: str,
        queues: Sequence[MessageQueue] | None,
        members: Sequence[str] | None,
        held: Collection[MessageQueue],
    ) -> AssignmentChanges:
        """Return the changes for a topic.

        queues, members: None when they are unknown; then nothing changes, since no other member may have
        taken over. held: the queues of all topics that the member has.
        """
        if queues is None or (members is None and not self.broadcasting):
            return AssignmentChanges((), ())
        allocated = set(queues)
        if not self.broadcasting:
            # Several connections with one client id count once: counted twice, some queues have no reader.
            unique = sorted(set(members or ()))
            allocated = set(self.strategy.allocate(self.group, self.client_id, sorted(queues), unique))
        current = {queue for queue in held if queue.topic == topic}
        return AssignmentChanges(tuple(sorted(current - allocated)), tuple(sorted(allocated - current)))

    @staticmethod
    def unsubscribed(topics: Collection[str], held: Collection[MessageQueue]) -> tuple[MessageQueue, ...]:
        """Return the held queues whose topic is not in `topics`, the subscribed ones."""
        return tuple(sorted(queue for queue in held if queue.topic not in topics))
