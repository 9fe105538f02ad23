"""`spark.read` and `spark.readStream`: columns, ranges and filters."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException

from pyspark_rocketmq import dedupe
from pyspark_rocketmq.options import SinkOptions, SourceOptions
from pyspark_rocketmq.planner import Planner
from pyspark_rocketmq.row_ids import run_id_of
from pyspark_rocketmq.rows_to_messages import Columns
from pyspark_rocketmq.sink import TaskId, send_rows
from pyspark_rocketmq.spark_version import HAS_READ_LIMITS
from rocketpy import Message, MessageQueue
from rocketpy.sync import Producer, PullConsumer
from tests.interop.probe import wait_until
from tests.spark.conftest import Place, Write

pytestmark = pytest.mark.spark


def fill(place: Place, topic: str, bodies: range, queue_id: int = 0, **fields: Any) -> list[int]:
    """Send numbers to one queue; return when each was stored, in ms."""
    queue = MessageQueue(topic, place.broker.name, queue_id)
    expected = place.stored(topic) + len(bodies)
    with Producer("spark_tests", place.namesrv) as producer:
        producer.send_batch([Message(topic, b"%d" % n, **fields) for n in bodies], queue=queue)
    # RocketMQ's brokers dispatch a little after they respond.
    wait_until(lambda: place.stored(topic) >= expected, "messages that can be read")
    return [m.store_timestamp for m in place.messages(topic) if int(m.body) in bodies]


def load(spark: Any, place: Place, topic: str, **options: object) -> Any:
    """A batch read."""
    return spark.read.format("rocketmq").options(nameServer=place.namesrv, topic=topic, **options).load()


def at_most(rows: int) -> dict[str, int]:
    """The option that limits micro-batches, where Spark can."""
    return {"maxOffsetsPerTrigger": rows} if HAS_READ_LIMITS else {}


def numbers(frame: Any) -> list[int]:
    """The bodies, sorted."""
    return sorted(int(row.body) for row in frame.select("body").collect())


def test_a_message_has_all_its_columns(spark: Any, place: Place) -> None:
    """A job could not filter by what its producers set."""
    topic = place.topic()
    keys = ["a\t", "\u3000b"]
    (stored,) = fill(place, topic, range(1), 3, tags="paid", keys=keys, properties={"p": "v"}, flag=9)
    (message,) = place.messages(topic)
    (row,) = load(spark, place, topic).collect()
    assert (row.topic, row.brokerName, row.queueId, row.queueOffset) == (topic, place.broker.name, 3, 0)
    assert (row.msgId, row.tags, row.keys, bytes(row.body)) == (
        message.message_id,
        "paid",
        " ".join(keys),
        b"0",
    )
    assert (row.properties, row.flag, row.reconsumeTimes) == ({"p": "v"}, 9, 0)
    assert round(row.storeTimestamp.timestamp() * 1000) == stored
    assert round(row.bornTimestamp.timestamp() * 1000) == message.born_timestamp


def test_ranges_begin_and_end_at_the_given_offsets_and_times(spark: Any, place: Place) -> None:
    """A job that repeats yesterday's read would get other messages."""
    topic = place.topic(2)
    first = fill(place, topic, range(10), 0)
    wait_until(lambda: time.time_ns() // 1_000_000 > max(first), "a later millisecond")
    stored = fill(place, topic, range(100, 110), 1)
    start = json.dumps({topic: {place.broker.name: {"0": 4, "1": -2}}})
    end = json.dumps({topic: {place.broker.name: {"0": 7, "1": -1}}})
    frame = load(spark, place, topic, startingOffsets=start, endingOffsets=end)
    assert numbers(frame) == [4, 5, 6, *range(100, 110)]
    assert numbers(load(spark, place, topic, startingTimestamp=max(stored) + 1)) == []
    assert numbers(load(spark, place, topic, startingTimestamp=min(stored))) == [*range(100, 110)]
    assert numbers(load(spark, place, topic, endingTimestamp=min(stored))) == [*range(10)]
    pieces = load(spark, place, topic, minPartitions=6)
    assert pieces.rdd.getNumPartitions() == 6
    assert numbers(pieces) == [*range(10), *range(100, 110)]


def test_a_range_by_time_begins_with_the_first_message_of_its_millisecond(place: Place) -> None:
    """Messages of that millisecond before the one that the broker's search finds would be missing."""
    topic = place.topic(1)
    queue = MessageQueue(topic, place.broker.name, 0)
    with Producer("spark_tests", place.namesrv) as producer:
        for count in (20, 40):
            producer.send_batch([Message(topic, b"x" * 20_000) for _ in range(count)], queue=queue)
            messages = place.messages(topic)
            stored = messages[-1].store_timestamp
            while time.time_ns() // 1_000_000 <= stored:
                pass
    first = next(message.queue_offset for message in messages if message.store_timestamp == stored)
    assert first >= 20
    given = {"nameServer": place.namesrv, "topic": topic, "startingTimestamp": stored}
    planner = Planner(SourceOptions.read(given, streaming=False))
    try:
        assert planner.starting_offsets() == {(topic, place.broker.name, 0): first}
    finally:
        planner.close()


def test_tags_are_chosen(spark: Any, place: Place) -> None:
    """A job could not select tags by `subExpression`, like every consumer of RocketMQ."""
    topic = place.topic()
    for at, tag in enumerate(("a", "b", "c")):
        fill(place, topic, range(at * 10, at * 10 + 5), tags=tag)
    assert numbers(load(spark, place, topic, subExpression="a || c")) == [*range(5), *range(20, 25)]


def test_tags_are_chosen_by_the_broker(spark: Any, place: Place) -> None:
    """A rare tag would cost the traffic of all messages, or a range end before its last message."""
    topic = place.topic(1)
    fill(place, topic, range(2000), tags="other")
    fill(place, topic, range(2000, 2100), tags="wanted")
    fill(place, topic, range(2100, 4000), tags="BB")  # the hash of Aa
    fill(place, topic, range(4000, 4003), tags="wanted")
    chosen = {"pushdown": "true", "pullBatchSize": "20"}
    wanted = load(spark, place, topic, subExpression="wanted || Aa", **chosen)
    assert numbers(wanted) == [*range(2000, 2100), *range(4000, 4003)]
    end = json.dumps({topic: {place.broker.name: {"0": 2030}}})
    early = load(spark, place, topic, subExpression="wanted", endingOffsets=end, minPartitions=3, **chosen)
    assert numbers(early) == [*range(2000, 2030)]


def test_a_condition_is_evaluated_by_the_broker(spark: Any, place: Place) -> None:
    """A filter on properties would read nothing and succeed, or cost the traffic of all messages."""
    topic = place.topic(2)
    for number in range(100):
        fill(place, topic, range(number, number + 1), number % 2, properties={"n": str(number)})
    chosen = {"subExpressionType": "SQL92", "pullBatchSize": 7}
    wanted = load(spark, place, topic, subExpression="n > 20 AND n BETWEEN 10 AND 90", **chosen)
    assert numbers(wanted) == list(range(21, 91))


def test_options_are_checked_by_load(spark: Any, place: Place) -> None:
    """An invalid option would be reported only when the query runs."""
    for reader in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException, match="option nameServer: address 'foo' is malformed"):
            reader.format("rocketmq").options(nameServer="foo", topic="T").load()
    with pytest.raises(AnalysisException, match="did you mean maxOffsetsPerTrigger"):
        spark.readStream.format("rocketmq").options(
            nameServer=place.namesrv, topic="T", maxOffsetPerTrigger=1
        ).load()


def test_tables_and_views_of_sql(spark: Any, place: Place) -> None:
    """Users would not learn how to give options of a table, which Spark does not pass on."""
    topic = place.topic(1)
    options = f"nameServer = '{place.namesrv}', topic = '{topic}'"
    given = options.replace(" = ", " ")
    spark.sql(f"CREATE TABLE orders (BODY BINARY, tags STRING) USING rocketmq OPTIONS ({given})")
    spark.sql(f"CREATE TABLE all_columns USING rocketmq OPTIONS ({given})")
    spark.sql(f"CREATE TEMPORARY VIEW shown USING rocketmq OPTIONS ({given})")
    try:
        given = f"WITH ({options})"
        insert = f"INSERT INTO orders {given} VALUES"
        spark.sql(f"{insert} (CAST('1' AS BINARY), 'paid'), (CAST('2' AS BINARY), NULL)")
        for frame, body in ((f"orders {given}", "BODY"), (f"all_columns {given}", "body"), ("shown", "body")):
            rows = spark.sql(f"SELECT * FROM {frame}").collect()  # noqa: S608 - this test's own name
            found = sorted((bytes(row[row.__fields__.index(body)]), row.tags) for row in rows)
            assert found == [(b"1", "paid"), (b"2", None)]
        for statement in ("SELECT * FROM orders", "INSERT INTO orders VALUES (CAST('3' AS BINARY), 'x')"):
            with pytest.raises(AnalysisException, match=r"orders WITH \(nameServer = "):
                spark.sql(statement).collect()
    finally:
        for table in ("orders", "all_columns"):
            spark.sql(f"DROP TABLE {table}")


def test_a_schema_chooses_columns_in_any_case(spark: Any, place: Place) -> None:
    """A job that needs bodies alone would pay for all columns, or its upper-case names be refused."""
    topic = place.topic(1)
    fill(place, topic, range(3), tags="t")
    reader = spark.read.format("rocketmq").options(nameServer=place.namesrv, topic=topic)
    frame = reader.schema("BODY binary, Tags string").load()
    assert frame.columns == ["BODY", "Tags"]
    assert sorted((bytes(row.BODY), row.Tags) for row in frame.collect()) == [
        (b"%d" % n, "t") for n in range(3)
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": ""}, "option topic is missing"),
        ({"startingOffsets": "yesterday"}, "earliest, latest or JSON is expected"),
        ({"startingOffsets": "latest"}, "nothing to read"),
        ({"startingOfsets": "earliest"}, "did you mean startingOffsets?"),
        ({"nameServer": "foo"}, "option nameServer: address 'foo' is malformed"),
        ({"subExpression": "a > 5"}, "set subExpressionType to SQL92"),
        ({"subExpression": "*", "subExpressionType": "SQL92"}, "set subExpression to a condition"),
        ({"subExpression": "a > ", "subExpressionType": "SQL92"}, "option subExpression is 'a > '"),
    ],
)
def test_invalid_options_of_a_read_are_rejected_when_planned(
    spark: Any, place: Place, options: dict[str, str], words: str
) -> None:
    """A misspelt option would be ignored, and other messages be read."""
    topic = place.topic(1)
    given = {"nameServer": place.namesrv, "topic": topic, **options}
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("rocketmq").options(**given).load().collect()
    assert words in str(caught.value)


def test_offsets_that_name_half_the_queues_are_refused(spark: Any, place: Place) -> None:
    """The other queues would be read from an unexpected offset."""
    topic = place.topic(2)
    start = json.dumps({topic: {place.broker.name: {"0": 4}}})
    with pytest.raises(AnalysisException, match="startingOffsets lacks"):
        load(spark, place, topic, startingOffsets=start).collect()


def test_lost_messages_fail_the_read_or_are_logged(spark: Any, place: Place) -> None:
    """A topic that was deleted and created again would silently be read from its middle."""
    topic = place.topic(1)
    fill(place, topic, range(5))
    start = json.dumps({topic: {place.broker.name: {"0": 7}}})
    with pytest.raises(AnalysisException, match="was the topic deleted and created again"):
        load(spark, place, topic, startingOffsets=start).collect()
    assert numbers(load(spark, place, topic, startingOffsets=start, failOnDataLoss="false")) == list(range(5))


def test_a_read_frame_can_be_written(spark: Any, place: Place, write: Write) -> None:
    """Copying a topic would need a list of columns to drop."""
    source, target = place.topic(), place.topic()
    fill(place, source, range(5), tags="t", keys="k", properties={"p": "v"})
    write(load(spark, place, source).drop("topic", "brokerName", "queueId"), topic=target)
    copies = place.messages(target)
    assert sorted(int(copy.body) for copy in copies) == list(range(5))
    assert {(copy.tags, copy.keys, copy.properties["p"]) for copy in copies} == {("t", ("k",), "v")}


def test_equal_places_in_two_topics_are_no_copies(spark: Any, place: Place) -> None:
    """`dedupe` would drop messages of other producers, which carry no row id."""
    first, second = place.topic(1), place.topic(1)
    fill(place, first, range(5))
    fill(place, second, range(5, 10))
    assert numbers(dedupe(load(spark, place, f"{first},{second}"))) == list(range(10))


def test_copies_are_dropped_while_they_may_come(spark: Any, place: Place, tmp_path: Path) -> None:
    """Duplicates that arrive within the time of `dedupe` would not be dropped."""
    topic = place.topic(2)
    sink = SinkOptions.read({"nameServer": place.namesrv, "topic": topic, "sendTimeoutMs": 30_000})
    rows = pa.record_batch({"body": [str(number) for number in range(50)]})
    for _ in range(2):
        send_rows([rows], Columns([("body", "string")], sink), sink, TaskId("run", 0, 0))
    assert len(place.messages(topic)) == 100
    assert numbers(dedupe(load(spark, place, topic))) == list(range(50))
    stream = spark.readStream.format("rocketmq").options(
        nameServer=place.namesrv, topic=topic, startingOffsets="earliest", **at_most(60)
    )
    query = (
        dedupe(stream.load(), within="1 hour").select("body").writeStream.format("parquet")
        .option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert numbers(spark.read.parquet(str(tmp_path / "out"))) == list(range(50))


def test_a_stream_continues_from_its_checkpoint(spark: Any, place: Place, tmp_path: Path) -> None:
    """A restarted query would read messages twice, or leave some out."""
    topic = place.topic(2)
    fill(place, topic, range(100), 0)
    fill(place, topic, range(100, 140), 1)
    options = {"startingOffsets": "earliest", **at_most(50)}

    def run() -> list[int]:
        stream = spark.readStream.format("rocketmq").options(nameServer=place.namesrv, topic=topic, **options)
        query = (
            dedupe(stream.load()).selectExpr("cast(body as string) as value").writeStream.format("text")
            .option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    sizes = run()
    assert sum(sizes) == 140
    assert max(sizes) <= 52 or not HAS_READ_LIMITS
    assert run() == []
    fill(place, topic, range(140, 150), 1)
    assert run() == [10]
    written = spark.read.text(str(tmp_path / "out")).collect()
    assert sorted(int(row.value) for row in written) == list(range(150))


def test_a_stream_from_one_topic_into_another(spark: Any, place: Place, tmp_path: Path) -> None:
    """Two micro-batches would use the same row ids, or the lag of the job's group not be shown."""
    source, target = place.topic(1), place.topic(2)
    fill(place, source, range(60), 0)
    stream = spark.readStream.format("rocketmq").options(
        nameServer=place.namesrv, topic=source, startingOffsets="earliest", **at_most(25),
        commitOffsets="true", group="copiers",
    )  # fmt: skip
    query = (
        stream.load().select("body", "tags").writeStream.format("rocketmq")
        .options(nameServer=place.namesrv, topic=target, checkpointLocation=str(tmp_path))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    copies = place.messages(target)
    assert sorted(int(copy.body) for copy in copies) == list(range(60))
    ids = {copy.properties["SPARK_ROW_ID"] for copy in copies}
    assert len(ids) == 60
    assert {row_id.split("/")[0] for row_id in ids} == {run_id_of(str(query.id))}
    assert {row_id.split("/")[1] for row_id in ids} == ({"0", "1", "2"} if HAS_READ_LIMITS else {"0"})
    with PullConsumer("copiers", place.namesrv) as watching:
        committed = watching.committed(MessageQueue(source, place.broker.name, 0))
    assert (committed or 0) == (50 if HAS_READ_LIMITS else 0)  # one batch behind


def test_a_missing_topic_is_named(spark: Any, place: Place) -> None:
    """A read of a missing topic would return no rows."""
    with pytest.raises(PySparkException, match="NoSuchTopic"):
        load(spark, place, "NoSuchTopic", deliveryTimeoutMs=1).collect()
