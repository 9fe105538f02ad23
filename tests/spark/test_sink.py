"""`df.write.format("rocketmq")`: sent messages, and rejected options and rows."""

from __future__ import annotations

import json
import zlib
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException

from pyspark_rocketmq import ROW_ID_PROPERTY, RowNotSent, SeenRows
from pyspark_rocketmq.options import SinkOptions
from pyspark_rocketmq.rows_to_messages import Columns, Ids
from pyspark_rocketmq.sink import TaskId, send_rows
from rocketpy import Message
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy.sync import Producer
from tests.spark.conftest import Place, Write

pytestmark = pytest.mark.spark


def test_each_column_reaches_its_part_of_the_message(spark: Any, place: Place, write: Write) -> None:
    """Tags, keys or properties of rows would be lost."""
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


def test_delayed_rows_and_long_bodies_are_sent_individually(spark: Any, place: Place, write: Write) -> None:
    """A batch would be rejected for the delay of one row, or a long body not be compressed."""
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
def test_long_bodies_are_compressed_as_configured(
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
    """Each user would have to write code that serializes rows, with errors in maps and times."""
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
        timedelta(days=1, seconds=2),
    )
    frame = spark.createDataFrame(
        [row],
        "tags string, n bigint, x double, ok boolean, nothing string, price decimal(10,2), day date,"
        "at timestamp, list array<int>, map map<string,int>, inner struct<s:string,m:map<string,int>>,"
        "wait interval day to second",
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
        "wait": "P1DT2S",
    }  # fmt: skip


def test_an_empty_frame_sends_nothing(spark: Any, place: Place, write: Write) -> None:
    """A job would fail when there are no rows."""
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
        ("body string", {"nameServer": ""}, "no name server: pass the option nameServer"),
        ("body string", {"compression": "rar"}, "choose one of none, zlib, lz4, zstd"),
        ("body string", {"maxMessageBytes": "1000000000"}, "option maxMessageBytes is 1000000000"),
        (
            "body string",
            {"dedupProperty": "KEYS"},
            "option dedupProperty is 'KEYS': property name 'KEYS' is reserved",
        ),
        ("body string", {"bodyChecksum": "md5"}, "choose one of none, crc-32c"),
        ("id int, span interval year", {"format": "json"}, "'span' is interval year, which format json"),
        ("m map<struct<x:int>,int>", {"format": "msgpack"}, "'m' is map<struct<x:int>,int>, which format"),
        ("v array<variant>", {"format": "json"}, "'v' is array<variant>, which format json cannot contain"),
    ],
)
def test_invalid_options_and_columns_are_rejected_when_planned(
    spark: Any, place: Place, schema: str, options: dict[str, str], words: str
) -> None:
    """A misspelt option would be ignored, or a wrong column fail after half of the rows."""
    frame = spark.createDataFrame([], schema)
    given = {"nameServer": place.namesrv, "topic": "Unused", **options}
    with pytest.raises(AnalysisException) as caught:
        frame.write.format("rocketmq").options(**given).mode("append").save()
    assert words in str(caught.value)


def test_a_topic_is_not_overwritten(spark: Any, place: Place) -> None:
    """After `mode("overwrite")` a user would believe that old messages were deleted."""
    writer = spark.createDataFrame([("x",)], "body string").write.format("rocketmq")
    with pytest.raises(AnalysisException, match="cannot be overwritten"):
        writer.options(nameServer=place.namesrv, topic="T").mode("overwrite").save()


def test_a_row_that_is_no_message_is_named(spark: Any, place: Place, write: Write) -> None:
    """A user could not find the bad row among a million."""
    topic = place.topic()
    rows = [("a", "t"), ("b", "t"), ("c", "\x01")]
    with pytest.raises(PySparkException) as caught:
        write(spark.createDataFrame(rows, "body string, tags string").coalesce(1), topic=topic)
    assert f"row 2 of the partition not sent, topic '{topic}'" in str(caught.value)
    assert "tags contains U+0001" in str(caught.value)
    with pytest.raises(PySparkException, match=r"row 0 of the partition not sent.*column 'flags'"):
        write(spark.sql("SELECT 1 AS id, map(true, 1) AS flags"), topic=topic, format="json")


def test_null_and_empty_bodies_come_back(spark: Any, place: Place, write: Write) -> None:
    """A row that marks a deletion would fail the job, or be read with a body."""
    topic = place.topic()
    bodies = [b"x", None, b"", b"\0", None]
    rows = [("key", body, {"number": str(number)}) for number, body in enumerate(bodies)]
    frame = spark.createDataFrame(rows, "shardingKey string, body binary, properties map<string,string>")
    write(frame.coalesce(1), topic=topic)
    stored = place.messages(topic)
    assert [message.body for message in stored] == [b"x", b"\0", b"\0", b"\0", b"\0"]
    marks = [message.properties.get("SPARK_BODY") for message in stored]
    assert marks == [None, "null", "empty", None, "null"]
    read = spark.read.format("rocketmq").options(nameServer=place.namesrv, topic=topic).load()
    found = sorted(read.collect(), key=lambda row: int(row.properties["number"]))
    assert [row.body for row in found] == bodies
    assert {tuple(sorted(row.properties)) for row in found} == {("SPARK_ROW_ID", "number")}


def test_names_of_columns_and_collations_are_as_sql_has_them(spark: Any, place: Place, write: Write) -> None:
    """Upper-case names and strings with a collation, which catalogs create, would be rejected."""
    topic = place.topic()
    text = "CAST('x' AS STRING) COLLATE UTF8_LCASE"
    frame = spark.sql(
        f"SELECT {text} AS BODY, {text} AS Tags, array({text}) AS KEYS, map({text}, {text}) AS properties"
    )
    write(frame, topic=topic)
    (message,) = place.messages(topic)
    assert (message.body, message.tags, message.keys, message.properties["x"]) == (b"x", "x", ("x",), "x")


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"queueId": [0, 99]}, {}, r"row 1 of partition 0 .* request queueId\[99\] is illegal"),
        ({"queueId": [0, -1]}, {}, "row 1 of the partition not sent.*its id is at least 0"),
        (
            {"topic": ["T", "a b"]},
            {"topic": ""},
            "row 1 of the partition not sent, topic 'a b': TopicInvalid",
        ),
        (
            {"topic": ["T", None]},
            {"topic": ""},
            "row 1 of the partition not sent: .* the topic is null; give",
        ),
        ({"delayLevel": [1, 99]}, {}, "row 1 of partition 0 .*delay level 99 is above 18"),
        ({"delayLevel": [None, 2]}, {"maxDelayLevel": 1}, "row 1 .*delay level 2 is above 1"),
        ({"delayLevel": [0, -1]}, {}, "row 1 of the partition .*delay_level is -1"),
        ({"tags": ["a", "a||b"]}, {}, "row 1 of the partition .*a message has one tag"),
        ({"tags": ["a", "b "]}, {}, "row 1 of the partition .*remove the spaces"),
        (
            {"properties": [[], [("p", "x" * 40_000)]]},
            {},
            "row 1 of partition 0 .*properties have 40.* bytes",
        ),
        ({"properties": [[], [("POP_CK", "x")]]}, {}, "row 1 of the partition .*'POP_CK' is reserved"),
        (
            {"properties": [[("TIMER_DELAY_SEC", "999999999")], []]},
            {},
            "row 0 of partition 0 .*(has no timers, and no delay level for|code 13)",
        ),
        (
            {"deliverAt": [None, datetime(2100, 6, 1, 7, tzinfo=UTC)]},
            {},
            r"row 1 of partition 0 .*(no delay level for deliver_at 2100-06-01 07:00:00\.000\+00:00|code 13)",
        ),
        ({"deliverAt": [None, 2**62]}, {}, "row 1 of the partition .*OverflowError: "),
        (
            {"deliverAt": [datetime(2020, 1, 1, tzinfo=UTC), None], "delayLevel": [1, None]},
            {},
            "row 0 of the partition .*deliver_at, delay and delay_level exclude each other",
        ),
        ({"body": ["x", "y" * 5_000_000]}, {}, "row 1 .* 5000000 bytes; 4194304 are allowed"),
        (
            {"body": ["x", "y" * 5_000_000]},
            {"maxMessageBytes": 8 << 20, "compression": "none"},
            "row 1 .* the limit is 4194304",
        ),
    ],
)
def test_rows_that_can_never_be_stored_fail_at_once(
    place: Place, columns: dict[str, list[object]], options: dict[str, object], words: str
) -> None:
    """Each attempt of the task would resend a message that can never be stored for two minutes."""
    topic = place.topic()
    frame = {"body": ["x", "y"], **columns}
    if "queueId" in columns:
        frame["brokerName"] = [place.broker.name] * 2
    if "topic" in columns:
        frame["topic"] = [topic, columns["topic"][1]]
    types = {"queueId": "int", "delayLevel": "int", "properties": "map<string,string>"} | {
        "deliverAt": "timestamp"
    }
    arrow = {
        "properties": pa.map_(pa.string(), pa.string()),
        "delayLevel": pa.int32(),
        "deliverAt": pa.timestamp("us", "UTC"),
    }
    sink = SinkOptions.read(
        {"nameServer": place.namesrv, "topic": topic, "deliveryTimeoutMs": 60_000, **options}
    )
    schema = Columns([(name, types.get(name, "string")) for name in frame], sink)
    batch = pa.record_batch({name: pa.array(values, arrow.get(name)) for name, values in frame.items()})
    with pytest.raises(RowNotSent, match=words):
        send_rows([batch], schema, sink, TaskId("run", 0, 0))


def test_times_of_rows_become_times_of_messages() -> None:
    """A row with a time would be sent in a batch, which has none, or at another time."""
    columns = Columns(
        [("body", "string"), ("deliverat", "timestamp")],
        SinkOptions.read({"nameServer": "127.0.0.1:1", "topic": "T"}),
    )
    at = [None, datetime(2100, 6, 1, 9, 0, 0, 123_456, tzinfo=ZoneInfo("Europe/Berlin")), None]
    times = pa.array(at, pa.timestamp("us", "America/New_York"))
    batch = pa.record_batch({"body": pa.array(["a", "b", "c"]), "deliverat": times})
    together, alone = columns.split_into_requests(batch, 0, lambda *_: None)
    assert (together.is_delayed, list(together.numbers)) == (False, [0, 2])
    assert (alone.is_delayed, list(alone.numbers)) == (True, [1])
    (message,) = columns.messages(alone, Ids(""))
    assert message.deliver_at == datetime(2100, 6, 1, 7, 0, 0, 124_000, tzinfo=UTC)


def test_a_time_without_a_zone_is_refused(spark: Any, write: Write) -> None:
    """It would mean another time in each session's time zone."""
    frame = spark.sql("SELECT 'x' AS body, timestamp_ntz'2100-06-01 09:00:00' AS deliverAt")
    with pytest.raises(PySparkException, match="column 'deliverAt' is timestamp_ntz; it must be timestamp"):
        write(frame, topic="T")


def test_a_time_in_a_frame(spark: Any, place: Place, write: Write) -> None:
    """The session's time zone would change the time."""
    topic = place.topic()
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        frame = spark.sql("SELECT 'x' AS body, timestamp'2100-06-01 09:00:00' AS deliverAt")
        words = r"row 0 .*(no delay level for deliver_at 2100-06-01 07:00:00\.000\+00:00|code 13)"
        with pytest.raises(PySparkException, match=words):
            write(frame, topic=topic)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_checksums_of_bodies_go_from_end_to_end(spark: Any, place: Place, write: Write) -> None:
    """A body that was damaged on its way to the broker would be read as valid."""
    topic = place.topic(1)
    frame = spark.range(10).selectExpr("repeat(cast(id AS string), 2500) AS body")
    write(frame.coalesce(1), topic=topic, bodyChecksum="CRC-32C")
    sums = [message.properties["BODY_CHECKSUM"] for message in place.messages(topic)]
    assert [text.partition(":")[0] for text in sums] == ["crc-32c"] * 10
    reader = spark.read.format("rocketmq").options(nameServer=place.namesrv, topic=topic)
    assert reader.load().count() == 10
    with Producer("wrong", place.namesrv) as producer:
        wrong = Message.with_reserved(Message(topic, b"damaged"), {"BODY_CHECKSUM": "crc-32c:00000000"})
        producer.send(wrong)
    with pytest.raises(PySparkException, match="does not match its producer's 'crc-32c:00000000'"):
        reader.load().collect()


def test_a_missing_topic_and_a_missing_broker_are_named(spark: Any, write: Write) -> None:
    """A job would hang, or fail with an error that names no topic or address."""
    frame = spark.createDataFrame([("a",)], "body string")
    with pytest.raises(PySparkException, match="topic 'NoSuchTopic': RouteNotFound"):
        write(frame, topic="NoSuchTopic", deliveryTimeoutMs=1)
    with pytest.raises(PySparkException, match=r"row 0 of partition 0 not sent, topic 'T'.*\(not_sent\)"):
        write(frame.coalesce(1), topic="T", deliveryTimeoutMs=1, nameServer="127.0.0.1:1", sendTimeoutMs=500)


def test_rows_of_a_repeated_task_keep_their_ids(spark: Any, place: Place, write: Write) -> None:
    """Consumers could not recognize rows that a failed task and its retry both sent."""
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
