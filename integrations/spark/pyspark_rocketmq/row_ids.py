"""Removes duplicate rows by their row ids.

The sink sends at least once: a retried task or micro-batch sends its rows again. Each row carries its id in
a property (option `dedupProperty`): ``run/batch/partition/row``, the same in every attempt.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from pyspark_rocketmq.options import ROW_ID_PROPERTY
from rocketpy import MessageExt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def new_run_id() -> str:
    """Return a random run id, for a batch write or for a stream whose query is not known."""
    return _short(uuid4())


def run_id_of(query_id: str) -> str:
    """Return the run id of a query: the query's id, shortened because every row carries it."""
    try:
        return _short(UUID(query_id))
    except ValueError:
        return query_id


def _short(run: UUID) -> str:
    """Return the first 96 bits, 90 of which are random, in 16 characters."""
    return urlsafe_b64encode(run.bytes[:12]).decode("ascii")


def dedupe(frame: DataFrame, *, within: str | None = None, name: str = ROW_ID_PROPERTY) -> DataFrame:
    """Keep one of the messages with the same row id, and all messages without one.

    frame: from the source, with at least topic, brokerName, queueId, queueOffset and properties. within: for
    a stream, the maximum time between two copies, such as "1 hour": Spark drops older ids. It needs the
    column storeTimestamp. Without it, a stream keeps every id forever. name: option `dedupProperty` of the
    sink.
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
    """For consumers without Spark: remembers the row ids of the last `capacity` messages.

        seen = SeenRows()
        for message in seen.new(result.messages):
            ...

    The oldest id is dropped at capacity, and ids are lost when the process ends. To handle no row twice
    across restarts, store the ids together with the results, in one transaction.
    """

    def __init__(self, capacity: int = 1_000_000, *, name: str = ROW_ID_PROPERTY) -> None:
        self._capacity = capacity
        self._name = name
        self._seen: dict[str, None] = {}

    def new(self, messages: Iterable[MessageExt]) -> Iterator[MessageExt]:
        """Yield the messages that were not seen yet; messages without an id are always new."""
        for message in messages:
            row_id = message.properties.get(self._name)
            if row_id is None:
                yield message
            elif row_id not in self._seen:
                self._seen[row_id] = None
                if len(self._seen) > self._capacity:
                    del self._seen[next(iter(self._seen))]
                yield message
