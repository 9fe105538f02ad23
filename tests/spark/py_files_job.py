"""A program that tests start: a job that brings rocketpy with it, as `spark-submit --py-files` does.

    python -m tests.spark.py_files_job NAMESRV TOPIC ARCHIVE

It writes rows, reads them, and prints their number and the file from which a worker imported rocketpy.
"""

from __future__ import annotations

import sys

from examples.spark_session import start_session
from pyspark_rocketmq import DefaultSource
from tests.spark.traced_job import SETTINGS


def rocketpy_file(_: object) -> str:
    """Return where this process imports rocketpy from; crcmod cannot be imported."""
    try:
        import crcmod  # noqa: PLC0415

        raise AssertionError(crcmod)
    except ModuleNotFoundError:
        import rocketpy  # noqa: PLC0415

        return str(rocketpy.__file__)


def main(namesrv: str, topic: str, archive: str) -> None:
    """Write and read."""
    spark = start_session("rocketpy py-files job", "local[2]", SETTINGS)
    spark.sparkContext.addPyFile(archive)
    spark.dataSource.register(DefaultSource)
    rows = spark.range(0, 6, 1, 2).selectExpr("concat('row ', id) AS body")
    rows.write.format("rocketmq").options(nameServer=namesrv, topic=topic).mode("append").save()
    stored = spark.read.format("rocketmq").options(nameServer=namesrv, topic=topic).load().count()
    (file,) = spark.sparkContext.parallelize([0], 1).map(rocketpy_file).collect()
    sys.stdout.write(f"{stored} {file}\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
