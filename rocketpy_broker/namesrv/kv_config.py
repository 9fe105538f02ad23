"""Key-value settings of a name server, in namespaces. Pure: saving them is the server's work.

The namespace ORDER_TOPIC_CONFIG says which brokers have how many queues of an ordered topic.
Source: KVConfigManager of RocketMQ 4.6.0; the file (kvConfig.json) has its form.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

__all__ = ["NAMESPACE_ORDER_TOPIC_CONFIG", "KvConfig"]

NAMESPACE_ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"


class _File(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


@dataclass(slots=True)
class KvConfig:
    """The settings by namespace and key."""

    _table: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def decode(cls, data: bytes) -> KvConfig:
        """Return the settings that a kvConfig.json holds. Raises ValueError when it holds none."""
        return cls(msgspec.json.decode(data, type=_File).config_table)

    def encode(self) -> bytes:
        """Return the content of kvConfig.json."""
        return msgspec.json.encode(_File(config_table=self._table))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; a namespace begins to exist with its first key."""
        self._table.setdefault(namespace, {})[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, None when there is none."""
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Forget a value; one that is not there is no error. The namespace stays, as in 4.6.0."""
        self._table.get(namespace, {}).pop(key, None)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all keys and values of a namespace, None when it never had one."""
        return self._table.get(namespace)
