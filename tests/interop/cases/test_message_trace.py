"""Message traces: rocketpy's are read by RocketMQ's code, and the reverse."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from rocketpy import Message, MessageTraceConfig, Producer, ProducerConfig, PullConsumer
from rocketpy.message import TRACE_TOPIC
from rocketpy.protocol.message.trace import (
    Consumed,
    ConsumeOutcome,
    Consuming,
    MessageKind,
    Sent,
    TraceRecord,
    decode,
    encode,
)
from tests.interop.cluster import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.sides import ALL_VERSIONS, OUR_SDK, Side, serve

pytestmark = pytest.mark.interop

TRACED = ProducerConfig(message_trace=MessageTraceConfig())
HALF_RECORD = Sent(
    1, "r", "g", "T", "ID", None, None, "1.2.3.4:5", 1, 2, MessageKind.HALF, "BROKER", success=False
)


@pytest.fixture(scope="module", params=[*OUR_SDK[::3], *ALL_VERSIONS], ids=lambda side: side.direction)
def servers(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Servers of each make, whose brokers create the trace topic."""
    side: Side = request.param
    run = tmp_path_factory.mktemp("message-trace")
    with serve(side, peer, run, conf={"traceTopicEnable": "true"}) as running:
        yield running


def java(servers: Cluster, group: str, *steps: dict[str, Any]) -> list[dict[str, Any]]:
    """Run java/Trace.java; no result may be an error."""
    home = servers.run / f"trace-{group}"
    results = servers.peer.drive("Trace", servers.namesrv.address, group, home=home, steps=steps)
    assert not [result for result in results if "error" in result], results
    return results


async def test_java_finds_and_reads_traces_of_rocketpy(servers: Cluster) -> None:
    """RocketMQ's trace queries would not find rocketpy's messages, or show wrong values."""
    topic = servers.topic("ours")
    async with Producer("our_traced", servers.namesrv.address, config=TRACED) as producer:
        result = await producer.send(
            Message(topic, b"hello", tags="paid", keys=["k1", "k2"]), timeout_ms=10_000
        )
    text = await traced_by(servers, result.message_id)
    assert text == await traced_by(servers, "k2")
    records: list[TraceRecord] = [
        HALF_RECORD,
        Consuming(5, None, "g", "REQUEST", "ID", 2, "k"),
        Consumed("REQUEST", "ID", 7, False, "k", ConsumeOutcome.EXCEPTION),
    ]
    steps = [{"do": "decode", "text": text}, {"do": "decode", "text": encode(records)}]
    read = await asyncio.to_thread(java, servers, "reader", *steps)
    sent, half, before, after = read
    assert encode(decode(text)) == text == sent["again"]
    assert (sent["type"], sent["msgId"], sent["offsetMsgId"]) == (
        "Pub", result.message_id, result.offset_message_id,
    )  # fmt: skip
    assert (sent["group"], sent["topic"], sent["tags"], sent["keys"]) == (
        "our_traced", topic, "paid", "k1 k2",
    )  # fmt: skip
    assert (sent["bodyLength"], sent["kind"], sent["success"], sent["region"]) == (
        5, "Normal_Msg", True, "DefaultRegion",
    )  # fmt: skip
    assert (half["kind"], half["success"], half["keys"]) == ("Trans_Msg_Half", False, "null")
    assert (before["requestId"], before["retries"], before["time"]) == ("REQUEST", 2, 5)
    assert (after["requestId"], after["outcome"], after["cost"]) == ("REQUEST", 2, 7)
    assert "".join(one["again"] for one in (half, before, after)) == encode(records)


async def test_rocketpy_reads_traces_of_java(servers: Cluster) -> None:
    """Reports of Java services would be unreadable to tools built on rocketpy."""
    topic = servers.topic("theirs")
    message = {"topic": topic, "body": "6869", "tags": "t", "keys": "k3"}
    (sent,) = await asyncio.to_thread(java, servers, "sender", {"do": "send", **message})
    consume = {"do": "consume", "topic": topic}
    await asyncio.to_thread(java, servers, "consumer", consume)
    records = await traces(servers, sent["msgId"], 3)
    pub, before, after = records
    assert isinstance(pub, Sent)
    assert isinstance(before, Consuming)
    assert isinstance(after, Consumed)
    assert (pub.topic, pub.tags, pub.keys, pub.body_bytes, pub.success) == (topic, "t", "k3", 2, True)
    assert pub.offset_message_id == sent["offsetMsgId"]
    assert (before.group, before.keys) == (f"consumer_{topic}", "k3")
    assert (after.request_id, after.success, after.outcome) == (
        before.request_id, True, ConsumeOutcome.SUCCESS,
    )  # fmt: skip


async def traced_by(servers: Cluster, key: str) -> str:
    """The trace message that is found by a key."""
    async with asyncio.timeout(30), Producer("trace_queries", servers.namesrv.address) as asking:
        while True:
            found = (await asking.query_message(TRACE_TOPIC, key)).messages
            if found:
                return found[0].body.decode()
            await asyncio.sleep(0.1)


async def traces(servers: Cluster, message_id: str, count: int) -> list[TraceRecord]:
    """All reports about a message."""
    async with asyncio.timeout(30), PullConsumer("trace_readers", servers.namesrv.address) as consumer:
        while True:
            records = [
                record
                for queue in await consumer.fetch_queues(TRACE_TOPIC)
                for message in (await consumer.pull(queue, await consumer.min_offset(queue))).messages
                for record in decode(message.body.decode())
                if record.message_id == message_id
            ]
            if len(records) >= count:
                order = (Sent, Consuming, Consumed)
                return sorted(records, key=lambda record: order.index(type(record)))
            await asyncio.sleep(0.1)
