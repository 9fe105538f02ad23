"""Automatic batching: results of callers, messages that are sent individually, and batches that fail."""

from __future__ import annotations

import asyncio
import contextlib
import random
import zlib
from collections.abc import AsyncIterator

import pytest

from rocketpy import (
    BatchConfig,
    ClientConfig,
    CompressionConfig,
    Message,
    Outcome,
    Producer,
    ProducerConfig,
    RetryConfig,
    SendResult,
)
from rocketpy.client.instance import ClientInstance
from rocketpy.errors import BrokerError, ClientClosed, ConnectionLost, FlowControlled, RequestTimeout
from rocketpy.message import MessageQueue
from rocketpy.producer.send.sink import PROBE_AGAIN_MS
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import SendMessageResponseHeader
from rocketpy.protocol.message import properties
from rocketpy.protocol.message.batch import decode_batch
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from tests.integration.sdk_peers import SENDS, Names, Peer, cut, hangs_up, silent, stored
from tests.waiting import LIMIT_S, until

ZLIB = b"\x78"
SINGLE, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


class Store(Peer):
    """A broker that keeps bodies by queue, and can reject batches like a DLedger broker of 4.6.0."""

    def __init__(self, *, refuses_batches: bool = False) -> None:
        super().__init__(self.keep)
        self.refuses_batches = refuses_batches
        self.queues: dict[int, list[bytes]] = {}

    def keep(self, _channel: Channel, request: Command) -> Command:
        """Store the messages."""
        if request.code not in SENDS:
            return stored(request)
        if request.code == BATCH and self.refuses_batches:
            return request.reply(ResponseCode.MESSAGE_ILLEGAL, remark="the message is illegal")
        queue_id = int(request.ext_fields()["e"])
        queue = self.queues.setdefault(queue_id, [])
        offset = len(queue)
        queue += (
            [message.body for message in decode_batch(request.body)]
            if request.code == BATCH
            else [request.body]
        )
        ids = ",".join(f"{queue_id:016X}{number:016X}" for number in range(offset, len(queue)))
        header = SendMessageResponseHeader(msg_id=ids, queue_id=queue_id, queue_offset=offset)
        return request.reply(header=header)


@contextlib.asynccontextmanager
async def producer_of(
    broker: Peer, config: ProducerConfig | None = None, queues: int = 2
) -> AsyncIterator[Producer]:
    """A producer whose topic T this broker serves."""
    async with broker, Names() as names:
        names.queues = queues
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, config=config) as producer:
            yield producer


def codes(peer: Peer) -> list[int]:
    """The codes of the send requests it got."""
    return [command.code for command in peer.sends]


# -- results and order --------------------------------------------------------------------------------------


async def caller(producer: Producer, broker: Store, name: int, rng: random.Random) -> None:
    """Sends messages of many kinds one by one, and reads the message that each result names."""
    for number in range(rng.randrange(12)):
        body = b"%d/%d/" % (name, number) + b"x" * rng.choice([0, 0, 0, 90])
        queue = rng.choice([None, None, MessageQueue("T", "a", rng.randrange(3))])
        message = Message("T", body, wait_store=rng.random() < 0.8, tags=rng.choice([None, "t"]))
        result = await producer.send(message, queue=queue)
        at = broker.queues[result.queue.queue_id][result.queue_offset]
        assert body == (zlib.decompress(at) if at.startswith(ZLIB) else at)
        assert result.offset_message_id.endswith(f"{result.queue_offset:016X}")
        assert queue is None or result.queue == queue
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)


async def ordered(producer: Producer, queue_id: int, rng: random.Random) -> None:
    """Sends 40 messages to one queue without waiting for responses."""
    queue = MessageQueue("T", "a", queue_id)
    sends: list[asyncio.Future[SendResult]] = []
    for number in range(40):
        message = Message("T", b"o%d/%02d" % (queue_id, number), wait_store=number % 7 > 0)
        while len(sends) == number:
            try:
                sends.append(producer.send_nowait(message, queue=queue))
            except FlowControlled:
                await producer.drain()
        if rng.random() < 0.2:
            await asyncio.sleep(0)
    await asyncio.gather(*sends)


@pytest.mark.parametrize("seed", range(6))
async def test_each_caller_gets_its_own_result(seed: int) -> None:
    """A caller would get another one's offset, a message be lost or doubled, or a queue lose its order."""
    rng = random.Random(seed)
    broker = Store(refuses_batches=seed % 3 == 2)
    config = ProducerConfig(
        batch=BatchConfig(max_gathered=rng.choice([1, 3, 512]), linger_ms=rng.choice([0, 0, 2])),
        compression=CompressionConfig(above_bytes=60),
        max_in_flight=rng.choice([7, 1000]),
    )
    async with producer_of(broker, config, queues=3) as producer:
        async with asyncio.TaskGroup() as group:
            for name in range(30):
                group.create_task(caller(producer, broker, name, rng))
            for queue_id in range(3):
                group.create_task(ordered(producer, queue_id, rng))
        assert (producer.health().in_flight, producer.health().in_flight_bytes) == (0, 0)
    for queue_id, bodies in broker.queues.items():
        mine = [body for body in bodies if body.startswith(b"o%d/" % queue_id)]
        assert mine == [b"o%d/%02d" % (queue_id, number) for number in range(40)]
        assert len(set(bodies)) == len(bodies)


async def test_sends_of_one_loop_iteration_share_a_request() -> None:
    """Batching would cost as many requests as there are queues, or fill one queue only."""
    broker = Store()
    async with producer_of(broker) as producer:
        for _ in range(3):
            await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(50)])
        assert codes(broker) == [SINGLE] + [BATCH] * 3
        assert sorted(len(bodies) for bodies in broker.queues.values()) == [51, 99]
        for _ in range(3):
            await producer.send(Message("T", b"alone"))
        assert codes(broker)[4:] == [SINGLE] * 3


async def test_messages_keep_their_properties() -> None:
    """Tags, keys, flags and properties of batched messages would be lost."""
    broker = Store()
    async with producer_of(broker) as producer:
        messages = [
            Message("T", b"1", tags="t", keys=["k1", "k2"], flag=-5, properties={"ü": "%s"}),
            Message("T", b"2"),
        ]
        results = await asyncio.gather(*[producer.send(message) for message in [messages[1], *messages]])
        del results[0]
    request = broker.sends[1]
    first, second = decode_batch(request.body)
    assert (first.flag, second.flag) == (-5, 0)
    assert properties.decode(first.properties) == {
        "UNIQ_KEY": results[0].message_id,
        "WAIT": "true",
        "TAGS": "t",
        "KEYS": "k1 k2",
        "ü": "%s",
    }
    assert properties.decode(second.properties) == {"UNIQ_KEY": results[1].message_id, "WAIT": "true"}
    assert properties.decode(request.ext_fields()["i"]) == {"WAIT": "true"}


async def test_messages_that_must_not_be_batched_are_sent_individually() -> None:
    """Delays and compression would be ignored by the broker; retry topics refuse batches."""
    broker = Store()
    async with producer_of(broker) as producer:
        await asyncio.gather(
            *[producer.send(Message("T", b"x", delay_level=1)) for _ in range(2)],
            *[producer.send(Message("T", b"x" * 5000)) for _ in range(2)],
        )
        assert codes(broker) == [SINGLE] * 4
    broker = Store()
    async with producer_of(broker, ProducerConfig(batching=False)) as producer:
        await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(4)])
        assert codes(broker) == [SINGLE] * 4


# -- brokers that reject batches ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED])
async def test_a_broker_that_rejects_batches_gets_single_messages(code: int) -> None:
    """Every send to a DLedger broker of 4.6.0 would fail, or try a batch first each time."""

    def refuse(_channel: Channel, request: Command) -> Command:
        return request.reply(code, remark="no batch") if request.code == BATCH else stored(request)

    broker = Peer(refuse)
    async with producer_of(broker) as producer:
        results = await asyncio.gather(*[producer.send(Message("T", b"%d" % number)) for number in range(9)])
        assert codes(broker) == [SINGLE, BATCH] + [SINGLE] * 8
        assert len({result.message_id for result in results}) == 9
        await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(9)])
        assert codes(broker)[10:] == [SINGLE] * 9
        assert producer.health().in_flight == 0


async def test_a_broker_that_rejected_a_batch_is_probed_later() -> None:
    """After one rejection, for example during an upgrade, a producer would never send batches again, and
    no log line would explain why it is slow.
    """
    broker = Store(refuses_batches=True)
    async with producer_of(broker) as producer:

        def let_pass(time_ms: float) -> None:
            """Let time pass since the rejection."""
            (sink,) = producer._sender._sinks.values()  # type: ignore[union-attr] # its clock is that of the loop
            sink._rejected_ms -= time_ms

        async def sent() -> list[int]:
            """The codes of the requests that carry four messages, sent at the same time."""
            before = len(broker.sends)
            await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(4)])
            return codes(broker)[before:]

        assert producer.health().rejecting_batches == ()
        assert await sent() == [SINGLE, BATCH] + [SINGLE] * 3
        assert producer.health().rejecting_batches == ("a",)
        assert producer.health().ok
        let_pass(PROBE_AGAIN_MS / 2)
        assert await sent() == [SINGLE] * 4
        let_pass(PROBE_AGAIN_MS / 2)
        assert await sent() == [BATCH] + [SINGLE] * 4
        let_pass(PROBE_AGAIN_MS / 2)
        broker.refuses_batches = False
        assert await sent() == [SINGLE] * 4
        let_pass(PROBE_AGAIN_MS / 2)
        assert await sent() == [BATCH]
        assert producer.health().rejecting_batches == ()
        assert await sent() == [BATCH]
    assert sum(map(len, broker.queues.values())) == 24


async def test_a_broker_that_left_is_forgotten() -> None:
    """Each restart of a broker at another address would take memory, and stay in `health()` for ever."""
    first, second = Store(refuses_batches=True), Store()
    async with first, second, Names() as names:
        names.routes["T"] = {"a": first.address}
        client = ClientConfig(route_refresh_ms=20)
        async with Producer("g", names.address, client=client) as producer:
            await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(4)])
            assert producer.health().rejecting_batches == ("a",)
            names.routes["T"] = {"a": second.address}
            await until(lambda: first.address not in producer.health().brokers)
            assert producer.health().rejecting_batches == ()
            await producer.send(Message("T", b"x"))
            assert producer._sender is not None
            assert len(producer._sender._sinks) == 1
    assert producer._sender._sinks == {}


async def test_a_send_that_waits_for_a_broker_that_left_goes_to_another() -> None:
    """It would open a connection that no route has, or wait until its timeout."""
    first, second = Store(), Store()
    async with first, second, Names() as names:
        names.routes["T"] = {"a": first.address}
        client = ClientConfig(route_refresh_ms=20)
        async with Producer("g", names.address, client=client) as producer:
            await producer.send(Message("T", b"x"))
            (sink,) = producer._sender._sinks.values()  # type: ignore[union-attr]
            channel = sink.connection.channel
            assert channel is not None
            channel.pause_writing()
            waiting = producer.send_nowait(Message("T", b"waits"), timeout_ms=600_000)
            await until(lambda: bool(sink._waiting))
            names.routes["T"] = {"a": second.address}
            result = await waiting
        assert result.attempts == 1
    assert sum(map(len, first.queues.values())) == sum(map(len, second.queues.values())) == 1


async def test_a_closed_producer_leaves_no_sends_at_its_broker() -> None:
    """With a shared connection, each producer that closes would leave its messages in memory."""
    broker = Store()
    async with producer_of(broker) as producer:
        await producer.send(Message("T", b"x"))
        (sink,) = producer._sender._sinks.values()  # type: ignore[union-attr]
        channel = sink.connection.channel
        assert channel is not None
        channel.pause_writing()
        waiting = producer.send_nowait(Message("T", b"waits"))
        await until(lambda: bool(sink._waiting))
        await producer.close(timeout_ms=0)
        with pytest.raises(ClientClosed):
            await waiting
        assert not sink._waiting


async def test_a_batch_rejected_for_one_message_does_not_end_batching() -> None:
    """One bad message, for which a whole batch is rejected, would mark the broker as rejecting batches."""

    def refuse_bad(channel: Channel, request: Command) -> Command:
        if b"bad" in request.body:
            return request.reply(ResponseCode.MESSAGE_ILLEGAL, remark="the message is bad")
        return broker.keep(channel, request)

    broker = Store()
    broker.script = refuse_bad
    async with producer_of(broker) as producer:
        bodies = (b"1", b"2", b"bad", b"3")
        ends = await asyncio.gather(
            *[producer.send(Message("T", body)) for body in bodies], return_exceptions=True
        )
        assert [type(end) for end in ends] == [SendResult, SendResult, BrokerError, SendResult]
        assert codes(broker) == [SINGLE, BATCH] + [SINGLE] * 3
        await asyncio.gather(*[producer.send(Message("T", b"%d" % number)) for number in range(5)])
        assert BATCH in codes(broker)[5:]
        assert producer.health().rejecting_batches == ()


async def test_a_rejected_batch_of_the_caller_starts_no_probe() -> None:
    """Each rejected batch of `send_batch` would cost another rejected batch, the probe."""
    broker = Store(refuses_batches=True)
    async with producer_of(broker) as producer:
        await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(3)])
        with pytest.raises(BrokerError):
            await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
        assert producer.health().rejecting_batches == ("a",)
        before = len(broker.sends)
        await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(3)])
        assert codes(broker)[before:] == [SINGLE] * 3


async def test_no_message_overtakes_the_first_batch() -> None:
    """Order would be lost once, when a broker rejects the first batch."""
    broker = Store(refuses_batches=True)
    async with producer_of(broker, queues=1) as producer:
        sends: list[asyncio.Future[SendResult]] = []
        for number in range(30):
            sends.append(producer.send_nowait(Message("T", b"%02d" % number)))
            if number % 7 == 6:
                await asyncio.sleep(0)
        await asyncio.gather(*sends)
    assert broker.queues[0] == [b"%02d" % number for number in range(30)]


async def test_a_broker_that_is_silent_during_a_probe_blocks_no_caller() -> None:
    """Sends that wait for the response to the first batch would outlive their timeouts."""
    broker = Peer(silent)
    async with producer_of(broker, ProducerConfig(retry=RetryConfig(times=0))) as producer:
        sends = [producer.send_nowait(Message("T", b"x"), timeout_ms=40) for _ in range(2)]
        await asyncio.sleep(0)
        sends += [producer.send_nowait(Message("T", b"y"), timeout_ms=40) for _ in range(2)]
        async with asyncio.timeout(LIMIT_S):
            ends = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(end) for end in ends] == [RequestTimeout] * 4
        broker.script = None
        await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(3)])
        assert producer.health().in_flight == 0


async def test_a_connection_that_ends_before_the_first_batch_was_written() -> None:
    """All sends would wait forever for the response to a batch that was never written."""
    async with Store() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        config = ProducerConfig(batch=BatchConfig(linger_ms=1))  # makes the first request a batch
        async with Producer("g", names.address, config=config) as producer:
            await producer.fetch_publish_message_queues("T")
            client = await ClientInstance.acquire(ClientConfig(namesrv=names.address))
            client.connections.opened = cut(1, broker.address)
            for _ in range(2):
                await asyncio.gather(*[producer.send(Message("T", b"x"), timeout_ms=5000) for _ in range(3)])
            await client.release()
        assert codes(broker) == [BATCH] * 2


# -- failures, cancelling, closing --------------------------------------------------------------------------


async def test_a_lost_batch_fails_each_caller_with_an_error_of_its_own() -> None:
    """Callers would share one traceback, or not learn that the message may be stored."""
    broker = Peer(hangs_up)
    async with producer_of(broker, ProducerConfig(retry=RetryConfig(times=0))) as producer:
        ends = await asyncio.gather(
            *[producer.send(Message("T", b"x")) for _ in range(5)], return_exceptions=True
        )
    assert {type(end) for end in ends} == {ConnectionLost}
    assert {end.outcome for end in ends if isinstance(end, ConnectionLost)} == {Outcome.UNKNOWN}
    assert len({id(end) for end in ends}) == 5


async def test_a_repeated_batch_keeps_its_ids() -> None:
    """Consumers could not recognize a message that was stored twice."""
    handled: list[Command] = []

    def busy_once(_channel: Channel, request: Command) -> Command:
        if request.code != BATCH:
            return stored(request)
        handled.append(request)
        return request.reply(ResponseCode.SYSTEM_ERROR) if len(handled) == 1 else stored(request)

    async with producer_of(Peer(busy_once), ProducerConfig(retry=RetryConfig(pause_ms=1))) as producer:
        results = await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(4)])
    assert len(handled) == 2
    assert handled[0].body == handled[1].body
    assert [result.queue_offset for result in results[1:]] == [7, 8, 9]


async def test_a_cancelled_send_does_not_affect_its_batch() -> None:
    """One cancelled send would cancel the batch, or keep its place in flight forever."""
    broker = Store()
    async with producer_of(broker) as producer:
        early = [producer.send_nowait(Message("T", b"e%d" % number)) for number in range(4)]
        early[1].cancel()
        ends = await asyncio.gather(*early, return_exceptions=True)
        assert isinstance(ends[1], asyncio.CancelledError)
        assert [body for bodies in broker.queues.values() for body in bodies] == [b"e0", b"e2", b"e3"]
        late = [producer.send_nowait(Message("T", b"l%d" % number)) for number in range(4)]
        await asyncio.sleep(0)
        late[2].cancel()
        ends = await asyncio.gather(*late, return_exceptions=True)
        assert [isinstance(end, asyncio.CancelledError) for end in ends] == [False, False, True, False]
        gone = [producer.send_nowait(Message("T", b"g%d" % number)) for number in range(4)]
        for send in gone:
            send.cancel()
        await producer.send(Message("T", b"last"))
        assert not any(body.startswith(b"g") for bodies in broker.queues.values() for body in bodies)
        assert (producer.health().in_flight, producer.health().in_flight_bytes) == (0, 0)


async def test_close_sends_accumulated_messages() -> None:
    """Messages that were accepted a moment before the end of a program would be lost."""
    broker = Store()
    async with producer_of(broker, ProducerConfig(batch=BatchConfig(linger_ms=60_000))) as producer:
        sends = [producer.send_nowait(Message("T", b"%d" % number)) for number in range(3)]
        assert await producer.close() == []
        assert [(await send).queue_offset for send in sends] == [0, 1, 2]


async def test_close_reports_accumulated_messages_without_a_response() -> None:
    """A program could not save the messages that a silent broker did not accept."""
    broker = Peer(silent)
    async with producer_of(broker) as producer:
        messages = [Message("T", b"%d" % number) for number in range(3)]
        sends = [producer.send_nowait(message) for message in messages]
        await broker.until(lambda: len(broker.sends) == 2)
        unfinished = await producer.close(timeout_ms=20)
        assert unfinished == [(message, Outcome.UNKNOWN) for message in messages]
        ends = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(end) for end in ends} == {ClientClosed}


async def test_thousands_in_flight_hold_little_memory() -> None:
    """A slow broker would let the producer's memory grow far beyond the messages themselves."""
    import tracemalloc  # noqa: PLC0415 - only this test needs it

    count = 20_000
    config = ProducerConfig(max_in_flight=count, close_timeout_ms=0)
    broker = Peer()
    async with producer_of(broker, config) as producer:
        await asyncio.gather(*[producer.send(Message("T", b"x")) for _ in range(3)])
        assert BATCH in codes(broker)
        broker.script = silent
        messages = [Message("T", b"%0100d" % number) for number in range(count)]
        tracemalloc.start()
        sends: list[asyncio.Future[SendResult]] = []
        for message in messages:
            sends.append(producer.send_nowait(message, timeout_ms=60_000))
            if len(sends) % 1000 == 0:
                await asyncio.sleep(0)
        await broker.until(lambda: codes(broker)[-1] == BATCH)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert producer.health().in_flight == count
        assert used / count < 1024 + 100
        for send in sends:
            send.cancel()
