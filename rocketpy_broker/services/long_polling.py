"""Pulls that found nothing and wait for a message: by queue, until one arrives or their time is over.

A held pull costs an entry in two dicts: no timer, no task. Who owns the table sweeps it now and then
(`expire`), tells it about new messages (`arrived`) and about connections that end (`drop`).
Source: PullRequestHoldService of RocketMQ 4.6.0. Pure: `now_ms` is passed in. Differs: a pull whose filter
let nothing through remembers how far it looked, so no message is looked at twice.
"""

from __future__ import annotations

from collections.abc import Hashable, KeysView
from typing import Any, Final

__all__ = ["HELD_PER_CHANNEL_MAX", "HeldPull", "PullHolds"]

HELD_PER_CHANNEL_MAX: Final = 32_768
"""Ours: one more is answered at once. A channel has one pull a queue, so no client comes near."""


class HeldPull:
    """One pull that waits.

    channel: whom to answer. request: what the owner needs to do so. offset: queue offset of the first message
    it has not looked at. deadline_ms: when it is answered that there is nothing.
    """

    __slots__ = ("channel", "deadline_ms", "offset", "queue_id", "request", "topic")

    def __init__(
        self, channel: Hashable, topic: str, queue_id: int, offset: int, deadline_ms: float, request: Any
    ) -> None:
        self.channel = channel
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.deadline_ms = deadline_ms
        self.request = request


class PullHolds:
    """All held pulls of a broker."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._channels: dict[Hashable, dict[HeldPull, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._channels.values()))

    @property
    def queues(self) -> KeysView[tuple[str, int]]:
        """The (topic, queue id) that somebody waits for: a live view."""
        return self._queues.keys()

    def hold(self, pull: HeldPull) -> bool:
        """Keep a pull; False when its channel has too many already."""
        of_channel = self._channels.setdefault(pull.channel, {})
        if len(of_channel) >= HELD_PER_CHANNEL_MAX:
            return False
        of_channel[pull] = None
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


def _remove(table: dict[Any, dict[HeldPull, None]], key: Hashable, pull: HeldPull) -> None:
    held = table.get(key)
    if held is not None:
        held.pop(pull, None)
        if not held:
            del table[key]
