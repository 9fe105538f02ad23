"""rocketpy message: looks up messages of an embedded cluster."""

from __future__ import annotations

import json

import pytest

from rocketpy import Message, Producer
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.cli.commands import run


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
