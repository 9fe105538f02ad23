"""CPU time of one task of the Spark source, without Spark: `python -m tools.bench.spark_task`.

The sink fills one queue of a rocketpy broker process with bodies of 100 bytes. Then a process of each
checkout reads it in turn, like a task of Spark, and writes the Arrow batches to the null device. It prints
CPU microseconds per row by column set and checkout: of the task with its columns, of Arrow's writer, of the
thread with the connections, and in total. A second table has the seconds for planning a batch read and a
micro-batch of a topic with many queues.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pyspark_rocketmq.messages_to_rows import check_schema, source_schema
from pyspark_rocketmq.offsets import QueueName, QueueRange
from pyspark_rocketmq.options import SinkOptions, SourceOptions
from pyspark_rocketmq.reader import BatchReader, StreamReader
from pyspark_rocketmq.rows_to_messages import Columns
from pyspark_rocketmq.sink import TaskId, send_rows
from pyspark_rocketmq.source import read_ranges
from rocketpy.sync import AdminClient
from tests.interop.java_peer import REPOSITORY
from tests.interop.processes import OurBroker, OurNameServer, our_environment
from tools.bench.comparison import in_turn
from tools.bench.machine import describe

TOPIC: Final = "BenchTask"
MANY_QUEUES: Final = "BenchQueues"
COLUMNS: Final = ("all", "body")
PATIENT: Final = {"waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}
FILL_ROWS: Final = 10_000
"""Rows of an Arrow batch that the sink writes."""


class Reader:
    """A process of a checkout that reads on request: JSON lines in, JSON lines out."""

    def __init__(self, checkout: Path, namesrv: str, broker: str) -> None:
        self.name = checkout.name
        command = [sys.executable, "-P", str(Path(__file__)), "--serve", namesrv, "--broker", broker]
        environment = our_environment(checkout)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, **what: Any) -> dict[str, float]:
        """Send a request; return its measurements. Raises RuntimeError if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the reader of {self.name} ended with {self._process.wait()}")
        found: dict[str, float] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(namesrv: str, broker: str) -> None:
    """Read on request, in the process of a checkout."""
    for line in sys.stdin:
        what = json.loads(line)
        print(json.dumps(read(namesrv, broker, **what) if what else plan(namesrv)), flush=True)


def plan(namesrv: str) -> dict[str, float]:
    """Plan a batch read and a micro-batch of the topic with many queues, as Spark's driver does."""
    given, columns = {"nameServer": namesrv, "topic": MANY_QUEUES}, check_schema([("body", "binary")])
    stream = StreamReader(columns, SourceOptions.read(given, streaming=True))
    start = stream.initialOffset()
    began = time.perf_counter()
    stream.partitions(start, stream.latestOffset(start))
    micro_batch_s = time.perf_counter() - began
    stream.stop()
    began = time.perf_counter()
    BatchReader(columns, SourceOptions.read(given, streaming=False)).partitions()
    return {"batch": time.perf_counter() - began, "micro-batch": micro_batch_s}


def read(namesrv: str, broker: str, *, columns: str, rows: int) -> dict[str, float]:
    """Read the first rows of the queue once, as a task does, and measure."""
    schema = "body binary" if columns == "body" else source_schema()
    chosen = check_schema([(name, kind) for name, kind in (field.split(" ") for field in schema.split(", "))])
    options = SourceOptions.read({"nameServer": namesrv, "topic": TOPIC}, streaming=False)
    part = QueueRange(QueueName(TOPIC, broker, 0), 0, rows)
    found = 0
    write_s = 0.0
    process, thread = time.process_time(), time.thread_time()
    with open("/dev/null", "wb") as sink:  # noqa: PTH123 - a device
        writer = None
        for batch in read_ranges([part], chosen, options):
            at = time.thread_time()
            writer = writer or pa.ipc.new_stream(sink, batch.schema)
            writer.write_batch(batch)
            write_s += time.thread_time() - at
            found += batch.num_rows
    process_s, thread_s = time.process_time() - process, time.thread_time() - thread
    if found != rows:
        raise RuntimeError(f"{found} rows of {rows} were read")
    us = 1e6 / rows
    return {
        "all": process_s * us,
        "task": (thread_s - write_s) * us,
        "Arrow": write_s * us,
        "connections": (process_s - thread_s) * us,
    }


def fill(namesrv: str, rows: int) -> None:
    """Write rows with the sink: tag, key, two properties of the job, and a body."""
    fields = [
        ("body", "binary"),
        ("tags", "string"),
        ("keys", "string"),
        ("properties", "map<string,string>"),
    ]
    options = SinkOptions.read({"nameServer": namesrv, "topic": TOPIC, "sendTimeoutMs": "30000"})

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, FILL_ROWS):
            numbers = range(first, min(rows, first + FILL_ROWS))
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([f"{number:0100}".encode() for number in numbers], pa.binary()),
                    pa.array([f"tag{number % 7}" for number in numbers], pa.string()),
                    pa.array([f"key-{number}" for number in numbers], pa.string()),
                    pa.array(
                        [[("source", "bench"), ("number", str(number))] for number in numbers],
                        pa.map_(pa.string(), pa.string()),
                    ),
                ],
                names=[name for name, _ in fields],
            )

    send_rows(batches(), Columns(fields, options), options, TaskId("bench", 0, 0))


def measure(options: argparse.Namespace) -> None:
    """Print the medians of all rounds, after a warm-up round."""
    with tempfile.TemporaryDirectory(prefix="rocketpy-spark-task-") as folder:
        run = Path(folder)
        with OurNameServer(run) as names, OurBroker(run, names.address, conf=PATIENT) as broker:
            with AdminClient(names.address) as admin:
                admin.create_topic(TOPIC, 1, key="InteropCluster")
                admin.create_topic(MANY_QUEUES, options.queues, key="InteropCluster")
            fill(names.address, options.rows)
            readers = [
                Reader(path, names.address, str(broker.conf["brokerName"])) for path in options.checkout
            ]
            found: dict[tuple[int, str], list[dict[str, float]]] = {}
            for number in range(options.rounds + 1):
                for columns in COLUMNS:
                    for place in in_turn(list(range(len(readers))), number):
                        sample = readers[place].ask(columns=columns, rows=options.rows)
                        if number:
                            found.setdefault((place, columns), []).append(sample)
            plans = [[reader.ask() for _ in range(options.rounds)] for reader in readers]
            for reader in readers:
                reader.close()
    print(
        f"{'checkout':14} {'columns':8} {'all':>6} {'min..max':>12} "
        f"{'task':>6} {'Arrow':>6} {'connections':>11}"
    )
    for (place, columns), samples in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
        middle = medians(samples)
        totals = [sample["all"] for sample in samples]
        spread = f"{min(totals):.2f}..{max(totals):.2f}"
        print(
            f"{readers[place].name:14} {columns:8} {middle['all']:6.2f} {spread:>12}"
            f" {middle['task']:6.2f} {middle['Arrow']:6.2f} {middle['connections']:11.2f}"
        )
    for reader, seconds in zip(readers, plans, strict=True):
        middle = medians(seconds)
        print(
            f"{reader.name}: {options.queues} queues are planned in {middle['batch']:.2f} s, "
            f"a micro-batch of them in {middle['micro-batch']:.2f} s"
        )


def medians(samples: list[dict[str, float]]) -> dict[str, float]:
    """The median of each number."""
    return {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.spark_task")
    parser.add_argument("--checkout", type=Path, action="append", help="this one by default")
    parser.add_argument("--queues", type=int, default=512, help="of the topic whose reads are planned")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--broker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.broker)
        return
    options.checkout = options.checkout or [REPOSITORY]
    print(describe())
    measure(options)


if __name__ == "__main__":
    main()
