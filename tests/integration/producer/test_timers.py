"""Timer messages of RocketMQ 5.x: which sends have them, and which brokers get them."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

import pytest

from rocketpy import (
    BatchConfig,
    ClientConfig,
    LocalTransactionState,
    Message,
    MessageQueue,
    Outcome,
    Producer,
    ProducerConfig,
    PullConsumer,
    RetryConfig,
)
from rocketpy.errors import BrokerError, MessageInvalid, RequestTimeout
from rocketpy.hooks import SendEvent
from rocketpy.message.columns import MessageColumns
from rocketpy.protocol.codes import VERSION_4_6_0, VERSION_5_1_1, RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    BrokerFeature,
    HeartbeatResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
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
    """A broker of RocketMQ 5.1.1.

    knows_heartbeats: whether it responds to them. refuses_sends: whether it is unavailable for sends.
    """

    def __init__(self, *, knows_heartbeats: bool = True) -> None:
        super().__init__(self.respond)
        self.knows_heartbeats, self.refuses_sends = knows_heartbeats, False

    def respond(self, channel: Channel, request: Command) -> Command | None:
        """Store a message, or a batch."""
        response = request.reply()
        if request.code in SENDS and self.refuses_sends:
            response = request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark="not now")
        elif request.code in SENDS:
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


@pytest.fixture
def without_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers of this test name no features, as those of RocketMQ 4.6.0."""
    monkeypatch.setattr(HeartbeatResponseHeader, "of", lambda _: None)


@pytest.mark.usefixtures("without_timers")
async def test_a_broker_of_4_gets_no_timer_messages(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Its consumers would get the message at once."""
    caplog.set_level(logging.WARNING)
    store = cluster.brokers[0].store
    async with Producer("g", cluster.namesrv_address) as sending:
        for name in TIMERS:
            value = str(time.time_ns() // 1_000_000 + 60_000) if name == "TIMER_DELIVER_MS" else "60"
            with pytest.raises(
                MessageInvalid,
                match=r"broker-a \(4\.6\.0\) has no timers, and no delay level.*set delay_level",
            ) as caught:
                await sending.send(timer(name, value))
            assert caught.value.outcome is Outcome.NOT_SENT
        ends = await asyncio.gather(*(sending.send(timer()) for _ in range(50)), return_exceptions=True)
        assert {type(end) for end in ends} == {MessageInvalid}
        sending.send_oneway(timer())
        await sending.flush()
        assert store.max_physical_offset == 0
        await until(lambda: "a oneway message was not sent: broker broker-a (4.6.0) has" in caplog.text)
        assert (await sending.send(Message("T", b"now"))).queue_offset == 0


@pytest.mark.usefixtures("without_timers")
@pytest.mark.parametrize("codec", ["json", "rocketmq"])
async def test_a_broker_of_4_gets_the_level_of_an_exact_delay(codec: Literal["json", "rocketmq"]) -> None:
    """The table is the broker's: the default one would be another delay there."""
    settings = {"messageDelayLevel": "1h 1d 1s"}
    client = ClientConfig(codec=codec)
    async with EmbeddedCluster(settings=settings) as cluster:
        async with Producer("g", cluster.namesrv_address, client=client) as sending:
            await sending.create_topic("T", 1)
            property_like = {"X_TIMER_DELAY_MS": "1000", "TIMER": "x"}
            for message in (
                Message("T", b"1", delay=timedelta(seconds=1), properties=property_like, tags="a", keys="k"),
                Message("T", b"2", properties={"TIMER_DELAY_SEC": "1"}),
            ):
                result = await sending.send(message)
                assert result.recall_handle is None
            with pytest.raises(
                MessageInvalid,
                match=r"no delay level for delay 0:01:00: levels 1 to 3 are 1h 1d 1s; the nearest is 3 ",
            ):
                await sending.send(Message("T", b"x", delay=timedelta(minutes=1)))
            at = datetime.now(UTC) + timedelta(hours=23)
            with pytest.raises(MessageInvalid, match=r"no delay level for deliver_at .*nearest is 2 \(1d\)"):
                await sending.send(Message("T", b"x", deliver_at=at))
        store = cluster.brokers[0].store
        await until(lambda: store.max_offset_in_queue("T", 0) == 2)
        async with PullConsumer("readers", cluster.namesrv_address) as reader:
            stored = (await reader.pull(MessageQueue("T", "broker-a", 0), 0)).messages
    assert [message.delay_level for message in stored] == [3, 3]
    assert [message.deliver_at for message in stored] == [None, None]
    assert stored[0].properties.items() >= property_like.items()
    assert (stored[0].tags, stored[0].keys) == ("a", ("k",))


@pytest.mark.usefixtures("without_timers")
async def test_a_time_in_the_past_needs_no_timers() -> None:
    """It is delivered at once without a timer, which a broker without timers may refuse."""
    async with Broker4() as broker, Names(T={"a": broker.address}) as names:
        async with Producer("g", names.address) as sending:
            past = datetime(2020, 1, 1, tzinfo=UTC)
            await sending.send(Message("T", b"x", deliver_at=past, tags="t", properties={"a": "b"}))
            await sending.send(Message("T", b"x", deliver_at=past))
            await sending.send(Message("T", b"x", delay=timedelta(0)))
        assert [set(props.decode(text)) - {"UNIQ_KEY", "WAIT"} for text in broker.sent()] == [
            {"TAGS", "a"},
            set(),
            set(),
        ]


class Broker4(Broker5):
    """A broker of RocketMQ 4.6.0. levels: its messageDelayLevel, or the remark of an error response."""

    def __init__(self, levels: str = "1s 5s", *, readable: bool = True) -> None:
        super().__init__()
        self.levels, self.readable = levels, readable

    def respond(self, channel: Channel, request: Command) -> Command | None:
        """Respond as one of 4.6.0."""
        response = super().respond(channel, request)
        if request.code == RequestCode.GET_BROKER_CONFIG:
            if self.readable:
                response = request.reply(body=f"brokerName=a\nmessageDelayLevel={self.levels}\n".encode())
            else:
                response = request.reply(ResponseCode.SYSTEM_ERROR, remark=self.levels)
        if response is not None:
            response.version = VERSION_4_6_0
        return response


async def test_levels_are_read_once_a_connection() -> None:
    """A burst of delayed messages would ask for the settings of the broker each time."""
    async with Broker4() as broker, Names(T={"a": broker.address}) as names:
        async with Producer("g", names.address) as sending:
            messages = [Message("T", b"x", delay=timedelta(seconds=5)) for _ in range(20)]
            await asyncio.gather(*map(sending.send, messages))
            sending.send_oneway(messages[0])
            await sending.flush()
            assert len(broker.requests(RequestCode.GET_BROKER_CONFIG)) == 1
            broker.levels = "5s"  # set in broker.conf before its restart
            for channel in broker.channels:
                channel.close()
            await until(lambda: not sending.health().brokers[broker.address])
            await sending.send(messages[0])
            assert len(broker.requests(RequestCode.GET_BROKER_CONFIG)) == 2
        await broker.until(lambda: len(broker.sent()) == 22)
        assert Counter(re.search("\x02DELAY\x01(.)\x02", text)[1] for text in broker.sent()) == {  # type: ignore[index]
            "2": 21,
            "1": 1,
        }
        assert "TIMER" not in "".join(broker.sent())


@pytest.mark.parametrize(
    ("levels", "readable", "words"),
    [
        (
            "no right",
            False,
            "its delay levels are not known: it responded with code 1: no right; set delay_level",
        ),
        ("1x", True, "its delay levels are not known: messageDelayLevel has '1x'"),
        ("", True, "no delay level for delay 0:00:05: its messageDelayLevel is empty"),
    ],
)
async def test_a_broker_of_4_that_tells_no_levels(levels: str, readable: bool, words: str) -> None:
    """The default table could be another delay."""
    async with Broker4(levels, readable=readable) as broker, Names(T={"a": broker.address}) as names:
        async with Producer("g", names.address) as sending:
            for _ in range(2):
                with pytest.raises(MessageInvalid, match=words) as caught:
                    await sending.send(Message("T", b"x", delay=timedelta(seconds=5)))
                assert caught.value.outcome is Outcome.NOT_SENT
        assert broker.sent() == []
        assert len(broker.requests(RequestCode.GET_BROKER_CONFIG)) == 1


async def test_a_retry_at_another_broker_gets_the_timer_again() -> None:
    """With the level of the first broker, it would have another delay at the second."""
    async with Broker4() as old, Broker5() as new, Names(T={"a": old.address, "b": new.address}) as names:
        old.refuses_sends = True
        async with Producer("g", names.address) as sending:
            for _ in range(4):  # half of them begin at the older broker
                await sending.send(Message("T", b"x", delay=timedelta(seconds=5), tags="t"))
    assert old.sends
    assert all("\x02DELAY\x012\x02" in text and "TIMER" not in text for text in old.sent())
    assert len(new.sent()) == 4
    assert all("\x02TIMER_DELAY_MS\x015000\x02" in text and "DELAY\x012" not in text for text in new.sent())


async def test_a_retry_of_a_past_time_gets_the_time_again() -> None:
    """The second broker has timers, and consumers of it see the time."""
    async with Broker4() as old, Broker5() as new, Names(T={"a": old.address, "b": new.address}) as names:
        old.refuses_sends = True
        async with Producer("g", names.address) as sending:
            for _ in range(4):  # half of them begin at the older broker
                await sending.send(Message("T", b"x", deliver_at=datetime(2020, 1, 1, tzinfo=UTC), tags="t"))
    assert old.sends
    wanted = {"TIMER_DELIVER_MS": "1577836800000", "TAGS": "t"}.items()
    assert [props.decode(text).items() >= wanted for text in new.sent()] == [True] * 4


class TimerBroker(Broker4):
    """A broker of rocketpy: the version is that of 4.6.0, and timers are a feature."""

    def respond(self, channel: Channel, request: Command) -> Command | None:
        """Name the feature, and give a handle for a timer message."""
        response = super().respond(channel, request)
        if request.code == RequestCode.HEART_BEAT:
            return request.reply(header=HeartbeatResponseHeader.of([BrokerFeature.TIMER]))
        if request.code == RequestCode.SEND_MESSAGE_V2:
            properties = request.header_as(SendMessageRequestHeaderV2).properties or ""
            header = SendMessageResponseHeader(
                msg_id="7F00000100004E2A0000000000000BCF",
                queue_id=0,
                queue_offset=0,
                recall_handle="handle" if "TIMER" in properties else None,
            )
            return request.reply(header=header)
        return response


async def test_a_broker_that_names_timers_gets_them_exactly() -> None:
    """Our own broker reports the version of 4.6.0."""
    at = datetime(2100, 6, 1, 9, 0, 0, 123_001, tzinfo=ZoneInfo("Europe/Berlin"))
    async with TimerBroker() as broker, Names(T={"a": broker.address}) as names:
        async with Producer("g", names.address) as sending:
            timed = await sending.send(Message("T", b"x", deliver_at=at))
            delayed = await sending.send(Message("T", b"x", delay=timedelta(microseconds=1_000_001)))
            plain = await sending.send(Message("T", b"x"))
        first, second, _ = broker.sent()
    assert "\x02TIMER_DELIVER_MS\x014115516400124\x02" in first
    assert "\x02TIMER_DELAY_MS\x011001\x02" in second
    assert [timed.recall_handle, delayed.recall_handle, plain.recall_handle] == ["handle", "handle", None]


@pytest.mark.parametrize(
    ("code", "remark", "words", "attempts"),
    [
        (
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; or",
            "259200000ms.*; choose an earlier time, or raise timerMaxDelaySec",
            1,
        ),
        (
            ResponseCode.SYSTEM_ERROR,
            "timer message is under flow control, max num limit is 2",
            "; send it later, or choose another time",
            2,
        ),
        (
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false",
            "; set timerWheelEnable=true in its broker.conf, or use delay_level",
            2,
        ),
    ],
)
async def test_the_refusal_of_a_broker_says_what_helps(
    code: ResponseCode, remark: str, words: str, attempts: int
) -> None:
    """The limits are the broker's; nothing is stored, and a caller may send again."""

    def refuse(channel: Channel, request: Command) -> Command | None:
        if request.code in SENDS:
            return request.reply(code, remark=remark)
        return Broker5.respond(broker, channel, request)

    async with Broker5() as broker, Names(T={"a": broker.address}) as names:
        broker.script = refuse
        retry = RetryConfig(times=1, pause_ms=1)
        async with Producer("g", names.address, config=ProducerConfig(retry=retry)) as sending:
            with pytest.raises(BrokerError, match=words) as caught:
                await sending.send(Message("T", b"x", delay=timedelta(days=4)))
        assert caught.value.outcome is Outcome.NOT_SENT
        assert len(broker.sent()) == attempts


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
            with pytest.raises(MessageInvalid, match=rf"message 1 has .*property {name}\)?; a batch"):
                await sending.send_batch([Message("T", b"x"), timer(name)])
            with pytest.raises(MessageInvalid, match=rf"property {name}\)?: a batch has no timer"):
                MessageColumns("T", [b"x"], properties={name: ["5"]})
            with pytest.raises(MessageInvalid, match=rf"property {name}\)?: a transactional message"):
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
