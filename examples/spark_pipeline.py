"""Events from JSON files through RocketMQ and back, with Spark Structured Streaming.

    python -m examples.spark_pipeline [--events 20000] [--keep FOLDER]

    JSON files -> filter, choose columns -> topic Orders -> parse, drop copies -> revenue by city

Two streaming queries, as two jobs would be, each with its checkpoint; a name server and a broker on loopback
ports in this process. With --keep, run it again with the same folder: nothing is sent or counted twice. Exit
status: 0 when the sums are those that plain Python gets from the files, 1 when not.
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
"""A laptop that runs Spark too may be slow for a moment; the broker need not refuse messages for that."""

Sums = dict[str, tuple[int, float]]
"""City -> orders and revenue."""


def send_orders(spark: SparkSession, folder: Path, namesrv: str) -> None:
    """The first job: orders from JSON files to the topic, keyed by id; the whole event is the body."""
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
    """The second job: the topic to revenue by city; a stream that ends where the topic ends now."""
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
    """The same sums by plain Python."""
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
    """JSON files in `folder`, unless they are there from an earlier run."""
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
    """A name server and a broker in a thread of this process; yields the name server's address."""
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
    """Both jobs; returns the exit status."""
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
    """Run the pipeline; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.spark_pipeline")
    parser.add_argument("--events", type=int, default=20_000, help="how many are made up (%(default)s)")
    parser.add_argument("--keep", type=Path, help="a folder for files, store and checkpoints")
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
    """Tell what is going on."""
    print(f"spark-demo: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
