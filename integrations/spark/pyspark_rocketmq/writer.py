"""The writers of the data source: thin shells around `send_rows`.

Spark makes a writer when it plans a write, pickles it, and calls `write` of a copy in each task; `commit` and
`abort` are called on yet another copy, on the driver. So a writer keeps nothing but what it was made with.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_rocketmq.columns import Columns
from pyspark_rocketmq.options import SinkOptions
from pyspark_rocketmq.sink import Report, TaskPlace, send_rows

log = logging.getLogger("pyspark_rocketmq")


class Sent(WriterCommitMessage):
    """What a task tells the driver: it has sent all its rows, and each was acknowledged."""

    def __init__(self, report: Report) -> None:
        self.report = report


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("rocketmq")`."""

    def __init__(self, columns: Columns, options: SinkOptions) -> None:
        self._columns = columns
        self._options = options
        self._run_id = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task. Raises RowNotSent."""
        place = TaskPlace(self._run_id, 0, partition_of_task())
        return Sent(send_rows(iterator, self._columns, self._options, place))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every task is done: there is nothing left to do."""
        _log_commit(f"write {self._run_id}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The write failed. What was sent stays sent."""
        _log_abort(f"write {self._run_id}", messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("rocketmq")`."""

    def __init__(self, columns: Columns, options: SinkOptions) -> None:
        self._columns = columns
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task of a micro-batch. Raises RowNotSent."""
        return Sent(send_rows(iterator, self._columns, self._options, place_in_query()))

    # The names of these parameters are Spark's: it passes them by keyword in some versions.
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Every task of the micro-batch is done."""
        _log_commit(f"batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The micro-batch failed, and will be written again. What was sent stays sent."""
        _log_abort(f"batch {batchId}", messages)


def partition_of_task() -> int:
    """The number of the partition that the running task writes."""
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def place_in_query() -> TaskPlace:
    """Where the running task stands, in its query and micro-batch: the same in each attempt.

    Outside of a streaming query the id is random, so that ids of different writes never meet.
    """
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return TaskPlace(query or uuid4().hex, int(batch or 0), partition_of_task())


def _log_commit(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    rows = sum(message.report.rows for message in messages if isinstance(message, Sent))
    log.info("%s: %d rows sent and acknowledged", what, rows)


def _log_abort(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    rows = sum(message.report.rows for message in messages if isinstance(message, Sent))
    log.warning(
        "%s failed; at least %d rows were sent and stay sent. A repetition sends them again with the same "
        "row ids, by which `dedupe` tells them apart",
        what,
        rows,
    )
