"""Allocation strategies: which queues of a topic each member of a group takes. Pure functions of the lists.

Every member computes its own share from the same two sorted lists, so all of them, Java's too, must use the
same strategy; nobody hands out anything.

Source: RocketMQ 4.6 AllocateMessageQueueAveragely, ..AveragelyByCircle, ..ByConfig, ..ByMachineRoom,
..ConsistentHash, AllocateMachineRoomNearby. Differs: by machine room Java takes some queues from the list
of all queues where it means those of its rooms; here each queue of the rooms goes to one member.
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
    """Computes one member's share. name: as RocketMQ calls it, for logs."""

    @property
    def name(self) -> str:
        """As RocketMQ calls it."""

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues of member `client_id`; none when it is not among `members`. Both lists are sorted."""


class AllocateAveragely:
    """Neighbouring queues to each member, the first members one more when it does not come out even."""

    name: Final = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """See `AllocationStrategy`."""
        if client_id not in members:
            return []
        index = members.index(client_id)
        share, rest = divmod(len(queues), len(members))
        start = index * share + min(index, rest)
        return list(queues[start : start + share + (index < rest)])


class AllocateByCircle:
    """Queues dealt out one after the other, like cards."""

    name: Final = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """See `AllocationStrategy`."""
        return list(queues[members.index(client_id) :: len(members)]) if client_id in members else []


class AllocateByConfig:
    """The queues that the application names, whoever else is there."""

    name: Final = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = tuple(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """See `AllocationStrategy`. Of the named queues those of the topic in hand."""
        topics = {queue.topic for queue in queues}
        return [queue for queue in self._queues if queue.topic in topics]


class AllocateByMachineRoom:
    """Only queues of brokers in given machine rooms, shared evenly.

    rooms: their names; a broker says its own before an ``@`` in its name (``room1@broker-a``).
    """

    name: Final = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms = frozenset([rooms] if isinstance(rooms, str) else rooms)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """See `AllocationStrategy`."""
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


class AllocateNearby:
    """Queues to members in their own machine room; those of a room without members to everybody.

    inner: the strategy within a room. room_of_broker, room_of_member: the room of a queue's broker, and of a
    client id.
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
        """As RocketMQ calls it."""
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """See `AllocationStrategy`."""
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


class AllocateByConsistentHash:
    """Queues and members on one ring of hashes; a member that comes or goes moves few queues.

    virtual_nodes: places of each member on the ring.
    """

    name: Final = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = 10) -> None:
        if virtual_nodes < 1:
            raise ConfigInvalid(f"virtual_nodes is {virtual_nodes}; it must be at least 1")
        self._virtual_nodes = virtual_nodes

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """See `AllocationStrategy`."""
        if client_id not in members:
            return []
        ring = {
            ring_hash(f"{member}-{index}"): member
            for member in members
            for index in range(self._virtual_nodes)
        }
        places = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            registration = bisect_left(places, ring_hash(java_text(queue)))
            return ring[places[registration % len(places)]]

        return [queue for queue in queues if owner(queue) == client_id]


def ring_hash(key: str) -> int:
    """A key's place on the ring: the first four bytes of its MD5. Source: RocketMQ ConsistentHashRouter."""
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def java_text(queue: MessageQueue) -> str:
    """What Java's MessageQueue.toString says, which is what the ring hashes."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
