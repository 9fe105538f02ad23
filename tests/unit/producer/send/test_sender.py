"""The sender of a producer: the fields of its requests, and the order in which sends leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from rocketpy import (
    BatchConfig,
    ClientConfig,
    CompressionConfig,
    LatencyConfig,
    LocalTransactionState,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    RetryConfig,
    SendResult,
)
from rocketpy.errors import BrokerError, ClientClosed, MessageTooLarge, RequestTimeout, TopicInvalid
from rocketpy.hooks import SendEvent, SendListener
from rocketpy.producer import listeners as listening
from rocketpy.producer.listeners import Listeners
from rocketpy.producer.send import sender as sending
from rocketpy.producer.send.encoder import MessageEncoder
from rocketpy.producer.send.request_template import head_text
from rocketpy.producer.send.retry import Decision, WaitUntil, decide
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import GetRouteInfoRequestHeader, SendMessageRequestHeaderV2
from rocketpy.protocol.message import properties
from rocketpy.protocol.message.batch import decode_batch
from rocketpy.protocol.message.compression import decompress
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from tests.integration.sdk_peers import SENDS, Names, Peer, refuses, stored
from tests.unique_ids import unique_id_time_ms
from tests.unit.producer.send.test_submitter import SlowNames
from tests.waiting import LIMIT_S, until

LONG = b"a long body " * 1000
Codec = Literal["json", "rocketmq", "msgpack"]


def header_of(request: Command) -> SendMessageRequestHeaderV2:
    """The header of a send."""
    return request.header_as(SendMessageRequestHeaderV2)


def messages_of(request: Command) -> list[tuple[bytes, dict[str, str]]]:
    """(body, properties) of each message of a send."""
    if request.code == RequestCode.SEND_BATCH_MESSAGE:
        return [(one.body, properties.decode(one.properties)) for one in decode_batch(request.body)]
    header = header_of(request)
    return [(decompress(request.body, header.sys_flag), properties.decode(header.properties or ""))]


# -- fields of requests -------------------------------------------------------------------------------------


async def send_all_kinds(producer: Producer) -> None:
    """One send of each kind."""
    await producer.send(Message("T", b"single", tags="t", keys="k", flag=9))
    await producer.send(Message("T", LONG))
    await asyncio.gather(*[producer.send(Message("T", b"%d" % number, flag=7)) for number in range(3)])
    await producer.send_batch([Message("T", b"first", flag=-3), Message("T", b"second", tags="t")])
    for body in (b"half", LONG):
        await producer.send_in_transaction(
            Message("T", body, flag=5),
            local_transaction=lambda _: LocalTransactionState.COMMIT,
            check=lambda _: LocalTransactionState.UNKNOWN,
        )
    producer.send_oneway(Message("T", b"oneway", flag=4))
    await producer.flush()


async def requests_of(codec: Codec) -> list[tuple[Any, ...]]:
    """The requests that a broker gets for each kind of send, without ids and times."""
    async with Peer() as broker, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": broker.address}
        client = ClientConfig(codec=codec)
        async with Producer("g", names.address, client=client) as producer:
            await send_all_kinds(producer)
            await broker.until(lambda: len(broker.sends) >= 8)
    found = []
    for request in broker.sends:
        fields = header_of(request).ext_fields()
        given = properties.decode(fields.pop("i"))
        given.pop("UNIQ_KEY", None)
        assert abs(int(fields.pop("g")) - time.time() * 1000) < 60_000, "born time"
        bodies = [body for body, _ in messages_of(request)]
        found.append((request.code, request.is_oneway, fields, given, bodies))
    return found


async def test_a_request_has_the_same_fields_in_each_codec() -> None:
    """With another codec a half message would be shown as a plain one, or a batch be taken for compressed."""
    json = await requests_of("json")
    assert [fields["f"] for _, _, fields, *_ in json] == ["0", "1", "0", "0", "0", "4", "5", "0"]
    assert await requests_of("rocketmq") == json
    assert await requests_of("msgpack") == json


async def test_ids_and_born_times_are_current() -> None:
    """A look-up by id would search in another month, and a trace show a message born in the future."""
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address) as producer:
            before = time.time_ns() // 1_000_000
            await send_all_kinds(producer)
        after = time.time_ns() // 1_000_000
    count = 0
    for request in broker.sends:
        assert before <= header_of(request).born_timestamp <= after
        for _, given in messages_of(request):
            assert before <= unique_id_time_ms(given["UNIQ_KEY"], after) <= after
            count += 1
    assert count == 10


@pytest.mark.parametrize("address", [bytes(4), bytes(16)])
@pytest.mark.parametrize("unique_id", [None, f"{7:032X}", f"{7:056X}"])
async def test_properties_may_be_as_long_as_a_record_allows(address: bytes, unique_id: str | None) -> None:
    """A message with long properties would be refused too early, or by the broker, without its size."""
    encoder = MessageEncoder(ProducerConfig(), address)
    message_id = unique_id or "0" * (24 + 2 * len(address))
    own = len(head_text(message_id, wait_store=False)) + len("p\x01\x02")

    def other_properties(size: int) -> str:
        message = Message("T", b"x", properties={"p": "v" * (size - own)}, unique_id=unique_id)
        return encoder.other_properties(message, None)

    assert len(head_text(message_id, wait_store=False) + other_properties(32_767)) == 32_767
    with pytest.raises(MessageTooLarge):
        other_properties(32_768)


# -- order --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, MessageQueue("T", "a", 0)])
@pytest.mark.parametrize(
    ("second", "config"),
    [
        (Message("T", b"2", delay_level=1), ProducerConfig()),
        (Message("T", b"2", wait_store=False), ProducerConfig()),
        (Message("T", b"2" * 5000), ProducerConfig()),
        (Message("T", b"2" * 5000), ProducerConfig(batching=False)),
        (Message("T", b"2" * 5000), ProducerConfig(batch=BatchConfig(linger_ms=5))),
    ],
)
async def test_messages_of_all_kinds_leave_in_their_order(
    second: Message, config: ProducerConfig, given: MessageQueue | None
) -> None:
    """A single message would overtake earlier ones, or be overtaken while it is compressed."""
    async with Peer() as broker, Names() as names:
        names.queues = 1
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, config=config) as producer:
            await producer.send(Message("T", b"0"))
            sends = [
                producer.send_nowait(message, queue=given)
                for message in (Message("T", b"0"), Message("T", b"1"), second, Message("T", b"3"))
            ]
            await asyncio.gather(*sends)
    bodies = [body[:1] for request in broker.sends for body, _ in messages_of(request)]
    assert bodies == [b"0", b"0", b"1", b"2", b"3"]


async def test_a_long_body_for_a_given_queue_keeps_its_place() -> None:
    """A queue would lose its order whenever a body is long enough to be compressed on a thread."""
    config = ProducerConfig(compression=CompressionConfig(above_bytes=100, off_loop_above_bytes=200))
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, config=config) as producer:
            queue = MessageQueue("T", "a", 1)
            await producer.send(Message("T", b"0"), queue=queue)
            bodies = [b"1" * 100_000, b"2", b"3" * 150, b"4"]
            await asyncio.gather(*[producer.send_nowait(Message("T", body), queue=queue) for body in bodies])
    found = [body for request in broker.sends for body, _ in messages_of(request)]
    assert found == [b"0", *bodies]


# -- waits, retries and the close ---------------------------------------------------------------------------


async def test_a_send_that_is_cancelled_while_its_body_is_compressed_ends() -> None:
    """A cancelled send would count against the limits forever, and closing would wait for it."""
    config = ProducerConfig(compression=CompressionConfig(above_bytes=10, off_loop_above_bytes=20))
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, config=config) as producer:
            await producer.send(Message("T", b"first"))
            cancelled = producer.send_nowait(Message("T", bytes(1 << 20)))
            kept = producer.send_nowait(Message("T", bytes(1 << 20)))
            cancelled.cancel()
            await kept
            await until(lambda: producer.health().in_flight == 0)
            assert len(broker.sends) == 2


async def test_a_batch_that_is_rejected_at_its_second_attempt_is_sent_singly() -> None:
    """The messages of the batch would be neither sent nor failed: their callers would wait forever."""
    codes = [ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL]

    def script(_channel: Channel, request: Command) -> Command:
        if request.code == RequestCode.SEND_BATCH_MESSAGE and codes:
            return request.reply(codes.pop(0), remark="no")
        return stored(request)

    async with Peer(script) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        config = ProducerConfig(retry=RetryConfig(pause_ms=1))
        async with Producer("g", names.address, config=config) as producer:
            await producer.send(Message("T", b"first"))
            async with asyncio.timeout(LIMIT_S):
                results = await asyncio.gather(
                    *[producer.send(Message("T", b"%d" % number), timeout_ms=60_000) for number in range(4)]
                )
            assert producer.health().in_flight == 0
    batch, single = RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2
    assert [request.code for request in broker.sends] == [single, single, batch, batch, *[single] * 3]
    alone = [messages_of(request)[0] for request in broker.sends if request.code == single][1:]
    assert sorted(body for body, _ in alone) == [b"0", b"1", b"2", b"3"]
    assert {given["UNIQ_KEY"] for _, given in alone} == {result.message_id for result in results}


async def test_a_batch_whose_callers_have_all_cancelled_is_not_sent() -> None:
    """A task group that fails cancels all its sends at once: the producer would fail, with other sends."""
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address) as producer:
            await producer.send(Message("T", b"first"))
            sent = producer.send_nowait(Message("T", b"sent"))  # the others wait for the end of the iteration
            for send in [producer.send_nowait(Message("T", b"cancelled")) for _ in range(3)]:
                send.cancel()
            await sent
            await producer.flush()
            await asyncio.gather(*[producer.send(Message("T", b"later")) for _ in range(3)])
            assert producer.health().ok
            assert producer.health().in_flight == 0
    bodies = [body for request in broker.sends for body, _ in messages_of(request)]
    assert bodies == [b"first", b"sent", *[b"later"] * 3]


@pytest.mark.parametrize("rejected", [False, True])
async def test_each_message_of_a_batch_keeps_its_own_result_of_an_earlier_attempt(rejected: bool) -> None:
    """After a cancelled send its neighbours would hang, or get the position of another message."""
    batches = 0
    sends: list[asyncio.Future[SendResult]] = []

    def script(_channel: Channel, request: Command) -> Command:
        nonlocal batches
        if request.code != RequestCode.SEND_BATCH_MESSAGE:
            return request.reply(ResponseCode.SYSTEM_ERROR) if batches else stored(request)
        batches += 1
        if batches == 1:
            asyncio.get_running_loop().call_soon(lambda: rejected or sends[1].cancel())
            return stored(request, code=ResponseCode.FLUSH_DISK_TIMEOUT)
        code = ResponseCode.MESSAGE_ILLEGAL if rejected else ResponseCode.SYSTEM_ERROR
        return request.reply(code, remark="no")

    async with Peer(script) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        retry = RetryConfig(times=1 + rejected, pause_ms=20, another_broker_when_not_ok=True)
        async with Producer("g", names.address, config=ProducerConfig(retry=retry)) as producer:
            await producer.send(Message("T", b"first"))
            sends += [producer.send_nowait(Message("T", b"x"), timeout_ms=60_000) for _ in range(4)]
            async with asyncio.timeout(LIMIT_S):
                ends = await asyncio.gather(*sends, return_exceptions=True)
            assert producer.health().in_flight == 0
    stored_as = [end.offset_message_id[-1] for end in ends[1:] if isinstance(end, SendResult)]
    assert stored_as == ["0", "1", "2"][not rejected :]


async def test_a_queue_keeps_its_order_at_a_broker_that_rejects_batches_after_a_restart() -> None:
    """A message would overtake the batch before it, whose messages are sent again one by one."""

    def script(channel: Channel, request: Command) -> Command:
        if request.code == RequestCode.SEND_BATCH_MESSAGE and channel is not broker.channels[0]:
            return request.reply(ResponseCode.MESSAGE_ILLEGAL, remark="no batches")
        return stored(request)

    queue = MessageQueue("T", "a", 0)
    async with Peer(script) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address) as producer:
            await asyncio.gather(*[producer.send(Message("T", b"first"), queue=queue) for _ in range(3)])
            before = len(broker.sends)
            broker.channels[0].abort()
            await until(lambda: not producer.health().brokers[broker.address])
            messages = [Message("T", b"1"), Message("T", b"2"), Message("T", b"3", delay_level=1)]
            await asyncio.gather(*[producer.send_nowait(message, queue=queue) for message in messages])
    single = [request for request in broker.sends[before:] if request.code == RequestCode.SEND_MESSAGE_V2]
    assert [request.body for request in single] == [b"1", b"2", b"3"]


async def test_a_short_timeout_is_kept_behind_a_long_one() -> None:
    """A send would wait as long as the first of the sends that wait for the same route."""
    async with Peer() as broker, SlowNames() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, config=ProducerConfig(batching=False)) as producer:
            patient = producer.send_nowait(Message("T", b"patient"), timeout_ms=3_600_000)
            hasty = producer.send_nowait(Message("T", b"hasty"), timeout_ms=20)
            async with asyncio.timeout(LIMIT_S):
                with pytest.raises(RequestTimeout):
                    await hasty
            names.let_go()
            await patient
        assert [request.body for request in broker.sends] == [b"patient"]


async def test_a_broker_that_responds_slowly_is_left_out_for_a_while() -> None:
    """With sendLatencyFaultEnable each second message would still wait for the slow broker."""

    def slow(channel: Channel, request: Command) -> Command | None:
        if request.code not in SENDS:
            return stored(request)
        asyncio.get_running_loop().call_later(0.8, channel.reply, stored(request))
        return None

    latency = LatencyConfig(enabled=True, latency_ms=(700,), not_available_ms=(3_600_000,))
    config = ProducerConfig(latency=latency, batching=False)
    async with Peer(slow) as bad, Peer() as good, Names() as names:
        names.routes["T"] = {"a": bad.address, "b": good.address}
        async with Producer("g", names.address, config=config) as producer:
            for _ in range(12):
                await producer.send(Message("T", b"x"), timeout_ms=60_000)
    assert (len(bad.sends), len(good.sends)) == (1, 11)


async def test_a_pause_before_another_attempt_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its broker is offline, a producer would use a whole core to check whether the pause is over."""
    decisions: list[Decision] = []

    def record(*args: Any) -> Decision:
        decisions.append(decide(*args))
        return decisions[-1]

    monkeypatch.setattr(sending, "decide", record)
    config = ProducerConfig(batching=False, retry=RetryConfig(times=1, pause_ms=300))
    async with Peer(refuses(ResponseCode.SYSTEM_ERROR)) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, config=config) as producer:
            with pytest.raises(BrokerError):
                await producer.send(Message("T", b"x"))
    assert len(broker.sends) == 2
    waits = [decision for decision in decisions if isinstance(decision, WaitUntil)]
    assert 1 <= len(waits) <= 3  # a timer of the loop may be a little early


async def test_a_closed_producer_asks_for_no_more_routes() -> None:
    """Short-lived producers would each leave a pending request for the route of a topic without a master."""

    def route_requests(topic: str) -> int:
        return sum(
            request.header_as(GetRouteInfoRequestHeader).topic == topic
            for request in names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC)
        )

    async with Names() as names:
        names.broker_id = 1
        names.routes["Closed"] = names.routes["Waiting"] = {"a": "127.0.0.1:1"}
        often = ProducerConfig(retry=RetryConfig(pause_ms=20))
        seldom = ProducerConfig(retry=RetryConfig(pause_ms=500))
        async with Producer("other", names.address, config=often) as other:
            producer = Producer("g", names.address, config=seldom)
            await producer.start()
            waiting = other.send_nowait(Message("Waiting", b"x"), timeout_ms=60_000)
            ended = producer.send_nowait(Message("Closed", b"x"), timeout_ms=60_000)
            assert producer._submitter is not None
            publish_info = producer._submitter.publish_infos["Closed"]
            await until(lambda: publish_info._pause is not None)
            await producer.close(timeout_ms=0)
            with pytest.raises(ClientClosed):
                await ended
            others = route_requests("Waiting")
            await names.until(lambda: route_requests("Waiting") >= others + 2)
            before = route_requests("Closed")  # requests from before the close have arrived
            await names.until(lambda: route_requests("Waiting") >= others + 40)
            assert route_requests("Closed") == before
            await other.close(timeout_ms=0)
            with pytest.raises(ClientClosed):
                await waiting


@pytest.mark.parametrize("way", ["nowait", "oneway"])
async def test_a_send_from_another_thread_is_rejected(way: str) -> None:
    """Its future could not be waited for, and the message might be stored all the same."""
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address) as producer:
            await producer.send(Message("T", b"here"))
            send = producer.send_nowait if way == "nowait" else producer.send_oneway
            with pytest.raises(ClientClosed, match="was used in a thread without one"):
                await asyncio.to_thread(send, Message("T", b"there"))
            await producer.send(Message("T", b"here, too"))
        assert [request.body for request in broker.sends] == [b"here", b"here, too"]


async def test_a_oneway_message_that_is_not_sent_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """No log line would show that the messages of a topic are not sent."""
    caplog.set_level("INFO", "rocketpy.producer")
    async with Names() as names, Producer("g", names.address) as producer:
        producer.send_oneway(Message("Nowhere", b"x"))
        await producer.flush()
        await until(lambda: "a oneway message was not sent: no broker has topic Nowhere" in caplog.text)


class Listener:
    """A listener that ignores all events."""

    def started(self, event: SendEvent) -> None:
        """See `SendListener`."""

    def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
        """See `SendListener`."""

    def failed(self, event: SendEvent, error: BaseException) -> None:
        """See `SendListener`."""


class Switch:
    """Telemetry without an exporter until it is switched on."""

    is_on = False

    def is_active(self) -> bool:
        return self.is_on

    def send_listener(self, _namespace: str) -> SendListener:
        return Listener()

    def settle_listener(self, _namespace: str) -> Listener:
        return Listener()


async def test_telemetry_that_is_switched_on_later_gets_events_of_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A producer that is never idle would never be seen in traces."""
    monkeypatch.setattr(listening, "_POLL_S", 0.001)
    telemetry: Any = Switch()
    listeners = Listeners([], "g", "c", lambda _queue: None, Tasks("t"), telemetry)
    assert listeners.all == ()
    assert listeners.dormant
    telemetry.is_on = True
    await until(lambda: not listeners.dormant)
    assert len(listeners.all) == 1
    listeners.close()


async def test_sends_before_and_after_telemetry_is_switched_on_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of a batch that was open at that moment would be missing."""
    monkeypatch.setattr(listening, "_POLL_S", 0.001)
    telemetry: Any = Switch()
    config = ProducerConfig(batch=BatchConfig(linger_ms=200))
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, config=config, telemetry=telemetry) as producer:
            sends = [producer.send_nowait(Message("T", b"before"))]
            listeners = producer._listeners
            assert listeners is not None
            telemetry.is_on = True
            await until(lambda: not listeners.dormant)
            sends += [producer.send_nowait(Message("T", b"after")) for _ in range(5)]
            async with asyncio.timeout(LIMIT_S):
                await asyncio.gather(*sends)
            assert producer.health().ok
    assert sum(len(messages_of(request)) for request in broker.sends) == 6


async def test_a_batch_for_a_wrong_topic_is_not_announced() -> None:
    """A listener would wait for the end of a send that never started."""
    calls: list[str] = []

    class Started(Listener):
        def started(self, event: SendEvent) -> None:
            calls.append("started")

        def failed(self, event: SendEvent, error: BaseException) -> None:
            calls.append("failed")

    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        client = ClientConfig(namespace="n" * 100)
        async with Producer("g", names.address, client=client, listeners=[Started()]) as producer:
            with pytest.raises(TopicInvalid):
                await producer.send_batch([Message("T" * 100, b"x")])
    assert calls == []
