"""Handles files of the config directory that are missing, or older than the store, at the start.

A file is older if its `.bak` is used, after a copy of the store, and when a slave becomes the master.

Topics and groups are restored from the store and the other files. Consumer offsets and delay offsets cannot
be restored: without them groups skip messages or receive them again. So a master does not start without them.
Slaves, DLedger peers and brokers in a directory that RocketMQ wrote only log a warning. Each start of
rocketpy's broker writes both files, so a missing one was removed. RocketMQ's brokers write them after 10 s.
Source: none; RocketMQ 4.6.0 starts without topics and offsets, and logs nothing.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rocketpy.errors import GroupInvalid, StoreDamaged
from rocketpy.protocol.bodies import (
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
)
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX
from rocketpy_broker.services.delay.scheduler import DelayService
from rocketpy_broker.services.delay.topic_rewrite import REVIVE_TOPIC_PREFIX
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets, check_group_name
from rocketpy_broker.services.metadata.topics import TopicTable, lost_topic, may_restore
from rocketpy_broker.services.timers.messages import TIMER_TOPIC
from rocketpy_broker.store import MessageStore

log = logging.getLogger("rocketpy.broker")

_NAMED_MAX: Final = 20


class RestoredTopics(NamedTuple):
    """Names of the topics that `restore_topics` has created, and of those that it has given more queues."""

    created: list[str]
    enlarged: list[str]


def group_of_retries(retry_topic: str, topics: AbstractSet[str]) -> str:
    """Return the group whose retries a topic has: that of pops has the name of one of the `topics`, too."""
    name = retry_topic.removeprefix(RETRY_TOPIC_PREFIX)
    for separator in re.finditer("[+_]", name):
        if separator.start() and name[separator.end() :] in topics:
            return name[: separator.start()]
    return name


def restore_topics(store: MessageStore, topics: TopicTable, *, newer_only: bool = False) -> RestoredTopics:
    """Create the topics that have messages and are not in the table; add queues that it lacks.

    A topic gets the queues of messages that were stored after the table was changed last: the table is older
    than they are, while an operator's change is newer. Topics are created with the permissions of topics that
    sends create, as theirs are unknown. newer_only: create topics by the same rule, as deleted ones may have
    left queues.
    """
    changed_ms = topics.version.timestamp
    counts: dict[str, int] = {}

    def is_newer(topic: str, queue_id: int) -> bool:
        newest = store.max_offset_in_queue(topic, queue_id) - 1
        return store.store_timestamp(topic, queue_id, newest) > changed_ms

    for topic, queue_id in _stored(store):
        config = topics.get(topic)
        queues = counts.get(topic, 0 if config is None else config.read_queue_nums)
        is_needed = queue_id >= queues and may_restore(topic)
        if is_needed and ((config is None and not newer_only) or is_newer(topic, queue_id)):
            counts[topic] = queue_id + 1
    created, enlarged = [], []
    for name, count in sorted(counts.items()):
        config = topics.get(name)
        if config is None:
            created.append(lost_topic(name, count))
        else:
            queues = max(count, config.write_queue_nums)
            enlarged.append(msgspec.structs.replace(config, read_queue_nums=count, write_queue_nums=queues))
    topics.add([*created, *enlarged])
    return RestoredTopics(*([topic.topic_name for topic in part] for part in (created, enlarged)))


def _stored(store: MessageStore) -> list[tuple[str, int]]:
    """Return (topic, queue id) of the queues that have, or had, messages."""
    return [key for key, queue in store.queues.queues.items() if queue.next_offset]


def restore_tables(
    store: MessageStore,
    topics: TopicTable,
    groups: SubscriptionGroupTable,
    offsets: ConsumerOffsets,
    delay: DelayService,
    *,
    is_certain: bool,
    is_copied: bool,
) -> None:
    """Reconcile the loaded tables with the store, if their files are missing or older than its messages.

    Call it after the store has dispatched everything.

    is_certain: whether a missing file existed before (`RecoveryReport.from_rocketpy`). is_copied: whether
    another broker has the tables, on a slave and in a DLedger group; then only missing files are restored.
    Raises StoreDamaged for a file that cannot be restored, if `is_certain` and not `is_copied`.
    """
    stored = {topic for topic, _ in _stored(store)}
    is_certain = is_certain and not is_copied
    if delay.is_missing:
        if SCHEDULE_TOPIC in stored:
            _report_missing(delay.path, "delayed messages may be delivered again", is_certain)
        delay.create()
    elif not is_copied:
        delay.skip_delivered()
    if offsets.is_missing:
        others = stored - topics.system - {SCHEDULE_TOPIC, TIMER_TOPIC}
        if not all(topic.startswith(REVIVE_TOPIC_PREFIX) for topic in others):
            _report_missing(offsets.path, "consumer groups skip messages or get them again", is_certain)
        offsets.create()
    elif offsets.is_older and not is_copied:
        _check_offsets(store, offsets, groups)
    if topics.is_missing or not is_copied:
        _restore_topics(store, topics)
    if groups.is_missing or (groups.is_older and not is_copied):
        _restore_groups(groups, offsets, stored, set(topics.names))


def _restore_topics(store: MessageStore, topics: TopicTable) -> None:
    is_lost = topics.is_missing or topics.is_older
    restored = restore_topics(store, topics, newer_only=not is_lost)
    lacks = "is missing" if topics.is_missing else "is older than messages of the store"
    how = "with default permissions; empty topics are not known"
    _warn("topics", topics.path, restored.created, how, lacks)
    _warn("topics", topics.path, restored.enlarged, "with the queues that have messages", lacks)
    if topics.is_older:
        log.warning(
            "%s: other changes of topics in its last save are undone: permissions, settings, deletions, and "
            "topics without messages",
            topics.path,
        )


def _restore_groups(
    groups: SubscriptionGroupTable,
    offsets: ConsumerOffsets,
    stored: Collection[str],
    topics: AbstractSet[str],
) -> None:
    retried = {group_of_retries(name, topics) for name in stored if name.startswith(RETRY_TOPIC_PREFIX)}
    restored = groups.add(sorted(filter(_is_group_name, retried | set(offsets.groups))))
    lacks = "is missing" if groups.is_missing else "is an older copy"
    _warn("consumer groups", groups.path, restored, "with default settings", lacks)
    if groups.is_older:
        log.warning(
            "%s: other changes of groups in its last save are undone: settings and deletions", groups.path
        )


def _check_offsets(store: MessageStore, offsets: ConsumerOffsets, groups: SubscriptionGroupTable) -> None:
    """Name what an older consumerOffset.json cannot tell, and correct offsets beyond the end of their queue.

    Such a queue was created again since: its messages would be skipped.
    """
    for key, queues in offsets.snapshot().offset_table.items():
        topic, _, group = key.rpartition("@")
        for queue_id, offset in list(queues.items()):
            end = store.appended_in_queue(topic, queue_id)
            if offset > end > 0:
                first = store.min_offset_in_queue(topic, queue_id)
                offsets.commit(group, topic, queue_id, first, is_own=True)
                log.warning(
                    "group %s continues queue %s/%d at %d: its older offset, %d, is beyond the end, %d",
                    group, topic, queue_id, first, offset, end,
                )  # fmt: skip
    known = offsets.groups
    log.warning(
        "%s: %d groups get the messages again that they consumed since its last but one save", offsets.path,
        len(known),
    )  # fmt: skip
    without = sorted(set(groups.names) - set(known) - set(SYSTEM_GROUPS))
    if without:
        log.warning(
            "%s: it has no offsets of these groups, which begin as new groups: %s",
            offsets.path, _named(without),
        )  # fmt: skip
    offsets.create()


def _report_missing(path: Path, consequence: str, is_certain: bool) -> None:
    if not is_certain:
        log.warning("%s is missing; unless a master has it, %s", path, consequence)
        return
    raise StoreDamaged(
        f"{path} is missing, but the store holds messages whose progress it records: without it "
        f"{consequence}. Restore it from a copy; to start without it, create it with the content "
        '{"offsetTable":{}}'
    )


def _warn(what: str, path: Path, names: list[str], how: str, lacks: str) -> None:
    if names:
        log.warning(
            "%s %s, but the store holds messages: restored %d %s, %s (%s). Compare them with a copy of the "
            "file, or restore it",
            path, lacks, len(names), what, how, _named(names),
        )  # fmt: skip


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED_MAX]) + (", ..." if len(names) > _NAMED_MAX else "")


def _is_group_name(name: str) -> bool:
    with contextlib.suppress(GroupInvalid):
        check_group_name(name)
        return not name.startswith(SYSTEM_GROUP_PREFIX)
    return False
