"""The topics of one broker: topics.json, the topics every broker has, and those made by sending.

Source: TopicConfigManager of RocketMQ 4.6.0. Differs: names are checked here too, not only in
clients (CVE-2019-17572); several system topics cannot be written by clients (#1976); topics that are made in
a burst are saved together, and there is a limit to how many there are.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rocketpy.errors import RemoteProtocolError, RocketError, StoreError, TopicInvalid
from rocketpy.protocol.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.store.files.batch_saver import BatchSaver, ChangePending, PendingChange
from rocketpy_broker.store.files.clock import Clock, system_clock
from rocketpy_broker.store.files.disk import Disk, OsDisk
from rocketpy_broker.store.files.state_file import format_table, load_state, save_state

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
_BROKERS_OWN_MAX: Final = 2
"""Topics that the broker makes for groups (retries, dead letters) find room until there are so many times
`TopicsConfig.topics_max`; else a client that fills the table could stop the retries of others."""


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


class _Change(NamedTuple):
    """A change of the table. ordered: the topics that are ordered, as name servers have it. version: of a
    master's table, which `put` is then; it replaces this one.
    """

    put: Mapping[str, TopicConfig] = {}
    gone: Collection[str] = ()
    ordered: Mapping[str, str] | None = None
    version: DataVersion | None = None

    def of(self, table: Mapping[str, TopicConfig]) -> tuple[Mapping[str, TopicConfig], Collection[str]]:
        """Return what it puts into this table, and the names that it takes out.

        Changes that came before may have been saved since it was submitted.
        """
        if self.ordered is not None:
            return _reordered(table, self.ordered), ()
        if self.version is not None:
            changed = {name: topic for name, topic in self.put.items() if table.get(name) != topic}
            return changed, table.keys() - self.put.keys()
        return self.put, self.gone


def _reordered(table: Mapping[str, TopicConfig], ordered: Mapping[str, str]) -> dict[str, TopicConfig]:
    return {
        name: msgspec.structs.replace(topic, order=name in ordered)
        for name, topic in table.items()
        if topic.order != (name in ordered)
    }


class TopicTable:
    """The topics by name, with the version that name servers and slaves compare.

    on_change: called with the topics that are new or other than before, after they were saved.
    """

    def __init__(
        self,
        config: BrokerConfig,
        path: Path,
        tasks: Tasks,
        *,
        clock: Clock = system_clock,
        disk: Disk | None = None,
    ) -> None:
        self._config = config
        self.path = path
        self.is_missing = False
        """Did `load` find no file?"""
        self._clock = clock
        self._disk = disk or OsDisk()
        self.saver: BatchSaver[_Change] = BatchSaver(
            tasks, "topics.json", prepare=self._prepare, use=self._use
        )
        self._creating: dict[str, PendingChange[_Change]] = {}
        """By name, the topics that are not there yet and that somebody began to make."""
        self._is_unsaved = False
        """Is something in use that is not in the file?"""
        self._topics = {topic.topic_name: topic for topic in _system_topics(config)}
        self.system = frozenset(self._topics)
        """Names that every broker has and that are no user's."""
        self.version = DataVersion(timestamp=clock(), counter=0)
        self._saving_versions = self.version, self.version
        """Of the save under way, or of the last: before and after it."""
        self._encoded: tuple[DataVersion, bytes] | None = None
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

    def encode(self) -> bytes:
        """Return the text of `snapshot`, which is made once for each version."""
        if self._encoded is None or self._encoded[0] is not self.version:
            self._encoded = self.version, self.snapshot().encode()
        return self._encoded[1]

    async def update(self, topic: TopicConfig) -> None:
        """Create or change a topic, and save that.

        Raises TopicInvalid, StoreError; nothing has changed then.
        """
        if self._is_made(topic.topic_name):
            self._check(topic)
            await self.saver.save(_Change({topic.topic_name: topic}))
        else:
            await self.saver.wait(self.create(topic, self._config.topics.topics_max))

    def _is_made(self, name: str) -> bool:
        """Is a topic there, or being made?"""
        return name in self._topics or name in self._creating

    def add(self, topics: Iterable[TopicConfig]) -> None:
        """Use topics with checked names at once, and save them soon; see `save`."""
        changed = {topic.topic_name: topic for topic in topics}
        if changed:
            self._is_unsaved = True
            self.version = self._version_after(self.version)
            self._enter(changed)
            self.on_change(changed)
            self.saver.submit(_Change(changed))  # again, if a master's table comes in between

    def create_for_send(
        self, name: str, default_topic: str, queue_nums: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Make a topic that somebody sends to, after the model `default_topic`; None when that may not be.

        queue_nums: how many the client wants; it gets no more than the model has.
        Raises ChangePending until the topic is saved, TopicInvalid.
        """
        existing = self.get(name)
        if existing is not None:
            return existing
        model = self.get(default_topic)
        if model is None or not model.perm & PERM_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self._config.topics.auto_create:
            return None  # it is in the file of a broker that once had it
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

    def create(self, topic: TopicConfig, topics_max: int | None = None) -> PendingChange[_Change]:
        """Begin to make a topic that is not there; who else needs it meanwhile waits for the same save.

        topics_max: None where the broker itself needs the topic. Raises TopicInvalid.
        """
        name = topic.topic_name
        saving = self._creating.get(name)
        if saving is None:
            self._check(topic)
            self._check_room(name, topics_max or _BROKERS_OWN_MAX * self._config.topics.topics_max)
            saving = self._creating[name] = self.saver.submit(
                _Change({name: topic}), partial(self._created, topic)
            )
        return saving

    def _created(self, topic: TopicConfig, error: RocketError | None) -> None:
        self._creating.pop(topic.topic_name, None)
        if error is None:
            log.info("created topic %s with %d queues", topic.topic_name, topic.write_queue_nums)

    def _check(self, topic: TopicConfig) -> None:
        check_topic_name(topic.topic_name)
        queues_max = self._config.topics.queues_max
        existing = self._topics.get(topic.topic_name)
        for count, was in (
            (topic.read_queue_nums, existing and existing.read_queue_nums),
            (topic.write_queue_nums, existing and existing.write_queue_nums),
        ):
            if not 0 <= count <= max(queues_max, was or 0):
                raise TopicInvalid(
                    f"topic {topic.topic_name}: {count} queues; 0 to {queues_max} are possible "
                    "(maxTopicQueues)"
                )

    def _check_room(self, name: str, topics_max: int) -> None:
        count = len(self._topics) + len(self._creating)
        if count - len(self.system) >= topics_max:
            raise TopicInvalid(
                f"topic {name} is not created: this broker has {count} topics, the limit of maxTopics is "
                f"{self._config.topics.topics_max}. Delete topics, or raise the limit"
            )

    async def delete(self, name: str) -> bool:
        """Remove a topic, and save that; False when it is not there, or one that every broker has.

        Raises StoreError; then nothing has changed.
        """
        if not self._is_made(name) or name in self.system:
            return False
        await self.saver.save(_Change(gone=(name,)))
        log.info("deleted topic %s", name)
        return True

    async def all_changed(self) -> None:
        """Register every topic again at the name servers. Raises StoreError."""
        await self.saver.save(_Change())
        self.on_change({})

    async def save(self) -> None:
        """Save what `add` brought, if it is not saved; a failure is logged, and the next call tries again."""
        if self._is_unsaved:
            with contextlib.suppress(StoreError):
                await self.saver.save(_Change())

    @property
    def names(self) -> list[str]:
        """All topics."""
        return list(self._topics)

    def apply_order_config(self, ordered: Mapping[str, str]) -> None:
        """Begin to take over which topics are ordered, as a name server's ORDER_TOPIC_CONFIG has it."""
        if _reordered(self._topics, ordered):
            self.saver.submit(_Change(ordered=ordered))

    async def adopt(self, wrapper: TopicConfigSerializeWrapper) -> None:
        """Have exactly a master's topics, if its version is another. Raises TopicInvalid, StoreError."""
        if wrapper.data_version == self.version:
            return
        for name in wrapper.topic_config_table:
            if name not in self._topics:
                check_topic_name(name)
        await self.saver.save(_Change(wrapper.topic_config_table, version=wrapper.data_version))

    # -- saving: first the file, then the table, so that what is announced survives a restart ------------

    def _prepare(self, changes: Sequence[_Change]) -> Callable[[], None]:
        table = dict(self._topics)
        version = self._version_after(self.version)
        for change in changes:
            put, gone = change.of(table)
            table.update(put)
            for name in gone:
                table.pop(name, None)
            version = change.version or version
        self._saving_versions = self.version, version
        self._is_unsaved = False
        wrapper = TopicConfigSerializeWrapper(topic_config_table=table, data_version=version)
        return partial(self._write, wrapper)

    def _write(self, wrapper: TopicConfigSerializeWrapper) -> None:
        """Replace the file; for a thread. Raises StoreError."""
        try:
            save_state(self._disk, self.path, format_table(wrapper, "topic_config_table"))
        except StoreError:
            self._is_unsaved = True
            raise

    def _use(self, changes: Sequence[_Change]) -> None:
        before, after = self._saving_versions
        # Where `add` came in between, the table is another one than the file.
        self.version = after if self.version == before else self._version_after(self.version)
        changed: dict[str, TopicConfig] = {}
        dropped: set[str] = set()
        for change in changes:
            put, gone = change.of(self._topics)
            changed.update(put)
            for name in gone:
                changed.pop(name, None)
                if self._topics.pop(name, None) is not None:
                    dropped.add(name)
            self._enter(put)
        for name in dropped - changed.keys():
            self.plain_queues.pop(name, None)
        if changed:
            self.on_change(changed)
        if dropped:
            self.on_change({})

    def _enter(self, changed: Mapping[str, TopicConfig]) -> None:
        self._topics.update(changed)
        for name in changed:
            self.plain_queues.pop(name, None)
        self.plain_queues.update(_plain_queues(changed))

    def _version_after(self, version: DataVersion) -> DataVersion:
        return version.next(self._clock())


def ensure_topic(topics: TopicTable, name: str, queues: int, perm: int, sys_flag: int = 0) -> TopicConfig:
    """Return a topic that the broker itself writes. Raises TopicInvalid; ChangePending while it is made.

    Source: TopicConfigManager.createTopicInSendMessageBackMethod of RocketMQ 4.6.0.
    """
    topic = topics.get(name)
    if topic is None:
        raise ChangePending(topics.create(own_topic(name, queues, perm, sys_flag)))
    return topic


def own_topic(name: str, queues: int, perm: int, sys_flag: int = 0) -> TopicConfig:
    """Return a topic that the broker itself writes."""
    return TopicConfig(
        topic_name=name,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=perm,
        topic_sys_flag=sys_flag,
    )


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
