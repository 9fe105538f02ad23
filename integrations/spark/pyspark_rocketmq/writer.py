"""Writers of the data source: thin wrappers around `send_rows`.

Spark creates a writer when it plans a write, pickles it, and calls `write` of a copy in each task. `commit`
and `abort` are called on another copy on the driver, so a writer has no mutable state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rocketmq.options import SinkOptions
from pyspark_rocketmq.row_ids import new_run_id, run_id_of
from pyspark_rocketmq.rows_to_messages import Columns
from pyspark_rocketmq.sink import Report, TaskId, send_rows
from pyspark_rocketmq.spark_version import StreamArrowWriter, arrow_batches

log = logging.getLogger("pyspark_rocketmq")


class Sent(WriterCommitMessage):
    """Result of a task: all rows were acknowledged."""

    def __init__(self, report: Report) -> None:
        self.report = report


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("rocketmq")`."""

    def __init__(self, columns: Columns, options: SinkOptions) -> None:
        self._columns = columns
        self._options = options
        self._run_id = new_run_id()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task. Raises RowNotSent."""
        task_id = TaskId(self._run_id, 0, partition_of_task())
        return Sent(send_rows(iterator, self._columns, self._options, task_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Called after every task has ended; only logs the result."""
        _log_commit(f"write {self._run_id}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Called if the write fails. Rows that were sent remain sent."""
        _log_abort(f"write {self._run_id}", messages)


class StreamWriter(StreamArrowWriter):
    """`df.writeStream.format("rocketmq")`."""

    def __init__(self, columns: Columns, options: SinkOptions, schema: StructType) -> None:
        self._columns = columns
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send the rows of one task of a micro-batch. Raises RowNotSent."""
        batches = arrow_batches(iterator, self._schema)
        return Sent(send_rows(batches, self._columns, self._options, task_id_in_query()))

    # Spark defines these parameter names: some versions pass them by keyword.
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Called after every task of the micro-batch has ended."""
        _log_commit(f"batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Called if the micro-batch fails; Spark retries it. Rows that were sent remain sent."""
        _log_abort(f"batch {batchId}", messages)


def partition_of_task() -> int:
    """Return the partition number of the running task."""
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def task_id_in_query() -> TaskId:
    """Identify the running task in its query and micro-batch; the same for every attempt.

    Outside a streaming query the id is random, so that ids of different writes never collide.
    """
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return TaskId(run_id_of(query) if query else new_run_id(), int(batch or 0), partition_of_task())


def _log_commit(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    reports = [message.report for message in messages if isinstance(message, Sent)]
    rows, retried = sum(report.rows for report in reports), sum(report.retried for report in reports)
    log.info("%s: %d rows sent and acknowledged", what, rows)
    if retried:
        log.warning(
            "%s: %d rows were sent again after failed requests, and may be stored twice; `dedupe` removes "
            "the copies",
            what,
            retried,
        )


def _log_abort(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    rows = sum(message.report.rows for message in messages if isinstance(message, Sent))
    log.warning(
        "%s failed; at least %d rows were sent and remain sent; a retry sends them again with the same "
        "row ids, which `dedupe` removes",
        what,
        rows,
    )
