"""DataFrames in and out of RocketMQ: the data source `rocketmq`, and helpers around it.

Spark looks for top-level modules named ``pyspark_*`` with a ``DefaultSource`` by itself, hence the names.
"""

from typing import Any

from pyspark_rocketmq.columns import RowNotSent
from pyspark_rocketmq.helpers import foreach_batch, write_batch
from pyspark_rocketmq.options import ROW_ID_PROPERTY
from pyspark_rocketmq.planner import DataLoss
from pyspark_rocketmq.row_ids import SeenRows, dedupe
from pyspark_rocketmq.sink import Report

__all__ = [
    "ROW_ID_PROPERTY",
    "DataLoss",
    "Report",
    "RowNotSent",
    "SeenRows",
    "dedupe",
    "foreach_batch",
    "write_batch",
]


def __getattr__(name: str) -> Any:
    """`DefaultSource`, imported when Spark asks for it: PySpark before 4.2 lacks the API that it needs."""
    if name == "DefaultSource":
        try:
            from pyspark_rocketmq.data_source import RocketMQDataSource  # noqa: PLC0415 - see above
        except ImportError as error:
            raise AttributeError(f"the data source needs PySpark 4.2 or later: {error}") from error
        return RocketMQDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
