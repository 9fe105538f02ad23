"""The offsets of consumer groups: consumerOffset.json.

They are saved every 5 s and at the stop. After a crash, groups consume the messages since the last save
again. Source: ConsumerOffsetManager of RocketMQ 4.6.0. Differs: names are checked.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass
from pathlib import Path
from typing import Final

import msgspec

from rocketpy.errors import GroupInvalid, StoreError
from rocketpy.protocol.bodies import ConsumerOffsetSerializeWrapper
from rocketpy.runtime.progress import Jobs
from rocketpy_broker.services.metadata.topics import check_topic_name
from rocketpy_broker.store.files.disk import Clock, Disk, OsDisk, system_clock
from rocketpy_broker.store.files.state_file import keys_in_parts, load_state, save_in_thread, save_state

log = logging.getLogger("rocketpy.broker.offsets")

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_NAME_CHARACTERS_MAX: Final = 255


def check_group_name(name: str) -> None:
    """Raise GroupInvalid for a name that RocketMQ clients reject."""
    if not _NAME.fullmatch(name) or len(name) > _NAME_CHARACTERS_MAX:
        raise GroupInvalid(
            f"group {name[:200]!r}: expected 1 to {_NAME_CHARACTERS_MAX} letters, digits and any of _ - % |"
        )


@dataclass(eq=False)
class ConsumerOffsets:
    """Next queue offset by topic, group and queue."""

    path: Path
    _: KW_ONLY
    offsets_max: int = 1_000_000
    """maxConsumerOffsets."""
    clock: Clock = system_clock
    disk: InitVar[Disk | None] = None

    def __post_init__(self, disk: Disk | None) -> None:
        self._count = 0
        self.is_missing = False
        """Whether `load` found no file."""
        self.is_older = False
        """Whether `load` used the `.bak`, so the commits before the last save are missing."""
        self.is_copied = False
        """Whether `merge` has copied a master's offsets. Until then, those of a slave may be of any age."""
        self._disk = disk or OsDisk()
        self._table: dict[str, dict[int, int]] = {}
        self._commit_times: dict[str, dict[int, int]] = {}
        """Commit times in ms since 1970. Offsets from a file of RocketMQ have none."""
        self._from_master: dict[str, dict[int, int]] = {}
        """The last received offsets of a master that sends no commit times."""
        self._is_changed = False
        self._saving = asyncio.Lock()
        self.jobs: Jobs = Jobs()

    def load(self) -> None:
        """Read consumerOffset.json, if there is one. Raises StoreDamaged."""
        saved, self.is_older = load_state(self._disk, self.path, ConsumerOffsetSerializeWrapper.decode)
        self.is_missing = saved is None
        if saved is not None:
            self._table = saved.offset_table
            self._commit_times = saved.version_table or {}
            self._count = sum(map(len, self._table.values()))

    def create(self) -> None:
        """Write the file, so that it exists from the first start on; if that fails, `save` tries again."""
        try:
            save_state(self._disk, self.path, self.encode(with_times=True))
        except StoreError as error:
            self._is_changed = True
            log.error("cannot save consumer offsets: %s", error)

    @property
    def groups(self) -> list[str]:
        """All groups with offsets."""
        return sorted({key.rpartition("@")[2] for key in self._table})

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset to consume; None if the group has none."""
        return self._table.get(f"{topic}@{group}", {}).get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int, *, is_own: bool = False) -> None:
        """Commit an offset of a group. After a reset it may be lower than before.

        A negative offset or queue id is ignored. is_own: whether it is an offset of the broker itself, to
        which the limit does not apply; its names are not checked either.
        Raises GroupInvalid, TopicInvalid for invalid names, and if the limit of offsets is reached.
        """
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is None:
            if not is_own:
                check_group_name(group)
                check_topic_name(topic)
            queues = {}
        if offset >= 0 and queue_id >= 0 and queues.get(queue_id) != offset:
            if queue_id not in queues:
                if not is_own:
                    self._check_room(group, 1)
                self._count += 1
                self._table[key] = queues
            queues[queue_id] = offset
            self._commit_times.setdefault(key, {})[queue_id] = self.clock()
            self._is_changed = True

    def _check_room(self, group: str, more: int) -> None:
        if self._count + more > self.offsets_max:
            raise GroupInvalid(
                f"cannot store an offset of group {group}: this broker has {self._count} offsets, and "
                f"maxConsumerOffsets is {self.offsets_max}. Delete groups, or raise the limit"
            )

    def merge(self, master: ConsumerOffsetSerializeWrapper) -> None:
        """Take over a master's offsets, except those that were committed here later.

        If the master sends no commit times (RocketMQ), an offset is taken over when it has changed there.
        """
        self.is_copied = True
        commit_times = master.version_table
        for key, queues in master.offset_table.items():
            stored = self._table.setdefault(key, {})
            times = self._commit_times.setdefault(key, {})
            for queue_id, offset in queues.items():
                if commit_times is None:
                    is_newer = self._from_master.setdefault(key, {}).get(queue_id) != offset
                    self._from_master[key][queue_id] = offset
                    time = self.clock()
                else:
                    time = commit_times.get(key, {}).get(queue_id, 0)
                    is_newer = time >= times.get(queue_id, 0)
                if is_newer and (stored.get(queue_id) != offset or times.get(queue_id, 0) != time):
                    self._count += queue_id not in stored
                    stored[queue_id], times[queue_id] = offset, time
                    self._is_changed = True

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return queue id -> next offset of a group; empty if it has none."""
        return dict(self._table.get(f"{topic}@{group}", {}))

    @property
    def pairs(self) -> Iterator[tuple[str, str]]:
        """Topic and group of all offsets now, for work in slices."""
        for key in list(self._table):
            topic, _, group = key.rpartition("@")
            yield topic, group

    def topics_of(self, group: str) -> list[str]:
        """Return the topics of which a group has offsets."""
        return [topic for topic, name in self.pairs if name == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups with offsets of a topic."""
        return [group for name, group in self.pairs if name == topic]

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copy the offsets of a topic from one group to another. Raises GroupInvalid."""
        check_group_name(target)
        queues = self._table.get(f"{topic}@{source}")
        if queues is not None:
            more = len(queues) - len(self._table.get(f"{topic}@{target}", ()))
            self._check_room(target, more)
            self._count += more
            self._table[f"{topic}@{target}"] = dict(queues)
            self._commit_times[f"{topic}@{target}"] = dict.fromkeys(queues, self.clock())
            self._is_changed = True

    def remove_topic(self, topic: str) -> None:
        """Remove the offsets of a deleted topic: they would skip messages of a new one of this name."""
        begin = f"{topic}@"  # no name has this character
        for key in [key for key in self._table if key.startswith(begin)]:
            self._count -= len(self._table.pop(key))
            self._commit_times.pop(key, None)
            self._from_master.pop(key, None)
            self._is_changed = True

    def lowest(self, topic: str, without_groups: Collection[str]) -> dict[int, int]:
        """Return queue id -> the lowest offset of all groups except `without_groups`."""
        lowest: dict[int, int] = {}
        for group in self.groups_of(topic):
            if group not in without_groups:
                for queue_id, offset in self._table[f"{topic}@{group}"].items():
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        return lowest

    def snapshot(self) -> ConsumerOffsetSerializeWrapper:
        """Return all offsets."""
        return ConsumerOffsetSerializeWrapper(offset_table=self._table)

    def encode(self, *, with_times: bool = False) -> bytes:
        """Return the content of the file. Queue ids are numbers without quotes, as in Java (QUIRKS 8).

        with_times: whether to include the commit times.
        """
        return _encode(self._table.items(), self._commit_times.items() if with_times else ())

    def encode_in_slices(
        self, is_over: Callable[[], bool], *, with_times: bool
    ) -> Generator[None, None, bytes]:
        """Do the work of `encode`, for `Slices`: a million offsets take seconds.

        Each offset has the value and time of one moment, but not all offsets of the same.
        """
        lines: list[bytes] = []
        times: list[bytes] = []
        for key in list(self._table):
            queues = self._table.get(key)
            if queues is not None:
                lines.append(_encode_line(key, queues))
                if with_times and key in self._commit_times:
                    times.append(_encode_line(key, self._commit_times[key]))
            if is_over():
                yield
        return _join(lines, times)

    async def save(self) -> None:
        """Write the file if offsets have changed. A failure is logged, and the next call tries again."""
        async with self._saving:
            if not self._is_changed:
                return
            self._is_changed = False
            table, times = await _copy(self._table), await _copy(self._commit_times)
            try:
                await save_in_thread(
                    lambda: save_state(self._disk, self.path, _encode(_drain(table), _drain(times)))
                )
            except StoreError as error:
                self._is_changed = True
                self.jobs.ended("save of consumer offsets", error)
                log.error("cannot save consumer offsets: %s", error)
            else:
                self.jobs.ended("save of consumer offsets")


async def _copy(table: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """Copy a table in parts, for a thread that encodes it: encoding takes a hundred times as long as a copy.

    Offsets that are committed meanwhile are saved now or by the next call.
    """
    return {key: table[key].copy() async for key in keys_in_parts(table)}


def _drain(table: dict[str, dict[int, int]]) -> Iterator[tuple[str, dict[int, int]]]:
    """Yield the items of a copy, and remove them: to free a million at once would stop all threads."""
    for key in list(table):
        yield key, table.pop(key)


def _encode(
    table: Iterable[tuple[str, dict[int, int]]], commit_times: Iterable[tuple[str, dict[int, int]]]
) -> bytes:
    return _join(
        [_encode_line(*item) for item in table],
        [_encode_line(*item) for item in commit_times],
    )


def _join(lines: list[bytes], times: list[bytes]) -> bytes:
    parts = [b'{\n\t"offsetTable":{\n', b",\n".join(lines), b"\n\t}"]
    if times:
        parts += [b',\n\t"versionTable":{\n', b",\n".join(times), b"\n\t}"]
    return b"".join([*parts, b"\n}"])


def _encode_line(key: str, queues: dict[int, int]) -> bytes:
    pairs = b",".join([b"%d:%d" % pair for pair in sorted(queues.items())])
    return b"\t\t%b:{%b\n\t\t}" % (msgspec.json.encode(key), pairs)
