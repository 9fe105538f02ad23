"""rocketpy message: looks up messages of an embedded cluster."""

from __future__ import annotations

import asyncio
import json

import pytest

from rocketpy import Message, MessageTraceConfig, Producer, ProducerConfig
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.cli.commands import run
from tests.integration.sdk_groups import Seen, consuming
from tests.waiting import LIMIT_S


@pytest.mark.parametrize("by", ["broker", "producer"])
async def test_get(cluster: EmbeddedCluster, producer: Producer, by: str) -> None:
    """A user with an id from a log could not see the message."""
    message = Message("T", b"body", tags="a", keys=["k", "l"], properties={"shop": "x"})
    result = await producer.send(message)
    by_id = [result.offset_message_id] if by == "broker" else [result.message_id, "--topic", "T"]
    done = await run("message", "get", *by_id, "--namesrv", cluster.namesrv_address)
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == f"message id:  {result.message_id}"
    assert lines[1] == f"broker's id: {result.offset_message_id}"
    broker = str(cluster.brokers[0].address) if by == "broker" else result.queue.broker_name
    assert lines[2] == f"queue:       T, {broker}, queue {result.queue.queue_id}, offset 0"
    assert lines[4:] == ["tags:        a", "keys:        k l", "properties:  shop=x", "", "body", ""]


async def test_find(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A user could not find the messages of an order."""
    for number in range(3):
        await producer.send(Message("T", b"%d" % number, keys=["order", f"item-{number}"]))
    await producer.send(Message("T", b"other", keys=["another"]))
    address = cluster.namesrv_address
    done = await run("message", "find", "T", "--key", "order", "--json", "-n", address)
    assert (done.status, done.err) == (0, "")
    assert [json.loads(line)["body"] for line in done.out.splitlines()] == ["0", "1", "2"]
    done = await run("message", "find", "T", "-k", "item-1", "--format", "text", "-n", address)
    assert done == (0, "1\n", "")
    limited = "rocketpy: 2 messages are the limit; there may be more: --count\n"
    done = await run("message", "find", "T", "-k", "order", "-c", "2", "--format", "text", "-n", address)
    assert done == (0, "1\n2\n", limited)
    done = await run("message", "between", "T", "--from", "1h", "-c", "2", "--format", "text", "-n", address)
    assert (done.status, len(done.out.splitlines()), done.err) == (0, 2, limited)


async def test_trace(cluster: EmbeddedCluster) -> None:
    """A user could not see who sent a message, and what became of it."""
    address = cluster.namesrv_address
    missing = (await run("message", "trace", "k1", "-n", address)).err
    assert (
        "topic RMQ_SYS_TRACE_TOPIC, so no client has reported to it; clients report with MessageTraceConfig"
        in missing
    )
    config = ProducerConfig(message_trace=MessageTraceConfig())
    async with Producer("shop", address, config=config) as producer:
        sent = await producer.send(Message("T", b"x", keys=["k1"]))
    seen = Seen()
    async with consuming(cluster, seen, group="billing", message_trace=MessageTraceConfig()):
        await seen.until(1)
    rows: list[dict[str, object]] = []
    async with asyncio.timeout(LIMIT_S):
        while len(rows) < 2:  # a broker adds to its index a little later
            done = await run("message", "trace", "k1", "--json", "-n", address)
            assert (done.status, done.err) == (0, "")
            rows = [json.loads(line) for line in done.out.splitlines()]
    assert {row["message_id"] for row in rows} == {sent.message_id}
    assert [(row["step"], row["group"], row["success"]) for row in rows] == [
        ("sent", "shop", True),
        ("consumed", "billing", True),
    ]
    assert rows[1]["outcome"] == "success"
    done = await run("message", "trace", "nothing", "-n", address)
    assert done == (0, "no client has reported this message\n", "")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("find T --key none", "no message of topic T has key none"),
        ("get 7F", "message id"),
        ("get 7F0000010168924851B47555DDC60000 --topic T", "no message of topic T has id 7F00"),
    ],
)
async def test_nothing_found(cluster: EmbeddedCluster, line: str, says: str) -> None:
    """A script could not tell an empty result from a found message."""
    done = await run("message", *line.split(), "--namesrv", cluster.namesrv_address)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("rocketpy: ")
    assert says in done.err
