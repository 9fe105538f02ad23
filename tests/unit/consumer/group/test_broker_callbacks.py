"""Requests from brokers to a consumer: rebalance, reset, status, running info, a direct message."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rocketpy import ConsumeResult, Message, MessageExt, MessageQueue, Producer
from rocketpy.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import connect
from rocketpy_broker import EmbeddedCluster
from tests.unit.consumer.group.members import member, queues_of, send
from tests.unit.handlers.handler_server import HandlerClient
from tests.waiting import until


@pytest.fixture
async def operator(cluster: EmbeddedCluster) -> AsyncIterator[HandlerClient]:
    """A connection of an operator's tool to the broker."""
    client = HandlerClient()
    client.channel = await connect(cluster.brokers[0].address, client)
    yield client
    client.channel.close()


def committed(cluster: EmbeddedCluster) -> int:
    """Return the sum of the group's offsets, once each queue has one; else 0."""
    offsets = cluster.brokers[0].consumers.offsets.queues("g", "T")
    return sum(offsets.values()) if len(offsets) == 4 else 0


async def test_a_reset_moves_the_group_back(cluster: EmbeddedCluster, operator: HandlerClient) -> None:
    """An operator's reset would be overwritten by the next commit of the member."""
    bodies: list[bytes] = []
    await send(cluster, *(b"%d" % number for number in range(4)))
    async with member(cluster, "one", bodies):
        await until(lambda: committed(cluster) == 4)
        header = ResetOffsetRequestHeader(topic="T", group="g", timestamp=0, is_force=True)
        response = await operator.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        assert set(ResetOffsetBody.decode(response.body).offset_table.values()) == {0}
        await until(lambda: len(bodies) == 8)
        assert sorted(bodies) == sorted(bodies[:4] * 2)


@pytest.mark.parametrize("language", ["JAVA", "CPP"])
async def test_both_forms_of_a_reset_are_read(
    cluster: EmbeddedCluster, operator: HandlerClient, language: str
) -> None:
    """A reset by a C++ tool would have no effect, because its body is a list."""
    bodies: list[bytes] = []
    await send(cluster, b"x")
    async with member(cluster, "one", bodies):
        await until(lambda: committed(cluster) == 1)
        command = Command.request(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            ResetOffsetRequestHeader(topic="T", group="g", timestamp=0, is_force=True),
        )
        command.language = language
        assert (await operator.request(command)).code == ResponseCode.SUCCESS
        await until(lambda: bodies == [b"x", b"x"])


async def test_status_and_running_info_are_reported(
    cluster: EmbeddedCluster, operator: HandlerClient
) -> None:
    """The tools consumerStatus and consumerProgress would show nothing of a member."""
    bodies: list[bytes] = []
    await send(cluster, *(b"%d" % number for number in range(4)))
    async with member(cluster, "one", bodies) as consumer:
        await until(lambda: committed(cluster) == 4)
        client_id = consumer.member.client.client_id
        status = GetConsumerStatusRequestHeader(topic="T", group="g")
        response = await operator.call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, status)
        table = GetConsumerStatusBody.decode(response.body).consumer_table[client_id]
        assert table == {MessageQueue("T", "broker-a", number): 1 for number in range(4)}
        wanted = GetConsumerRunningInfoRequestHeader(
            consumer_group="g", client_id=client_id, jstack_enable=True
        )
        response = await operator.call(RequestCode.GET_CONSUMER_RUNNING_INFO, wanted)
        info = ConsumerRunningInfo.decode(response.body)
        assert info.properties["PROP_CONSUMEORDERLY"] == "false"
        assert {queue for queue in info.mq_table if queue.topic == "T"} == queues_of(consumer)
        assert "MainThread" in (info.jstack or "")


@pytest.mark.parametrize(("result", "kind"), [(None, "CR_SUCCESS"), (ConsumeResult.LATER, "CR_LATER")])
async def test_an_operator_sends_a_message_to_the_handler(
    cluster: EmbeddedCluster, operator: HandlerClient, result: ConsumeResult | None, kind: str
) -> None:
    """The tool queryMsgById -d would not reach the handler, or would move the offset of the group."""
    bodies: list[bytes] = []

    def result_for(message: MessageExt) -> ConsumeResult | None:
        return result if message.body == b"try me" else None

    await send(cluster, b"first")
    async with member(cluster, "one", bodies, result=result_for) as consumer:
        async with Producer("p", cluster.namesrv_address) as producer:
            sent = await producer.send(Message("Other", b"try me"))
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group="g",
            client_id=consumer.member.client.client_id,
            msg_id=sent.offset_message_id,
        )
        response = await operator.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        found = ConsumeMessageDirectlyResult.decode(response.body)
        assert (found.consume_result, bodies) == (kind, [b"first", b"try me"])
