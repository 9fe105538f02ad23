"""rocketpy export and import: whole topics, byte for byte, by processes that are killed on the way."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from rocketpy import ClientConfig, CompressionConfig, Message, Producer, ProducerConfig, PullConsumer
from rocketpy.errors import RocketError
from rocketpy.message.columns import MessageColumns
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.record import Record, decode_all
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_cli.archives.files import StoredMessage
from rocketpy_cli.archives.target import TargetTopic
from tests.integration.cli.commands import finish, run, start
from tests.waiting import LIMIT_S

KILLS = 4
COUNT = 20_000
"""Messages of the topic whose transfer is killed."""


async def raw_records(cluster: EmbeddedCluster, topic: str) -> dict[tuple[str, int], bytes]:
    """The records of each queue as the broker stores them."""
    found: dict[tuple[str, int], bytes] = {}
    async with PullConsumer("readers", cluster.namesrv_address) as consumer:
        for queue in await consumer.fetch_queues(topic):
            parts: list[bytes] = []
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                (pulled,) = await consumer.pull_records(queue, [(offset, end - offset)])
                assert not isinstance(pulled, RocketError)
                parts.append(pulled.body)
                offset = pulled.header.next_begin_offset
            found[queue.broker_name, queue.queue_id] = b"".join(parts)
    return found


def exported(directory: Path) -> dict[tuple[str, int], bytes]:
    """The records of each queue in an archive."""
    manifest = json.loads((directory / "manifest.json").read_bytes())
    return {
        (queue["broker_name"], queue["queue_id"]): (directory / queue["file"]).read_bytes()
        for queue in manifest["queues"]
    }


def copied(record: Record) -> Record:
    """The parts of a message that its copy must have, too."""
    return msgspec.structs.replace(
        record, topic="", queue_offset=0, physical_offset=0, store_timestamp=0, born_host=b"", size=0
    )


async def fill(cluster: EmbeddedCluster, topic: str, count: int) -> None:
    """Send messages of all kinds: any bytes, compressed, with and without properties, and equal ones."""
    randomly = random.Random(7)
    compress = ProducerConfig(compression=CompressionConfig(above_bytes=4096))
    async with Producer("fillers", cluster.namesrv_address, config=compress) as producer:
        for start in range(0, count, 1000):
            bodies = [randomly.randbytes(randomly.randrange(1, 300)) for _ in range(start, start + 1000)]
            columns = MessageColumns(
                topic,
                bodies,
                tags=[f"tag{number % 5}" for number in range(1000)],
                keys=[f"{start + number} other" for number in range(1000)],
                properties={"wört": ["ä b"] * 1000},
                flags=[randomly.randrange(-(2**31), 2**31) for _ in range(1000)],
            )
            await producer.send_batch(columns)
        for body in (b"\x00", b"\xff\n\xfe", bytes(100_000), b"text " * 10_000, randomly.randbytes(600_000)):
            await producer.send(Message(topic, body, tags="single", delay_level=0))
        queues = await producer.fetch_publish_message_queues(topic)
    async with TargetTopic(topic, client=ClientConfig(namesrv=cluster.namesrv_address)) as target:
        same = StoredMessage(5, b"same", b"", 0, 1_700_000_000_000, 0)
        for queue in queues:
            await target.send(queue, [same] * 3)


Total = Callable[[], Awaitable[int]]


async def kill_at(total: Total, thresholds: Sequence[int], *command: str) -> int:
    """Run a command until it ends with 0; kill it whenever it has reached a threshold. Returns the kills."""
    kills = 0
    for threshold in sorted(thresholds):
        process = await start(*command)
        async with asyncio.timeout(LIMIT_S):
            while process.returncode is None and await total() < threshold:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        done = await finish(process)
        if done.status == 0:
            return kills
        assert done.status == -signal.SIGKILL, done.err
        kills += 1
    done = await run(*command)
    assert done.status == 0, done.err
    return kills


@pytest.fixture
async def topic(cluster: EmbeddedCluster) -> str:
    """A topic with 1,017 messages, and an empty one."""
    async with Producer("creators", cluster.namesrv_address) as producer:
        await producer.create_topic("Source", 4)
        await producer.create_topic("Copy", 4)
    await fill(cluster, "Source", 1000)
    return "Source"


@pytest.mark.slow
async def test_killed_at_any_moment_nothing_is_lost_or_twice(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """A copy of a topic could lack messages, have some twice, or other bytes."""
    directory = tmp_path / "archive"
    await fill(cluster, topic, COUNT)
    expected = await raw_records(cluster, topic)
    size = sum(map(len, expected.values()))
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    randomly = random.Random(seed)

    async def written() -> int:
        return sum(file.stat().st_size for file in directory.glob("*.records"))

    thresholds = [randomly.randrange(size) for _ in range(KILLS)]
    command = ("export", topic, "--to", str(directory), "-n", cluster.namesrv_address)
    assert await kill_at(written, thresholds, *command) > 1
    assert exported(directory) == expected

    async with PullConsumer("watchers", cluster.namesrv_address) as consumer:
        queues = await consumer.fetch_queues("Copy")

        async def stored() -> int:
            return sum([await consumer.max_offset(queue) for queue in queues])

        thresholds = [randomly.randrange(COUNT) for _ in range(KILLS)]
        rest = ("--topic", "Copy", "--yes", "-n", cluster.namesrv_address)
        assert await kill_at(stored, thresholds, "import", str(directory), *rest) > 1
    copies = await raw_records(cluster, "Copy")
    for queue, data in expected.items():
        assert list(map(copied, decode_all(copies[queue]))) == list(map(copied, decode_all(data)))


async def test_a_finished_transfer_is_not_repeated(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """A script that repeats the command until it succeeds would send a topic twice."""
    directory = str(tmp_path / "archive")
    for now in (1017, 0):
        done = await run("export", topic, "--to", directory, "--json", "-n", cluster.namesrv_address)
        assert (done.status, json.loads(done.out)["exported_now"]) == (0, now)
        assert json.loads(done.out)["messages"] == 1017
    for now in (1017, 0):
        done = await run("import", directory, "-t", "Copy", "-y", "--json", "-n", cluster.namesrv_address)
        assert (done.status, json.loads(done.out)["sent_now"]) == (0, now)


@pytest.mark.slow
async def test_an_import_goes_on_among_messages_of_others(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Messages that other producers send in between could be taken for imported ones."""
    async with Producer("others", cluster.namesrv_address) as producer:
        for name in ("Source", "Copy"):
            await producer.create_topic(name, 1)
        await fill(cluster, "Source", 10_000)
        directory = tmp_path / "archive"
        assert (
            await run("export", "Source", "--to", str(directory), "-n", cluster.namesrv_address)
        ).status == 0
        (queue,) = await producer.fetch_publish_message_queues("Copy")
        stopped = asyncio.Event()

        async def send() -> None:
            while not stopped.is_set():
                await producer.send(Message("Copy", b"same", flag=5), queue=queue)

        sending = asyncio.ensure_future(send())
        async with PullConsumer("watchers", cluster.namesrv_address) as consumer:
            command = ("import", str(directory), "--topic", "Copy", "--yes", "-n", cluster.namesrv_address)
            thresholds = [2000, 6000]
            assert await kill_at(lambda: consumer.max_offset(queue), thresholds, *command) == 2
        stopped.set()
        await sending
    (source,) = (await raw_records(cluster, "Source")).values()
    (copy,) = (await raw_records(cluster, "Copy")).values()
    expected = list(map(copied, decode_all(source)))
    by_others = b"UNIQ_KEY"
    found = [
        copied(record)
        for record in decode_all(copy)
        if not (record.body == b"same" and by_others in record.properties)
    ]
    assert found == expected


@pytest.mark.parametrize("body", [b"small", bytes(600_000)], ids=["batch", "single"])
async def test_retries_and_timers_can_be_imported(cluster: EmbeddedCluster, body: bytes) -> None:
    """An archive could not be imported: brokers accept these properties from consumers only."""
    async with Producer("creators", cluster.namesrv_address) as producer:
        await producer.create_topic("Copy", 1)
        (queue,) = await producer.fetch_publish_message_queues("Copy")
    text = b"a\x01b\x02RETRY_TOPIC\x01T\x02ORIGIN_MESSAGE_ID\x011\x02TIMER_DELAY_SEC\x015\x02DELAY\x013\x02"
    async with TargetTopic("Copy", client=ClientConfig(namesrv=cluster.namesrv_address)) as target:
        receipt = await target.send(queue, [StoredMessage(0, body, text, 0, 1_700_000_000_000, 0)])
        assert receipt.stored == 1
    (copy,) = decode_all(b"".join((await raw_records(cluster, "Copy")).values()))
    assert (copy.body, props.decode(copy.properties).get("a")) == (body, "b")
    assert (
        not {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "TIMER_DELAY_SEC", "DELAY"}
        & props.decode(copy.properties).keys()
    )


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("import", "DIR", "--topic", "Copy", "--yes"), "has no export"),
        (("export", "Missing", "--to", "DIR"), "Missing"),
    ],
)
async def test_impossible_transfers_are_rejected(
    cluster: EmbeddedCluster, tmp_path: Path, command: tuple[str, ...], says: str
) -> None:
    """A mistyped name would look like an empty topic or archive."""
    words = [str(tmp_path) if word == "DIR" else word for word in command]
    done = await run(*words, "-n", cluster.namesrv_address)
    assert (done.status, done.out) == (1, "")
    assert says in done.err


async def test_an_archive_is_not_mixed_with_another(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Messages of two topics, or of an incomplete export, would be sent as one."""
    directory = tmp_path / "archive"
    at = ("-n", cluster.namesrv_address)
    assert (await run("export", topic, "--to", str(directory), *at)).status == 0
    done = await run("export", "Copy", "--to", str(directory), *at)
    assert (done.status, "choose another directory" in done.err) == (1, True)
    done = await run("import", str(directory), "--topic", "Unknown", "--yes", *at)
    assert (done.status, "rocketpy topic create Unknown" in done.err) == (1, True)
    done = await run("import", str(directory), "--topic", "Copy", *at)
    assert (done.status, "give --yes" in done.err) == (2, True)
    (file, *_) = sorted(directory.glob("*.records"))
    data = bytearray(file.read_bytes())
    data[100] ^= 1  # within the first body or its properties
    file.write_bytes(data[:88] + bytes([data[88] ^ 1]) + data[89:])
    done = await run("import", str(directory), "--topic", "Copy", "--yes", *at)
    assert (done.status, f"{file} is damaged at byte 0" in done.err) == (1, True), done.err
    manifest = directory / "manifest.json"
    text = manifest.read_text("utf-8")
    manifest.write_text(text.replace('"next_offset": ', '"next_offset": -'), "utf-8")
    done = await run("import", str(directory), "--topic", "Copy", "--yes", *at)
    assert (done.status, "is not complete" in done.err) == (1, True)
