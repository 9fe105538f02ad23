"""Names of topics, groups and tags for the names of queues, exchanges and routing keys."""

from __future__ import annotations

import hashlib
import re
from typing import Final

BROADCAST_TOPIC: Final = "kombu-broadcast"
"""The topic of messages to fanout exchanges and temporary queues, without the prefix."""
_READABLE: Final = 40
_VALID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_INVALID: Final = re.compile(r"[^A-Za-z0-9_-]")


def valid_name(name: str) -> str:
    """Return a name that RocketMQ accepts for topics, groups and tags; different for each argument.

    A valid name of at most 40 characters is returned unchanged. Others get ``-`` for what is not valid, and a
    hash of the name at the end.
    """
    if _VALID.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{_INVALID.sub('-', name)[:_READABLE]}-{digest}"


def broadcast_tag(exchange: str, routing_key: str | None) -> str:
    """Return the tag of a broadcast message.

    routing_key: of an exchange whose consumers want one routing key only; None for the others.
    """
    return valid_name(exchange if routing_key is None else f"{exchange}/{routing_key}")
