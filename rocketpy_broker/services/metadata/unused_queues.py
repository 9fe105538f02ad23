"""Consume queues that nobody needs any more. Source: DefaultMessageStore of RocketMQ 4.6.0."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy_broker.services.delay.topic_rewrite import HALF_TOPIC, OP_TOPIC
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue

_KEPT: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC})
"""Queues without a topic that the broker works with. 4.6.0 keeps only the first, and asks about ended
transactions again once the last is gone."""


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
    gone = [key for key, queue in queues.items() if queue.topic not in _KEPT and is_unwanted(queue)]
    for key in gone:
        store.drop_queue(*key)
    return len(gone)
