"""Namespaces: how several tenants share brokers without seeing each other's topics and groups.

A client with a namespace writes ``namespace%topic`` and ``namespace%group`` on the wire; its application sees
neither. Names that belong to RocketMQ itself are never wrapped.

Source: RocketMQ 4.6 NamespaceUtil.
"""

from __future__ import annotations

from typing import Final

from rocketpy.errors import UsageError
from rocketpy.message.message import DEFAULT_TOPIC
from rocketpy.protocol.bodies import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, MessageQueue

_SEPARATOR: Final = "%"
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "CID_RMQ_SYS_")


def wrap(namespace: str, name: str) -> str:
    """A topic or group as it travels; retry and dead letter topics keep their prefix in front."""
    if not namespace or not name or _is_system(name):
        return name
    prefix, rest = _split_prefix(name)
    if rest.startswith(namespace + _SEPARATOR):
        return name
    return f"{prefix}{namespace}{_SEPARATOR}{rest}"


def unwrap(namespace: str, name: str) -> str:
    """The topic or group as the application knows it; a name of another namespace stays as it is."""
    if not namespace or _is_system(name):
        return name
    prefix, rest = _split_prefix(name)
    inner = rest.removeprefix(namespace + _SEPARATOR)
    return prefix + inner if inner != rest else name


def wrap_queue(namespace: str, queue: MessageQueue) -> MessageQueue:
    """A queue with its topic as it travels. Raises UsageError for what is no queue."""
    given: object = queue
    if not isinstance(given, MessageQueue):
        raise UsageError(f"{given!r} is no MessageQueue")
    return MessageQueue(wrap(namespace, queue.topic), queue.broker_name, queue.queue_id)


def unwrap_queue(namespace: str, queue: MessageQueue) -> MessageQueue:
    """A queue with its topic as the application knows it."""
    return MessageQueue(unwrap(namespace, queue.topic), queue.broker_name, queue.queue_id)


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def _is_system(name: str) -> bool:
    return name == DEFAULT_TOPIC or name.startswith(_SYSTEM_PREFIXES)
