"""Rebalance: computes the queues that a group member acquires and revokes.

Pure values: `GroupMember` requests the queues and members, and applies the changes.

Source: RocketMQ 4.6 RebalanceImpl rebalanceByTopic, updateProcessQueueTableInRebalance.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rocketpy.consumer.allocation import AllocationStrategy
from rocketpy.protocol.bodies import MessageQueue


class AssignmentChanges(NamedTuple):
    """Changes of one topic's queues. Revoke first: another member may wait for the queues."""

    revoked: tuple[MessageQueue, ...]
    assigned: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One member's view of its group.

    broadcasting: every member is assigned every queue, and the other members do not matter.
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
        share = set(queues)
        if not self.broadcasting:
            share = set(
                self.strategy.allocate(self.group, self.client_id, sorted(queues), sorted(members or ()))
            )
        mine = {queue for queue in held if queue.topic == topic}
        return AssignmentChanges(tuple(sorted(mine - share)), tuple(sorted(share - mine)))

    @staticmethod
    def unsubscribed(topics: Collection[str], held: Collection[MessageQueue]) -> tuple[MessageQueue, ...]:
        """Return the queues of topics without a subscription."""
        return tuple(sorted(queue for queue in held if queue.topic not in topics))
