"""Rows a second from Spark into brokers: `python -m tests.bench.spark [--rows 1000000] [--rounds 3]`.

Bodies of 100 bytes, local[2], 8 queues. The ways take turns, round by round:

    the sink         `df.write.format("rocketmq")`, into our broker and into RocketMQ's
    singly           `foreachPartition` with one send after the other; fewer rows, as it takes long
    Kafka's sink     `df.write.format("kafka")`, into Kafka
    rows made, rows in Python, rows as messages: stages of the sink, each with what those before it do

What a machine lacks (Maven and a JDK for the brokers in Java) is left out. Each way first runs once, with as
many rows, that does not count: Spark makes code for each frame, and its JVM compiles it while it runs.
Beside the rate stands the CPU time a row of the broker, of Spark's Python workers and of Spark's JVM, which
other work on the machine changes less; how many cores that keeps busy; and how many messages there are more
than rows were written.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import __version__ as spark_version

from examples.spark_session import start_session
from pyspark_rocketmq.columns import Columns
from pyspark_rocketmq.options import SinkOptions
from rocketpy import Message
from rocketpy.sync import AdminClient, Producer
from tests.bench.kafka import KafkaBroker, broker_jars, connector_jars
from tests.bench.machine import describe, tree_cpu_s, usage
from tests.bench.servers import BROKER_JVM, CONF
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer, ToolsMissing
from tests.interop.processes import (
    BrokerProcess,
    JavaBroker,
    JavaNameServer,
    NameServerProcess,
    OurBroker,
    OurNameServer,
)

TOPIC, QUEUES = "SparkBench", 8
CLUSTER = "InteropCluster"
# Both brokers refuse messages when they are behind; the rows are to be counted, not the refusals.
PATIENT = {**CONF, "waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}


@dataclass
class Sample:
    """One run of a way: rows a second, and CPU time a row in µs."""

    rate: float
    broker_us: float
    workers_us: float
    jvm_us: float


@dataclass
class Way:
    """How rows go where. write: a frame. stored: how many messages the broker has; None where none go."""

    target: str
    name: str
    broker_pid: int
    rows: int
    write: Callable[[Any], None]
    stored: Callable[[], int] | None
    samples: list[Sample] = field(default_factory=list)
    too_many: int = 0

    @property
    def rate(self) -> float:
        """Median rows a second."""
        return statistics.median(sample.rate for sample in self.samples)

    def line(self) -> str:
        """Its row of the table."""
        rates = [sample.rate for sample in self.samples]
        cpu = [
            statistics.median(getattr(sample, name) for sample in self.samples)
            for name in ("broker_us", "workers_us", "jvm_us")
        ]
        spread = f"{min(rates):,.0f}..{max(rates):,.0f}"
        cores = sum(cpu) * self.rate / 1e6
        costs = " ".join(f"{value:8.2f}" for value in cpu)
        return (
            f"{self.target:6} {self.name:16} {self.rows:10,} {self.rate:10,.0f} {spread:>20} {costs}"
            f" {cores:6.2f} {self.too_many:8,}"
        )


HEADS = (
    f"{'broker':6} {'way':16} {'rows':>10} {'rows/s':>10} {'min..max':>20} "
    f"{'broker':>8} {'workers':>8} {'JVM':>8} {'cores':>6} {'too many':>8}"
)


def by_sink(namesrv: str) -> Callable[[Any], None]:
    """`df.write`."""
    options = {"nameServer": namesrv, "topic": TOPIC, "sendTimeoutMs": "30000"}
    return lambda frame: frame.write.format("rocketmq").options(**options).mode("append").save()


def singly(namesrv: str) -> Callable[[Any], None]:
    """The work of a job without the sink."""

    def send(rows: Iterable[Any]) -> None:
        with Producer("spark_bench", namesrv) as producer:
            for row in rows:
                producer.send(Message(TOPIC, row.body.encode()), timeout_ms=30_000)

    return lambda frame: frame.foreachPartition(send)


def by_kafka(address: str) -> Callable[[Any], None]:
    """`df.write`, with Kafka's own defaults."""
    options = {"kafka.bootstrap.servers": address, "topic": TOPIC}

    def write(frame: Any) -> None:
        frame.withColumnRenamed("body", "value").write.format("kafka").options(**options).save()

    return write


def stages(namesrv: str) -> dict[str, Callable[[Any], None]]:
    """The work of the sink before it sends, step by step."""
    sink = SinkOptions.read({"nameServer": namesrv, "topic": TOPIC})
    columns = Columns([("body", "string")], sink)

    def discard(batches: Iterable[Any]) -> Iterator[Any]:
        for _ in batches:
            pass
        return iter(())

    def make(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for piece in columns.pieces(batch, 0, lambda *_: None):
                columns.messages(piece, "run/0/0/")
        return iter(())

    def end(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    return {
        "rows made": end,
        "rows in Python": lambda frame: end(frame.mapInArrow(discard, "body string")),
        "rows as messages": lambda frame: end(frame.mapInArrow(make, "body string")),
    }


def ways_to_rocketmq(
    target: str, names: NameServerProcess, broker: BrokerProcess, options: argparse.Namespace
) -> Iterator[Way]:
    """The sink, and one send after the other."""

    def stored() -> int:
        with AdminClient(names.address) as admin:
            return sum(admin.max_offset(queue) for queue in admin.fetch_publish_message_queues(TOPIC))

    with AdminClient(names.address) as admin:
        admin.create_topic(TOPIC, QUEUES, key=CLUSTER)
    yield Way(target, "the sink", broker.pid, options.rows, by_sink(names.address), stored)
    yield Way(target, "singly", broker.pid, options.singly, singly(names.address), stored)


def open_ways(stack: ExitStack, run: Path, spark: Any, kafka: Path | None, options: Any) -> Iterator[Way]:
    """Start the servers."""
    names = stack.enter_context(OurNameServer(run))
    ours = stack.enter_context(OurBroker(run, names.address, conf=PATIENT))
    yield from ways_to_rocketmq("ours", names, ours, options)
    for name, write in stages(names.address).items():
        yield Way("none", name, ours.pid, options.rows, write, None)
    try:
        peer = JavaPeer.prepare(DEFAULT_VERSION)
    except ToolsMissing as missing:
        print(f"RocketMQ's broker is left out: {missing}")
    else:
        their_names = stack.enter_context(JavaNameServer(peer, run))
        theirs = stack.enter_context(JavaBroker(peer, run, their_names.address, conf=PATIENT, jvm=BROKER_JVM))
        yield from ways_to_rocketmq("Java", their_names, theirs, options)
    if kafka is not None:
        broker = stack.enter_context(KafkaBroker(kafka, run, partitions=QUEUES))
        reader = spark.read.format("kafka").options(
            **{"kafka.bootstrap.servers": broker.address, "subscribe": TOPIC}
        )
        yield Way(
            "Kafka",
            "Kafka's sink",
            broker.pid,
            options.rows,
            by_kafka(broker.address),
            lambda: int(reader.load().count()),
        )


def run_once(way: Way, spark: Any, rows: int) -> Sample:
    """Write this many rows, in two partitions."""
    jvm = spark.sparkContext._gateway.proc.pid
    frame = spark.range(0, rows, 1, 2).selectExpr("lpad(cast(id AS string), 100, '0') AS body")

    def spent() -> tuple[float, float, float]:
        jvm_s = usage(jvm).cpu_s
        return usage(way.broker_pid).cpu_s, tree_cpu_s(jvm) - jvm_s, jvm_s

    before, began = spent(), time.perf_counter()
    way.write(frame)
    seconds = time.perf_counter() - began
    time.sleep(0.5)  # what the broker does behind its answers belongs to these rows
    broker, workers, jvm_s = (
        (after - earlier) / rows * 1e6 for after, earlier in zip(spent(), before, strict=True)
    )
    return Sample(rows / seconds, broker, workers, jvm_s)


def settled(stored: Callable[[], int]) -> int:
    """The number of messages, once it does not change: a broker may count them later."""
    count = -1
    while (now := stored()) != count:
        count = now
        time.sleep(1)
    return count


def measure(ways: list[Way], spark: Any, rounds: int) -> None:
    """All ways once to warm up, then in turn; each round begins with the next one."""
    for way in ways:
        run_once(way, spark, way.rows)
    for number in range(rounds):
        first = number % len(ways)
        for way in ways[first:] + ways[:first]:
            if way.stored is None:
                way.samples.append(run_once(way, spark, way.rows))
                continue
            before = settled(way.stored)
            way.samples.append(run_once(way, spark, way.rows))
            way.too_many += settled(way.stored) - before - way.rows


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--singly", type=int, default=20_000, help="rows of foreachPartition")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print({**describe(), "spark": spark_version, "load now": os.getloadavg()})
    settings, kafka = {}, None
    try:
        kafka = broker_jars()
        settings["spark.jars"] = ",".join(map(str, connector_jars()))
    except (ToolsMissing, RuntimeError) as error:
        kafka = None
        print(f"Kafka is left out: {error}")
    spark = start_session("rocketpy bench", settings=settings)
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="rocketpy-spark-bench-") as folder:
        ways = list(open_ways(stack, Path(folder), spark, kafka, options))
        measure(ways, spark, options.rounds)
        print(HEADS, *(way.line() for way in ways), sep="\n")
        print(
            "broker, workers, JVM: CPU microseconds a row; cores: how many these keep busy; "
            "too many: messages that no row stands behind"
        )
        sink, *others = ways
        empty = statistics.median(2 / run_once(sink, spark, 2).rate for _ in range(options.rounds))
        print(f"a write of 2 rows by the sink takes {empty:.2f} s: plans, workers, commit")
        for way in others:
            if way.stored is None:
                continue
            ratio = sink.rate / way.rate
            print(f"the sink into our broker is {ratio:.2f} times as fast as {way.name} into {way.target}")
    spark.stop()


if __name__ == "__main__":
    main()
