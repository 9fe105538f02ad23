"""The cases that docs/reference/mqproducer.md names. Each takes a `place`, so it runs against any broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rocketpy.sync
from rocketpy import (
    AdminClient,
    ByMachineRoom,
    ClientConfig,
    CompressionConfig,
    DelayLevels,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    MessageTraceConfig,
    Outcome,
    ProducerConfig,
    PullConsumer,
    RetryConfig,
    RoundRobin,
    SendEvent,
    SendResult,
    SendStatus,
    by_hash,
    by_random,
    create_reply_message,
)
from rocketpy.config import LatencyConfig
from rocketpy.errors import (
    BrokerError,
    ClientClosed,
    ConfigInvalid,
    MessageInvalid,
    MessageTooLarge,
    ReplyTimeout,
    RequestTimeout,
    RouteNotFound,
    SendForbidden,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.message.recall_handle import RecallHandle
from rocketpy.protocol.message.trace import Sent
from rocketpy.protocol.message.trace import decode as decode_trace
from rocketpy.protocol.remoting.command import Command
from tests.mqproducer.place import Place, eventually, message

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT,
    LocalTransactionState.ROLLBACK,
    LocalTransactionState.UNKNOWN,
)


# -- life ---------------------------------------------------------------------------------------


async def test_start_and_shutdown(place: Place) -> None:
    """A producer could be used before its start or after its end, and would fail unclearly."""
    producer = place.producer()
    with pytest.raises(ClientClosed, match="not started"):
        await producer.send(message("T"))
    await producer.start()
    topic = place.topic("life")
    last = producer.send_nowait(message(topic))
    assert await producer.close() == []
    assert (await last).status is SendStatus.SEND_OK
    with pytest.raises(ClientClosed):
        await producer.send(message(topic))


# -- sends --------------------------------------------------------------------------------------


async def test_send(place: Place) -> None:
    """A plain send, with or without its own timeout, would not store its message unchanged."""
    topic = place.topic("send")
    async with place.producer() as producer:
        first = await producer.send(message(topic, b"1", tags="t", keys="k", flag=7, properties={"p": "v"}))
        second = await producer.send(message(topic, b"2"), timeout_ms=5000)
    assert {first.status, second.status} == {SendStatus.SEND_OK}
    found = {one.message_id: one for one in await place.read(topic, 2)}
    one = found[first.message_id]
    assert (one.body, one.tags, one.keys, one.flag, one.properties["p"]) == (b"1", "t", ("k",), 7, "v")
    assert found[second.message_id].body == b"2"


async def test_send_async(place: Place) -> None:
    """The result of an asynchronous send would be missing, or its callback not be called."""
    topic = place.topic("async")
    called: list[asyncio.Future[Any]] = []
    async with place.producer() as producer:
        futures = [producer.send_nowait(message(topic, b"%d" % n), timeout_ms=5000) for n in range(20)]
        futures[0].add_done_callback(called.append)
        results = await asyncio.gather(*futures)
    assert called == [futures[0]]
    assert {one.message_id for one in await place.read(topic, 20)} == {
        result.message_id for result in results
    }


async def test_send_oneway(place: Place) -> None:
    """Oneway messages would not be stored, in any of the three forms."""
    topic = place.topic("oneway")
    async with place.producer() as producer:
        queues = await place.made(producer, topic)
        producer.send_oneway(message(topic, b"turn"))
        producer.send_oneway(message(topic, b"queue"), queue=queues[2])
        producer.send_oneway(message(topic, b"selector"), selector=lambda all_, _message, n: all_[n], arg=3)
    found = {one.body: one.queue_id for one in await place.read(topic, 3)}
    assert found == {b"turn": found[b"turn"], b"queue": 2, b"selector": 3}


async def test_send_to_queue(place: Place) -> None:
    """A message would go to another queue than its sender chose."""
    topic = place.topic("queue")
    async with place.producer() as producer:
        queue = (await place.made(producer, topic))[3]
        results = [await producer.send(message(topic, b"%d" % n), queue=queue) for n in range(3)]
        results.append(await producer.send_nowait(message(topic, b"3"), queue=queue, timeout_ms=5000))
    assert [result.queue for result in results] == [queue] * 4
    assert [one.body for one in await place.read(topic, 4)] == [b"0", b"1", b"2", b"3"]


async def test_send_with_selector(place: Place) -> None:
    """Messages of one order would be spread over queues, and overtake each other."""
    topic = place.topic("selector")
    seen: list[object] = []

    def by_number(queues: Sequence[MessageQueue], chosen: Message, arg: int) -> MessageQueue:
        seen.append((len(queues), chosen.topic, arg))
        return queues[arg % len(queues)]

    async with place.producer() as producer:
        early = producer.send_nowait(message(topic, b"first of a new topic"), selector=by_hash, arg="order-7")
        later = [
            await producer.send(message(topic, b"%d" % n), selector=by_hash, arg="order-7") for n in range(3)
        ]
        assert {result.queue for result in later} == {(await early).queue}
        three = await producer.send(message(topic), selector=by_number, arg=3, timeout_ms=5000)
        assert (three.queue.queue_id, seen) == (3, [(4, topic, 3)])
        with pytest.raises(MessageInvalid, match="it must return a queue"):
            await producer.send(message(topic), selector=lambda *_: None)  # type: ignore[arg-type]
        with pytest.raises(ZeroDivisionError):
            await producer.send(message(topic), selector=lambda *_: 1 // 0)  # type: ignore[arg-type]


async def test_selectors(place: Place) -> None:
    """A built-in selector would not choose among the topic's queues as documented."""
    topic = place.topic("selectors")
    turns = RoundRobin()
    async with place.producer() as producer:
        queues = await place.made(producer, topic)
        results = [await producer.send(message(topic), selector=turns) for _ in range(8)]
        assert [result.queue for result in results] == [*queues, *queues]
        by_chance = [producer.send_nowait(message(topic), selector=by_random) for _ in range(200)]
        assert {result.queue for result in await asyncio.gather(*by_chance)} == set(queues)
        with pytest.raises(RouteNotFound, match="machine rooms"):
            await producer.send(message(topic), selector=ByMachineRoom(["room1"]))


async def test_send_batch(place: Place) -> None:
    """A list of messages would lose some, or a list too long for one request would be refused."""
    topic = place.topic("batch")
    bodies = [b"%03d" % n + bytes(2000) for n in range(100)]
    async with place.producer() as producer:
        queue = (await place.made(producer, topic))[1]
        batch = [message(topic, body) for body in bodies]
        results = await producer.send_batch(batch, queue=queue, timeout_ms=5000)
        assert [result.queue_offset for result in results] == list(range(100))
        assert len(await producer.send_batch(batch[:3])) == 3
    found = await place.read(topic, 103)
    assert [one.body for one in found if one.queue_id == 1][:100] == bodies


# -- transactions -------------------------------------------------------------------------------


async def test_transaction(place: Place) -> None:
    """A message would be seen although its transaction rolled back, or not although it committed."""
    topic = place.topic("tx")
    at_hand: list[str | None] = []

    async def commit(half: Message) -> LocalTransactionState:
        at_hand.append(half.transaction_id)
        return COMMIT

    async with place.producer("mq_transactions") as producer:
        await place.made(producer, topic)
        with pytest.raises(ConfigInvalid, match="no transaction check"):
            await producer.send_in_transaction(message(topic), local_transaction=commit)
        result = await producer.send_in_transaction(
            message(topic, b"committed", keys="c"), local_transaction=commit, check=lambda _: UNKNOWN
        )
        rolled = await producer.send_in_transaction(
            message(topic, b"rolled back"), local_transaction=lambda _: ROLLBACK
        )
        assert (result.status, result.state, rolled.state) == (SendStatus.SEND_OK, COMMIT, ROLLBACK)
        assert result.end_delivered
        assert rolled.end_delivered
        assert at_hand == [result.transaction_id]
        with pytest.raises(MessageInvalid, match="no delay"):
            await producer.send_in_transaction(message(topic, delay_level=1), local_transaction=commit)
        await producer.send(message(topic, b"after"))
        found = {one.body: one for one in await place.read(topic, 2)}
    assert set(found) == {b"committed", b"after"}
    one = found[b"committed"]
    assert (one.message_id, one.transaction_id, one.keys) == (
        result.message_id,
        result.transaction_id,
        ("c",),
    )


async def test_transaction_of_a_new_topic(place: Place) -> None:
    """A committed message whose topic did not exist would stay invisible until the broker checks it."""
    topic = place.topic("tx_new")
    async with place.producer("mq_transactions_new") as producer:
        result = await producer.send_in_transaction(
            message(topic, b"committed"), local_transaction=lambda _: COMMIT, check=lambda _: UNKNOWN
        )
        assert (result.state, result.end_delivered) == (COMMIT, True)
        (found,) = await place.read(topic, 1)
    assert (found.body, found.message_id) == (b"committed", result.message_id)


async def test_transaction_check(place: Place) -> None:
    """A transaction whose end the broker did not receive would stay open."""
    topic = place.topic("txcheck")
    asked: list[tuple[bytes, str | None]] = []

    async def check(half: MessageExt) -> LocalTransactionState:
        asked.append((half.body, half.transaction_id))
        assert half.topic == topic
        if half.body == b"fails":
            return COMMIT
        return COMMIT if len([body for body, _ in asked if body == half.body]) > 1 else UNKNOWN

    def fail(_half: Message) -> LocalTransactionState:
        raise RuntimeError("the database is away")

    async with place.producer("mq_checked") as producer:
        producer.check_transactions(check)
        await place.made(producer, topic)
        open_ = await producer.send_in_transaction(
            message(topic, b"open"), local_transaction=lambda _: UNKNOWN
        )
        failed = await producer.send_in_transaction(message(topic, b"fails"), local_transaction=fail)
        assert (open_.state, failed.state) == (UNKNOWN, UNKNOWN)
        found = await place.read(topic, 2, timeout_s=90)
    assert {one.body for one in found} == {b"open", b"fails"}
    assert {one.message_id for one in found} == {open_.message_id, failed.message_id}
    assert (b"open", open_.transaction_id) in asked


# -- request-reply ------------------------------------------------------------------------------


async def test_request(place: Place) -> None:
    """A requester would not get its reply, or another request's."""
    topic = place.topic("request")
    async with place.producer() as producer:
        queues = await place.made(producer, topic)
        async with place.replier(topic):
            reply = await producer.request(message(topic, b"one"), timeout_ms=10_000)
            assert (reply.body, reply.tags) == (b"re: one", "reply")
            bodies = [b"%d" % n for n in range(20)]
            replies = await asyncio.gather(
                *[producer.request(message(topic, b), timeout_ms=10_000) for b in bodies]
            )
            assert [one.body for one in replies] == [b"re: " + body for body in bodies]
            at_queue = await producer.request(message(topic, b"q"), queue=queues[1], timeout_ms=10_000)
            selected = await producer.request(
                message(topic, b"s"), selector=by_hash, arg="x", timeout_ms=10_000
            )
            assert (at_queue.body, selected.body) == (b"re: q", b"re: s")
    assert b"q" in {one.body for one in await place.read(topic, 23) if one.queue_id == 1}


async def test_request_async(place: Place) -> None:
    """The callback of an asynchronous request would not be called."""
    topic = place.topic("reqasync")
    done: list[asyncio.Future[MessageExt]] = []
    async with place.producer() as producer:
        await place.made(producer, topic)
        async with place.replier(topic):
            future = producer.request_nowait(message(topic, b"later"), timeout_ms=10_000)
            future.add_done_callback(done.append)
            assert (await future).body == b"re: later"
    assert done == [future]


async def test_request_times_out(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A requester would wait forever, or a late reply would be taken for that of the next request."""
    topic = place.topic("reqlate")
    async with place.producer() as producer, place.producer("late_replies") as replier:
        await place.made(producer, topic)
        with pytest.raises(ReplyTimeout, match="no reply came within 300 ms") as caught:
            await producer.request(message(topic, b"too late"), timeout_ms=300)
        assert caught.value.outcome is Outcome.STORED
        (request,) = await place.read(topic, 1)
        result = await replier.send(create_reply_message(request, b"sorry"))
        assert result.status is SendStatus.SEND_OK
        assert f"dropped a reply with correlation id {request.correlation_id}" in caplog.text


async def test_reply_needs_a_request(place: Place) -> None:
    """A consumer that replies to an ordinary message would send the reply to no client."""
    topic = place.topic("norequest")
    async with place.producer() as producer:
        await producer.send(message(topic))
    (plain,) = await place.read(topic, 1)
    with pytest.raises(MessageInvalid, match="is not a request: it has no CORRELATION_ID"):
        create_reply_message(plain, b"x")


# -- look-ups -----------------------------------------------------------------------------------


async def test_fetch_publish_message_queues(place: Place) -> None:
    """A sender would not see the queues it may choose from."""
    topic = place.topic("queues")
    async with place.producer() as producer:
        with pytest.raises(RouteNotFound):
            await producer.fetch_publish_message_queues(topic)
        queues = await place.made(producer, topic, 3)
    assert [(queue.topic, queue.queue_id) for queue in queues] == [(topic, 0), (topic, 1), (topic, 2)]


async def test_create_topic(place: Place) -> None:
    """A topic would not be made with the queues it should have, or not be known on return."""
    topic = place.topic("create")
    async with place.producer() as producer, AdminClient(place.namesrv) as admin:
        await producer.create_topic(topic, 6)
        assert len(await producer.fetch_publish_message_queues(topic)) == 6
        assert [one.write_queues for one in (await admin.create_topic(topic, 4)).values()] == [6]
        assert len(await admin.fetch_publish_message_queues(topic)) == 6
        with pytest.raises(ConfigInvalid, match=r"topics\.alter"):
            await admin.create_topic(topic, 8)
        with pytest.raises(RouteNotFound):
            await admin.create_topic(topic, 8, key="no_such_topic")


async def test_offsets(place: Place) -> None:
    """The bounds of a queue, or the offset of a time in it, would be wrong."""
    topic = place.topic("offsets")
    before = time.time_ns() // 1_000_000
    async with place.producer() as producer:
        queue = (await place.made(producer, topic))[0]
        for n in range(5):
            await producer.send(message(topic, b"%d" % n), queue=queue)
        found = await place.read(topic, 5)
        assert (await producer.min_offset(queue), await producer.max_offset(queue)) == (0, 5)
        assert await producer.search_offset(queue, found[0].store_timestamp - 1000) == 0
        beyond = await producer.search_offset(queue, found[4].store_timestamp + 1000)
        assert beyond in (4, 5)  # the last message for 4.x brokers, the queue's end for 5.x
        earliest = await producer.earliest_message_store_time(queue)
        assert earliest == found[0].store_timestamp >= before - 1000


async def test_view_message(place: Place) -> None:
    """A message could not be found by either of its ids."""
    topic = place.topic("view")
    async with place.producer() as producer:
        result = await producer.send(message(topic, b"look at me" * 1000))
        await place.read(topic, 1)
        by_offset = await producer.view_message(result.offset_message_id)

        async def by_unique_id() -> MessageExt | None:
            try:
                return await producer.view_message(result.message_id, topic)
            except BrokerError as error:
                if error.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
                return None

        found = [by_offset, await eventually(by_unique_id)]
        found.append(await producer.view_message(result.offset_message_id, topic))
    assert [one.body for one in found] == [b"look at me" * 1000] * 3
    assert {one.message_id for one in found} == {result.message_id}
    assert {one.queue for one in found} == {result.queue}


async def test_query_message(place: Place) -> None:
    """Support would not find an order's messages by its number."""
    topic = place.topic("query")
    async with place.producer() as producer:
        for n in range(6):
            await producer.send(message(topic, b"%d" % n, keys=[f"k{n % 2}", f"own{n}"]))
        await place.read(topic, 6)

        async def indexed() -> list[MessageExt] | None:
            found = (await producer.query_message(topic, "k1")).messages
            return found if len(found) == 3 else None

        found = await eventually(indexed)
        assert {one.body for one in found} == {b"1", b"3", b"5"}
        assert [one.body for one in (await producer.query_message(topic, "own4", 1)).messages] == [b"4"]
        assert len((await producer.query_message(topic, "k1", 2)).messages) == 2
        late = max(one.store_timestamp for one in found) + 60_000
        assert (await producer.query_message(topic, "k1", begin_ms=late)).messages == []
        assert (await producer.query_message(topic, "k")).messages == []


# -- messages -----------------------------------------------------------------------------------


async def test_delay_level(place: Place) -> None:
    """A delayed message would be delivered at once, or never."""
    topic = place.topic("delay")
    async with place.producer() as producer:
        await place.made(producer, topic)
        level = DelayLevels().level_for(timedelta(milliseconds=700))
        await producer.send(message(topic, b"in a second", delay_level=level))
        await producer.send(message(topic, b"now"))
        assert [one.body for one in await place.read(topic, 1)] == [b"now"]
        found = {one.body: one for one in await place.read(topic, 2, timeout_s=60)}
    assert set(found) == {b"in a second", b"now"}
    assert found[b"in a second"].delay_level == 1


async def test_any_delay(place: Place) -> None:
    """The message would be delivered at once, or a broker of 4.x would get a level that is not exact."""
    topic = place.topic("timers")
    async with place.producer() as producer:
        await place.made(producer, topic)
        await producer.send(message(topic, b"in 5 s", delay=timedelta(seconds=5)))  # also a level
        refusal = None
        try:
            await producer.send(message(topic, b"x", delay=timedelta(seconds=1.5)))
        except MessageInvalid as error:
            refusal = str(error)
        at = datetime.now(UTC) + timedelta(seconds=5)
        if refusal is not None:
            assert "has no timers, and no delay level for delay 0:00:01.5" in refusal
            assert "; the nearest is 1 (1s);" in refusal
            with pytest.raises(MessageInvalid, match="has no timers, and no delay level for deliver_at"):
                await producer.send(message(topic, deliver_at=at))
            (delayed,) = await place.read(topic, 1, timeout_s=60)
            assert delayed.delay_level == 2
        else:
            await producer.send(message(topic, b"at a time", deliver_at=at))
            found = {one.body: one for one in await place.read(topic, 3, timeout_s=60)}
            timed, delayed = found[b"at a time"], found[b"in 5 s"]
            assert timed.deliver_at is not None
            assert timedelta(0) <= timed.deliver_at - at < timedelta(milliseconds=1)
            assert timed.store_timestamp >= at.timestamp() * 1000 - 1000  # 5.x delivers by the second
            assert delayed.deliver_at is not None
        assert delayed.store_timestamp >= delayed.born_timestamp + 4000 - 1  # by two clocks


async def test_recall(place: Place) -> None:
    """The message would be delivered, or the caller could not tell why it is."""
    topic = place.topic("recall")
    async with place.producer() as producer:
        await place.made(producer, topic)
        result = await producer.send(message(topic, b"x", delay=timedelta(seconds=10)))  # also a level
        if result.recall_handle is None:
            handle = RecallHandle(topic, result.queue.broker_name, 4 * 10**12, result.message_id).encode()
            with pytest.raises(
                MessageInvalid, match=r"\(4\..* has no timers, so no message can be taken back"
            ):
                await producer.recall(topic, handle)
            return
        for _ in range(2):  # it can be repeated
            assert await producer.recall(topic, result.recall_handle) == result.message_id
        late = await producer.send(message(topic, b"late", delay=timedelta(seconds=2)))
        assert late.recall_handle is not None
        assert [one.body for one in await place.read(topic, 1, timeout_s=60)] == [b"late"]
        with pytest.raises(BrokerError, match="; the message was due at ") as due:
            await producer.recall(topic, late.recall_handle)
        assert due.value.code == ResponseCode.ILLEGAL_OPERATION
        await producer.send(message(topic, b"end", delay=timedelta(seconds=10)))
        found = await place.read(topic, 2, timeout_s=60)
        assert sorted(one.body for one in found) == [b"end", b"late"]


async def test_message_fields(place: Place) -> None:
    """Fields of Java's Message would be lost when sent from Python."""
    topic = place.topic("fields")
    async with place.producer() as producer:
        await producer.send(
            message(topic, flag=-5, buyer_id="b1", instance_id="i1", wait_store=False, tags="t", keys="a b")
        )
    (one,) = await place.read(topic, 1)
    assert (one.flag, one.buyer_id, one.instance_id) == (-5, "b1", "i1")
    assert not one.wait_store or "WAIT" not in one.properties  # brokers of 4.9 drop it
    assert (one.tags, one.keys, one.transaction_id) == ("t", ("a", "b"), None)


async def test_validation(place: Place) -> None:
    """A broker would be bothered with messages that it must refuse."""
    async with place.producer() as producer:
        body = bytes(4 * 1024 * 1024 + 1)
        with pytest.raises(MessageTooLarge, match="4194304 are allowed") as caught:
            await producer.send(message("T", body))
        assert caught.value.outcome is Outcome.NOT_SENT


# -- settings -----------------------------------------------------------------------------------


async def test_namespace(place: Place) -> None:
    """Tenants with a namespace would read each other's topics, or see names that are not theirs."""
    topic = place.topic("ns")
    client = ClientConfig(namesrv=place.namesrv, namespace="NS1")
    async with place.producer(client=client) as producer:
        queue = (await place.made(producer, topic))[2]
        result = await producer.send(message(topic, b"mine", keys="k"), queue=queue)
        assert (result.queue, queue.topic) == (queue, topic)
        (stored,) = await place.read(f"NS1%{topic}", 1)  # a Java broker fills its queues after it responds
        assert await producer.max_offset(queue) == 1
        async with PullConsumer("readers", client=client) as consumer:
            assert await consumer.fetch_queues(topic) == await producer.fetch_publish_message_queues(topic)
            (pulled,) = (await consumer.pull(queue, await consumer.min_offset(queue))).messages
            assert (pulled.topic, pulled.queue, pulled.body) == (topic, queue, b"mine")
            assert (await consumer.view_message(result.offset_message_id)).topic == topic
            assert (await consumer.search_offset(queue, 0), await consumer.max_offset(queue)) == (0, 1)
        assert (stored.body, stored.instance_id, stored.topic) == (b"mine", "NS1", f"NS1%{topic}")
        seen = await producer.view_message(result.offset_message_id)
        assert (seen.topic, seen.queue.topic) == (topic, topic)

        async def indexed() -> list[MessageExt] | None:
            return (await producer.query_message(topic, "k")).messages or None

        assert [one.topic for one in await eventually(indexed)] == [topic]
        done = await producer.send_in_transaction(
            message(topic, b"tx"), local_transaction=lambda _: COMMIT, check=lambda _: UNKNOWN
        )
        assert done.queue.topic == topic
        assert len(await place.read(f"NS1%{topic}", 2)) == 2


async def test_producer_group(place: Place) -> None:
    """The broker would not know the group, so no member could check its transactions."""
    topic = place.topic("group")
    async with place.producer("mq_named_group") as producer:
        await place.made(producer, topic)
        await producer.send_in_transaction(
            message(topic), local_transaction=lambda _: COMMIT, check=lambda _: UNKNOWN
        )
    (one,) = await place.read(topic, 1)
    assert one.properties["PGROUP"] == "mq_named_group"


async def test_send_timeout(place: Place) -> None:
    """A send would wait longer than its producer's timeout."""
    topic = place.topic("timeout")
    config = ProducerConfig(send_timeout_ms=1, compression=CompressionConfig(above_bytes=1 << 30))
    async with place.producer(config=config) as producer:
        await place.made(producer, topic)
        started = time.monotonic()
        with pytest.raises(RequestTimeout):
            await producer.send(message(topic, bytes(4_000_000)))
        assert time.monotonic() - started < 3


async def test_default_topic_queues(place: Place) -> None:
    """A topic that is made by its first message would get another number of queues."""
    topic = place.topic("defaults")
    async with place.producer(config=ProducerConfig(default_topic_queues=2)) as producer:
        await producer.send(message(topic))
        await place.read(topic, 1)
        assert len(await producer.fetch_publish_message_queues(topic)) == 2


async def test_default_topic(place: Place) -> None:
    """A topic to take as template, other than TBW102, would not be used."""
    topic = place.topic("template")
    async with place.producer(config=ProducerConfig(default_topic="no_such_template")) as producer:
        with pytest.raises(RouteNotFound, match="no_such_template"):
            await producer.send(message(topic))


async def test_compress_above(place: Place) -> None:
    """Long bodies would not be compressed, short ones would be, or either be read back altered."""
    topic = place.topic("deflate")
    config = ProducerConfig(compression=CompressionConfig(above_bytes=1000))
    async with place.producer(config=config) as producer:
        await producer.send(message(topic, b"a" * 1001))
        await producer.send(message(topic, b"b" * 1000))
    found = {one.body: one.sys_flag & 1 for one in await place.read(topic, 2)}
    assert found == {b"a" * 1001: 1, b"b" * 1000: 0}


async def test_max_message_size(place: Place) -> None:
    """The producer's own limit would not hold."""
    topic = place.topic("limit")
    async with place.producer(config=ProducerConfig(max_message_bytes=10)) as producer:
        await producer.send(message(topic, b"0123456789"))
        with pytest.raises(MessageTooLarge, match="11 bytes; 10 are allowed"):
            await producer.send(message(topic, b"0123456789a"))


async def test_retry_times(place: Place) -> None:
    """A failing send would be tried more or less often than its producer is set to."""
    topic = place.topic("retry")
    retry = RetryConfig(times=1, pause_ms=1, codes=frozenset({ResponseCode.MESSAGE_ILLEGAL}))
    whole = CompressionConfig(above_bytes=1 << 30)
    config = ProducerConfig(retry=retry, compression=whole, max_message_bytes=8 << 20)
    async with place.producer(config=config) as producer:
        await place.made(producer, topic)
        for send in (producer.send, producer.send_nowait):
            with pytest.raises(BrokerError) as caught:
                await send(message(topic, bytes(5 << 20)))  # above the broker's limit
            notes = " ".join(caught.value.__notes__)
            assert "attempt 2 of 2" in notes


async def test_retry_another_broker(place: Place) -> None:
    """A message that is stored as it should be would be sent twice."""
    topic = place.topic("another")
    config = ProducerConfig(retry=RetryConfig(another_broker_when_not_ok=True))
    async with place.producer(config=config) as producer:
        assert (await producer.send(message(topic))).status is SendStatus.SEND_OK
    assert len(await place.read(topic, 1)) == 1


async def test_instance_name(place: Place) -> None:
    """Two programs on one host could not be distinguished by name."""
    client = ClientConfig(namesrv=place.namesrv, instance_name="till-7")
    async with place.producer(client=client) as producer:
        assert producer.health().client_id.endswith("@till-7")
        assert (await producer.send(message(place.topic("instance")))).status is SendStatus.SEND_OK


async def test_name_server_list(place: Place) -> None:
    """With one of several name servers offline, nothing could be sent."""
    client = ClientConfig(namesrv=f"127.0.0.1:9;{place.namesrv}")
    async with place.producer(client=client, namesrv=None) as producer:
        assert (await producer.send(message(place.topic("names")))).status is SendStatus.SEND_OK


async def test_route_refresh(place: Place) -> None:
    """New queues of a topic would stay empty until the producer is restarted."""
    topic = place.topic("refresh")
    client = ClientConfig(namesrv=place.namesrv, route_refresh_ms=50)
    async with place.producer(client=client) as producer, AdminClient(place.namesrv) as admin:
        await place.made(producer, topic, 1)
        assert (await producer.send(message(topic))).queue.queue_id == 0
        await admin.topics.alter(topic, read_queues=2, write_queues=2)

        async def sent_to_new() -> bool | None:
            return (await producer.send(message(topic))).queue.queue_id == 1 or None

        assert await eventually(sent_to_new)


async def test_latency_faults(place: Place) -> None:
    """With latency fault tolerance a cluster of one broker could not be sent to any more once it was slow."""
    topic = place.topic("latency")
    latency = LatencyConfig(enabled=True, latency_ms=(0,), not_available_ms=(60_000,))
    async with place.producer(config=ProducerConfig(latency=latency)) as producer:
        results = [await producer.send(message(topic, b"%d" % n)) for n in range(8)]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert len({result.queue for result in results}) == 4


class _RpcNotes:
    """Records the requests of a client, and their responses."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.responses: list[tuple[int, int]] = []

    def before_request(self, address: str, request: Command) -> None:
        self.asked.append(request.code)

    def after_response(self, address: str, request: Command, response: Command) -> None:
        self.responses.append((request.code, response.code))


async def test_rpc_hook(place: Place) -> None:
    """Something that must see each request, such as an audit, would miss sends."""
    hook = _RpcNotes()
    client = ClientConfig(namesrv=place.namesrv, rpc_hooks=(hook,))
    async with place.producer(client=client, config=ProducerConfig(batching=False)) as producer:
        await producer.send(message(place.topic("rpc")))
    assert {RequestCode.GET_ROUTEINTO_BY_TOPIC, RequestCode.SEND_MESSAGE_V2} <= set(hook.asked)
    assert (RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS) in hook.responses


async def test_check_forbidden(place: Place) -> None:
    """A message that a company's own rule forbids would be sent."""
    topic = place.topic("forbidden")

    def forbid(checked: Message, queue: MessageQueue, group: str) -> None:
        if b"secret" in checked.body:
            raise ValueError(f"{group} must not send this to {queue.broker_name}")

    async with place.producer(checks=[forbid]) as producer:
        await producer.send(message(topic, b"public"))
        with pytest.raises(SendForbidden) as caught:
            await producer.send(message(topic, b"a secret"))
        assert caught.value.outcome is Outcome.NOT_SENT
    assert [one.body for one in await place.read(topic, 1)] == [b"public"]


class _Notes:
    """Writes down how sends ended, and adds a property."""

    def __init__(self) -> None:
        self.ended: list[object] = []

    def started(self, event: SendEvent) -> None:
        event.extra_properties[0]["span"] = "s1"

    def completed(self, event: SendEvent, results: Sequence[SendResult]) -> None:
        self.ended.append(results[0].status)

    def failed(self, event: SendEvent, error: BaseException) -> None:
        self.ended.append(error)


async def test_listener(place: Place) -> None:
    """Telemetry would get no event of a send, or could not send its context."""
    topic, notes = place.topic("listener"), _Notes()
    async with place.producer(listeners=[notes]) as producer:
        await producer.send(message(topic))
    assert notes.ended == [SendStatus.SEND_OK]
    assert [one.properties["span"] for one in await place.read(topic, 1)] == ["s1"]


async def test_message_trace(place: Place) -> None:
    """The queries of RocketMQ would not find a message."""
    topic, traces = place.topic("traced"), place.topic("traces")
    config = ProducerConfig(message_trace=MessageTraceConfig(topic=traces))
    async with place.producer(config=config) as producer:
        await place.made(producer, traces)
        result = await producer.send(message(topic, b"hello"))
    reports = [one for found in await place.read(traces, 1) for one in decode_trace(found.body.decode())]
    assert [(type(one), one.message_id) for one in reports] == [(Sent, result.message_id)]


async def test_heartbeat(place: Place) -> None:
    """The broker would forget the producer between its sends, and no reply would reach it any more."""
    topic = place.topic("heartbeat")
    client = ClientConfig(namesrv=place.namesrv, heartbeat_ms=50)
    async with place.producer(client=client) as producer:
        await place.made(producer, topic)
        async with place.replier(topic):
            for _ in range(3):
                assert (await producer.request(message(topic, b"x"), timeout_ms=10_000)).body == b"re: x"
                await asyncio.sleep(0.1)
        assert producer.health().ok


# -- blocking -----------------------------------------------------------------------------------


async def test_blocking_calls(place: Place) -> None:
    """Programs without an event loop would lack a part of it."""
    topic = place.topic("blocking")
    async with place.producer() as producer:
        await place.made(producer, topic)
    async with place.replier(topic):
        await asyncio.to_thread(_block, place.namesrv, topic)


def _block(namesrv: str, topic: str) -> None:
    with rocketpy.sync.Producer("mq_blocking", namesrv) as producer:
        queue = producer.fetch_publish_message_queues(topic)[0]
        by_arg = producer.send(message(topic, b"0", keys="k"), selector=by_hash, arg="a")
        assert (
            producer.send_async(message(topic, b"1"), selector=by_hash, arg="a").result(10).queue
            == by_arg.queue
        )
        producer.send_oneway(message(topic, b"2"), queue=queue)
        assert producer.request(message(topic, b"3"), timeout_ms=10_000).body == b"re: 3"
        called: list[object] = []
        future = producer.request_async(message(topic, b"4"), called.append, timeout_ms=10_000)
        assert future.result(10).body == b"re: 4"
        done = producer.send_in_transaction(
            message(topic, b"5"), local_transaction=lambda _: COMMIT, check=lambda _: ROLLBACK
        )
        assert done.state is COMMIT
        failed = producer.send_in_transaction(message(topic, b"6"), local_transaction=lambda _: 1 // 0)  # type: ignore[arg-type, return-value]
        assert failed.state is UNKNOWN
        assert producer.view_message(by_arg.offset_message_id).body == b"0"
    with rocketpy.sync.AdminClient(namesrv) as admin:
        admin.create_topic(f"{topic}_more", 2)
        assert len(admin.fetch_publish_message_queues(f"{topic}_more")) == 2
        assert admin.min_offset(queue) == 0
        assert admin.max_offset(queue) >= 0
        assert admin.search_offset(queue, 0) == 0
        assert admin.earliest_message_store_time(queue) >= -1
        assert [one.body for one in _until_found(admin, topic)] == [b"0"]
        assert admin.health().ok


def _until_found(admin: rocketpy.sync.AdminClient, topic: str) -> list[MessageExt]:
    until = time.monotonic() + 20
    while not (found := admin.query_message(topic, "k").messages) and time.monotonic() < until:
        time.sleep(0.02)
    return found
