"""Consumers that read nothing say so: one rule for every reason. Queues that need not be read are exempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rocketpy import (
    AllocateAveragely,
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PushConfig,
    PushConsumer,
    QueueState,
    Sql,
)
from rocketpy.consumer.fetch import consumer_api
from rocketpy.consumer.group import member
from rocketpy.protocol.bodies import (
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetResponseHeader,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.consumer.test_slave_reads import Member as Replica
from tests.integration.consumer.test_slave_reads import Names as ReplicaNames
from tests.integration.sdk_groups import FIRST, Seen, committed, consuming, of_topic, send, texts
from tests.integration.sdk_peers import Names, Peer
from tests.integration.small import SMALL
from tests.waiting import until

SWIFT: dict[str, Any] = {
    "rebalance_interval_ms": 20,
    "persist_interval_ms": 20,
    "suspend_timeout_ms": 20,
    "pull_timeout_ms": 60_000,  # a pull that fails is repeated after 3 s
}

Answer = Callable[[Command], Command | None]


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests of members time out soon."""
    monkeypatch.setattr(member, "_REQUEST_TIMEOUT_MS", 50)
    monkeypatch.setattr(consumer_api, "_OFFSET_TIMEOUT_MS", 50)
    monkeypatch.setattr(consumer_api, "_LOCK_TIMEOUT_MS", 50)


class Sick(Peer):
    """A broker with empty queues. answers: what it responds instead, by request code; None for nothing."""

    def __init__(self, **answers: Answer) -> None:
        super().__init__(self.respond)
        self.answers = {RequestCode[name]: answer for name, answer in answers.items()}
        self.client_id = ""

    def respond(self, channel: Channel, request: Command) -> Command | None:
        """Respond like a broker without messages, unless there is another answer."""
        if (answer := self.answers.get(RequestCode(request.code))) is not None:
            response = answer(request)
            if response is None:
                channel.exclude_from_unanswered()
            return response
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            found = GetConsumerListByGroupResponseBody(consumer_id_list=[self.client_id])
            return request.reply(body=found.encode())
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return request.reply(header=QueryConsumerOffsetResponseHeader(offset=0))
        if request.code == RequestCode.LOCK_BATCH_MQ:
            wanted = LockBatchRequestBody.decode(request.body).mq_set
            return request.reply(body=LockBatchResponseBody(lock_ok_mq_set=wanted).encode())
        if request.code == RequestCode.PULL_MESSAGE:
            return empty(request)
        return request.reply()

    async def until_asked(self, code: int, times: int = 3) -> None:
        """Wait until this many more requests of this kind have arrived."""
        wanted = len(self.requests(code)) + times
        await self.until(lambda: len(self.requests(code)) >= wanted)


def empty(request: Command) -> Command:
    """A response to a pull: no message at its offset."""
    offset = request.header_as(PullMessageRequestHeader).queue_offset
    header = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=offset, min_offset=0, max_offset=offset
    )
    return request.reply(ResponseCode.PULL_NOT_FOUND, header=header)


def silent(_request: Command) -> None:
    """No response."""


def damaged(request: Command) -> Command:
    """A response that cannot be decoded."""
    return request.reply(body=b"{")


def negative(request: Command) -> Command:
    """A committed offset below zero."""
    return request.reply(header=QueryConsumerOffsetResponseHeader(offset=-3))


def not_a_number(request: Command) -> Command:
    """A committed offset that is no number."""
    reply = request.reply()
    reply.ext = {"offset": "many"}
    return reply


def busy(request: Command) -> Command:
    """A refusal that may end by itself."""
    return request.reply(ResponseCode.SYSTEM_BUSY, remark="busy")


def lacks(request: Command) -> Command:
    """A list of members without this one."""
    body = GetConsumerListByGroupResponseBody(consumer_id_list=["10.0.0.1@other"])
    return request.reply(body=body.encode())


def locked_elsewhere(request: Command) -> Command:
    """No lock."""
    return request.reply(body=LockBatchResponseBody(lock_ok_mq_set=[]).encode())


def moved(request: Command) -> Command:
    """The offset of a pull is outside of the queue, again and again."""
    header = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=5, min_offset=5, max_offset=5
    )
    return request.reply(ResponseCode.PULL_OFFSET_MOVED, header=header)


def served_by(broker: Peer) -> Names:
    """A name server with one broker, which has a queue of T and one of the group's retry topic."""
    names = Names(**{topic: {"a": broker.address} for topic in ("T", "%RETRY%g")})
    names.queues = 1
    return names


def consumer_of(names: Names, **config: Any) -> PushConsumer:
    consumer = PushConsumer("g", names.address, Seen(), config=PushConfig(**SWIFT | config))
    consumer.subscribe("T")
    return consumer


TROUBLE: list[tuple[str, Answer, str, dict[str, Any]]] = [
    ("GET_CONSUMER_LIST_BY_GROUP", silent, "the members of the group are not known: ", {}),
    ("GET_CONSUMER_LIST_BY_GROUP", busy, "the members of the group are not known: ", {}),
    ("GET_CONSUMER_LIST_BY_GROUP", lacks, "the brokers' list of the group's members lacks this one", {}),
    ("QUERY_CONSUMER_OFFSET", silent, "cannot be acquired: ", {}),
    ("QUERY_CONSUMER_OFFSET", busy, "cannot be acquired: ", {}),
    ("PULL_MESSAGE", silent, "no request for ", {"pull_timeout_ms": 50}),
    ("PULL_MESSAGE", busy, "busy", {}),
    ("PULL_MESSAGE", moved, "its offset ", {}),
    ("LOCK_BATCH_MQ", silent, "cannot be acquired: ", {"orderly": True}),
    ("LOCK_BATCH_MQ", locked_elsewhere, "another member of the group has locked it", {"orderly": True}),
]


@pytest.mark.parametrize(
    ("code", "answer", "words", "config"), TROUBLE, ids=[f"{row[0]}-{row[1].__name__}" for row in TROUBLE]
)
@pytest.mark.usefixtures("short_timeouts")
async def test_what_lasts_for_a_minute_is_a_problem(
    code: str, answer: Answer, words: str, config: dict[str, Any], later: Callable[[], None]
) -> None:
    """A consumer would read nothing for hours while its readiness probe is green."""
    async with Sick() as broker, served_by(broker) as names:
        broker.answers[RequestCode[code]] = answer
        async with consumer_of(names, **config) as consumer:
            broker.client_id = consumer.health().client_id
            await broker.until_asked(RequestCode[code])
            await until(lambda: consumer.health().ok)  # it may end by itself
            later()
            await consumer.member.client.heartbeat()  # its interval is half a minute
            await until(lambda: any(words in problem for problem in consumer.health().problems))
            assert not consumer.health().ok
            assert any("s: " in problem for problem in consumer.health().problems)
            del broker.answers[RequestCode[code]]
            await until(lambda: consumer.health().ok)
            await until(lambda: set(consumer.health().queues.values()) == {QueueState.READING})


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("GET_CONSUMER_LIST_BY_GROUP", damaged),
        ("QUERY_CONSUMER_OFFSET", negative),
        ("QUERY_CONSUMER_OFFSET", not_a_number),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_a_wrong_response_is_a_problem_at_once(code: str, answer: Answer) -> None:
    """No queue would be read, and only the log would say so."""
    async with Sick() as broker, served_by(broker) as names:
        broker.answers[RequestCode[code]] = answer
        async with consumer_of(names) as consumer:
            broker.client_id = consumer.health().client_id
            await until(lambda: not consumer.health().ok)
            del broker.answers[RequestCode[code]]
            await until(lambda: consumer.health().ok)


@pytest.mark.usefixtures("short_timeouts")
async def test_an_assigned_queue_without_its_offset(later: Callable[[], None]) -> None:
    """A consumer with queues of its own has no subscription, so nothing would show that they are not read."""
    async with Sick(QUERY_CONSUMER_OFFSET=busy) as broker, served_by(broker) as names:
        queue = MessageQueue("T", "a", 0)
        consumer = LitePullConsumer("g", names.address, config=LitePullConfig(**SWIFT))
        await consumer.assign([queue])
        await consumer.start(wait=False)
        try:
            await broker.until_asked(RequestCode.QUERY_CONSUMER_OFFSET, 1)
            later()
            await consumer.member.client.heartbeat()  # its interval is half a minute
            await until(lambda: f"no request for {queue} has succeeded" in str(consumer.health().problems))
            assert consumer.health().queues == {queue: QueueState.STALLED}
            await consumer.assign([])
            await until(lambda: consumer.health().ok)
            assert consumer.health().queues == {}
        finally:
            await consumer.close()


@pytest.mark.usefixtures("short_timeouts")
async def test_a_lock_that_is_lost_for_a_minute(later: Callable[[], None]) -> None:
    """No handler is called without the lock, while all pulls succeed."""
    async with (
        Sick() as broker,
        served_by(broker) as names,
        consumer_of(names, orderly=True) as consumer,
    ):
        broker.client_id = consumer.health().client_id
        await until(lambda: len(consumer.assignment) == 2)
        broker.answers[RequestCode.LOCK_BATCH_MQ] = locked_elsewhere
        later()
        await consumer.member.client.heartbeat()  # its interval is half a minute
        await consumer.member.locks._renew(consumer.member.locks._held())
        await broker.until_asked(RequestCode.PULL_MESSAGE, 4)
        assert "another member of the group has locked it" in str(consumer.health().problems)
        assert set(consumer.health().queues.values()) == {QueueState.STALLED}
        del broker.answers[RequestCode.LOCK_BATCH_MQ]
        await consumer.member.locks._renew(consumer.member.locks._held())
        await until(lambda: consumer.health().ok)


async def test_a_strategy_that_fails() -> None:
    """The application's own strategy would leave a member without queues."""

    class Broken:
        name = "BROKEN"

        def allocate(
            self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
        ) -> list[MessageQueue]:
            raise ValueError("no zone")

    async with (
        Sick() as broker,
        served_by(broker) as names,
        consumer_of(names, allocation=Broken()) as consumer,
    ):
        broker.client_id = consumer.health().client_id
        await until(lambda: any("ValueError: no zone" in text for text in consumer.health().problems))


async def test_a_strategy_that_fails_for_one_topic(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Other topics of the member would not be read either, and their messages would wait."""

    class Partial(AllocateAveragely):
        def allocate(
            self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
        ) -> list[MessageQueue]:
            if queues[0].topic == "A":
                raise ValueError("no zone")
            return super().allocate(group, client_id, queues, members)

    for topic in ("A", "T"):
        await send(producer, "one", topic=topic)
    seen = Seen()
    async with consuming(cluster, seen, topic="A", allocation=Partial(), **SWIFT) as consumer:
        consumer.subscribe("T")
        await seen.until(1)
        assert {message.topic for message in seen.messages} == {"T"}
        assert any("ValueError: no zone" in text for text in consumer.health().problems)
        consumer.member.watch.has_route("A")  # as each rebalance does first
        assert any("ValueError: no zone" in text for text in consumer.health().problems)


async def test_a_bug_in_commits_does_not_end_them(
    cluster: EmbeddedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start would deliver again what was handled since a failure hours ago."""
    seen = Seen()
    async with consuming(cluster, seen, **SWIFT) as consumer:
        offsets = consumer.member.offsets
        write, failed = offsets.write, asyncio.Event()

        async def fail(*_: object, **__: object) -> Any:
            failed.set()
            raise ValueError("planted")

        monkeypatch.setattr(offsets, "write", fail)
        await failed.wait()
        await until(lambda: not consumer.health().ok)
        [problem] = consumer.health().problems
        assert problem.startswith("commit of offsets of consumer group g has failed")
        assert problem.endswith("ValueError: planted")
        monkeypatch.setattr(offsets, "write", write)
        await send(producer, *texts("m", 3))
        await seen.until(3)
        await until(lambda: committed(cluster) == 3)
        await until(lambda: consumer.health().ok)


async def test_an_empty_queue_is_read(
    cluster: EmbeddedCluster, producer: Producer, later: Callable[[], None]
) -> None:
    """A consumer without messages at night would be restarted every minute."""
    await send(producer, *texts("one", 1))
    seen = Seen()
    async with consuming(cluster, seen, **SWIFT) as consumer:
        await seen.until(1)
        later()
        await consumer.member.client.heartbeat()  # its interval is half a minute
        await until(lambda: consumer.health().ok)
        assert {consumer.health().queues[queue] for queue in of_topic(consumer)} == {QueueState.READING}


async def test_a_paused_consumer_is_exempt(
    cluster: EmbeddedCluster, producer: Producer, later: Callable[[], None]
) -> None:
    """A consumer that an application has paused would be restarted, or reported when it continues."""
    await send(producer, *texts("one", 1))
    seen = Seen()
    async with consuming(cluster, seen, **SWIFT) as consumer:
        await seen.until(1)
        consumer.pause()
        await until(lambda: all(puller.is_waiting for puller in consumer.member.pullers.values()))
        later()
        await consumer.member.client.heartbeat()  # its interval is half a minute
        await until(lambda: consumer.health().ok)  # offsets are stored during a pause, too
        assert set(consumer.health().queues.values()) == {QueueState.PAUSED}
        consumer.resume()
        assert consumer.health().ok
        await send(producer, *texts("two", 1))
        await seen.until(2)
        assert consumer.health().ok


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("on_thread", [False, True], ids=["async", "thread"])
async def test_handlers_that_hang(
    cluster: EmbeddedCluster, producer: Producer, *, orderly: bool, on_thread: bool
) -> None:
    """A consumer whose handlers all hang handles nothing more, although it still reads its queues."""
    go_on = threading.Event()

    async def handle(_: MessageExt) -> None:
        while not go_on.is_set():  # noqa: ASYNC110 - shared with the other handler
            await asyncio.sleep(0.01)

    def handle_on_thread(_: MessageExt) -> None:
        go_on.wait()

    handler = handle_on_thread if on_thread else handle
    try:
        async with (
            consuming(cluster, handler, orderly=orderly, consume_timeout_ms=300) as consumer,
            consuming(cluster, handler, group="patient", name="patient", orderly=orderly) as patient,
        ):
            assert consumer.health().ok
            await send(producer, "hangs")
            await until(lambda: consumer.health().problems)
            assert patient.health().ok
            (problem,) = consumer.health().problems
            assert problem.startswith("1 handler calls have run for longer than 300 ms (consume_timeout_ms)")
            go_on.set()
            await until(lambda: consumer.health().ok)
    finally:
        go_on.set()


async def test_full_and_paused_queues_are_exempt(
    cluster: EmbeddedCluster, producer: Producer, later: Callable[[], None]
) -> None:
    """An application that polls slowly would be reported as a consumer without a broker."""
    await send(producer, *texts("m", 40))
    config = LitePullConfig(consume_from=FIRST, queue_messages_max=1, pull_batch_size=4, **SWIFT)
    async with LitePullConsumer("g", cluster.namesrv_address, config=config) as consumer:
        consumer.subscribe("T")
        await until(lambda: set(consumer.health().queues.values()) == {QueueState.FULL})
        later()
        await consumer.member.client.heartbeat()  # its interval is half a minute
        await until(lambda: consumer.health().ok)
        assert set(consumer.health().queues.values()) == {QueueState.FULL}
        first = of_topic(consumer)[0]
        consumer.pause([first])
        assert consumer.health().queues[first] is QueueState.PAUSED
        consumer.resume()
        assert consumer.health().ok
        while await consumer.poll(200):
            assert consumer.health().ok


async def test_a_queue_that_waits_for_its_handler_is_shown_as_revoked(
    cluster: EmbeddedCluster, producer: Producer, later: Callable[[], None]
) -> None:
    """Nobody would see why a queue has no owner."""
    began, go = asyncio.Event(), asyncio.Event()

    async def handle(_: MessageExt) -> None:
        began.set()
        await go.wait()

    async with consuming(cluster, handle, orderly=True, **SWIFT) as consumer:
        await send(producer, "stuck")
        await began.wait()
        consumer.unsubscribe("T")
        await until(lambda: QueueState.REVOKED in consumer.health().queues.values())
        later()
        await consumer.member.client.heartbeat()  # its interval is half a minute
        await consumer.member.locks._renew(consumer.member.locks._held())  # of the retry topic's queue
        await until(lambda: consumer.health().ok)
        go.set()
        await until(lambda: QueueState.REVOKED not in consumer.health().queues.values())


async def test_damaged_offsets_of_a_broadcasting_consumer(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """It would read nothing: no queue begins without its offset."""
    file = tmp_path / "127.0.0.1@one/g/offsets.json"
    file.parent.mkdir(parents=True)
    file.write_text("{damaged")
    config: dict[str, Any] = {"model": MessageModel.BROADCASTING, "offset_directory": tmp_path}
    async with consuming(cluster, Seen(), name="one", **config, **SWIFT) as consumer:
        await until(lambda: f"neither {file} nor its backup can be read" in str(consumer.health().problems))
        await until(lambda: set(consumer.health().queues.values()) == {QueueState.STALLED})
        file.unlink()
        await until(lambda: consumer.health().ok)


async def test_offsets_that_cannot_be_stored(
    cluster: EmbeddedCluster, producer: Producer, tmp_path: Path, later: Callable[[], None]
) -> None:
    """A full disk would be found after the next restart, which handles all messages again."""
    config = SWIFT | {"model": MessageModel.BROADCASTING, "offset_directory": tmp_path / "at"}
    seen = Seen()
    (tmp_path / "at").mkdir()
    async with consuming(cluster, seen, name="one", **config) as consumer:
        await until(lambda: of_topic(consumer) != [])
        await until((tmp_path / "at/127.0.0.1@one/g/offsets.json").exists)
        (tmp_path / "at").rename(tmp_path / "old")
        (tmp_path / "at").write_text("not a directory")
        await send(producer, *texts("m", 1))
        await seen.until(1)
        later()
        await consumer.member.client.heartbeat()  # its interval is half a minute
        await until(lambda: "no commit of all offsets has succeeded for" in str(consumer.health().problems))
        (tmp_path / "at").unlink()
        await until(lambda: consumer.health().ok)


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_commits_that_a_broker_rejects(later: Callable[[], None], *, auto_commit: bool) -> None:
    """Oneway commits would be rejected unnoticed, until the next restart handles all messages again."""
    async with EmbeddedCluster(settings=SMALL | {"maxConsumerOffsets": "1"}) as running:
        config = LitePullConfig(consume_from=FIRST, auto_commit=auto_commit, **SWIFT)
        consumer = LitePullConsumer("g", running.namesrv_address, config=config)
        consumer.subscribe("T")
        async with Producer("p", running.namesrv_address) as producer, consumer:
            for queue_id in range(2):
                await producer.send(Message("T", b"m"), queue=MessageQueue("T", "broker-a", queue_id))
                assert await consumer.poll(60_000)
            await consumer.commit()
            if auto_commit:
                later()
                await consumer.member.client.heartbeat()  # its interval is half a minute
                await until(lambda: "no commit of all offsets" in str(consumer.health().problems))
            else:
                assert "the last commit of offsets failed: " in str(consumer.health().problems)
            assert "maxConsumerOffsets is 1" in str(consumer.health().problems)


async def test_a_filter_that_is_rejected_while_the_consumer_runs() -> None:
    """Its pulls would fail for ever with an error that sounds like a restart of the broker."""
    async with EmbeddedCluster(settings=SMALL) as running:
        async with Producer("p", running.namesrv_address) as producer:
            await send(producer, "one")
        async with consuming(running, Seen(), **SWIFT) as consumer:
            await until(lambda: of_topic(consumer) != [])
            consumer.subscribe("T", Sql("a = 1"))
            await until(lambda: "enablePropertyFilter=true" in str(consumer.health().problems))
            consumer.subscribe("T")
            await until(lambda: consumer.health().ok)


class Young(Replica):
    """A slave that does not know the topic yet."""

    def pulled(self, channel: Channel, request: Command) -> Command | None:
        return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark="topic[T] not exist")


async def test_a_slave_that_is_younger_than_the_topic() -> None:
    """Every second pull would fail and pause while the master redirects consumers to the slave."""
    seen = Seen()
    async with Replica() as master, Young() as slave, Replica() as other:
        master.suggests = 1
        async with ReplicaNames(master=master, slave=slave, other=other) as names:
            consumer = PushConsumer("g", names.address, seen, config=PushConfig(rebalance_interval_ms=20))
            consumer.subscribe("T")
            async with consumer:
                for broker in (master, slave, other):
                    broker.client_id = consumer.health().client_id
                await seen.until(3)
                assert consumer.health().ok
    assert len(slave.pulls) == 1


async def test_a_topic_that_only_the_returned_master_knows() -> None:
    """The consumer would ask the slave until the next refresh of routes, half a minute later."""
    seen = Seen()
    async with (
        Replica() as master,
        Young() as slave,
        Replica() as other,
        ReplicaNames(master=master, slave=slave, other=other) as names,
    ):
        del names.members[0]
        config, client = PushConfig(rebalance_interval_ms=20), ClientConfig(route_refresh_ms=10_000_000)
        consumer = PushConsumer("g", names.address, seen, config=config, client=client)
        consumer.subscribe("T")
        async with consumer:
            for broker in (master, slave, other):
                broker.client_id = consumer.health().client_id
            await slave.until(lambda: len(slave.pulls) > 1)
            names.members[0] = master
            await seen.until(3)
