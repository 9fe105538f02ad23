"""Rows per second between Spark and brokers: `python -m tools.bench.spark [--bytes 100] [--partitions 2,20]`.

local[2]; bodies of 100 bytes, 1 KiB and 10 KiB; topics of 2, 20 and 200 queues or partitions. For each pair
the measurements alternate:

    write            `df.write.format("rocketmq")` to rocketpy's broker and RocketMQ's, Kafka's sink to Kafka
    read, read body  `spark.read` of all columns or of the body, discarded; the same with Kafka's source
    stages           with --stages: the steps of the sink before it sends, each including the earlier ones
    singly           with --stages: `foreachPartition` with single sends; fewer rows

Brokers in Java are left out if Maven and a JDK are missing. Each measurement first runs once as a warm-up
with the same number of rows, because Spark generates code for each frame and its JVM compiles that code. The
table has the rate, its ratio to Kafka's ("of Kafka"), the CPU time per row of the broker, of Spark's Python
workers and of Spark's JVM, the number of busy cores, and the number of messages in excess of the written rows
("too many"). Other work on the machine affects CPU times less than rates.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark import __version__ as spark_version
from pyspark.errors import PySparkException

from examples.spark_session import start_session
from pyspark_rocketmq.options import SinkOptions
from pyspark_rocketmq.rows_to_messages import Columns, Ids
from rocketpy import Message
from rocketpy.sync import AdminClient, Producer
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer, ToolsMissing
from tests.interop.processes import (
    BrokerProcess,
    JavaBroker,
    JavaNameServer,
    NameServerProcess,
    OurBroker,
    OurNameServer,
)
from tools.bench.comparison import in_turn, numbers
from tools.bench.kafka import KafkaBroker, broker_jars, connector_jars
from tools.bench.machine import describe, tree_cpu_s, usage
from tools.bench.servers import BROKER_JVM, CONF

CLUSTER: Final = "InteropCluster"
# Without these limits, overloaded brokers would reject messages.
PATIENT: Final = {**CONF, "waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}
KAFKA: Final = "Kafka"
WRITE, READ, READ_BODY = "write", "read", "read body"


@dataclass(frozen=True)
class Size:
    """The size of rows and topics. body: bytes of a row's body. partitions: queues of the topic."""

    body: int
    partitions: int
    rows: int

    @property
    def topic(self) -> str:
        """The topic that is written to."""
        return f"Bench-{self.body}-{self.partitions}"

    @property
    def read_topic(self) -> str:
        """The topic that is filled once, and read."""
        return f"{self.topic}-read"


@dataclass
class Sample:
    """One measurement: rows per second, and CPU time per row in µs."""

    rate: float
    broker_us: float
    workers_us: float
    jvm_us: float


@dataclass
class Way:
    """A kind of measurement.

    run: writes or reads a number of rows. stored: returns the broker's number of messages; None for reads.
    fill: writes the rows that are read.
    """

    target: str
    name: str
    broker_pids: Sequence[int]
    rows: int
    run: Callable[[int], None]
    stored: Callable[[], int] | None = None
    fill: Callable[[], None] | None = None
    samples: list[Sample] = field(default_factory=list)
    too_many: int = 0

    @property
    def rate(self) -> float:
        """Median rows per second."""
        return statistics.median(sample.rate for sample in self.samples)

    def line(self, size: Size, kafka: float | None) -> str:
        """Return its row of the table. kafka: the rate of Kafka in the same measurement."""
        rates = [sample.rate for sample in self.samples]
        cpu = [
            statistics.median(getattr(sample, name) for sample in self.samples)
            for name in ("broker_us", "workers_us", "jvm_us")
        ]
        spread = f"{min(rates):,.0f}..{max(rates):,.0f}"
        cores = sum(cpu) * self.rate / 1e6
        costs = " ".join(f"{value:8.2f}" for value in cpu)
        beside = f"{self.rate / kafka:8.2f}" if kafka else " " * 8
        return (
            f"{size.body:6} {size.partitions:5} {self.target:6} {self.name:16} {self.rows:10,}"
            f" {self.rate:10,.0f} {spread:>20} {beside} {costs} {cores:6.2f} {self.too_many:8,}"
        )


HEADS: Final = (
    f"{'bytes':>6} {'parts':>5} {'broker':6} {'way':16} {'rows':>10} {'rows/s':>10} {'min..max':>20} "
    f"{'of Kafka':>8} {'broker':>8} {'workers':>8} {'JVM':>8} {'cores':>6} {'too many':>8}"
)


class Bench:
    """The frames of one size."""

    def __init__(self, spark: Any, size: Size) -> None:
        self.spark = spark
        self.size = size

    def frame(self, rows: int) -> Any:
        """Return rows in two partitions; each body is different, so that it does not compress to nothing."""
        width = self.size.body
        pieces = -(-width // 64)
        digests = ", ".join(f"sha2(concat(id, '-{number}'), 256)" for number in range(pieces))
        return self.spark.range(0, rows, 1, 2).selectExpr(f"left(concat({digests}), {width}) AS body")

    def to_rocketmq(self, namesrv: str, topic: str, rows: int) -> None:
        """Write rows with the sink."""
        options = {"nameServer": namesrv, "topic": topic, "sendTimeoutMs": "30000"}
        self.frame(rows).write.format("rocketmq").options(**options).mode("append").save()

    def to_kafka(self, address: str, topic: str, rows: int) -> None:
        """Write rows with Kafka's sink and its own defaults."""
        options = {"kafka.bootstrap.servers": address, "topic": topic}
        frame = self.frame(rows).withColumnRenamed("body", "value")
        frame.write.format("kafka").options(**options).save()

    def read(self, source: str, options: Mapping[str, str], schema: str | None, _rows: int) -> None:
        """Read all messages of a topic. schema: of the columns; None for all."""
        reader = self.spark.read.format(source).options(**options)
        if schema is not None and source == "rocketmq":
            reader = reader.schema(schema)  # Spark passes no other column pruning to Python sources
        frame = reader.load()
        _discard(frame if schema is None else frame.select(schema.split()[0]))

    def singly(self, namesrv: str, rows: int) -> None:
        """Write rows as a job without the sink would."""
        topic = self.size.topic

        def send(given: Iterable[Any]) -> None:
            with Producer("spark_bench", namesrv) as producer:
                for row in given:
                    producer.send(Message(topic, row.body.encode()), timeout_ms=30_000)

        self.frame(rows).foreachPartition(send)

    def stages(self, namesrv: str) -> dict[str, Callable[[int], None]]:
        """Return the work of the sink before it sends, step by step."""
        columns = Columns([("body", "string")], SinkOptions.read({"nameServer": namesrv, "topic": "T"}))

        def discard(batches: Iterable[Any]) -> Iterator[Any]:
            for _ in batches:
                pass
            return iter(())

        def make(batches: Iterable[Any]) -> Iterator[Any]:
            for batch in batches:
                for request in columns.split_into_requests(batch, 0, lambda *_: None):
                    columns.messages(request, Ids("run/0/0/"))
            return iter(())

        return {
            "rows made": lambda rows: _discard(self.frame(rows)),
            "rows in Python": lambda rows: _discard(self.frame(rows).mapInArrow(discard, "body string")),
            "rows as messages": lambda rows: _discard(self.frame(rows).mapInArrow(make, "body string")),
        }


def _discard(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def ways_to_rocketmq(
    bench: Bench,
    target: str,
    names: NameServerProcess,
    brokers: Sequence[BrokerProcess],
    options: argparse.Namespace,
) -> Iterator[Way]:
    """Write to and read from RocketMQ brokers, which share the queues."""
    size, pids = bench.size, tuple(broker.pid for broker in brokers)
    address = names.address

    def stored() -> int:
        with AdminClient(address) as admin:
            return sum(admin.max_offset(queue) for queue in admin.fetch_publish_message_queues(size.topic))

    with AdminClient(address) as admin:
        for topic in (size.topic, size.read_topic):
            admin.create_topic(topic, max(1, size.partitions // len(brokers)), key=CLUSTER)
    yield Way(target, WRITE, pids, size.rows, partial(bench.to_rocketmq, address, size.topic), stored)
    if options.stages:
        yield Way(target, "singly", pids, options.singly, partial(bench.singly, address), stored)
    source = {"nameServer": address, "topic": size.read_topic}
    fill = partial(bench.to_rocketmq, address, size.read_topic, size.rows)
    run = partial(bench.read, "rocketmq", source, None)
    yield Way(target, READ, pids, size.rows, run, fill=fill)
    run = partial(bench.read, "rocketmq", source, "body binary")
    yield Way(target, READ_BODY, pids, size.rows, run)


def ways_to_kafka(bench: Bench, broker: KafkaBroker) -> Iterator[Way]:
    """Write to and read from Kafka."""
    size, address = bench.size, broker.address

    def source(topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": address, "subscribe": topic}

    def stored() -> int:
        return int(bench.spark.read.format("kafka").options(**source(size.topic)).load().count())

    bench.to_kafka(address, size.topic, 2)  # makes the topic
    yield Way(KAFKA, WRITE, (broker.pid,), size.rows, partial(bench.to_kafka, address, size.topic), stored)
    fill = partial(bench.to_kafka, address, size.read_topic, size.rows)
    run = partial(bench.read, "kafka", source(size.read_topic), None)
    yield Way(KAFKA, READ, (broker.pid,), size.rows, run, fill=fill)
    run = partial(bench.read, "kafka", source(size.read_topic), "value binary")
    yield Way(KAFKA, READ_BODY, (broker.pid,), size.rows, run)


def measure(
    spark: Any, sizes: list[Size], kafka: Path | None, peer: JavaPeer | None, options: Any
) -> Iterator[tuple[Size, Way]]:
    """Start servers, and measure all ways of sizes with the same number of partitions."""
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="rocketpy-spark-bench-") as folder:
        run = Path(folder)
        names = stack.enter_context(OurNameServer(run))
        ours = stack.enter_context(OurBroker(run, names.address, conf=PATIENT))
        several: list[OurBroker] = []
        if options.brokers:
            more_names = stack.enter_context(OurNameServer(run, name="more-names"))
            several = [
                stack.enter_context(
                    OurBroker(run, more_names.address, name=f"our-broker-{number}", conf=PATIENT)
                )
                for number in range(options.brokers)
            ]
        if peer is not None:
            their_names = stack.enter_context(JavaNameServer(peer, run))
            theirs = stack.enter_context(
                JavaBroker(peer, run, their_names.address, conf=PATIENT, jvm=BROKER_JVM)
            )
        if kafka is not None:
            broker = stack.enter_context(KafkaBroker(kafka, run, partitions=sizes[0].partitions))
        for size in sizes:
            bench = Bench(spark, size)
            ways = list(ways_to_rocketmq(bench, "ours", names, [ours], options))
            if several:
                ways += ways_to_rocketmq(bench, f"ours*{len(several)}", more_names, several, options)
            if options.stages:
                stages = bench.stages(names.address)
                ways += [Way("none", name, (ours.pid,), size.rows, work) for name, work in stages.items()]
            if peer is not None:
                ways += ways_to_rocketmq(bench, "Java", their_names, [theirs], options)
            if kafka is not None:
                ways += ways_to_kafka(bench, broker)
            run_rounds(ways, spark, options.rounds)
            yield from ((size, way) for way in ways)


def run_rounds(ways: list[Way], spark: Any, rounds: int) -> None:
    """Run all measurements once to warm up, then in turn. Kafka's sink may time out, and is then omitted."""
    for way in list(ways):
        try:
            if way.fill is not None:
                way.fill()
            run_once(way, spark)
        except (Py4JJavaError, PySparkException) as error:
            if way.target != KAFKA:
                raise
            print(f"{way.target} {way.name} is left out: {str(error).splitlines()[0]}")
            ways.remove(way)
    for number in range(rounds):
        for way in in_turn(ways, number):
            if way.stored is None:
                way.samples.append(run_once(way, spark))
                continue
            before = settled(way.stored)
            way.samples.append(run_once(way, spark))
            way.too_many += settled(way.stored) - before - way.rows


def run_once(way: Way, spark: Any) -> Sample:
    """Run a way, and measure time and CPU."""
    jvm = spark.sparkContext._gateway.proc.pid

    def spent() -> tuple[float, float, float]:
        jvm_s = usage(jvm).cpu_s
        return sum(usage(pid).cpu_s for pid in way.broker_pids), tree_cpu_s(jvm) - jvm_s, jvm_s

    before, began = spent(), time.perf_counter()
    way.run(way.rows)
    seconds = time.perf_counter() - began
    time.sleep(0.5)  # the broker's work after its responses belongs to these rows
    broker, workers, jvm_s = (
        (after - earlier) / way.rows * 1e6 for after, earlier in zip(spent(), before, strict=True)
    )
    return Sample(way.rows / seconds, broker, workers, jvm_s)


def settled(stored: Callable[[], int]) -> int:
    """Wait until the number of messages is stable, since a broker may count them later; return it."""
    count = -1
    while (now := stored()) != count:
        count = now
        time.sleep(1)
    return count


def main() -> None:
    """Print a table, line by line."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.spark")
    parser.add_argument("--bytes", type=numbers, default=[100, 1024, 10_240], help="sizes of bodies")
    parser.add_argument("--partitions", type=numbers, default=[2, 20, 200], help="queues of the topics")
    parser.add_argument("--total", type=int, default=100_000_000, help="bytes of a run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ours", action="store_true", help="without brokers in Java")
    parser.add_argument("--brokers", type=int, default=0, help="also measure so many of ours together")
    parser.add_argument("--stages", action="store_true", help="also stages of the sink, and single sends")
    parser.add_argument("--singly", type=int, default=20_000, help="rows of single sends")
    options = parser.parse_args()
    print({**describe(), "spark": spark_version, "load now": os.getloadavg()})
    settings, kafka, peer = {}, None, None
    try:
        if not options.ours:
            peer = JavaPeer.prepare(DEFAULT_VERSION)
            kafka = broker_jars()
            settings["spark.jars"] = ",".join(map(str, connector_jars()))
    except (ToolsMissing, RuntimeError) as error:
        kafka = None
        print(f"brokers in Java are left out: {error}")
    spark = start_session("rocketpy bench", settings=settings)
    print(HEADS)
    for partitions in options.partitions:
        sizes = [Size(body, partitions, max(1, options.total // body)) for body in options.bytes]
        kafkas: dict[tuple[Size, str], float] = {}
        measured = list(measure(spark, sizes, kafka, peer, options))
        for size, way in measured:
            if way.target == KAFKA:
                kafkas[size, way.name] = way.rate
        for size, way in measured:
            print(way.line(size, kafkas.get((size, way.name))), flush=True)
    print(
        "broker, workers, JVM: CPU microseconds a row; cores: how many these keep busy; "
        "too many: messages that no row stands behind"
    )
    spark.stop()


if __name__ == "__main__":
    main()
