"""Jobs on two executors whose driver and broker are killed; tasks whose broker is paused or offline."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from pyspark_rocketmq import ROW_ID_PROPERTY, SeenRows
from pyspark_rocketmq.messages_to_rows import check_schema
from pyspark_rocketmq.offsets import QueueName, QueueRange
from pyspark_rocketmq.options import SinkOptions, SourceOptions
from pyspark_rocketmq.rows_to_messages import Columns
from pyspark_rocketmq.sink import TaskId, send_rows
from pyspark_rocketmq.source import read_ranges
from rocketpy import Message, MessageQueue
from rocketpy.errors import RocketError
from rocketpy.sync import Producer
from tests.interop.probe import wait_until
from tests.interop.processes import OurBroker, our_environment
from tests.spark.conftest import CONF, Place

pytestmark = pytest.mark.spark

FILES, LINES = 6, 3000
ROWS = 5000
AWAY_S = 25
WAIT_S = 600
"""A busy machine may take minutes to start a driver and two executors."""


class Job:
    """`stream_job` as a process."""

    def __init__(self, place: Place, topic: str, folder: Path) -> None:
        self.log = folder / "job.log"
        command = [sys.executable, "-m", "tests.spark.stream_job", place.namesrv, topic, str(folder)]
        with self.log.open("ab") as log:
            # A process group of its own, so that JVM, executors and Python workers are killed, too.
            self.process = subprocess.Popen(
                command, env=our_environment(), stdout=log, stderr=log, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to all its processes, like the loss of a machine."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def stored(place: Place, topic: str) -> int:
    """The number of messages; 0 while the broker is offline."""
    try:
        return place.stored(topic)
    except RocketError:
        return 0


def test_a_paused_broker_delays_rows_and_loses_none(own_place: Place) -> None:
    """A pause of the broker's machine would fail the task, or lose rows in flight."""
    place, topic, go_on = own_place, own_place.topic(), Event()

    def batches() -> Iterator[pa.RecordBatch]:
        for start in (0, ROWS):
            yield pa.record_batch({"body": [str(number) for number in range(start, start + ROWS)]})
            go_on.wait(WAIT_S)

    options = {"nameServer": place.namesrv, "topic": topic, "sendTimeoutMs": "500", "batchSize": "100"}
    sink = SinkOptions.read(options)
    columns = Columns([("body", "string")], sink)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_rows, batches(), columns, sink, TaskId("run", 0, 0))
        try:
            wait_until(lambda: stored(place, topic) >= ROWS, "half of the rows", WAIT_S, 0.2)
            os.kill(place.broker.pid, signal.SIGSTOP)
            go_on.set()
            time.sleep(2)  # several requests' timeouts
            assert not sending.done()
        finally:
            go_on.set()
            os.kill(place.broker.pid, signal.SIGCONT)
        assert sending.result(WAIT_S).rows == 2 * ROWS
    messages = place.messages(topic)
    assert {int(message.body) for message in messages} == set(range(2 * ROWS))
    assert len(messages) > 2 * ROWS  # the broker also stored requests that had timed out
    once = [int(message.body) for message in SeenRows().new(messages)]
    assert sorted(once) == list(range(2 * ROWS))


@pytest.mark.parametrize("paused", [False, True])
def test_long_rows_are_stored_once_or_reported_as_retried(own_place: Place, paused: bool) -> None:
    """Long rows would overload the broker, time out in its queue, and be sent twice without a fault."""
    place, topic, go_on = own_place, own_place.topic(), Event()
    rows = 1500

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, 500):
            numbers = range(start, start + 500)
            yield pa.record_batch({"body": [b"%d " % number + os.urandom(8000) for number in numbers]})
            if paused and start == 0:
                go_on.wait(WAIT_S)

    timeout = {"sendTimeoutMs": "500"} if paused else {}
    sink = SinkOptions.read({"nameServer": place.namesrv, "topic": topic, **timeout})
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(
            send_rows, batches(), Columns([("body", "binary")], sink), sink, TaskId("run", 0, 0)
        )
        if paused:
            wait_until(lambda: stored(place, topic) > 0, "the first rows", WAIT_S, 0.2)
            os.kill(place.broker.pid, signal.SIGSTOP)
            go_on.set()
            time.sleep(2)  # several requests' timeouts
            os.kill(place.broker.pid, signal.SIGCONT)
        report = sending.result(WAIT_S)
    messages = place.messages(topic)
    assert {int(message.body.split()[0]) for message in messages} == set(range(rows))
    assert len(messages) <= rows + report.retried
    assert bool(report.retried) is paused
    once = [int(message.body.split()[0]) for message in SeenRows().new(messages)]
    assert sorted(once) == list(range(rows))


def test_a_write_waits_for_its_broker(own_place: Place) -> None:
    """A job that starts shortly before its broker would fail, and need a manual restart."""
    place, topic, started = own_place, own_place.topic(), Event()
    place.broker.kill()

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"body": [str(number) for number in range(ROWS)]})
        started.set()

    sink = SinkOptions.read({"nameServer": place.namesrv, "topic": topic, "deliveryTimeoutMs": WAIT_S * 1000})
    columns = Columns([("body", "string")], sink)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_rows, batches(), columns, sink, TaskId("run", 0, 0))
        try:
            assert started.wait(WAIT_S)
            assert not sending.done()
        finally:
            place.broker.start()
        assert sending.result(WAIT_S).rows == ROWS
    once = [int(message.body) for message in SeenRows().new(place.messages(topic))]
    assert sorted(once) == list(range(ROWS))


def test_a_read_waits_for_its_broker(own_place: Place) -> None:
    """A broker's restart in the middle of a read would fail the task, or leave messages out."""
    place, topic = own_place, own_place.topic(1)
    given = {"nameServer": place.namesrv, "topic": topic}
    sink = SinkOptions.read({**given, "sendTimeoutMs": 30_000})
    # More than the pulls that are ahead of the first batch, and not compressed.
    rows = pa.record_batch({"body": [f"{number:04000}" for number in range(ROWS)]})
    send_rows([rows], Columns([("body", "string")], sink), sink, TaskId("run", 0, 0))
    bodies = [message.body for message in place.messages(topic)]
    source = SourceOptions.read({**given, "deliveryTimeoutMs": WAIT_S * 1000}, streaming=False)
    part = QueueRange(QueueName(topic, place.broker.name, 0), 0, len(bodies))
    reading = read_ranges([part], check_schema([("body", "binary")]), source)
    first = next(reading)
    place.broker.kill()
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, reading)
        place.broker.start()
        batches = [first, *rest.result(WAIT_S)]
    assert len(batches) > 1
    assert [body for batch in batches for body in batch["body"].to_pylist()] == bodies


def test_a_stream_waits_for_its_broker(spark: Any, own_place: Place, tmp_path: Path) -> None:
    """A broker's restart of 25 s would end the query, although each request may wait for 10 s."""
    place, topic = own_place, own_place.topic(2)
    sink = SinkOptions.read({"nameServer": place.namesrv, "topic": topic, "sendTimeoutMs": 30_000})
    rows = pa.record_batch({"body": [str(number) for number in range(ROWS)]})
    send_rows([rows], Columns([("body", "string")], sink), sink, TaskId("run", 0, 0))
    stream = spark.readStream.format("rocketmq").options(
        nameServer=place.namesrv, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=ROWS // 5
    )
    found: list[int] = []
    query = (
        stream.load().selectExpr("cast(cast(body as string) as int) as n").writeStream
        .foreachBatch(lambda frame, _: found.extend(row.n for row in frame.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    try:
        wait_until(lambda: found or not query.isActive, "the first micro-batch", WAIT_S, 0.05)
        place.broker.kill()
        back_at = time.monotonic() + AWAY_S
        wait_until(lambda: time.monotonic() > back_at or not query.isActive, "a long restart", WAIT_S, 0.2)
        assert query.isActive, query.exception()
        assert len(found) < ROWS
        place.broker.start()
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    assert sorted(found) == list(range(ROWS))


def test_a_stream_survives_its_driver_and_its_broker(own_place: Place, tmp_path: Path) -> None:
    """Rows would be lost, or counted twice, after a crash, a broker's restart or a speculative task."""
    place, topic = own_place, own_place.topic()
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        lines = "".join(f"{number * LINES + line}\n" for line in range(LINES))
        (tmp_path / "in" / f"{number}.txt").write_text(lines)
    with Job(place, topic, tmp_path) as first:
        wait_until(lambda: stored(place, topic) > LINES, "the second micro-batch", WAIT_S, 0.5)
        first.kill()
    assert stored(place, topic) < FILES * LINES
    with Job(place, topic, tmp_path) as second:
        wait_until(lambda: stored(place, topic) > 3 * LINES, "more after the restart", WAIT_S, 0.5)
        place.broker.kill()
        place.broker.start()
        assert second.process.wait(WAIT_S) == 0, second.log.read_text()[-3000:]
    messages = place.messages(topic)
    assert {int(message.body) for message in messages} == set(range(FILES * LINES))
    assert len({message.properties[ROW_ID_PROPERTY] for message in messages}) == FILES * LINES
    assert len(messages) > FILES * LINES  # at least the stalled task has sent duplicates
    once = [int(message.body) for message in SeenRows().new(messages)]
    assert sorted(once) == list(range(FILES * LINES))


def test_a_read_without_one_of_its_brokers_fails_or_is_asked_for(
    spark: Any, own_place: Place, tmp_path: Path
) -> None:
    """A job would succeed without the messages of a broker that is paused or stopped."""
    names = own_place.names.address
    with OurBroker(tmp_path, names, name="second", conf=CONF) as second:
        topic = own_place.topic(1)
        first = own_place.broker.name
        with Producer("spark_tests", names) as producer:
            for broker in (first, second.name):
                producer.send(Message(topic, broker.encode()), queue=MessageQueue(topic, broker, 0))
        wait_until(lambda: own_place.stored(topic) == 2, "both messages")
        options = {
            "nameServer": names,
            "topic": topic,
            "deliveryTimeoutMs": "1000",
            "requestTimeoutMs": "500",
        }

        def batch(**more: str) -> list[str]:
            frame = spark.read.format("rocketmq").options(**options | more).load()
            return sorted(row.body.decode() for row in frame.select("body").collect())

        def stream(**more: str) -> int:
            """The number of new rows."""
            given = options | {"startingOffsets": "earliest"} | more
            frame = spark.readStream.format("rocketmq").options(**given).load()
            writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "offsets"))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            return sum(progress["numInputRows"] for progress in query.recentProgress)

        def send_to_both() -> None:
            with Producer("spark_tests", names) as producer:
                for broker in (first, second.name):
                    producer.send(Message(topic, b"later"), queue=MessageQueue(topic, broker, 0))

        both = sorted([first, second.name])
        assert batch() == both
        assert stream() == 2
        send_to_both()
        wait_until(lambda: own_place.stored(topic) == 4, "four messages")
        left_out = f"broker second .* so {topic} second/0 cannot be read: .*failOnDataLoss=false"
        os.kill(second.pid, signal.SIGSTOP)
        try:
            with pytest.raises(PySparkException, match=left_out):
                batch()
            assert batch(failOnDataLoss="false") == sorted([first, "later"])
            with pytest.raises(PySparkException, match=left_out):
                stream()
        finally:
            os.kill(second.pid, signal.SIGCONT)
        second.stop()
        with pytest.raises(PySparkException, match=left_out):
            stream()
        assert stream(failOnDataLoss="false") == 1
        assign = json.dumps({topic: {first: [0], "second": [0]}})
        with pytest.raises(
            PySparkException, match=f"no name server lists a broker that has {topic} second/0"
        ):
            batch(assign=assign, topic="")
        second.start()
        wait_until(lambda: stored(own_place, topic) == 4, "the broker's route")
        assert batch(assign=assign, topic="") == sorted([*both, "later", "later"])
        assert stream() == 1
