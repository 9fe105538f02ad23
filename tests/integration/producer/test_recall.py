"""Producer.recall: the request that takes a timer message back, and what its errors say."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rocketpy import ClientConfig, Message, Outcome, Producer, PullConsumer
from rocketpy import sync as blocking
from rocketpy.errors import BrokerError, ClientClosed, MessageInvalid, RouteNotFound, TopicInvalid
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from rocketpy.protocol.message.recall_handle import RecallHandle
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker import EmbeddedCluster
from tests.integration.access_place import Servers, keys
from tests.integration.producer.test_timers import Broker4, Broker5
from tests.integration.sdk_peers import Names
from tests.waiting import until

LATER_MS = 4_000_000_000_000
HANDLE = RecallHandle("T", "a", LATER_MS, "7F0000010A0B18B4AAC21E5F4B2D0000").encode()


class RecallBroker(Broker5):
    """A broker of 5.3.3. code, remark: of its responses to RECALL_MESSAGE."""

    def __init__(self, code: int = ResponseCode.SUCCESS, remark: str | None = None) -> None:
        super().__init__()
        self.code, self.remark = code, remark

    def respond(self, channel: Channel, request: Command) -> Command | None:
        """Take a message back."""
        if request.code != RequestCode.RECALL_MESSAGE:
            return super().respond(channel, request)
        if self.code:
            return request.reply(self.code, remark=self.remark)
        handle = RecallHandle.decode(request.header_as(RecallMessageRequestHeader).recall_handle)
        return request.reply(header=RecallMessageResponseHeader(msg_id=handle.message_id))

    def recalls(self) -> list[RecallMessageRequestHeader]:
        """The requests that it got."""
        return [
            request.header_as(RecallMessageRequestHeader)
            for request in self.requests(RequestCode.RECALL_MESSAGE)
        ]


async def test_a_recall() -> None:
    """The message would be delivered."""
    async with (
        RecallBroker() as broker,
        Names(T={"a": broker.address}) as names,
        Producer("g", names.address) as sending,
    ):
        assert await sending.recall("T", HANDLE) == "7F0000010A0B18B4AAC21E5F4B2D0000"
    assert broker.recalls() == [
        RecallMessageRequestHeader(producer_group="g", topic="T", recall_handle=HANDLE, broker_name="a")
    ]


async def test_a_recall_goes_to_the_broker_of_the_handle() -> None:
    """Another broker does not have the message."""
    async with (
        RecallBroker() as a,
        RecallBroker() as b,
        Names(T={"a": a.address, "b": b.address}) as names,
        Producer("g", names.address) as sending,
    ):
        for name in "abb":
            await sending.recall("T", RecallHandle("T", name, LATER_MS, "id").encode())
        with pytest.raises(RouteNotFound, match="the route of topic T has no broker gone"):
            await sending.recall("T", RecallHandle("T", "gone", LATER_MS, "id").encode())
    assert (len(a.recalls()), len(b.recalls())) == (1, 2)


async def test_a_recall_in_a_namespace() -> None:
    """The names in the handle are those on the wire."""
    async with RecallBroker() as broker, Names(**{"MQ_INST%T": {"a": broker.address}}) as names:
        handle = RecallHandle("MQ_INST%T", "a", LATER_MS, "id").encode()
        async with Producer("g", names.address, client=ClientConfig(namespace="MQ_INST")) as sending:
            assert await sending.recall("T", handle) == "id"
            with pytest.raises(MessageInvalid, match="is of a message of topic T, not of U"):
                await sending.recall("U", handle)
        async with Producer("g", names.address) as sending:
            with pytest.raises(MessageInvalid, match="is of a message of topic MQ_INST%T, not of T"):
                await sending.recall("T", handle)
    (header,) = broker.recalls()
    assert (header.topic, header.producer_group) == ("MQ_INST%T", "MQ_INST%g")


async def test_a_wrong_argument_of_recall() -> None:
    """The broker would answer with less."""
    async with RecallBroker() as broker, Names(T={"a": broker.address}) as names:
        sending = Producer("g", names.address)
        with pytest.raises(ClientClosed):
            await sending.recall("T", HANDLE)
        async with sending:
            with pytest.raises(MessageInvalid, match="is not a recall handle; pass the recall_handle of a"):
                await sending.recall("T", "7F0000010A0B18B4AAC21E5F4B2D0000")
            with pytest.raises(MessageInvalid, match=r"None.* is not a recall handle"):
                await sending.recall("T", None)  # type: ignore[arg-type]
            with pytest.raises(TopicInvalid):
                await sending.recall("", HANDLE)
        assert broker.recalls() == []


async def test_a_broker_without_timers_is_not_asked() -> None:
    """A broker of 4.6.0 does not respond to an unknown request, so the caller would wait."""
    async with Broker4() as broker, Names(T={"a": broker.address}) as names:
        for _ in range(2):
            async with Producer("g", names.address) as sending:
                with pytest.raises(
                    MessageInvalid, match=r"broker a \(4\.6\.0\) has no timers, so no message"
                ):
                    await sending.recall("T", HANDLE)
        assert broker.requests(RequestCode.RECALL_MESSAGE) == []


@pytest.mark.parametrize(
    ("code", "remark", "deliver_ms", "words"),
    [
        (
            604,
            "recall failed, timestamp invalid",
            1_700_000_000_000,
            "; the message was due at 2023-11-14 22:13:20",
        ),
        (604, "recall failed, timestamp invalid", LATER_MS, "code 604: recall failed, timestamp invalid$"),
        (3, "request type 370 not supported", LATER_MS, "; it cannot recall messages; .* from 5.3.2 on"),
        (16, "recall failed, operation is forbidden", LATER_MS, "; .* recallMessageEnable=true"),
        (17, "recall failed, the topic[T] not exist", LATER_MS, "code 17: recall failed, the topic"),
    ],
)
async def test_the_refusal_of_a_recall(code: int, remark: str, deliver_ms: int, words: str) -> None:
    """A caller could not tell a message that is due from a broker without recall."""
    async with (
        RecallBroker(code, remark) as broker,
        Names(T={"a": broker.address}) as names,
        Producer("g", names.address) as sending,
    ):
        with pytest.raises(BrokerError, match=words) as caught:
            await sending.recall("T", RecallHandle("T", "a", deliver_ms, "id").encode())
    assert (caught.value.code, caught.value.broker) == (code, "a")


async def test_a_blocking_producer_recalls() -> None:
    """Programs without asyncio have every method."""
    async with RecallBroker() as broker, Names(T={"a": broker.address}) as names:

        def use() -> str:
            with blocking.Producer("g", names.address) as sending:
                sending.send(Message("T", b"x", deliver_at=datetime.now(UTC) + timedelta(hours=1)))
                return sending.recall("T", HANDLE)

        assert await asyncio.to_thread(use) == "7F0000010A0B18B4AAC21E5F4B2D0000"
    assert len(broker.recalls()) == len(broker.sent()) == 1


# -- with rocketpy's broker -----------------------------------------------------------------------


async def test_a_recalled_message_is_not_delivered(cluster: EmbeddedCluster) -> None:
    """The whole way: send, take back, and what consumers get."""
    store = cluster.brokers[0].store
    async with Producer("g", cluster.namesrv_address) as sending:
        await sending.create_topic("R", 1)
        kept = await sending.send(Message("R", b"kept", delay=timedelta(seconds=1.2)))
        result = await sending.send(Message("R", b"recalled", delay=timedelta(seconds=1.2)))
        assert result.recall_handle is not None
        assert kept.recall_handle is not None
        assert await sending.recall("R", result.recall_handle) == result.message_id
        end = await sending.send(Message("R", b"end", deliver_at=datetime.now(UTC) + timedelta(seconds=2.2)))
        await until(lambda: store.max_offset_in_queue("R", 0) == 2)
        with pytest.raises(BrokerError, match=r"code 604: recall failed, .* due.*; the message was due at "):
            await sending.recall("R", kept.recall_handle)
        now = await sending.send(Message("R", b"now", deliver_at=datetime(2020, 1, 1, tzinfo=UTC)))
        assert (now.recall_handle, now.queue_offset) == (None, 2)
    async with PullConsumer("readers", cluster.namesrv_address) as reader:
        found = (await reader.pull(end.queue, 0)).messages
    assert [message.body for message in found] == [b"kept", b"end", b"now"]
    for message in found[:2]:
        assert message.deliver_at is not None
        assert message.store_timestamp >= message.deliver_at.timestamp() * 1000 - 1


async def test_our_broker_says_why_it_refuses(cluster: EmbeddedCluster) -> None:
    """A caller could not tell an unknown message from a broker without recall."""
    async with Producer("g", cluster.namesrv_address) as sending:
        result = await sending.send(Message("T", b"x", delay=timedelta(hours=1)))
        assert result.recall_handle is not None
        other = RecallHandle.decode(result.recall_handle)._replace(message_id="7F" * 16)
        with pytest.raises(BrokerError, match="there is no message 7F7F"):
            await sending.recall("T", other.encode())
        with pytest.raises(MessageInvalid, match="is of a message of topic T, not of U"):
            await sending.recall("U", result.recall_handle)
        with pytest.raises(
            BrokerError, match=r"max delay 259200000ms .*; choose an earlier time, or raise "
        ) as far:
            await sending.send(Message("T", b"x", delay=timedelta(days=3, milliseconds=100)))
        assert (far.value.code, far.value.outcome) == (ResponseCode.MESSAGE_ILLEGAL, Outcome.NOT_SENT)


async def test_our_broker_without_timers_has_levels() -> None:
    """timerWheelEnable=false: a message would come at once, or the error not say what is possible."""
    disabled = EmbeddedCluster(settings={"timerWheelEnable": "false"})
    async with disabled as cluster, Producer("g", cluster.namesrv_address) as sending:
        level = await sending.send(Message("T", b"x", delay=timedelta(minutes=1)))
        past = await sending.send(Message("T", b"x", deliver_at=datetime(2020, 1, 1, tzinfo=UTC)))
        assert (level.recall_handle, past.recall_handle) == (None, None)
        with pytest.raises(MessageInvalid, match=r"has no timers, .*; the nearest is 5 \(1m\)"):
            await sending.send(Message("T", b"x", delay=timedelta(seconds=61)))
        with pytest.raises(MessageInvalid, match="has no timers, so no message can be taken back"):
            await sending.recall("T", RecallHandle("T", "broker-a", LATER_MS, "id").encode())


async def test_a_recall_needs_the_right_to_the_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has a handle, or makes one, could delete messages of others."""

    def producer(account: str) -> Producer:
        return Producer("mygroup", str(servers.names), client=ClientConfig(credentials=keys(account)))

    async with Servers(tmp_path, monkeypatch) as servers, producer("my-account") as owner:
        result = await owner.send(Message("Mine", b"x", delay=timedelta(hours=1)))
        assert result.recall_handle is not None
        await owner.send(Message("Shared", b"x"))
        async with producer("other-account") as other:
            with pytest.raises(BrokerError, match="AclException: No default permission for topic:Mine"):
                await other.recall("Mine", result.recall_handle)
            forged = RecallHandle.decode(result.recall_handle)._replace(topic="Shared").encode()
            with pytest.raises(BrokerError, match="there is no message"):
                await other.recall("Shared", forged)
        assert await owner.recall("Mine", result.recall_handle) == result.message_id
