"""Messages that are stored, but less durably than configured: counted, logged, and an error if asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from rocketpy import (
    AdminClient,
    Later,
    LocalTransactionState,
    Message,
    MessageExt,
    Outcome,
    Producer,
    ProducerConfig,
    SendResult,
    SendStatus,
    create_reply_message,
    sync,
)
from rocketpy.config import BatchConfig, RetryConfig
from rocketpy.errors import NotDurable
from rocketpy.hooks import SendEvent
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_groups import SETTINGS, Seen, consuming
from tests.integration.sdk_peers import Names, Peer, stored
from tests.waiting import until

STRICT = ProducerConfig(require_send_ok=True)


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """A broker that should copy each message to a slave, but has none."""
    async with EmbeddedCluster(settings=SETTINGS | {"brokerRole": "SYNC_MASTER"}) as cluster:
        yield cluster


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "rocketpy.producer"]


async def send_nowait(producer: Producer) -> Sequence[object]:
    ending = [producer.send_nowait(Message("T", str(number).encode())) for number in range(5)]
    return await asyncio.gather(*ending, return_exceptions=True)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_DISK_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_NOT_AVAILABLE),
    ],
)
async def test_statuses_are_counted_and_logged_once_in_a_while(
    code: int, status: SendStatus, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker lost its slave, and a thousand sends that nobody checked were on one disk for days."""
    broker = await Peer(lambda _channel, request: stored(request, code=code)).start()
    async with Names(T={"b": broker.address}) as names, Producer("g", names.address) as producer:
        results = [await producer.send(Message("T", b"x")) for _ in range(20)]
        results += await producer.send_batch([Message("T", b"x")] * 3)
        results += [result for result in await send_nowait(producer) if isinstance(result, SendResult)]
        assert [result.status for result in results] == [status] * 28
        assert producer.health().less_durable == 28
        assert producer.health().ok
    (line,) = warnings(caplog)
    assert line.startswith(f"broker b stored a message of topic T with {status.name} instead of SEND_OK: ")
    await broker.close()


async def test_send_ok_is_neither_counted_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Healthy producers would warn."""
    async with (
        EmbeddedCluster(settings=SETTINGS) as cluster,
        Producer("g", cluster.namesrv_address, config=STRICT) as producer,
    ):
        assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK
        assert len(await producer.send_batch([Message("T", b"x")] * 3)) == 3
        producer.send_oneway(Message("T", b"x"))
        await producer.flush()
        assert producer.health().less_durable == 0
    assert warnings(caplog) == []


async def test_a_producer_may_require_send_ok(cluster: EmbeddedCluster) -> None:
    """Each caller had to compare the status, and those who forgot lost messages with the broker."""
    async with Producer("g", cluster.namesrv_address, config=STRICT) as producer:
        with pytest.raises(NotDurable, match="SLAVE_NOT_AVAILABLE instead of SEND_OK") as raised:
            await producer.send(Message("T", b"single"))
        assert raised.value.outcome is Outcome.STORED
        (result,) = raised.value.results
        assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
        errors = await send_nowait(producer)
        ids = [error.results[0].message_id for error in errors if isinstance(error, NotDurable)]
        assert len(set(ids)) == 5  # each message of a batch has a result of its own
        producer.send_oneway(Message("T", b"oneway"))  # its status is never known
        await producer.flush()
        assert producer.health().in_flight == 0


async def test_a_batch_of_several_requests_is_sent_to_its_end(cluster: EmbeddedCluster) -> None:
    """BatchIncomplete would say that messages are not sent, which are stored."""
    config = ProducerConfig(require_send_ok=True, batch=BatchConfig(max_bytes=1000))
    async with Producer("g", cluster.namesrv_address, config=config) as producer:
        with pytest.raises(NotDurable, match="10 messages stored") as raised:
            await producer.send_batch([Message("T", bytes(300)) for _ in range(10)])
        assert len({result.message_id for result in raised.value.results}) == 10


async def test_attempts_at_other_brokers_come_first() -> None:
    """With both settings, a message that another broker has stored well would be an error."""
    bad = await Peer(lambda _channel, request: stored(request, code=ResponseCode.SLAVE_NOT_AVAILABLE)).start()
    good = await Peer(lambda _channel, request: stored(request)).start()
    retry = RetryConfig(another_broker_when_not_ok=True, pause_ms=0)
    config = ProducerConfig(require_send_ok=True, retry=retry)
    async with (
        Names(T={"bad": bad.address, "good": good.address}) as names,
        Producer("g", names.address, config=config) as producer,
    ):
        results = [await producer.send(Message("T", b"x")) for _ in range(4)]
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        assert producer.health().less_durable > 0
    async with (
        Names(T={"bad": bad.address}) as names,
        Producer("g", names.address, config=config) as producer,
    ):
        with pytest.raises(NotDurable) as raised:
            await producer.send(Message("T", b"x"))
        assert producer.health().less_durable == 1 + retry.times
        assert raised.value.results[0].status is SendStatus.SLAVE_NOT_AVAILABLE
    for broker in (bad, good):
        await broker.close()


async def test_a_transaction_is_rolled_back_and_raises(cluster: EmbeddedCluster) -> None:
    """The local transaction would commit, though the message may be lost."""
    called = []

    def work(message: Message) -> LocalTransactionState:
        called.append(message)
        return LocalTransactionState.COMMIT

    def check(_message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.ROLLBACK

    async with Producer("g", cluster.namesrv_address, config=STRICT) as producer:
        with pytest.raises(NotDurable) as raised:
            await producer.send_in_transaction(Message("T", b"x"), local_transaction=work, check=check)
        assert raised.value.outcome is Outcome.NOT_SENT
    assert called == []
    with_threads = sync.Producer("g", cluster.namesrv_address, config=STRICT)
    await asyncio.to_thread(with_threads.start)
    with pytest.raises(NotDurable):
        await asyncio.to_thread(
            lambda: with_threads.send_in_transaction(Message("T", b"x"), local_transaction=work, check=check)
        )
    with pytest.raises(NotDurable):
        await asyncio.to_thread(with_threads.send, Message("T", b"x"))
    await asyncio.to_thread(with_threads.close)
    assert called == []


async def test_a_request_gets_its_reply_whatever_its_status(cluster: EmbeddedCluster) -> None:
    """A call that a consumer has answered would be an error."""
    name = cluster.namesrv_address
    async with Producer("replies", name) as answering:

        async def answer(request: MessageExt) -> None:
            await answering.send(create_reply_message(request, b"pong"))

        async with consuming(cluster, answer), Producer("g", name, config=STRICT) as producer:
            reply = await producer.request(Message("T", b"ping"), timeout_ms=60_000)
            assert reply.body == b"pong"


async def test_listeners_see_the_error_that_the_caller_gets(cluster: EmbeddedCluster) -> None:
    """Traces and metrics would show a success."""
    ends: list[object] = []

    class Listener:
        def started(self, event: SendEvent) -> None: ...

        def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
            ends.append(results)

        def failed(self, event: SendEvent, error: BaseException) -> None:
            ends.append(error)

    async with Producer("g", cluster.namesrv_address, config=STRICT, listeners=[Listener()]) as producer:
        with pytest.raises(NotDurable):
            await producer.send(Message("T", b"x"))
        await send_nowait(producer)
        with pytest.raises(NotDurable):
            await producer.send_batch([Message("T", b"x")] * 2)
    assert [type(end) for end in ends] == [NotDurable] * 7


async def test_copies_of_failed_messages_are_logged(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A retry or a resent dead letter would be on one disk only, and nobody hear of it."""
    (broker,) = cluster.brokers
    del broker._endpoint._handlers[RequestCode.CONSUMER_SEND_MSG_BACK]  # so the consumer sends copies
    failing = Seen(lambda _message: Later(delay_level=-1))
    async with (
        Producer("g", cluster.namesrv_address) as producer,
        AdminClient(cluster.namesrv_address) as admin,
        consuming(cluster, failing, max_reconsume_times=0),
    ):
        await producer.send(Message("T", b"x"))
        await until(lambda: broker.store.max_offset_in_queue("%DLQ%g", 0) == 1)
        lines = await lines_about(caplog, "%RETRY%g")
        assert lines[0].startswith(
            "broker broker-a stored a message of topic %RETRY%g with SLAVE_NOT_AVAILABLE"
        )
        (dead,) = [message async for message in admin.dead_letters.read("g")]
        assert (await admin.dead_letters.resend(dead)).status is SendStatus.SLAVE_NOT_AVAILABLE
        assert len(await lines_about(caplog, "%RETRY%g")) == 2


async def lines_about(caplog: pytest.LogCaptureFixture, topic: str) -> list[str]:
    """The warnings about messages of a topic, once there are some."""

    def found() -> list[str]:
        return [line for line in warnings(caplog) if f"of topic {topic} " in line]

    await until(found)
    return found()
