"""Spark's sink and source against RocketMQ's broker, with its clients on the other side.

Run where PySpark is installed (`make spark` installs it).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from examples.spark_session import start_session
from rocketpy import AdminClient
from tests.interop.cluster import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import Side, serve
from tests.spark.trace_story import expect_one_trace, tell

pytest.importorskip("pyspark", reason="PySpark is not installed: make spark")

pytestmark = pytest.mark.interop

SIDES = (Side("Spark", "java", "java"),)
# A machine that is busy with Spark must not make the broker refuse messages by itself.
PATIENT = {"waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}


@pytest.fixture(scope="module", params=SIDES, ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Java's servers."""
    side: Side = request.param
    with serve(side, peer, tmp_path_factory.mktemp("spark"), conf=PATIENT) as running:
        yield running


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session."""
    session = start_session("rocketpy interop")
    yield session
    session.stop()


def test_java_reads_what_spark_wrote(servers: Cluster, spark: Any) -> None:
    """A Java consumer would miss rows, their tags, keys or properties, or could not inflate a body."""
    topic = servers.topic("spark_sink")
    frame = spark.range(0, 2000, 1, 2).selectExpr(
        "IF(id = 7, repeat('x', 9000), concat('body ', id)) AS body",
        "'paid' AS tags",
        "array(concat('k', id), 'all') AS keys",
        "map('shop', 'Zürich') AS properties",
    )
    options = {"nameServer": servers.namesrv.address, "topic": topic, "sendTimeoutMs": "30000"}
    frame.write.format("rocketmq").options(**options).mode("append").save()
    received = servers.pull_all(topic)
    bodies = sorted(bytes.fromhex(one["body"]) for one in received)
    assert bodies == sorted([*(b"body %d" % number for number in range(2000) if number != 7), b"x" * 9000])
    assert {one["tags"] for one in received} == {"paid"}
    assert {one["properties"]["shop"] for one in received} == {"Zürich"}
    assert len({one["properties"]["SPARK_ROW_ID"] for one in received}) == 2000
    assert "k1999 all" in {one["keys"] for one in received}


def test_spark_reads_what_java_wrote(servers: Cluster, spark: Any) -> None:
    """Rows would lack what a Java producer set, or a range begin at the wrong message."""
    topic = servers.topic("spark_source")
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
    for step, answer in zip(steps, sent, strict=True):
        row = rows[bytes.fromhex(str(step["body"]))]
        assert (row.msgId, row.tags, row.keys) == (answer["msgId"], step["tags"], step["keys"])
        assert (row.queueId, row.queueOffset) == (answer["queueId"], answer["queueOffset"])
        assert row.properties == step["properties"]
    starts: dict[str, dict[str, int]] = {}
    for row in rows.values():
        starts.setdefault(row.brokerName, {})[str(row.queueId)] = 20
    late = reader.option("startingOffsets", json.dumps({topic: starts})).load()
    assert late.count() == sum(row.queueOffset >= 20 for row in rows.values())
    half = sorted(row.storeTimestamp.timestamp() for row in rows.values())[50]
    since = reader.option("startingTimestamp", round(half * 1000)).load()
    assert since.count() == sum(row.storeTimestamp.timestamp() >= half for row in rows.values())


async def test_a_job_and_its_consumer_are_one_trace(servers: Cluster) -> None:
    """A trace would end at the broker: it drops what a batch carries, or mixes it up."""
    topic = servers.topic("spark_trace")
    async with AdminClient(servers.namesrv.address) as admin:
        await admin.create_topic(topic)
    expect_one_trace(await tell(servers.namesrv.address, topic), topic)
