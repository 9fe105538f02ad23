"""Requests that wait until a message arrives, or until they time out (long polling): pulls and pops.

A held request has no timer and no task. The owner of the table calls `groups` for new messages, `expired`
periodically, and `requests_of` for closed connections. No I/O or clock: `now_ms` is an argument.

Source: PullRequestHoldService of RocketMQ 4.6.0, PopLongPollingService of 5.3.3. Differs: the requests of a
queue that read the same messages form a group, so that these are read and filtered once for all. A group
of pulls remembers which messages its filter has dropped, so no message is filtered twice. The number and
memory of held requests is limited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, KeysView
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Generic, TypeVar

Q = TypeVar("Q", bound=Hashable)
"""What a request waits for: (topic, queue id) for pulls, (topic, group, queue id) for pops."""

HELD_BYTES: Final = 1400
"""Memory of one held request without its filter: measured for a pull that is alone in its group, and rounded
up."""

HELD_PER_QUEUE_MAX: Final = 4096
"""Maximum number of held requests of one owner for one queue. A new message takes time for each of them.
Not in RocketMQ."""

_BUCKET_MS: Final = 100
"""Requests are sorted by their deadlines only as far as this."""


@dataclass(slots=True, eq=False)
class HeldRequest(Generic[Q]):
    """One request that waits."""

    channel: Hashable
    owner: str
    """The account or host of its channel."""
    deadline_ms: float
    """When it times out."""
    request: Any
    """What the owner of the table needs to respond."""
    _: KW_ONLY
    count_max: int = 32
    """How many messages it wants."""
    filtered_by: object = None
    """Its filter of `filter_bytes` bytes, which requests of a channel may share."""
    filter_bytes: int = 0
    group: HeldGroup[Q] | None = None
    """None while it is not held."""


@dataclass(slots=True, eq=False)
class HeldGroup(Generic[Q]):
    """The requests of a queue with the same filter, offset and `count_max`."""

    queue: Q
    offset: int
    """Queue offset of the first message that they have not read; 0 for pops."""
    count_max: int
    filtered_by: object
    requests: dict[HeldRequest[Q], None] = field(default_factory=dict)
    """In the order in which they arrived."""

    @property
    def key(self) -> tuple[int, int, int]:
        """What the requests have in common."""
        return self.offset, id(self.filtered_by), self.count_max


class HoldTable(Generic[Q]):
    """All held requests of one kind of a broker.

    count: called with a channel and the bytes that its requests take in addition (or less, if negative);
    returns False if that exceeds a limit. queue_max: maximum number of requests of one owner for one queue.
    """

    def __init__(
        self,
        count: Callable[[Any, int], bool] = lambda *_: True,
        queue_max: Callable[[], int] = lambda: HELD_PER_QUEUE_MAX,
    ) -> None:
        self._count = count
        self._queue_max = queue_max
        self._length = 0
        self._filters: dict[tuple[Hashable, int], int] = {}
        """Number of requests of a channel that share a filter, by the id of the filter."""
        self._queues: dict[Q, dict[tuple[int, int, int], HeldGroup[Q]]] = {}
        self._channels: dict[Hashable, dict[HeldRequest[Q], None]] = {}
        self._buckets: dict[int, dict[HeldRequest[Q], None]] = {}
        """By deadline."""
        self._owned: Counter[tuple[str, Q]] = Counter()
        """Number of requests by owner and queue."""

    def __len__(self) -> int:
        return self._length

    @property
    def queues(self) -> KeysView[Q]:
        """All queues with held requests: a live view."""
        return self._queues.keys()

    def count_of(self, owner: str, queue: Q) -> int:
        """Return the number of held requests of an owner for a queue."""
        return self._owned[owner, queue]

    def hold(self, request: HeldRequest[Q], queue: Q, offset: int = 0) -> bool:
        """Hold a request for a queue from an offset on; False if that exceeds one of the limits."""
        owned = request.owner, queue
        if self._owned[owned] >= self._queue_max():
            return False
        size = HELD_BYTES
        shared = (request.channel, id(request.filtered_by))
        if request.filter_bytes and shared not in self._filters:
            size += request.filter_bytes
        if not self._count(request.channel, size):
            return False
        if request.filter_bytes:
            self._filters[shared] = self._filters.get(shared, 0) + 1
        self._length += 1
        self._owned[owned] += 1
        self._channels.setdefault(request.channel, {})[request] = None
        self._buckets.setdefault(_bucket(request.deadline_ms), {})[request] = None
        group = HeldGroup(queue, offset, request.count_max, request.filtered_by)
        request.group = group = self._queues.setdefault(queue, {}).setdefault(group.key, group)
        group.requests[request] = None
        return True

    def groups(self, queue: Q) -> list[HeldGroup[Q]]:
        """Return the groups of a queue."""
        return list(self._queues.get(queue, {}).values())

    def advance(self, group: HeldGroup[Q], offset: int) -> HeldGroup[Q]:
        """Set the offset of a group whose filter drops all messages before; return the group of its pulls."""
        groups = self._queues[group.queue]
        del groups[group.key]
        group.offset = offset
        other = groups.setdefault(group.key, group)
        if other is group:
            return group
        small, large = sorted((group, other), key=lambda one: len(one.requests))
        for pull in small.requests:
            pull.group = large
        large.requests.update(small.requests)
        small.requests.clear()
        groups[group.key] = large
        return large

    def release(self, request: HeldRequest[Q]) -> None:
        """Remove a request, which gets its response or lost its connection; nothing if it is not held."""
        group, request.group = request.group, None
        if group is None:
            return
        queue = group.queue
        self._length -= 1
        del group.requests[request]
        if not group.requests:
            _remove(self._queues, queue, group.key)
        _remove(self._channels, request.channel, request)
        _remove(self._buckets, _bucket(request.deadline_ms), request)
        owned = request.owner, queue
        self._owned[owned] -= 1
        if not self._owned[owned]:
            del self._owned[owned]
        self._release_memory(request)

    def _release_memory(self, request: HeldRequest[Q]) -> None:
        size = HELD_BYTES
        if request.filter_bytes:
            shared = (request.channel, id(request.filtered_by))
            left = self._filters[shared] - 1
            if left:
                self._filters[shared] = left
            else:
                del self._filters[shared]
                size += request.filter_bytes
        self._count(request.channel, -size)

    def expired(self, now_ms: float) -> Iterator[HeldRequest[Q]]:
        """Yield the requests that have timed out. The caller releases them; it may do so much later."""
        last = _bucket(now_ms)
        for number in sorted(number for number in self._buckets if number <= last):
            for request in list(self._buckets.get(number, ())):
                if request.deadline_ms <= now_ms and request.group is not None:
                    yield request

    def requests_of(self, channel: Hashable) -> list[HeldRequest[Q]]:
        """Return the held requests of a channel."""
        return list(self._channels.get(channel, ()))


def _bucket(ms: float) -> int:
    return int(ms // _BUCKET_MS)


def _remove(table: dict[Any, dict[Any, Any]], key: Hashable, member: Hashable) -> None:
    members = table[key]
    del members[member]
    if not members:
        del table[key]
