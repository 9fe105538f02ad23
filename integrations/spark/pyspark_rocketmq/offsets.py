"""Offsets of queues: their JSON format in options and checkpoints, and how ranges are limited and split.

Plain values, no I/O. In JSON, offsets are ``{"Orders": {"broker-a": {"0": 23, "1": -2}}}``: topic, broker,
queue, offset. -2 is the earliest offset and -1 the end, as in Spark's Kafka source.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from rocketpy.errors import ConfigInvalid

EARLIEST: Final = -2
LATEST: Final = -1
_QUEUE_DIGITS_MAX: Final = 9


class QueueName(NamedTuple):
    """A queue; queues are sorted by these fields."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic} {self.broker}/{self.queue_id}"


class QueueRange(NamedTuple):
    """Offsets of one queue from `start` (inclusive) to `end` (exclusive)."""

    queue: QueueName
    start: int
    end: int


Offsets = dict[QueueName, int]

JsonOffsets = dict[str, dict[str, dict[str, int]]]


def to_json(offsets: Mapping[QueueName, int]) -> JsonOffsets:
    """Convert to the checkpoint format: equal offsets give equal JSON."""
    found: JsonOffsets = {}
    for queue, offset in sorted(offsets.items()):
        found.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offset
    return found


def from_json(value: object) -> Offsets:
    """Convert from the checkpoint format. Raises ConfigInvalid that names the malformed part."""
    found: Offsets = {}
    for topic, brokers in _items(value, "offsets"):
        for broker, queues in _items(brokers, topic):
            for queue_id, offset in _items(queues, f"{topic} {broker}"):
                is_queue = queue_id.isdecimal() and len(queue_id) <= _QUEUE_DIGITS_MAX
                if not is_queue or type(offset) is not int or not EARLIEST <= offset < 2**63:
                    raise ConfigInvalid(
                        f"{topic} {broker}: queue {queue_id!r} has offset {offset!r}; a queue is a number, "
                        "and its offset is at least 0, or -2 (earliest) or -1 (latest)"
                    )
                found[QueueName(topic, broker, int(queue_id))] = offset
    return found


def read_offsets(name: str, text: str) -> int | Offsets:
    """Parse an option: EARLIEST, LATEST, or offsets of queues. Raises ConfigInvalid."""
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    try:
        return from_json(json.loads(text))
    except ValueError:
        raise ConfigInvalid(f"option {name} is {text!r}: earliest, latest or JSON is expected") from None
    except ConfigInvalid as error:
        raise ConfigInvalid(f"option {name}: {error}") from None


def share(start: Mapping[QueueName, int], end: Mapping[QueueName, int], most: int) -> Offsets:
    """Limit the ends to `most` messages in total, in proportion to the size of each queue's range.

    Each queue with messages gets at least one, so the total may exceed `most` by the number of queues.
    Every queue of `end` is in `start` and in the result.
    """
    sizes = {queue: max(0, offset - start[queue]) for queue, offset in end.items()}
    total = sum(sizes.values())
    if total <= most:
        return {queue: max(offset, start[queue]) for queue, offset in end.items()}
    return {
        queue: start[queue] + (max(1, math.floor(size * most / total)) if size else 0)
        for queue, size in sizes.items()
    }


def split(ranges: Iterable[QueueRange], least: int) -> list[QueueRange]:
    """Split ranges into about `least` pieces, larger ranges into more. Empty ranges are removed.

    The rule is that of `minPartitions` in Spark's Kafka source.
    """
    full = [part for part in ranges if part.end > part.start]
    total = sum(part.end - part.start for part in full)
    if len(full) >= least:
        return full
    pieces: list[QueueRange] = []
    for part in full:
        size = part.end - part.start
        count = min(size, max(1, round(size / total * least)))
        cuts = [part.start + size * number // count for number in range(count + 1)]
        pieces += [QueueRange(part.queue, *cut) for cut in pairwise(cuts)]
    return pieces


def _items(value: object, where: str) -> Iterable[tuple[str, object]]:
    if not isinstance(value, Mapping):
        raise ConfigInvalid(f"{where}: {value!r} should be a JSON object: topic, broker, queue, offset")
    return value.items()
