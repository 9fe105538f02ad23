"""The data source `rocketmq` of PySpark's Python Data Source API (PySpark 4.0 and later)."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_rocketmq.messages_to_rows import Column, check_schema, source_schema
from pyspark_rocketmq.options import SinkOptions, SourceOptions
from pyspark_rocketmq.reader import BatchReader, StreamReader
from pyspark_rocketmq.rows_to_messages import Columns, fields_of
from pyspark_rocketmq.spark_version import require_read_limits
from pyspark_rocketmq.writer import BatchWriter, StreamWriter
from rocketpy.errors import ConfigInvalid


class RocketMQDataSource(DataSource):
    """Reads and writes DataFrames.

    Spark discovers it where this package is installed: `df.write.format("rocketmq")`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to `format`."""
        return "rocketmq"

    def schema(self) -> str:
        """Return the columns of the source, in Spark's DDL. Spark calls this in `load()`.

        Raises ConfigInvalid for invalid options.
        """
        return source_schema(include_headers=self._source_options(None).include_headers)

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch. Raises ConfigInvalid for invalid options and unknown columns."""
        return BatchReader(*self._source(schema, streaming=False))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream. Raises ConfigInvalid."""
        return StreamReader(*self._source(schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch. Raises ConfigInvalid for invalid options and invalid columns."""
        if overwrite:
            raise ConfigInvalid('a topic cannot be overwritten; use mode("append")')
        options = SinkOptions.read(self.options)
        return BatchWriter(columns_of(schema, options), options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """Return the writer of a stream, in output mode append or update. Raises ConfigInvalid."""
        if overwrite:
            raise ConfigInvalid('a topic cannot be overwritten; use outputMode("append") or "update"')
        options = SinkOptions.read(self.options)
        return StreamWriter(columns_of(schema, options), options, schema)

    def _source(self, schema: StructType, *, streaming: bool) -> tuple[tuple[Column, ...], SourceOptions]:
        options = self._source_options(streaming)
        return check_schema(fields_of(schema), include_headers=options.include_headers), options

    def _source_options(self, streaming: bool | None) -> SourceOptions:
        options = SourceOptions.read(self.options, streaming=streaming)
        if options.max_offsets_per_trigger:
            require_read_limits("maxOffsetsPerTrigger")
        if options.min_offsets_per_trigger:
            require_read_limits("minOffsetsPerTrigger")
        return options


def columns_of(schema: StructType, options: SinkOptions) -> Columns:
    """Return the column mapping of a frame. Raises ConfigInvalid."""
    return Columns(fields_of(schema), options)
