"""Compares what came back from the broker with what was sent to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from examples.demo_lines import Line
from rocketpy import Message, MessageExt

__all__ = ["differences", "duplicates", "message_of"]

LINE_PROPERTY = "line"
"""A property with the number of the line from which a message was made."""


def message_of(topic: str, line: Line) -> Message:
    """Return the message for a line."""
    properties = {LINE_PROPERTY: str(line.number)}
    return Message(topic, line.body, tags=line.tags, keys=line.keys, properties=properties)


def differences(sent: Sequence[Line], received: Iterable[MessageExt]) -> list[str]:
    """Describe the differences: lines that changed or are missing, and messages that were not sent."""
    lines = {str(line.number): line for line in sent}
    missing, found = dict(lines), []
    for message in received:
        number = message.properties.get(LINE_PROPERTY, "")
        missing.pop(number, None)
        if number in lines:
            found += _changes(lines[number], message)
        else:
            found.append(f"{message} was never sent")
    return [*found, *(f"line {number} is missing" for number in missing)]


def _changes(line: Line, message: MessageExt) -> list[str]:
    """Describe the differences between a line and its message."""
    pairs = {
        "body": (line.body, message.body),
        "tags": (line.tags, message.tags),
        "keys": (line.keys, message.keys),
    }
    return [
        f"line {line.number}: {name} sent {_short(sent)}, received {_short(received)}"
        for name, (sent, received) in pairs.items()
        if sent != received
    ]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}... ({len(text)} characters)"


def duplicates(received: Iterable[MessageExt]) -> int:
    """Return the number of duplicates: a send that timed out is retried, and may be stored twice."""
    numbers = Counter(message.properties.get(LINE_PROPERTY) for message in received)
    return numbers.total() - len(numbers)
