"""Orderly and broadcasting consumers, also while a broker is offline."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    ConsumeResult,
    Later,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
)
from rocketpy.consumer.fetch.process_queue import LOCK_ALIVE_MS
from rocketpy.consumer.group.offset_stores import LocalOffsets
from rocketpy.consumer.handling import orderly
from rocketpy.errors import ConfigInvalid
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_groups import SETTINGS, Seen, committed, consuming, of_topic, send, texts
from tests.integration.sdk_peers import not_waiting
from tests.waiting import until


class Orders:
    """A plain handler that checks the order of each queue, and that only one works on it at a time."""

    def __init__(self) -> None:
        self.offsets: defaultdict[MessageQueue, list[int]] = defaultdict(list)
        self.overlaps = 0
        self._busy: set[MessageQueue] = set()
        self._lock = threading.Lock()

    def __call__(self, message: MessageExt) -> None:
        with self._lock:
            self.overlaps += message.queue in self._busy
            self._busy.add(message.queue)
        self.offsets[message.queue].append(message.queue_offset)
        with self._lock:
            self._busy.discard(message.queue)

    @property
    def count(self) -> int:
        return sum(map(len, self.offsets.values()))


async def test_each_queue_in_its_order(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A later message of a queue would be handled before an earlier one, or at the same time."""
    orders = Orders()
    async with consuming(cluster, orders, orderly=True):
        await send(producer, *texts("ordered", 200))
        await until(lambda: orders.count == 200)
    assert orders.overlaps == 0
    assert all(offsets == sorted(offsets) for offsets in orders.offsets.values())
    assert len(orders.offsets) == 4
    assert committed(cluster) == 200


@pytest.mark.parametrize("plain", [False, True])
async def test_a_failure_blocks_its_queue(cluster: EmbeddedCluster, producer: Producer, plain: bool) -> None:
    """The message after a failed one would overtake it."""
    seen: list[tuple[bytes, int]] = []

    def handle(message: MessageExt) -> Any:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"step 1" and message.reconsume_times < 2:
            return Later(suspend_ms=20)
        return None

    async def handle_async(message: MessageExt) -> Any:
        return handle(message)

    queue = MessageQueue("T", "broker-a", 2)
    for text in texts("step", 4):
        await producer.send(Message("T", text.encode()), queue=queue)
    async with consuming(cluster, handle if plain else handle_async, orderly=True):
        await until(lambda: len(seen) == 6)
    assert seen == [
        (b"step 0", 0),
        *((b"step 1", times) for times in range(3)),
        (b"step 2", 0),
        (b"step 3", 0),
    ]
    assert committed(cluster) == 4


async def test_a_cancellation_inside_a_handler_counts_as_its_failure(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """Its queue would stop, without a log line, in a consumer whose health reports no problem."""
    seen: list[tuple[bytes, int]] = []

    async def handle(message: MessageExt) -> None:
        seen.append((message.body, message.reconsume_times))
        if len(seen) == 1:
            lost = asyncio.get_running_loop().create_future()
            lost.cancel()
            await lost

    queue = MessageQueue("T", "broker-a", 2)
    for text in texts("step", 2):
        await producer.send(Message("T", text.encode()), queue=queue)
    async with consuming(cluster, handle, orderly=True, suspend_ms=20):
        await until(lambda: len(seen) == 3)
    assert seen == [(b"step 0", 0), (b"step 0", 1), (b"step 1", 0)]


async def test_orderly_dead_letters(cluster: EmbeddedCluster, producer: Producer) -> None:
    """One message that no handler can process would block its queue forever."""
    seen = Seen(lambda message: ConsumeResult.LATER if message.body == b"hopeless" else None)
    queue = MessageQueue("T", "broker-a", 0)
    for body in (b"hopeless", b"next"):
        await producer.send(Message("T", body), queue=queue)
    async with consuming(cluster, seen, orderly=True, max_reconsume_times=2, suspend_ms=10):
        await seen.until(2)
        async with AdminClient(cluster.namesrv_address) as admin:
            dead = await admin.max_offset(MessageQueue("%DLQ%g", "broker-a", 0))
    assert seen.bodies == Counter({b"hopeless": 3, b"next": 1})
    assert dead == 1
    assert committed(cluster) == 2


async def test_a_queue_changes_hands_after_its_handler(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Two members would work on one queue at the same time while it changes hands."""
    began, go = asyncio.Event(), asyncio.Event()

    async def stuck(_: MessageExt) -> None:
        began.set()
        await go.wait()

    other = Seen()
    async with consuming(cluster, stuck, orderly=True, name="one") as first:
        await send(producer, *texts("handed", 4))  # one in each queue
        await began.wait()
        async with consuming(cluster, other, orderly=True, name="two") as second:
            await until(lambda: len(of_topic(first)) == 2)
            await asyncio.sleep(0.3)
            assert of_topic(second) == []  # the handlers of the first member have not ended
            go.set()
            await until(lambda: len(of_topic(second)) == 2)
            await send(producer, *texts("more", 8))
            await until(lambda: other.bodies.total() == 4)
    assert set(other.bodies) <= {f"more {number}".encode() for number in range(8)}


async def test_handlers_stop_when_the_lock_expires(
    cluster: EmbeddedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member whose locks have expired would handle messages at the same time as the next owner."""
    monkeypatch.setattr(orderly, "_LOCK_FAILED_S", 0.3)
    seen = Seen()
    async with consuming(cluster, seen, orderly=True) as consumer:
        await send(producer, "locked")
        await seen.until(1)
        refused: set[MessageQueue] = set()

        async def lock(_queues: object, _owner: str) -> set[MessageQueue]:
            return refused

        with monkeypatch.context() as patch:
            patch.setattr(consumer.member.api, "lock", lock)
            await consumer.member.locks._renew(consumer.member.locks._held())
            await send(producer, *texts("waiting", 4))
            await until(lambda: sum(p.process_queue.count for p in consumer.member.pullers.values()) == 4)
            await asyncio.sleep(0.2)
            assert seen.bodies.total() == 1
            assert len(of_topic(consumer)) == 4  # the queues stay assigned
        await seen.until(5)
        assert LOCK_ALIVE_MS < 60_000  # members stop before the broker's lock expires


# -- broadcasting -----------------------------------------------------------------------------------


def broadcast(cluster: EmbeddedCluster, handler: Any, directory: Path, name: str) -> Any:
    return consuming(cluster, handler, name=name, model=MessageModel.BROADCASTING, offset_directory=directory)


async def test_each_member_gets_every_message(
    cluster: EmbeddedCluster, producer: Producer, tmp_path: Path
) -> None:
    """A member of a broadcasting group would miss a message that another one got."""
    one, two = Seen(), Seen(lambda _: ConsumeResult.LATER)
    async with broadcast(cluster, one, tmp_path, "one") as first, broadcast(cluster, two, tmp_path, "two"):
        sent = await send(producer, *texts("all", 20))
        await one.until(20)
        await two.until(20)
        assert {queue.topic for queue in first.assignment} == {"T"}
    assert one.bodies == two.bodies == Counter(sent)  # the failed message is not redelivered
    assert committed(cluster) == 0


def _files(directory: Path) -> list[Path]:
    return list(directory.rglob("offsets.json"))


async def test_progress_outlives_a_restart(
    cluster: EmbeddedCluster, producer: Producer, tmp_path: Path
) -> None:
    """A restarted member would read from the beginning, or miss the messages sent while it was stopped."""
    seen = Seen()
    async with broadcast(cluster, seen, tmp_path, "kept"):
        await send(producer, *texts("first", 12))
        await seen.until(12)
    assert [path.name for path in _files(tmp_path)] == ["offsets.json"]
    await send(producer, *texts("meanwhile", 8))
    again = Seen()
    async with broadcast(cluster, again, tmp_path, "kept"):
        await again.until(8)
    assert again.bodies == Counter(text.encode() for text in texts("meanwhile", 8))


JAVA_FILE = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":3,
\t\t\t"topic":"TopicTest"
\t\t}:126,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"TopicTest"
\t\t}:125
\t}
}"""


async def test_the_file_of_a_java_client(tmp_path: Path) -> None:
    """A broadcasting consumer that moves from Java to rocketpy would start over."""
    file = tmp_path / "g" / "offsets.json"
    file.parent.mkdir()
    file.write_bytes(JAVA_FILE)
    zero, three = (MessageQueue("TopicTest", "broker-a", queue_id) for queue_id in (0, 3))
    store = LocalOffsets(file)
    assert await store.read(three) == 126
    assert await store.read(MessageQueue("TopicTest", "broker-a", 1)) is None
    await store.write({zero: 130})
    assert file.with_name("offsets.json.bak").read_bytes() == JAVA_FILE
    assert await LocalOffsets(file).read(zero) == 130
    assert await LocalOffsets(file).read(three) == 126
    file.write_bytes(b'{"offsetTable":{{"brok')  # torn: the backup is read
    assert await LocalOffsets(file).read(zero) == 125
    file.with_name("offsets.json.bak").write_bytes(b"torn too")
    with pytest.raises(ConfigInvalid):
        await LocalOffsets(file).read(zero)


async def test_a_name_server_that_is_offline(tmp_path: Path) -> None:
    """A consumer that starts before its servers would fail, or never receive a message."""
    seen = Seen()
    async with EmbeddedCluster(tmp_path, settings=SETTINGS) as before:
        address = before.namesrv_address
        async with Producer("senders", address) as producer:
            await producer.send(Message("T", b"kept"))
    consumer = PushConsumer("g", address, seen)
    consumer.subscribe("T")
    async with not_waiting(consumer):
        assert not consumer.health().ok
        async with EmbeddedCluster(tmp_path, namesrv=address, settings=SETTINGS):
            await seen.until(1)
            assert consumer.health().ok
            await consumer.close()
