"""Timer messages of RocketMQ 5.x: which sends have them, and which brokers get them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from rocketpy import (
    BatchConfig,
    ClientConfig,
    LocalTransactionState,
    Message,
    Outcome,
    Producer,
    ProducerConfig,
)
from rocketpy.errors import MessageInvalid, RequestTimeout
from rocketpy.hooks import SendEvent
from rocketpy.message.columns import MessageColumns
from rocketpy.protocol.codes import VERSION_5_1_1, RequestCode
from rocketpy.protocol.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker import EmbeddedCluster
from tests.integration.sdk_peers import Names, Peer
from tests.waiting import until

TIMERS = sorted(props.TIMER_PROPERTIES)
SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


def timer(name: str = "TIMER_DELAY_SEC", value: str = "60", *, delay_level: int = 0) -> Message:
    return Message("T", b"later", properties={name: value}, delay_level=delay_level)


class Broker5(Peer):
    """A broker of RocketMQ 5.1.1. knows_heartbeats: whether it responds to them."""

    def __init__(self, *, knows_heartbeats: bool = True) -> None:
        super().__init__(self.respond)
        self.knows_heartbeats = knows_heartbeats

    def respond(self, channel: Channel, request: Command) -> Command | None:
        """Store a message, or a batch."""
        response = request.reply()
        if request.code in SENDS:
            ids = ",".join(["7F00000100004E2A0000000000000BCF"] * (request.body.count(b"UNIQ_KEY") or 1))
            response = request.reply(header=SendMessageResponseHeader(msg_id=ids, queue_id=0, queue_offset=0))
        elif request.code == RequestCode.HEART_BEAT and not self.knows_heartbeats:
            return None
        response.version = VERSION_5_1_1
        return response

    def sent(self) -> list[str]:
        """The properties of each single send."""
        singles = self.requests(RequestCode.SEND_MESSAGE_V2)
        return [request.header_as(SendMessageRequestHeaderV2).properties or "" for request in singles]


@pytest.mark.parametrize("name", TIMERS)
async def test_timer_messages_are_never_batched(name: str) -> None:
    """A broker of 5.x would deliver them at once: it ignores timers in batches."""
    async with Broker5() as broker, Names(T={"a": broker.address}) as names:
        async with Producer(
            "g", names.address, config=ProducerConfig(batch=BatchConfig(linger_ms=1))
        ) as sending:
            plain = [sending.send_nowait(Message("T", b"now")) for _ in range(20)]
            timers = [sending.send_nowait(timer(name)) for _ in range(20)]
            sending.send_oneway(timer(name))
            await asyncio.gather(*plain, *timers)
            await sending.flush()
        assert Counter(f"{name}\x0160\x02" in text for text in broker.sent())[True] == 21
        assert all(name.encode() not in batch.body for batch in broker.requests(*SENDS))
        beats = broker.requests(RequestCode.HEART_BEAT)
        assert len(beats) <= 2, "a burst asks once for the version"


async def test_a_broker_of_4_gets_no_timer_messages(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Its consumers would get the message at once."""
    caplog.set_level(logging.WARNING)
    store = cluster.brokers[0].store
    async with Producer("g", cluster.namesrv_address) as sending:
        for name in TIMERS:
            with pytest.raises(
                MessageInvalid, match=rf"property {name} .*\(4\.6\.0\).*use delay_level"
            ) as caught:
                await sending.send(timer(name))
            assert caught.value.outcome is Outcome.NOT_SENT
        ends = await asyncio.gather(*(sending.send(timer()) for _ in range(50)), return_exceptions=True)
        assert {type(end) for end in ends} == {MessageInvalid}
        sending.send_oneway(timer())
        await sending.flush()
        assert store.max_physical_offset == 0
        await until(lambda: "a oneway message was not sent: property TIMER_DELAY_SEC" in caplog.text)
        assert (await sending.send(Message("T", b"now"))).queue_offset == 0


async def test_a_timer_message_waits_for_the_version_of_its_broker() -> None:
    """A broker of unknown version could deliver the message at once."""
    async with Broker5(knows_heartbeats=False) as broker, Names(T={"a": broker.address}) as names:
        client = ClientConfig(request_timeout_ms=200)
        async with Producer("g", names.address, client=client) as sending:
            with pytest.raises(RequestTimeout) as caught:
                await sending.send(timer(), timeout_ms=1000)
            assert caught.value.outcome is Outcome.NOT_SENT
            assert broker.sent() == []
            broker.knows_heartbeats = True
            await sending.send(timer())
            assert len(broker.sent()) == 1


async def test_batches_and_transactions_have_no_timers(cluster: EmbeddedCluster) -> None:
    """Brokers of 5.x deliver a timer message of a batch at once, and that of a transaction never."""
    async with Producer("g", cluster.namesrv_address) as sending:
        for name in TIMERS:
            with pytest.raises(MessageInvalid, match=f"message 1 has property {name}; a batch"):
                await sending.send_batch([Message("T", b"x"), timer(name)])
            with pytest.raises(MessageInvalid, match=f"property {name}: a batch has no timer"):
                MessageColumns("T", [b"x"], properties={name: ["5"]})
            with pytest.raises(MessageInvalid, match=f"property {name}: a transactional message"):
                await sending.send_in_transaction(
                    timer(name),
                    local_transaction=lambda _: LocalTransactionState.COMMIT,
                    check=lambda _: LocalTransactionState.COMMIT,
                )
    assert cluster.brokers[0].store.max_physical_offset == 0


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (timer(value="soon"), "'soon'; it must be a number"),
        (timer(value="-1"), "'-1'"),
        (timer(value="9" * 19), "at most 18 digits"),
        (timer(delay_level=1), "delay level 1 and property TIMER_DELAY_SEC; set one"),
        (
            Message("T", b"x", properties={"TIMER_DELAY_SEC": "1", "TIMER_DELIVER_MS": "1"}),
            "TIMER_DELAY_SEC and TIMER_DELIVER_MS; set one",
        ),
    ],
)
async def test_a_timer_that_a_broker_would_ignore_is_rejected(message: Message, words: str) -> None:
    """The message would be delivered at another time than the sender wants."""
    async with Broker5() as broker, Names(T={"a": broker.address}) as names:
        async with Producer("g", names.address) as sending:
            with pytest.raises(MessageInvalid, match=words):
                await sending.send(message)
        assert broker.requests(*SENDS) == []


class Meddling:
    """A listener that adds properties to each message."""

    def started(self, event: SendEvent) -> None:
        """Add properties, most of which are invalid."""
        for extra in event.extra_properties:
            extra |= {"DELAY": "3", "TIMER_DELAY_SEC": "5", "a": "b\x02c", "fine": "yes"}

    def completed(self, event: SendEvent, results: object) -> None:
        """Called after a success."""

    def failed(self, event: SendEvent, error: BaseException) -> None:
        """Called after a failure."""


async def test_a_listener_cannot_delay_messages(caplog: pytest.LogCaptureFixture) -> None:
    """Telemetry could delay every message, or make brokers reject it."""
    async with Broker5() as broker, Names(T={"a": broker.address}) as names:
        async with Producer("g", names.address, listeners=[Meddling()]) as sending:
            await sending.send(Message("T", b"x"))
            await sending.send_batch([Message("T", b"x"), Message("T", b"y")])
        (text,) = broker.sent()
        assert props.decode(text).keys() == {"UNIQ_KEY", "WAIT", "fine"}
        (batch,) = broker.requests(RequestCode.SEND_BATCH_MESSAGE)
        assert batch.body.count(b"fine\x01yes\x02") == 2
        assert b"DELAY" not in batch.body
    assert "a listener added the invalid property 'DELAY'" in caplog.text
