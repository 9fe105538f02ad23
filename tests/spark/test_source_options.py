"""Options of the source: topics and queues, ranges, and limits of micro-batches."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from pyspark_rocketmq import offsets_behind_latest
from pyspark_rocketmq.data_source import RocketMQDataSource
from pyspark_rocketmq.offsets import QueueName, QueueRange, split
from pyspark_rocketmq.options import SinkOptions, SourceOptions
from pyspark_rocketmq.reader import StreamReader
from pyspark_rocketmq.spark_version import HAS_READ_LIMITS, ReadMaxRows
from rocketpy import Message, MessageQueue
from rocketpy.errors import ConfigInvalid
from rocketpy.sync import AdminClient, Producer, PullConsumer
from tests.integration.sdk_peers import Names, Peer
from tests.interop.probe import wait_until
from tests.spark.conftest import CLUSTER, Place
from tests.spark.test_source import at_most, fill, numbers
from tests.spark.test_task import BODY, offsets_of, reader_of

pytestmark = pytest.mark.spark

WAIT_S = 120
needs_limits = pytest.mark.skipif(not HAS_READ_LIMITS, reason="Spark before 4.2 limits no micro-batch")


def read(streaming: bool | None = False, /, **given: object) -> SourceOptions:
    """Options of a read, with an address."""
    return SourceOptions.read({"nameServer": "127.0.0.1:1", **given}, streaming=streaming)


def load(spark: Any, place: Place, **options: object) -> Any:
    """A batch read."""
    return spark.read.format("rocketmq").options(nameServer=place.namesrv, **options).load()


def start(spark: Any, place: Place, checkpoint: Path, *, now: bool = False, **options: object) -> Any:
    """Start a streaming query that counts rows. now: use the trigger availableNow, and wait for its end."""
    stream = spark.readStream.format("rocketmq").options(nameServer=place.namesrv, **options).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    trigger = {"availableNow": True} if now else {"processingTime": "100 milliseconds"}
    query = writer.trigger(**trigger).start()
    if now:
        query.awaitTermination()
    return query


def sizes(query: Any) -> list[int]:
    """The rows of each micro-batch so far; raises the query's error if it has failed."""
    if query.exception() is not None:
        raise query.exception()
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


# -- topics and queues ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "option topic is missing; set one of topic, subscribe, subscribePattern, assign"),
        ({"topic": "T", "subscribe": "T"}, "options topic and subscribe exclude each other"),
        ({"subscribe": "T", "assign": '{"T":{"b":[0]}}'}, "options subscribe and assign exclude each other"),
        ({"subscribe": " , "}, "names no topic"),
        ({"assign": "{}"}, "names no topic"),
        ({"assign": "T"}, "option assign is 'T': JSON is expected"),
        ({"assign": '{"T":[0]}'}, "should be a JSON object"),
        ({"assign": '{"T":{"b":0}}'}, "should be a JSON list of queue numbers"),
        ({"assign": '{"T":{"b":["0"]}}'}, "'0' is not the number of a queue"),
        ({"subscribePattern": "("}, "subscribePattern is '\\(', which is not supported"),
        ({"subscribePattern": "[a-z&&[^b]]"}, "which is not supported"),
        ({"subscribePattern": "a{99999999999999999999}"}, "which is not supported"),
    ],
)
def test_one_choice_of_what_to_read_is_required(given: dict[str, str], words: str) -> None:
    """A query would read other topics than its author intended."""
    for streaming in (True, False, None):
        with pytest.raises(ConfigInvalid, match=words):
            read(streaming, **given)


def test_topics_are_listed_once() -> None:
    """The queues of a topic that is named twice would be read twice."""
    assert read(topic="A, B,A").topics == read(subscribe="A,B").topics == ("A", "B")
    assigned = read(assign='{"T":{"b":[1,0]},"S":{"b":[2]}}')
    assert assigned.topics == ("S", "T")
    assert assigned.assigned == {QueueName("T", "b", 0), QueueName("T", "b", 1), QueueName("S", "b", 2)}


def test_a_group_is_named_after_what_it_reads() -> None:
    """With a new name at each start, every run would leave a group on the brokers."""
    assert read(topic="Orders").group == "spark-source-Orders"
    assert read(subscribePattern=r"Orders\..*", groupIdPrefix="team").group == "team-Orders-"
    assert read(subscribe="Refunds,Orders").group == "spark-source-Orders|Refunds"
    assert read(topic="T", groupIdPrefix="team", group="mine").group == "mine"
    assert len(read(topic="T" * 100, groupIdPrefix="p" * 200).group) == 255


@pytest.mark.parametrize("prefix", ["p", "p" * 250, "p" * 300])
def test_queries_of_other_topics_have_other_groups(prefix: str) -> None:
    """With commitOffsets they would overwrite each other's offsets."""
    selections = ("A", "B", "A,B", "A,C", "A-B", "A" * 126, "A" * 127, ",".join(f"T{i}" for i in range(99)))
    groups = {read(subscribe=text, groupIdPrefix=prefix).group for text in selections}
    assert len(groups) == len(selections)
    assert read(subscribe="B,A", groupIdPrefix=prefix).group in groups


async def test_a_pattern_finds_new_topics_and_survives_its_name_server() -> None:
    """A topic that is created while a query runs would not be read before the query is restarted."""
    async with Peer(offsets_of(0, 5)) as broker, Names() as names:
        names.queues = 1
        names.routes = {"Ax": {"a": broker.address}, "B": {"a": broker.address}}
        reader = reader_of(names, topic="", subscribePattern="A[x-z]")
        start = await asyncio.to_thread(reader.initialOffset)
        assert start == {"Ax": {"a": {"0": 0}}}
        names.routes |= {"Ay": {"a": broker.address}, "xAy": {"a": broker.address}}
        limit = reader.getDefaultReadLimit()
        both = {"Ax": {"a": {"0": 5}}, "Ay": {"a": {"0": 5}}}
        assert await asyncio.to_thread(reader.latestOffset, start, limit) == both
        assert len(await asyncio.to_thread(reader.partitions, start, both)) == 2
        await names.close()
        assert await asyncio.to_thread(reader.latestOffset, both, limit) == both
        await asyncio.to_thread(reader.stop)


async def test_a_missing_assigned_queue_is_named() -> None:
    """A wrong queue id would return no rows."""
    async with Peer(offsets_of(0, 5)) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        reader = reader_of(names, topic="", assign='{"T":{"a":[1,7]}}')
        with pytest.raises(ConfigInvalid, match="option assign has T a/7, which no running broker has"):
            await asyncio.to_thread(reader.initialOffset)
        await asyncio.to_thread(reader.stop)


def test_topics_and_queues_are_chosen(spark: Any, place: Place) -> None:
    """Kafka's options `subscribe`, `subscribePattern` and `assign` would be unknown."""
    one, other = place.topic(2), place.topic(1)
    for queue_id in range(2):
        fill(place, one, range(queue_id * 10, queue_id * 10 + 5), queue_id)
    fill(place, other, range(100, 103))
    whole = [*range(5), *range(10, 15)]
    assert numbers(load(spark, place, subscribe=f"{one},{other}")) == [*whole, *range(100, 103)]
    assert numbers(load(spark, place, subscribePattern=f"({one}|No.*)")) == whole
    assert numbers(load(spark, place, subscribePattern="NoSuch.*")) == []
    assign = json.dumps({one: {place.broker.name: [1]}, other: {place.broker.name: [0]}})
    assert numbers(load(spark, place, assign=assign)) == [*range(10, 15), *range(100, 103)]
    start_at = json.dumps({one: {place.broker.name: {"1": 3}}})
    assigned = json.dumps({one: {place.broker.name: [1]}})
    assert numbers(load(spark, place, assign=assigned, startingOffsets=start_at)) == [13, 14]


def test_a_stream_reads_topics_that_come_later(spark: Any, place: Place, tmp_path: Path) -> None:
    """A new topic would not be read until the query is restarted."""
    first = place.topic(1)
    late = f"{first}-late"
    fill(place, first, range(5))
    pattern = f"{first}(-late)?"
    query = start(spark, place, tmp_path, subscribePattern=pattern, startingOffsets="earliest")
    try:
        wait_until(lambda: sum(sizes(query)) == 5, "the first topic", WAIT_S)
        with AdminClient(place.namesrv) as admin:
            admin.create_topic(late, 1, key=CLUSTER)
        fill(place, late, range(3))
        wait_until(lambda: sum(sizes(query)) == 8, "the later topic", WAIT_S)
    finally:
        query.stop()


# -- ranges -----------------------------------------------------------------------------------------


def test_the_first_option_of_a_start_has_effect() -> None:
    """A job that moves from Kafka would read another range, if options had another precedence."""
    given: dict[str, object] = {"topic": "T", "startingOffsets": '{"T":{"b":{"0":1}}}'}
    queue = QueueName("T", "b", 0)
    assert read(**given).starting == ("startingOffsets", {queue: 1}, False)
    given["startingOffsetsByTimestamp"] = '{"T":{"b":{"0":2}}}'
    assert read(**given).starting == ("startingOffsetsByTimestamp", {queue: 2}, True)
    given["startingTimestamp"] = 3
    assert read(**given).starting == ("startingTimestamp", 3, True)
    ends = {"endingOffsetsByTimestamp": '{"T":{"b":{"0":4}}}', "endingOffsets": "latest"}
    options = read(**given, **ends)
    assert options.ending == ("endingOffsetsByTimestamp", {queue: 4}, True)
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - as Spark does


@pytest.mark.parametrize("text", ["1000", '{"T":{"b":{"0":-1}}}', '{"T":{"b":{"0":"5"}}}', "latest"])
def test_malformed_times_are_refused(text: str) -> None:
    """A query would begin at another time."""
    with pytest.raises(ConfigInvalid, match="option startingOffsetsByTimestamp"):
        read(topic="T", startingOffsetsByTimestamp=text)


def test_each_queue_has_its_times(spark: Any, place: Place) -> None:
    """To read one queue again, a job would have to read all of them."""
    topic = place.topic(2)
    broker = place.broker.name
    stored = []
    for begin, queue_id in ((0, 0), (10, 1), (20, 0)):
        stored.append(fill(place, topic, range(begin, begin + 5), queue_id))
        wait_until(lambda: time.time_ns() // 1_000_000 > max(stored[-1]), "a later millisecond")
    first, second, third = (min(times) for times in stored)

    def times(of_0: int, of_1: int) -> str:
        return json.dumps({topic: {broker: {"0": of_0, "1": of_1}}})

    frame = load(spark, place, topic=topic, startingOffsetsByTimestamp=times(third, first))
    assert numbers(frame) == [*range(10, 15), *range(20, 25)]
    frame = load(spark, place, topic=topic, endingOffsetsByTimestamp=times(third, second))
    assert numbers(frame) == [*range(5)]
    after = max(stored[-1]) + 1
    given = {"topic": topic, "startingOffsetsByTimestamp": times(first, after)}
    strategy = "startingOffsetsByTimestampStrategy"
    assert numbers(load(spark, place, **given)) == [*range(5), *range(20, 25)]
    assert numbers(load(spark, place, **given, **{strategy: "latest"})) == [*range(5), *range(20, 25)]
    words = rf"{topic} {broker}/1 has no message stored at or after {after}"
    with pytest.raises(AnalysisException, match=words):
        load(spark, place, **given, **{strategy: "error"}).collect()
    with pytest.raises(AnalysisException, match=rf"/\d has no message stored at or after {after}"):
        load(spark, place, topic=topic, startingTimestamp=after, **{strategy: "error"}).collect()
    assert numbers(load(spark, place, topic=topic, startingTimestamp=first, **{strategy: "error"})) == [
        *range(5), *range(10, 15), *range(20, 25)
    ]  # fmt: skip
    incomplete = json.dumps({topic: {broker: {"0": first}}})
    with pytest.raises(AnalysisException, match="startingOffsetsByTimestamp lacks"):
        load(spark, place, topic=topic, startingOffsetsByTimestamp=incomplete).collect()


# -- limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500", 500), ("10ms", 10), ("30s", 30_000), ("2 m", 120_000), ("15min", 900_000), ("1H", 3_600_000)],
)
def test_a_delay_is_written_as_in_spark(text: str, expected: int) -> None:
    """`15m` would be rejected, or read as milliseconds."""
    assert read(True, topic="T", minOffsetsPerTrigger=1, maxTriggerDelay=text).trigger_delay_ms == expected


@pytest.mark.parametrize("text", ["", "m", "-1s", "5 weeks", "9" * 5000])
def test_an_invalid_delay_is_rejected(text: str) -> None:
    """A query would wait forever, or not at all."""
    with pytest.raises(ConfigInvalid, match="maxTriggerDelay"):
        read(True, topic="T", minOffsetsPerTrigger=1, maxTriggerDelay=text)


@needs_limits
@pytest.mark.parametrize("most", [0, 8])
async def test_a_micro_batch_waits_for_a_minimum(most: int) -> None:
    """A few messages would cost a micro-batch, or never be read."""
    most_offset = 3
    now = 1000.0

    def script(channel: Any, request: Any) -> Any:
        return offsets_of(0, most_offset)(channel, request)

    async with Peer(script) as broker, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": broker.address}
        given: dict[str, Any] = {"nameServer": names.address, "topic": "T", "startingOffsets": "earliest"}
        given |= {"minOffsetsPerTrigger": 5, "maxTriggerDelay": "10s"}
        if most:
            given["maxOffsetsPerTrigger"] = most
        options = SourceOptions.read(given, streaming=True)
        reader = StreamReader(BODY, options, clock=lambda: now)
        limit = reader.getDefaultReadLimit()
        assert limit == ReadMaxRows(most or 2**63 - 1)

        async def end_after(begin: int) -> int:
            end = await asyncio.to_thread(reader.latestOffset, {"T": {"a": {"0": begin}}}, limit)
            return int(end["T"]["a"]["0"])

        assert await end_after(0) == 3  # the first one, as with Kafka
        most_offset = 7
        assert await end_after(3) == 3
        now += 9.9
        assert await end_after(3) == 3
        now += 0.1
        assert await end_after(3) == 7
        now += 100
        assert await end_after(7) == 7  # no messages, so the delay does not matter
        most_offset = 17
        assert await end_after(7) == (15 if most else 17)
        assert await end_after(15) == 15
        await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
        assert await end_after(15) == 17
        await asyncio.to_thread(reader.stop)


@pytest.mark.parametrize("name", ["minOffsetsPerTrigger", "maxOffsetsPerTrigger"])
def test_a_limit_needs_a_spark_that_has_them(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In Spark before 4.2 an option would have no effect, or fail the query after its start."""
    monkeypatch.setattr("pyspark_rocketmq.spark_version.HAS_READ_LIMITS", False)
    source = RocketMQDataSource({"nameServer": "127.0.0.1:1", "topic": "T", name: "5"})
    with pytest.raises(ConfigInvalid, match=f"option {name} needs PySpark 4.2 or later"):
        source.schema()


def test_ranges_of_tasks_have_a_maximum_size() -> None:
    """A task would exceed its memory, or have no messages."""
    queues = [QueueName("T", "b", number) for number in range(3)]
    ranges = [QueueRange(queues[0], 0, 10), QueueRange(queues[1], 5, 9), QueueRange(queues[2], 3, 3)]
    assert [(part.start, part.end) for part in split(ranges, 0, 4)] == [(0, 3), (3, 6), (6, 10), (5, 9)]
    assert split(ranges, 0, 100) == ranges[:2]
    pieces = split(ranges, 7, 4)
    assert len(pieces) >= 7
    assert max(part.end - part.start for part in pieces) <= 4
    assert sum(part.end - part.start for part in pieces) == 14


def test_partitions_are_limited(spark: Any, place: Place) -> None:
    """An executor would run out of memory over one long queue."""
    topic = place.topic(2)
    fill(place, topic, range(20), 0)
    fill(place, topic, range(20, 23), 1)
    pieces = load(spark, place, topic=topic, maxRecordsPerPartition=5)
    assert sorted(pieces.rdd.glom().map(len).collect()) == [3, 5, 5, 5, 5]
    both = load(spark, place, topic=topic, maxRecordsPerPartition=5, minPartitions=10)
    assert both.rdd.getNumPartitions() >= 9
    assert numbers(both) == list(range(23))


@needs_limits
def test_a_stream_waits_for_a_minimum_and_shows_its_lag(spark: Any, place: Place, tmp_path: Path) -> None:
    """The lag of a query would not be shown, or the overhead of small micro-batches be too high."""
    topic = place.topic(2)
    fill(place, topic, range(3), 0)
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    given: dict[str, Any] = {"topic": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": 10}
    query = start(spark, place, tmp_path, **given, maxTriggerDelay="1h")
    try:
        wait_until(lambda: sizes(query) == [3], "the first micro-batch", WAIT_S)
        fill(place, topic, range(4), 0)
        lag = {"minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 4, "avgOffsetsBehindLatest": 2.0}
        wait_until(lambda: offsets_behind_latest(query.lastProgress) == {topic: lag}, "its lag", WAIT_S)
        assert sizes(query) == [3]
        (source,) = query.lastProgress["sources"]  # the guide says what Spark shows of a Python source
        assert "PythonMicroBatchStream" in source["description"]
        assert not source["metrics"]
        fill(place, topic, range(8), 1)
        wait_until(lambda: sizes(query) == [3, 12], "enough messages", WAIT_S)
    finally:
        query.stop()
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    fill(place, topic, range(2), 0)
    assert sizes(start(spark, place, tmp_path, now=True, **given)) == [2]
    query = start(spark, place, tmp_path, **given, maxTriggerDelay="1s")
    try:
        for size in (1, 2):
            fill(place, topic, range(size), 0)
            wait_until(lambda: sum(sizes(query)) == sum(range(size + 1)), "the delay", WAIT_S)  # noqa: B023
    finally:
        query.stop()


def test_lag_is_of_our_topics_alone() -> None:
    """Another source of the same query would count as a topic, or fail the listener."""
    ours = {"endOffset": {"T": {"b": {"0": 5, "1": 9}}}, "latestOffset": '{"T": {"b": {"0": 7, "1": 8}}}'}
    files = {"endOffset": {"logOffset": 3}, "latestOffset": None}
    text = {"endOffset": "3", "latestOffset": "not JSON"}
    found = offsets_behind_latest({"sources": [files, ours, text]})
    lag = {"minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 2, "avgOffsetsBehindLatest": 1.0}
    assert found == {"T": lag}


# -- other options ----------------------------------------------------------------------------------


def test_properties_can_be_left_out(spark: Any, place: Place) -> None:
    """An unused map of properties would cost more than the rest of a row."""
    topic = place.topic(1)
    fill(place, topic, range(3), properties={"p": "v"})
    without = load(spark, place, topic=topic, includeHeaders="false")
    assert "properties" not in without.columns
    assert numbers(without) == [0, 1, 2]
    assert load(spark, place, topic=topic).first().properties == {"p": "v"}
    assert load(spark, place, topic=topic, includeHeaders="true").first().properties == {"p": "v"}
    reading = spark.read.format("rocketmq").options(nameServer=place.namesrv, topic=topic)
    wanted = reading.option("includeHeaders", "false").schema("properties map<string,string>")
    with pytest.raises(AnalysisException, match="'properties' needs option includeHeaders=true"):
        wanted.load().collect()


def test_a_prefix_names_the_group(spark: Any, place: Place, tmp_path: Path) -> None:
    """Access control by a team's prefix would reject the query, or its lag be shown for another group."""
    topic = place.topic(1)
    fill(place, topic, range(6))
    given = {**at_most(2), "commitOffsets": "true", "groupIdPrefix": "team"}
    start(spark, place, tmp_path, now=True, subscribe=topic, startingOffsets="earliest", **given)
    with PullConsumer(f"team-{topic}", place.namesrv) as watching:
        committed = watching.committed(MessageQueue(topic, place.broker.name, 0))
    assert committed in ({4} if HAS_READ_LIMITS else {0, None})  # one batch behind


@pytest.mark.parametrize(
    ("streaming", "given", "words"),
    [
        (True, {"endingOffsets": "latest"}, "endingOffsets is for a batch read, and this is a stream"),
        (True, {"endingTimestamp": "5"}, "endingTimestamp is for a batch read"),
        (False, {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for a stream, and this is a batch"),
        (False, {"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger is for a stream"),
        (False, {"commitOffsets": "true"}, "commitOffsets is for a stream"),
        (
            True,
            {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
            "is 6, above maxOffsetsPerTrigger, 5",
        ),
        (True, {"maxTriggerDelay": "5s"}, "maxTriggerDelay requires option minOffsetsPerTrigger"),
        (True, {"startingOffsetsByTimestampStrategy": "error"}, "requires startingTimestamp or"),
        (False, {"startingOffsetsByTimestampStrategy": "none"}, "choose one of error, latest"),
        (True, {"kafka.group.id": "g"}, r"'kafka.group.id' \(did you mean group\?\)"),
    ],
)
def test_conflicting_options_are_rejected(streaming: bool, given: dict[str, str], words: str) -> None:
    """A user would believe that an ignored option has effect."""
    with pytest.raises(ConfigInvalid, match=words):
        read(streaming, topic="T", **given)


def test_a_sink_names_the_replacement_of_kafkas_options() -> None:
    """A migrated job would get an error about an unknown option, without the name of its replacement."""
    with pytest.raises(ConfigInvalid, match=r"'kafka.bootstrap.servers' \(did you mean nameServer\?\)"):
        SinkOptions.read({"nameServer": "h:1", "topic": "T", "kafka.bootstrap.servers": "h:1"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"topic": "T", "subscribe": "T"}, "options topic and subscribe exclude each other"),
        ({"topic": "T", "startingOffsets": "soon"}, "earliest, latest or JSON is expected"),
        ({"topic": "T", "maxTriggerDelay": "5s"}, "requires option minOffsetsPerTrigger"),
    ],
)
def test_wrong_options_fail_at_load(spark: Any, place: Place, given: dict[str, str], words: str) -> None:
    """A mistake would be reported by the first action, far from the line with the option."""
    for reading in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException) as caught:
            reading.format("rocketmq").options(nameServer=place.namesrv, **given).load()
        assert words in str(caught.value)


def test_queues_with_few_messages_share_tasks(spark: Any, place: Place) -> None:
    """A read of many queues would start a task for each, or mix up their messages."""
    topic = place.topic(100)
    with Producer("spark_tests", place.namesrv) as producer:
        for queue_id in range(100):
            batch = [Message(topic, b"%d %d" % (queue_id, n)) for n in range(100 if queue_id == 50 else 4)]
            producer.send_batch(batch, queue=MessageQueue(topic, place.broker.name, queue_id))
    wait_until(lambda: place.stored(topic) == 496, "messages that can be read")
    frame = load(spark, place, topic=topic)
    tasks = [[(row.queueId, row.queueOffset, bytes(row.body)) for row in task] for task in glom(frame)]
    rows = [row for task in tasks for row in task]
    assert sorted(rows) == [
        (queue_id, n, b"%d %d" % (queue_id, n))
        for queue_id in range(100)
        for n in range(100 if queue_id == 50 else 4)
    ]
    assert 32 <= len(tasks) <= 40
    assert max(len(task) for task in tasks if all(queue_id != 50 for queue_id, _, _ in task)) <= 496 // 32
    separate = load(spark, place, topic=topic, minPartitions=100)
    assert [len({row.queueId for row in task}) for task in glom(separate)] == [1] * 100


def glom(frame: Any) -> list[list[Any]]:
    """The rows of each partition."""
    found: list[list[Any]] = frame.rdd.glom().collect()
    return found
