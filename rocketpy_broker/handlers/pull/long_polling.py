"""Pulls that wait until a message arrives in their queue, or until they time out (long polling).

A held pull has no timer and no task. The owner of the table calls `groups` for new messages, `expired`
periodically, and `pulls_of` for closed connections. No I/O or clock: `now_ms` is an argument.

Source: PullRequestHoldService of RocketMQ 4.6.0. Differs: the pulls of a queue that read the same messages
form a group, so that these are read and filtered once for all. A group remembers which messages its filter
has dropped, so no message is filtered twice. The number and memory of held pulls is limited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, KeysView
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

HELD_BYTES: Final = 1400
"""Memory of one held pull without its filter: measured for a pull that is alone in its group, and rounded
up."""

HELD_PER_QUEUE_MAX: Final = 4096
"""Maximum number of held pulls of one owner in one queue. A new message takes time for each of them. Not in
RocketMQ."""

_BUCKET_MS: Final = 100
"""Pulls are sorted by their deadlines only as far as this."""


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits."""

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
    """Its filter of `filter_bytes` bytes, which pulls of a channel may share."""
    filter_bytes: int = 0
    group: PullGroup | None = None
    """None while it is not held."""


@dataclass(slots=True, eq=False)
class PullGroup:
    """The pulls of a queue with the same filter, offset and `count_max`."""

    topic: str
    queue_id: int
    offset: int
    """Queue offset of the first message that they have not read."""
    count_max: int
    filtered_by: object
    pulls: dict[HeldPull, None] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, int, int]:
        """What the pulls have in common."""
        return self.offset, id(self.filtered_by), self.count_max


class PullRequestHoldTable:
    """All held pulls of a broker.

    count: called with a channel and the bytes that its pulls take in addition (or less, if negative); returns
    False if that exceeds a limit.
    """

    def __init__(self, count: Callable[[Any, int], bool] = lambda *_: True) -> None:
        self._count = count
        self._filters: dict[tuple[Hashable, int], int] = {}
        """Number of pulls of a channel that share a filter, by the id of the filter."""
        self._queues: dict[tuple[str, int], dict[tuple[int, int, int], PullGroup]] = {}
        self._channels: dict[Hashable, dict[HeldPull, None]] = {}
        self._buckets: dict[int, dict[HeldPull, None]] = {}
        """By deadline."""
        self._owned: Counter[tuple[str, str, int]] = Counter()
        """Number of pulls by owner, topic and queue id."""

    def __len__(self) -> int:
        return sum(map(len, self._channels.values()))

    @property
    def queues(self) -> KeysView[tuple[str, int]]:
        """(topic, queue id) of all queues with held pulls: a live view."""
        return self._queues.keys()

    def hold(self, pull: HeldPull, topic: str, queue_id: int, offset: int) -> bool:
        """Hold a pull of a queue from an offset on; False if that exceeds one of the limits."""
        owned = pull.owner, topic, queue_id
        if self._owned[owned] >= HELD_PER_QUEUE_MAX:
            return False
        size = HELD_BYTES
        shared = (pull.channel, id(pull.filtered_by))
        if pull.filter_bytes and shared not in self._filters:
            size += pull.filter_bytes
        if not self._count(pull.channel, size):
            return False
        if pull.filter_bytes:
            self._filters[shared] = self._filters.get(shared, 0) + 1
        self._owned[owned] += 1
        self._channels.setdefault(pull.channel, {})[pull] = None
        self._buckets.setdefault(_bucket(pull.deadline_ms), {})[pull] = None
        group = PullGroup(topic, queue_id, offset, pull.count_max, pull.filtered_by)
        pull.group = group = self._queues.setdefault((topic, queue_id), {}).setdefault(group.key, group)
        group.pulls[pull] = None
        return True

    def groups(self, topic: str, queue_id: int) -> list[PullGroup]:
        """Return the groups of a queue."""
        return list(self._queues.get((topic, queue_id), {}).values())

    def advance(self, group: PullGroup, offset: int) -> PullGroup:
        """Set the offset of a group whose filter drops all messages before; return the group of its pulls."""
        groups = self._queues[group.topic, group.queue_id]
        del groups[group.key]
        group.offset = offset
        other = groups.setdefault(group.key, group)
        if other is group:
            return group
        small, large = sorted((group, other), key=lambda one: len(one.pulls))
        for pull in small.pulls:
            pull.group = large
        large.pulls.update(small.pulls)
        small.pulls.clear()
        groups[group.key] = large
        return large

    def release(self, pull: HeldPull) -> None:
        """Remove a pull, which gets its response or lost its connection; does nothing if it is not held."""
        group, pull.group = pull.group, None
        if group is None:
            return
        queue = group.topic, group.queue_id
        del group.pulls[pull]
        if not group.pulls:
            _remove(self._queues, queue, group.key)
        _remove(self._channels, pull.channel, pull)
        _remove(self._buckets, _bucket(pull.deadline_ms), pull)
        owned = pull.owner, *queue
        self._owned[owned] -= 1
        if not self._owned[owned]:
            del self._owned[owned]
        self._release_memory(pull)

    def _release_memory(self, pull: HeldPull) -> None:
        size = HELD_BYTES
        if pull.filter_bytes:
            shared = (pull.channel, id(pull.filtered_by))
            left = self._filters[shared] - 1
            if left:
                self._filters[shared] = left
            else:
                del self._filters[shared]
                size += pull.filter_bytes
        self._count(pull.channel, -size)

    def expired(self, now_ms: float) -> Iterator[HeldPull]:
        """Yield the pulls that have timed out. The caller releases them; it may do so much later."""
        last = _bucket(now_ms)
        for number in sorted(number for number in self._buckets if number <= last):
            for pull in list(self._buckets.get(number, ())):
                if pull.deadline_ms <= now_ms and pull.group is not None:
                    yield pull

    def pulls_of(self, channel: Hashable) -> list[HeldPull]:
        """Return the held pulls of a channel."""
        return list(self._channels.get(channel, ()))


def _bucket(ms: float) -> int:
    return int(ms // _BUCKET_MS)


def _remove(table: dict[Any, dict[Any, Any]], key: Hashable, member: Hashable) -> None:
    members = table[key]
    del members[member]
    if not members:
        del table[key]
