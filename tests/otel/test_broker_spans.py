"""Spans of the broker in the senders' traces."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.trace import SpanKind

from rocketpy import Message, Producer
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.config.file import load_broker_config, load_namesrv_config
from rocketpy_broker.namesrv import NameServer
from tests.integration.ha_pair import caught_up, pair
from tests.otel.recorder import Recorder, attributes, parent_id, span_id


async def send_to(tmp_path: Path, recorder: Recorder, **settings: str) -> None:
    """A single send and a batch, traced by the client, to a broker with these settings."""
    names = NameServer(load_namesrv_config(None, {"listen": "127.0.0.1:0", "kvConfigPath": f"{tmp_path}/kv"}))
    await names.start()
    given = {
        "storePathRootDir": str(tmp_path / "store"),
        "listen": "127.0.0.1:0",
        "namesrvAddr": str(names.address),
        **settings,
    }
    broker = Broker(load_broker_config(None, given))
    await broker.start()
    try:
        async with Producer("g", str(names.address), telemetry=recorder.telemetry()) as producer:
            await producer.send(Message("Single", b"x"))
            await producer.send_batch([Message("Batch", b"1"), Message("Batch", b"2")])
        async with Producer("g", str(names.address), telemetry=False) as producer:
            await producer.send(Message("Single", b"without a context"))
    finally:
        await broker.close()
        await names.close()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_the_broker_s_spans_are_in_the_sender_s_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    """A slow send would not show whether it waited for the broker, its disk or the network."""
    recorder = Recorder()
    monkeypatch.setattr("rocketpy_broker.broker.broker.find_telemetry", lambda _choice: recorder.telemetry())
    await send_to(tmp_path, recorder, flushDiskType=flush, traceSends="true")
    send, store = recorder.span("send Single"), recorder.span("store Single")
    assert store.kind is SpanKind.SERVER
    assert parent_id(store) == span_id(send)
    assert attributes(store) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "store",
        "messaging.operation.type": "receive",
        "messaging.destination.name": "Single",
        "messaging.destination.partition.id": attributes(send)["messaging.destination.partition.id"],
    }
    stages = [span for span in recorder.spans() if parent_id(span) == span_id(store)]
    assert [span.name for span in stages] == ["append", "flush wait"][: 1 if flush == "ASYNC_FLUSH" else 2]
    assert stages[0].start_time == store.start_time
    assert stages[-1].end_time == store.end_time
    batch, creates = recorder.span("store Batch"), recorder.spans("create Batch")
    assert parent_id(batch) == span_id(creates[0])
    assert [link.context.span_id for link in batch.links] == [span_id(creates[1])]
    assert attributes(batch)["messaging.batch.message_count"] == 2


async def test_the_wait_for_a_slave_is_a_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A send that a slave delays would look like one that the master's disk delays."""
    recorder = Recorder()
    monkeypatch.setattr("rocketpy_broker.broker.broker.find_telemetry", lambda _choice: recorder.telemetry())
    async with pair(tmp_path) as brokers:
        settings = {"brokerRole": "SYNC_MASTER", "flushDiskType": "SYNC_FLUSH", "traceSends": "true"}
        master = await brokers.master(**settings)
        await caught_up(master, await brokers.slave())
        async with Producer("g", brokers.namesrv_address, telemetry=recorder.telemetry()) as producer:
            await producer.send(Message("Single", b"x"))
    store = recorder.span("store Single")
    stages = [span for span in recorder.spans() if parent_id(span) == span_id(store)]
    assert [span.name for span in stages] == ["append", "flush wait", "replication wait"]
    for before, after in pairwise(stages):
        assert before.end_time == after.start_time


async def test_brokers_trace_nothing_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each traced message would cost brokers CPU time for spans that nobody collects."""
    recorder = Recorder()
    monkeypatch.setattr("rocketpy_broker.broker.broker.find_telemetry", lambda _choice: recorder.telemetry())
    await send_to(tmp_path, recorder)
    assert recorder.spans("store") == []
