"""The sink as functions, for Spark 3.5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from pyspark_rocketmq import ROW_ID_PROPERTY, Report, SeenRows, foreach_batch, write_batch
from rocketpy.errors import ConfigInvalid
from tests.spark.conftest import Place

pytestmark = pytest.mark.spark


def options(place: Place, topic: str, **more: object) -> dict[str, object]:
    """The required options of a write, and `more`."""
    return {"nameServer": place.namesrv, "topic": topic, "sendTimeoutMs": 30_000, **more}


def test_a_frame_is_written_and_each_task_reports(spark: Any, place: Place) -> None:
    """On Spark 3.5 nothing could be sent, or no report show how much."""
    topic = place.topic()
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "cast(id AS string) AS body", "'paid' AS tags", "array(concat('k', id)) AS keys",
        "map('shop', 'Zürich') AS properties",
    )  # fmt: skip
    assert write_batch(frame, options(place, topic)) == [Report(0, 50, 90), Report(1, 50, 100)]
    messages = {int(message.body): message for message in place.messages(topic)}
    assert set(messages) == set(range(100))
    assert (messages[7].tags, messages[7].keys, messages[7].properties["shop"]) == ("paid", ("k7",), "Zürich")
    assert write_batch(frame.limit(0), options(place, topic)) in ([], [Report(0, 0, 0)])


def test_a_batch_that_is_written_again_has_the_same_ids(spark: Any, place: Place) -> None:
    """Duplicates could not be recognized when `foreachBatch` repeats a batch after a failure."""
    topic = place.topic()
    frame = spark.range(0, 100, 1, 2).selectExpr("cast(id AS string) AS body")
    write = foreach_batch(options(place, topic), run_id="job")
    write(frame, 3)
    write(frame, 3)
    messages = place.messages(topic)
    assert len(messages) == 200
    assert len(list(SeenRows().new(messages))) == 100
    assert {m.properties[ROW_ID_PROPERTY] for m in messages} >= {"job/3/0/0", "job/3/1/49"}


def test_a_stream_continues_from_its_checkpoint(spark: Any, place: Place, tmp_path: Path) -> None:
    """A restarted stream would send everything again, or leave files out."""
    topic = place.topic()
    (tmp_path / "in").mkdir()

    def run() -> None:
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
        query = (
            lines.selectExpr("value AS n", "'json' AS tags").writeStream
            .foreachBatch(foreach_batch(options(place, topic, format="json"), run_id="orders"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()

    for number in range(3):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
        run()
    messages = sorted(place.messages(topic), key=lambda message: message.body)
    assert [json.loads(message.body) for message in messages] == [{"n": str(number)} for number in range(3)]
    ids = [message.properties[ROW_ID_PROPERTY] for message in messages]
    assert ids == [f"orders/{number}/0/0" for number in range(3)]


def test_invalid_options_and_columns_are_rejected_before_any_task(spark: Any, place: Place) -> None:
    """A misspelt option would be ignored, or a wrong column fail after half of the rows."""
    wrong = spark.createDataFrame([], "body int")
    with pytest.raises(ConfigInvalid, match="'body' is int; it must be binary or string"):
        write_batch(wrong, options(place, "T"))
    with pytest.raises(ConfigInvalid, match="did you mean topic"):
        foreach_batch(options(place, "T", topick="x"), run_id="job")


def test_a_row_that_is_not_sent_is_named(spark: Any, place: Place) -> None:
    """A user could not find the bad row among a million."""
    topic = place.topic()
    frame = spark.createDataFrame([("a", "t"), ("b", "\x01")], "body string, tags string").coalesce(1)
    with pytest.raises(PySparkException, match=r"row 1 of the partition not sent, topic.*tags contains"):
        write_batch(frame, options(place, topic))
