"""Messages that cannot be decoded, with rocketpy's servers; the cases are in tests/mqconsumer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from rocketpy import MessageQueue, PullConsumer, PushConfig, PushConsumer
from rocketpy.consumer.fetch import puller
from rocketpy.consumer.handling import concurrent as consuming
from rocketpy.protocol.bodies import (
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetResponseHeader,
    SendMessageRequestHeaderV2,
)
from rocketpy.protocol.message.record import encode_record, host_bytes
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.raw_client import RawClient
from tests.integration.sdk_peers import Names, Peer, stored
from tests.mqconsumer import undecodable
from tests.mqconsumer.group import BROKER_SETTINGS, Seen, group, pushing, until
from tests.mqproducer.place import Place

HOST = host_bytes("127.0.0.1", 10911)
PAUSE_S = 0.02
"""Shortest pause after a pull that failed, in the test that measures pauses."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The broker's store."""
    return tmp_path / "store"


@pytest.fixture
async def place(store: Path) -> AsyncIterator[Place]:
    """A name server and a broker of rocketpy."""
    async with EmbeddedCluster(store, settings=BROKER_SETTINGS) as cluster:
        yield Place(cluster.namesrv_address)


globals().update(undecodable.CASES)


class Damaged(Peer):
    """A broker whose only queue has two valid records and one without its magic number.

    heal: restores the magic number. pulls: time (s) and offset of each pull.
    """

    def __init__(self) -> None:
        super().__init__(self.respond)
        self.client_id = ""
        self.pulls: list[tuple[float, int]] = []
        self.records = [
            encode_record(b"T", 0, 0, at, 1000 + at, 0, 1, HOST, 2, HOST, 0, 0, b"message %d" % at, b"")
            for at in range(3)
        ]
        self.good = self.records[2]
        self.records[2] = self.good[:4] + bytes(4) + self.good[8:]

    def heal(self) -> None:
        self.records[2] = self.good

    def respond(self, channel: Channel, request: Command) -> Command | None:
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            members = GetConsumerListByGroupResponseBody(consumer_id_list=[self.client_id])
            return request.reply(body=members.encode())
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return request.reply(header=QueryConsumerOffsetResponseHeader(offset=0))
        if request.code == RequestCode.PULL_MESSAGE:
            return self.pulled(channel, request)
        return request.reply()

    def pulled(self, channel: Channel, request: Command) -> Command | None:
        header = request.header_as(PullMessageRequestHeader)
        if header.topic != "T" or header.queue_offset >= len(self.records):
            channel.exclude_from_unanswered()
            return None
        self.pulls.append((time.monotonic(), header.queue_offset))
        response_header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=len(self.records), min_offset=0, max_offset=3
        )
        return request.reply(header=response_header, body=b"".join(self.records[header.queue_offset :]))

    def pauses(self) -> list[float]:
        """Between the pulls that began at the damaged record, in s."""
        times = [at for at, offset in self.pulls if offset == 2]
        return [after - before for before, after in pairwise(times)]


async def test_a_record_without_a_length(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue would stop without a report, be pulled without a pause, or lose good messages."""
    monkeypatch.setattr(puller, "_PAUSE_MIN_S", PAUSE_S)
    seen = Seen()
    async with Damaged() as broker, Names(T={"a": broker.address}) as names:
        names.queues = 1
        consumer = PushConsumer("g", names.address, seen, config=PushConfig(rebalance_interval_ms=10))
        consumer.subscribe("T")
        async with consumer:
            broker.client_id = consumer.health().client_id
            await until(lambda: len(broker.pauses()) >= 3)
            assert seen.bodies == [b"message 0", b"message 1"]
            (problem,) = consumer.health().problems
            assert "cannot be read from offset 2: record at 0: magic 0x00000000" in problem
            broker.heal()
            await seen.until(b"message 2")
            await until(lambda: consumer.health().ok)
            await until(lambda: consumer.progress()[MessageQueue("T", "a", 0)] == 3)
    assert all(pause >= PAUSE_S * 2**number for number, pause in enumerate(broker.pauses()[:3]))
    logged = [record for record in caplog.records if "cannot be read from offset 2" in record.getMessage()]
    assert [record.levelno for record in logged] == [logging.ERROR]


class Refusing(Damaged):
    """A broker with one message that cannot be decompressed.

    It rejects send-backs, and the first send of a copy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.records = [
            encode_record(b"T", 0, 0, 0, 1000, 0x101, 1, HOST, 2, HOST, 0, 0, b"not LZ4", b"TAGS\x01t\x02")
        ]

    def respond(self, channel: Channel, request: Command) -> Command | None:
        if request.code == RequestCode.CONSUMER_SEND_MSG_BACK or self.sends == [request]:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="no")
        if request.code == RequestCode.SEND_MESSAGE_V2:
            return stored(request)
        if request.code == RequestCode.LOCK_BATCH_MQ:
            wanted = LockBatchRequestBody.decode(request.body).mq_set
            return request.reply(body=LockBatchResponseBody(lock_ok_mq_set=wanted).encode())
        return super().respond(channel, request)


async def test_an_operator_sends_an_undecodable_message_to_a_consumer(place: Place) -> None:
    """The consumeMessage of mqadmin would hand raw bytes to the handler."""
    topic = await undecodable.mixed(place, "direct", {b"not zlib": 1})
    seen, name = Seen(), group("direct")
    async with (
        PullConsumer(group("direct"), place.namesrv) as reader,
        pushing(place, topic, seen, "no such tag", name=name) as consumer,
    ):
        (queue,) = await reader.fetch_queues(topic)
        (message,) = (await reader.pull(queue, 3, 1)).messages
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=name,
            client_id=consumer.member.client.client_id,
            msg_id=message.offset_message_id,
            broker_name=queue.broker_name,
        )
        address = "{}:{}".format(*message.store_host)
        async with await RawClient.open(address) as client:
            response = await client.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    assert (response.code, seen.bodies) == (ResponseCode.SYSTEM_ERROR, [])
    assert "the message cannot be decoded: 8 bytes are not a zlib stream" in (response.remark or "")


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_copy_keeps_its_type(monkeypatch: pytest.MonkeyPatch, orderly: bool) -> None:
    """A message that a broker rejected would be copied as a valid one, or passed to the handler."""
    monkeypatch.setattr(consuming, "_LOCAL_RETRY_S", 0.05)
    seen = Seen()
    async with Refusing() as broker, Names(T={"a": broker.address}) as names:
        names.routes["%RETRY%g"] = {"a": broker.address}
        names.queues = 1
        config = PushConfig(rebalance_interval_ms=10, orderly=orderly, suspend_ms=10, max_reconsume_times=3)
        consumer = PushConsumer("g", names.address, seen, config=config)
        consumer.subscribe("T")
        async with consumer:
            broker.client_id = consumer.health().client_id
            await until(lambda: len(broker.sends) == 2)
            await until(lambda: consumer.progress()[MessageQueue("T", "a", 0)] == 1)
    headers = [copy.header_as(SendMessageRequestHeaderV2) for copy in broker.sends]
    for header, copy in zip(headers, broker.sends, strict=True):
        assert (header.sys_flag, copy.body, header.topic) == (0x101, b"not LZ4", "%RETRY%g")
    # An orderly consumer's copy must become a dead letter at once: in 5.x only above the maximum retries.
    assert [header.reconsume_times for header in headers] == ([4, 4] if orderly else [1, 2])
    assert seen.bodies == []


async def test_a_close_does_not_wait_to_handle_a_message_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a program would be delayed by seconds, although no handler is called any more."""
    monkeypatch.setattr(consuming, "_LOCAL_RETRY_S", 3600.0)
    async with Refusing() as broker, Names(T={"a": broker.address}) as names:
        names.routes["%RETRY%g"] = {"a": broker.address}
        names.queues = 1
        config = PushConfig(rebalance_interval_ms=10, close_timeout_ms=30_000)
        consumer = PushConsumer("g", names.address, Seen(), config=config)
        consumer.subscribe("T")
        async with consumer:
            broker.client_id = consumer.health().client_id
            await until(lambda: "could not be sent back; this member handles it again" in caplog.text)
            async with asyncio.timeout(10):
                await consumer.close()
