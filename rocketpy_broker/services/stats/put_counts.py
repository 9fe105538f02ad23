"""How many messages and bytes each topic got since the store was opened, as its consume queues tell."""

from __future__ import annotations

from collections.abc import Iterator

from rocketpy_broker.store import MessageStore


class PutCounts:
    """Made when the store is open: what is in it then does not count."""

    def __init__(self, store: MessageStore) -> None:
        self._queues = store.queues.queues
        self._begin = {key: (queue.next_offset, queue.put_bytes) for key, queue in self._queues.items()}

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Topic, number of messages, and their bytes in the commit log."""
        counts: dict[str, tuple[int, int]] = {}
        for key, queue in self._queues.items():
            begin, begin_bytes = self._begin.get(key, (0, 0))
            count, size = counts.get(key[0], (0, 0))
            new = max(queue.next_offset - begin, 0)
            counts[key[0]] = count + new, size + max(queue.put_bytes - begin_bytes, 0)
        return iter([(topic, count, size) for topic, (count, size) in counts.items()])

    @property
    def total(self) -> int:
        """Of all topics."""
        return sum(count for _, count, _ in self)
