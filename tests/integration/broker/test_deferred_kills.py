"""Brokers killed amid delayed, retried and transactional messages: none lost, early, or committed unasked."""

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
"""
ROUNDS = 3


async def broker(directory: Path) -> tuple[Process, str]:
    conf = directory / "broker.conf"
    conf.write_text(f"{CONF}storePathRootDir={directory}/store\n")
    return await start("broker", "-c", str(conf), "--listen", "127.0.0.1:0")


@pytest.mark.parametrize("kill_after_s", [0.2, 1.02])
async def test_no_delayed_message_is_lost_or_early(tmp_path: Path, kill_after_s: float) -> None:
    """A killed broker would lose what it had acknowledged, or deliver it before its time."""
    sent_ms: dict[bytes, float] = {}
    for number in range(ROUNDS):
        process, address = await broker(tmp_path)
        async with await RawClient.open(address) as client:
            for index in range(20):
                body = b"%d-%d" % (number, index)
                sent_ms[body] = time.time() * 1000
                answer = await send(client, body, f"DELAY\x01{1 + index % 2}\x02")
                assert answer.code == 0, answer.remark
            await asyncio.sleep(kill_after_s)
        await stop(process, signal.SIGKILL)
    process, address = await broker(tmp_path)
    async with await RawClient.open(address) as client:
        found = await _until_all(client, set(sent_ms))
    await stop(process)
    for body, (_, stored_ms) in found.items():
        wanted_ms = 1000 * (1 + int(body.split(b"-")[1]) % 2)
        assert stored_ms - sent_ms[body] >= wanted_ms - 5, body


async def test_no_retried_message_is_lost_or_early(tmp_path: Path) -> None:
    """What a consumer gave back before a kill would not come again, at once, or with a wrong count."""
    given_ms: dict[bytes, float] = {}
    for number in range(ROUNDS):
        process, address = await broker(tmp_path)
        async with await RawClient.open(address) as client:
            for index in range(12):
                body = b"%d-%d" % (number, index)
                place = decode_message_id((await send(client, body)).ext_fields()["msgId"])[1]
                header = ConsumerSendMsgBackRequestHeader(
                    offset=place, group="c", delay_level=1 + index % 2, max_reconsume_times=16
                )
                given_ms[body] = time.time() * 1000
                answer = await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)
                assert answer.code == 0, answer.remark
            await asyncio.sleep(0.5 * number)
        await stop(process, signal.SIGKILL)
    process, address = await broker(tmp_path)
    async with await RawClient.open(address) as client:
        found = await _until_all(client, set(given_ms), "%RETRY%c")
    await stop(process)
    for body, (times, stored_ms) in found.items():
        assert times == 1
        assert stored_ms - given_ms[body] >= 1000 * (1 + int(body.split(b"-")[1]) % 2) - 5, body


async def _until_all(client: RawClient, bodies: set[bytes], topic: str = "T") -> dict[bytes, tuple[int, int]]:
    """How often each came back, and when it was stored in its own queue, the first time; after a kill that
    may happen again.
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


async def test_transactions_survive_kills(tmp_path: Path) -> None:
    """A killed broker would forget open transactions, ask about ended ones, or deliver twice."""
    committed: set[bytes] = set()
    open_ones: set[bytes] = set()
    for number in range(ROUNDS):
        process, address = await broker(tmp_path)
        async with await RawClient.open(address) as client:
            for index in range(12):
                body = b"%d-%d" % (number, index)
                header = await half(client, body, group="nobody")
                if index % 3 == 2:
                    open_ones.add(body)
                    continue
                header.commit_or_rollback = (COMMIT, ROLLBACK)[index % 3]
                oneway(client, RequestCode.END_TRANSACTION, header)
                if index % 3 == 0:
                    committed.add(body)
            await records(client)  # answered after the ends before it are written
        await stop(process, signal.SIGKILL)
    process, address = await broker(tmp_path)
    async with await RawClient.open(address) as asked, await RawClient.open(address) as client:
        assert sorted(one.body for one in await records(client)) == sorted(committed)
        await produce_as(asked, "nobody")
        while open_ones:
            body = await _answer_question(asked)
            open_ones.remove(body)  # KeyError: asked about one that had ended
            committed.add(body)
        found = await arrive(client, len(committed))
        assert {one.body for one in found} == committed
    await stop(process)


async def _answer_question(client: RawClient) -> bytes:
    """Commit the transaction that the broker asks about next; returns its body."""
    question = await client.next()
    asked = question.header_as(CheckTransactionStateRequestHeader)
    answer = EndTransactionRequestHeader(
        producer_group="nobody",
        tran_state_table_offset=asked.tran_state_table_offset,
        commit_log_offset=asked.commit_log_offset,
        commit_or_rollback=COMMIT,
        msg_id=asked.msg_id or "",
        from_transaction_check=True,
    )
    oneway(client, RequestCode.END_TRANSACTION, answer)
    return decode(question.body).body
