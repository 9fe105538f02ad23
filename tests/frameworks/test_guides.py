"""The guides to bodies and schemas, workers, outbox and idempotence."""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from rocketpy import (
    ConsumeFrom,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    RocketError,
    new_unique_id,
    sync,
)
from tests.frameworks.programs import files_of, running, stored, wait_until, write_files
from tests.waiting import until

pytestmark = pytest.mark.frameworks


@pytest.fixture(autouse=True)
def _modules_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import the guide's modules from the test's folder, and forget them afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def load(page: str, folder: Path, name: str) -> Any:
    """Import a module of a guide."""
    write_files(page, folder)
    return importlib.import_module(name)


# -- bodies and schemas -----------------------------------------------------------------------


def module_of_protoc() -> ModuleType:
    """A module like the one that protoc generates for the guide's message."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", syntax="proto3")
    order = file.message_type.add(name="Order")
    order.field.add(name="number", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    order.field.add(name="drink", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    module = ModuleType("orders_pb2")
    vars(module)["Order"] = message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))
    return module


async def test_typed_values_arrive_and_bad_bodies_become_dead_letters(
    tmp_path: Path, namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body of another format would be delivered 16 times, or stop the consumer."""
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    orders = load("serialization", tmp_path, "orders")
    prepared: list[Any] = []
    consumer = orders.kitchen(prepared)
    async with Producer("shop", namesrv) as producer:
        await producer.send(Message("Orders", b"no JSON"))
        await producer.send(Message("Orders", b'{"number": "seven"}'))
        await orders.place(producer, orders.Order(7, "latte"))
        await producer.send(Message("Orders", b'{"number": 8, "drink": "tea", "table": 3}'))
        async with consumer:
            await until(lambda: len(prepared) >= 2)
        assert sorted(order.number for order in prepared) == [7, 8]
        assert {order.sugar for order in prepared} == {0}

    def dead_letters() -> int:
        with sync.AdminClient(namesrv) as admin:
            try:
                return len(admin.dead_letters.fetch("kitchen").messages)
            except RocketError:
                return 0

    assert await asyncio.to_thread(wait_until, lambda: dead_letters() == 2)


async def test_values_of_every_format_arrive(
    tmp_path: Path, namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values would change when they are encoded and decoded with the functions of the guide."""
    protobuf = module_of_protoc()
    monkeypatch.setitem(sys.modules, "orders_pb2", protobuf)
    formats = load("serialization", tmp_path, "formats")
    plain = {"number": 7, "drink": "latte"}
    topics = {
        "Json": (formats.plain_json, plain),
        "Pydantic": (formats.with_pydantic, formats.Order(**plain)),
        "Avro": (formats.with_avro, plain),
        "Protobuf": (formats.with_protobuf, protobuf.Order(**plain)),
    }
    async with Producer("shop", namesrv) as producer:
        for name, (topic, value) in topics.items():
            await producer.send(Message(name, topic.encode(value)))
    for name, (topic, value) in topics.items():
        [message] = await asyncio.to_thread(stored, namesrv, name)
        assert topic.decode(message.body) == value
    with pytest.raises(ValueError, match="number"):
        formats.with_pydantic.decode(b"{}")


# -- workers ----------------------------------------------------------------------------------


async def test_jobs_run_in_a_worker(tmp_path: Path, namesrv: str) -> None:
    """The worker of the guide would not start, run a job twice, or not stop."""
    jobs = load("jobs", tmp_path, "jobs")
    async with Producer("shop", namesrv) as producer:
        await producer.send(Message("Jobs", b"{}", tags="unknown"))
        await jobs.enqueue(producer, jobs.send_invoice, order=7, to="ann@example.com")
        with running(tmp_path, namesrv, "jobs.py") as worker:
            await asyncio.to_thread(worker.wait_for, "invoice for order 7 sent to ann@example.com")
            await jobs.enqueue(producer, jobs.send_invoice, order=8, to="bob@example.com", delay_level=1)
            await asyncio.to_thread(worker.wait_for, "invoice for order 8 sent to bob@example.com")
            await asyncio.to_thread(
                worker.wait_for, "there is no job unknown; message .* becomes a dead letter"
            )
            assert worker.stop() == 0
    assert worker.output.count("invoice") == 2
    assert "Traceback" not in worker.output


async def test_images_are_resized(tmp_path: Path, namesrv: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The loop of the guide would not end, or lose what it released."""
    resize = load("jobs", tmp_path, "resize")
    async with Producer("shop", namesrv) as producer:
        for body in (b"cat", b"bad", b"dog"):
            await producer.send(Message("Images", body))
    assert await resize.resize_all(namesrv) == 2
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "resized cat, attempt 1",
        "resized dog, attempt 1",
    ]


# -- outbox -----------------------------------------------------------------------------------


def test_killed_relays_lose_nothing(tmp_path: Path, namesrv: str) -> None:
    """A committed order would never be sent, or a rolled back one would."""
    shop = load("outbox", tmp_path, "shop")
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    database = shop.open_database(url)
    committed: set[int] = set()
    kills = 0
    for number in range(300):
        with database() as session:
            shop.place_order(session, number, "latte")
            if number % 3:
                session.commit()
                committed.add(number)

    def waiting() -> int:
        with closing(sqlite3.connect(tmp_path / "shop.db", timeout=30)) as file:
            return int(file.execute("SELECT count(*) FROM outbox").fetchone()[0])

    def sent() -> int:
        return sum(map(reader.max_offset, queues))

    with sync.AdminClient(namesrv) as reader:
        reader.create_topic("Orders")
        queues = [MessageQueue("Orders", "broker-a", number) for number in range(4)]
        while waiting():
            before = sent()
            with running(tmp_path, namesrv, "relay.py", url) as relay:
                # Kill it while it sends, when some rows are sent and not deleted.
                target = before + random.randint(1, 30)
                wait_until(lambda: sent() >= target or not waiting())  # noqa: B023 - called at once
                if kills < 3:
                    assert relay.stop(signal.SIGKILL) == -signal.SIGKILL
                    kills += 1
                else:
                    wait_until(lambda: not waiting())
                    assert relay.stop() == 0
                    assert "Traceback" not in relay.output
    messages = stored(namesrv, "Orders")
    ids = Counter(message.message_id for message in messages)
    assert {json.loads(message.body)["number"] for message in messages} == committed
    assert len(ids) == len(committed)
    # Duplicates come from the kills: each has at most the messages that one round sends.
    assert len(messages) - len(ids) <= 100 * kills
    with closing(sqlite3.connect(tmp_path / "shop.db")) as file:
        assert {number for (number,) in file.execute("SELECT number FROM orders")} == committed


def test_a_relay_waits_for_a_broker_and_keeps_the_order(tmp_path: Path) -> None:
    """Messages of one key would overtake each other, or be dropped while no broker is reachable."""
    relay = load("outbox", tmp_path, "relay")
    shop = importlib.import_module("shop")
    database = shop.open_database(f"sqlite:///{tmp_path / 'shop.db'}")
    with database.begin() as session:
        for number in range(20):
            body = b"%d" % number
            session.add(shop.OutboxMessage(topic="Ordered", key=str(number % 2), body=body))
    lost = sync.Producer("relay", "127.0.0.1:1")
    lost.start(wait=False)
    try:
        assert relay.relay(database, lost) == 0
    finally:
        lost.close()
    with sync.Producer("relay", "embedded:") as producer:
        assert [relay.relay(database, producer, limit=15) for _ in range(3)] == [15, 5, 0]
        found = stored("embedded:", "Ordered")
    by_queue: dict[MessageQueue, list[int]] = {}
    for message in found:
        by_queue.setdefault(message.queue, []).append(int(message.body))
    assert all(numbers == sorted(numbers) for numbers in by_queue.values())
    assert sorted(number for numbers in by_queue.values() for number in numbers) == list(range(20))


# -- idempotence ------------------------------------------------------------------------------


def test_a_copy_of_a_message_is_billed_once(tmp_path: Path, namesrv: str) -> None:
    """A message that is delivered twice would be booked twice, or not at all after a failure."""
    billing = load("idempotence", tmp_path, "billing")
    order = json.dumps({"customer": "ann", "price": 5}).encode()
    with sync.Producer("shop", namesrv) as producer:
        message = Message("Bills", order, unique_id=new_unique_id())
        producer.send(message)
        producer.send(message)  # like an application after an error with the outcome UNKNOWN
        producer.send(Message("Bills", order))
    found = stored(namesrv, "Bills")
    assert [len(found), len({message.message_id for message in found})] == [3, 2]
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(billing.SCHEMA)
        database.execute(
            "CREATE TRIGGER full BEFORE INSERT ON accounts BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        with pytest.raises(sqlite3.IntegrityError, match="full"):
            billing.bill(database, found[0])
        database.execute("DROP TRIGGER full")
        assert sorted(billing.bill(database, message) for message in found) == [False, True, True]
        assert database.execute("SELECT * FROM accounts").fetchall() == [("ann", -10)]


def test_an_older_version_changes_nothing(tmp_path: Path) -> None:
    """A late message would overwrite a newer state."""
    stock = load("idempotence", tmp_path, "stock")
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE stock (article TEXT PRIMARY KEY, count INTEGER, version INTEGER)")
        done = [
            stock.update(database, "beans", count, version)
            for count, version in ((5, 1), (3, 3), (4, 2), (3, 3))
        ]
        assert done == [True, True, False, False]
        assert database.execute("SELECT count, version FROM stock").fetchall() == [(3, 3)]


async def test_offsets_in_the_database_survive_a_crash(tmp_path: Path, namesrv: str) -> None:
    """A program that keeps its offsets would store a message twice, or leave one out, after a restart."""
    audit = load("idempotence", tmp_path, "audit")
    async with Producer("shop", namesrv) as producer:
        queue = MessageQueue("Audited", "broker-a", 0)
        for number in range(10):
            await producer.send(Message("Audited", b"%d" % number), queue=queue)
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(
            "CREATE TABLE audit (queue TEXT, offset INTEGER, body BLOB, PRIMARY KEY (queue, offset))"
        )
        database.execute("CREATE TABLE progress (queue TEXT PRIMARY KEY, next INTEGER)")
        total = 0
        while total < 10:
            # A new consumer for each batch, like after a crash: no offsets are committed to the group.
            config = LitePullConfig(
                consume_from=ConsumeFrom.FIRST_OFFSET, auto_commit=False, poll_batch_size=4
            )
            consumer = LitePullConsumer("audit", namesrv, config=config)
            await consumer.assign([queue])
            async with consumer:
                await audit.resume(database, consumer, queue)
                total += await audit.store_batches(database, consumer)
        bodies = [body for (body,) in database.execute("SELECT body FROM audit ORDER BY offset")]
    assert bodies == [b"%d" % number for number in range(10)]


def test_every_guide_is_run() -> None:
    """A page could be left out of these tests while no other test runs its blocks."""
    for page in (
        "fastapi",
        "flask",
        "django",
        "prefork",
        "jobs",
        "serialization",
        "outbox",
        "idempotence",
    ):
        assert files_of(page)
