"""Request-reply compared with the recorded bytes of a Java pair (QUIRKS 30), and requests without a reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rocketpy import Message, MessageExt, MessageQueue, Outcome, Producer, create_reply_message
from rocketpy.errors import (
    BrokerError,
    ClientClosed,
    MessageInvalid,
    RemoteProtocolError,
    ReplyTimeout,
    RequestTimeout,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import ReplyMessageRequestHeader, SendMessageRequestHeaderV2
from rocketpy.protocol.message.properties import decode
from rocketpy.protocol.message.record import Record, host_bytes
from rocketpy.protocol.remoting.command import Command
from tests.golden_data import requests
from tests.integration.sdk_peers import Names, Peer, Script, refuses, silent, stored
from tests.waiting import until

MESSAGE = Message("GoldenRequest", b"question 1", tags="TagR", keys="KR")


def request_message(**properties: str) -> MessageExt:
    """A request as a consumer gets it."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    host = host_bytes("127.0.0.1", 1)
    record = Record(
        topic="T", queue_id=0, flag=0, queue_offset=0, physical_offset=0, sys_flag=0, born_timestamp=0,
        born_host=host, store_timestamp=0, store_host=host, reconsume_times=0, prepared_transaction_offset=0,
        body=b"?", properties=text.encode(),
    )  # fmt: skip
    return MessageExt(record, MessageQueue("T", "broker-a", 0), b"?")


@asynccontextmanager
async def running(script: Script | None = None) -> AsyncIterator[tuple[Producer, Peer]]:
    """A producer and the broker of its topics."""
    async with Peer(script) as broker, Names() as names:
        names.routes["GoldenRequest"] = {"broker-a": broker.address}
        names.routes["GoldenCluster_REPLY_TOPIC"] = {"broker-a": broker.address}
        async with Producer("golden_req_p", names.address) as producer:
            yield producer, broker


async def push_recorded(
    broker: Peer, correlation_id: str, *, newer: bool = False, sys_flag: int = 0, host: str = ""
) -> Command:
    """Push the reply of the recording, for another request; return the client's response.

    newer: as a broker of 4.9 writes the properties, without a separator at their end. sys_flag: bits to add.
    host: of requester and broker, instead of those of the recording.
    """
    push = requests("json-rpc", RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)[0]
    header = push.header_as(ReplyMessageRequestHeader)
    properties = decode(header.properties or "")
    header.properties = (header.properties or "").replace(properties["CORRELATION_ID"], correlation_id)
    header.sys_flag |= sys_flag
    if host:
        header.born_host = header.store_host = host
    if newer:
        header.properties = header.properties.rstrip("\x02")
    command = Command.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, push.body)
    return await broker.channels[0].request(command, 5000)


async def test_a_request_is_that_of_a_java_producer() -> None:
    """A Java replier could not reply to a Python requester."""
    async with running() as (producer, broker):
        asking = asyncio.create_task(producer.request(MESSAGE, timeout_ms=5000))
        await broker.until(lambda: len(broker.sends) == 1)
        assert broker.seen[0].code == RequestCode.HEART_BEAT
        header = broker.sends[0].header_as(SendMessageRequestHeaderV2)
        ours = decode(header.properties or "")
        response = await push_recorded(broker, ours["CORRELATION_ID"])
        reply = await asking
    golden = requests("json-rpc", RequestCode.SEND_MESSAGE_V2)[0].header_as(SendMessageRequestHeaderV2)
    java = decode(golden.properties or "")
    changing = dict.fromkeys(("UNIQ_KEY", "CORRELATION_ID", "REPLY_TO_CLIENT"), "")
    assert {**ours, **changing} == {**java, **changing}
    assert (broker.sends[0].code, header.sys_flag, header.batch) == (310, 0, False)
    assert response.code == ResponseCode.SUCCESS
    assert (reply.body, reply.topic) == (b"reply to question 1", "GoldenCluster_REPLY_TOPIC")
    assert reply.born_host == ("127.0.0.1", 57074)
    assert reply.store_host == ("127.0.0.1", 20010)
    assert {"ARRIVE_TIME", "PUSH_REPLY_TIME", "MSG_TYPE"} <= set(reply.properties)


async def test_a_reply_from_a_newer_broker() -> None:
    """With a broker of 4.9 a reply would be dropped, as its last property would run into the next one."""
    async with running() as (producer, broker):
        asking = asyncio.create_task(producer.request(MESSAGE, timeout_ms=5000))
        await broker.until(lambda: len(broker.sends) == 1)
        properties = decode(broker.sends[0].header_as(SendMessageRequestHeaderV2).properties or "")
        await push_recorded(broker, properties["CORRELATION_ID"], newer=True)
        assert (await asking).correlation_id == properties["CORRELATION_ID"]


async def test_a_reply_has_its_push_time_and_broker() -> None:
    """A requester could not see how long a reply was in transit, and where the replier's broker is."""
    async with running() as (producer, broker):
        before = time.time_ns() // 1_000_000
        asking = asyncio.create_task(producer.request(MESSAGE, timeout_ms=10_000))
        await broker.until(lambda: len(broker.sends) == 1)
        asked = decode(broker.sends[0].header_as(SendMessageRequestHeaderV2).properties or "")
        await push_recorded(broker, asked["CORRELATION_ID"], host=f"/{broker.address.removeprefix('tcp://')}")
        reply = await asking
        after = time.time_ns() // 1_000_000
    assert before <= int(reply.properties["ARRIVE_TIME"]) <= after
    assert reply.queue.broker_name == "broker-a"


async def test_a_reply_through_a_broker_without_an_ip_address() -> None:
    """A reply by way of a broker in the same process would never be found."""
    async with running() as (producer, broker):
        asking = asyncio.create_task(producer.request(MESSAGE, timeout_ms=10_000))
        await broker.until(lambda: len(broker.sends) == 1)
        asked = decode(broker.sends[0].header_as(SendMessageRequestHeaderV2).properties or "")
        await push_recorded(broker, asked["CORRELATION_ID"], host="memory://broker")
        reply = await asking
    assert reply.body == b"reply to question 1"
    assert reply.store_host[1] == 0


async def test_a_reply_that_cannot_be_decoded() -> None:
    """A requester would wait for its timeout, and get the error that no reply arrived."""
    async with running() as (producer, broker):
        asking = asyncio.create_task(producer.request(MESSAGE, timeout_ms=3_600_000))
        await broker.until(lambda: len(broker.sends) == 1)
        properties = decode(broker.sends[0].header_as(SendMessageRequestHeaderV2).properties or "")
        response = await push_recorded(broker, properties["CORRELATION_ID"], sys_flag=1)
        with pytest.raises(
            RemoteProtocolError, match="cannot be decoded: 19 bytes are not a zlib"
        ) as failure:
            await asking
    assert (response.code, failure.value.outcome) == (ResponseCode.SUCCESS, Outcome.STORED)


async def test_a_reply_is_that_of_a_java_consumer() -> None:
    """A Java requester would never get a Python replier's reply."""
    golden = requests("json-rpc", RequestCode.SEND_REPLY_MESSAGE_V2)[0]
    header = golden.header_as(SendMessageRequestHeaderV2)
    java = decode(header.properties or "")
    names = ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")
    request = request_message(CLUSTER="GoldenCluster", **{name: java[name] for name in names})
    async with running(_stored_reply) as (producer, broker):
        await producer.send(create_reply_message(request, golden.body))
        (sent,) = broker.requests(RequestCode.SEND_REPLY_MESSAGE_V2)
    ours = sent.header_as(SendMessageRequestHeaderV2)
    assert (ours.topic, sent.body) == (header.topic, golden.body)
    properties = decode(ours.properties or "")
    del properties["WAIT"]  # which Java leaves out here, and which means the same as true
    assert {**properties, "UNIQ_KEY": ""} == {**java, "UNIQ_KEY": ""}


def _stored_reply(_channel: object, request: Command) -> Command:
    if request.code != RequestCode.SEND_REPLY_MESSAGE_V2:
        return stored(request)
    request.code = RequestCode.SEND_MESSAGE_V2
    response = stored(request)
    request.code = RequestCode.SEND_REPLY_MESSAGE_V2
    return response


async def test_a_request_without_a_reply() -> None:
    """A requester could not distinguish a request that is being handled from one that was never sent."""
    async with running() as (producer, _broker):
        await producer.send(MESSAGE)  # the route and the connection are there: the time is the reply's
        with pytest.raises(ReplyTimeout, match=r"is stored in .* but no reply came within 500 ms") as caught:
            await producer.request(MESSAGE, timeout_ms=500)
        assert caught.value.outcome is Outcome.STORED
    async with running(silent) as (producer, _broker):
        with pytest.raises(RequestTimeout) as silence:
            await producer.request(MESSAGE, timeout_ms=200)
        assert silence.value.outcome is Outcome.UNKNOWN
    async with running(refuses(ResponseCode.MESSAGE_ILLEGAL)) as (producer, _broker):
        with pytest.raises(BrokerError) as refused:
            await producer.request(MESSAGE, timeout_ms=5000)
        assert refused.value.outcome is Outcome.NOT_SENT


async def test_a_late_reply_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """The broker would think the client broken, or the reply would reach another request."""
    async with running() as (producer, broker):
        asking = asyncio.create_task(producer.request(MESSAGE, timeout_ms=60_000))
        await broker.until(lambda: len(broker.sends) == 1)
        properties = decode(broker.sends[0].header_as(SendMessageRequestHeaderV2).properties or "")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        response = await push_recorded(broker, properties["CORRELATION_ID"])
    assert response.code == ResponseCode.SUCCESS
    dropped = f"dropped a reply with correlation id {properties['CORRELATION_ID']} from /127.0.0.1:57074"
    assert dropped in caplog.text


@pytest.mark.parametrize("outcome", [Outcome.STORED, Outcome.UNKNOWN])
async def test_closing_ends_the_wait(outcome: Outcome) -> None:
    """A program that stops would wait for a reply that cannot arrive, or send a stored request again."""
    async with running(None if outcome is Outcome.STORED else silent) as (producer, broker):
        future = producer.request_nowait(MESSAGE, timeout_ms=60_000)
        await broker.until(lambda: len(broker.sends) == 1)
        if outcome is Outcome.STORED:
            await until(lambda: producer.health().in_flight == 0)
            for _ in range(3):  # until the task of the send has its result
                await asyncio.sleep(0)
        await producer.close(0)
        with pytest.raises(ClientClosed, match="before a reply came") as closed:
            await future
        assert closed.value.outcome is outcome


async def test_cancelling_a_request() -> None:
    """A cancelled request would leave state behind that breaks the next one."""
    async with running() as (producer, broker):
        asking = asyncio.create_task(producer.request(MESSAGE, timeout_ms=60_000))
        await broker.until(lambda: len(broker.sends) == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert asking.cancelled()
        assert producer.health().ok
        again = asyncio.create_task(producer.request(MESSAGE, timeout_ms=5000))
        await broker.until(lambda: len(broker.sends) == 2)
        properties = decode(broker.sends[1].header_as(SendMessageRequestHeaderV2).properties or "")
        await push_recorded(broker, properties["CORRELATION_ID"])
        assert (await again).body == b"reply to question 1"


@pytest.mark.parametrize("missing", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"])
def test_only_requests_get_responses(missing: str) -> None:
    """A reply would be sent although no request waits for it."""
    properties = dict.fromkeys(("CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"), "x")
    assert create_reply_message(request_message(**properties), b"r").topic == "x_REPLY_TOPIC"
    del properties[missing]
    with pytest.raises(MessageInvalid, match=f"has no {missing}"):
        create_reply_message(request_message(**properties), b"r")


async def test_a_reply_in_a_batch_is_rejected() -> None:
    """A reply sent in a batch would be stored as a message, and never reach the requester."""
    properties = dict.fromkeys(("CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"), "x")
    reply = create_reply_message(request_message(**properties), b"r")
    async with running() as (producer, _broker):
        with pytest.raises(MessageInvalid, match="replies are sent individually"):
            await producer.send_batch([reply])
