"""Consume queues that nobody needs any more. Source: DefaultMessageStore of RocketMQ 4.6.0."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.consume_queue import ConsumeQueue
from rocketpy_broker.store.delay import SCHEDULE_TOPIC

__all__ = ["drop_expired_queues", "drop_unused_queues"]


def drop_unused_queues(store: MessageStore, topics: Collection[str]) -> int:
    """Delete the queues of topics that are not among `topics`; returns how many. Raises StoreError.

    The commit log is left to its time; a topic that comes back goes on with its numbers until a restart.
    """
    return _drop(store, lambda queue: queue.topic not in topics)


def drop_expired_queues(store: MessageStore) -> int:
    """Delete the queues whose messages are all gone from the commit log. Raises StoreError."""
    begin = store.min_physical_offset
    return _drop(store, lambda queue: 0 <= queue.max_physical_offset <= begin)


def _drop(store: MessageStore, is_unwanted: Callable[[ConsumeQueue], bool]) -> int:
    store.dispatch()
    queues = store.queues.queues
    gone = [key for key, queue in queues.items() if queue.topic != SCHEDULE_TOPIC and is_unwanted(queue)]
    for key in gone:
        store.drop_queue(*key)
    return len(gone)
