"""Offsets of queues: their JSON format in options and checkpoints, and how ranges are limited and split.

Plain values, no I/O. In JSON, offsets are ``{"Orders": {"broker-a": {"0": 23, "1": -2}}}``: topic, broker,
queue, offset. -2 is the earliest offset and -1 the end, as in Spark's Kafka source. Times of queues, in ms
since 1970, have the same format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from rocketpy.errors import ConfigInvalid

EARLIEST: Final = -2
LATEST: Final = -1
_QUEUE_DIGITS_MAX: Final = 9

T = TypeVar("T")


class QueueName(NamedTuple):
    """Identifies a queue. Queues are sorted by these fields."""

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


class Position(NamedTuple):
    """Where a read starts or ends."""

    option: str
    """The name of the option."""
    value: int | Offsets
    """EARLIEST, LATEST or a time for all queues, or the offset or time of each queue."""
    is_time: bool = False
    """Whether values are times, in ms since 1970."""


def to_json(offsets: Mapping[QueueName, int]) -> JsonOffsets:
    """Convert to the checkpoint format: equal offsets give equal JSON."""
    found: JsonOffsets = {}
    for queue, offset in sorted(offsets.items()):
        found.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offset
    return found


def from_json(value: object) -> Offsets:
    """Convert from the checkpoint format. Raises ConfigInvalid that names the malformed part."""
    return _values(value, "offset", EARLIEST, "at least 0, or -2 (earliest) or -1 (latest)")


def read_offsets(name: str, text: str) -> int | Offsets:
    """Parse an option: EARLIEST, LATEST, or offsets of queues. Raises ConfigInvalid."""
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    return _read_json(name, text, from_json, "earliest, latest or JSON")


def read_times(name: str, text: str) -> Offsets:
    """Parse an option: a time of each queue, in ms since 1970. Raises ConfigInvalid."""
    return _read_json(name, text, partial(_values, what="time", least=0, range_="0 or more ms"), "JSON")


def read_queues(name: str, text: str) -> frozenset[QueueName]:
    """Parse an option: queues as ``{"Orders": {"broker-a": [0, 1]}}``. Raises ConfigInvalid."""

    def convert(value: object) -> frozenset[QueueName]:
        return frozenset(
            QueueName(topic, broker, _queue_id(queue_id, f"{topic} {broker}"))
            for topic, brokers in _items(value, "queues")
            for broker, numbers in _items(brokers, topic)
            for queue_id in _check_list(numbers, f"{topic} {broker}")
        )

    return _read_json(name, text, convert, "JSON")


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


def split(ranges: Iterable[QueueRange], least: int, most_rows: int = 0) -> list[QueueRange]:
    """Cut ranges into about `least` pieces or more, of at most `most_rows` messages each.

    Empty ranges are removed, and larger ranges are cut into more pieces. 0 for no limit. The rules are those
    of `minPartitions` and `maxRecordsPerPartition` in Spark's Kafka source.
    """
    sizes = {part: part.end - part.start for part in ranges if part.end > part.start}
    total = sum(sizes.values())
    counts = {part: -(-size // most_rows) if most_rows else 1 for part, size in sizes.items()}
    if sum(counts.values()) < least:
        counts = {
            part: min(sizes[part], max(count, round(sizes[part] / total * least)))
            for part, count in counts.items()
        }
    pieces: list[QueueRange] = []
    for part, count in counts.items():
        cuts = [part.start + sizes[part] * number // count for number in range(count + 1)]
        pieces += [QueueRange(part.queue, *cut) for cut in pairwise(cuts)]
    return pieces


def group_small(pieces: Iterable[QueueRange], most_rows: int) -> list[list[QueueRange]]:
    """Group consecutive pieces into tasks that have at most `most_rows` messages, or one piece."""
    tasks: list[list[QueueRange]] = []
    rows = 0
    for piece in pieces:
        size = piece.end - piece.start
        if not tasks or rows + size > most_rows:
            tasks.append([])
            rows = 0
        tasks[-1].append(piece)
        rows += size
    return tasks


def behind_latest(read: Mapping[QueueName, int], latest: Mapping[QueueName, int]) -> dict[str, list[int]]:
    """Return the number of unread messages of each queue, by topic. Queues that are not in both are left out.

    A latest offset below the read one comes from a lagging slave, and counts as 0.
    """
    found: dict[str, list[int]] = {}
    for queue in sorted(read.keys() & latest.keys()):
        found.setdefault(queue.topic, []).append(max(0, latest[queue] - read[queue]))
    return found


def _values(value: object, what: str, least: int, range_: str) -> Offsets:
    """Convert JSON with a number for each queue: an offset or a time."""
    found: Offsets = {}
    for topic, brokers in _items(value, f"{what}s"):
        for broker, queues in _items(brokers, topic):
            for queue_id, number in _items(queues, f"{topic} {broker}"):
                is_queue = queue_id.isdecimal() and len(queue_id) <= _QUEUE_DIGITS_MAX
                if not is_queue or type(number) is not int or not least <= number < 2**63:
                    raise ConfigInvalid(
                        f"{topic} {broker}: queue {queue_id!r} has {what} {number!r}; a queue is a number, "
                        f"and its {what} is {range_}"
                    )
                found[QueueName(topic, broker, int(queue_id))] = number
    return found


def _read_json(name: str, text: str, convert: Callable[[object], T], expected: str) -> T:
    try:
        return convert(json.loads(text))
    except ValueError:
        raise ConfigInvalid(f"option {name} is {text!r}: {expected} is expected") from None
    except ConfigInvalid as error:
        raise ConfigInvalid(f"option {name}: {error}") from None


def _items(value: object, where: str) -> Iterable[tuple[str, object]]:
    if not isinstance(value, Mapping):
        raise ConfigInvalid(f"{where}: {value!r} should be a JSON object: topic, broker, queue")
    return value.items()


def _check_list(value: object, where: str) -> Iterable[object]:
    if not isinstance(value, list):
        raise ConfigInvalid(f"{where}: {value!r} should be a JSON list of queue numbers")
    return value


def _queue_id(value: object, where: str) -> int:
    if type(value) is not int or not 0 <= value < 10**_QUEUE_DIGITS_MAX:
        raise ConfigInvalid(f"{where}: {value!r} is not the number of a queue")
    return value
