"""The topics of one broker: topics.json, the topics every broker has, and those made by sending.

Source: TopicConfigManager of RocketMQ 4.6.0. Differs: names are checked here too, not only in
clients (CVE-2019-17572); several system topics cannot be written by clients (#1976).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from rocketpy.errors import RemoteProtocolError, TopicInvalid
from rocketpy.protocol.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rocketpy_broker.config import BrokerConfig
from rocketpy_broker.store.clock import Clock, system_clock
from rocketpy_broker.store.disk import Disk, OsDisk
from rocketpy_broker.store.state_file import load_state, save_state

__all__ = [
    "PERM_INHERIT",
    "PERM_READ",
    "PERM_WRITE",
    "TopicTable",
    "check_topic_name",
    "ensure_topic",
    "perm_text",
]

log = logging.getLogger("rocketpy.broker.topics")

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1

AUTO_CREATE_TOPIC: Final = "TBW102"
"""The model that topics are made from; its name is all there is to it."""

NOT_WRITABLE: Final = frozenset({
    AUTO_CREATE_TOPIC, "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC",
})  # fmt: skip
"""Topics that only a broker itself writes."""

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_NAME_CHARACTERS_MAX: Final = 127
_QUEUES_MAX: Final = 65_536
"""Ours: a queue is a directory."""


def check_topic_name(name: str) -> None:
    """Raise TopicInvalid for a name that no RocketMQ client would send."""
    if not _NAME.fullmatch(name):
        raise TopicInvalid(f"topic {name[:200]!r}: only letters, digits and _ - % | are allowed")
    if len(name) > _NAME_CHARACTERS_MAX:
        raise TopicInvalid(
            f"topic {name[:20]!r}...: {len(name)} characters, the limit is {_NAME_CHARACTERS_MAX}"
        )


def perm_text(perm: int) -> str:
    """Return a permission as RocketMQ prints it: ``RWX``, a minus for what is not allowed."""
    return "".join(
        letter if perm & bit else "-"
        for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    )


class TopicTable:
    """The topics by name, with the version that name servers and slaves compare.

    on_change: called with the topics that are new or other than before, after they were saved.
    """

    def __init__(
        self, config: BrokerConfig, path: Path, *, clock: Clock = system_clock, disk: Disk | None = None
    ) -> None:
        self._config = config
        self.path = path
        self.is_missing = False
        """Did `load` find no file?"""
        self._clock = clock
        self._disk = disk or OsDisk()
        self._topics = {topic.topic_name: topic for topic in _system_topics(config)}
        self.system = frozenset(self._topics)
        """Names that every broker has and that are no user's."""
        self.version = DataVersion(timestamp=clock(), counter=0)
        self.get = self._topics.get
        """name -> configuration or None; bound once, since every send asks."""
        self.plain_queues = _plain_queues(self._topics)
        """name -> write queues, of topics whose sends need no second look: most of them."""
        self.on_change: Callable[[Mapping[str, TopicConfig]], None] = _nobody_listens

    def load(self) -> None:
        """Read topics.json, if there is one. Raises StoreDamaged."""
        saved = load_state(self._disk, self.path, _decode)
        self.is_missing = saved is None
        if saved is not None:
            self._topics.update(saved.topic_config_table)
            self.plain_queues.update(_plain_queues(saved.topic_config_table))
            self.version = saved.data_version

    def snapshot(self, names: Mapping[str, object] | None = None) -> TopicConfigSerializeWrapper:
        """Return all topics, or those named, with the version of the table."""
        table = self._topics if names is None else {n: self._topics[n] for n in names if n in self._topics}
        return TopicConfigSerializeWrapper(topic_config_table=dict(table), data_version=self.version)

    def update(self, topic: TopicConfig) -> None:
        """Create or change a topic. Raises TopicInvalid, StoreError; then nothing has changed."""
        check_topic_name(topic.topic_name)
        for count in (topic.read_queue_nums, topic.write_queue_nums):
            if not 0 <= count <= _QUEUES_MAX:
                raise TopicInvalid(
                    f"topic {topic.topic_name}: {count} queues; 0 to {_QUEUES_MAX} are possible"
                )
        self._change({topic.topic_name: topic})

    def add(self, topics: Iterable[TopicConfig]) -> None:
        """Create topics with checked names, in one save. Raises StoreError; nothing has changed then."""
        changed = {topic.topic_name: topic for topic in topics}
        if changed:
            self._change(changed)

    def create_for_send(
        self, name: str, default_topic: str, queue_nums: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Make a topic that somebody sends to, after the model `default_topic`; None when that may not be.

        queue_nums: how many the client wants; it gets no more than the model has.
        Raises TopicInvalid, StoreError.
        """
        existing = self.get(name)
        if existing is not None:
            return existing
        model = self.get(default_topic)
        if model is None or not model.perm & PERM_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self._config.topics.auto_create:
            return None  # it is in the file of a broker that once had it
        check_topic_name(name)
        queues = max(min(queue_nums, model.write_queue_nums), 0)
        topic = TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=model.perm & ~PERM_INHERIT,
            topic_filter_type=model.topic_filter_type,
            topic_sys_flag=sys_flag,
        )
        self._change({name: topic})
        log.info("created topic %s with %d queues after %s", name, queues, default_topic)
        return topic

    def delete(self, name: str) -> bool:
        """Remove a topic; False when it is not there, or one that every broker has. Raises StoreError."""
        if name not in self._topics or name in self.system:
            return False
        self._save({other: topic for other, topic in self._topics.items() if other != name})
        del self._topics[name]
        self.plain_queues.pop(name, None)
        self.on_change({})
        log.info("deleted topic %s", name)
        return True

    def all_changed(self) -> None:
        """Have name servers told about every topic anew. Raises StoreError."""
        self._save(self._topics)
        self.on_change({})

    @property
    def names(self) -> list[str]:
        """All topics."""
        return list(self._topics)

    def apply_order_config(self, ordered: Mapping[str, str]) -> None:
        """Take over which topics are ordered, as a name server's ORDER_TOPIC_CONFIG has it."""
        changed = {
            name: msgspec.structs.replace(topic, order=name in ordered)
            for name, topic in self._topics.items()
            if topic.order != (name in ordered)
        }
        if changed:
            self._change(changed)

    def adopt(self, wrapper: TopicConfigSerializeWrapper) -> None:
        """Have exactly a master's topics, if its version is another. Raises TopicInvalid, StoreError."""
        if wrapper.data_version == self.version:
            return
        for name in wrapper.topic_config_table:
            if name not in self._topics:
                check_topic_name(name)
        gone = self._topics.keys() - wrapper.topic_config_table.keys()
        changed = {
            name: topic
            for name, topic in wrapper.topic_config_table.items()
            if self._topics.get(name) != topic
        }
        self._save(wrapper.topic_config_table, wrapper.data_version)
        for name in gone:
            del self._topics[name]
        self._use(changed, gone)

    def _change(self, changed: Mapping[str, TopicConfig]) -> None:
        """Save first, then use and tell: what was announced survives a restart."""
        self._save({**self._topics, **changed})
        self._use(changed)

    def _use(self, changed: Mapping[str, TopicConfig], gone: Iterable[str] = ()) -> None:
        self._topics.update(changed)
        for name in (*changed, *gone):
            self.plain_queues.pop(name, None)
        self.plain_queues.update(_plain_queues(changed))
        self.on_change(changed)

    def _save(self, topics: dict[str, TopicConfig], version: DataVersion | None = None) -> None:
        version = version or self.version.next(self._clock())
        wrapper = TopicConfigSerializeWrapper(topic_config_table=topics, data_version=version)
        save_state(self._disk, self.path, msgspec.json.format(wrapper.encode(), indent=2))
        self.version = version


def ensure_topic(topics: TopicTable, name: str, queues: int, perm: int, sys_flag: int = 0) -> TopicConfig:
    """Return a topic that the broker itself writes, made if need be. Raises TopicInvalid, StoreError.

    Source: TopicConfigManager.createTopicInSendMessageBackMethod of RocketMQ 4.6.0.
    """
    topic = topics.get(name)
    if topic is None:
        topic = TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            topic_sys_flag=sys_flag,
        )
        topics.update(topic)
    return topic


def _nobody_listens(changed: Mapping[str, TopicConfig]) -> None:
    pass


def _plain_queues(topics: Mapping[str, TopicConfig]) -> dict[str, int]:
    return {
        name: topic.write_queue_nums
        for name, topic in topics.items()
        if name not in NOT_WRITABLE
        and topic.topic_filter_type == "SINGLE_TAG"
        and not topic.order
        and not name.startswith("%RETRY%")  # these may go to the dead letters
    }


def _decode(data: bytes) -> TopicConfigSerializeWrapper:
    """Raises ValueError for what is no topics.json."""
    try:
        return TopicConfigSerializeWrapper.decode(data)
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from error


def _system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """QUIRKS 17; RMQ_SYS_TRANS_HALF_TOPIC comes with the first transaction."""
    both = PERM_READ | PERM_WRITE
    topics = [
        _system_topic("SELF_TEST_TOPIC", 1, both),
        _system_topic("BenchmarkTest", 1024, both),
        _system_topic(config.cluster_name, 16, PERM_INHERIT | (both if config.topics.cluster_topic else 0)),
        _system_topic(config.name, 1, PERM_INHERIT | (both if config.topics.broker_topic else 0)),
        _system_topic("OFFSET_MOVED_EVENT", 1, both),
        _system_topic(f"{config.cluster_name}_REPLY_TOPIC", 1, both),
    ]
    if config.topics.auto_create:
        queues = config.topics.default_queue_nums
        topics.append(_system_topic(AUTO_CREATE_TOPIC, queues, PERM_INHERIT | both))
    if config.topics.trace_topic:
        topics.append(_system_topic(config.topics.trace_topic_name, 1, both))
    return topics


def _system_topic(name: str, queues: int, perm: int) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
