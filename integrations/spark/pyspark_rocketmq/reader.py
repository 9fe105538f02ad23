"""Readers of the data source, called by Spark on the driver and in tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_rocketmq.offsets import Offsets, QueueRange, from_json, share, split, to_json
from pyspark_rocketmq.options import SourceOptions
from pyspark_rocketmq.planner import Planner
from pyspark_rocketmq.source import read_range
from rocketpy.errors import RocketError

log = logging.getLogger("pyspark_rocketmq")


class RangePartition(InputPartition):
    """A range of one queue, for one task."""

    def __init__(self, part: QueueRange) -> None:
        super().__init__(part)
        self.part = part


class BatchReader(DataSourceReader):
    """`spark.read.format("rocketmq")`: planning fixes both ends of the range."""

    def __init__(self, names: Sequence[str], options: SourceOptions) -> None:
        self._names = names
        self._options = options

    def partitions(self) -> list[RangePartition]:
        """One or more (`minPartitions`) per queue with messages. Raises RocketError, DataLoss."""
        planner = Planner(self._options)
        try:
            ranges = planner.batch_ranges()
        finally:
            planner.close()
        return [RangePartition(part) for part in split(ranges, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task. Raises RocketError, DataLoss."""
        if not isinstance(partition, RangePartition):  # Spark's own type if there are no partitions
            return iter(())
        return read_range(partition.part, self._names, self._options)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("rocketmq")`.

    Spark stores the offsets in its checkpoint before it reads up to them, so a repeated micro-batch reads the
    same range. One process of the driver has one object of this class for the life of a query.
    """

    def __init__(self, names: Sequence[str], options: SourceOptions) -> None:
        self._names = names
        self._options = options
        self._planner: Planner | None = None
        self._stop_at: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The starting offsets of a query without a checkpoint."""
        return to_json(self._planning().starting())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Option maxOffsetsPerTrigger."""
        most = self._options.most_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end offsets of the next micro-batch, within the limit."""
        known = from_json(start)
        ends = self._known_ends(known)
        if isinstance(limit, ReadMaxRows):
            begins = {queue: known.get(queue, 0) for queue in ends}
            for queue in ends.keys() - known.keys():
                begins[queue] = self._planning().first(queue)
            # `partitions` reports an end before its start as data loss.
            shared = share(begins, ends, limit.max_rows)
            ends = {queue: min(end, shared[queue]) for queue, end in ends.items()}
        return to_json(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The current ends of all available queues, for the query's progress."""
        try:
            return to_json(self._planning().ends({}))
        except RocketError as error:  # the query continues without them
            log.info("the latest offsets are unavailable: %s", error)
            return None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query at the current ends of the queues."""
        self._stop_at = self._planning().now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        """The ranges of a micro-batch. Raises RocketError, DataLoss."""
        ranges = self._planning().ranges(from_json(start), from_json(end))
        return [RangePartition(part) for part in split(ranges, self._options.min_partitions)]

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task. Raises RocketError, DataLoss."""
        return read_range(partition.part, self._names, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Option commitOffsets. Spark calls it when the next micro-batch begins, so not after the last."""
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

    def _known_ends(self, known: Offsets) -> Offsets:
        if self._stop_at is None:
            return self._planning().ends(known)
        ends = known | self._stop_at
        behind = {queue: offset for queue, offset in known.items() if ends[queue] < offset}
        if behind:
            # `partitions` reports the loss, unless the ends came from a lagging slave.
            found = self._planning().ends(known)
            ends |= {queue: min(offset, found[queue]) for queue, offset in behind.items()}
        return ends

    def _planning(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner
