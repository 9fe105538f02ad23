"""Message trace: reports reach their topic, and never delay the traced messages."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from rocketpy import (
    LocalTransactionState,
    Message,
    MessageTraceConfig,
    Producer,
    ProducerConfig,
    PullConsumer,
)
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.message.trace import MessageKind, Sent, TraceRecord, decode
from rocketpy.protocol.remoting.command import Command
from rocketpy.telemetry.message_trace import TRACE_GROUP
from rocketpy.transport import Channel
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.config.file import load_broker_config
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_peers import Names, Peer, stored
from tests.waiting import LIMIT_S

TRACED = ProducerConfig(message_trace=MessageTraceConfig(linger_ms=1))


async def reports(cluster: EmbeddedCluster, topic: str, count: int) -> tuple[list[TraceRecord], set[str]]:
    """Wait for this many records in a trace topic; return them, and the keys of their messages."""
    records: list[TraceRecord] = []
    keys: set[str] = set()
    async with asyncio.timeout(LIMIT_S), PullConsumer("readers", cluster.namesrv_address) as consumer:
        while len(records) < count:
            records, keys = [], set()
            for queue in await consumer.fetch_queues(topic):
                for message in (await consumer.pull(queue, 0)).messages:
                    records += decode(message.body.decode())
                    keys.update(message.keys)
            await asyncio.sleep(0.01)
    return records, keys


async def test_sends_are_reported() -> None:
    """A trace query would not find messages, or show wrong values."""
    async with EmbeddedCluster() as cluster:
        address = str(cluster.brokers[0].address)
        async with Producer("senders", cluster.namesrv_address, config=TRACED) as producer:
            plain = await producer.send(Message("T", b"hello", tags="paid", keys=["a", "b"]))
            batch = await producer.send_batch([Message("T", b"1"), Message("T", b"22")])
            delayed = await producer.send(Message("T", b"later", delay_level=1))
            timed = await producer.send(Message("T", b"later", delay=timedelta(seconds=1)))
            half = await producer.send_in_transaction(
                Message("T", b"half"),
                local_transaction=lambda _: LocalTransactionState.COMMIT,
                check=lambda _: LocalTransactionState.UNKNOWN,
            )
            producer.send_oneway(Message("T", b"no response"))
        records, keys = await reports(cluster, "RMQ_SYS_TRACE_TOPIC", 6)
        found = {record.message_id: record for record in records if isinstance(record, Sent)}
        assert len(records) == len(found) == 6
        first = found[plain.message_id]
        assert (first.group, first.topic, first.tags, first.keys) == ("senders", "T", "paid", "a b")
        assert (first.region, first.store_host, first.body_bytes) == ("DefaultRegion", address, 5)
        assert (first.offset_message_id, first.success) == (plain.offset_message_id, True)
        assert [found[result.message_id].body_bytes for result in batch] == [1, 2]
        kinds = [found[result.message_id].kind for result in (plain, delayed, timed, half)]
        assert kinds == [MessageKind.NORMAL, MessageKind.DELAY, MessageKind.DELAY, MessageKind.HALF]
        assert keys == {*found, "a", "b"}


async def test_nothing_is_reported_by_default() -> None:
    """Every user would pay for traces that are not read."""
    async with EmbeddedCluster() as cluster:
        async with Producer("senders", cluster.namesrv_address) as producer:
            await producer.send(Message("T", b"hello"))
        assert cluster.brokers[0].topics.get("RMQ_SYS_TRACE_TOPIC") is None


async def test_a_custom_trace_topic() -> None:
    """Traces of one application could not be kept apart."""
    config = ProducerConfig(message_trace=MessageTraceConfig(topic="MyTraces"))
    async with EmbeddedCluster() as cluster:
        async with Producer("senders", cluster.namesrv_address, config=config) as producer:
            await asyncio.gather(*[producer.send(Message("T", b"hello")) for _ in range(150)])
        records, _ = await reports(cluster, "MyTraces", 150)
        assert len(records) == 150


async def test_lost_reports_cost_no_message(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that rejects traces would slow down or fail the application's sends."""

    def no_traces(_channel: Channel, request: Command) -> Command | None:
        is_trace = request.code == RequestCode.SEND_MESSAGE_V2 and request.ext_fields()["a"] == TRACE_GROUP
        return None if is_trace else stored(request)

    config = ProducerConfig(message_trace=MessageTraceConfig(batch_count=1), batching=False)
    async with Peer(no_traces) as broker, Names() as names:
        names.routes |= {"T": {"a": broker.address}, "RMQ_SYS_TRACE_TOPIC": {"a": broker.address}}
        producer = Producer("g", names.address, config=config)
        await producer.start()
        async with asyncio.timeout(LIMIT_S):
            for _ in range(100):
                await producer.send(Message("T", b"x"))
        closing = asyncio.create_task(producer.close())
        async with asyncio.timeout(LIMIT_S):
            await closing
        lines = [record for record in caplog.records if "message trace reports lost" in record.message]
        assert len([record for record in lines if "in flight" in record.message]) == 1


@pytest.mark.parametrize("enabled", ["true", "false"])
async def test_brokers_create_the_trace_topic_if_configured(tmp_path: object, enabled: str) -> None:
    """Java producers with traces would find no route where topics are not created automatically."""
    settings = {
        "storePathRootDir": f"{tmp_path}/store",
        "listen": "127.0.0.1:0",
        "traceTopicEnable": enabled,
        "autoCreateTopicEnable": "false",
    }
    broker = Broker(load_broker_config(None, settings))
    await broker.start()
    try:
        topic = broker.topics.get("RMQ_SYS_TRACE_TOPIC")
        assert (topic.read_queue_nums if topic is not None else None) == (1 if enabled == "true" else None)
    finally:
        await broker.close()
