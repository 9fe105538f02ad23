"""Spark's sink and source against RocketMQ's servers: with its clients on the other side, and alone.

Those cases of tests/spark run here, too, that depend on the broker: columns, compressed bodies, queues by
key, ranges by offset and time, tags, expired offsets, missing topics and brokers, access keys, and brokers
that are paused, are killed or start late. Left out are cases that end before a request is sent (invalid
options and columns, bodies made of rows, null bodies, `dedupe` over a frame), and those that send the same
requests (the functions for Spark 3.5).

One session and one pair of servers serve all cases; those that kill the broker restart it. The cases need
PySpark (`make spark` installs it).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: make spark")

from pyspark.errors import PySparkException

from examples.spark_session import start_session
from tests.interop import probe
from tests.interop.accounts import refusals, serve_with_accounts
from tests.interop.cluster import Cluster
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer
from tests.interop.sides import Side, newer_servers, serve
from tests.spark.conftest import CONF, PATIENT, QUICK_TO_START, Place, write
from tests.spark.test_restarts import (
    test_a_paused_broker_delays_rows_and_loses_none,
    test_a_read_waits_for_its_broker,
    test_a_stream_survives_its_driver_and_its_broker,
    test_a_write_waits_for_its_broker,
)
from tests.spark.test_security import ACCOUNTS
from tests.spark.test_security import write as save
from tests.spark.test_sink import (
    test_a_missing_topic_and_a_missing_broker_are_named,
    test_an_empty_frame_sends_nothing,
    test_delayed_rows_and_long_bodies_are_sent_individually,
    test_each_column_reaches_its_part_of_the_message,
    test_equal_sharding_keys_share_a_queue_in_order,
    test_long_bodies_are_compressed_as_configured,
    test_rows_of_a_repeated_task_keep_their_ids,
)
from tests.spark.test_source import (
    test_a_message_has_all_its_columns,
    test_a_missing_topic_is_named,
    test_a_read_frame_can_be_written,
    test_a_stream_continues_from_its_checkpoint,
    test_a_stream_from_one_topic_into_another,
    test_lost_messages_fail_the_read_or_are_logged,
    test_ranges_begin_and_end_at_the_given_offsets_and_times,
    test_tags_are_chosen_by_the_broker,
)
from tests.spark.test_source_options import (
    test_a_stream_reads_topics_that_come_later,
    test_each_queue_has_its_times,
    test_topics_and_queues_are_chosen,
)
from tests.spark.trace_scenario import expect_one_trace, run_scenario

__all__ = [
    "test_a_message_has_all_its_columns",
    "test_a_missing_topic_and_a_missing_broker_are_named",
    "test_a_missing_topic_is_named",
    "test_a_paused_broker_delays_rows_and_loses_none",
    "test_a_read_frame_can_be_written",
    "test_a_read_waits_for_its_broker",
    "test_a_stream_continues_from_its_checkpoint",
    "test_a_stream_from_one_topic_into_another",
    "test_a_stream_reads_topics_that_come_later",
    "test_a_stream_survives_its_driver_and_its_broker",
    "test_a_write_waits_for_its_broker",
    "test_an_empty_frame_sends_nothing",
    "test_delayed_rows_and_long_bodies_are_sent_individually",
    "test_each_column_reaches_its_part_of_the_message",
    "test_each_queue_has_its_times",
    "test_equal_sharding_keys_share_a_queue_in_order",
    "test_long_bodies_are_compressed_as_configured",
    "test_lost_messages_fail_the_read_or_are_logged",
    "test_ranges_begin_and_end_at_the_given_offsets_and_times",
    "test_rows_of_a_repeated_task_keep_their_ids",
    "test_tags_are_chosen_by_the_broker",
    "test_topics_and_queues_are_chosen",
    "write",
]

pytestmark = pytest.mark.interop

SIDES = (Side("Spark", "java", "java"), *newer_servers("Spark"))


@pytest.fixture(scope="module", params=SIDES, ids=lambda side: side.direction)
def side(request: pytest.FixtureRequest) -> Side:
    """A pairing with servers of one version."""
    found: Side = request.param
    return found


@pytest.fixture(scope="module")
def servers(side: Side, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Java's servers."""
    with serve(side, peer, tmp_path_factory.mktemp("spark"), conf=CONF) as running:
        yield running


@pytest.fixture(scope="module")
def place(servers: Cluster) -> Place:
    """These servers, for the cases of tests/spark."""
    return Place(servers.namesrv, servers.broker)


@pytest.fixture
def own_place(place: Place) -> Place:
    """These servers, too: a case that kills the broker restarts it."""
    return place


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session, which tries each task twice."""
    session = start_session("rocketpy interop", "local[2,2]", QUICK_TO_START)
    yield session
    session.stop()


@pytest.fixture
def guarded(side: Side, peer: JavaPeer, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The options of a job for servers that require an access key."""
    with serve_with_accounts(side, peer, tmp_path, ACCOUNTS, readers=["spark-jobs"], conf=PATIENT) as running:
        yield {
            "nameServer": running.namesrv.address,
            "accessKey": "spark-jobs",
            "secretKey": "12345678",
            "deliveryTimeoutMs": "1",
        }


def test_rows_are_written_and_read_with_access_keys(spark: Any, side: Side, guarded: dict[str, str]) -> None:
    """Wrongly signed requests would fail every row, or be rejected without a reason."""
    frame = spark.range(100).selectExpr("cast(id AS string) AS body", "'t' AS tags").coalesce(1)
    save(frame, guarded, topic="Open", sendTimeoutMs="30000")
    given = {name: value for name, value in guarded.items() if name != "deliveryTimeoutMs"}
    reader = spark.read.format("rocketmq").options(**given, topic="Open")
    # RocketMQ's brokers dispatch a little after they respond.
    probe.wait_until(lambda: reader.load().count() >= 100, "100 rows")
    assert sorted(int(row.body) for row in reader.load().collect()) == list(range(100))
    words = refusals(side.version, "spark-jobs")
    refused = {
        words.no_key: {"accessKey": "", "secretKey": ""},
        words.wrong_secret: {"secretKey": "87654321"},
        # ACL 1.0 checks the rights of single messages only.
        words.closed_topic: {"topic": "Closed", "batchSize": "1"},
    }
    for expected, changed in refused.items():
        given = {**guarded, "topic": "Open", "sendTimeoutMs": "30000", **changed}
        with pytest.raises(PySparkException, match=rf"(?s)partition 0 not sent.*{expected}.*not_sent"):
            save(frame, given)


def test_java_reads_messages_of_spark(servers: Cluster, place: Place, spark: Any) -> None:
    """A Java consumer would miss rows, their tags, keys or properties, or could not inflate a body."""
    topic = place.topic()
    frame = spark.range(0, 2000, 1, 2).selectExpr(
        "IF(id % 10 = 7, repeat(concat('x', id), 3000), concat('body ', id)) AS body",
        "'paid' AS tags",
        "array(concat('k', id), 'all') AS keys",
        "map('shop', 'Zürich') AS properties",
    )
    options = {"nameServer": servers.namesrv.address, "topic": topic, "sendTimeoutMs": "30000"}
    frame.write.format("rocketmq").options(**options).mode("append").save()
    received = servers.pull_all(topic)
    bodies = sorted(bytes.fromhex(one["body"]) for one in received)
    assert bodies == sorted(
        b"x%d" % number * 3000 if number % 10 == 7 else b"body %d" % number for number in range(2000)
    )
    if servers.version == DEFAULT_VERSION:  # newer brokers add it to the messages of a batch, too
        assert not any("CLUSTER" in one["properties"] for one in received), "all were sent in batches"
    assert {one["tags"] for one in received} == {"paid"}
    assert {one["properties"]["shop"] for one in received} == {"Zürich"}
    assert len({one["properties"]["SPARK_ROW_ID"] for one in received}) == 2000
    assert "k1999 all" in {one["keys"] for one in received}


def test_spark_reads_messages_of_java(servers: Cluster, place: Place, spark: Any) -> None:
    """Rows would lack fields of a Java producer, or a range begin at the wrong message."""
    topic = place.topic()
    steps = [
        {
            "how": "sync",
            "topic": topic,
            "body": (b"%d" % number).hex(),
            "tags": "odd" if number % 2 else "even",
            "keys": f"k{number}",
            "properties": {"n": str(number)},
        }
        for number in range(100)
    ]
    sent = servers.produce(*steps)
    reader = spark.read.format("rocketmq").options(nameServer=servers.namesrv.address, topic=topic)
    rows = {bytes(row.body): row for row in reader.load().collect()}
    assert len(rows) == 100
    for step, result in zip(steps, sent, strict=True):
        row = rows[bytes.fromhex(str(step["body"]))]
        assert (row.msgId, row.tags, row.keys) == (result["msgId"], step["tags"], step["keys"])
        assert (row.queueId, row.queueOffset) == (result["queueId"], result["queueOffset"])
        assert row.properties == step["properties"]
    starts: dict[str, dict[str, int]] = {}
    for row in rows.values():
        starts.setdefault(row.brokerName, {})[str(row.queueId)] = 20
    late = reader.option("startingOffsets", json.dumps({topic: starts})).load()
    assert late.count() == sum(row.queueOffset >= 20 for row in rows.values())
    half = sorted(row.storeTimestamp.timestamp() for row in rows.values())[50]
    since = reader.option("startingTimestamp", round(half * 1000)).load()
    assert since.count() == sum(row.storeTimestamp.timestamp() >= half for row in rows.values())


async def test_a_job_and_its_consumer_are_one_trace(place: Place) -> None:
    """A trace would end at a broker that drops or mixes up the context of messages in a batch."""
    topic = place.topic()
    expect_one_trace(await run_scenario(place.namesrv, topic), topic)
