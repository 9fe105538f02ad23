"""How many messages each topic got since the store was opened, as its consume queues tell."""

from __future__ import annotations

from collections.abc import Iterator

from rocketpy_broker.store import MessageStore

__all__ = ["PutCounts"]


class PutCounts:
    """Made when the store is open: what is in it then does not count."""

    def __init__(self, store: MessageStore) -> None:
        self._queues = store.queues.queues
        self._begin = {key: queue.next_offset for key, queue in self._queues.items()}

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Topic and number of messages."""
        counts: dict[str, int] = {}
        for key, queue in self._queues.items():
            new = queue.next_offset - self._begin.get(key, 0)
            counts[key[0]] = counts.get(key[0], 0) + max(new, 0)
        return iter(counts.items())

    @property
    def total(self) -> int:
        """Of all topics."""
        return sum(count for _, count in self)
