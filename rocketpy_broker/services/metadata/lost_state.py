"""What a broker does at its start when a file of its config directory is missing beside stored messages.

Topics and groups are made again from what the store and the other files know. Nothing else knows consumer
offsets and delay offsets: without them groups skip messages or get them again, so the start is refused. Each
start writes both files, so that one that is missing was removed. RocketMQ's brokers write them after 10 s.
Source: none; RocketMQ 4.6.0 starts without topics and offsets, and says nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rocketpy.errors import GroupInvalid, StoreDamaged, TopicInvalid
from rocketpy.protocol.bodies import DLQ_TOPIC_PREFIX, PERM_READ, PERM_WRITE, RETRY_TOPIC_PREFIX, TopicConfig
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy_broker.services.delay.scheduler import DelayService
from rocketpy_broker.services.delay.topic_rewrite import HALF_TOPIC, OP_TOPIC
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets, check_group_name
from rocketpy_broker.services.metadata.topics import TopicTable, check_topic_name
from rocketpy_broker.store import MessageStore

log = logging.getLogger("rocketpy.broker")

_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
_WITHOUT_CONFIG: Final = frozenset({SCHEDULE_TOPIC, OP_TOPIC})
"""Topics that have queues, and are in no table."""
_QUEUES_MIN: Final = 4
"""Queues that a producer asks for when a topic is made for it, unless told otherwise."""
_NAMED_MAX: Final = 20


def restore_topics(store: MessageStore, topics: TopicTable) -> list[str]:
    """Make the topics that have messages and are not in the table; returns their names.

    Their permissions are unknown, so each gets those of a topic that is made by sending.
    """
    counts: dict[str, int] = {}
    for topic, queue_id in _stored(store):
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    made = [
        _topic(name, count)
        for name, count in sorted(counts.items())
        if topics.get(name) is None and name not in _WITHOUT_CONFIG and _is_topic_name(name)
    ]
    topics.add(made)
    return [topic.topic_name for topic in made]


def _stored(store: MessageStore) -> list[tuple[str, int]]:
    """(topic, queue id) of the queues that have, or had, messages."""
    return [key for key, queue in store.queues.queues.items() if queue.next_offset]


def _topic(name: str, queue_count: int) -> TopicConfig:
    is_own = name.startswith((DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX)) or name == HALF_TOPIC
    queues = queue_count if is_own else max(queue_count, _QUEUES_MIN)
    perm = PERM_WRITE if name.startswith(DLQ_TOPIC_PREFIX) else PERM_READ | PERM_WRITE
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def _is_topic_name(name: str) -> bool:
    try:
        check_topic_name(name)
    except TopicInvalid:
        return False
    return True


class LostState:
    """The tables of one broker, all loaded, and its store, open and dispatched.

    is_certain: whether the files were there (`RecoveryReport.is_ours`), and no other broker of its name has
    them: False on a slave and in a DLedger group.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsets,
        delay: DelayService,
        *,
        is_certain: bool,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay = delay
        self._is_certain = is_certain

    def restore(self) -> None:
        """Make again what can be made. Raises StoreDamaged for a missing file that cannot be."""
        stored = {topic for topic, _ in _stored(self._store)}
        if self._delay.is_missing:
            if SCHEDULE_TOPIC in stored:
                self._give_up(self._delay.path, "delayed messages are delivered again")
            self._delay.create()
        if self._offsets.is_missing:
            if stored - self._topics.system - {SCHEDULE_TOPIC}:
                self._give_up(self._offsets.path, "consumer groups skip messages or get them again")
            self._offsets.create()
        if self._topics.is_missing:
            made = restore_topics(self._store, self._topics)
            self._tell(
                "topics", self._topics.path, made, "with default permissions; empty ones are not known"
            )
        if self._groups.is_missing:
            made = self._groups.add(self._group_names(stored))
            self._tell("consumer groups", self._groups.path, made, "with default settings")

    def _group_names(self, stored: Iterable[str]) -> list[str]:
        retried = {
            name.removeprefix(RETRY_TOPIC_PREFIX) for name in stored if name.startswith(RETRY_TOPIC_PREFIX)
        }
        names = retried | set(self._offsets.groups)
        return sorted(name for name in names if _is_group_name(name))

    def _give_up(self, path: Path, consequence: str) -> None:
        if not self._is_certain:
            log.warning("%s is missing; unless a master has it, %s", path, consequence)
            return
        raise StoreDamaged(
            f"{path} is missing, but the store holds messages of it: without it {consequence}. Restore it "
            'from a copy; to start without it, create it with the content {"offsetTable":{}}'
        )

    def _tell(self, what: str, path: Path, made: list[str], how: str) -> None:
        if made:
            more = ", ..." if len(made) > _NAMED_MAX else ""
            log.warning(
                "%s is missing, but the store holds messages: made %d %s again, %s (%s%s). Compare them with "
                "a copy of the file, or restore it",
                path, len(made), what, how, ", ".join(made[:_NAMED_MAX]), more,
            )  # fmt: skip


def _is_group_name(name: str) -> bool:
    try:
        check_group_name(name)
    except GroupInvalid:
        return False
    return not name.startswith(_SYSTEM_GROUP_PREFIX)
