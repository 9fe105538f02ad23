"""Namespaces: let several tenants share brokers without seeing each other's topics and groups.

A client with a namespace writes ``namespace%topic`` and ``namespace%group`` on the wire; its application sees
the plain names. System names of RocketMQ are never wrapped.

Source: RocketMQ 4.6 NamespaceUtil.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rocketpy.errors import UsageError
from rocketpy.message.message import DEFAULT_TOPIC
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

_SEPARATOR: Final = "%"
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "CID_RMQ_SYS_")


def wrap(namespace: str, name: str) -> str:
    """Add the namespace to a topic or group, after the prefix of a retry or dead letter topic."""
    if not namespace or not name or _is_system(name):
        return name
    prefix, rest = _split_prefix(name)
    if rest.startswith(namespace + _SEPARATOR):
        return name
    return f"{prefix}{namespace}{_SEPARATOR}{rest}"


def unwrap(namespace: str, name: str) -> str:
    """Remove the namespace from a topic or group; a name of another namespace stays unchanged."""
    if not namespace or _is_system(name):
        return name
    prefix, rest = _split_prefix(name)
    inner = rest.removeprefix(namespace + _SEPARATOR)
    return prefix + inner if inner != rest else name


def own_names(namespace: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that belong to the namespace, unwrapped and sorted. names: as on the wire."""
    return tuple(sorted(own for name in names if wrap(namespace, own := unwrap(namespace, name)) == name))


def wrap_queue(namespace: str, queue: MessageQueue) -> MessageQueue:
    """Add the namespace to the topic of a queue. Raises UsageError if it is not a MessageQueue."""
    given: object = queue
    if not isinstance(given, MessageQueue):
        raise UsageError(f"{given!r} is not a MessageQueue")
    return MessageQueue(wrap(namespace, queue.topic), queue.broker_name, queue.queue_id)


def unwrap_queue(namespace: str, queue: MessageQueue) -> MessageQueue:
    """Remove the namespace from the topic of a queue."""
    return MessageQueue(unwrap(namespace, queue.topic), queue.broker_name, queue.queue_id)


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def _is_system(name: str) -> bool:
    return name == DEFAULT_TOPIC or name.startswith(_SYSTEM_PREFIXES)
