"""Readers of the data source, called by Spark on the driver and in tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from pyspark_rocketmq.messages_to_rows import Column
from pyspark_rocketmq.offsets import (
    Offsets,
    QueueName,
    QueueRange,
    from_json,
    group_small,
    share,
    split,
    to_json,
)
from pyspark_rocketmq.options import SourceOptions
from pyspark_rocketmq.planner import Planner
from pyspark_rocketmq.source import read_ranges
from pyspark_rocketmq.spark_version import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

_UNLIMITED: Final = 2**63 - 1
_SEPARATE_TASKS: Final = 32
"""Up to this number, each piece of a queue has its own task, however small the pieces are."""
_SHARED_ROWS: Final = 10_000
"""Maximum number of messages of a shared task. Reading so many small ones costs about as much as a task."""


class RangePartition(InputPartition):
    """Ranges of queues, for one task."""

    def __init__(self, parts: list[QueueRange]) -> None:
        super().__init__(parts)
        self.parts = parts


class BatchReader(DataSourceReader):
    """`spark.read.format("rocketmq")`: planning fixes both ends of the range."""

    def __init__(self, columns: Sequence[Column], options: SourceOptions) -> None:
        self._columns = columns
        self._options = options

    def partitions(self) -> list[RangePartition]:
        """Return the partitions: one for each queue with messages, unless queues are split or share one.

        Raises ConfigInvalid, RocketError, DataLoss.
        """
        planner = Planner(self._options)
        try:
            ranges = planner.batch_ranges()
        finally:
            planner.close()
        return _partitions(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the messages of one task. Raises RocketError, DataLoss."""
        if not isinstance(partition, RangePartition):  # Spark's own type if there are no partitions
            return iter(())
        return read_ranges(partition.parts, self._columns, self._options)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("rocketmq")`.

    Spark stores the offsets in its checkpoint before it reads up to them, so a repeated micro-batch reads the
    same range. One process of the driver has one object of this class for the life of a query.
    """

    def __init__(
        self, columns: Sequence[Column], options: SourceOptions, clock: Callable[[], float] = monotonic
    ) -> None:
        self._columns = columns
        self._options = options
        self._clock = clock
        self._triggered_at = -inf
        self._planner: Planner | None = None
        self._stop_at: Offsets | None = None
        self._seen: Offsets | None = None
        self._found_ends: Offsets = {}
        self._is_complete = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the starting offsets of a query without a checkpoint. Raises ConfigInvalid, RocketError."""
        return to_json(self._last_seen())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch, from maxOffsetsPerTrigger and minOffsetsPerTrigger.

        `latestOffset` enforces the minimum, since ReadMinRows has no maximum delay. It does so only under
        ReadMaxRows, which has no bound when there is only a minimum.
        """
        options = self._options
        if options.max_offsets_per_trigger or options.min_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger or _UNLIMITED)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end offsets of the next micro-batch, within the limit. Raises RocketError, DataLoss.

        Spark before 4.2 passes no arguments. With a checkpoint, it calls `partitions` before this method;
        without one, it calls `initialOffset` after it.
        """
        known = self._last_seen() if start is None else from_json(start)
        ends = self._known_ends(known)
        if isinstance(limit, ReadMaxRows):
            begins = known | self._planning().earliest_offsets(ends.keys() - known.keys())
            if self._waits(begins, ends):
                return to_json(known)
            # `partitions` reports an end before its start as data loss.
            shared = share(begins, ends, limit.max_rows)
            ends = {queue: min(end, shared[queue]) for queue, end in ends.items()}
        return to_json(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends that `latestOffset` found, for the query's progress: Spark calls it first.

        A queue whose broker is unavailable has the end that was found last, and is left out without one. None
        without any queue.
        """
        return to_json(self._found_ends) if self._found_ends else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query at the current ends of the queues. Raises RocketError, DataLoss."""
        self._stop_at = self._planning().latest_offsets()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        """Return the ranges of a micro-batch. Raises RocketError, DataLoss."""
        self._seen = from_json(end)
        ranges = self._planning().ranges(from_json(start), self._seen)
        return _partitions(ranges, self._options)

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        """Return the messages of one task. Raises RocketError, DataLoss."""
        return read_ranges(partition.parts, self._columns, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the group's offsets, with option commitOffsets.

        Spark calls it when the next micro-batch begins, so it does not for the last micro-batch.
        """
        if self._options.commit_offsets:
            self._planning().commit(from_json(end))

    def stop(self) -> None:
        """Disconnect at the end of the query."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle everything except connections, for tasks."""
        return {**self.__dict__, "_planner": None}

    def _last_seen(self) -> Offsets:
        """Return the end of the last micro-batch that Spark planned, or the starting offsets."""
        if self._seen is None:
            self._seen = self._planning().starting_offsets()
        return self._seen

    def _waits(self, begins: Mapping[QueueName, int], ends: Mapping[QueueName, int]) -> bool:
        """Whether the micro-batch waits for more messages. An available-now query never does."""
        least = self._options.min_offsets_per_trigger
        if not least or self._stop_at is not None:
            return False
        now = self._clock()
        ready = sum(max(0, end - begins[queue]) for queue, end in ends.items())
        is_due = now - self._triggered_at >= self._options.trigger_delay_ms / 1000
        if ready >= least or (ready and is_due):
            self._triggered_at = now
            return False
        return True

    def _known_ends(self, known: Offsets) -> Offsets:
        """Return the ends of all queues; a queue that is unavailable keeps its offset.

        The first micro-batch requires every queue of the checkpoint: it may be the only one, and the query
        would end with rows missing. Later ones continue without. Spark tells a source neither the trigger
        `once` nor, before 4.2, `availableNow`.
        """
        ends = self._planning().available_ends(known) if self._stop_at is None else self._stop_at
        if not self._is_complete and self._options.fail_on_data_loss:
            ends |= self._planning().ends_of({queue: known[queue] for queue in known.keys() - ends.keys()})
        self._is_complete = True
        if self._stop_at is None:
            last = {queue: end for queue, end in self._found_ends.items() if queue in known}
            self._found_ends = last | ends
            return known | ends
        self._found_ends = ends
        ends = known | ends
        behind = {queue: offset for queue, offset in known.items() if ends[queue] < offset}
        if behind:
            # `partitions` reports the loss, unless the ends came from a lagging slave.
            found = known | self._planning().available_ends(known)
            ends |= {queue: min(offset, found[queue]) for queue, offset in behind.items()}
        return ends

    def _planning(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner


def _partitions(ranges: Sequence[QueueRange], options: SourceOptions) -> list[RangePartition]:
    """Plan the tasks: one for each piece of a queue, but small pieces share tasks if there are many.

    A shared task has at most 1 / `_SEPARATE_TASKS` of all messages, so that later stages run in parallel.
    """
    least, most = options.min_partitions, options.max_partition_rows
    pieces = split(ranges, least, most)
    tasks = [[piece] for piece in pieces]
    if len(tasks) > _SEPARATE_TASKS:
        rows = sum(piece.end - piece.start for piece in pieces) // _SEPARATE_TASKS
        grouped = group_small(pieces, min(rows, _SHARED_ROWS, most or _SHARED_ROWS))
        tasks = grouped if len(grouped) >= least else tasks
    return [RangePartition(parts) for parts in tasks]
