"""Handles files that are missing in the config directory at the start, though the store has messages.

Topics and groups are restored from the store and the other files. Consumer offsets and delay offsets cannot
be restored: without them groups skip messages or receive them again. So a master does not start without them.
Slaves, DLedger peers and brokers in a directory that RocketMQ wrote only log a warning. Each start of
rocketpy's broker writes both files, so a missing one was removed. RocketMQ's brokers write them after 10 s.
Source: none; RocketMQ 4.6.0 starts without topics and offsets, and logs nothing.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Final

from rocketpy.errors import GroupInvalid, StoreDamaged, TopicInvalid
from rocketpy.protocol.bodies import (
    DLQ_TOPIC_PREFIX,
    PERM_READ,
    PERM_WRITE,
    RETRY_TOPIC_PREFIX,
    SYSTEM_GROUP_PREFIX,
    TopicConfig,
)
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy_broker.services.delay.scheduler import DelayService
from rocketpy_broker.services.delay.topic_rewrite import HALF_TOPIC, OP_TOPIC
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets, check_group_name
from rocketpy_broker.services.metadata.topics import TopicTable, check_topic_name, own_topic
from rocketpy_broker.store import MessageStore

log = logging.getLogger("rocketpy.broker")

_WITHOUT_CONFIG: Final = frozenset({SCHEDULE_TOPIC, OP_TOPIC})
"""Topics that have queues, and are never in the table of topics."""
_QUEUES_MIN: Final = 4
"""Default number of queues that a producer requests for a new topic."""
_NAMED_MAX: Final = 20


def restore_topics(store: MessageStore, topics: TopicTable) -> list[str]:
    """Create the topics that have messages and are not in the table; return their names.

    Their permissions are unknown, so they get the permissions of topics that sends create.
    """
    counts: dict[str, int] = {}
    for topic, queue_id in _stored(store):
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    missing = [
        _topic(name, count)
        for name, count in sorted(counts.items())
        if topics.get(name) is None and name not in _WITHOUT_CONFIG and _is_topic_name(name)
    ]
    topics.add(missing)
    return [topic.topic_name for topic in missing]


def _stored(store: MessageStore) -> list[tuple[str, int]]:
    """Return (topic, queue id) of the queues that have, or had, messages."""
    return [key for key, queue in store.queues.queues.items() if queue.next_offset]


def _topic(name: str, queue_count: int) -> TopicConfig:
    is_own = name.startswith((DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX)) or name == HALF_TOPIC
    queues = queue_count if is_own else max(queue_count, _QUEUES_MIN)
    perm = PERM_WRITE if name.startswith(DLQ_TOPIC_PREFIX) else PERM_READ | PERM_WRITE
    return own_topic(name, queues, perm)


def restore_missing_tables(
    store: MessageStore,
    topics: TopicTable,
    groups: SubscriptionGroupTable,
    offsets: ConsumerOffsets,
    delay: DelayService,
    *,
    is_certain: bool,
) -> None:
    """Restore the loaded tables whose files are missing, if possible.

    Call it after the store has dispatched everything.

    is_certain: whether a missing file existed before (`RecoveryReport.from_rocketpy`), and no other broker
    has its content. It is False on a slave and in a DLedger group. Raises StoreDamaged for a file that cannot
    be restored, if `is_certain`.
    """
    stored = {topic for topic, _ in _stored(store)}
    if delay.is_missing:
        if SCHEDULE_TOPIC in stored:
            _report_missing(delay.path, "delayed messages are delivered again", is_certain)
        delay.create()
    if offsets.is_missing:
        if stored - topics.system - {SCHEDULE_TOPIC}:
            _report_missing(offsets.path, "consumer groups skip messages or get them again", is_certain)
        offsets.create()
    if topics.is_missing:
        restored = restore_topics(store, topics)
        _warn("topics", topics.path, restored, "with default permissions; empty topics are not known")
    if groups.is_missing:
        retried = {
            name.removeprefix(RETRY_TOPIC_PREFIX) for name in stored if name.startswith(RETRY_TOPIC_PREFIX)
        }
        restored = groups.add(sorted(filter(_is_group_name, retried | set(offsets.groups))))
        _warn("consumer groups", groups.path, restored, "with default settings")


def _report_missing(path: Path, consequence: str, is_certain: bool) -> None:
    if not is_certain:
        log.warning("%s is missing; unless a master has it, %s", path, consequence)
        return
    raise StoreDamaged(
        f"{path} is missing, but the store holds messages whose progress it records: without it "
        f"{consequence}. Restore it from a copy; to start without it, create it with the content "
        '{"offsetTable":{}}'
    )


def _warn(what: str, path: Path, names: list[str], how: str) -> None:
    if names:
        more = ", ..." if len(names) > _NAMED_MAX else ""
        log.warning(
            "%s is missing, but the store holds messages: restored %d %s, %s (%s%s). Compare them with "
            "a copy of the file, or restore it",
            path, len(names), what, how, ", ".join(names[:_NAMED_MAX]), more,
        )  # fmt: skip


def _is_topic_name(name: str) -> bool:
    with contextlib.suppress(TopicInvalid):
        check_topic_name(name)
        return True
    return False


def _is_group_name(name: str) -> bool:
    with contextlib.suppress(GroupInvalid):
        check_group_name(name)
        return not name.startswith(SYSTEM_GROUP_PREFIX)
    return False
