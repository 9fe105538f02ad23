"""Allocation strategies: assign the queues of a topic to the members of a group. No I/O.

Every member computes its own share from the same two sorted lists; there is no coordinator. So all members,
including Java's, must use the same strategy.

Source: RocketMQ 4.6 AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle,
AllocateMessageQueueByConfig, AllocateMessageQueueByMachineRoom, AllocateMessageQueueConsistentHash,
AllocateMachineRoomNearby. Differs: Java's AllocateMessageQueueByMachineRoom indexes the list of all queues
instead of the queues of its rooms; here each queue of the rooms goes to one member.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from hashlib import md5
from typing import Final, Protocol

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import MessageQueue


class AllocationStrategy(Protocol):
    """Computes one member's share of a topic's queues."""

    @property
    def name(self) -> str:
        """RocketMQ's name of the strategy."""

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of member `client_id`; none when it is not among `members`.

        Args:
            group: Name of the group.
            client_id: The member whose share is computed.
            queues: All queues of the topic, sorted.
            members: Client ids of all members, sorted.
        """


class _Value:
    """Base class of strategies: two of a type with equal arguments are equal, as settings with them are."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        arguments = ", ".join(map(repr, vars(self).values()))
        return f"{type(self).__name__}({arguments})"


class AllocateAveragely(_Value):
    """Assigns adjacent queues to each member; the first members get one more if there is a remainder."""

    name: Final = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of one member."""
        if client_id not in members:
            return []
        index = members.index(client_id)
        share, rest = divmod(len(queues), len(members))
        start = index * share + min(index, rest)
        return list(queues[start : start + share + (index < rest)])


class AllocateByCircle(_Value):
    """Assigns queues round-robin."""

    name: Final = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of one member."""
        return list(queues[members.index(client_id) :: len(members)]) if client_id in members else []


class AllocateByConfig(_Value):
    """Assigns the queues that the application names, even if other members have them, too."""

    name: Final = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = tuple(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the configured queues of the topic."""
        topics = {queue.topic for queue in queues}
        return [queue for queue in self._queues if queue.topic in topics]


class AllocateByMachineRoom(_Value):
    """Assigns only queues of brokers in the given machine rooms, in even shares.

    rooms: names of the rooms. The name of a broker begins with its room: ``room1@broker-a``.
    """

    name: Final = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms = frozenset([rooms] if isinstance(rooms, str) else rooms)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of one member."""
        if client_id not in members:
            return []
        near = [queue for queue in queues if self._room_of(queue) in self._rooms]
        index, count = members.index(client_id), len(members)
        share, rest = divmod(len(near), count)
        mine = near[share * index : share * (index + 1)]
        return mine + near[share * count + index : share * count + index + 1] if index < rest else mine

    @staticmethod
    def _room_of(queue: MessageQueue) -> str | None:
        parts = queue.broker_name.split("@")
        return parts[0] if len(parts) == 2 else None


class AllocateNearby(_Value):
    """Assigns queues to members in the same machine room. Queues of rooms without members are shared by all.

    inner: the strategy that divides the queues of a room. room_of_broker: returns the room of a queue's
    broker. room_of_member: returns the room of a client id.
    """

    def __init__(
        self,
        inner: AllocationStrategy,
        room_of_broker: Callable[[MessageQueue], str],
        room_of_member: Callable[[str], str],
    ) -> None:
        self._inner = inner
        self._room_of_broker = room_of_broker
        self._room_of_member = room_of_member

    @property
    def name(self) -> str:
        """RocketMQ's name of the strategy."""
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of one member."""
        if client_id not in members:
            return []
        queues_of: defaultdict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            queues_of[self._room_of_broker(queue)].append(queue)
        members_of: defaultdict[str, list[str]] = defaultdict(list)
        for member in members:
            members_of[self._room_of_member(member)].append(member)
        home = self._room_of_member(client_id)
        mine = self._inner.allocate(group, client_id, queues_of.pop(home, []), members_of[home])
        for room in sorted(queues_of):
            if room not in members_of:
                mine += self._inner.allocate(group, client_id, queues_of[room], members)
        return mine


class AllocateByConsistentHash(_Value):
    """Assigns queues by consistent hashing; few queues move when a member joins or leaves.

    virtual_nodes: number of positions of each member on the hash ring, at least 1. Raises ConfigInvalid.
    """

    name: Final = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = 10) -> None:
        if virtual_nodes < 1:
            raise ConfigInvalid(f"virtual_nodes is {virtual_nodes}; it must be at least 1")
        self._virtual_nodes = virtual_nodes

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of one member."""
        if client_id not in members:
            return []
        ring = {
            ring_hash(f"{member}-{index}"): member
            for member in members
            for index in range(self._virtual_nodes)
        }
        positions = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            index = bisect_left(positions, ring_hash(java_text(queue)))
            return ring[positions[index % len(positions)]]

        return [queue for queue in queues if owner(queue) == client_id]


def ring_hash(key: str) -> int:
    """Return a key's position on the ring: the first four bytes of its MD5.

    Source: RocketMQ ConsistentHashRouter.
    """
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def java_text(queue: MessageQueue) -> str:
    """Return the text of Java's MessageQueue.toString, from which the position of a queue is computed."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
