"""Rows a second from Spark into a broker: `python -m tests.bench.spark [--rows 1000000] [--singly 20000]`.

Bodies of 100 bytes, local[2]. Two ways in turn, into our broker and into Java's where Maven and a JDK are
here: the sink, and `foreachPartition` with one send after the other (fewer rows: it takes long). Each way
runs once with few rows first, so that Python workers are up.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from examples.spark_session import start_session
from rocketpy import Message
from rocketpy.sync import Producer
from tests.bench.machine import describe
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer, ToolsMissing
from tests.interop.processes import JavaBroker, JavaNameServer, OurBroker, OurNameServer

TOPIC = "SparkBench"
WARM_UP = 2000
# Both brokers refuse messages when they are behind; the rows are to be counted, not the refusals.
CONF = {"waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}


def by_sink(frame: Any, namesrv: str) -> None:
    """`df.write`."""
    options = {"nameServer": namesrv, "topic": TOPIC, "sendTimeoutMs": "30000"}
    frame.write.format("rocketmq").options(**options).mode("append").save()


def singly(frame: Any, namesrv: str) -> None:
    """What a job without the sink does."""

    def send(rows: Iterable[Any]) -> None:
        with Producer("spark_bench", namesrv) as producer:
            for row in rows:
                producer.send(Message(TOPIC, row.body.encode()), timeout_ms=30_000)

    frame.foreachPartition(send)


def servers(stack: ExitStack, run: Path) -> Iterator[tuple[str, str]]:
    """Name and name server of each pair."""
    names = stack.enter_context(OurNameServer(run))
    stack.enter_context(OurBroker(run, names.address, conf=CONF))
    yield "ours", names.address
    try:
        peer = JavaPeer.prepare(DEFAULT_VERSION)
    except ToolsMissing as missing:
        print(f"Java's broker is left out: {missing}")
        return
    theirs = stack.enter_context(JavaNameServer(peer, run))
    stack.enter_context(JavaBroker(peer, run, theirs.address, conf=CONF))
    yield "Java", theirs.address


def measure(way: Callable[[Any, str], None], spark: Any, namesrv: str, rows: int) -> float:
    """Seconds for so many rows, in two partitions."""
    began = time.perf_counter()
    way(spark.range(0, rows, 1, 2).selectExpr("lpad(cast(id AS string), 100, '0') AS body"), namesrv)
    return time.perf_counter() - began


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--singly", type=int, default=20_000, help="rows of foreachPartition")
    options = parser.parse_args()
    print({**describe(), "load now": os.getloadavg()})
    spark = start_session("rocketpy bench")
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="rocketpy-spark-bench-") as folder:
        print(f"{'broker':8} {'way':24} {'rows':>10} {'seconds':>8} {'rows/s':>9}")
        for name, namesrv in servers(stack, Path(folder)):
            ways = (("the sink", by_sink, options.rows), ("foreachPartition, singly", singly, options.singly))
            for words, way, rows in ways:
                measure(way, spark, namesrv, WARM_UP)
                seconds = measure(way, spark, namesrv, rows)
                print(f"{name:8} {words:24} {rows:10,} {seconds:8.1f} {rows / seconds:9,.0f}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
