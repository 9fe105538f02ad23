"""A broker's services for consumers, over real sockets: held pulls, filters, groups, locks, notifications."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    KVTable,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    PullMessageRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    SendMessageRequestHeaderV2,
    UnregisterClientRequestHeader,
)
from rocketpy.protocol.java import tags_code
from rocketpy.protocol.message.batch import encode_batch
from rocketpy.protocol.message.record import decode_all
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy_broker import Broker, EmbeddedCluster
from rocketpy_broker.filter import sql92
from rocketpy_broker.services import slices
from tests.integration.raw_client import RawClient, serving
from tests.integration.small import SMALL
from tests.turns import Turns
from tests.waiting import until

SUSPEND = 2
WITH_SUBSCRIPTION = 4


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """One broker that filters by properties too."""
    async with EmbeddedCluster(settings=SMALL | {"enablePropertyFilter": "true"}) as cluster:
        yield cluster.brokers[0]


@pytest.fixture
async def producer(broker: Broker) -> AsyncIterator[RawClient]:
    """Another connection, for sends."""
    async with await RawClient.open(broker.address) as raw:
        yield raw


async def send(client: RawClient, body: bytes, text: str = "", queue_id: int = 0) -> Command:
    header = SendMessageRequestHeaderV2(
        producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=queue_id,
        sys_flag=0, born_timestamp=1, flag=0, properties=text,
    )  # fmt: skip
    return await client.call(RequestCode.SEND_MESSAGE_V2, header, body)


def pull_request(
    offset: int = 0,
    *,
    wait_ms: int = 0,
    sub: str | None = "*",
    kind: str = "TAG",
    group: str = "c",
    queue_id: int = 0,
    version: int = 0,
    code: int = RequestCode.PULL_MESSAGE,
) -> Command:
    """A pull that carries its subscription, unless that is None."""
    header = PullMessageRequestHeader(
        consumer_group=group, topic="T", queue_id=queue_id, queue_offset=offset, max_msg_nums=32,
        sys_flag=SUSPEND * (wait_ms > 0) | WITH_SUBSCRIPTION * (sub is not None), commit_offset=0,
        suspend_timeout_millis=wait_ms, sub_version=version, subscription=sub, expression_type=kind,
    )  # fmt: skip
    return Command.request(code, header)


async def pull(client: RawClient, offset: int = 0, **how: object) -> Command:
    return await client.call_frame(encode_command(pull_request(offset, **how)))  # type: ignore[arg-type] # from a dict


async def hold(broker: Broker, client: RawClient, offset: int, **how: object) -> None:
    """Send a pull and wait until the broker holds it."""
    count = len(broker.consumers.holds)
    client.writer.write(encode_command(pull_request(offset, wait_ms=120_000, **how)))  # type: ignore[arg-type] # from a dict
    await until(lambda: len(broker.consumers.holds) == count + 1)


def bodies(response: Command) -> list[bytes]:
    return [record.body for record in decode_all(response.body)]


async def beat(
    client: RawClient,
    client_id: str = "c@1",
    *,
    sub: str = "*",
    version: int = 1,
    model: str = "CLUSTERING",
    kind: str = "TAG",
) -> Command:
    codes = {tags_code(tag) for tag in sub.split("||")} if sub != "*" and kind == "TAG" else set()
    wanted = SubscriptionData(
        topic="T", sub_string=sub, sub_version=version, code_set=codes, expression_type=kind
    )
    data = HeartbeatData(
        client_id=client_id,
        consumer_data_set=[
            ConsumerData(
                group_name="c",
                consume_type="CONSUME_PASSIVELY",
                message_model=model,
                consume_from_where="CONSUME_FROM_LAST_OFFSET",
                subscription_data_set=[wanted],
            )
        ],
    )
    return await client.call(RequestCode.HEART_BEAT, body=data.encode())


async def test_a_heartbeat_without_subscriptions_removes_none(broker: Broker, client: RawClient) -> None:
    """QUIRKS 81: a client of 5.x whose broker was RocketMQ's before would stop its whole group."""
    await beat(client)
    short = {
        "clientID": "c@2", "heartbeatFingerprint": 1284245850, "withoutSub": True,
        "consumerDataSet": [{"groupName": "c", "subscriptionDataSet": []}],
    }  # fmt: skip
    async with await RawClient.open(broker.address) as other:
        response = await other.call(RequestCode.HEART_BEAT, body=json.dumps(short).encode())
        assert response.ext_fields()["IS_SUB_CHANGE"] == "true"  # its next heartbeat has them
        group = broker.consumers.clients.consumer_group("c")
        assert group is not None
        assert (list(group.subscriptions), group.client_ids) == (["T"], ["c@1", "c@2"])
        full = await beat(other, "c@2")
    assert "IS_SUB_CHANGE" not in full.ext_fields()


# -- long polling ---------------------------------------------------------------------------------


async def test_a_held_pull_gets_the_next_message(
    broker: Broker, client: RawClient, producer: RawClient
) -> None:
    """A consumer would get a new message only with its next pull."""
    await send(producer, b"first")
    await hold(broker, client, 1)
    await send(producer, b"second")
    response = await client.next()  # long before the time of the pull is over
    assert (response.code, response.remark, bodies(response)) == (0, "FOUND", [b"second"])
    assert response.ext_fields()["nextBeginOffset"] == "2"
    assert len(broker.consumers.holds) == 0


async def test_pulls_of_newer_lite_consumers_are_held_as_well(
    broker: Broker, client: RawClient, producer: RawClient
) -> None:
    """A DefaultLitePullConsumer of RocketMQ 5.x, which has its own request code, would receive nothing."""
    await send(producer, b"first")
    assert bodies(await pull(client, 0, code=RequestCode.LITE_PULL_MESSAGE)) == [b"first"]
    await hold(broker, client, 1, code=RequestCode.LITE_PULL_MESSAGE)
    await send(producer, b"second")
    response = await client.next()  # long before the time of the pull is over
    assert (response.code, bodies(response)) == (0, [b"second"])
    table = KVTable.decode((await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    assert table["msgGetTotalTodayNow"] == "2"


async def test_a_closed_connection_leaves_no_pull_behind(broker: Broker, producer: RawClient) -> None:
    """The pulls of consumers that are gone would fill the broker's memory."""
    await send(producer, b"first")
    async with await RawClient.open(broker.address) as client:
        await hold(broker, client, 1)
    await until(lambda: len(broker.consumers.holds) == 0)


async def test_held_pulls_do_not_stop_a_connection(
    broker: Broker, client: RawClient, producer: RawClient
) -> None:
    """A client with many queues could not send its heartbeats."""
    await send(producer, b"first")
    for _ in range(4000):
        client.writer.write(encode_command(pull_request(1, wait_ms=20_000)))
    await until(lambda: len(broker.consumers.holds) == 4000)
    assert (await beat(client)).code == 0 or (await client.next()).code == 0
    await send(producer, b"second")
    responses = [await client.next() for _ in range(4000)]
    assert {response.code for response in responses} <= {0, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}


# -- subscriptions and filters --------------------------------------------------------------------


async def test_a_push_consumer_needs_its_heartbeat_first(client: RawClient, producer: RawClient) -> None:
    """QUIRKS 32, 35: a pull with an unknown expression would return too many messages, or too few."""
    await send(producer, b"a", "TAGS\x01a\x02")
    await send(producer, b"b", "TAGS\x01b\x02")
    assert (await pull(client, sub=None, version=5)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert (await beat(client, sub="b", version=5)).code in {0, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
    await drain(client)
    assert bodies(await pull(client, sub=None, version=5)) == [b"b"]
    newer = await pull(client, sub=None, version=6, kind="SQL92")
    assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_tags_that_no_heartbeat_has_announced_do_not_block_a_consumer(
    client: RawClient, producer: RawClient
) -> None:
    """A client of 5.3.3 that drops a heartbeat would get no message for 20 s, or miss those of a new tag."""
    await send(producer, b"a", "TAGS\x01a\x02")
    await send(producer, b"b", "TAGS\x01b\x02")
    await beat(client, sub="b", version=5)
    await drain(client)
    assert bodies(await pull(client, sub=None, version=6)) == [b"a", b"b"]  # consumers check tags, too
    await beat(client, sub="b", version=7, kind="SQL92")
    await drain(client)
    newer = await pull(client, sub=None, version=8)
    assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def drain(client: RawClient) -> None:
    """Read all frames in transit: the response to one more request follows them."""
    request = Command.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    request.opaque = 987_654
    client.writer.write(encode_command(request))
    while (await client.next()).opaque != 987_654:
        pass


async def test_properties_are_filtered_by_sql92(
    broker: Broker, client: RawClient, producer: RawClient
) -> None:
    """A consumer with an expression would get every message, or none."""
    for number in range(6):
        await send(
            producer, b"%d" % number, f"n\x01{number}\x02color\x01{'red' if number % 2 else 'blue'}\x02"
        )
    found, offset = [], 0
    while offset < 6:  # a pull whose filter has used up its time returns what it found so far
        response = await pull(client, offset, sub="n > 2 AND color = 'red'", kind="SQL92")
        found += bodies(response)
        offset = int(response.ext_fields()["nextBeginOffset"])
    assert (found, offset) == ([b"3", b"5"], 6)
    assert (await pull(client, sub="n > 99", kind="SQL92")).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    bad = await pull(client, sub="n >", kind="SQL92")
    assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    await hold(broker, client, 6, sub="n = 7", kind="SQL92")
    await send(producer, b"6", "n\x016\x02")
    await send(producer, b"7", "n\x017\x02")
    assert bodies(await client.next()) == [b"7"]


async def check(client: RawClient, sub: str, kind: str = "SQL92") -> Command:
    wanted = SubscriptionData(topic="T", sub_string=sub, expression_type=kind)
    body = CheckClientRequestBody(client_id="c@1", group="c", subscription_data=wanted)
    return await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())


async def test_a_consumer_learns_at_its_start_that_its_filter_is_wrong(client: RawClient) -> None:
    """A consumer with an invalid expression would start and wait forever."""
    assert (await check(client, "a BETWEEN 1 AND 5")).code == 0
    assert (await check(client, "whatever", "TAG")).code == 0
    refused = await check(client, "a BETWEEN 1")
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "at 11" in (refused.remark or "")
    assert (await check(client, "x", "XPATH")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_sql92_is_off_by_default() -> None:
    """enablePropertyFilter: each client could make the broker evaluate expressions."""
    async with serving(settings=SMALL) as (_, client):
        await send(client, b"x")
        assert (await check(client, "a = 1")).code == ResponseCode.SYSTEM_ERROR
        response = await pull(client, sub="a = 1", kind="SQL92")
        assert (response.code, response.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "The broker does not support consumer to filter message by SQL92",
        )


async def test_a_rejected_expression_names_the_key_that_allows_it(caplog: pytest.LogCaptureFixture) -> None:
    """RocketMQ's remark to the client names neither the key nor the group, which an operator needs."""
    async with serving(settings=SMALL) as (_, client):
        await send(client, b"x")
        for _ in range(2):
            await check(client, "a = 1")
            await pull(client, sub="a = 1", kind="SQL92")
    (line,) = (record for record in caplog.records if record.name == "rocketpy.broker.filter")
    assert "SQL92 filter of consumer group 'c' is rejected; enablePropertyFilter=true" in line.getMessage()


EXPRESSION = "n = 1"


@pytest.fixture
def slow_filters(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by 0.2 ms with each reading; the broker reads it after each filtered message."""
    times_ms, handler = itertools.count(), broker.consumers._pull_handler
    for owner in (handler, handler.slices):
        monkeypatch.setattr(owner, "now_ms", lambda: next(times_ms) / 5)


async def send_many(client: RawClient, texts: list[bytes]) -> None:
    header = SendMessageRequestHeaderV2(
        producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0, properties="", batch=True,
    )  # fmt: skip
    body = encode_batch([(0, b"%d" % number, text) for number, text in enumerate(texts)])
    assert (await client.call(RequestCode.SEND_MESSAGE_V2, header, body)).code == ResponseCode.SUCCESS


@pytest.mark.usefixtures("slow_filters")
async def test_the_next_pull_continues_a_slow_filter(client: RawClient, producer: RawClient) -> None:
    """A pull with 600 terms blocked all other clients for 1.7 s."""
    await send_many(producer, [b"x\x012\x02"] * 70 + [b"n\x011\x02"])
    offset, offsets = 0, []
    while (response := await pull(client, offset, sub=EXPRESSION, kind="SQL92")).code != ResponseCode.SUCCESS:
        assert response.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        offsets.append(int(response.ext_fields()["nextBeginOffset"]))
        assert offsets[-1] > offset
        offset = offsets[-1]
    assert offsets == [10, 20, 30, 40, 50, 60, 70], "each pull looks at messages for 2 ms"
    assert bodies(response) == [b"70"]


@pytest.mark.usefixtures("slow_filters")
async def test_a_held_pull_with_a_slow_filter_gets_its_message(
    broker: Broker, client: RawClient, producer: RawClient
) -> None:
    """Its consumer would get no message until its pull times out."""
    await send(producer, b"first")
    await hold(broker, client, 1, sub=EXPRESSION, kind="SQL92")
    await send_many(producer, [b"x\x012\x02"] * 70 + [b"n\x011\x02"])
    assert bodies(await client.next()) == [b"70"]


@pytest.mark.usefixtures("slow_filters")
@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
async def test_held_pulls_with_filters_leave_time_for_others(
    broker: Broker, client: RawClient, producer: RawClient, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message of a queue with 32,000 held pulls stopped the broker for 140 ms."""
    await send(producer, b"first")
    for number in range(300):
        text = f"tag-{number}" if kind == "TAG" else f"n = {number}"
        client.writer.write(encode_command(pull_request(1, wait_ms=20_000, sub=text, kind=kind)))
    await until(lambda: len(broker.consumers.holds) == 300)
    reads = Turns(broker.store.get_message)
    monkeypatch.setattr(broker.store, "get_message", reads)
    for _ in range(3):
        await send(producer, b"x", "TAGS\x01other\x02n\x01-1\x02")
    await until(lambda: {group.offset for group in broker.consumers.holds.groups(("T", 0))} == {4})
    reads.stop()
    assert reads.total >= 300
    assert reads.longest <= 12, "2 ms, of 0.2 ms each"
    await send(producer, b"last", "TAGS\x01tag-7\x02n\x017\x02")
    assert bodies(await client.next()) == [b"last"]
    assert len(broker.consumers.holds) == 299


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
async def test_held_pulls_with_the_same_filter_read_a_message_once(
    broker: Broker, client: RawClient, producer: RawClient, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 4,000 pulls filtered every message of its queue again."""
    await send(producer, b"first")
    text = "rare" if kind == "TAG" else "n = 7"
    client.writer.write(encode_command(pull_request(1, wait_ms=20_000, sub=text, kind=kind)) * 1000)
    await until(lambda: len(broker.consumers.holds) == 1000)
    reads = Turns(broker.store.get_message)
    monkeypatch.setattr(broker.store, "get_message", reads)
    for body in (b"one", b"two"):
        await send(producer, body, "TAGS\x01often\x02n\x011\x02")
    await until(lambda: [group.offset for group in broker.consumers.holds.groups(("T", 0))] == [3])
    await send(producer, b"three", "TAGS\x01rare\x02n\x017\x02")
    assert [bodies(await client.next()) for _ in range(1000)] == [[b"three"]] * 1000
    reads.stop()
    assert reads.total <= 3


@pytest.mark.usefixtures("slow_filters")
@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Wide"}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "Wide"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "Wide", "group": "g"}),
    ],
)
async def test_statistics_of_many_queues_leave_time_for_others(
    broker: Broker, client: RawClient, code: int, fields: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics of 1,024 queues stopped the broker for 13 ms, and those of all groups for seconds."""
    await broker.topics.update(TopicConfig(topic_name="Wide", read_queue_nums=300, write_queue_nums=300))
    await broker.consumers.groups.update(SubscriptionGroupConfig(group_name="g"))
    for queue_id in range(300):
        broker.consumers.offsets.commit("g", "Wide", queue_id, 1)
    reads = Turns(broker.store.max_offset_in_queue)
    monkeypatch.setattr(broker.store, "max_offset_in_queue", reads)
    request = Command.request(code)
    request.ext = fields
    response = await client.call_frame(encode_command(request))
    reads.stop()
    assert (response.code, response.body.count(b'"Wide"')) == (0, 300)
    assert reads.total >= 300
    assert reads.longest <= 12


@pytest.mark.usefixtures("slow_filters")
async def test_locks_of_many_queues_leave_time_for_others(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request for 200,000 locks stopped the broker for 320 ms."""
    queues = [MessageQueue("T", "broker-a", number) for number in range(4000)]
    body = LockBatchRequestBody(consumer_group="g", client_id="me", mq_set=queues).encode()
    locks = Turns(broker.consumers.locks.lock)
    monkeypatch.setattr(broker.consumers.locks, "lock", locks)
    response = await client.call(RequestCode.LOCK_BATCH_MQ, body=body)
    locks.stop()
    assert LockBatchResponseBody.decode(response.body).lock_ok_mq_set == queues
    assert (locks.total, locks.longest <= 12) == (63, True)
    assert (await client.call(RequestCode.UNLOCK_BATCH_MQ, body=body)).code == 0
    assert len(broker.consumers.locks) == 0
    many = [MessageQueue("a-long-name-of-a-topic", "broker-a", number) for number in range(40_000)]
    body = LockBatchRequestBody(consumer_group="g", client_id="me", mq_set=many).encode()
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        response = await client.call(code, body=body)
        assert (response.code, "name fewer queues" in (response.remark or "")) == (1, True)


async def test_new_expressions_leave_time_for_others(
    broker: Broker, client: RawClient, producer: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling an expression takes up to 15 ms: pulls of many connections stopped the broker for seconds."""
    await send(producer, b"first", "n\x017\x02")
    long = " OR ".join(f"a{number} = {number}" for number in range(500))
    compiling = Turns(sql92._compiled._compile)
    monkeypatch.setattr(sql92._compiled, "_compile", compiling)
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(await RawClient.open(broker.address)) for _ in range(20)]
        for number, other in enumerate(others):
            text = f"n = {number} OR {long}"
            other.writer.write(encode_command(pull_request(0, sub=text, kind="SQL92")))
        responses = [await other.next() for other in others]
    assert [response.code for response in responses].count(0) == 1
    assert bodies(responses[7]) == [b"first"]
    wrong = await pull(client, sub=f"{long} OR", kind="SQL92")
    assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert (await check(client, f"n = 99 OR {long}", "SQL92")).code == 0
    compiling.stop()
    assert (compiling.total, compiling.longest) == (22, 1)


async def test_a_subscription_that_is_too_long_is_rejected_with_the_reason(
    broker: Broker, client: RawClient, producer: RawClient
) -> None:
    """900 KB of tags cost 0.65 s each pull, whether they came in it or in a heartbeat."""
    await send(producer, b"first")
    tags = "||".join(f"t{number}" for number in range(3000))
    assert (await check(client, tags, "TAG")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    refused = await pull(client, sub=tags)
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "the limit is 16384" in (refused.remark or "")
    assert (await beat(client, sub=tags)).code == ResponseCode.SUCCESS
    refused = await pull(client, sub=None, version=1)
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "the limit is 16384" in (refused.remark or "")
    kept = broker.consumers.clients.subscription("c", "T")
    assert kept is not None
    assert len(kept.sub_string or "") + len(kept.code_set) + len(kept.tags_set) < 20_000


# -- groups ---------------------------------------------------------------------------------------


async def consumer_ids(client: RawClient) -> list[str]:
    header = GetConsumerListByGroupRequestHeader(consumer_group="c")
    response = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    return list(fastjson.loads(response.body)["consumerIdList"]) if response.code == 0 else []


async def notified(client: RawClient) -> None:
    """Check that the next frame is NOTIFY_CONSUMER_IDS_CHANGED for the group."""
    notification = await client.next()
    assert (notification.code, notification.is_oneway) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, True)
    assert notification.ext_fields() == {"consumerGroup": "c"}


async def test_members_of_a_group_are_notified_of_each_other(broker: Broker, client: RawClient) -> None:
    """QUIRKS 38, 41: the queues of a consumer that left would not be read."""
    assert await consumer_ids(client) == []
    assert {(await beat(client, "c@1")).code, (await client.next()).code} == {0, 40}
    async with await RawClient.open(broker.address) as other:
        assert {(await beat(other, "c@2")).code, (await other.next()).code} == {0, 40}
        await notified(client)
        assert await consumer_ids(client) == ["c@1", "c@2"]
        assert (await beat(other, "c@2")).code == 0  # it changes nothing, so nobody is notified
    await notified(client)
    assert await consumer_ids(client) == ["c@1"]
    bye = UnregisterClientRequestHeader(client_id="c@1", consumer_group="c")
    for _ in range(2):  # QUIRKS 10
        assert (await client.call(RequestCode.UNREGISTER_CLIENT, bye)).code == 0
    assert await consumer_ids(client) == []


async def test_a_new_group_gets_a_topic_for_its_retries(broker: Broker, client: RawClient) -> None:
    """QUIRKS 13: a consumer could not pull the messages that it returned."""
    await beat(client)
    topic = broker.topics.get("%RETRY%c")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


async def update_group(client: RawClient, group: SubscriptionGroupConfig) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert (await client.call(code, body=group.encode())).code == 0


async def test_a_group_may_be_forbidden_to_consume(client: RawClient, producer: RawClient) -> None:
    """consumeEnable, consumeBroadcastEnable: an operator could not stop a group."""
    await send(producer, b"x")
    await update_group(client, SubscriptionGroupConfig(group_name="c", consume_broadcast_enable=False))
    await beat(client, model="BROADCASTING")
    await drain(client)
    assert (await pull(client, sub=None)).code == ResponseCode.NO_PERMISSION
    await update_group(client, SubscriptionGroupConfig(group_name="c", consume_enable=False))
    assert (await pull(client)).code == ResponseCode.NO_PERMISSION


async def test_groups_are_only_created_automatically_if_configured(tmp_path: Path) -> None:
    """autoCreateSubscriptionGroup=false: a typing error would create a group."""
    settings = SMALL | {"autoCreateSubscriptionGroup": "false"}
    async with serving(tmp_path, settings=settings) as (_, client):
        await send(client, b"x")
        assert (await pull(client)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        await update_group(client, SubscriptionGroupConfig(group_name="c", retry_max_times=3))
        assert bodies(await pull(client)) == [b"x"]
    async with serving(tmp_path, settings=settings) as (_, client):
        response = await client.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = SubscriptionGroupWrapper.decode(response.body).subscription_group_table
        assert table["c"].retry_max_times == 3
        assert "TOOLS_CONSUMER" in table
        one = GetSubscriptionGroupConfigRequestHeader(group="c")
        response = await client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, one)
        assert SubscriptionGroupConfig.decode(response.body) == table["c"]
        gone = DeleteSubscriptionGroupRequestHeader(group_name="c")
        for _ in range(2):
            assert (await client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)).code == 0
        assert (await pull(client)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        response = await client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, one)
        assert response.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_queue_is_locked_for_one_member(client: RawClient) -> None:
    """Two members of a group could consume one queue in order at the same time."""
    queues = [MessageQueue("T", "broker-a", number) for number in range(2)]

    async def lock(who: str, wanted: list[MessageQueue], code: int = RequestCode.LOCK_BATCH_MQ) -> bytes:
        body = LockBatchRequestBody(consumer_group="c", client_id=who, mq_set=wanted)
        response = await client.call(code, body=body.encode())
        assert response.code == 0
        return response.body

    assert LockBatchResponseBody.decode(await lock("one", queues[:1])).lock_ok_mq_set == queues[:1]
    assert LockBatchResponseBody.decode(await lock("two", queues)).lock_ok_mq_set == queues[1:]
    await lock("two", queues, RequestCode.UNLOCK_BATCH_MQ)
    await lock("one", queues, RequestCode.UNLOCK_BATCH_MQ)
    assert LockBatchResponseBody.decode(await lock("two", queues)).lock_ok_mq_set == queues


async def test_locks_do_not_wait_for_large_responses(broker: Broker, client: RawClient) -> None:
    """A member could not renew its locks in time while an operator requested statistics, and lost them."""
    for number in range(30_000):
        broker.consumers.offsets.commit(f"g{number}", "T", 0, 1)
    body = LockBatchRequestBody(
        consumer_group="c", client_id="one", mq_set=[MessageQueue("T", "broker-a", 0)]
    )
    header = QueryTopicConsumeByWhoRequestHeader(topic="T")
    groups = Command.request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
    locks = Command.request(RequestCode.LOCK_BATCH_MQ, body=body.encode())
    groups.opaque, locks.opaque = 1, 2
    client.writer.write(encode_command(groups) + encode_command(locks))
    assert [(await client.next()).opaque for _ in range(2)] == [2, 1]


async def test_a_pull_outside_the_queue_stores_an_event(
    broker: Broker, client: RawClient, producer: RawClient
) -> None:
    """QUIRKS 34, 50: an operator would not learn that a consumer lost its place."""
    await send(producer, b"x")
    moved = await pull(client, 7)
    assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY")
    assert moved.ext_fields()["nextBeginOffset"] == "0"
    await until(lambda: broker.store.max_offset_in_queue("OFFSET_MOVED_EVENT", 0) == 1)
    found = broker.store.get_message("OFFSET_MOVED_EVENT", 0, 0, 1)
    (record,) = decode_all(found.body)
    assert record.properties == b"KEYS\x01c\x02DELAY\x010\x02TAGS\x01c\x02"
    assert fastjson.loads(record.body) == {
        "consumerGroup": "c",
        "messageQueue": {"topic": "T", "brokerName": "broker-a", "queueId": 0},
        "offsetNew": 0,
        "offsetRequest": 7,
    }


async def test_held_pulls_do_not_use_a_store_that_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last flush closes the store in a thread, while the loop still responded to held pulls."""
    monkeypatch.setattr(slices, "SLICE_MS", 0)  # one pull in each iteration of the loop
    async with serving(tmp_path, settings=SMALL) as (cluster, client):
        broker = cluster.brokers[0]
        await send(client, b"first")
        client.writer.write(encode_command(pull_request(1, wait_ms=120_000)) * 3000)
        await until(lambda: len(broker.consumers.holds) == 3000)
        closing = broker._driver.close
        begun: list[int] = []

        async def close() -> None:
            begun.append(len(broker.consumers.holds))
            await closing()

        monkeypatch.setattr(broker._driver, "close", close)
        broker.consumers.arrived({("T", 0): 2})
        await broker.close()
        for _ in range(20):
            await asyncio.sleep(0)
        assert begun == [len(broker.consumers.holds)]


async def test_many_consumers_of_one_queue_all_get_its_messages(broker: Broker, producer: RawClient) -> None:
    """Broadcasting: only the first held pull would get its messages."""
    await send(producer, b"first")
    clients = [await RawClient.open(broker.address) for _ in range(5)]
    for client in clients:
        await hold(broker, client, 1)
    await send(producer, b"second")
    for response in await asyncio.gather(*(client.next() for client in clients)):
        assert bodies(response) == [b"second"]
    for client in clients:
        client.writer.close()
