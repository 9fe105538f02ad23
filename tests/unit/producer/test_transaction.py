"""Transactions beside the recorded bytes of a Java producer (QUIRKS 27), and when something fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from rocketpy import ClientConfig, LocalTransactionState, Message, MessageExt, Producer, SendStatus
from rocketpy.client.instance import ClientInstance
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rocketpy.protocol.message.message_id import message_id
from rocketpy.protocol.message.properties import decode
from rocketpy.protocol.message.record import host_bytes
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from tests.golden_data import requests
from tests.integration.sdk_peers import Names, Peer
from tests.waiting import until

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT,
    LocalTransactionState.ROLLBACK,
    LocalTransactionState.UNKNOWN,
)
OFFSET_ID = "7F00000100004E2A0000000000000BCF"  # 3023, as in the recording
MESSAGE = Message("GoldenTopic", b"x", tags="TagTxC", keys="TXC")


def says(state: LocalTransactionState) -> Callable[[Message], LocalTransactionState]:
    """A local transaction that returns this state."""
    return lambda _: state


class Broker(Peer):
    """Responds to half messages as the recorded broker did, or with another code."""

    def __init__(self, code: int = 0) -> None:
        super().__init__(self.respond)
        self.code = code
        self.offset_id = OFFSET_ID

    def respond(self, channel: Channel, request: Command) -> Command:
        if request.code != RequestCode.SEND_MESSAGE_V2:
            return request.reply()
        return request.reply(
            self.code, header=SendMessageResponseHeader(msg_id=self.offset_id, queue_id=0, queue_offset=5)
        )

    async def ends(self, count: int = 1) -> list[EndTransactionRequestHeader]:
        """Wait for this number of ends of transactions."""
        await self.until(lambda: len(self.requests(RequestCode.END_TRANSACTION)) >= count)
        return [
            request.header_as(EndTransactionRequestHeader)
            for request in self.requests(RequestCode.END_TRANSACTION)
        ]


@asynccontextmanager
async def running(code: int = 0, group: str = "golden_tx_producer") -> AsyncIterator[tuple[Producer, Broker]]:
    """A producer and the broker of its topic."""
    async with Broker(code) as broker, Names() as names:
        names.routes["GoldenTopic"] = {"broker-a": broker.address}
        async with Producer(group, names.address) as producer:
            yield producer, broker


async def test_requests_equal_those_of_a_java_producer() -> None:
    """A RocketMQ broker would store the half message as an ordinary one, or never find it."""
    async with running() as (producer, broker):
        for state in (COMMIT, ROLLBACK, UNKNOWN):
            await producer.send_in_transaction(
                MESSAGE,
                local_transaction=says(state),
                check=lambda _: UNKNOWN,
            )
        ends = await broker.ends(3)
        half = broker.sends[0].header_as(SendMessageRequestHeaderV2)
    theirs = requests("json-producer", RequestCode.SEND_MESSAGE_V2)
    golden = next(
        header
        for command in theirs
        if "TRAN_MSG" in ((header := command.header_as(SendMessageRequestHeaderV2)).properties or "")
    )
    assert (half.sys_flag, half.batch, half.producer_group) == (golden.sys_flag, False, golden.producer_group)
    ours, java = decode(half.properties or ""), decode(golden.properties or "")
    assert {**ours, "UNIQ_KEY": ""} == {**java, "UNIQ_KEY": ""}
    java_ends = [command.header_as(EndTransactionRequestHeader) for command in requests("json-producer", 37)]
    assert [end.commit_or_rollback for end in ends] == [end.commit_or_rollback for end in java_ends[:3]]
    assert ends[0].ext_fields() == {
        **java_ends[0].ext_fields(),
        "msgId": ours["UNIQ_KEY"],
        "tranStateTableOffset": "5",
    }


async def test_a_recorded_check_gets_the_response_of_java() -> None:
    """The broker would never learn how a transaction ended, or apply the decision to another copy."""
    (asked,) = requests("json-producer", RequestCode.CHECK_TRANSACTION_STATE)
    expected = requests("json-producer", RequestCode.END_TRANSACTION)[3].header_as(
        EndTransactionRequestHeader
    )
    seen: list[MessageExt] = []

    def check(half: MessageExt) -> LocalTransactionState:
        seen.append(half)
        return COMMIT

    async with running() as (producer, broker):
        producer.check_transactions(check)
        await producer.send(Message("GoldenTopic", b"x"))
        header = asked.header_as(CheckTransactionStateRequestHeader)
        broker.channels[0].oneway(Command.request(RequestCode.CHECK_TRANSACTION_STATE, header, asked.body))
        (end,) = await broker.ends()
        (request,) = broker.requests(RequestCode.END_TRANSACTION)
    assert request.is_oneway
    assert end == expected
    assert (seen[0].topic, seen[0].keys, seen[0].queue.broker_name) == ("GoldenTopic", ("TXU",), "broker-a")
    assert seen[0].transaction_id == expected.transaction_id


async def test_a_check_that_fails_leaves_it_open(caplog: pytest.LogCaptureFixture) -> None:
    """While its database is unavailable, a producer would commit or roll back without knowing the state."""
    (asked,) = requests("json-producer", RequestCode.CHECK_TRANSACTION_STATE)

    async def check(_half: MessageExt) -> LocalTransactionState:
        raise OSError("the database is away")

    async with running() as (producer, broker):
        producer.check_transactions(check)
        await producer.send(Message("GoldenTopic", b"x"))
        header = asked.header_as(CheckTransactionStateRequestHeader)
        broker.channels[0].oneway(Command.request(RequestCode.CHECK_TRANSACTION_STATE, header, asked.body))
        (end,) = await broker.ends()
        assert end.commit_or_rollback == 0
        assert "the database is away" in (broker.requests(RequestCode.END_TRANSACTION)[0].remark or "")
        assert producer.health().ok
    assert "the broker will check the transaction later" in caplog.text


async def test_a_check_that_waited_for_something_cancelled() -> None:
    """A cancelled task of the application would fail the client, and the broker would get no result."""
    (asked,) = requests("json-producer", RequestCode.CHECK_TRANSACTION_STATE)

    async def check(_half: MessageExt) -> LocalTransactionState:
        query = asyncio.ensure_future(asyncio.sleep(60))
        query.cancel()
        await query
        return COMMIT

    async with running() as (producer, broker):
        producer.check_transactions(check)
        await producer.send(Message("GoldenTopic", b"x"))
        header = asked.header_as(CheckTransactionStateRequestHeader)
        broker.channels[0].oneway(Command.request(RequestCode.CHECK_TRANSACTION_STATE, header, asked.body))
        (end,) = await broker.ends()
        assert end.commit_or_rollback == 0
        assert producer.health().ok


async def test_a_check_of_a_message_that_cannot_be_decoded(caplog: pytest.LogCaptureFixture) -> None:
    """A check would decide by bytes that are not the message."""
    (asked,) = requests("json-producer", RequestCode.CHECK_TRANSACTION_STATE)
    compressed = asked.body[:39] + b"\x01" + asked.body[40:]
    async with running() as (producer, broker):
        producer.check_transactions(lambda _: COMMIT)
        await producer.send(Message("GoldenTopic", b"x"))
        header = asked.header_as(CheckTransactionStateRequestHeader)
        broker.channels[0].oneway(Command.request(RequestCode.CHECK_TRANSACTION_STATE, header, compressed))
        await producer.send(Message("GoldenTopic", b"its end comes after the check"))
        assert broker.requests(RequestCode.END_TRANSACTION) == []
    assert "topic GoldenTopic, broker broker-a" in caplog.text
    assert "cannot be decoded" in caplog.text


async def test_a_check_for_another_group_is_left_to_others(caplog: pytest.LogCaptureFixture) -> None:
    """A check function would be called for transactions of other producers."""
    (asked,) = requests("json-producer", RequestCode.CHECK_TRANSACTION_STATE)
    async with running(group="others") as (producer, broker):
        producer.check_transactions(lambda _: COMMIT)
        await producer.send(Message("GoldenTopic", b"x"))
        header = asked.header_as(CheckTransactionStateRequestHeader)
        broker.channels[0].oneway(Command.request(RequestCode.CHECK_TRANSACTION_STATE, header, asked.body))
        await producer.send(Message("GoldenTopic", b"its end comes after the check"))
        assert "golden_tx_producer, which has no check in this client" in caplog.text
        assert broker.requests(RequestCode.END_TRANSACTION) == []


async def test_a_half_message_that_may_be_lost_is_rolled_back() -> None:
    """The local work would be done although the broker may lose its message."""
    called: list[Message] = []

    def local(half: Message) -> LocalTransactionState:
        called.append(half)
        return COMMIT

    async with running(ResponseCode.FLUSH_DISK_TIMEOUT) as (producer, broker):
        result = await producer.send_in_transaction(MESSAGE, local_transaction=local, check=lambda _: UNKNOWN)
        (end,) = await broker.ends()
    assert (result.status, result.state, end.commit_or_rollback, called) == (
        SendStatus.FLUSH_DISK_TIMEOUT,
        ROLLBACK,
        12,
        [],
    )


async def test_the_end_of_a_message_whose_topic_has_no_route() -> None:
    """A committed message of a new topic would stay unseen until the broker asks, a minute later."""
    async with (
        Broker() as broker,
        Names(TBW102={"broker-a": broker.address}) as names,
        Producer("g", names.address) as producer,
    ):
        result = await producer.send_in_transaction(
            MESSAGE, local_transaction=says(COMMIT), check=lambda _: UNKNOWN
        )
        (end,) = await broker.ends()
    assert (result.end_delivered, end.commit_or_rollback, end.commit_log_offset) == (True, 8, 3023)


async def test_the_end_of_a_message_whose_broker_is_in_no_route() -> None:
    """A message whose topic has moved would stay invisible until its broker checks it, a minute later."""
    async with Broker() as broker, Names() as names:
        names.routes["GoldenTopic"] = {"broker-a": broker.address}
        broker.offset_id = message_id(host_bytes("127.0.0.1", int(broker.address.rpartition(":")[2])), 3023)
        async with Producer("g", names.address) as producer:
            client = await ClientInstance.acquire(ClientConfig(namesrv=names.address))

            async def local(_half: Message) -> LocalTransactionState:
                names.routes["GoldenTopic"] = {"broker-b": broker.address}
                await client.routes.get("GoldenTopic", fresh=True)
                assert client.routes.master_address("broker-a") is None
                return COMMIT

            result = await producer.send_in_transaction(
                MESSAGE, local_transaction=local, check=lambda _: UNKNOWN
            )
            (end,) = await broker.ends()
            await client.release()
    assert (result.end_delivered, end.commit_or_rollback, end.commit_log_offset) == (True, 8, 3023)


async def test_the_end_waits_for_the_broker_to_return() -> None:
    """A broker that restarts while a transaction commits would hide the message until it asks."""
    async with running() as (producer, broker):
        address = broker.address

        async def local(_half: Message) -> LocalTransactionState:
            await broker.close()
            return COMMIT

        sending = asyncio.create_task(
            producer.send_in_transaction(
                MESSAGE, local_transaction=local, check=lambda _: UNKNOWN, timeout_ms=60_000
            )
        )
        await until(lambda: not producer.health().ok)  # the first attempt has failed
        await broker.start(address)
        result = await sending
        (end,) = await broker.ends()
    assert (result.state, result.end_delivered, end.commit_or_rollback) == (COMMIT, True, 8)


async def test_the_end_goes_to_a_new_master() -> None:
    """After a fail-over the end would be sent to the dead master until its time is over."""
    async with Broker() as broker, Broker() as successor, Names() as names:
        names.routes["Other"] = {"broker-b": "127.0.0.1:1"}
        names.routes["GoldenTopic"] = {"broker-a": broker.address}
        async with Producer("g", names.address) as producer:

            async def local(_half: Message) -> LocalTransactionState:
                names.routes["GoldenTopic"] = {"broker-a": successor.address}
                await broker.close()
                return COMMIT

            result = await producer.send_in_transaction(
                MESSAGE, local_transaction=local, check=lambda _: UNKNOWN, timeout_ms=60_000
            )
            (end,) = await successor.ends()
    assert (result.end_delivered, end.commit_or_rollback) == (True, 8)


@pytest.mark.parametrize("state", [COMMIT, UNKNOWN])
async def test_the_end_cannot_be_delivered(
    caplog: pytest.LogCaptureFixture, state: LocalTransactionState
) -> None:
    """A transaction that has committed would look failed to its caller, because one notice was lost."""
    async with running() as (producer, broker):

        async def local(_half: Message) -> LocalTransactionState:
            await broker.close()
            return state

        timeout_ms = 200 if state is COMMIT else 3_600_000  # UNKNOWN is not sent a second time
        result = await producer.send_in_transaction(
            MESSAGE, local_transaction=local, check=lambda _: UNKNOWN, timeout_ms=timeout_ms
        )
    assert (result.state, result.end_delivered) == (state, False)
    assert f"ended as {state.name}, but this was not delivered to broker-a" in caplog.text


async def test_the_end_is_repeated_after_increasing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unavailable broker would get thousands of requests a second, or its caller miss its timeout."""
    loop = asyncio.get_running_loop()
    real_sleep, real_time = asyncio.sleep, loop.time
    pauses: list[float] = []

    async def sleep(delay: float, result: object = None) -> object:
        if delay > 0:
            pauses.append(delay)
        return await real_sleep(0, result)

    async with running() as (producer, broker):

        async def local(_half: Message) -> LocalTransactionState:
            await broker.close()
            start = real_time()
            monkeypatch.setattr(loop, "time", lambda: start + sum(pauses))  # no other time passes
            monkeypatch.setattr(asyncio, "sleep", sleep)
            return COMMIT

        result = await producer.send_in_transaction(
            MESSAGE, local_transaction=local, check=lambda _: UNKNOWN, timeout_ms=5000
        )
        monkeypatch.undo()
    assert not result.end_delivered
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1, 1, 1, 0.45])


async def test_an_invalid_state_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """A function that forgets to return would commit or roll back by accident."""
    async with running() as (producer, broker):
        result = await producer.send_in_transaction(
            MESSAGE,
            local_transaction=lambda _: None,  # type: ignore[arg-type, return-value]
            check=lambda _: UNKNOWN,
        )
        (end,) = await broker.ends()
    assert (result.state, end.commit_or_rollback) == (UNKNOWN, 0)
    assert "returned None instead of a LocalTransactionState" in caplog.text
