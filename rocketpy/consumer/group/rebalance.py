"""Rebalance: what a member of a group takes and drops, from what it knows of the topic and of the others.

Pure values. The shell asks for queues and members, and obeys.

Source: RocketMQ 4.6 RebalanceImpl rebalanceByTopic, updateProcessQueueTableInRebalance.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rocketpy.consumer.allocation import AllocationStrategy
from rocketpy.protocol.bodies import MessageQueue


class AssignmentChanges(NamedTuple):
    """What to do about one topic. revoked comes first: another member may wait for it."""

    revoked: tuple[MessageQueue, ...]
    assigned: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One member's view of its group.

    broadcasting: every member takes every queue, and nobody is asked who else is there.
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
        """What to change now for a topic.

        queues, members: None when nobody could tell; then everything stays as it is, since giving up work on
        a guess would leave it to nobody. held: the queues of any topic that the member has.
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
        """Queues of topics that are not subscribed to any more."""
        return tuple(sorted(queue for queue in held if queue.topic not in topics))
