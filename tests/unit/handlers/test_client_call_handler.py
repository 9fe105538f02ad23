"""ClientCallHandler: requests of operators that the broker forwards to consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rocketpy.protocol.bodies import GetConsumerStatusBody, MessageQueue, ResetOffsetBody, ResetOffsetBodyForC
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from rocketpy.protocol.message.message_id import message_id
from rocketpy.protocol.message.record import decode_all
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.handlers import client_calls
from tests.unit.handlers.broker_parts import HOST, BrokerParts, PartsClient, served
from tests.unit.store.helpers import put
from tests.waiting import until

QUEUE = MessageQueue("T", "broker-a", 0)
RUNNING_INFO = GetConsumerRunningInfoRequestHeader(consumer_group="g", client_id="c1", jstack_enable=True)


class Scenario:
    """A broker with three messages, of which group g has consumed two, and clients: operator and consumer."""

    def __init__(self, parts: BrokerParts, operator: PartsClient, member: PartsClient) -> None:
        self.parts, self.operator, self.member = parts, operator, member

    async def join(self) -> None:
        """Let the consumer join group g."""
        await self.member.beat("c1")
        await until(lambda: self.member.received)
        self.member.received.clear()


@pytest.fixture
async def scenario(tmp_path: Path) -> AsyncIterator[Scenario]:
    """A broker whose consumer has not joined group g yet."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T", read_queue_nums=1, write_queue_nums=1)
    put(parts.store, *range(3))
    parts.offsets.commit("g", "T", 0, 2)
    async with served(parts, clients=2) as (operator, member):
        yield Scenario(parts, operator, member)


async def reset(client: PartsClient, *, language: str = "JAVA", **header: Any) -> Command:
    """Request a reset of the offsets of group g."""
    settings = {"topic": "T", "group": "g", "timestamp": 0, "is_force": False, **header}
    command = Command.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetRequestHeader(**settings))
    command.language = language
    return await client.request(command)


@pytest.mark.parametrize(
    ("timestamp", "force", "offset"), [(0, False, 0), (0, True, 0), (-1, False, 2), (-1, True, 3)]
)
async def test_members_reset_their_offsets(
    scenario: Scenario, timestamp: int, force: bool, offset: int
) -> None:
    """resetOffsetByTime: an offset would move ahead without force, and messages would be skipped."""
    await scenario.join()
    response = await reset(scenario.operator, timestamp=timestamp, is_force=force)
    assert ResetOffsetBody.decode(response.body).offset_table == {QUEUE: offset}
    await until(lambda: scenario.member.received)
    (notice,) = scenario.member.received
    assert (notice.code, notice.is_oneway) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, True)
    assert ResetOffsetBody.decode(notice.body).offset_table == {QUEUE: offset}


@pytest.mark.parametrize("is_online", [True, False])
async def test_one_queue_is_reset_alone(tmp_path: Path, is_online: bool) -> None:
    """A tool of 5.x that resets one queue would make the group read all queues from their starts."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T", read_queue_nums=2, write_queue_nums=2)
    put(parts.store, *range(3))
    for queue_id in (0, 1):
        parts.offsets.commit("g", "T", queue_id, 2)
    async with served(parts, clients=2) as (operator, member):
        if is_online:
            await Scenario(parts, operator, member).join()
        response = await reset(operator, queue_id=0, offset=1)
        assert ResetOffsetBody.decode(response.body).offset_table == {QUEUE: 1}
        assert parts.offsets.queues("g", "T") == {0: 1, 1: 2}
        if is_online:
            await until(lambda: member.received)
            assert ResetOffsetBody.decode(member.received[0].body).offset_table == {QUEUE: 1}
        by_time = await reset(operator, queue_id=0, offset=-1, timestamp=0)
        assert ResetOffsetBody.decode(by_time.body).offset_table == {QUEUE: 0}
        beyond = await reset(operator, queue_id=0, offset=4)
        assert (beyond.code, parts.offsets.get("g", "T", 0)) == (ResponseCode.SYSTEM_ERROR, 0)
        assert beyond.remark == "Target offset 4 not in consume queue range [0-3]"
        unknown = await reset(operator, queue_id=2, offset=0)
        assert unknown.code == ResponseCode.SYSTEM_ERROR


async def test_queues_that_are_only_read_are_reset(scenario: Scenario) -> None:
    """Messages in queues that get no more messages would be consumed or skipped as before."""
    parts = scenario.parts
    parts.add_topics("T", read_queue_nums=3, write_queue_nums=1)
    put(parts.store, *range(3), queue_id=1)
    parts.offsets.commit("g", "T", 1, 3)
    await scenario.join()
    response = await reset(scenario.operator)
    expected = {QUEUE: 0, MessageQueue("T", "broker-a", 1): 0}  # the group has not read queue 2
    assert ResetOffsetBody.decode(response.body).offset_table == expected


async def test_tools_in_c_get_lists_instead_of_maps(scenario: Scenario) -> None:
    """Tools in C++ could not read the response: they cannot decode maps whose keys are objects."""
    await scenario.join()
    await reset(scenario.operator, language="CPP")
    await until(lambda: scenario.member.received)
    (queue,) = ResetOffsetBodyForC.decode(scenario.member.received[0].body).offset_table
    assert (queue.topic, queue.broker_name, queue.queue_id, queue.offset) == ("T", "broker-a", 0, 0)


@pytest.mark.parametrize(
    ("header", "code", "remark"),
    [
        ({"topic": "Missing"}, ResponseCode.SYSTEM_ERROR, "no topic in this broker. topic=Missing"),
        ({"group": "new"}, ResponseCode.SYSTEM_ERROR, "THe consumer group <new> not exist"),
        ({}, ResponseCode.CONSUMER_NOT_ONLINE, "Consumer not online, so can not reset offset, Group: g"),
    ],
)
async def test_a_reset_without_effect_is_reported(
    scenario: Scenario, header: dict[str, Any], code: int, remark: str
) -> None:
    """An operator would believe that a group starts from another offset, but it would not."""
    response = await reset(scenario.operator, **header)
    assert response.code == code
    assert remark in (response.remark or "")


async def test_a_request_is_forwarded_without_its_signature(scenario: Scenario) -> None:
    """The tool consumerStatus would show nothing, or a member could replay an administrator's signature."""
    await scenario.join()
    scenario.member.respond = lambda request: request.reply(remark="so far", body=b"{}")
    command = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING_INFO)
    command.ext = {**command.ext_fields(), "Signature": "s", "AccessKey": "k"}
    response = await scenario.operator.request(command)
    assert (response.code, response.remark, response.body) == (ResponseCode.SUCCESS, "so far", b"{}")
    (request,) = scenario.member.received
    assert request.ext_fields() == RUNNING_INFO.ext_fields()


async def test_one_member_consumes_a_message_directly(scenario: Scenario) -> None:
    """With queryMsgById -d, the chosen consumer would get another message, or none."""
    await scenario.join()
    scenario.member.respond = lambda request: request.reply(body=b'{"consumeResult":"CR_SUCCESS"}')
    for offset, code in ((0, ResponseCode.SUCCESS), (1 << 40, ResponseCode.SYSTEM_ERROR)):
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group="g", client_id="c1", msg_id=message_id(HOST, offset)
        )
        response = await scenario.operator.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        assert response.code == code
    (request,) = scenario.member.received
    assert [record.body for record in decode_all(request.body)] == [b"body 0"]
    assert request.ext_fields()["brokerName"] == "broker-a"


async def test_a_member_that_does_not_respond_is_reported(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool would wait until its own timeout for a consumer that is offline, silent or closing."""
    monkeypatch.setattr(client_calls, "_CALL_TIMEOUT_MS", 1)
    response = await scenario.operator.call(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING_INFO)
    assert response.remark == "The Consumer <g> <c1> not online"
    await scenario.join()
    other = GetConsumerRunningInfoRequestHeader(consumer_group="g", client_id="c9")
    response = await scenario.operator.call(RequestCode.GET_CONSUMER_RUNNING_INFO, other)
    assert response.remark == "The Consumer <g> <c9> not online"
    scenario.member.respond = lambda _: None
    response = await scenario.operator.call(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING_INFO)
    assert response.code == ResponseCode.CONSUME_MSG_TIMEOUT

    def leave(_: Command) -> None:
        scenario.member.channel.close()

    monkeypatch.undo()
    scenario.member.respond = leave
    response = await scenario.operator.call(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING_INFO)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "invoke consumer <g> <c1> Exception" in (response.remark or "")


async def test_the_status_of_all_members_is_collected(scenario: Scenario) -> None:
    """One member that fails would hide the offsets of the others."""
    status = GetConsumerStatusRequestHeader(topic="T", group="g")
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    response = await scenario.operator.call(code, status)
    assert response.remark == "No Any Consumer online in the consumer group: [g]"
    await scenario.join()
    await scenario.operator.beat("c2")
    body = GetConsumerStatusBody(message_queue_table={QUEUE: 2}).encode()
    scenario.member.respond = lambda request: request.reply(body=body)
    scenario.operator.respond = lambda request: request.reply(1, remark="not now")
    response = await scenario.operator.call(code, status)
    assert GetConsumerStatusBody.decode(response.body).consumer_table == {"c1": {QUEUE: 2}}
    scenario.member.respond = lambda request: request.reply(body=b"no JSON")
    one = GetConsumerStatusRequestHeader(topic="T", group="g", client_addr="c1")
    response = await scenario.operator.call(code, one)
    assert GetConsumerStatusBody.decode(response.body).consumer_table == {}
