"""Telling rows that were sent twice from rows that were not.

The sink sends at least once: a task or a micro-batch that is repeated sends its rows again. Each row carries
its id in a property (option `dedupProperty`): ``run/batch/partition/row``, the same whenever it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark_rocketmq.options import ROW_ID_PROPERTY
from rocketpy import MessageExt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def dedupe(frame: DataFrame, *, within: str | None = None, name: str = ROW_ID_PROPERTY) -> DataFrame:
    """Keep one of the messages with the same row id; those without one are all kept.

    frame: from the source, with at least topic, brokerName, queueId, queueOffset and properties. within: for
    a stream, how far apart two copies may be stored, such as "1 hour": Spark forgets ids after that (it needs
    the column storeTimestamp too). Without it a stream keeps every id for ever. name: option `dedupProperty`
    of the sink.
    """
    from pyspark.sql import functions  # noqa: PLC0415 - consumers without Spark use SeenRows

    own = functions.concat_ws("/", "topic", "brokerName", "queueId", "queueOffset")
    row_id = functions.coalesce(functions.col("properties").getItem(name), own)
    marked = frame.withColumn("__row_id", row_id)
    if within is None:
        return marked.dropDuplicates(["__row_id"]).drop("__row_id")
    watermarked = marked.withWatermark("storeTimestamp", within)
    return watermarked.dropDuplicatesWithinWatermark(["__row_id"]).drop("__row_id")


class SeenRows:
    """For consumers without Spark: knows the row ids of the last `capacity` messages.

        seen = SeenRows()
        for message in seen.new(result.messages):
            ...

    It forgets the oldest id when it is full, and everything when the process ends: a consumer that must not
    handle a row twice over restarts keeps the ids where it keeps its results, in one transaction.
    """

    def __init__(self, capacity: int = 1_000_000, *, name: str = ROW_ID_PROPERTY) -> None:
        self._capacity = capacity
        self._name = name
        self._seen: dict[str, None] = {}

    def new(self, messages: Iterable[MessageExt]) -> Iterator[MessageExt]:
        """Those that were not seen yet; messages without an id are always new."""
        for message in messages:
            row_id = message.properties.get(self._name)
            if row_id is None:
                yield message
            elif row_id not in self._seen:
                self._seen[row_id] = None
                if len(self._seen) > self._capacity:
                    del self._seen[next(iter(self._seen))]
                yield message
