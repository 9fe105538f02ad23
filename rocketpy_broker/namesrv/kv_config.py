"""Key-value settings of a name server, in namespaces. No I/O: the server saves them.

The namespace ORDER_TOPIC_CONFIG has the number of queues at each broker for ordered topics. Source:
KVConfigManager of RocketMQ 4.6.0, with the same file format (kvConfig.json). Differs: there are limits,
because the response to each registration holds a whole namespace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from rocketpy.errors import UsageError


class _File(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KvChange(NamedTuple):
    """A change of one setting."""

    namespace: str
    key: str
    value: str | None
    """None deletes it."""

    @property
    def size(self) -> int:
        """Bytes of namespace, key and value in UTF-8."""
        return _size(self.namespace, self.key, self.value or "")


@dataclass(slots=True)
class KvConfig:
    """The settings by namespace and key."""

    _table: dict[str, dict[str, str]] = field(default_factory=dict)
    size: int = 0
    """Bytes of all names and values in UTF-8, with the names of empty namespaces."""

    @classmethod
    def decode(cls, data: bytes) -> KvConfig:
        """Return the settings in a kvConfig.json. Raises ValueError for invalid contents."""
        table = msgspec.json.decode(data, type=_File).config_table
        size = sum(_size(name, *pair) for name, keys in table.items() for pair in keys.items())
        return cls(table, size + sum(_size(name) for name, keys in table.items() if not keys))

    def encode(self, changes: Iterable[KvChange] = ()) -> bytes:
        """Return what kvConfig.json contains once the changes are applied; this object does not change."""
        table = {namespace: keys.copy() for namespace, keys in self._table.items()}
        draft = KvConfig(table)
        for change in changes:
            draft.apply(change)
        return msgspec.json.encode(_File(config_table=table))

    def check(self, change: KvChange, *, value_bytes_max: int, bytes_max: int, reserved: int = 0) -> None:
        """Raise UsageError if a value, or all values together, would be too large.

        reserved: bytes of changes that are not applied yet.
        """
        where = f"namespace {change.namespace[:100]!r}, key {change.key[:100]!r}"
        if change.size > value_bytes_max:
            raise UsageError(
                f"{where}: {change.size} bytes; the limit of maxKvValueBytes is {value_bytes_max}"
            )
        total = self.size + reserved + change.size - self._replaced_size(change.namespace, change.key)
        if total > bytes_max:
            raise UsageError(
                f"{where}: all settings would take {total} bytes; the limit of maxKvTotalBytes is {bytes_max}"
            )

    def apply(self, change: KvChange) -> None:
        """Set or delete a value. A namespace remains after its last key is deleted, as in 4.6.0."""
        namespace, key, value = change
        if value is None:
            keys = self._table.get(namespace, {})
            if key in keys:
                self.size -= self._replaced_size(namespace, key)
                del keys[key]
                self.size += 0 if keys else _size(namespace)
            return
        self.size += change.size - self._replaced_size(namespace, key)
        self._table.setdefault(namespace, {})[key] = value

    def _replaced_size(self, namespace: str, key: str) -> int:
        """Return the bytes in `size` that setting this key replaces.

        These are the bytes of its old value, or of the name of a namespace that was empty.
        """
        keys = self._table.get(namespace)
        if keys is None:
            return 0
        before = keys.get(key)
        if before is not None:
            return _size(namespace, key, before)
        return 0 if keys else _size(namespace)

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value; None if it does not exist."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all keys and values of a namespace; None for an unknown one."""
        return self._table.get(namespace)


def _size(*texts: str) -> int:
    return sum(len(text.encode("utf-8", "replace")) for text in texts)
