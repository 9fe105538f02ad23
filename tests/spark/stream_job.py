"""A program that tests start and kill: a stream of text files into a topic, on two executors.

    python -m tests.spark.stream_job NAMESRV TOPIC FOLDER

Each file is a micro-batch of several partitions. Speculation is enabled, and in the second micro-batch the
first attempt of one task stalls after it has sent its rows, so that a second attempt sends them, too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from examples.spark_session import start_session

STALL_S = 20
MASTER = "local-cluster[2,1,1024]"
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.files.maxPartitionBytes": "8k",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def stall(batches: Iterator[Any]) -> Iterator[Any]:
    """Stall in the first attempt of one task."""
    yield from batches
    context = TaskContext.get()
    if context is None or context.getLocalProperty("streaming.sql.batchId") != "1":
        return
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        time.sleep(STALL_S)


def main(namesrv: str, topic: str, folder: Path) -> None:
    """Run until all files are sent."""
    spark = start_session("rocketpy stream job", MASTER, SETTINGS)
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
    query = (
        lines.withColumnRenamed("value", "body")
        .mapInArrow(stall, "body string")
        .writeStream.format("rocketmq")
        .options(nameServer=namesrv, topic=topic, batchSize=50)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
