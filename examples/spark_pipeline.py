"""Sends events from JSON files through RocketMQ and back, with Spark Structured Streaming.

    python -m examples.spark_pipeline [--events 20000] [--keep FOLDER]

    JSON files -> filter, select columns -> topic Orders -> parse, drop duplicates -> revenue by city

It runs two streaming queries, each with its checkpoint, as two jobs would. A name server and a broker run on
loopback ports in this process. With --keep, you can run it again with the same folder: nothing is sent or
counted twice. Exit status: 0 if the sums equal those that plain Python computes from the files, 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from examples.generate_events import write_events
from examples.spark_session import start_session
from rocketpy.sync import AdminClient
from rocketpy_broker import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "Orders"
FILES = 4
EVENT = "type string, id string, customer struct<address: struct<city: string>>, total double"
PATIENT = {"waitTimeMillsInSendQueue": "10000"}
"""Broker settings: Spark may slow a laptop down, so the broker rejects messages only after a long wait."""

Sums = dict[str, tuple[int, float]]
"""City -> orders and revenue."""


def send_orders(spark: SparkSession, folder: Path, namesrv: str) -> None:
    """Run the first job: send orders from JSON files to the topic, with the whole event as the body."""
    lines = spark.readStream.text(str(folder / "events")).withColumnRenamed("value", "body")
    orders = (
        lines.selectExpr("body", f"from_json(body, '{EVENT}') AS event")
        .where("event.type LIKE 'order_%'")
        .selectExpr("body", "event.type AS tags", "event.id AS keys")
    )
    query = (
        orders.writeStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("topic", TOPIC)
        .option("checkpointLocation", str(folder / "checkpoints" / "send"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def sum_up(spark: SparkSession, folder: Path, namesrv: str) -> DataFrame:
    """Run the second job: sum revenue by city, up to the current end of the topic. Returns the sums."""
    from pyspark_rocketmq import dedupe  # noqa: PLC0415 - needs the extra spark

    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1000)
        .load()
    )
    revenue = (
        dedupe(messages)
        .selectExpr(f"from_json(CAST(body AS string), '{EVENT}') AS event")
        .groupBy("event.customer.address.city")
        .agg({"*": "count", "event.total": "sum"})
        .toDF("city", "orders", "revenue")
    )
    table = folder / "revenue"

    def replace_table(batch: DataFrame, _batch_id: int) -> None:
        batch.write.mode("overwrite").json(str(table))

    query = (
        revenue.writeStream.outputMode("complete")
        .foreachBatch(replace_table)
        .option("checkpointLocation", str(folder / "checkpoints" / "sum"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.json(str(table))


def expected(folder: Path) -> Sums:
    """Compute the same sums from the files, with plain Python."""
    sums: Sums = {}
    for file in sorted((folder / "events").iterdir()):
        for line in file.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["type"].startswith("order_"):
                city = event["customer"]["address"]["city"]
                orders, revenue = sums.get(city, (0, 0.0))
                sums[city] = (orders + 1, revenue + event["total"])
    return sums


def prepare(folder: Path, events: int) -> None:
    """Write JSON files to `folder`, unless an earlier run wrote them."""
    if (folder / "events").exists():
        return
    (folder / "all").mkdir(parents=True)
    write_events(folder / "all" / "events.jsonl", events)
    lines = (folder / "all" / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "events").mkdir()
    for number in range(FILES):
        part = folder / "events" / f"part-{number}.json"
        part.write_text("".join(lines[number::FILES]), encoding="utf-8")


@contextmanager
def broker(store: Path) -> Iterator[str]:
    """Run a name server and a broker in a thread of this process; yield the address of the name server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    cluster = EmbeddedCluster(store, settings=PATIENT)
    asyncio.run_coroutine_threadsafe(cluster.start(), loop).result()
    try:
        yield cluster.namesrv_address
    finally:
        asyncio.run_coroutine_threadsafe(cluster.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def run(folder: Path, events: int) -> int:
    """Run both jobs, and compare the sums; return the exit status."""
    prepare(folder, events)
    say("starting Spark, which takes some seconds")
    spark = start_session("rocketpy pipeline")
    try:
        with broker(folder / "store") as namesrv:
            with AdminClient(namesrv) as admin:
                admin.create_topic(TOPIC)
            say(f"broker behind {namesrv}; sending orders")
            send_orders(spark, folder, namesrv)
            say("reading them back")
            rows = sum_up(spark, folder, namesrv).orderBy("city").collect()
    finally:
        spark.stop()
    for row in rows:
        print(f"{row.city:12} {row.orders:6,} orders {row.revenue:14,.2f}")
    wanted = expected(folder)
    found = {row.city: (row.orders, row.revenue) for row in rows}
    same = wanted.keys() == found.keys() and all(
        found[city][0] == orders and abs(found[city][1] - revenue) < 0.01
        for city, (orders, revenue) in wanted.items()
    )
    print(
        f"{'OK' if same else 'FAILED'}: {sum(o for o, _ in found.values()):,} orders in {len(found)} cities"
    )
    return 0 if same else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.spark_pipeline")
    parser.add_argument(
        "--events", type=int, default=20_000, help="number of generated events (default: %(default)s)"
    )
    parser.add_argument("--keep", type=Path, help="folder for files, store and checkpoints, kept afterwards")
    options = parser.parse_args(arguments)
    try:
        if options.keep is not None:
            return run(options.keep, options.events)
        with tempfile.TemporaryDirectory(prefix="rocketpy-spark-") as folder:
            return run(Path(folder), options.events)
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def say(text: str) -> None:
    """Print a line to stderr."""
    print(f"spark-demo: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
