"""`df.write.format("rocketmq")`: what leaves, and what is refused."""

from __future__ import annotations

import json
import zlib
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pyspark.errors import AnalysisException, PySparkException

from pyspark_rocketmq import ROW_ID_PROPERTY, SeenRows
from rocketpy.protocol.message.sysflag import MessageSysFlag
from tests.spark.conftest import Place, Write

pytestmark = pytest.mark.spark


def test_each_column_reaches_its_part_of_the_message(spark: Any, place: Place, write: Write) -> None:
    """A frame's tags, keys or properties would be lost on the way."""
    topic = place.topic()
    rows = [
        (b"\x00\xff", topic, "paid", ["k1", "k2"], {"shop": "Zürich", "none": None}, 7, "broker", 2),
        ("text ☕".encode(), topic, None, None, None, None, None, None),
    ]
    frame = spark.createDataFrame(
        [(*row[:6], place.broker.name if row[6] else None, row[7]) for row in rows],
        "body binary, topic string, tags string, keys array<string>, properties map<string,string>, flag int,"
        "brokerName string, queueId int",
    )
    write(frame)
    full, bare = sorted(place.messages(topic), key=lambda message: message.body)
    assert (full.body, full.tags, full.keys, full.flag) == (b"\x00\xff", "paid", ("k1", "k2"), 7)
    assert full.properties["shop"] == "Zürich"
    assert "none" not in full.properties
    assert full.queue_id == 2
    assert (bare.body.decode(), bare.tags, bare.keys, bare.flag) == ("text ☕", None, (), 0)


def test_a_delay_and_a_long_body_travel_by_themselves(spark: Any, place: Place, write: Write) -> None:
    """A batch would be refused for one row's delay, or a long body would not be compressed."""
    topic = place.topic()
    frame = spark.createDataFrame(
        [("x" * 10_000, None), ("late", 1), ("now", None)], "body string, delayLevel int"
    ).coalesce(1)
    write(frame, topic=topic)
    by_body = {message.body[:4]: message for message in place.messages(topic)}
    assert by_body[b"xxxx"].body == b"x" * 10_000
    assert by_body[b"xxxx"].sys_flag & MessageSysFlag.COMPRESSED
    assert by_body[b"xxxx"].store_size < len(zlib.compress(b"x" * 10_000)) + 400
    assert b"now" in by_body
    write(frame.limit(1), topic=topic, compression="none")
    (plain,) = [m for m in place.messages(topic) if m.body[:1] == b"x" and not m.sys_flag & 1]
    assert plain.store_size > 10_000


@pytest.mark.parametrize(
    ("compression", "bits"),
    [("zlib", 0), ("lz4", MessageSysFlag.COMPRESSION_LZ4), ("zstd", MessageSysFlag.COMPRESSION_ZSTD)],
)
def test_long_bodies_are_compressed_as_told(
    spark: Any, place: Place, write: Write, compression: str, bits: int
) -> None:
    """Topics of long texts would take many times the disk, or come back unreadable."""
    topic = place.topic()
    frame = spark.range(0, 40, 1, 2).selectExpr("repeat(concat('row ', id, ' '), 500) AS body")
    write(frame, topic=topic, compression=compression, compressAboveBytes=1000)
    messages = place.messages(topic)
    both = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_TYPE_MASK
    assert {message.sys_flag & both for message in messages} == {MessageSysFlag.COMPRESSED | bits}
    assert max(message.store_size for message in messages) < 1000
    read = spark.read.format("rocketmq").options(nameServer=place.namesrv, topic=topic).load()
    expected = {(f"row {number} " * 500).encode() for number in range(40)}
    assert {bytes(row.body) for row in read.select("body").collect()} == expected


def test_equal_sharding_keys_share_a_queue_in_order(spark: Any, place: Place, write: Write) -> None:
    """Events of one order would be consumed out of order."""
    topic = place.topic()
    frame = (
        spark.range(600)
        .coalesce(1)
        .selectExpr("cast(id as string) as body", "concat('order-', cast(id % 7 as string)) as shardingKey")
    )
    write(frame, topic=topic, batchSize=20)
    orders: dict[int, list[tuple[int, int]]] = {}
    for message in place.messages(topic):
        orders.setdefault(int(message.body) % 7, []).append((message.queue_id, int(message.body)))
    assert len(orders) == 7
    for entries in orders.values():
        assert len({queue for queue, _ in entries}) == 1
        assert [number for _, number in entries] == sorted(number for _, number in entries)


@pytest.mark.parametrize(("form", "decode"), [("json", json.loads), ("msgpack", msgspec.msgpack.decode)])
def test_a_whole_row_becomes_the_body(spark: Any, place: Place, write: Write, form: str, decode: Any) -> None:
    """Each user would write the same serialising code, and get maps and times wrong."""
    topic = place.topic()
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    row = (
        "t",
        1,
        2.5,
        True,
        None,
        Decimal("1.20"),
        date(2026, 1, 2),
        moment,
        [1, 2],
        {"a": 1},
        ("x", {"b": 2}),
    )
    frame = spark.createDataFrame(
        [row],
        "tags string, n bigint, x double, ok boolean, nothing string, price decimal(10,2), day date,"
        "at timestamp, list array<int>, map map<string,int>, inner struct<s:string,m:map<string,int>>",
    )
    write(frame, topic=topic, format=form)
    (message,) = place.messages(topic)
    body = decode(message.body)
    assert message.tags == "t"
    at = body.pop("at")
    assert (at if isinstance(at, datetime) else datetime.fromisoformat(at)) == moment
    assert body == {
        "n": 1, "x": 2.5, "ok": True, "nothing": None, "price": "1.20", "day": "2026-01-02",
        "list": [1, 2], "map": {"a": 1}, "inner": {"s": "x", "m": {"b": 2}},
    }  # fmt: skip


def test_an_empty_frame_sends_nothing(spark: Any, place: Place, write: Write) -> None:
    """A quiet night would fail the job."""
    topic = place.topic()
    write(spark.createDataFrame([], "body string"), topic=topic)
    assert place.messages(topic) == []


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        ("body int", {}, "'body' is int; it must be binary or string"),
        ("body string, keys int", {}, "'keys' is int; it must be array<string> or string"),
        ("body string, tag string", {}, "'tag' is unknown; the sink supports"),
        ("tags string", {}, "column 'body' is missing"),
        ("body string", {"topick": "x"}, "did you mean topic?"),
        ("body string", {"batchSize": "0"}, "option batchSize is 0"),
        ("body string", {"nameServer": ""}, "option nameServer is missing"),
        ("body string", {"compression": "rar"}, "choose one of none, zlib, lz4, zstd"),
    ],
)
def test_what_cannot_be_sent_is_refused_when_planned(
    spark: Any, place: Place, schema: str, options: dict[str, str], words: str
) -> None:
    """A misspelt option would be a silent default; a wrong column would fail after half the rows."""
    frame = spark.createDataFrame([], schema)
    given = {"nameServer": place.namesrv, "topic": "Unused", **options}
    with pytest.raises(AnalysisException) as caught:
        frame.write.format("rocketmq").options(**given).mode("append").save()
    assert words in str(caught.value)


def test_a_topic_is_not_overwritten(spark: Any, place: Place) -> None:
    """`mode("overwrite")` would look as if old messages were gone."""
    writer = spark.createDataFrame([("x",)], "body string").write.format("rocketmq")
    with pytest.raises(AnalysisException, match="cannot be overwritten"):
        writer.options(nameServer=place.namesrv, topic="T").mode("overwrite").save()


def test_a_row_that_is_no_message_is_named(spark: Any, place: Place, write: Write) -> None:
    """Among a million rows nobody would find the bad one."""
    topic = place.topic()
    frame = spark.createDataFrame([("a",), ("b",), (None,)], "body string").coalesce(1)
    with pytest.raises(PySparkException) as caught:
        write(frame, topic=topic)
    assert f"row 2 of the partition not sent, topic '{topic}'" in str(caught.value)
    assert "empty body" in str(caught.value)


def test_a_missing_topic_and_a_missing_broker_are_told(spark: Any, write: Write) -> None:
    """A job would hang, or fail with nothing that says where to look."""
    frame = spark.createDataFrame([("a",)], "body string")
    with pytest.raises(PySparkException, match="topic 'NoSuchTopic': RouteNotFound"):
        write(frame, topic="NoSuchTopic", deliveryTimeoutMs=1)
    with pytest.raises(PySparkException, match=r"row 0 of partition 0 not sent, topic 'T'.*\(not_sent\)"):
        write(frame.coalesce(1), topic="T", deliveryTimeoutMs=1, nameServer="127.0.0.1:1", sendTimeoutMs=500)


def test_rows_of_a_repeated_task_keep_their_ids(spark: Any, place: Place, write: Write) -> None:
    """Consumers could not tell the rows that a failed task had sent from those of its repetition."""
    topic = place.topic()

    def fail_once(batches: Any) -> Any:
        from pyspark import TaskContext  # noqa: PLC0415 - runs in a worker

        context = TaskContext.get()
        for number, batch in enumerate(batches):
            yield batch
            if context is not None and context.attemptNumber() == 0 and number == 1:
                raise ValueError("planned")

    numbers = spark.range(0, 30_000, 1, 2).selectExpr("cast(id as string) as body")
    write(numbers.mapInArrow(fail_once, "body string"), topic=topic)
    messages = place.messages(topic)
    ids = {message.properties[ROW_ID_PROPERTY] for message in messages}
    assert len(messages) > 30_000
    assert len(ids) == 30_000
    kept = [int(message.body) for message in SeenRows().new(messages)]
    assert sorted(kept) == list(range(30_000))
