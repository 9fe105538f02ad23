"""The parts of the Python Data Source API that the installed PySpark has.

| part | since |
|---|---|
| data sources | 4.0 |
| streaming writers of Arrow batches | 4.1 |
| limits of micro-batches, the progress of a source, its own available-now trigger | 4.2 |

A missing class has a stand-in here, so that the other modules are the same for all versions. An option that
the version cannot support raises ConfigInvalid, which names the version that can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark import __version__ as installed
from pyspark.sql import datasource
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.types import StructType

from rocketpy.errors import ConfigInvalid

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS: Final = True
except ImportError:
    HAS_READ_LIMITS: Final = False  # type: ignore[misc] # the other branch

    class ReadLimit:  # type: ignore[no-redef] # as above
        """The most that a micro-batch may read."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef] # as above
        """No limit: Spark before 4.2 passes none."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef] # as above
        """A number of rows."""

        max_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef] # as above
        """Spark before 4.2 fixes the end of an available-now query by itself, in one micro-batch."""


_HAS_ARROW_STREAMS: Final = hasattr(datasource, "DataSourceStreamArrowWriter")

StreamArrowWriter: Final[Any] = getattr(
    datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter
)
"""The base class of a streaming writer; in Spark 4.0 it receives rows, not Arrow batches."""

_ROWS: Final = 10_000
"""Rows of an Arrow batch, as in Spark's own batches."""


def require_read_limits(option: str) -> None:
    """Raise ConfigInvalid for an option that needs Spark to limit micro-batches."""
    if not HAS_READ_LIMITS:
        raise ConfigInvalid(f"option {option} needs PySpark 4.2 or later; {installed} is installed")


def arrow_batches(given: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Return the rows of a streaming write as Arrow batches. given: what Spark passes; in 4.0, rows."""
    if _HAS_ARROW_STREAMS:
        return given
    return _batches_of_rows(given, schema)


def _batches_of_rows(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    while part := list(islice(rows, _ROWS)):
        yield from LocalDataToArrowConversion.convert(part, schema, use_large_var_types=False).to_batches()


__all__ = [
    "HAS_READ_LIMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "StreamArrowWriter",
    "SupportsTriggerAvailableNow",
    "arrow_batches",
    "require_read_limits",
]
