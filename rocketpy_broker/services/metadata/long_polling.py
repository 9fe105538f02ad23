"""Pulls that found nothing and wait for a message: by queue, until one arrives or their time is over.

A held pull costs an entry in two dicts: no timer, no task. Who owns the table sweeps it now and then
(`expire`), tells it about new messages (`arrived`) and about connections that end (`drop`).
Source: PullRequestHoldService of RocketMQ 4.6.0. Pure: `now_ms` is passed in. Differs: a pull whose filter
let nothing through remembers how far it looked, so no message is looked at twice. What held pulls take of the
memory is counted, and one that must not take more is not held.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, KeysView
from dataclasses import dataclass
from typing import Any, Final

HELD_BYTES: Final = 1024
"""What one held pull takes, its filter not counted: measured, and rounded up."""

HELD_PER_CHANNEL_MAX: Final = 32_768
"""Ours: one more is answered at once. A channel has one pull a queue, so no client comes near."""


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits.

    channel: whom to answer. request: what the owner needs to do so. offset: queue offset of the first message
    it has not looked at. deadline_ms: when it is answered that there is nothing.
    filtered_by: what it keeps besides, of `filter_bytes` bytes; pulls of a channel may share it.
    """

    channel: Hashable
    topic: str
    queue_id: int
    offset: int
    deadline_ms: float
    request: Any
    filtered_by: object = None
    filter_bytes: int = 0


def _unlimited(_channel: Hashable, _size: int) -> bool:
    return True


class PullRequestHoldTable:
    """All held pulls of a broker.

    count: called with a channel and the bytes that its pulls take more (or less, below 0); False for more
    than they may take.
    """

    def __init__(self, count: Callable[[Any, int], bool] = _unlimited) -> None:
        self._count = count
        self._filters: dict[tuple[Hashable, int], int] = {}
        """How many pulls of a channel share a filter, by the filter's identity."""
        self._queues: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._channels: dict[Hashable, dict[HeldPull, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._channels.values()))

    @property
    def queues(self) -> KeysView[tuple[str, int]]:
        """The (topic, queue id) that somebody waits for: a live view."""
        return self._queues.keys()

    def hold(self, pull: HeldPull) -> bool:
        """Keep a pull; False when its channel has too many already, or they take too much memory."""
        of_channel = self._channels.get(pull.channel)
        if of_channel is not None and len(of_channel) >= HELD_PER_CHANNEL_MAX:
            return False
        size = HELD_BYTES
        shared = (pull.channel, id(pull.filtered_by))
        if pull.filter_bytes and shared not in self._filters:
            size += pull.filter_bytes
        if not self._count(pull.channel, size):
            return False
        if pull.filter_bytes:
            self._filters[shared] = self._filters.get(shared, 0) + 1
        self._channels.setdefault(pull.channel, {})[pull] = None
        self._queues.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        return True

    def waiting_below(self, topic: str, queue_id: int, next_offset: int) -> list[HeldPull]:
        """Return the pulls of a queue for which there are messages now. They stay held."""
        held = self._queues.get((topic, queue_id))
        return [pull for pull in held if pull.offset < next_offset] if held else []

    def release(self, pull: HeldPull) -> None:
        """Take a pull out: it is being answered."""
        _remove(self._channels, pull.channel, pull)
        _remove(self._queues, (pull.topic, pull.queue_id), pull)
        self._give_back(pull)

    def _give_back(self, pull: HeldPull) -> None:
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

    def expire(self, now_ms: float) -> list[HeldPull]:
        """Take out and return the pulls whose time is over, in the order they came, channel by channel."""
        late = [pull for held in self._channels.values() for pull in held if pull.deadline_ms <= now_ms]
        for pull in late:
            self.release(pull)
        return late

    def drop(self, channel: Hashable) -> None:
        """Forget the pulls of a channel that is gone."""
        for pull in self._channels.pop(channel, ()):
            _remove(self._queues, (pull.topic, pull.queue_id), pull)
            self._give_back(pull)


def _remove(table: dict[Any, dict[HeldPull, None]], key: Hashable, pull: HeldPull) -> None:
    held = table.get(key)
    if held is not None:
        held.pop(pull, None)
        if not held:
            del table[key]
