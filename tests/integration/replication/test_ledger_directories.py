"""Brokers of a DLedger group start with directories of Java, of a plain store, or with empty ones."""

import asyncio
import shutil
from pathlib import Path

from rocketpy import Message, Producer, SendStatus
from rocketpy_broker.broker.broker import Broker
from rocketpy_broker.replication.dledger.ledger_store import LedgerStore
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.upkeep.cleaner import Cleaner
from tests import golden_data
from tests.integration.ledger_group import ledger_group
from tests.unit.store.helpers import put, queue_content, small_config
from tests.waiting import until


async def send(producer: Producer, topic: str, count: int) -> None:
    messages = (Message(topic, b"more %d " % number * 20) for number in range(count))
    results = await asyncio.gather(*map(producer.send, messages))
    assert {result.status for result in results} == {SendStatus.SEND_OK}


def ledger(broker: Broker) -> LedgerStore:
    assert isinstance(broker.store, LedgerStore)
    return broker.store


def count_of(broker: Broker, topic: str) -> int:
    """The number of messages of a topic in a broker's store."""
    store = broker.store
    store.dispatch()
    queues = [queue_id for name, queue_id in store.queues.queues if name == topic]
    return sum(store.max_offset_in_queue(topic, queue_id) for queue_id in queues)


async def test_a_group_continues_the_directories_of_a_java_group(tmp_path: Path) -> None:
    """A change from RocketMQ to this broker would need a copy of every message (QUIRKS 62)."""
    for name in ("n0", "n1", "n2"):
        golden_data.extract_store(f"{name}-final", tmp_path / name)
    recorded = golden_data.parsed("n0-final")["dledger"]["data"]
    count = len([entry for file in recorded for entry in file["entries"] if "index" in entry])
    async with ledger_group(tmp_path) as group, group.producer() as producer:
        master = await group.master()
        assert count_of(master, "RaftTopic") == count
        await send(producer, "RaftTopic", 200)
        brokers = list(group.running.values())
        await until(lambda: all(count_of(broker, "RaftTopic") == count + 200 for broker in brokers))
        contents = [queue_content(broker.store) for broker in brokers]
        assert contents[0] == contents[1] == contents[2]


async def test_a_store_becomes_a_group(tmp_path: Path) -> None:
    """DLedger could be turned on for empty brokers only."""
    store = MessageStore(small_config(tmp_path / "n0"))
    store.open()
    put(store, *range(700))
    store.close()
    shutil.rmtree(tmp_path / "n0" / "consumequeue")  # its file size differs; recovery rebuilds it
    async with ledger_group(tmp_path, size=1) as group:
        master = await group.master()
        assert count_of(master, "T") == 700
        assert ledger(master).ledger.start_pos == 2 * 65536
        async with group.producer() as producer:
            await send(producer, "T", 300)
        assert count_of(master, "T") == 1000


async def test_an_empty_peer_joins_a_group_whose_first_entries_have_expired(tmp_path: Path) -> None:
    """A peer whose disk was replaced could never join the group after retention."""
    settings = {"fileReservedTime": "0"}
    async with (
        ledger_group(tmp_path, settings=settings) as group,
        group.producer() as producer,
    ):
        await group.master()
        await send(producer, "T", 700)
        gone = group.name_of(group.slaves()[0])
        await group.stop(gone)
        shutil.rmtree(tmp_path / gone)
        for broker in group.running.values():
            await expire(broker)
        begins = {ledger(broker).ledger.begin_index for broker in group.running.values()}
        other = next(iter(group.running.values()))
        await group.start(gone, settings)
        await send(producer, "T", 50)
        joined, led = ledger(group.running[gone]), ledger(other)
        await until(lambda: joined.log.committed_index == led.log.committed_index >= 749)
        assert joined.ledger.begin_index in begins
        for store in (joined, led):
            store.dispatch()
        assert sum(queue.next_offset - queue.min_offset for queue in joined.queues.queues.values()) > 50
        for (topic, queue_id), queue in joined.queues.queues.items():
            places = joined.units(topic, queue_id, queue.min_offset, 50)
            assert places == led.units(topic, queue_id, queue.min_offset, 50)
            assert [joined.look_message(place) for place, *_ in places] == [
                led.look_message(place) for place, *_ in places
            ]


async def test_an_empty_queue_keeps_its_offsets_on_a_peer_that_joined_late(
    tmp_path: Path,
) -> None:
    """On that peer, new messages would get offsets from 0 on, below those that groups wait for."""
    settings = {"fileReservedTime": "0"}
    async with (
        ledger_group(tmp_path, settings=settings, sync_ms=50) as group,
        group.producer() as producer,
    ):
        first = await group.master()
        await send(producer, "U", 40)
        await send(producer, "T", 700)
        late, other = (group.name_of(broker) for broker in group.slaves())
        await group.stop(late)
        shutil.rmtree(tmp_path / late)
        for broker in group.running.values():
            await expire(broker)
        ends = {queue_id: first.store.max_offset_in_queue("U", queue_id) for queue_id in range(4)}
        assert sum(ends.values()) == 40
        joined = await group.start(late, settings)
        await until(lambda: joined._expired_offsets is not None and joined._expired_offsets.knows("U"))
        await group.stop(other)
        await send(producer, "T", 10)  # the other peer lacks these, so it cannot lead
        await group.stop(group.name_of(first))
        await group.start(other, settings)
        assert await group.master() is joined
        for queue_id, end in ends.items():
            assert joined.store.max_offset_in_queue("U", queue_id) == end
            assert joined.store.min_offset_in_queue("U", queue_id) == end
        results = [await producer.send(Message("U", b"later")) for _ in range(8)]
        assert all(result.queue_offset >= ends[result.queue.queue_id] for result in results)
        assert count_of(joined, "U") == 48


async def expire(broker: Broker) -> None:
    """Delete expired files once the checkpoint shows that they are flushed."""
    driver = broker._driver
    async with driver.paused():
        broker.store.flush(thorough=True)
    driver.cleaner = Cleaner(broker.store, use=lambda _: 0.8)
    await until(lambda: broker.store.checkpoint.dispatched_offset > 65536)
    await driver.clean()  # unless the broker has just done so
    assert ledger(broker).ledger.begin_index > 0
