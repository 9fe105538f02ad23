"""rocketpy consume: reads an embedded cluster, with and without a group."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from rocketpy import LitePullConfig, LitePullConsumer, Message, Producer, PullConsumer
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.cli.commands import COMMAND, Done, finish, run, run_process, start
from tests.integration.consumer.silent import silent_brokers
from tests.waiting import LIMIT_S


async def send(producer: Producer, *bodies: bytes, queue: int | None = None, tags: str | None = None) -> None:
    """Send messages to topic T, to one queue if given."""
    queues = {queue.queue_id: queue for queue in await producer.fetch_publish_message_queues("T")}
    for body in bodies:
        await producer.send(Message("T", body, tags=tags), queue=None if queue is None else queues[queue])


async def consume(cluster: EmbeddedCluster, *arguments: str) -> Done:
    """Run `rocketpy consume T`."""
    return await run("consume", "T", *arguments, "--namesrv", cluster.namesrv_address)


async def committed(cluster: EmbeddedCluster, group: str) -> int:
    """The sum of a group's offsets."""
    async with PullConsumer(group, cluster.namesrv_address) as consumer:
        return sum([await consumer.committed(queue) or 0 for queue in await consumer.fetch_queues("T")])


async def test_all_messages_to_the_end(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A message could be missing, or the command wait forever."""
    bodies = [b"message %d" % number for number in range(1000)]
    await asyncio.gather(*(producer.send(Message("T", body)) for body in bodies))
    done = await run_process("consume", "T", "-n", cluster.namesrv_address)
    assert (done.status, done.err) == (0, "")
    assert Counter(done.out.encode().splitlines()) == Counter(bodies)


async def test_an_empty_topic_ends_at_once(cluster: EmbeddedCluster) -> None:
    """The command would wait for a first message."""
    assert await consume(cluster) == (0, "", "")


async def test_a_topic_that_is_missing(cluster: EmbeddedCluster) -> None:
    """A mistyped topic would look like an empty one."""
    done = await run("consume", "Missing", "--follow", "--namesrv", cluster.namesrv_address)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("rocketpy: ")
    assert "Missing" in done.err


@pytest.mark.parametrize("options", [(), ("--group", "followers")])
async def test_follow_prints_new_messages_at_once(
    cluster: EmbeddedCluster, producer: Producer, options: tuple[str, ...]
) -> None:
    """A pipe would show messages only when a buffer is full."""
    arguments = ("consume", "T", "--follow", *options, "--from", "begin", "-n", cluster.namesrv_address)
    process = await start(*arguments)
    assert process.stdout is not None
    for body in (b"first", b"second"):
        await send(producer, body)
        async with asyncio.timeout(LIMIT_S):
            assert await process.stdout.readline() == body + b"\n"
    process.send_signal(signal.SIGINT)
    assert await finish(process) == (130, "", "rocketpy: interrupted\n")


async def test_follow_starts_at_the_end(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A user who watches new messages would first see all old ones."""
    await send(producer, b"old", queue=0)
    process = await start("consume", "T", "--follow", "--count", "1", "-n", cluster.namesrv_address)
    found = asyncio.ensure_future(finish(process))
    while not found.done():  # the first messages may arrive before the command reads
        await send(producer, b"new", queue=0)
        await asyncio.sleep(0.1)
    assert await found == (0, "new\n", "")


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("begin", "0123456789"),
        ("end", ""),
        ("7", "789"),
        ("-2", "89"),
        ("-99", "0123456789"),
        ("99", ""),
        ("1h", "0123456789"),
        # Fixed names: pytest-xdist requires that all workers collect the same names.
        pytest.param((datetime.now(UTC) - timedelta(hours=1)).isoformat(), "0123456789", id="an hour ago"),
        pytest.param((datetime.now(UTC) + timedelta(hours=1)).isoformat(), "", id="in an hour"),
    ],
    ids=str,
)
async def test_positions(cluster: EmbeddedCluster, producer: Producer, position: str, expected: str) -> None:
    """A part of the messages would be left out, or printed again."""
    await send(producer, *(b"%d" % number for number in range(10)), queue=1)
    done = await consume(cluster, "--from", position)
    assert (done.status, done.err) == (0, "")
    assert done.out.split() == list(expected)


async def test_filters(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Messages that do not match the filter would be printed."""
    for tag in ("a", "b", "c"):
        await send(producer, tag.encode(), tags=tag)
    tags, sql = await asyncio.gather(
        consume(cluster, "--tags", "a || c"), consume(cluster, "--sql", "TAGS IN ('b', 'c')")
    )
    assert sorted(tags.out.split()) == ["a", "c"]
    assert sorted(sql.out.split()) == ["b", "c"]


async def test_json_lines_can_be_sent_again(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A copy of a topic would lose bodies, tags, keys, properties or flags."""
    given = Message("T", b"\xff\x00", tags="a", keys=["k", "l"], properties={"shop": "x"}, flag=-7)
    results = [await producer.send(given), await producer.send(Message("T", "wörld".encode()))]
    lines = (await consume(cluster, "--json")).out
    found = {line["message_id"]: line for line in map(json.loads, lines.splitlines())}
    assert set(found) == {result.message_id for result in results}
    assert found[results[0].message_id]["queue_id"] == results[0].queue.queue_id
    address = cluster.namesrv_address
    await run("topic", "create", "Copy", "--yes", "-n", address)
    sent = await run("send", "Copy", "--json-lines", "-n", address, given=lines.encode())
    assert sent.status == 0
    copied = (await run("consume", "Copy", "--json", "--namesrv", address)).out
    fields = ("body", "body_base64", "tags", "keys", "properties", "flag")

    def contents(text: str) -> list[str]:
        return sorted(str([json.loads(line).get(field) for field in fields]) for line in text.splitlines())

    assert contents(copied) == contents(lines)
    assert "wörld" in copied
    assert '"flag":-7' in copied


async def test_templates(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A script could not choose the fields that it needs."""
    message = Message("T", b"body", tags="a", keys=["k", "l"], properties={"shop": "x"})
    result = await producer.send(message)
    template = r"{{{queue_id}:{queue_offset}}}\t{tags}\t{keys}\t{properties[shop]}{properties[none]}\t{body}"
    done = await consume(cluster, "--format", template)
    assert done.out == f"{{{result.queue.queue_id}:0}}\ta\tk l\tx\tbody\n"
    names = (
        "topic broker_name message_id offset_message_id properties born_timestamp born_time store_timestamp "
        "store_time reconsume_times flag"
    )
    done = await consume(cluster, "--format", "|".join(f"{{{name}}}" for name in names.split()))
    values = dict(zip(names.split(), done.out.rstrip("\n").split("|"), strict=True))
    assert values["topic"] == "T"
    assert values["message_id"] == result.message_id
    assert values["offset_message_id"] == result.offset_message_id
    assert values["properties"] == "shop=x"
    stored = datetime.fromisoformat(values["store_time"])
    assert abs(stored.timestamp() * 1000 - int(values["store_timestamp"])) < 1
    assert values["reconsume_times"] == "0"
    assert values["flag"] == "0"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--format xml", "format 'xml' is unknown; choose text, json, or a template"),
        ("--format {boddy}", "has no field {boddy}; known are body, topic"),
        ("--format {body", "format '{body': "),
        ("--format {body:10}", "write {body} without : or !"),
        ("--from soon", "'soon' is not a position; write begin, end, an offset"),
        ("--group g --from 7", "a group begins at begin, end, an age or a time"),
        ("--tags a --sql b", "--tags and --sql exclude each other"),
        ("--count 0", "--count"),
    ],
)
async def test_wrong_usage(options: str, says: str) -> None:
    """A mistake would be found only after the connection, or not at all."""
    done = await run("consume", "T", *options.split(), NAMESRV_ADDR="127.0.0.1:1")
    assert (done.status, done.out) == (2, "")
    assert says in " ".join(done.err.replace("│", " ").split())


async def test_a_group_continues_where_it_stopped(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Messages would be printed twice, or lost."""
    await send(producer, *(b"%d" % number for number in range(100)))
    first = await consume(cluster, "--group", "g", "--count", "40")
    assert (first.status, first.err, len(first.out.split())) == (0, "", 40)
    assert await committed(cluster, "g") == 40
    second = await consume(cluster, "--group", "g")
    assert (second.status, second.err) == (0, "")
    assert sorted(map(int, (first.out + second.out).split())) == list(range(100))
    assert await committed(cluster, "g") == 100
    assert await consume(cluster, "--group", "g") == (0, "", "")


async def test_a_member_that_cannot_commit_fails() -> None:
    """A script would handle the printed messages again, after a command that reported success."""
    async with silent_brokers() as (cluster, (broker,)):
        broker.rejections = {RequestCode.UPDATE_CONSUMER_OFFSET: ResponseCode.SYSTEM_BUSY}
        async with Producer("senders", cluster.namesrv_address) as producer:
            await send(producer, b"1", b"2")
        done = await consume(cluster, "--group", "g", "--count", "2")
        assert (done.status, done.out.split()) == (1, ["1", "2"])
        assert "offsets of group g were not committed" in done.err
        assert await committed(cluster, "g") == 0


@pytest.mark.parametrize(
    ("signals", "end"),
    [
        ((signal.SIGTERM,), (143, "", "")),
        ((signal.SIGTERM, signal.SIGTERM), (143, "", "")),
        ((signal.SIGINT, signal.SIGINT), (130, "", "rocketpy: interrupted\n")),
    ],
)
async def test_a_stopped_member_has_committed(
    cluster: EmbeddedCluster,
    producer: Producer,
    signals: tuple[signal.Signals, ...],
    end: tuple[int, str, str],
) -> None:
    """What was printed would be printed again after a stop by a service manager, or by GNU timeout."""
    await send(producer, b"x")
    arguments = ("consume", "T", "--follow", "--group", "g", "--from", "begin", "-n", cluster.namesrv_address)
    process = await start(*arguments)
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        assert await process.stdout.readline() == b"x\n"
    for number in signals:
        process.send_signal(number)
    assert await finish(process) == end
    assert await committed(cluster, "g") == 1


async def test_without_a_group_no_offset_is_committed(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Printing a topic would take messages from its consumers."""
    await send(producer, b"x")
    consumer = LitePullConsumer("g", cluster.namesrv_address, config=LitePullConfig(poll_timeout_ms=0))
    consumer.subscribe("T")
    async with consumer:
        assert len((await consume(cluster)).out.split()) == 1
        assert await committed(cluster, "TOOLS_CONSUMER") == 0


async def test_count(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A script that wants one message would get several."""
    await send(producer, *(b"%d" % number for number in range(200)))
    assert len((await consume(cluster, "--count", "1")).out.split()) == 1
    assert len((await consume(cluster, "--count", "150")).out.split()) == 150
    assert len((await consume(cluster, "--count", "300")).out.split()) == 200


@pytest.mark.parametrize("options", ["", "--group g"])
async def test_a_reader_that_closes_the_pipe_ends_the_command(
    cluster: EmbeddedCluster, producer: Producer, options: str
) -> None:
    """`rocketpy consume T --follow | head` would print a traceback, or not end."""
    await asyncio.gather(*(producer.send(Message("T", b"x" * 1000)) for _ in range(500)))
    command = ["consume", "T", "--follow", "--from", "begin", *options.split(), "-n", cluster.namesrv_address]
    process = await start(*command)
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        await process.stdout.readline()
        process.stdout._transport.close()  # type: ignore[attr-defined] # as head(1) does when it exits
        assert process.stderr is not None
        assert await process.stderr.read() == b""
        assert await process.wait() == 0


async def test_messages_that_are_not_written_are_not_committed(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """After Ctrl-C, the group would skip the messages that the reader of a full pipe did not get."""
    await producer.send_batch([Message("T", b"x" * 10_000) for _ in range(100)])
    arguments = ["consume", "T", "--group", "g", "--follow", "-n", cluster.namesrv_address]
    end, pipe = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(*COMMAND, *arguments, stdout=pipe)
        os.close(pipe)
        async with asyncio.timeout(LIMIT_S):
            read = await asyncio.to_thread(os.read, end, 1)  # the rest, 1 MB, fills the pipe
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
            while more := await asyncio.to_thread(os.read, end, 100_000):
                read += more
    finally:
        os.close(end)
    offsets = cluster.brokers[0].consumers.offsets.queues("g", "T")
    assert sum(offsets.values()) <= read.count(b"\n") < 100


async def test_a_slow_reader_keeps_the_process_responsive(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """Ctrl-C would wait for the reader of a full pipe."""
    await asyncio.gather(*(producer.send(Message("T", b"x" * 10_000)) for _ in range(500)))
    arguments = ["consume", "T", "--follow", "--from", "begin", "-n", cluster.namesrv_address]
    end, pipe = os.pipe()
    try:
        environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
        process = await asyncio.create_subprocess_exec(*COMMAND, *arguments, stdout=pipe, env=environment)
        try:
            async with asyncio.timeout(LIMIT_S):
                await asyncio.to_thread(os.read, end, 1)  # the rest, 5 MB, fills the pipe
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 130
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGABRT)  # prints where each thread is
                await process.wait()
    finally:
        os.close(end)
        os.close(pipe)
