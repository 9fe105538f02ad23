"""Push consumers over real sockets: handlers, retries, and members that join and leave."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    ConsumeResult,
    Later,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PushConfig,
    PushConsumer,
    Sql,
)
from rocketpy.consumer.handling.send_back import SendBack
from rocketpy.errors import ClientClosed, ConfigInvalid
from rocketpy.protocol.bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo, GetConsumerStatusBody
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from rocketpy.protocol.message.delays import SCHEDULE_TOPIC
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.transport import Channel
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.raw_client import RawClient
from tests.integration.sdk_groups import FIRST, Seen, committed, consuming, of_topic, send, texts
from tests.mqconsumer.group import Requests
from tests.waiting import LIMIT_S, until


async def test_an_async_handler_gets_everything_once(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Messages sent before or after the consumer's start would be lost or handled twice."""
    early = await send(producer, *texts("early", 50))
    seen = Seen()
    async with consuming(cluster, seen) as consumer:
        late = await send(producer, *texts("late", 50))
        await seen.until(100)
        assert seen.bodies == Counter(early + late)
        await until(lambda: len(consumer.assignment) == 5)  # with the queue of its retry topic
        assert {queue.topic for queue in consumer.assignment} == {"T", "%RETRY%g"}
        assert consumer.health().ok
    assert committed(cluster) == 100
    assert seen.messages[0].topic == "T"


async def test_a_plain_function_runs_on_threads(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A handler that blocks would stop the whole application, or messages be handled one at a time."""
    threads: set[str] = set()
    barrier = threading.Barrier(8, timeout=LIMIT_S)
    done: list[bytes] = []

    def handle(message: MessageExt) -> None:
        threads.add(threading.current_thread().name)
        barrier.wait()  # returns once eight handlers run at the same time
        done.append(message.body)

    sent = await send(producer, *texts("blocking", 16))
    async with consuming(cluster, handle, concurrency=8):
        await until(lambda: len(done) == 16)
    assert sorted(done) == sorted(sent)
    assert len(threads) == 8
    assert threading.current_thread().name not in threads
    assert committed(cluster) == 16


async def test_each_copy_is_delayed_longer() -> None:
    """Where a broker rejects returned messages, retries would come equally often after each failure."""
    settings = {"messageDelayLevel": "0s " * 6}
    failing = Seen(lambda message: ConsumeResult.LATER if message.reconsume_times < 3 else None)
    async with EmbeddedCluster(settings=settings, transport="memory") as cluster:
        (broker,) = cluster.brokers
        del broker._endpoint._handlers[RequestCode.CONSUMER_SEND_MSG_BACK]
        async with Producer("p", cluster.namesrv_address) as producer:
            await producer.send(Message("U", b"creates the topic"))
            async with consuming(cluster, failing) as consumer:
                await until(lambda: any(queue.topic == "%RETRY%g" for queue in consumer.assignment))
                await send(producer, "fails")
                await until(lambda: failing.bodies.total() == 4)
        offsets = [broker.store.max_offset_in_queue(SCHEDULE_TOPIC, level - 1) for level in range(1, 7)]
    assert offsets == [0, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("how", [ConsumeResult.LATER, Later(delay_level=1), "raise"])
async def test_failed_messages_are_retried(
    cluster: EmbeddedCluster, producer: Producer, how: ConsumeResult | Later | str
) -> None:
    """A message whose handler failed would be lost, be delivered at once, or have the retry topic's name."""

    def says(message: MessageExt) -> Any:
        if message.body != b"bad 1" or message.reconsume_times:
            return None
        if how == "raise":
            raise RuntimeError("no")
        return how

    seen = Seen(says)
    async with consuming(cluster, seen):
        sent = await send(producer, *texts("bad", 3), tags="TagA")
        await until(lambda: seen.bodies.total() == 4)
    assert seen.bodies == Counter([*sent, b"bad 1"])
    first, again = (message for message in seen.messages if message.body == b"bad 1")
    assert (again.topic, again.tags, again.reconsume_times) == ("T", "TagA", 1)
    level = 1 if isinstance(how, Later) else 2
    assert cluster.brokers[0].store.max_offset_in_queue(SCHEDULE_TOPIC, level - 1) == 1
    assert again.store_timestamp - first.store_timestamp >= (1000 if level == 1 else 0)
    assert committed(cluster) == 3


async def test_an_invalid_filter_of_a_start_without_waiting(cluster: EmbeddedCluster) -> None:
    """The error would not be reported, or `health` would still report it after the filter was corrected."""
    consumer = PushConsumer("g", cluster.namesrv_address, Seen())
    consumer.subscribe("T", Sql("size >"))
    await consumer.start(wait=False)
    try:
        await until(lambda: any("expression" in problem for problem in consumer.health().problems))
        consumer.subscribe("T", Sql("size > 3"))
        await until(lambda: consumer.health().ok)
    finally:
        await consumer.close()


async def test_members_share_and_take_over(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Two members would read one queue, or no member would read the queues of one that left."""
    one, two = Seen(), Seen()
    async with consuming(cluster, one, name="one") as first:
        await until(lambda: len(of_topic(first)) == 4)
        async with consuming(cluster, two, name="two") as second:
            await until(lambda: len(of_topic(first)) == len(of_topic(second)) == 2)
            assert not set(of_topic(first)) & set(of_topic(second))
            sent = await send(producer, *texts("shared", 40))
            await until(lambda: (one.bodies + two.bodies).total() >= 40)
            assert one.bodies + two.bodies == Counter(sent)
            assert one.bodies
            assert two.bodies
        await until(lambda: len(of_topic(first)) == 4)
        alone = await send(producer, *texts("alone", 20))
        await until(lambda: (one.bodies + two.bodies).total() >= 60)
    assert one.bodies + two.bodies == Counter(sent + alone)
    assert committed(cluster) == 60


async def test_a_second_member_in_one_client_is_rejected(cluster: EmbeddedCluster) -> None:
    """Brokers would take two members for one, and no member would read half of the queues."""
    async with consuming(cluster, Seen()):
        second = PushConsumer("g", cluster.namesrv_address, Seen())
        with pytest.raises(ConfigInvalid, match="instance_name"):
            await second.start()
        with pytest.raises(ClientClosed):
            second.health()


async def test_every_pull_has_the_same_consumer_fields(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Later pulls would request other messages, be held for another time, or store no offset."""
    queue = MessageQueue("T", "broker-a", 0)
    for number in range(5):
        await producer.send(Message("T", b"%d" % number, tags="a"), queue=queue)
    pulls = Requests(RequestCode.PULL_MESSAGE)
    consumer = PushConsumer(
        "g",
        cluster.namesrv_address,
        Seen(),
        config=PushConfig(consume_from=FIRST, pull_batch_size=1, post_subscription=True),
        client=ClientConfig(rpc_hooks=(pulls,)),
    )
    consumer.subscribe("T", "a || b")

    def fields(offset: str) -> list[dict[str, str]]:
        seen = [one.ext_fields() for one in pulls.seen]
        return [
            each
            for each in seen
            if (each["topic"], each["queueId"], each["queueOffset"]) == ("T", "0", offset)
        ]

    async with consumer:
        await until(lambda: bool(fields("5")) and consumer.progress().get(queue) == 5)
        await producer.send(Message("T", b"last", tags="a"), queue=queue)
        await until(lambda: bool(fields("6")))
    (first, *_), (last, *_) = fields("0"), fields("6")
    assert first["subscription"] == "a || b"
    assert int(last["sysFlag"]) == int(first["sysFlag"]) | PullSysFlag.COMMIT_OFFSET
    assert last["commitOffset"] in {"5", "6"}
    changing = {"queueOffset", "commitOffset", "sysFlag"}
    assert {name: value for name, value in last.items() if name not in changing} == {
        name: value for name, value in first.items() if name not in changing
    }


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 256),
        ({"queue_messages_max": 100}, 100),
        ({"queue_messages_max": 10}, 32),
        ({"queue_messages_max": 10, "pull_batch_size": 4}, 4),
    ],
)
async def test_a_pull_is_as_large_as_the_cache_of_its_queue(
    cluster: EmbeddedCluster, producer: Producer, settings: dict[str, int], expected: int
) -> None:
    """A consumer would pull its backlog in small pieces, or hold many more messages than it may."""
    queue = MessageQueue("T", "broker-a", 0)
    await producer.send_batch([Message("T", b"%d" % number) for number in range(300)], queue=queue)
    handled: list[bytes] = []
    pulls = Requests(RequestCode.PULL_MESSAGE)
    consumer = PushConsumer(
        "g",
        cluster.namesrv_address,
        lambda message: handled.append(message.body),
        config=PushConfig(consume_from=FIRST, threads=False, **settings),  # type: ignore[arg-type]
        client=ClientConfig(rpc_hooks=(pulls,)),
    )
    consumer.subscribe("T")
    async with consumer:
        await until(lambda: len(handled) == 300)
    seen = [one.ext_fields() for one in pulls.seen]
    assert {int(one["maxMsgNums"]) for one in seen if one["topic"] == "T"} == {expected}
    offsets = sorted(
        {int(one["queueOffset"]) for one in seen if (one["topic"], one["queueId"]) == ("T", "0")}
    )
    assert offsets == [*range(0, 300, expected), 300]


async def test_a_handler_that_takes_too_long_when_broadcasting(
    cluster: EmbeddedCluster, producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message would be stored in a retry topic, which no member of a broadcasting group reads."""
    sent_back: list[object] = []

    async def send_back(_: SendBack, message: MessageExt, *_args: object) -> None:
        sent_back.append(message)

    monkeypatch.setattr(SendBack, "send_back", send_back)
    never = asyncio.Event()

    async def handle(_: MessageExt) -> None:
        await never.wait()

    broadcasting: dict[str, Any] = {"model": MessageModel.BROADCASTING, "offset_directory": tmp_path}
    async with consuming(
        cluster, handle, consume_timeout_ms=100, close_timeout_ms=100, **broadcasting
    ) as consumer:
        await send(producer, "hangs")
        await until(lambda: sum(consumer.progress().values()) == 1)
    assert sent_back == []


async def test_hanging_handlers_do_not_stop_the_pulls_when_broadcasting(
    cluster: EmbeddedCluster, producer: Producer, tmp_path: Path
) -> None:
    """The queue would stay full of messages that were given up: nothing more of it would be handled."""
    never = asyncio.Event()
    begun: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        begun.append(message.body)
        await never.wait()

    queue = MessageQueue("T", "broker-a", 0)
    for text in texts("hangs", 5):
        await producer.send(Message("T", text.encode()), queue=queue)
    async with consuming(
        cluster,
        handle,
        model=MessageModel.BROADCASTING,
        offset_directory=tmp_path,
        queue_messages_max=1,
        pull_batch_size=1,
        consume_timeout_ms=100,
        close_timeout_ms=100,
    ):
        await until(lambda: len(begun) == 5)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_that_ends_too_late(
    cluster: EmbeddedCluster, producer: Producer, *, is_async: bool
) -> None:
    """Its message, which was sent back, would be counted twice, or its worker stop."""
    late = threading.Event()
    ended: list[tuple[bytes, int]] = []

    def hang(message: MessageExt) -> None:
        if message.body == b"hangs" and message.reconsume_times == 0:
            late.wait(30)
        ended.append((message.body, message.reconsume_times))

    async def hang_async(message: MessageExt) -> None:
        await asyncio.to_thread(hang, message)

    handler = hang_async if is_async else hang
    async with consuming(cluster, handler, consume_timeout_ms=300, concurrency=2):
        await send(producer, "hangs")
        await until(lambda: ended == [(b"hangs", 1)])
        late.set()
        await until(lambda: ended == [(b"hangs", 1), (b"hangs", 0)])
        await send(producer, "next", "last")
        await until(lambda: len(ended) == 4)
    assert sorted(ended[2:]) == [(b"last", 0), (b"next", 0)]
    assert committed(cluster) == 3


async def test_closing_waits_for_messages_that_are_sent_back(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """A failed message would be redelivered, and be handled once more from the old offset."""
    requested: list[tuple[Channel, Command]] = []
    endpoint = cluster.brokers[0]._endpoint
    send_back = endpoint._handlers[RequestCode.CONSUMER_SEND_MSG_BACK]
    endpoint._handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda *request: requested.append(request)
    async with consuming(cluster, Seen(lambda _: ConsumeResult.LATER)) as consumer:
        await send(producer, "fails")
        await until(lambda: requested)
        closing = asyncio.create_task(consumer.close())
        done, _ = await asyncio.wait({closing}, timeout=0.3)
        assert not done
        ((channel, request),) = requested
        endpoint._run_saved(send_back, channel, request, 0, None)
        assert await closing
    assert committed(cluster) == 1


async def test_a_close_without_time_continues_in_the_background(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """Heartbeats would continue for a member that is gone, and no member would get its queues."""
    began, ends = asyncio.Event(), asyncio.Event()

    async def handle(_: MessageExt) -> None:
        began.set()
        await ends.wait()

    async with consuming(cluster, handle) as consumer:  # `producer` keeps the shared connections open
        await send(producer, "last")
        await began.wait()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        ends.set()
        assert await consumer.close()
        assert committed(cluster) == 1
        assert cluster.brokers[0].consumers.clients.consumer_group("g") is None
    async with consuming(cluster, handle):
        pass


async def test_subscriptions_may_change(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A running consumer would keep to the topics that it began with."""
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.create_topic("U", 2)
    seen = Seen()
    async with consuming(cluster, seen, "red") as consumer:
        consumer.subscribe("U")
        await until(lambda: len(of_topic(consumer, "U")) == 2)
        await send(producer, "u", topic="U")
        await seen.until(1)
        consumer.subscribe("T", "blue")
        await until(lambda: len(of_topic(consumer, "T")) == 4)
        consumer.unsubscribe("U")
        await until(lambda: not of_topic(consumer, "U"))
        await send(producer, "blue", tags="blue")
        await seen.until(2)
    assert seen.bodies == Counter([b"u", b"blue"])


async def test_namespaces(cluster: EmbeddedCluster) -> None:
    """A tenant would see its own prefix, or messages and retries of another tenant."""
    config = ClientConfig(namespace="tenant")
    seen = Seen(lambda message: ConsumeResult.LATER if not message.reconsume_times else None)
    async with Producer("senders", cluster.namesrv_address, client=config) as producer:
        await producer.send(Message("Theirs", b"one"))
        async with consuming(cluster, seen, topic="Theirs", namespace="tenant") as consumer:
            await until(lambda: len(seen.messages) == 2)
            assert {queue.topic for queue in consumer.assignment} == {"Theirs", "%RETRY%g"}
    assert [message.topic for message in seen.messages] == ["Theirs", "Theirs"]
    assert committed(cluster, "tenant%g", "tenant%Theirs") == 1


# -- requests of operators ------------------------------------------------------------------------


async def ask(cluster: EmbeddedCluster, code: int, header: Any, language: str = "JAVA") -> Command:
    command = Command.request(code, header)
    command.language = language
    async with await RawClient.open(cluster.brokers[0].address) as raw:
        return await raw.call_frame(encode_command(command))


@pytest.mark.parametrize("language", ["JAVA", "CPP"])
async def test_resetting_offsets(cluster: EmbeddedCluster, producer: Producer, language: str) -> None:
    """A reset would be overwritten by the next commit, or one by a tool in C++ be ignored: it is a list."""
    sent = await send(producer, *texts("again", 12))
    seen = Seen()
    async with consuming(cluster, seen, persist_interval_ms=50):
        await seen.until(12)
        await until(lambda: committed(cluster) == 12)
        header = ResetOffsetRequestHeader(topic="T", group="g", timestamp=0, is_force=True)
        response = await ask(cluster, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, language)
        assert response.code == ResponseCode.SUCCESS
        await until(lambda: seen.bodies.total() == 24)
    assert seen.bodies == Counter(sent * 2)
    assert committed(cluster) == 12


async def test_status_and_running_info(cluster: EmbeddedCluster, producer: Producer) -> None:
    """The consumerStatus of mqadmin would show nothing of a member with this client."""
    seen = Seen()
    async with consuming(cluster, seen, name="shown") as consumer:
        await send(producer, *texts("status", 8))
        await seen.until(8)
        await until(lambda: len(consumer.assignment) == 5)
        client_id = consumer.member.client.client_id
        info_header = GetConsumerRunningInfoRequestHeader(
            consumer_group="g", client_id=client_id, jstack_enable=True
        )
        response = await ask(cluster, RequestCode.GET_CONSUMER_RUNNING_INFO, info_header)
        info = ConsumerRunningInfo.decode(response.body)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert set(info.mq_table) == set(consumer.member.pullers)
        assert info.status_table["T"].consume_ok_tps
        assert {sub.topic for sub in info.subscription_set} == {"T", "%RETRY%g"}
        assert "MainThread" in (info.jstack or "")
        status_header = GetConsumerStatusRequestHeader(topic="T", group="g")
        response = await ask(cluster, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, status_header)
        table = GetConsumerStatusBody.decode(response.body).consumer_table[client_id]
        assert sum(table.values()) == 8


async def test_an_operator_sees_when_a_queue_was_pulled(cluster: EmbeddedCluster, producer: Producer) -> None:
    """The consumerStatus of mqadmin would show the time of the assignment, or a time in 1970."""
    seen = Seen()
    async with consuming(cluster, seen, name="timed") as consumer:
        await until(lambda: len(consumer.assignment) == 5)
        held = [puller.process_queue for puller in consumer.member.pullers.values()]
        for queue in held:
            queue.pulled_ms = 0
        await send(producer, *texts("timed", 8))
        await seen.until(8)
        await until(lambda: any(queue.pulled_ms for queue in held))
        last_ms = max(info.last_pull_timestamp for info in consumer.running_info().mq_table.values())
        assert 0 <= time.time() * 1000 - last_ms < 60_000


@pytest.mark.parametrize(("said", "kind"), [(None, "CR_SUCCESS"), (ConsumeResult.LATER, "CR_LATER")])
async def test_a_message_tried_by_an_operator(
    cluster: EmbeddedCluster, producer: Producer, said: Any, kind: str
) -> None:
    """The consumeMessage of mqadmin would not reach the handler, or would move the group's offset."""
    result = await producer.send(Message("T", b"try me"))
    seen = Seen(lambda _: said)
    async with consuming(cluster, seen, "nothing of that", name="tried") as consumer:
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group="g",
            client_id=consumer.member.client.client_id,
            msg_id=result.offset_message_id,
            broker_name="broker-a",
        )
        response = await ask(cluster, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        assert response.code == ResponseCode.SUCCESS
        outcome = ConsumeMessageDirectlyResult.decode(response.body)
        assert (outcome.consume_result, outcome.order) == (kind, False)
        assert [message.body for message in seen.messages] == [b"try me"]
