"""The pipeline that `tests.spark.kills` kills: text files into a topic, and the topic into Parquet files.

    python -m tests.spark.kills_job NAMESRV TOPIC FOLDER

The second query drops duplicates of retries and restarts. Both run until the process is killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.spark_session import start_session
from pyspark_rocketmq import dedupe
from tests.spark.conftest import QUICK_TO_START


def main(namesrv: str, topic: str, folder: Path) -> None:
    """Run both queries; raise the failure of the first one that fails."""
    spark = start_session("rocketpy kills", "local[2]", QUICK_TO_START)
    lines = spark.readStream.option("maxFilesPerTrigger", 4).text(str(folder / "in"))
    (
        lines.withColumnRenamed("value", "body")
        .writeStream.format("rocketmq")
        .options(nameServer=namesrv, topic=topic)
        .option("checkpointLocation", str(folder / "checkpoint-in"))
        .trigger(processingTime="2 seconds")
        .start()
    )
    messages = spark.readStream.format("rocketmq").options(
        nameServer=namesrv, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=20_000
    )
    (
        dedupe(messages.load())
        .selectExpr("cast(cast(body as string) as long) as number")
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint-out"))
        .trigger(processingTime="2 seconds")
        .start()
    )
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
