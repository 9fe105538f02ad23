"""rocketpy send: from arguments, lines, files and JSON lines to an embedded cluster."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import time
from pathlib import Path

import pytest

from rocketpy import MessageExt, PullConsumer
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.cli.commands import COMMAND, run, run_process, start
from tests.waiting import LIMIT_S


async def stored(cluster: EmbeddedCluster, topic: str = "T") -> list[MessageExt]:
    """All messages of a topic, queue by queue."""
    found: list[MessageExt] = []
    async with PullConsumer("readers", cluster.namesrv_address) as consumer:
        for queue in await consumer.fetch_queues(topic):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                pulled = await consumer.pull(queue, offset)
                found += pulled.messages
                offset = pulled.next_offset
    return found


async def test_arguments_with_options(cluster: EmbeddedCluster) -> None:
    """A tag, key or property could be lost, or the result not say where the message is."""
    options = [
        "--tags",
        "paid",
        "--key",
        "42",
        "--key",
        "43",
        "--property",
        "shop=x",
        "--property",
        "note=a=b",
    ]
    done = await run("send", "T", "hello", "wörld", *options, "--json", "-n", cluster.namesrv_address)
    assert (done.status, done.err) == (0, "")
    results = [json.loads(line) for line in done.out.splitlines()]
    messages = {message.message_id: message for message in await stored(cluster)}
    assert [messages[result["message_id"]].body.decode() for result in results] == ["hello", "wörld"]
    for result in results:
        message = messages[result["message_id"]]
        assert (message.tags, message.keys) == ("paid", ("42", "43"))
        assert (message.properties["shop"], message.properties["note"]) == ("x", "a=b")
        assert (message.queue.queue_id, message.queue_offset) == (result["queue_id"], result["queue_offset"])
        assert result["status"] == "SEND_OK"


async def test_lines_of_standard_input(cluster: EmbeddedCluster) -> None:
    """A line could be lost, sent twice or changed; the last one often has no end."""
    lines = [f"{'x' * (number % 700)}{number}\r".encode() for number in range(5000)]
    given = b"\n\n".join(lines)
    done = await run_process("send", "T", "--namesrv", cluster.namesrv_address, given=given)
    assert (done.status, done.out) == (0, "")
    assert done.err.startswith("rocketpy: 5,000 messages stored in ")
    assert done.err.endswith(", 4,999 empty lines skipped\n")
    assert sorted(message.body for message in await stored(cluster)) == sorted(lines)


async def test_many_lines_keep_their_order_and_options(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Lines sent in batches could be reordered within a queue, or lose the options given for all lines."""
    file = tmp_path / "lines"
    long = {4000, 9000}  # long lines are compressed and sent individually, not in batches
    lines = [f"{number}" + " x" * (3000 if number in long else 20) for number in range(20_000)]
    file.write_text("\n".join(lines), "utf-8")
    options = ("--tags", "t", "--key", "a", "--key", "b", "--property", "n=ä")
    done = await run("send", "T", "-f", str(file), *options, "-n", cluster.namesrv_address)
    assert done.status == 0, done.err
    messages = await stored(cluster)
    assert sorted(message.body.decode() for message in messages) == sorted(lines)
    numbers: dict[int, list[int]] = {}
    for message in messages:
        numbers.setdefault(message.queue.queue_id, []).append(int(message.body.split()[0]))
    assert len(numbers) > 1
    assert all(each == sorted(each) for each in numbers.values())
    assert {(message.tags, message.keys, message.properties["n"]) for message in messages} == {
        ("t", ("a", "b"), "ä")
    }


async def test_lines_leave_before_the_input_ends(cluster: EmbeddedCluster) -> None:
    """The lines of `tail -f` would wait for the end of the log."""
    process = await start("send", "T", "--namesrv", cluster.namesrv_address)
    assert process.stdin is not None
    process.stdin.write(b"first\nsecond\nunfini")
    async with asyncio.timeout(LIMIT_S):
        while len(await stored(cluster)) < 2:  # noqa: ASYNC110 - the broker has no event for it
            await asyncio.sleep(0.05)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(LIMIT_S):
        _, err = await process.communicate()
    assert process.returncode == 130
    assert err.startswith(b"rocketpy: 2 messages stored in ")
    assert err.count(b"\n") == 1


async def test_json_lines(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Programs could not send tags and keys of their own with each message."""
    file = tmp_path / "messages.jsonl"
    lines = [
        {"body": "text", "tags": "a", "keys": ["k"], "properties": {"p": "q"}},
        {"body": {"total": 7}, "keys": "x y"},
        {"body_base64": "/wA="},
    ]
    file.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    done = await run("send", "T", "-f", str(file), "--json-lines", "--json", "-n", cluster.namesrv_address)
    assert done.status == 0
    assert json.loads(done.out) | {"seconds": 0} == {
        "stored": 3, "failed": 0, "empty_lines": 0, "not_send_ok": 0, "seconds": 0,
    }  # fmt: skip
    found = {message.body: message for message in await stored(cluster)}
    assert set(found) == {b"text", b'{"total":7}', b"\xff\x00"}
    assert (found[b"text"].tags, found[b"text"].keys, found[b"text"].properties["p"]) == ("a", ("k",), "q")
    assert found[b'{"total":7}'].keys == ("x", "y")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"body": "x", "tag": "y"}', "line 2: not a message: Object contains unknown field `tag`"),
        (b'{"tags": "y"}', 'line 2: the object has no "body"'),
        (b'{"body": "x", "properties": {"KEYS": "y"}}', "line 2: property name 'KEYS' is reserved"),
        (b'{"body_base64": "?"}', "line 2: not a message: "),
        (
            b'{"body_base64": "eJw=", "decode_error": "x"}',
            "line 2: the body was not decoded when it was read: x",
        ),
        (b"no json", "line 2: not a message: JSON is malformed"),
    ],
)
async def test_a_wrong_line_ends_the_command(cluster: EmbeddedCluster, line: bytes, says: str) -> None:
    """A user could not find the line, or would have to guess which lines are stored."""
    given = b'{"body": "good"}\n' + line + b'\n{"body": "later"}\n'
    done = await run("send", "T", "--json-lines", "-n", cluster.namesrv_address, given=given)
    assert done.status == 1
    assert done.err.startswith("rocketpy: 1 messages stored in ")
    assert done.err.splitlines()[0].endswith(", 1 failed")
    assert done.err.splitlines()[1].startswith(f"rocketpy: {says}")
    assert [message.body for message in await stored(cluster)] == [b"good"]


async def test_the_whole_input_as_one_body(cluster: EmbeddedCluster) -> None:
    """A picture would be cut at its line ends."""
    body = bytes(range(256)) * 20
    done = await run("send", "T", "--whole", "--namesrv", cluster.namesrv_address, given=body)
    assert done.status == 0
    assert [message.body for message in await stored(cluster)] == [body]


async def test_rate(cluster: EmbeddedCluster) -> None:
    """A test load would reach the broker at full speed."""
    begun = time.monotonic()
    done = await run("send", "T", "--rate", "20", "-n", cluster.namesrv_address, given=b"x\n" * 21)
    assert done.status == 0
    assert time.monotonic() - begun > 1
    assert len(await stored(cluster)) == 21


async def test_a_terminal_shows_progress(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """A user would not see whether a large file is being sent."""
    file = tmp_path / "lines"
    file.write_bytes(b"x\n" * 100)
    terminal, side = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "send", "T", "--file", file, "-n", cluster.namesrv_address, stderr=side
        )
        async with asyncio.timeout(LIMIT_S):
            assert await process.wait() == 0
        shown = os.read(terminal, 1 << 16).decode()
    finally:
        os.close(terminal)
        os.close(side)
    assert " messages " in shown
    assert "rocketpy: 100 messages stored in " in shown


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("send T hello --file x", "give bodies as arguments or read them"),
        ("send T --whole --json-lines", "--whole and --json-lines exclude each other"),
        ("send T --json-lines --tags x", "are in the lines"),
        ("send T --property x hello", "NAME=VALUE is expected, not 'x'"),
        ("send T --rate 0", "--rate"),
    ],
)
async def test_wrong_usage(line: str, says: str) -> None:
    """Options that contradict each other would be dropped in silence."""
    done = await run(*line.split())
    assert (done.status, done.out) == (2, "")
    assert says in " ".join(done.err.split())


async def test_a_file_that_is_missing() -> None:
    """A user would see a traceback."""
    done = await run("send", "T", "--file", "/nonexistent/lines")
    assert done == (1, "", "rocketpy: [Errno 2] No such file or directory: '/nonexistent/lines'\n")


async def test_a_broker_that_stops(cluster: EmbeddedCluster) -> None:
    """The command would report messages as stored that are not."""
    process = await start("send", "T", "--namesrv", cluster.namesrv_address)
    assert process.stdin is not None
    process.stdin.write(b"first\n")
    async with asyncio.timeout(LIMIT_S):
        while not await stored(cluster):  # noqa: ASYNC110 - the broker has no event for it
            await asyncio.sleep(0.05)
    await cluster.brokers[0].close()
    async with asyncio.timeout(LIMIT_S):
        _, err = await process.communicate(b"second\n")
    assert process.returncode == 1
    lines = err.decode().splitlines()
    assert lines[-2].startswith("rocketpy: 1 messages stored in ")
    assert lines[-1].startswith("rocketpy: line 2: ")
