"""Reads and writes DataFrames: the data source `rocketmq`, and helpers.

Spark looks for data sources in top-level modules named ``pyspark_*`` that have a ``DefaultSource``.
"""

from typing import Any

from pyspark_rocketmq.helpers import foreach_batch, offsets_behind_latest, use_java, write_batch
from pyspark_rocketmq.options import ROW_ID_PROPERTY
from pyspark_rocketmq.planner import DataLoss
from pyspark_rocketmq.row_ids import SeenRows, dedupe
from pyspark_rocketmq.rows_to_messages import RowNotSent
from pyspark_rocketmq.sink import Report

__all__ = [
    "ROW_ID_PROPERTY",
    "DataLoss",
    "Report",
    "RowNotSent",
    "SeenRows",
    "dedupe",
    "foreach_batch",
    "offsets_behind_latest",
    "use_java",
    "write_batch",
]


def __getattr__(name: str) -> Any:
    """Import `DefaultSource` on access: its API does not exist in PySpark before 4.0."""
    if name == "DefaultSource":
        try:
            from pyspark_rocketmq.data_source import RocketMQDataSource  # noqa: PLC0415 - see above
        except ImportError as error:
            raise AttributeError(f"the data source needs PySpark 4.0 or later: {error}") from error
        return RocketMQDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
