"""Brokers are killed under load: no delayed, retried or transactional message is lost, early or published."""

import asyncio
import signal
import time
from asyncio.subprocess import Process
from pathlib import Path

import pytest

from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import (
    CheckTransactionStateRequestHeader,
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
)
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.protocol.message.record import decode
from tests.integration.broker.test_deferred import (
    COMMIT,
    ROLLBACK,
    arrive,
    half,
    oneway,
    produce_as,
    records,
    send,
)
from tests.integration.processes import start, stop
from tests.integration.raw_client import RawClient
from tests.waiting import LIMIT_S

CONF = """
brokerName=b1
mappedFileSizeCommitLog=1048576
maxHashSlotNum=1000
maxIndexNum=4000
messageDelayLevel=1s 2s
flushDelayOffsetInterval=50
transactionTimeOut=200
transactionCheckInterval=300
transactionCheckMax=1000
"""


async def broker(directory: Path) -> tuple[Process, str]:
    conf = directory / "broker.conf"
    conf.write_text(f"{CONF}storePathRootDir={directory}/store\n")
    return await start("broker", "-c", str(conf), "--listen", "127.0.0.1:0")


class Sent:
    """The messages that killed brokers had accepted, by body. Times are those before the request, in ms."""

    def __init__(self) -> None:
        self.delayed_ms: dict[bytes, float] = {}
        self.returned_ms: dict[bytes, float] = {}
        self.committed: set[bytes] = set()
        self.open: set[bytes] = set()

    async def send_delayed(self, client: RawClient, number: int) -> None:
        for index in range(20):
            body = b"%d-%d" % (number, index)
            self.delayed_ms[body] = time.time() * 1000
            response = await send(client, body, f"DELAY\x01{1 + index % 2}\x02", topic="Delayed")
            assert response.code == 0, response.remark

    async def send_back(self, client: RawClient, number: int) -> None:
        for index in range(12):
            body = b"%d-%d" % (number, index)
            response = await send(client, body, topic="Handled")
            header = ConsumerSendMsgBackRequestHeader(
                offset=decode_message_id(response.ext_fields()["msgId"])[1],
                group="c",
                delay_level=1 + index % 2,
                max_reconsume_times=16,
            )
            self.returned_ms[body] = time.time() * 1000
            response = await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            assert response.code == 0, response.remark

    async def send_half(self, client: RawClient, number: int) -> None:
        """Commit a third of them, roll back a third, and leave a third open."""
        for index in range(12):
            body = b"%d-%d" % (number, index)
            header = await half(client, body, group="nobody")
            if index % 3 == 2:
                self.open.add(body)
                continue
            header.commit_or_rollback = (COMMIT, ROLLBACK)[index % 3]
            oneway(client, RequestCode.END_TRANSACTION, header)
            if index % 3 == 0:
                self.committed.add(body)
        await records(client)  # its response comes after the earlier ends are written


@pytest.mark.parametrize(
    ("rounds", "kill_after_s"),
    [(1, 0.2), *(pytest.param(3, pause_s, marks=pytest.mark.slow) for pause_s in (0, 0.2, 1.02))],
)
async def test_nothing_is_lost_or_early(tmp_path: Path, rounds: int, kill_after_s: float) -> None:
    """A killed broker would lose acknowledged messages, or deliver them early or with a wrong retry count.

    It would forget open transactions, or check ended ones.
    """
    sent = Sent()
    for number in range(rounds):
        process, address = await broker(tmp_path)
        async with await RawClient.open(address) as client:
            await sent.send_delayed(client, number)
            await sent.send_back(client, number)
            await asyncio.sleep(kill_after_s)
            await sent.send_half(client, number)
        await stop(process, signal.SIGKILL)
    process, address = await broker(tmp_path)
    async with await RawClient.open(address) as client:
        await _check_transactions(client, address, sent)
        delayed = await _until_all(client, set(sent.delayed_ms), "Delayed")
        returned = await _until_all(client, set(sent.returned_ms), "%RETRY%c")
    await stop(process)
    for body, (_, stored_ms) in delayed.items():
        assert stored_ms - sent.delayed_ms[body] >= _delay_ms(body) - 5, body
    for body, (times, stored_ms) in returned.items():
        assert times == 1
        assert stored_ms - sent.returned_ms[body] >= _delay_ms(body) - 5, body


async def test_delivered_messages_are_not_repeated(tmp_path: Path) -> None:
    """A killed broker would deliver the delayed and returned messages of up to ten seconds again."""
    conf = tmp_path / "broker.conf"
    rarely = CONF.replace("flushDelayOffsetInterval=50", "flushDelayOffsetInterval=3600000")
    conf.write_text(f"{rarely}storePathRootDir={tmp_path}/store\n")
    bodies = {b"%d" % number for number in range(10)}
    for is_killed in (True, False):
        process, address = await start("broker", "-c", str(conf), "--listen", "127.0.0.1:0")
        async with await RawClient.open(address) as client:
            if is_killed:
                for body in bodies:
                    properties = f"DELAY\x011\x02UNIQ_KEY\x01{body.decode().zfill(32)}\x02"
                    assert (await send(client, body, properties, topic="Delayed")).code == 0
                await _until_all(client, bodies, "Delayed")
            await send(client, b"last", "DELAY\x011\x02", topic="Delayed")
            await _until_all(client, bodies | {b"last"}, "Delayed")
            found = [record.body for record in await records(client, "Delayed")]
        await stop(process, signal.SIGKILL if is_killed else signal.SIGTERM)
    assert sorted(body for body in found if body != b"last") == sorted(bodies)


def _delay_ms(body: bytes) -> int:
    """The delay of this message's level."""
    return 1000 * (1 + int(body.split(b"-")[1]) % 2)


async def _check_transactions(client: RawClient, address: str, sent: Sent) -> None:
    """Check that committed messages are delivered, and that only open transactions are checked."""
    async with await RawClient.open(address) as asked:
        assert sorted(one.body for one in await records(client)) == sorted(sent.committed)
        await produce_as(asked, "nobody")
        while sent.open:
            body = await _respond_to_check(asked)
            sent.open.remove(body)  # KeyError: a check of a transaction that had ended
            sent.committed.add(body)
        found = await arrive(client, len(sent.committed))
        assert {one.body for one in found} == sent.committed


async def _until_all(client: RawClient, bodies: set[bytes], topic: str) -> dict[bytes, tuple[int, int]]:
    """Wait for all bodies; return the retries and store timestamp (ms) of each one's first delivery.

    A kill may cause further deliveries.
    """
    found: dict[bytes, tuple[int, int]] = {}
    async with asyncio.timeout(LIMIT_S):
        while found.keys() != bodies:
            found = {}
            offset = 0
            while part := await records(client, topic, offset=offset):
                for record in part:
                    found.setdefault(record.body, (record.reconsume_times, record.store_timestamp))
                offset += len(part)
            await asyncio.sleep(0.05)
    return found


async def _respond_to_check(client: RawClient) -> bytes:
    """Commit the transaction that the broker asks about next; returns its body."""
    question = await client.next()
    asked = question.header_as(CheckTransactionStateRequestHeader)
    response = EndTransactionRequestHeader(
        producer_group="nobody",
        tran_state_table_offset=asked.tran_state_table_offset,
        commit_log_offset=asked.commit_log_offset,
        commit_or_rollback=COMMIT,
        msg_id=asked.msg_id or "",
        from_transaction_check=True,
    )
    oneway(client, RequestCode.END_TRANSACTION, response)
    return decode(question.body).body
