"""A local Spark session, for examples and tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_session(
    name: str, master: str = "local[2]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a session that listens only on loopback. Its workers use this interpreter and this import path.

    Raises RuntimeError if there is no Java runtime.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    from pyspark_rocketmq import use_java  # noqa: PLC0415 - imports PySpark

    use_java()
    os.environ.update(
        PYSPARK_PYTHON=sys.executable,
        PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
        SPARK_LOCAL_IP="127.0.0.1",
    )
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        **(settings or {}),
    }.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
