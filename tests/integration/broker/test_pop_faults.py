"""Pops over retries, kills and restarts: no message is lost, and no acknowledged one comes again."""

from __future__ import annotations

import asyncio
import errno
import itertools
import signal
from asyncio.subprocess import Process
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rocketpy.protocol.bodies import BatchAck, BatchAckMessageRequestBody, SubscriptionGroupConfig
from rocketpy.protocol.bodies.pop import bit_set
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.message.properties import decode
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker import Broker, EmbeddedCluster
from rocketpy_broker.services.pop.formats import SEEN_GROUP
from rocketpy_broker.store.files.disk import OsDisk
from tests.integration.broker.test_deferred import records, send
from tests.integration.broker.test_pop import (
    HOUR_MS,
    Popped,
    ack,
    ack_request,
    arrive,
    batch_ack,
    call_together,
    change,
    changed,
    create,
    make_turns,
    pop,
    pop_request,
    pop_response,
    send_all,
)
from tests.integration.ha_pair import caught_up, pair
from tests.integration.processes import start, stop
from tests.integration.raw_client import RawClient, serving
from tests.integration.replication.test_ha import empty_slave
from tests.integration.small import SMALL
from tests.unit.store.faulty_disk import UnreadableDisk
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.usefixtures("patient_pops")

CONF = """
brokerName=broker-a
mappedFileSizeCommitLog=1048576
maxHashSlotNum=1000
maxIndexNum=4000
"""


async def broker(directory: Path, more: str = "") -> tuple[Process, str]:
    """A broker process with a store in this directory."""
    conf = directory / "broker.conf"
    conf.write_text(f"{CONF}{more}storePathRootDir={directory}/store\n")
    return await start("broker", "-c", str(conf), "--listen", "127.0.0.1:0")


async def test_after_the_last_delivery_it_is_a_dead_letter(tmp_path: Path) -> None:
    """A message that no worker can handle would come again forever."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await create(client)
        group = SubscriptionGroupConfig(group_name="g", retry_max_times=2)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await client.call(code, body=group.encode())).code == 0
        await send_all(client, "a")
        for times in range(3):
            (message,) = await arrive(client, 1, invisible_ms=100)
            assert message.record.reconsume_times == times
            first = decode(message.record.properties).get("1ST_POP_TIME")
            assert (first is not None) == (times > 0)
        async with asyncio.timeout(LIMIT_S):
            while not (dead := await records(client, "%DLQ%g")):
                await pop(client)
        properties = decode(dead[0].properties)
        assert (dead[0].body, properties["RETRY_TOPIC"], properties["UNIQ_KEY"]) == (b"a", "T", "a")
        assert properties["__DLQ_REASON"] == "not acknowledged in time, 3 times"
        assert await pop(client) == []


async def test_both_kinds_of_retry_topics_are_read(tmp_path: Path) -> None:
    """Messages of a group would stay in the retry topic of the other version."""
    settings = {**SMALL, "enableRetryTopicV2": "true", "popFromRetryProbability": "50"}
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await create(client)
        await send_all(client, "a")
        (message,) = await pop(client)
        assert (await change(client, message, 0)).code == 0
        (message,) = await arrive(client, 1)
        assert (await change(client, message, 1)).code == 0
    async with serving(tmp_path, settings=settings) as (_, client):
        await send_all(client, "b")
        found: dict[str, Popped] = {}
        async with asyncio.timeout(LIMIT_S):
            while len(found) < 2:
                found |= {message.body: message for message in await pop(client, 1)}
        assert found.keys() == {"a", "b"}
        assert found["a"].topic == "%RETRY%g_T"
        assert (await change(client, found["b"], 0)).code == 0
        (again,) = await arrive(client, 1)
        assert (again.body, again.topic) == ("b", "%RETRY%g+T")
        for one in (found["a"], again):
            assert (await ack(client, one)).code == 0


async def test_an_unreadable_queue_does_not_hide_messages_of_others(tmp_path: Path) -> None:
    """Pops that begin at this queue would fail, though the others have messages."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await create(client, 4)
        for number in range(40):
            assert (await send(client, b"%d" % number, queue_id=number % 4)).code == 0
    disk = UnreadableDisk()
    async with (
        EmbeddedCluster(tmp_path, settings=SMALL, make_broker=partial(Broker, disk=disk)) as cluster,
        await RawClient.open(cluster.brokers[0].address) as client,
    ):
        disk.unreadable = "consumequeue/T/2/"
        found = [message.body for _ in range(30) for message in await pop(client, 1)]
        assert sorted(map(int, found)) == [number for number in range(40) if number % 4 != 2]
        failed = await pop_response(client)
        assert failed.code == ResponseCode.SYSTEM_ERROR
        assert "planned failure" in str(failed.remark)
        disk.unreadable = ""
        assert len(await pop(client)) == 10


async def test_filters(tmp_path: Path) -> None:
    """A worker would get jobs of others, or none."""
    async with serving(tmp_path, settings={**SMALL, "enablePropertyFilter": "true"}) as (_, client):
        await create(client)
        for number in range(40):
            text = f"UNIQ_KEY\x01{number}\x02TAGS\x01{'ab'[number % 2]}\x02n\x01{number}\x02"
            assert (await send(client, str(number).encode(), text, queue_id=0)).code == 0
        by_tag = await pop(client, exp="a || c", exp_type="TAG", consumer_group="tags")
        assert [message.body for message in by_tag] == [str(number) for number in range(0, 40, 2)]
        by_sql = await pop(client, exp="n >= 37", exp_type="SQL92", consumer_group="sql")
        assert [message.body for message in by_sql] == ["37", "38", "39"]
        assert (await ack(client, by_sql[1], group="sql")).code == 0
        wrong = await pop_response(client, exp="n >", exp_type="SQL92")
        assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"count": 33}, ResponseCode.INVALID_PARAMETER, "1 to 32"),
        ({"count": 0}, ResponseCode.INVALID_PARAMETER, "1 to 32"),
        ({"invisible_ms": 0}, ResponseCode.INVALID_PARAMETER, "invisible time"),
        ({"queue_id": 9}, ResponseCode.INVALID_PARAMETER, "queueId[9] is illegal"),
        ({"queue_id": -2}, ResponseCode.INVALID_PARAMETER, "queueId[-2] is illegal"),
        ({"topic": "Missing"}, ResponseCode.TOPIC_NOT_EXIST, "topic[Missing] not exist"),
        ({"consumer_group": "g" * 120}, ResponseCode.INVALID_PARAMETER, "too long for POP"),
    ],
)
async def test_what_cannot_be_popped_is_refused(
    tmp_path: Path, fields: dict[str, object], code: int, reason: str
) -> None:
    """A worker would wait without knowing why."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await create(client)
        response = await pop_response(client, **fields)  # type: ignore[arg-type] # from a dict
        assert response.code == code
        assert reason in str(response.remark)


@pytest.mark.parametrize(
    "receipt", ["", "a b c", "0 0 0 0 0 b", "0 1 2 77 0 broker-a 0 0", "0 1 2 -1 0 broker-a 0 0"]
)
async def test_what_is_no_receipt_is_refused(tmp_path: Path, receipt: str) -> None:
    """A worker would believe that its message is acknowledged."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await create(client)
        await send_all(client, "a")
        (message,) = await pop(client)

        class Text:
            queue_id = 0

            @staticmethod
            def encode() -> str:
                return receipt

        wrong = Popped(message.record, Text, message.topic)  # type: ignore[arg-type] # no receipt
        assert (await ack(client, wrong)).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await change(client, wrong, 1)).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await ack(client, message)).code == 0


async def batch(client: RawClient, message: Popped, count: int = 1, **changes: Any) -> Command:
    """The response to BATCH_ACK_MESSAGE with the same acknowledgement `count` times."""
    receipt = message.receipt
    one = BatchAck(
        consumer_group="g", topic="T", retry=receipt.kind, start_offset=receipt.checkpoint_offset,
        queue_id=receipt.queue_id, revive_queue_id=receipt.revive_queue, pop_time=receipt.pop_time,
        invisible_time=receipt.invisible_time, bit_set=bit_set([0]),
    )  # fmt: skip
    acks = [msgspec.structs.replace(one, **changes)] * count
    body = BatchAckMessageRequestBody(broker_name="broker-a", acks=acks)
    return await client.call(RequestCode.BATCH_ACK_MESSAGE, body=body.encode())


async def test_a_huge_batch_of_acknowledgements_is_refused(tmp_path: Path) -> None:
    """A list of the offsets of a million bits would take the memory and time of all clients."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await create(client)
        await send_all(client, "a")
        (message,) = await pop(client)
        response = await batch(client, message, bit_set=b"\xff" * 125_000)
        assert response.code == ResponseCode.MESSAGE_ILLEGAL
        assert "acknowledges 1000000 messages" in str(response.remark)
        response = await batch(client, message, 1025)
        assert response.code == ResponseCode.MESSAGE_ILLEGAL
        assert "1025 acknowledgements" in str(response.remark)
        response = await batch(client, message, 1000, start_offset=2**62)
        assert response.code == ResponseCode.NO_MESSAGE
        assert len(str(response.remark)) < 2000
        assert str(response.remark).endswith("and 990 more")
        sparse = bytes([1, *bytes(100_000), 1])
        assert (await batch(client, message, bit_set=sparse)).code == ResponseCode.SUCCESS


async def test_one_pop_filters_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pop of a topic with a thousand queues would filter for seconds, and delay all clients."""
    monkeypatch.setattr("rocketpy_broker.handlers.pop.pop._READ_MS", 2)
    async with serving(tmp_path, settings=SMALL | {"enablePropertyFilter": "true"}) as (cluster, client):
        await create(client, 16)
        await send_all(client, "abcdefghijklmnop", 16)
        delivery = cluster.brokers[0].delivery
        polling = delivery._polling
        assert polling is not None
        polling.pops.now_ms = itertools.count().__next__  # each look at the clock takes a millisecond
        for pops in range(1, 5):
            assert not await pop(client, exp="a = 'x'", exp_type="SQL92")
            read = sum(delivery.pop.points.next_offset("T", "g", number) == 1 for number in range(16))
            assert pops <= read <= 3 * pops


async def test_the_bytes_of_one_pop_are_limited(tmp_path: Path) -> None:
    """A response with the messages of many queues could exceed the frames that clients accept."""
    async with serving(tmp_path, settings=SMALL) as (_, client):
        await create(client, 8)
        for number in range(8):
            assert (await send(client, bytes(200_000), queue_id=number)).code == 0
        found = await pop(client)
        assert len(found) == 2  # the second one exceeds 256 kB
        assert len(await arrive(client, 6)) == 6


async def test_a_receipt_of_the_far_future_waits_for_no_timer(tmp_path: Path) -> None:
    """Its acknowledgement would be a timer for ever, which later ones would wait for."""
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        await create(client)
        await send_all(client, "a")
        (message,) = await pop(client)
        cluster.brokers[0].delivery.pop.points.timers_wait = lambda: True
        for pop_time, code in ((2**62, ResponseCode.NO_MESSAGE), (message.receipt.pop_time - 1, 0)):
            receipt = message.receipt._replace(pop_time=pop_time)
            assert (await ack(client, message._replace(receipt=receipt))).code == code


async def test_an_offset_that_was_set_meanwhile_is_not_committed_again_and_again(tmp_path: Path) -> None:
    """An idle broker would flush its log each second."""
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        await create(client)
        await send_all(client, "abc")
        (message,) = await pop(client, 1)
        cluster.brokers[0].consumers.offsets.commit("g", "T", 0, 2)
        assert (await ack(client, message)).code == 0
        points = cluster.brokers[0].delivery.pop.points
        await until(lambda: not points.is_uncommitted)
        assert [one.body for one in await pop(client)] == ["c"]


async def test_a_retry_topic_of_pops_restores_its_group(tmp_path: Path) -> None:
    """An operator would find a group g_T that nobody uses, after a lost file or a change of the leader."""
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        await create(client)
        await send_all(client, "a")
        await pop(client, invisible_ms=1)
        assert (await arrive(client, 1))[0].topic == "%RETRY%g_T"
    for path in (tmp_path / "config").glob("subscriptionGroup.json*"):
        path.unlink()
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        names = cluster.brokers[0].consumers.groups.names
        assert "g" in names
        assert "g_T" not in names


async def test_the_first_popped_offsets_name_their_check_points(tmp_path: Path) -> None:
    """A slave that copied them without, and became the master before the check point, would skip messages."""
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        await create(client)
        await send_all(client, "a")
        offsets = cluster.brokers[0].consumers.offsets
        await pop(client)
        await until(lambda: offsets.get("g", "T", 0) == 1)
        topic = cluster.brokers[0].delivery.pop.revive_topic
        assert offsets.queues(SEEN_GROUP, topic)


async def test_receipts_of_more_revive_queues_stay_valid(tmp_path: Path) -> None:
    """Workers would do all jobs in flight again after an operator has reduced reviveQueueNum."""
    async with serving(tmp_path, settings={**SMALL, "reviveQueueNum": "8"}) as (_, client):
        await create(client)
        await send_all(client, "abcdefgh")
        messages = [(await pop(client, 1))[0] for _ in range(8)]
    async with serving(tmp_path, settings={**SMALL, "reviveQueueNum": "1"}) as (_, client):
        for message in messages:
            moved = changed(message, await change(client, message, HOUR_MS))
            assert (await batch(client, moved)).code == ResponseCode.SUCCESS


class DiskWithoutAcks(OsDisk):
    """Does not write acknowledgements of several messages while it fails."""

    fails = False

    def pwrite(self, handle: int, data: bytes, position: int) -> None:
        if self.fails and b"TAGS\x01bAck\x02" in data:
            raise OSError(errno.EIO, "planned failure of pwrite")
        super().pwrite(handle, data, position)


async def test_acknowledgements_that_cannot_be_written_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker would believe that its messages are acknowledged, or could not acknowledge them again."""
    make_turns(monkeypatch, LIMIT_S)
    disk = DiskWithoutAcks()
    async with (
        EmbeddedCluster(tmp_path, settings=SMALL, make_broker=partial(Broker, disk=disk)) as cluster,
        await RawClient.open(cluster.brokers[0].address) as client,
    ):
        await create(client)
        await send_all(client, "abc")
        a, b = await pop(client, 2)
        disk.fails = True
        requests = [ack_request(a), pop_request(1), ack_request(b)]
        assert await call_together(client, requests) == [ResponseCode.SYSTEM_ERROR] * 3
        disk.fails = False
        async with asyncio.timeout(LIMIT_S):
            while (response := await ack(client, a)).code == ResponseCode.SYSTEM_BUSY:
                pass  # it reads its check points
        assert response.code == 0
        assert (await ack(client, b)).code == 0
        (c,) = await pop(client)
        assert c.body == "c"


@pytest.mark.parametrize("kill", [True, False])
async def test_messages_in_flight_survive_a_restart(tmp_path: Path, kill: bool) -> None:
    """A kill would give a job to a second worker, or forget that one is done."""
    process, address = await broker(tmp_path)
    async with await RawClient.open(address) as client:
        await create(client)
        await send_all(client, "abcdefg")
        a, b, c, d, e = await pop(client, 5)
        (f,) = await pop(client, 1, invisible_ms=1500)
        assert await call_together(client, [ack_request(a), ack_request(e)]) == [0, 0]
        longer = changed(c, await change(client, c, HOUR_MS))
    await stop(process, signal.SIGKILL if kill else signal.SIGTERM)
    process, address = await broker(tmp_path)
    async with await RawClient.open(address) as client:
        more = {message.body for message in await arrive(client, 1)}
        assert (await ack(client, b)).code == 0
        assert (await ack(client, longer)).code == 0
        assert (await change(client, d, 0)).code == 0
        while len(more) < 3:
            more |= {message.body for message in await arrive(client, 1)}
        assert more == {"d", f.body, "g"}
        for used in (a, c, d, e):
            assert (await ack(client, used)).code == ResponseCode.NO_MESSAGE
    await stop(process)


@pytest.mark.parametrize("rounds", [2, pytest.param(8, marks=pytest.mark.slow)])
async def test_kills_under_load(tmp_path: Path, rounds: int) -> None:
    """A message would be lost; or one that is acknowledged, or that another worker has, would come again."""
    sent: set[str] = set()
    acked: set[str] = set()
    uncertain: set[str] = set()
    held: dict[str, int] = {}
    """Message -> until when its worker has it."""

    async def work(client: RawClient) -> None:
        while True:
            for message in await pop(client, 5, invisible_ms=2000):
                assert message.body not in acked or message.body in uncertain
                assert held.get(message.body, 0) <= message.receipt.pop_time or message.body in uncertain
                held[message.body] = message.receipt.pop_time + 2000
                if int(message.body.partition("-")[2]) % 10 or message.record.reconsume_times:
                    uncertain.add(message.body)
                    assert (await ack(client, message)).code in (0, ResponseCode.NO_MESSAGE)
                    uncertain.discard(message.body)
                    acked.add(message.body)

    for number in range(rounds):
        process, address = await broker(tmp_path)
        async with await RawClient.open(address) as client:
            await create(client, 4)
            for index in range(60):
                body = f"{number}-{index}"
                response = await send(client, body.encode(), f"UNIQ_KEY\x01{body}\x02", queue_id=index % 4)
                assert response.code == 0
                sent.add(body)
            workers = [await RawClient.open(address) for _ in range(3)]
            tasks = [asyncio.create_task(work(worker)) for worker in workers]
            await asyncio.sleep(0.2 + 0.13 * number)  # kills in the middle of the work
            await stop(process, signal.SIGKILL)
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert not [end for end in ended if isinstance(end, AssertionError)]
            for worker in workers:
                worker.writer.close()
    process, address = await broker(tmp_path)
    async with await RawClient.open(address) as client, asyncio.timeout(LIMIT_S):
        while sent - acked:
            for message in await pop(client, 32, invisible_ms=60_000):
                assert (await ack(client, message)).code == 0
                acked.add(message.body)
    await stop(process)


async def test_a_slave_goes_on_with_the_pops_of_its_master(tmp_path: Path) -> None:
    """It would give messages to a second worker, forget acknowledgements, or skip messages."""
    async with pair(tmp_path) as brokers:
        master = await brokers.master(brokerRole="SYNC_MASTER")
        slave = await brokers.start("slave", brokerRole="SLAVE", brokerId="1")
        await caught_up(master, slave)
        async with await RawClient.open(master.address) as client:
            await create(client)
            await send_all(client, "abcdef")
            a, b, c = await pop(client, 3)
            (d,) = await pop(client, 1, invisible_ms=4000)
            assert (await ack(client, a)).code == 0
            async with await RawClient.open(slave.address) as other:
                assert (await pop_response(other)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        offsets = slave.consumers.offsets
        await until(lambda: offsets.get("g", "T", 0) == 4)
        async with await RawClient.open(master.address) as client:
            e, f = await pop(client)
        await caught_up(master, slave)
        await brokers.stop(master)
        await brokers.stop(slave)
        second = await brokers.start("slave", brokerRole="ASYNC_MASTER", brokerId="0")
        async with await RawClient.open(second.address) as client:
            (again,) = await arrive(client, 1)
            assert (again.body, again.record.reconsume_times) == (d.body, 1)
            for message in (b, c, e, f, again):
                assert (await ack(client, message)).code == 0
            assert (await ack(client, a)).code == ResponseCode.NO_MESSAGE
            assert await pop(client) == []
            assert not second.delivery.pop.points.in_flight


@pytest.mark.parametrize("condition", ["a slave", "a flush"])
async def test_responses_wait_as_those_to_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    """SYNC_MASTER, SYNC_FLUSH: an acknowledged message would come again if the machine is lost."""
    is_flush = condition == "a flush"
    role = {"flushDiskType": "SYNC_FLUSH"} if is_flush else {"brokerRole": "SYNC_MASTER"}
    async with AsyncExitStack() as stack:
        brokers = await stack.enter_async_context(pair(tmp_path))
        master = await brokers.master(**role, syncFlushTimeout="60000")
        client, other = [
            await stack.enter_async_context(await RawClient.open(master.address)) for _ in range(2)
        ]
        await create(client)
        for name in "abc":
            text = f"UNIQ_KEY\x01{name}\x02WAIT\x01false\x02"
            assert (await send(client, name.encode(), text, queue_id=0)).code == 0
        driver, gate = master.replication._driver, asyncio.Event()
        flush = driver.flush
        await flush()  # with SYNC_FLUSH, only flushed messages can be popped

        async def flush_later() -> int:
            await gate.wait()
            return await flush()

        if is_flush:
            monkeypatch.setattr(driver, "flush", flush_later)
        else:
            wire = await empty_slave(master)

        async def held(work: Awaitable[Any]) -> Any:
            """The result, which comes only once the record is flushed or has reached the slave."""
            before = master.store.max_physical_offset
            gate.clear()
            response = asyncio.ensure_future(work)
            await until(lambda: master.store.max_physical_offset > before)
            assert (await other.call(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0
            assert not response.done()
            gate.set()
            if not is_flush:
                wire.write(master.store.max_physical_offset.to_bytes(8, "big"))
            async with asyncio.timeout(LIMIT_S):
                return await response

        a, b, c = await held(pop(client))
        assert (await held(ack(client, a))).code == 0
        longer = changed(b, await held(change(client, b, HOUR_MS)))
        assert (await held(batch_ack(client, [c]))).code == 0
        assert (await held(ack(client, longer))).code == 0
        if not is_flush:
            wire.close()
