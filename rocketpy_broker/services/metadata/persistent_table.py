"""A table of settings by name in one JSON file, with the version that slaves and name servers compare.

A change is saved before it is used, so that all entries that the broker announces survive a restart. Entries
that the broker would create again after a restart are used first, and saved later. The base class of
topics.json and subscriptionGroup.json.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from rocketpy.errors import StoreError
from rocketpy.protocol.bodies import DataVersion
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.store.files.batch_saver import BatchSaver
from rocketpy_broker.store.files.disk import Clock, Disk, OsDisk, system_clock
from rocketpy_broker.store.files.state_file import format_table, load_state, save_state

T = TypeVar("T")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class TableChange(Generic[T]):
    """A change of a table.

    A master's table replaces the whole table.
    """

    put: Mapping[str, T] = field(default_factory=dict)
    removed: Collection[str] = ()
    version: DataVersion | None = None
    """None, or the version of a master's table, which `put` then is."""

    def of(self, table: Mapping[str, T]) -> tuple[Mapping[str, T], Collection[str]]:
        """Return the entries that the change puts into this table, and the names that it removes.

        Other changes may have been saved since it was submitted.
        """
        if self.version is None:
            return self.put, self.removed
        changed = {name: entry for name, entry in self.put.items() if table.get(name) != entry}
        return changed, table.keys() - self.put.keys()


class PersistentTable(Generic[T, W]):
    """Entries by name. wrapper: class of the file's content. field: its attribute that holds the entries."""

    def __init__(
        self,
        path: Path,
        tasks: Tasks,
        table: dict[str, T],
        *,
        wrapper: type[W],
        field: str,
        clock: Clock = system_clock,
        disk: Disk | None = None,
    ) -> None:
        self.path = path
        self.is_missing = False
        """Whether `load` found no file."""
        self.is_older = False
        """Whether `load` used the `.bak`, so the changes of the last save are missing."""
        self._table = table
        self.get = table.get
        """name -> entry or None; bound once, since every send calls it."""
        self._wrapper: Any = wrapper
        self._field = field
        self._clock = clock
        self._disk = disk or OsDisk()
        self.saver: BatchSaver[TableChange[T]] = BatchSaver(
            tasks, path.name, prepare=self._prepare, use=self._use
        )
        self.version = DataVersion(timestamp=clock(), counter=0)
        self._saving_versions = self.version, self.version
        """Versions before and after the save under way, or else the last save."""
        self._is_unsaved = False
        """Whether the table has changes that are not in the file."""
        self._encoded: tuple[DataVersion, bytes] | None = None

    def load(self) -> None:
        """Read the file, if there is one. Raises StoreDamaged."""
        saved, self.is_older = load_state(self._disk, self.path, self._wrapper.decode)
        self.is_missing = saved is None
        self._is_unsaved = self.is_older
        if saved is not None:
            self._put(getattr(saved, self._field))
            self.version = saved.data_version
            self._loaded(saved)

    @property
    def names(self) -> list[str]:
        """All names in the table."""
        return list(self._table)

    def snapshot(self, names: Iterable[str] | None = None) -> W:
        """Return all entries, or those named, with the version of the table."""
        table = self._table if names is None else {n: self._table[n] for n in names if n in self._table}
        return self._wrap(dict(table), self.version)

    def encode(self) -> bytes:
        """Return `snapshot()` as the body of a response; it is encoded once for each version."""
        if self._encoded is None or self._encoded[0] is not self.version:
            snapshot: Any = self.snapshot()
            self._encoded = self.version, snapshot.encode()
        return self._encoded[1]

    async def save(self) -> None:
        """Save unsaved entries. A failure is logged, and the next call tries again."""
        if self._is_unsaved:
            with contextlib.suppress(StoreError):
                await self.saver.save(TableChange())

    async def _adopt(self, table: Mapping[str, T], version: DataVersion) -> None:
        """Take over a master's table, if its version differs. Raises StoreError."""
        if version != self.version:
            await self.saver.save(TableChange(table, version=version))

    def _put(self, entries: Mapping[str, T]) -> None:
        """Use new entries."""
        self._table.update(entries)

    def _put_unsaved(self, entries: Mapping[str, T]) -> None:
        """Use new entries immediately; `save` saves them."""
        self._is_unsaved = True
        self.version = self.version.next(self._clock())
        self._put(entries)

    def _loaded(self, wrapper: W) -> None:
        """Called with the content of the file."""

    def _used(self, changed: Mapping[str, T], removed: Collection[str]) -> None:
        """Called when saved changes are in use."""

    def _wrap(self, table: dict[str, T], version: DataVersion) -> W:
        wrapped: W = self._wrapper(**{self._field: table, "data_version": version})
        return wrapped

    # -- saving -------------------------------------------------------------------------------

    def _prepare(self, changes: Sequence[TableChange[T]]) -> Callable[[], None]:
        table = dict(self._table)
        master, is_changed = None, False
        for change in changes:
            put, removed = change.of(table)
            is_changed = is_changed or bool(put or removed)
            table.update(put)
            for name in removed:
                table.pop(name, None)
            master = change.version or master
        version = master or (self.version.next(self._clock()) if is_changed else self.version)
        self._saving_versions = self.version, version
        self._is_unsaved = False
        return partial(self._write, self._wrap(table, version))

    def _write(self, wrapper: Any) -> None:
        """Replace the file; for a thread. Raises StoreError."""
        try:
            save_state(self._disk, self.path, format_table(wrapper, self._field))
        except StoreError:
            self._is_unsaved = True
            raise

    def _use(self, changes: Sequence[TableChange[T]]) -> None:
        before, after = self._saving_versions
        # An unsaved entry may have been put meanwhile: then the table differs from the file.
        self.version = after if self.version == before else self.version.next(self._clock())
        all_put: dict[str, T] = {}
        all_removed: set[str] = set()
        for change in changes:
            put, removed = change.of(self._table)
            all_put.update(put)
            for name in removed:
                all_put.pop(name, None)
                if self._table.pop(name, None) is not None:
                    all_removed.add(name)
            self._put(put)
        self._used(all_put, all_removed)
