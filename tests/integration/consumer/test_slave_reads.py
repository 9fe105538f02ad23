"""Consumers whose master is offline, or redirects them to a slave: which broker gets which request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from rocketpy import ConsumeFrom, ConsumeResult, Message, MessageExt, Producer, PushConfig, PushConsumer
from rocketpy.protocol.bodies import (
    BrokerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    QueueData,
    TopicRouteData,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketpy.protocol.message.record import encode_record, host_bytes
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from tests.integration.sdk_peers import Peer
from tests.waiting import LIMIT_S, until

HOST = host_bytes("127.0.0.1", 10911)


class Member(Peer):
    """A master or slave of broker-a, with the offsets 0 to 3 in queue 0 of T; the group has consumed 0.

    suggests: broker id from which consumers are to pull next.
    """

    def __init__(self) -> None:
        super().__init__(self.respond)
        self.suggests = 0
        self.client_id = ""

    def respond(self, channel: Channel, request: Command) -> Command | bytes | None:
        """Respond like a broker; pulls at the end are held without a response."""
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return request.reply(
                body=GetConsumerListByGroupResponseBody(consumer_id_list=[self.client_id]).encode()
            )
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return request.reply(header=QueryConsumerOffsetResponseHeader(offset=1))
        if request.code == RequestCode.LOCK_BATCH_MQ:
            wanted = LockBatchRequestBody.decode(request.body).mq_set
            return request.reply(body=LockBatchResponseBody(lock_ok_mq_set=wanted).encode())
        if request.code == RequestCode.PULL_MESSAGE:
            return self.pulled(channel, request)
        if request.code == RequestCode.SEND_MESSAGE_V2:
            return request.reply(
                header=SendMessageResponseHeader(msg_id="0" * 32, queue_id=0, queue_offset=7)
            )
        return request.reply()

    def pulled(self, channel: Channel, request: Command) -> Command | None:
        """Return one message for each pull."""
        header = request.header_as(PullMessageRequestHeader)
        at = header.queue_offset
        if header.topic != "T" or at >= 4:
            channel.exclude_from_unanswered()
            return None
        record = encode_record(
            b"T", 0, 0, at, 1000 + at, 0, 1, HOST, 2, HOST, 0, 0, b"message %d" % at, b"UNIQ_KEY\x01id\x02"
        )
        response_header = PullMessageResponseHeader(
            suggest_which_broker_id=self.suggests, next_begin_offset=at + 1, min_offset=0, max_offset=4
        )
        return request.reply(header=response_header, body=record)

    @property
    def pulls(self) -> list[PullMessageRequestHeader]:
        """The pulls of T that it received."""
        found = [one.header_as(PullMessageRequestHeader) for one in self.requests(RequestCode.PULL_MESSAGE)]
        return [header for header in found if header.topic == "T"]


class Names(Peer):
    """A name server for broker-a, and for broker-b's master, which has the retry topic too."""

    def __init__(self, **members: Member) -> None:
        super().__init__(self.respond)
        self.members = {0: members["master"], 1: members["slave"]}
        self.other = members["other"]

    def respond(self, _channel: Channel, request: Command) -> Command:
        """Respond with a route."""
        if request.code != RequestCode.GET_ROUTEINTO_BY_TOPIC:
            return request.reply()
        topic = request.header_as(GetRouteInfoRequestHeader).topic
        brokers = {"broker-a": {number: member.address for number, member in self.members.items()}}
        if topic != "T":
            brokers["broker-b"] = {0: self.other.address}
        route = TopicRouteData(
            queue_datas=[
                QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6) for name in brokers
            ],
            broker_datas=[
                BrokerData(cluster="c", broker_name=name, broker_addrs=addresses)
                for name, addresses in brokers.items()
            ],
        )
        return request.reply(body=route.encode())

    async def lose_master(self) -> None:
        """Stop the master of broker-a, and remove its route."""
        await self.members.pop(0).close()


@pytest.fixture
async def names() -> AsyncIterator[Names]:
    """A group with all brokers running."""
    async with (
        Member() as master,
        Member() as slave,
        Member() as other,
        Names(master=master, slave=slave, other=other) as running,
    ):
        yield running


async def start(names: Names, seen: list[bytes], said: object = None, **config: object) -> PushConsumer:
    """A consumer of T that has started."""

    async def handle(message: MessageExt) -> object:
        seen.append(message.body)
        return said

    consumer = PushConsumer(
        "g",
        names.address,
        handle,  # type: ignore[arg-type] # responds as the test decides
        config=PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET, **config),  # type: ignore[arg-type] # a dict
    )
    consumer.subscribe("T")
    await consumer.start()
    for member in (*names.members.values(), names.other):
        member.client_id = consumer.member.client.client_id
    consumer.member.rebalance_soon()
    return consumer


async def test_a_master_may_send_readers_to_its_slave(names: Names) -> None:
    """A busy master would keep readers that it redirects, or offsets would be committed to a slave."""
    seen: list[bytes] = []
    master, slave = names.members[0], names.members[1]
    master.suggests, slave.suggests = 1, 1
    consumer = await start(names, seen)
    try:
        await until(lambda: len(seen) == 3 and len(slave.pulls) == 3)
    finally:
        await consumer.close()
    assert seen == [b"message 1", b"message 2", b"message 3"]
    assert [header.queue_offset for header in master.pulls] == [1]
    assert master.pulls[0].sys_flag & PullSysFlag.COMMIT_OFFSET
    assert [header.queue_offset for header in slave.pulls] == [2, 3, 4]
    assert not any(header.sys_flag & PullSysFlag.COMMIT_OFFSET for header in slave.pulls)
    commits = [
        request.header_as(UpdateConsumerOffsetRequestHeader)
        for request in master.requests(RequestCode.UPDATE_CONSUMER_OFFSET)
    ]
    assert 4 in [header.commit_offset for header in commits if header.topic == "T"]
    assert slave.requests(RequestCode.UPDATE_CONSUMER_OFFSET) == []


async def test_a_failed_offset_query_is_not_a_missing_offset(names: Names) -> None:
    """A busy broker would make a group skip to the end of its queues."""
    seen: list[bytes] = []
    master = names.members[0]
    busy = 3

    def respond(channel: Channel, request: Command) -> Command | bytes | None:
        nonlocal busy
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET and busy:
            busy -= 1
            return request.reply(ResponseCode.SYSTEM_BUSY, remark="later")
        return master.respond(channel, request)

    master.script = respond
    consumer = await start(names, seen)
    try:
        await until(lambda: len(seen) == 3)
    finally:
        await consumer.close()
    assert busy == 0
    assert [header.queue_offset for header in master.pulls][:3] == [1, 2, 3]
    assert master.requests(RequestCode.GET_MAX_OFFSET) == []


async def test_slaves_get_heartbeats_of_consumers(names: Names) -> None:
    """A slave would reject the pulls of a group that it does not know."""
    consumer = await start(names, [])
    try:
        slave = names.members[1]
        await until(lambda: len(slave.requests(RequestCode.HEART_BEAT)) > 0)
    finally:
        await consumer.close()


async def test_slaves_get_no_heartbeats_of_producers(names: Names) -> None:
    """A slave would list producers that never send to it, unlike RocketMQ's slaves."""
    master, slave = names.members[0], names.members[1]
    async with Producer("g", namesrv=names.address) as producer:
        await producer.send(Message("T", b"x"))
        assert producer._client is not None
        await producer._client.heartbeat()
        assert HeartbeatData.decode(master.requests(RequestCode.HEART_BEAT)[-1].body).producer_data_set
        assert slave.requests(RequestCode.HEART_BEAT) == []


async def test_without_a_master_the_slave_is_used(names: Names) -> None:
    """A consumer would stop with its master, although the slave has all messages."""
    seen: list[bytes] = []
    slave = names.members[1]
    await names.lose_master()
    consumer = await start(names, seen)
    try:
        await until(lambda: len(seen) == 3)
    finally:
        await consumer.close()
    assert seen == [b"message 1", b"message 2", b"message 3"]
    commits = [
        request.header_as(UpdateConsumerOffsetRequestHeader)
        for request in slave.requests(RequestCode.UPDATE_CONSUMER_OFFSET)
    ]
    assert 4 in [header.commit_offset for header in commits if header.topic == "T"]


async def test_a_pull_held_by_a_dying_master_is_repeated_at_the_slave(names: Names) -> None:
    """A pull that was held by a dying master would never be repeated elsewhere."""
    seen: list[bytes] = []
    slave = names.members[1]
    consumer = await start(names, seen)
    try:
        await until(lambda: len(seen) == 3)
        await names.lose_master()
        await until(lambda: [header.queue_offset for header in slave.pulls][-1:] == [4])
    finally:
        await consumer.close()
    assert len(seen) == 3


async def test_failed_messages_are_sent_to_the_retry_topic_without_the_master(names: Names) -> None:
    """A message that failed while its broker was offline would be handled repeatedly here, or lost."""
    seen: list[bytes] = []
    await names.lose_master()
    consumer = await start(names, seen, ConsumeResult.LATER)
    try:
        await until(lambda: len(names.other.requests(RequestCode.SEND_MESSAGE_V2)) == 3)
        await until(
            lambda: sum(puller.process_queue.count for puller in consumer.member.pullers.values()) == 0
        )
    finally:
        await consumer.close()
    headers = [
        request.header_as(SendMessageRequestHeaderV2)
        for request in names.other.requests(RequestCode.SEND_MESSAGE_V2)
    ]
    assert {header.topic for header in headers} == {"%RETRY%g"}
    assert {(header.reconsume_times, header.max_reconsume_times) for header in headers} == {(1, 16)}
    properties = headers[0].properties or ""
    for wanted in ("RETRY_TOPIC\x01T", "DELAY\x013", "ORIGIN_MESSAGE_ID\x01id"):
        assert wanted in properties


async def test_a_rejected_return_is_also_sent_as_a_copy(names: Names) -> None:
    """A message whose send-back is rejected would be redelivered forever without a delay."""
    master = names.members[0]

    def refuse(channel: Channel, request: Command) -> Command | bytes | None:
        if request.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="no")
        return master.respond(channel, request)

    master.script = refuse
    consumer = await start(names, [], ConsumeResult.LATER)
    try:
        sends = (master, names.other)
        await until(lambda: sum(len(one.requests(RequestCode.SEND_MESSAGE_V2)) for one in sends) == 3)
    finally:
        await consumer.close()
    asked = master.requests(RequestCode.CONSUMER_SEND_MSG_BACK)[0]
    header = asked.header_as(ConsumerSendMsgBackRequestHeader)
    assert (header.offset, header.delay_level, header.origin_topic, header.origin_msg_id) == (
        1001,
        0,
        "T",
        "id",
    )


async def test_an_orderly_queue_is_kept_without_its_master(names: Names) -> None:
    """During a short absence of the master, an orderly consumer would discard its pulled messages."""
    seen: list[bytes] = []
    consumer = await start(names, seen, orderly=True)
    try:
        await until(lambda: len(seen) == 3)
        held = dict(consumer.member.pullers)
        await names.lose_master()
        await asyncio.wait_for(consumer.member.locks._renew(consumer.member.locks._held()), LIMIT_S)
        assert dict(consumer.member.pullers) == held
        assert all(p.process_queue.locked_ms is not None for q, p in held.items() if q.topic == "T")
    finally:
        await consumer.close()


async def test_a_slave_that_is_behind_is_pulled_with_pauses(names: Names) -> None:
    """RocketMQ's slave responds at once, and a consumer without a master used all of its CPU."""
    seen: list[bytes] = []
    master = names.members[0]
    asked_at: list[float] = []

    def respond(channel: Channel, request: Command) -> Command | bytes | None:
        is_pull = request.code == RequestCode.PULL_MESSAGE
        if is_pull and len(asked_at) < 4 and request.header_as(PullMessageRequestHeader).topic == "T":
            asked_at.append(asyncio.get_running_loop().time())
            header = PullMessageResponseHeader(
                suggest_which_broker_id=0, next_begin_offset=1, min_offset=0, max_offset=1
            )
            return request.reply(ResponseCode.PULL_RETRY_IMMEDIATELY, header=header)
        return master.respond(channel, request)

    master.script = respond
    consumer = await start(names, seen)
    try:
        await until(lambda: len(seen) == 3)
    finally:
        await consumer.close()
    assert all(after - before > 0.05 for before, after in pairwise(asked_at))
