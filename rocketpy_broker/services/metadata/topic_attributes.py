"""Attributes of topics, such as message.type, and requests to change them.

Source: TopicAttributes, AttributeParser, AttributeUtil of RocketMQ 5.3.3. Differs: a broker that has neither
batch queues nor compaction rejects topics that ask for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rocketpy.errors import TopicInvalid

MESSAGE_TYPE: Final = "message.type"
"""What messages of the topic are. Proxies of RocketMQ 5 check it; its brokers do not."""
MIXED: Final = "MIXED"
"""The message type for messages of all kinds."""
_VALUES: Final = {
    MESSAGE_TYPE: ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED),
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
}
_RESERVE_TIME: Final = "reserve.time"
"""How long tiered storage keeps the messages, in ms. -1: as long as its default. Brokers without it, such as
this one, only store the attribute."""
_NAMES: Final = (*_VALUES, _RESERVE_TIME)
_FIXED: Final = ("queue.type", "cleanup.policy")
"""Attributes that only new topics may set."""
_LARGEST: Final = 2**63 - 1


def parse_changes(text: str) -> dict[str, str]:
    """Return the changes in a request, such as ``+message.type=FIFO,-reserve.time``: name with sign -> value.

    Raises TopicInvalid.
    """
    changes: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        if not name.startswith("+" if equals else "-"):
            raise TopicInvalid(f"attribute {part[:100]!r}: write +name=value to set, or -name to remove it")
        if name in changes:
            raise TopicInvalid(f"attribute {name[1:100]!r} is given twice")
        changes[name] = value
    return changes


def change_attributes(
    topic: str, current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """Return the attributes of a topic after changes. current: None for a new topic. Raises TopicInvalid."""
    changed = dict(current or {})
    if len({name[1:] for name in changes}) < len(changes):
        raise TopicInvalid(f"topic {topic}: an attribute is set and removed in one request")
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if name not in _NAMES or sign not in ("+", "-"):
            known = ", ".join(_NAMES)
            raise TopicInvalid(f"topic {topic} cannot have the attribute {signed[:100]!r}; known are {known}")
        if name in _FIXED and current is not None and (sign, value) != ("+", current.get(name)):
            raise TopicInvalid(f"topic {topic}: attribute {name} can be set for new topics only")
        if sign == "+":
            _check_value(topic, name, value)
            changed[name] = value
        elif name in changed:
            del changed[name]
        else:
            raise TopicInvalid(f"topic {topic} has no attribute {name} to remove")
    return changed


def _check_value(topic: str, name: str, value: str) -> None:
    if name == _RESERVE_TIME:
        try:
            is_valid = -1 <= int(value) <= _LARGEST
        except ValueError:
            is_valid = False
        wanted: Iterable[str] = ("-1", "a number of ms")
    else:
        wanted = _VALUES[name]
        is_valid = value in wanted
    if not is_valid:
        choices = ", ".join(wanted)
        raise TopicInvalid(
            f"topic {topic}: attribute {name} is {value[:100]!r}; this broker supports: {choices}"
        )
