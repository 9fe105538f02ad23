"""Pulls that wait until a message arrives in their queue, or until they time out (long polling).

A held pull costs an entry in two dicts, but no timer and no task. The owner of the table calls `expire`
periodically, `waiting_below` for new messages, and `drop` for closed connections. No I/O
or clock: `now_ms` is an argument.

Source: PullRequestHoldService of RocketMQ 4.6.0. Differs: a pull remembers which messages its filter has
dropped, so no message is filtered twice. The memory of held pulls is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, KeysView
from dataclasses import dataclass
from typing import Any, Final

HELD_BYTES: Final = 1024
"""Memory of one held pull without its filter: measured, and rounded up."""

HELD_PER_CHANNEL_MAX: Final = 32_768
"""Further pulls are not held. A client has one pull for each queue, and stays far below. Not in RocketMQ."""


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits.

    request: what the owner needs to respond. offset: queue offset of the first message that it has not read.
    deadline_ms: when it times out. filtered_by: its filter of `filter_bytes` bytes, which pulls of a channel
    may share.
    """

    channel: Hashable
    topic: str
    queue_id: int
    offset: int
    deadline_ms: float
    request: Any
    filtered_by: object = None
    filter_bytes: int = 0


class PullRequestHoldTable:
    """All held pulls of a broker.

    count: called with a channel and the bytes that its pulls take in addition (or less, if negative); returns
    False if that exceeds a limit.
    """

    def __init__(self, count: Callable[[Any, int], bool] = lambda *_: True) -> None:
        self._count = count
        self._filters: dict[tuple[Hashable, int], int] = {}
        """Number of pulls of a channel that share a filter, by the id of the filter."""
        self._queues: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._channels: dict[Hashable, dict[HeldPull, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._channels.values()))

    @property
    def queues(self) -> KeysView[tuple[str, int]]:
        """(topic, queue id) of all queues with held pulls: a live view."""
        return self._queues.keys()

    def hold(self, pull: HeldPull) -> bool:
        """Hold a pull; False if its channel has too many, or they take too much memory."""
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
        """Return the held pulls of a queue that has messages for them. They stay held."""
        held = self._queues.get((topic, queue_id))
        return [pull for pull in held if pull.offset < next_offset] if held else []

    def release(self, pull: HeldPull) -> None:
        """Remove a pull, which gets its response."""
        _remove(self._channels, pull.channel, pull)
        _remove(self._queues, (pull.topic, pull.queue_id), pull)
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

    def expire(self, now_ms: float) -> list[HeldPull]:
        """Remove and return the pulls that have timed out, by channel, in the order of their arrival."""
        late = [pull for held in self._channels.values() for pull in held if pull.deadline_ms <= now_ms]
        for pull in late:
            self.release(pull)
        return late

    def drop(self, channel: Hashable) -> None:
        """Remove the pulls of a closed channel."""
        for pull in self._channels.pop(channel, ()):
            _remove(self._queues, (pull.topic, pull.queue_id), pull)
            self._release_memory(pull)


def _remove(table: dict[Any, dict[HeldPull, None]], key: Hashable, pull: HeldPull) -> None:
    held = table.get(key)
    if held is not None:
        held.pop(pull, None)
        if not held:
            del table[key]
