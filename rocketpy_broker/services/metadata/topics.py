"""The topics of one broker: topics.json, system topics, and topics that sends create.

Source: TopicConfigManager of RocketMQ 4.6.0. Differs: the broker checks names, too, not only clients
(CVE-2019-17572). Clients cannot write several system topics (#1976). Topics that are created in a burst are
saved together. The number of topics is limited.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from rocketpy.errors import RocketError, TopicInvalid
from rocketpy.protocol.bodies import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.services.delay.topic_rewrite import HALF_TOPIC, OP_TOPIC, REVIVE_TOPIC_PREFIX
from rocketpy_broker.services.metadata.persistent_table import PersistentTable, TableChange
from rocketpy_broker.services.timers.messages import TIMER_TOPIC
from rocketpy_broker.store.files.batch_saver import ChangePending, PendingChange
from rocketpy_broker.store.files.disk import Clock, Disk, system_clock

log = logging.getLogger("rocketpy.broker.topics")


AUTO_CREATE_TOPIC: Final = "TBW102"
"""The topic that new topics are modelled on."""

NOT_WRITABLE: Final = frozenset({
    AUTO_CREATE_TOPIC, "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC", TIMER_TOPIC,
})  # fmt: skip
"""Topics that only the broker writes."""

_WITHOUT_CONFIG: Final = frozenset({SCHEDULE_TOPIC, OP_TOPIC, TIMER_TOPIC})
"""Topics that have queues, and are never in the table of topics."""
_QUEUES_MIN: Final = 4
"""Default number of queues that a producer requests for a new topic."""
_NAME: Final = re.compile(rf"({RETRY_TOPIC_PREFIX}[%|a-zA-Z0-9_-]+\+)?[%|a-zA-Z0-9_-]+")
"""With a plus sign, it is the topic of the retries of a group for one topic (POP, version 2)."""
_NAME_CHARACTERS_MAX: Final = 127
_DELETED_MAX: Final = 10_000
"""Maximum number of deleted topics that are noted; the oldest are dropped."""
_SYSTEM_TOPICS_FACTOR: Final = 2
"""The broker itself creates this many times `TopicsConfig.topics_max` topics, for retries and dead letters.
So a client that fills the table cannot stop the retries of others."""


def check_topic_name(name: str) -> None:
    """Raise TopicInvalid for a name that no RocketMQ client would send."""
    if not _NAME.fullmatch(name):
        raise TopicInvalid(f"topic {name[:200]!r}: only letters, digits and _ - % | are allowed")
    if len(name) > _NAME_CHARACTERS_MAX:
        raise TopicInvalid(
            f"topic {name[:20]!r}...: {len(name)} characters, the limit is {_NAME_CHARACTERS_MAX}"
        )


def perm_text(perm: int) -> str:
    """Return a permission as RocketMQ prints it: ``RWX``, with a minus for each missing letter."""
    return "".join(
        letter if perm & bit else "-"
        for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    )


_PendingTopic = PendingChange[TableChange[TopicConfig]]


@dataclass(frozen=True, slots=True)
class _OrderChange(TableChange[TopicConfig]):
    """Sets the flag `order` of all topics."""

    ordered: Mapping[str, str] = field(default_factory=dict)
    """The ordered topics, as name servers list them."""

    def of(self, table: Mapping[str, TopicConfig]) -> tuple[Mapping[str, TopicConfig], Collection[str]]:
        return _reordered(table, self.ordered), ()


def _reordered(table: Mapping[str, TopicConfig], ordered: Mapping[str, str]) -> dict[str, TopicConfig]:
    return {
        name: msgspec.structs.replace(topic, order=name in ordered)
        for name, topic in table.items()
        if topic.order != (name in ordered)
    }


class TopicTable(PersistentTable[TopicConfig, TopicConfigSerializeWrapper]):
    """The topics by name."""

    def __init__(
        self,
        config: BrokerConfig,
        path: Path,
        tasks: Tasks,
        *,
        clock: Clock = system_clock,
        disk: Disk | None = None,
    ) -> None:
        super().__init__(
            path,
            tasks,
            {topic.topic_name: topic for topic in _system_topics(config)},
            wrapper=TopicConfigSerializeWrapper,
            field="topic_config_table",
            clock=clock,
            disk=disk,
        )
        self._config = config
        self._creating: dict[str, _PendingTopic] = {}
        """Topics that are being created, by name."""
        self.system = frozenset(self._table)
        """Names of the topics that every broker has."""
        self.plain_queues = _plain_queues(self._table)
        """name -> number of write queues, of the topics whose sends need no further checks."""
        self.on_change: Callable[[Mapping[str, TopicConfig]], None] = _ignore_change
        """Called with new and changed topics when they are in use, and with an empty mapping after topics
        were removed.
        """
        self.deleted: dict[str, int] = {}
        """Topic -> end of the commit log when it was deleted last; see `TopicConfigSerializeWrapper`."""

    def snapshot(self, names: Iterable[str] | None = None) -> TopicConfigSerializeWrapper:
        """See `PersistentTable`. A part, which is for name servers, does not have the deleted topics."""
        wrapper = super().snapshot(names)
        return wrapper if names is None else msgspec.structs.replace(wrapper, deleted_topics={})

    def _wrap(self, table: dict[str, TopicConfig], version: DataVersion) -> TopicConfigSerializeWrapper:
        return msgspec.structs.replace(super()._wrap(table, version), deleted_topics=dict(self.deleted))

    def _loaded(self, wrapper: TopicConfigSerializeWrapper) -> None:
        self.deleted = wrapper.deleted_topics

    async def update(self, topic: TopicConfig) -> None:
        """Create or change a topic, and save it.

        Raises TopicInvalid, StoreError; then nothing has changed.
        """
        if self._is_known(topic.topic_name):
            self.check(topic)
            await self.saver.save(TableChange({topic.topic_name: topic}))
        else:
            await self.saver.wait(self.create(topic, self._config.topics.topics_max))

    async def create_missing(self, topic: TopicConfig) -> bool:
        """Create a topic, and save it; return False if it exists, possibly since a moment ago.

        Raises TopicInvalid, StoreError; then nothing has changed.
        """
        while (saving := self._creating.get(topic.topic_name)) is not None:
            await self.saver.wait(saving)
        if topic.topic_name in self._table:
            return False
        await self.saver.wait(self.create(topic, self._config.topics.topics_max))
        return True

    def _is_known(self, name: str) -> bool:
        """Return whether a topic exists or is being created."""
        return name in self._table or name in self._creating

    def add(self, topics: Iterable[TopicConfig]) -> None:
        """Use topics with checked names immediately, and save them soon."""
        changed = {topic.topic_name: topic for topic in topics}
        if changed:
            self._put_unsaved(changed)
            self.on_change(changed)
            self.saver.submit(TableChange(changed))  # again, in case a master's table is saved in between

    def existing_queue(self, name: str, queue_id: int) -> int:
        """Return the queue for a message that was meant for `queue_id` at an earlier time.

        It is another one if the topic has lost that queue since, as consumers would not read it.
        """
        topic = self._table.get(name)
        count = 0 if topic is None else usable_queues(topic)
        return queue_id % count if queue_id >= count > 0 else queue_id

    def queue_to_deliver(self, name: str, queue_id: int, offset: int) -> int:
        """Return the queue for a delayed message, or one of a transaction; see `existing_queue`.

        If the table has lost its topic, the topic is created: consumers would not find the message. A topic
        that was deleted later than the message was stored stays deleted. offset: of the message in the log.
        """
        if name not in self._table and offset >= self.deleted.get(name, 0) and may_restore(name):
            topic = lost_topic(name, queue_id + 1)
            log.warning(
                "topic %s is unknown, but a message that was stored for it is delivered now: created it "
                "with %d queues and default permissions",
                name,
                topic.read_queue_nums,
            )
            self.add([topic])
        return self.existing_queue(name, queue_id)

    def create_for_send(
        self, name: str, default_topic: str, queue_nums: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Create the topic of a send, modelled on `default_topic`; None if that is not allowed.

        queue_nums: as the client requests; limited by the model's number and by maxTopicQueues.
        Raises ChangePending until the topic is saved, TopicInvalid.
        """
        existing = self.get(name)
        if existing is not None:
            return existing
        model = self.get(default_topic)
        if model is None or not model.perm & PERM_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self._config.topics.auto_create:
            return None  # the table may have this topic from an earlier configuration
        queues = min(max(min(queue_nums, model.write_queue_nums), 0), self._config.topics.queues_max)
        topic = TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=model.perm & ~PERM_INHERIT,
            topic_filter_type=model.topic_filter_type,
            topic_sys_flag=sys_flag,
        )
        raise ChangePending(self.create(topic, self._config.topics.topics_max))

    def create(self, topic: TopicConfig, topics_max: int | None = None) -> _PendingTopic:
        """Start to create a missing topic, or return the save that is under way.

        topics_max: None if the broker itself needs the topic. Raises TopicInvalid.
        """
        name = topic.topic_name
        saving = self._creating.get(name)
        if saving is None:
            self.check(topic)
            self._check_room(name, topics_max or _SYSTEM_TOPICS_FACTOR * self._config.topics.topics_max)
            saving = self._creating[name] = self.saver.submit(
                TableChange({name: topic}), partial(self._created, topic)
            )
        return saving

    def _created(self, topic: TopicConfig, error: RocketError | None) -> None:
        self._creating.pop(topic.topic_name, None)
        if error is None:
            log.info("created topic %s with %d queues", topic.topic_name, topic.write_queue_nums)

    def check(self, topic: TopicConfig) -> None:
        """Raise TopicInvalid for a name or a number of queues that `update` would reject."""
        check_topic_name(topic.topic_name)
        queues_max = self._config.topics.queues_max
        existing = self._table.get(topic.topic_name)
        for count, current in (
            (topic.read_queue_nums, existing and existing.read_queue_nums),
            (topic.write_queue_nums, existing and existing.write_queue_nums),
        ):
            if not 0 <= count <= max(queues_max, current or 0):
                raise TopicInvalid(
                    f"topic {topic.topic_name}: {count} queues; 0 to {queues_max} are allowed "
                    "(maxTopicQueues)"
                )

    def _check_room(self, name: str, topics_max: int) -> None:
        count = len(self._table) + len(self._creating) - len(self.system)
        if count >= topics_max:
            raise TopicInvalid(
                f"topic {name} is not created: this broker has {count} topics besides the system topics, and "
                f"{topics_max} are allowed (maxTopics is {self._config.topics.topics_max}). Delete topics, "
                "or raise the limit"
            )

    async def delete(self, name: str) -> bool:
        """Remove a topic, and save that; False for a missing or a system topic.

        Raises StoreError; then nothing has changed.
        """
        if not self._is_known(name) or name in self.system:
            return False
        await self.saver.save(TableChange(removed=(name,)))
        log.info("deleted topic %s", name)
        return True

    async def note_deletion(self, name: str, log_end: int, *, log_begin: int) -> None:
        """Save that records of a topic before `log_end` are deleted, for slaves and later recoveries.

        log_begin: start of the log, before which entries are not needed. Raises StoreError.
        """
        kept = sorted(
            (end, topic) for topic, end in self.deleted.items() if end > log_begin and topic != name
        )
        self.deleted = {topic: end for end, topic in kept[-_DELETED_MAX:]} | {name: log_end}
        self.version = self.version.next(self._clock())
        await self.saver.save(TableChange())

    def limit_deletions(self, log_end: int) -> None:
        """Adapt the noted deletions to a log that ends at `log_end`, on a broker that appends to it.

        The log may have been truncated or removed since, and later records are of new topics.
        """
        limited = {topic: min(end, log_end) for topic, end in self.deleted.items()}
        if limited != self.deleted:
            self.deleted = limited
            self._put_unsaved({})

    async def all_changed(self) -> None:
        """Register all topics again at the name servers. Raises StoreError."""
        self.version = self.version.next(self._clock())
        await self.saver.save(TableChange())
        self.on_change({})

    def apply_order_config(self, ordered: Mapping[str, str]) -> None:
        """Start to apply a name server's ORDER_TOPIC_CONFIG, which lists the ordered topics."""
        if _reordered(self._table, ordered):
            self.saver.submit(_OrderChange(ordered=ordered))

    async def adopt(self, wrapper: TopicConfigSerializeWrapper) -> None:
        """Take over a master's topics, if its version differs. Raises TopicInvalid, StoreError."""
        if wrapper.data_version != self.version:
            for name in wrapper.topic_config_table.keys() - self._table.keys():
                check_topic_name(name)
            self.deleted = wrapper.deleted_topics
        await self._adopt(wrapper.topic_config_table, wrapper.data_version)

    def _put(self, entries: Mapping[str, TopicConfig]) -> None:
        super()._put(entries)
        for name in entries:
            self.plain_queues.pop(name, None)
        self.plain_queues.update(_plain_queues(entries))

    def _used(self, changed: Mapping[str, TopicConfig], removed: Collection[str]) -> None:
        for name in removed - changed.keys():
            self.plain_queues.pop(name, None)
        if changed:
            self.on_change(changed)
        if removed:
            self.on_change({})


def ensure_topic(topics: TopicTable, name: str, queues: int, perm: int, sys_flag: int = 0) -> TopicConfig:
    """Return a topic that the broker itself needs. Raises TopicInvalid; ChangePending while it is created.

    Source: TopicConfigManager.createTopicInSendMessageBackMethod of RocketMQ 4.6.0.
    """
    topic = topics.get(name)
    if topic is None:
        raise ChangePending(topics.create(own_topic(name, queues, perm, sys_flag)))
    return topic


def queue_count(topic: TopicConfig) -> int:
    """Return how many queues of a topic are written or read."""
    return max(topic.read_queue_nums, topic.write_queue_nums)


def usable_queues(topic: TopicConfig) -> int:
    """Return how many queues may get messages that the broker itself puts into a topic.

    These are the queues for writing and reading. Without any, they are those for reading.
    """
    return min(topic.read_queue_nums, topic.write_queue_nums) or topic.read_queue_nums


def own_topic(name: str, queues: int, perm: int, sys_flag: int = 0) -> TopicConfig:
    """Return the configuration of a topic with as many read queues as write queues."""
    return TopicConfig(
        topic_name=name,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=perm,
        topic_sys_flag=sys_flag,
    )


def lost_topic(name: str, queue_count: int) -> TopicConfig:
    """Return a topic of which only messages are left. queue_count: of the queues that have messages."""
    is_own = name.startswith((DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX)) or name == HALF_TOPIC
    queues = queue_count if is_own else max(queue_count, _QUEUES_MIN)
    perm = PERM_WRITE if name.startswith(DLQ_TOPIC_PREFIX) else PERM_READ | PERM_WRITE
    return own_topic(name, queues, perm)


def may_restore(name: str) -> bool:
    """Return whether the table may have lost a topic of this name."""
    with contextlib.suppress(TopicInvalid):
        check_topic_name(name)
        return name not in _WITHOUT_CONFIG and not name.startswith(REVIVE_TOPIC_PREFIX)
    return False


def _ignore_change(changed: Mapping[str, TopicConfig]) -> None:
    pass


def _plain_queues(topics: Mapping[str, TopicConfig]) -> dict[str, int]:
    return {
        name: topic.write_queue_nums
        for name, topic in topics.items()
        if name not in NOT_WRITABLE
        and topic.topic_filter_type == "SINGLE_TAG"
        and not topic.order
        and not name.startswith(RETRY_TOPIC_PREFIX)  # their messages may become dead letters
    }


def _system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Return the topics of every broker (QUIRKS 17).

    RMQ_SYS_TRANS_HALF_TOPIC is not among them: the first transaction creates it.
    """
    both = PERM_READ | PERM_WRITE
    topics = [
        own_topic("SELF_TEST_TOPIC", 1, both),
        own_topic("BenchmarkTest", 1024, both),
        own_topic(config.cluster_name, 16, PERM_INHERIT | (both if config.topics.cluster_topic else 0)),
        own_topic(config.name, 1, PERM_INHERIT | (both if config.topics.broker_topic else 0)),
        own_topic("OFFSET_MOVED_EVENT", 1, both),
        own_topic(f"{config.cluster_name}_REPLY_TOPIC", 1, both),
    ]
    if config.topics.auto_create:
        queues = config.topics.default_queue_nums
        topics.append(own_topic(AUTO_CREATE_TOPIC, queues, PERM_INHERIT | both))
    if config.topics.trace_topic:
        topics.append(own_topic(config.topics.trace_topic_name, 1, both))
    return topics
